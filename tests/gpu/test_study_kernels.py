"""The kernels of the study notes on a GPU: seeds and a sample of each, at all of its odd sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.cli import run
from autotune.kernel.catalog import find_kernel
from autotune.values import Problem

NAMES = (
    *("banks", "branch", "chase", "conv1d", "elementwise", "gather", "particles", "pitch"),
    *("reduce_op", "spmm", "table", "triangles", "unroll"),
)
#: The smallest problem that OpenCL tunes, and what only CUDA has.
CASES = [(name, find_kernel(name).first_problem("opencl")) for name in NAMES]
CASES += [
    ("conv1d", Problem(n=100003, taps=9, mask_in="constant")),
    ("table", Problem(n=100003, entries=16, index="random", table_in="constant")),
    ("table", Problem(n=100003, entries=16, index="random", table_in="array")),
    ("gather", Problem(n=100003, pattern="reverse", stride=1, side="load")),
]
#: Rows that are whole pieces of 16 bytes, and such that are not.
CASES += [
    ("hgemm", Problem(m=m, n=n, k=k, dtype=dtype, out_dtype=out_dtype))
    for m, n, k in ((200, 264, 264), (333, 777, 555))
    for dtype, out_dtype in (("float16", "float16"), ("bfloat16", "float32"))
]
#: The limit of tensor cores, with rows and columns that fill no tile.
CASES += [
    ("hmma", Problem(m=333, n=777, steps=31, dtype=dtype)) for dtype in ("float16", "bfloat16")
]


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "problem"), CASES, ids=str)
def test_a_sample_is_right_on_a_gpu(
    name: str, problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A configuration with a wrong result would end the run."""
    monkeypatch.chdir(tmp_path)
    asked = ",".join(f"{field}={value}" for field, value in problem.items())
    command = ["run", name, "--device", "cuda:0", "--strategy", "random", "--budget", "12evals"]
    assert run([*command, "--problem", asked]) == 0
    assert list(tmp_path.glob(f"reports/*/{name}.hpp"))
