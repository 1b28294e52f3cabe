"""Evaluates costly references on a GPU, whose arrays take the place of NumPy's, if both give the same results.

NumPy hands a function of such arrays to their library (NEP 13 and 18). A process that calls `use` evaluates
large problems there, in float64, after small data of the same kind have shown that NumPy's results agree.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from autotune.arrays import converted
from autotune.data import tolerance
from autotune.data.bounds import LONG_S, Prepared, is_large
from autotune.data.dataset import EXACT, RANDOM, Dataset
from autotune.data.reference import ArrayLibrary, ExpectedOutputs, expected_outputs, reevaluated
from autotune.data.small import MIN_ELEMENTS, PROBE_ELEMENTS, elements_of, small_problem
from autotune.errors import SpecError
from autotune.kernel.includes import text_fingerprint
from autotune.kernel.sizes import cost_of
from autotune.kernel.spec import Kernel
from autotune.values import Problem

#: Largest number of elements of the problem that shows loops over elements.
_TINY_ELEMENTS = 1 << 12
#: Seconds for a call and for each element, and ratio to NumPy's seconds, above which it loops over elements. On
#: an H200 a call takes 13 to 57 ms, and a loop 14 µs for each element of an input.
_CALL_S, _SLOW_S, _SLOW_RATIO = 0.06, 3e-6, 16.0
#: Power of the number of elements with which the time of an evaluation grows, if a kernel declares no `work`.
_GROWTH = 1.5
#: Number of elements of an array from which libraries need indices of 64 bits.
_MAX_ELEMENTS = 1 << 31
#: Largest difference from NumPy in roundings of float64, and as a share of what rounding explains in a sum.
_ROUNDINGS, _SHARE_OF_SUM = 8, 0.25

_library: ArrayLibrary | None = None


def use(library: ArrayLibrary | None) -> None:
    """Let this process evaluate large references with the arrays of a library, or no longer.

    Call it before SciPy is imported: its functions then take arrays of other libraries.
    """
    global _library
    _library = library
    os.environ.setdefault("SCIPY_ARRAY_API", "1")


class LibraryComparison(msgspec.Struct, frozen=True):
    """The comparison of a library with NumPy: it may serve a reference; else the first difference, if any."""

    serves: bool
    difference: str = ""


@dataclass(frozen=True)
class ReferencePlace:
    """Where a reference is evaluated: with a library that was ``compared`` with NumPy, or with NumPy."""

    library: ArrayLibrary | None = None
    compared: Problem | None = None
    #: First difference of a library's results that NumPy replaces.
    difference: str = ""

    def __str__(self) -> str:
        if self.library and self.compared:
            sizes = ", ".join(f"{name}={value}" for name, value in self.compared.items())
            return f"numpy on {self.library.name}, checked against NumPy at {sizes}"
        return f"numpy ({self.difference})" if self.difference else "numpy"

    def expected(self, kernel: Kernel, dataset: Dataset) -> tuple[ExpectedOutputs, ReferencePlace]:
        """Return the expected outputs of a data set, and where they were evaluated in the end."""
        if self.library:
            with suppress(SpecError, MemoryError):  # NumPy has more memory, or its own message
                arrays = {each.name: dataset.values(each.name) for each in dataset.inputs()}
                listed = list(dataset.arguments)
                return expected_outputs(kernel, listed, arrays, library=self.library), self
        return reevaluated(kernel, dataset, {}), ReferencePlace(difference=self.difference)


def place_of(
    kernel: Kernel, problem: Problem, dataset: Dataset, prepared: Prepared
) -> ReferencePlace:
    """Return where the reference of a data set is evaluated. ``prepared`` makes data sets of small problems."""
    library = _library
    counts = [argument.count for argument in dataset.arguments]
    is_small = sum(counts) < MIN_ELEMENTS
    if library is None or is_small or max(counts) >= _MAX_ELEMENTS:
        return ReferencePlace()
    small = small_problem(kernel, problem, PROBE_ELEMENTS)
    if small is None:
        return ReferencePlace()
    with suppress(SpecError):  # the kernel's functions refuse the small problem
        data = [prepared(small, which) for which in (RANDOM, EXACT)]
        if not is_large(dataset) and _predicted_s(kernel, problem, small, data[0]) < LONG_S:
            return ReferencePlace()
        tiny = small_problem(kernel, small, _TINY_ELEMENTS) or small
        found = _compared(kernel, library, data, small, prepared(tiny, RANDOM), tiny)
        return (
            ReferencePlace(library, small)
            if found.serves
            else ReferencePlace(difference=found.difference)
        )
    return ReferencePlace()


def _predicted_s(kernel: Kernel, problem: Problem, small: Problem, data: Dataset) -> float:
    """Return the seconds that NumPy may take for a problem, from those for a small one."""
    begin_s = time.perf_counter()
    reevaluated(kernel.of_problem(small), data, {})
    seconds = time.perf_counter() - begin_s
    if "work" in kernel.hooks:
        cost = cost_of(kernel, problem)
        return math.inf if math.isinf(cost) else seconds * cost / max(1.0, cost_of(kernel, small))
    ratio = elements_of(kernel, problem) / elements_of(kernel, small)
    return float(seconds * ratio**_GROWTH)


def _compared(
    kernel: Kernel,
    library: ArrayLibrary,
    data: list[Dataset],
    small: Problem,
    tiny_data: Dataset,
    tiny: Problem,
) -> LibraryComparison:
    """Compare the results of a library with those of NumPy on data of a small problem, or read the comparison."""
    key = text_fingerprint(f"{library.name} {library.version}")[:16]
    file = data[0].folder / f"compared-{key}.msgpack"
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.msgpack.decode(file.read_bytes(), type=LibraryComparison)
    found = LibraryComparison(serves=False)
    with suppress(
        SpecError, MemoryError
    ):  # the library does not have all functions of the reference
        both = (tiny, tiny_data), (small, data[0])  # a loop over few elements ends soon
        if not any(_loops(kernel.of_problem(size), library, drawn) for size, drawn in both):
            found = LibraryComparison(serves=True)
            for dataset in data:
                results = _on(kernel.of_problem(small), library, dataset)
                if text := next(_differences(dataset, results), ""):
                    sizes = ", ".join(f"{name}={value}" for name, value in small.items())
                    found = LibraryComparison(False, f"{library.name} differs at {sizes}: {text}")
                    break
    with suppress(OSError):
        file.write_bytes(msgspec.msgpack.encode(found))
    return found


def _on(kernel: Kernel, library: ArrayLibrary, dataset: Dataset) -> dict[str, NDArray[Any]]:
    arrays = {each.name: dataset.values(each.name) for each in dataset.inputs()}
    return expected_outputs(kernel, list(dataset.arguments), arrays, library=library)


def _loops(kernel: Kernel, library: ArrayLibrary, dataset: Dataset) -> bool:
    """Return whether a reference loops over elements, each with a call of the library."""
    _on(kernel, library, dataset)  # compiles
    begin_s = time.perf_counter()
    _on(kernel, library, dataset)
    middle_s = time.perf_counter()
    reevaluated(kernel, dataset, {})
    seconds, numpy_s = middle_s - begin_s, time.perf_counter() - middle_s
    elements = sum(argument.count for argument in dataset.arguments)
    return seconds > max(_CALL_S + _SLOW_S * elements, _SLOW_RATIO * numpy_s)


def _differences(dataset: Dataset, results: Mapping[str, NDArray[Any]]) -> Iterator[str]:
    """Yield the first difference of each output that rounding in float64 does not explain.

    Rounding explains a share of the bound of each element, if the bound is of float64 arithmetic.
    """
    for output in (argument for argument in dataset.arguments if argument.name in results):
        expected, values = dataset.expected(output.name), results[output.name]
        want, got = (tolerance.parts(converted(row, row.dtype)) for row in (expected, values))
        with np.errstate(all="ignore"):
            allowed = np.zeros(want.size)
            if expected.dtype.kind in "fc" and dataset.bounds[output.name]:
                bounds = dataset.element_bounds(output.name)
                allowed += dataset.bounds[output.name] if bounds is None else bounds
                allowed *= _SHARE_OF_SUM * tolerance.double_roundings(output.info)
                allowed = np.maximum(allowed, _ROUNDINGS * 2.0**-52 * np.abs(want))
            is_same = (got == want) | (np.isnan(got) & np.isnan(want))
            if expected.dtype.kind in "fc":
                is_same |= np.abs(got - want) <= allowed
        if not is_same.all():
            at = int(np.argmin(is_same))
            index = np.unravel_index(at * output.count // want.size, output.shape)
            place = f"{output.name}[{', '.join(map(str, index))}]"
            yield f"{place} is {got[at]:.17g}, with NumPy {want[at]:.17g}"
