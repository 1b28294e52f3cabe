"""References with the arrays of another library: only where NumPy's results are the same.

The library is a subclass of NumPy's arrays that computes in float32, and sorts, as other hardware does.
"""

import contextlib
import re

import numpy as np
import pytest
from sample_spaces import write_space

from autotune.data import bounds, device_reference, prepare, small
from autotune.data.dataset import EXACT, RANDOM
from autotune.data.prepare import prepare_dataset
from autotune.kernel.catalog import load_file
from autotune.values import Problem

PROBLEM = Problem(n=1 << 14)
ON_OTHER = "numpy on other (arrays), checked against NumPy at n=1024"


class OtherArray(np.ndarray):
    """An array whose float32 results have another last bit, and whose sorting is stable."""

    def __array_ufunc__(self, ufunc, method, *inputs, **named):
        plain = [np.asarray(value) if isinstance(value, OtherArray) else value for value in inputs]
        result = np.asarray(getattr(ufunc, method)(*plain, **named))
        if result.dtype == np.float32:
            result = np.nextafter(result, np.float32(np.inf))
        return result.view(OtherArray)

    def __array_function__(self, function, types, args, named):
        if function is np.median:
            raise TypeError("no implementation of median")
        plain = [np.asarray(value) if isinstance(value, OtherArray) else value for value in args]
        if function is np.argsort:
            named = {**named, "kind": "stable"}
        return np.asarray(function(*plain, **named)).view(OtherArray)


class OtherLibrary:
    """See `autotune.data.reference.ArrayLibrary`; it counts the elements that it gets."""

    name, version, room = "other (arrays)", "1", 1 << 30

    def __init__(self):
        self.sizes = []

    def computing(self):
        return contextlib.nullcontext()

    def from_host(self, array, dtype):
        if array.size > self.room:
            raise MemoryError
        self.sizes.append(array.size)
        return np.array(array, dtype).view(OtherArray)

    def to_host(self, array):
        return np.asarray(array)


@pytest.fixture
def library(monkeypatch, tmp_path):
    """The library, for problems of more than 4096 elements, with data of their own."""
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(bounds, "MANY_ELEMENTS", 1 << 12)
    for module in (bounds, device_reference, prepare):
        monkeypatch.setattr(module, "PROBE_ELEMENTS", 1 << 11)
    for module in (device_reference, prepare):
        monkeypatch.setattr(module, "MIN_ELEMENTS", 1 << 13)
    monkeypatch.delenv("SCIPY_ARRAY_API", raising=False)
    other = OtherLibrary()
    device_reference.use(other)
    yield other
    device_reference.use(None)


def kernel_of(folder, reference, dtype="float32"):
    edits = (("return factor * x", f"return {reference}"), ("Out(p.n)", f"Out(p.n, '{dtype}')"))
    return load_file(write_space(folder, *edits))


@pytest.mark.parametrize(
    ("reference", "dtype"),
    [
        ("factor * x", "float32"),
        ("np.exp(x) / 3", "float32"),
        ("np.cumsum(np.pad(x, 1)[1:-1] * x)", "float32"),
        ("np.exp(x)", "float64"),
        ("np.maximum(x, 0).astype(np.int32)", "int32"),
    ],
)
def test_a_large_problem_is_evaluated_by_a_library_that_agrees_with_numpy(
    reference, dtype, library, tmp_path
):
    kernel = kernel_of(tmp_path, reference, dtype)
    for which in (EXACT, RANDOM):
        found = prepare_dataset(kernel, PROBLEM, which)
        assert (found.reference, found.difference) == (ON_OTHER, "")
        with np.errstate(all="ignore"):
            wanted = kernel.hook("reference")(found.array("x").astype(float), 3)
        assert np.array_equal(found.expected("out"), wanted)
        assert prepare_dataset(kernel, PROBLEM, which) == found  # as read from the cache
    assert PROBLEM.n in library.sizes


@pytest.mark.parametrize(
    ("reference", "dtype", "difference"),
    [
        ("np.exp(x.astype(np.float32))", "float32", r"out\[0\] is .*, with NumPy "),
        ("x.astype(np.float32) / 3 * 3", "float32", r"out\[\d+\] is "),
        ("np.argsort(x)", "int32", r"out\[\d+\] is \d+, with NumPy \d+"),
    ],
    ids=["float32 intermediate", "rounded to float32", "sorting of ties"],
)
def test_a_reference_whose_results_differ_is_evaluated_by_numpy_which_is_told(
    reference, dtype, difference, library, tmp_path
):
    found = prepare_dataset(kernel_of(tmp_path, reference, dtype), PROBLEM, EXACT)
    told = rf"other \(arrays\) differs at n=1024: {difference}"
    assert found.reference == f"numpy ({found.difference})"
    assert re.search(told, found.difference)
    assert PROBLEM.n not in library.sizes


def test_a_function_that_the_library_lacks_is_numpys(library, tmp_path):
    found = prepare_dataset(kernel_of(tmp_path, "np.median(x) * x"), PROBLEM, RANDOM)
    assert (found.reference, found.difference) == ("numpy", "")


def test_a_small_problem_is_numpys_and_so_is_one_without_room(library, tmp_path):
    kernel = kernel_of(tmp_path, "np.exp(x) / 3")
    assert prepare_dataset(kernel, Problem(n=1000), RANDOM).reference == "numpy"
    assert library.sizes == []
    library.room = 1 << 12
    assert prepare_dataset(kernel, PROBLEM, RANDOM).reference == "numpy"
    assert library.sizes


def test_without_a_library_numpy_evaluates(library, tmp_path):
    device_reference.use(None)
    found = prepare_dataset(kernel_of(tmp_path, "np.exp(x) / 3"), PROBLEM, RANDOM)
    assert (found.reference, library.sizes) == ("numpy", [])


def test_a_problem_keeps_its_kind_when_it_is_made_small(tmp_path):
    kernel = kernel_of(tmp_path, "factor * x")
    assert small.small_problem(kernel, Problem(n=(1 << 24) + 5), 1 << 16) == Problem(
        n=(1 << 14) + 5
    )
    assert small.small_problem(kernel, Problem(n=64), 1 << 16) == Problem(n=32)
    assert small.small_problem(kernel, Problem(n=1 << 24), 1 << 16, kept=["n"]) is None


@pytest.mark.parametrize(
    ("reference", "calls"),
    [("factor * x", 1), ("np.exp(x) / 3", 2)],
    ids=["exact data decide", "bounds of elements"],
)
def test_a_large_problem_takes_two_calls_of_its_reference_at_most(
    reference, calls, library, tmp_path, monkeypatch
):
    """It is the smallest declared one, and a matrix, whose size is no product of its fields."""
    device_reference.use(None)
    # Not as text: the data are drawn from the text of the file, and by chance small problems differ.
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    mark = "open(__import__('os').environ['CALLS'], 'a').write(f'{x.size} ')"
    kernel = load_file(
        write_space(
            tmp_path,
            ("return factor * x", f"{mark}\n    return {reference}"),
            ("rng.standard_normal(p.n,", "rng.standard_normal((p.n, p.n),"),
            ("Out(p.n)", "Out((p.n, p.n))"),
            ("[Problem(n=1000)]", "[Problem(n=256)]"),
        )
    )
    for which, seed in ((EXACT, 0), (RANDOM, 0), (RANDOM, 1)):
        prepare_dataset(kernel, Problem(n=256), which, seed)
        sizes = (tmp_path / "calls").read_text().split()
        assert sizes.count("65536") == calls
        (tmp_path / "calls").write_text("")
