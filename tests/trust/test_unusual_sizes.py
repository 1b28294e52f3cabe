"""Kernels that are wrong at sizes that nobody declares: each is refused, or its answers there are not verified."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

import autotune
from autotune.errors import NothingValidError
from autotune.kernel.catalog import bundled_folder
from autotune.tuned.lookup import clear_cache, lookup
from autotune.values import Problem

SPACE = """
from autotune import Kernel, Launch, Out, Problem, Work, ceil_div, minimum

shift = Kernel("shift.cu", problems=[Problem(batch=4, rows=100, columns=300, taps=3)],
               static=["taps"], BLOCK=(32, 64))


@shift.arguments
def arguments(p, rng):
    shape = p.batch, p.rows, p.columns
    x = rng.integers(0, 200, shape).astype("uint8")
    return {"x": x, "out": Out(shape, "uint8"), "rows": p.rows, "columns": p.columns}


@shift.reference
def reference(x):
    return {"out": x - x[:, :, :1]}


@shift.work
def work(p):
    return Work(bytes_read=p.batch * p.rows * p.columns, bytes_written=p.batch * p.rows * p.columns)


@shift.launch
def launch(c, p):
    return Launch(grid=(ceil_div(p.columns, c.BLOCK), minimum(p.rows, 65535), p.batch), block=(c.BLOCK,))


@shift.call
def call(x, taps=3):
    batch, rows, columns = x.shape
    return (Problem(batch=batch, rows=rows, columns=columns, taps=taps),
            {"x": x, "out": None, "rows": rows, "columns": columns})
"""
SOURCE = """
#include "dialect.h"
KERNEL(BLOCK, 1, 1)
shift(GLOBAL const unsigned char* x, GLOBAL unsigned char* out, int rows, int columns) {
  int column = BID(0) * BLOCK + TID(0);
  for (int row = BID(1); row < rows; row += GRID(1)) {
    i64 first = ((i64)BID(2) * rows + row) * columns;
    if (column < columns) out[first + column] = x[first + column] - x[first] + TAPS - 3;
  }
}
"""
#: The change that makes a kernel wrong, and a problem at which it is.
FAULTS = {
    "batches beyond 4 are ignored": (("p.batch), block", "minimum(p.batch, 4)), block"), {"batch": 64}),
    "a compile-time field has one meaning": (("+ TAPS - 3", "+ (TAPS > 4)"), {"taps": 5}),
    "a grid ends at 65535 rows": (("row += GRID(1)", "row += rows"), {"rows": 70_000, "columns": 1}),
    "a row is a float": (("BID(2) * rows + row)", "BID(2) * rows + (i64)(float)row)"),
                         {"batch": 1, "rows": (1 << 24) + 3, "columns": 1}),
    "an index is 32 bits wide": (("((i64)BID(2) * rows + row) * columns",
                                  "(int)(((unsigned)BID(2) * rows + row) * columns)"),
                                 {"batch": 1, "rows": 50_000, "columns": 50_000}),
    "a column is 16 bits wide": (("int column =", "short column ="), {"columns": 40_000, "rows": 1}),
    "long rows end": (("column < columns", "column < columns && column < 20000"),
                      {"rows": 2, "columns": 100_000}),
    "one column is special": (("- x[first]", "- (columns > 1 ? x[first] : 0)"), {"columns": 1}),
}  # fmt: skip
OWN = {"batch": 4, "rows": 100, "columns": 300, "taps": 3}


def tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, *change: str) -> list[str]:
    """Tune the kernel; return the warnings."""
    for folder in ("spaces", "kernels"):
        (tmp_path / folder).mkdir()
    texts = [text.replace(*change) if change else text for text in (SPACE, SOURCE)]
    assert not change or texts != [SPACE, SOURCE]
    (tmp_path / "spaces/shift.py").write_text(texts[0])
    (tmp_path / "kernels/shift.cu").write_text(texts[1])
    dialect = (bundled_folder("kernels") / "dialect.h").read_text()
    (tmp_path / "kernels/dialect.h").write_text(dialect)
    monkeypatch.setenv("AUTOTUNE_PATH", str(tmp_path / "spaces"))
    monkeypatch.setenv("AUTOTUNE_TUNED", str(tmp_path / "tuned"))
    clear_cache()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        autotune.tune("shift", device=device, budget="4evals", out=tmp_path / "tuned", quiet=True)
    return [str(each.message) for each in told]


def is_verified(**problem: int) -> bool:
    return lookup("shift", arch="opencl_cpu", **{**OWN, **problem}).verified


@pytest.mark.many_sizes
@pytest.mark.opencl
@pytest.mark.parametrize("name", FAULTS)
def test_a_kernel_that_is_wrong_at_an_unusual_size_is_refused_or_not_verified_there(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opencl_device: str
) -> None:
    change, problem = FAULTS[name]
    try:
        tuned(tmp_path, monkeypatch, opencl_device, *change)
    except NothingValidError:
        return
    assert is_verified()
    assert not is_verified(**problem)


@pytest.mark.many_sizes
@pytest.mark.opencl
def test_a_correct_kernel_is_verified_at_unusual_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opencl_device: str
) -> None:
    tuned(tmp_path, monkeypatch, opencl_device)
    inside = [{"batch": 64, "rows": 64, "columns": 40}, {"rows": 70_000, "columns": 1, "batch": 1}]
    inside += [{"columns": 1}, {"columns": 60_000, "rows": 1, "batch": 1}]
    assert [problem for problem in inside if not is_verified(**problem)] == []
    assert not is_verified(taps=5) and not is_verified(rows=10**9)


@pytest.mark.many_sizes
@pytest.mark.opencl
@pytest.mark.filterwarnings("ignore")
def test_a_call_beyond_the_verified_sizes_verifies_a_small_problem_if_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opencl_device: str
) -> None:
    change, _ = FAULTS["a compile-time field has one meaning"]
    tuned(tmp_path, monkeypatch, opencl_device, *change)
    x = np.arange(4 * 100 * 300, dtype=np.uint8).reshape(4, 100, 300)
    shifted = x - x[:, :, :1]
    unasked, asked = autotune.load("shift"), autotune.load("shift", verify=True)
    np.testing.assert_array_equal(asked(x), shifted)
    assert asked.choice(x).twin is None
    np.testing.assert_array_equal(unasked(x, taps=5), shifted + np.uint8(1))
    assert unasked.choice(x, taps=5).why.endswith("not verified at such a size")
    with pytest.raises(
        NothingValidError, match=r"BLOCK=\d\d on batch=4, .*taps=5: out\[0, 0, 0\] is 1"
    ):
        asked(x, taps=5)
    np.testing.assert_array_equal(asked(x, taps=2), shifted)
    choice = asked.choice(x, taps=2)
    assert choice.twin == Problem(batch=4, rows=100, columns=108, taps=2)
    assert choice.why.endswith(f"verified on {choice.twin}")
