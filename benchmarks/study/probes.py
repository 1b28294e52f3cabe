"""What rows of the study notes measure beside kernels: the CPU's cache lines, the device's numbers, transfers."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from harness import ROOT

from autotune.devices.device import Device
from autotune.errors import AutotuneError
from autotune.explain.variants import setting_of, winners_below
from autotune.kernel.catalog import find_kernel

_STEPS = """
extern "C" void times_i(int* a, long n, long step) { for (long i = 0; i < n; i += step) a[i] *= (int)i; }
"""


def stride_on_the_cpu(device: Device) -> dict[str, Any]:
    """a[i] *= i on 64 M ints, each, every second, every eighth and every sixteenth: E20 as the notes have it."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "steps.cpp"), Path(folder, "steps.so")
        source.write_text(_STEPS, encoding="utf-8")
        # Without vectors, which one step would have and others not.
        command = [
            "g++",
            "-O2",
            "-fno-tree-vectorize",
            "-shared",
            "-fPIC",
            str(source),
            "-o",
            str(library),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise AutotuneError(f"g++: {done.stderr.strip()[-300:]}")
        call = ctypes.CDLL(str(library)).times_i
        array, found = np.ones(1 << 26, np.int32), {}
        pointer = array.ctypes.data_as(ctypes.c_void_p)
        for step in (1, 2, 4, 8, 16, 32):
            times = []
            for _ in range(4):
                began = time.perf_counter()
                call(pointer, ctypes.c_long(array.size), ctypes.c_long(step))
                times.append(1e3 * (time.perf_counter() - began))
            found[str(step)] = median(times[1:])  # the first one gets the pages
    return {"ms_by_step": found}


def winners(device: Device) -> dict[str, Any]:
    """How many recorded winners have less than a quarter of the warps, and less than half: E14."""
    found = {}
    for name in ("sgemm", "reduce", "transpose", "gemv", "prefetch", "copy"):
        records = setting_of(find_kernel(name), device.arch, None).records
        quarter, known = winners_below(records, 0.25)
        half, _ = winners_below(records, 0.5)
        found[name] = {"below_quarter": quarter, "below_half": half, "known": known}
    return found


def numbers(device: Device) -> dict[str, Any]:
    """The machine model of E31, as the driver says it."""
    import cupy

    attributes = cupy.cuda.Device(device.index).attributes
    wanted = (
        *("MultiProcessorCount", "WarpSize", "MaxThreadsPerMultiProcessor", "MaxThreadsPerBlock"),
        *(
            "MaxBlocksPerMultiprocessor",
            "MaxRegistersPerMultiprocessor",
            "MaxSharedMemoryPerMultiprocessor",
        ),
        *(
            "MaxSharedMemoryPerBlockOptin",
            "L2CacheSize",
            "ClockRate",
            "MemoryClockRate",
            "GlobalMemoryBusWidth",
        ),
    )
    return {name: attributes[name] for name in wanted if name in attributes}


def transfers(device: Device) -> dict[str, Any]:
    """Copies between host and GPU, chunks and streams: E30 by the example, in a process of its own."""
    script = ROOT / "examples" / "transfers" / "transfers.py"
    command = [sys.executable, str(script), "--floats", str(1 << 25)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise AutotuneError(f"{script.name}: {done.stderr.strip()[-300:]}")
    return dict(json.loads(done.stdout))


PROBES: Mapping[str, Callable[[Device], dict[str, Any]]] = {
    "E14": winners,
    "E20": stride_on_the_cpu,
    "E30": transfers,
    "E31": numbers,
}
