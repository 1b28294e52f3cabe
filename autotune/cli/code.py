"""Prints the PTX and SASS of one configuration."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from autotune.devices import nvrtc
from autotune.devices.base import CompileError, with_defines
from autotune.devices.binary import Binary
from autotune.devices.device import Device
from autotune.errors import AutotuneError, UsageError
from autotune.kernel.spec import Kernel
from autotune.measure.compiler import compile_job, first_error
from autotune.values import Configuration, Problem


def ptx_of(kernel: Kernel, configuration: Configuration, problem: Problem, device: Device) -> str:
    """Return the PTX of a configuration for a CUDA architecture."""
    _needs_cuda(device)
    job = compile_job(kernel, configuration, problem, device)
    # sm_90a, say: as for a cubin
    chosen = [option for option in job.options if option.startswith("sm_")]
    flags = [option for option in job.options if not option.startswith("sm_")]
    if not any("std=" in flag for flag in flags):
        flags.append("-std=c++17")
    arch = (chosen[-1] if chosen else device.arch).replace("sm_", "compute_")
    try:
        names = nvrtc.expressions(job.source, job.entries)
        source = with_defines(job.source, dict(job.defines))
        return nvrtc.compile_ptx(source, [f"-arch={arch}", *flags], names)
    except CompileError as error:
        raise kernel.error(f"{configuration}: {first_error(str(error))}") from error


def disassembled(binary: Binary, device: Device) -> str:
    """Return the machine code of a cubin, by the toolkit's nvdisasm."""
    _needs_cuda(device)
    tool = shutil.which("nvdisasm")
    if tool is None:
        raise AutotuneError(
            "machine code needs nvdisasm of the CUDA toolkit, which is not on the PATH; "
            "run: apt-get install cuda-nvdisasm-13-0"
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(binary.code)
        done = subprocess.run([tool, str(file)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise AutotuneError(f"nvdisasm failed: {done.stderr.strip()}")
    return done.stdout


def _needs_cuda(device: Device) -> None:
    if not device.has_nvidia_tools:
        raise UsageError(f"{device.name} has neither PTX nor SASS; give --device sm_90, say")
