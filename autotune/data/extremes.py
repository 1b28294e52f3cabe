"""The values that the data of a kernel hold, and values beyond them: large, NaN, infinite, of the other sign.

Each `ExtremeData` changes one array of random data. A kernel that then differs clearly from the reference
is correct for the declared data, but not for callers with such values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.arrays import converted, in_pieces
from autotune.data import tolerance
from autotune.data.arguments import Argument
from autotune.data.consensus import RESULT
from autotune.data.dataset import RANDOM, Dataset, link_inputs, mapped
from autotune.data.matching_outputs import mismatch_of, refused_reference
from autotune.data.prepare import prepare_dataset
from autotune.data.reference import Numbers, computes_with, reevaluated
from autotune.encoding import encoded, rounded
from autotune.errors import SpecError
from autotune.kernel.spec import Kernel
from autotune.values import Problem

#: Binary logarithm of the factor of large values, about 10,000. A product with a power of two is exact.
_LARGE = 13
#: A shift of floats, over their largest size: small differences of large numbers.
_SHIFT = 256
#: Binary logarithm of the factor from the largest value to the type's limit: small sums of floats are finite.
_ROOM_OF_FLOATS, _ROOM_OF_INTEGERS = 14, 2
#: Largest error that is not clear, as a share of the output's largest value.
_CLEAR = 0.01
#: Largest error of the reference in float32, as a share of that error.
_WELL_CONDITIONED = 1 / 16


def drawn_ranges(dataset: Dataset) -> dict[str, tuple[float, float]]:
    """Return the smallest and the largest finite number of each input array, to six digits."""
    found = {}
    for argument in dataset.inputs("fiuc"):
        row = tolerance.parts(dataset.values(argument.name))

        def ends(_: int, begin: int, end: int, row: NDArray[Any] = row) -> tuple[float, float]:
            finite = row[begin:end][np.isfinite(row[begin:end])].astype(np.float64)
            return float(finite.min(initial=math.inf)), float(finite.max(initial=-math.inf))

        least, most = map(list, zip((math.inf, -math.inf), *in_pieces(ends, row.size), strict=True))
        if min(least) <= max(most):
            found[argument.name] = (float(f"{min(least):.6g}"), float(f"{max(most):.6g}"))
    return found


@dataclass(frozen=True)
class ExtremeData:
    """Random data with one array changed, and the results that a kernel should give, in one folder."""

    #: The change, for example ``x times 8192``.
    change: str
    dataset: Dataset

    def difference(self, kernel: Kernel, results: Path) -> str:
        """Return the first clear difference of the results in a folder; empty if there is none."""
        if "matches" in kernel.hooks:
            why = self._mismatch(kernel, results)
            return why and f"{self.change}: {why}"
        inputs = self.dataset.folder
        for output in self.dataset.arguments:
            want, unclear = (inputs / f"{output.name}.{end}.npy" for end in _EXPECTED)
            if not want.exists():
                continue
            file = results / self.dataset.name / f"{output.name}{RESULT}"
            values = mapped(file if file.exists() else inputs / f"{output.name}.npy")
            got = _row(output.values(values))
            wrong = ~_is_close(got, mapped(want), mapped(unclear)) & ~np.isnan(mapped(unclear))
            if np.mean(wrong) > self._rare(output):
                at = int(np.argmax(wrong))
                index = np.unravel_index(at * output.count // got.size, output.shape)
                found, expected = float(got[at]), float(mapped(want)[at])
                form = ".4g" if f"{found:.4g}" != f"{expected:.4g}" else ".17g"
                return (
                    f"{self.change}: {output.name}[{', '.join(map(str, index))}] is {found:{form}}, "
                    f"expected {expected:{form}}"
                )
        return ""

    def _mismatch(self, kernel: Kernel, results: Path) -> str:
        folder, inputs = results / self.dataset.name, self.dataset.folder
        dataset = _with_outputs(self.dataset)
        files = {name: folder / f"{name}{RESULT}" for name in dataset.bounds}
        stored = {
            name: mapped(file if file.exists() else inputs / f"{name}.npy")
            for name, file in files.items()
        }
        return mismatch_of(kernel, dataset, stored)

    def _rare(self, output: Argument) -> float:
        """Return the share of wrong elements that is not clear: floats that round to another integer."""
        has_floats = any(a.value_type.kind in "fc" for a in self.dataset.inputs())
        return _CLEAR if has_floats and output.value_type.kind not in "fc" else 0.0


#: Names of the files with the results of an output, and the largest unclear errors; NaN if any result may be.
_EXPECTED = ("expected", "unclear")


def extreme_data(kernel: Kernel, problem: Problem, seed: int, folder: Path) -> list[ExtremeData]:
    """Change each array of the random data of a problem in several ways; write the data to a folder.

    An array is changed only if the reference computes with it: another index or length would make a correct
    kernel read outside its arrays.
    """
    made = list[ExtremeData]()
    drawn, kernel = prepare_dataset(kernel, problem, RANDOM, seed), kernel.of_problem(problem)
    for argument in drawn.inputs("fiu"):
        if not computes_with(kernel, drawn, argument):
            continue
        name, values = argument.name, np.array(drawn.values(argument.name))
        for change, changed in _changes(name, values, float(argument.info.max)):
            if argument.bits_of:
                wanted, changed = changed, rounded(changed, argument.bits_of)
                if not np.array_equal(np.isfinite(changed), np.isfinite(wanted)):
                    continue  # the type has no such numbers
            here = folder / str(len(made))
            here.mkdir(exist_ok=True)
            with suppress(SpecError):  # the reference refuses these values
                if "matches" in kernel.hooks:
                    for output, values in reevaluated(kernel, drawn, {name: changed}).items():
                        np.save(here / f"{output}.expected.npy", values)
                elif not _write_expected(kernel, drawn, name, changed, here):
                    continue
                stored = encoded(changed, argument.bits_of) if argument.bits_of else changed
                np.save(here / f"{name}.npy", stored.astype(argument.dtype))
                link_inputs(drawn, here, without=name)
                own = replace(drawn, name=here.name, folder=here, bounds={}, by_element=())
                if "matches" in kernel.hooks and refused_reference(kernel, _with_outputs(own)):
                    continue  # for example NaN, which is not equal to itself
                made.append(ExtremeData(change, own))
    return made


def _changes(name: str, values: NDArray[Any], most: float) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield changed arrays of the same type, each with the text of its change; ``most`` is the type's limit."""
    number, is_float = values.dtype.type, values.dtype.kind == "f"
    sizes, largest = np.abs(values), tolerance.largest(values.reshape(-1))
    if not largest:
        return
    is_signed = values.dtype.kind != "u"
    if is_signed and (values > 0).any():
        yield f"{name} all negative", -sizes
    limit = math.floor(math.log2(most / largest))
    if (power := min(_LARGE, limit - _ROOM_OF_INTEGERS)) > 0:
        yield f"{name} times {2**power}", values * number(2**power)
    if not is_float:
        if room := int(most) - int(values.max()):
            yield f"{name} plus {room}", values + number(room)
        return
    huge = sizes * number(2.0 ** (limit - _ROOM_OF_FLOATS))
    yield f"{name} all negative, down to {-float(huge.max()):.0e}", -huge
    shift = float(f"{_SHIFT * largest:.0g}")
    yield f"{name} plus {shift:g}", values + number(shift)
    yield f"{name} all zero", np.zeros_like(values)
    yield _replaced(name, values, {0.53: math.nan})
    yield _replaced(name, values, {0.27: math.inf, 0.79: -math.inf})


