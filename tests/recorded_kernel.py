"""A kernel `twice` with a record of the OpenCL CPU device, for tests of calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_records import defaults_of, tuned_problem, write

from autotune import load
from autotune.answers.table import Plan
from autotune.calling import trial
from autotune.calling.load import TunedKernel
from autotune.devices.device import Device
from autotune.kernel.catalog import bundled_folder
from autotune.kernel.spec import Kernel
from autotune.tuned.lookup import clear_cache
from autotune.tuned.record import Provenance, TunedRecord
from autotune.tuned.recorded_device import RecordedDevice

SPACE = '''
"""y = 2 x + y; wrong where WRONG is true, and outside its arrays where OUTSIDE is."""
import numpy as np
from autotune import InOut, Kernel, Launch, Out, Problem, ceil_div

twice = Kernel("twice.cu", problems=[Problem(n=1000)], default={"BLOCK": 64},
               BLOCK=(32, 64, 128, 256), WRONG=(False, True), OUTSIDE=(False, True))

@twice.arguments
def arguments(p, rng):
    x = rng.standard_normal(p.n)
    return {"x": x, "y": InOut(rng.standard_normal(p.n)), "z": Out((p.n,)), "n": p.n}

@twice.launch
def launch(c, p):
    return Launch(grid=(ceil_div(p.n, c.BLOCK),), block=(c.BLOCK,))

@twice.deterministic
def deterministic(c, p):
    return c.BLOCK != 256

@twice.requires
def requires(c, p):
    return (c.BLOCK != 128) | (p.n % 2 == 0)

@twice.call
def call(x, y, z=None):
    return Problem(n=len(x)), {"x": x, "y": y, "z": z, "n": len(x)}
'''
SOURCE = """
#include "dialect.h"
KERNEL(BLOCK, 1, 1)
twice(GLOBAL const float* x, GLOBAL float* y, GLOBAL float* z, int n) {
  int i = BID(0) * BLOCK + TID(0);
  if (i < n) {
    y[i] = (WRONG && i == n / 2 ? 3 : 2) * x[i] + y[i];
    z[i] = x[i];
  }
  if (OUTSIDE && i == 0) z[n + 1] = 0;
}
"""
#: The records' answer near n = 1000, and others.
BLOCKS = ((1000, 32), (4000, 128), (16000, 256))


def planned(**values: Any) -> Plan:
    configuration = {"BLOCK": 64, "WRONG": False, "OUTSIDE": False, **values}
    block = configuration["BLOCK"]
    requires = ["==", ["%", "n", 2], 0] if block == 128 else None
    shape: dict[str, Any] = {"block": (block, 1, 1), "requires": requires}
    return Plan(configuration=configuration, **shape, deterministic=block != 256)


def prepare_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: Device
) -> Callable[..., Kernel]:
    """Write the kernel; return a function that writes a record whose winners are ``plans``.

    They are for n of `BLOCKS`, first to last.
    """
    for kind in ("spaces", "kernels"):
        (tmp_path / kind).mkdir()
    (tmp_path / "spaces/twice.py").write_text(SPACE)
    (tmp_path / "kernels/twice.cu").write_text(SOURCE)
    dialect = (bundled_folder("kernels") / "dialect.h").read_text()
    (tmp_path / "kernels/dialect.h").write_text(dialect)
    monkeypatch.setenv("AUTOTUNE_PATH", str(tmp_path / "spaces"))
    monkeypatch.setenv("AUTOTUNE_TUNED", str(tmp_path / "tuned"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(trial, "COMPILE_S", 120.0)  # no test depends on the clock
    clear_cache()

    def written(*plans: Plan) -> Kernel:
        kernel = load("twice").kernel
        chosen = plans or tuple(planned(BLOCK=block) for _, block in BLOCKS)
        sizes = (n for n, _ in BLOCKS)
        entries = [tuned_problem({"n": n}, plan) for n, plan in zip(sizes, chosen, strict=False)]
        write(
            tmp_path / "tuned",
            TunedRecord(
                kernel="twice",
                device=RecordedDevice.of(device),
                fields={"n": "integer"},
                parameters=kernel.parameters,
                defaults=defaults_of(planned(), {"n": "integer"}),
                problems=tuple(entries),
                provenance=Provenance(version="", toolchain="", driver="", created="2026-11-21"),
            ),
        )
        clear_cache()
        return kernel

    return written


def arrays(n: int) -> tuple[Any, Any]:
    return np.arange(n, dtype=np.float32), np.ones(n, np.float32)


def called(kernel: TunedKernel, n: int) -> None:
    """Call, and see that the result is right and no array was touched but by the call itself."""
    (x, y), z = arrays(n), np.full(n, 7, np.float32)
    changed, copied = kernel(x, y, z)
    assert changed is y and copied is z
    np.testing.assert_array_equal(x, np.arange(n))
    np.testing.assert_array_equal(y, 2 * np.arange(n) + 1)
    np.testing.assert_array_equal(z, np.arange(n))
