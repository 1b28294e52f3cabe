"""References of large problems with CuPy, where its results are NumPy's; see tests/test_device_reference.py."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_spaces import write_space

from autotune.data import device_reference
from autotune.data.dataset import EXACT, RANDOM
from autotune.data.prepare import prepare_dataset
from autotune.devices.choose import choose_device
from autotune.devices.cupy_arrays import CupyArrays
from autotune.kernel.catalog import load_file
from autotune.kernel.spec import Kernel
from autotune.values import Problem

PROBLEM = Problem(n=1 << 22)
#: A newer NumPy warns of what CuPy does, and a warning is an error in tests.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def kernel(
    cupy: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[..., Kernel]]:
    """Return a function that makes kernels whose references CuPy may evaluate."""
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "cache"))
    device_reference.use(CupyArrays(choose_device("cuda:0")))

    def make(reference: str, dtype: str, draw: str) -> Kernel:
        edits = (
            ("return factor * x", f"return {reference}"),
            ("Out(p.n)", f"Out(p.n, '{dtype}')"),
            ("rng.standard_normal(p.n, dtype=np.float32)", draw),
        )
        return load_file(write_space(tmp_path, *edits))

    yield make
    device_reference.use(None)


NORMAL, INTEGERS = "rng.standard_normal(p.n, dtype=np.float32)", "rng.integers(-999, 999, p.n)"


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("reference", "dtype", "draw"),
    [
        ("factor * x", "float32", NORMAL),
        ("0.4 * np.pad(x, 1)[1:-1] + 0.1 * (np.roll(x, 1) + np.roll(x, -1))", "float32", NORMAL),
        ("np.cumsum(x)", "float32", NORMAL),
        ("(x.reshape(-1, 512) @ x[:512 * 512].reshape(512, 512)).ravel()", "float32", NORMAL),
        ("np.exp(x) / np.exp(x).sum()", "float32", NORMAL),
        ("1 - np.cos(x)", "float32", NORMAL),
        ("np.exp(x) * np.sin(x)", "float64", "rng.standard_normal(p.n, dtype=np.float64)"),
        ("x // 7 + np.sort(x)", "int32", INTEGERS),
    ],
)
def test_cupy_evaluates_what_it_computes_as_numpy_does(
    reference: str, dtype: str, draw: str, kernel: Callable[..., Kernel]
) -> None:
    made = kernel(reference, dtype, draw)
    for which in (EXACT, RANDOM):
        found = prepare_dataset(made, PROBLEM, which)
        assert re.fullmatch(
            r"numpy on .*\(CuPy\), checked against NumPy at n=\d+", found.reference
        ), found
        with np.errstate(all="ignore"):
            x = found.array("x")
            wanted = made.hook("reference")(x.astype(float) if x.dtype.kind == "f" else x, 3)
        assert np.allclose(found.expected("out"), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("reference", "dtype", "draw"),
    [
        ("np.exp(x.astype(np.float32))", "float32", NORMAL),
        ("np.argsort(x)", "int32", NORMAL),
        ("np.floor_divide(x, 0.1)", "float32", NORMAL),
        ("np.float32(1) / x.astype(np.float32) ** np.float32(0.3)", "float32", "rng.random(p.n)"),
    ],
    ids=["float32 intermediate", "sorting of ties", "division of floats", "powers in float32"],
)
def test_numpy_evaluates_what_cupy_computes_otherwise(
    reference: str, dtype: str, draw: str, kernel: Callable[..., Kernel]
) -> None:
    found = prepare_dataset(kernel(reference, dtype, draw), PROBLEM, RANDOM)
    assert re.match(r"numpy \(.*\(CuPy\) differs at n=\d+: out\[\d+\] is ", found.reference)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "reference",
    [
        "x * np.arange(len(x))",
        "np.array([value * 2 for value in x])",
        "np.array([float(value) for value in x])",
    ],
    ids=["an array of NumPy", "a loop", "a loop that works"],
)
def test_numpy_evaluates_what_cupy_cannot(
    reference: str, kernel: Callable[..., Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.data.bounds.MANY_ELEMENTS", 1 << 17)
    made = kernel(reference, "float32", NORMAL)
    found = prepare_dataset(made, Problem(n=1 << 18), RANDOM)
    assert (found.reference, found.difference) == ("numpy", "")


@pytest.mark.gpu
def test_memory_is_free_after_an_evaluation(cupy: Any, kernel: Callable[..., Kernel]) -> None:
    prepare_dataset(kernel("np.exp(x)", "float32", NORMAL), PROBLEM, RANDOM)
    assert cupy.get_default_memory_pool().total_bytes() < PROBLEM.n