def _with_outputs(dataset: Dataset) -> Dataset:
    """Return a data set whose outputs are compared."""
    outputs = [a.name for a in dataset.arguments if a.kind in ("out", "inout")]
    return replace(dataset, bounds=dict.fromkeys(outputs, 0.0))


def _replaced(
    name: str, values: NDArray[Any], numbers: Mapping[float, float]
) -> tuple[str, NDArray[Any]]:
    """Return a copy with other numbers at some places, from 0 to 1, and the text of the change."""
    changed, texts = values.copy(), []
    for place, number in numbers.items():
        index = np.unravel_index(int(place * values.size), values.shape)
        changed[index] = number
        texts.append(f"{name}[{', '.join(map(str, index))}] = {number}")
    return " and ".join(texts), changed


def _write_expected(
    kernel: Kernel, dataset: Dataset, name: str, changed: NDArray[Any], folder: Path
) -> bool:
    """Write the results after a change, and the largest unclear errors; return False if no result is expected.

    A result is expected if the reference in float32 gives nearly the same number, or if neither is finite.
    After a change to NaN or infinity these are the results that are not finite, at most half of all.
    """
    wide = reevaluated(kernel, dataset, {name: changed})
    if is_integer := changed.dtype.kind in "iu":
        # Limits and lengths that are compared have the same effect if they are twice or half as large.
        is_huge = tolerance.largest(changed.reshape(-1)) > np.iinfo(changed.dtype).max // 2
        scaled = reevaluated(kernel, dataset, {name: changed // 2 if is_huge else 2 * changed})
        if all(np.array_equal(scaled[output], wide[output]) for output in wide):
            return False
    has_floats = any(argument.value_type.kind in "fc" for argument in dataset.inputs())
    single = changed.astype(np.float32 if has_floats else np.float64).view(Numbers)
    narrow = single if is_integer else changed
    near = reevaluated(kernel, dataset, {name: narrow}, is_single=True)
    is_finite, written = bool(np.isfinite(changed).all()), False
    for output in dataset.arguments:
        if output.name not in wide:
            continue
        want, other, dtype = _row(wide[output.name]), _row(near[output.name]), output.value_type
        most = float(output.info.max) / 2 if dtype.kind in "fc" else math.inf
        is_passed_on = ~np.isfinite(want)
        if not is_finite and np.mean(is_passed_on) > 1 / 2 and want.size > 1:
            continue  # the reference may multiply it by 0, which a kernel need not do
        is_held = is_passed_on | (np.abs(want) <= most)
        usual = tolerance.largest(_row(dataset.expected(output.name)))
        share = max(_CLEAR, dataset.bounds[output.name] / usual) if usual else _CLEAR
        error = max(share * tolerance.largest(want[is_held]), float(np.finfo(np.float32).tiny))
        error *= dtype.kind in "fc"
        is_same = _is_close(other, want, error * _WELL_CONDITIONED)
        if np.any(np.isfinite(want) & np.isfinite(other) & ~is_same):
            continue
        is_expected = is_same & (is_held if is_finite else is_passed_on)
        unclear = np.where(is_expected, error, math.nan)
        if (mask := wide.masked.get(output.name)) is not None:
            unclear[np.repeat(mask.reshape(-1), want.size // mask.size)] = math.nan
        for end, row in zip(_EXPECTED, (want, unclear), strict=True):
            np.save(folder / f"{output.name}.{end}.npy", row)
        written = True
    return written


def _row(values: NDArray[Any]) -> NDArray[np.floating]:
    """Return values as a row of float64, with two numbers for each complex number."""
    wide = np.complex128 if values.dtype.kind == "c" else np.float64
    return tolerance.parts(converted(values, wide))


def _is_close(got: NDArray[Any], want: NDArray[Any], error: Any) -> Any:
    """Return which numbers differ by an error at most, or are both NaN or infinite."""
    with np.errstate(all="ignore"):
        return (np.abs(got - want) <= error) | ~(np.isfinite(got) | np.isfinite(want))
