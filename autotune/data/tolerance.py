"""The default tolerance: the largest error that rounding explains, for each element of an output.

Most of it is the element's *sensitivity*: the root mean square of its change, divided by `STEP`, when
every floating-point input is multiplied by 1 ± `STEP` with random signs. That is sqrt(Σ (∂y/∂x x)²)
without a derivative. docs/verification.md states the bound and its limits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.arrays import converted, in_pieces
from autotune.encoding import nearest_value

#: Evaluations of the reference on changed inputs. With 7 the smallest estimate among a million elements
#: is a tenth of the truth, with half as many a fortieth.
EVALUATIONS = 7
#: Minimum number of evaluations.
MIN_EVALUATIONS = 3
#: Seconds after which no further evaluation begins.
MAX_EVALUATIONS_S = 30.0
#: Relative change of each input: a rounding error of float32. It serves float64 references too, because
#: smaller steps drown in the rounding of the reference.
STEP = 2.0**-24
#: Rounding errors of each input that a result may carry. Correct kernels need up to 2,700 (a sum of 4096
#: positive terms, one by one), wrong ones 25,000 and more.
_AMPLIFICATION = 8192
#: The same for an element that depends on few inputs, as `strike` shows.
_AMPLIFICATION_OF_FEW = 128
#: `strike` changes one input in this number. A result of 100 inputs or more then changes almost surely.
_STRIKE_EVERY = 8
#: Relative change of an input by `strike`.
_STRIKE_STEP = 2.0**-6
#: Multiple of the reference's error in float32 that a result may have: in 1 - cos(x) the difference is exact
#: and the cosine is not.
_REFERENCE_ERRORS = 48
#: Smaller float64 values do not count for this error, because float32 hardly holds them.
_MIN_IN_SINGLE = 2.0**-100
#: Largest share of the elements that may be smaller than the least bound. Errors of small elements then show
#: among large elements.
_SMALL_SHARE = 1 / 16
#: Rounding errors of the largest value, if all elements have the same bound; the most for changes of integers.
_ROUNDINGS = 64
#: Rounding errors of float32 for the sums of a half precision output: tensor cores truncate and are off by 54
#: after 4096 terms (hgemm on an H100).
_ROUNDINGS_OF_SUMS = 256
#: Rounding errors of a result in its arithmetic, in addition to the rounding to its type: `rsqrtf` has 2.
_RESULT_ROUNDINGS = 4
#: The bound of a sum grows with the square root of the number of its terms, if that root is above this number.
_ROOT_OF_TERMS = 64
#: Maximum number of elements from which a median is computed.
_SAMPLE = 1 << 20
#: A function that changes numbers in place, with a generator.
Change: TypeAlias = Callable[[NDArray[Any], np.random.Generator], None]


def largest(values: NDArray[np.floating]) -> float:
    """Return the largest finite magnitude."""

    def of(_: int, begin: int, end: int) -> float:
        part = values[begin:end]
        return float(np.max(np.abs(part), where=np.isfinite(part), initial=0.0))

    return float(max(in_pieces(of, values.size), default=0.0))


def common_bound(
    info: Any, scale: float, exact_scale: float, terms: float, in_single: float = 0.0
) -> float:
    """Return one bound for all elements of an output that is exact, or has no reference.

    Parameters
    ----------
    info
        Limits of the output's type; see `numpy.finfo`.
    scale, exact_scale
        Largest values of the output and of the exact data's, if known. A single random sum may be near 0 by
        accident; the exact data then give the scale.
    terms
        Input elements for each element of the output: one thread may add a million of them.
    in_single
        Largest error of the reference in float32. Near the root of a polynomial the value is small, but
        the terms and their errors are not.
    """
    growth = max(1.0, math.sqrt(terms) / _ROOT_OF_TERMS)
    own, roundings = 0.0, _ROUNDINGS * float(info.eps)
    if is_short(info):  # sums are in float32
        own, roundings = float(info.eps) * scale, _ROUNDINGS_OF_SUMS * _arithmetic(info)
    error = roundings * growth * max(scale, exact_scale)
    return own + max(error, _reference_factor(info) * in_single) + _least_value(info)


def is_short(info: Any) -> bool:
    """Return whether an output has at most 16 bits, so that its own rounding exceeds that of sums."""
    return bool(info.bits <= 16)


def bounds_of_short(info: Any, expected: NDArray[np.floating], bound: float) -> NDArray[np.float32]:
    """Return a bound for each element of an output of at most 16 bits, from the bound of its largest element."""
    scale = largest(expected)
    if info.bits < 16:
        return _bounds(info, expected, lambda *_: bound - float(info.eps) * scale)
    smaller = scale - np.abs(expected)
    bounds = np.where(np.isfinite(expected), bound - float(info.eps) * smaller, 0)
    return bounds.astype(np.float32)


def held_in_single(info: Any) -> float:
    """Return the least value of an output for which the error in float32 counts."""
    return _MIN_IN_SINGLE if info.bits == 64 else 0.0


def _arithmetic(info: Any) -> float:
    """Return the eps of the arithmetic that computes an output: float32 unless the output is float64."""
    return float(np.finfo(np.float64 if info.bits == 64 else np.float32).eps)


def double_roundings(info: Any) -> float:
    """Return the ratio of roundings in float64 to those of the arithmetic that computes an output."""
    return 2.0**-52 / _arithmetic(info)


def _reference_factor(info: Any) -> float:
    """Return the factor from an error of the reference in float32 to the error allowed for an output."""
    return _REFERENCE_ERRORS * _arithmetic(info) / float(np.finfo(np.float32).eps)


def perturb(row: NDArray[np.floating], source: np.random.Generator) -> None:
    """Multiply each number by 1 ± `STEP`."""
    signs = np.unpackbits(_bytes(-(-row.size // 8), source)).view(np.int8)
    _scale(row, 2 * signs[: row.size] - 1, STEP)


def flip(row: NDArray[np.integer], _: np.random.Generator) -> None:
    """Change the last bit of each integer: an index from 0 to an odd number stays an index."""
    row ^= 1


def strike(row: NDArray[Any], source: np.random.Generator) -> None:
    """Change one number in `_STRIKE_EVERY` by much more than rounding."""
    struck = _bytes(row.size, source) < 256 // _STRIKE_EVERY
    if row.dtype.kind == "f":
        _scale(row, struck, _STRIKE_STEP)
    else:
        row ^= struck


def _bytes(count: int, source: np.random.Generator) -> NDArray[np.uint8]:
    return np.frombuffer(source.bytes(count), np.uint8)


def _scale(row: NDArray[np.floating], steps: NDArray[Any], step: float) -> None:
    """Multiply each number by 1 + ``steps`` * ``step``. A table of factors would take twice as long."""
    factors = steps.astype(np.float64)
    factors *= step
    factors += 1
    row *= factors


def changed(array: NDArray[Any], change: Change, key: int, number: int) -> NDArray[Any]:
    """Return a changed copy of an array, in float64 or complex128 unless it holds integers.

    ``key`` and ``number`` seed the generator of the change.
    """
    wide = converted(
        array, {"c": np.complex128, "f": np.float64}.get(array.dtype.kind, array.dtype)
    )
    wide = wide.copy() if wide is array else wide
    flat = parts(wide)

    def change_piece(piece: int, begin: int, end: int) -> None:
        source = np.random.Philox(key=key % 2**128, counter=[0, 1, piece, number])
        with np.errstate(all="ignore"):
            change(flat[begin:end], np.random.Generator(source))

    in_pieces(change_piece, flat.size)
    return wide


def parts(array: NDArray[np.inexact]) -> NDArray[np.floating]:
    """Return a contiguous array as one row of real numbers."""
    return np.asarray(array).reshape(-1).view(array.real.dtype)


def add_change(
    roots: NDArray[np.float64],
    expected: NDArray[np.floating],
    found: NDArray[np.floating],
    bits: int,
    least: float = 0.0,
) -> None:
    """Add one evaluation to a root of summed squares, in place.

    Skip changes that are not finite, and elements smaller than ``least``. ``bits`` is the width of the
    output's type.
    """

    def add(_: int, begin: int, end: int) -> None:
        change, root = found[begin:end] - expected[begin:end], roots[begin:end]
        if least:
            change[np.abs(expected[begin:end]) < least] = 0
        if not np.isfinite(change).all():
            change[~np.isfinite(change)] = 0
        if bits == 64:
            np.hypot(root, change, out=root)
            return
        change *= change  # float64 holds the squares of smaller types
        root *= root
        root += change
        np.sqrt(root, out=root)

    with np.errstate(all="ignore"):
        in_pieces(add, expected.size)


@dataclass(frozen=True)
class Responses:
    """The changes of an output's elements after changes of inputs."""

    #: Root mean square after a change of each number by `STEP`, divided by `STEP`.
    sensitivity: NDArray[np.float64]
    #: Root mean square after a change of the last bit of each integer, times the integers' typical size; infinite
    #: if unknown.
    of_integers: NDArray[np.float64]
    #: When the reference computes in float32.
    in_single: NDArray[np.float64]
    #: The output itself after `strike`, or unchanged for narrow bounds; NaN if unknown.
    struck: NDArray[np.floating]

    @property
    def knows_integers(self) -> bool:
        """True if the changes after changes of integers are known."""
        return bool(self.of_integers[0] < math.inf)


@dataclass(frozen=True)
class Carried:
    """The part of the bounds that changes of inputs explain at a small problem; see `autotune.data.carried`."""

    #: Share of an element's size if ``is_relative``, else of the output's typical size.
    share: float
    is_relative: bool
    #: Whether roundings of the largest value are allowed in addition: changes of integers are unknown.
    adds_largest: bool = False

    def base(self, sizes: NDArray[np.float64], typical: float) -> NDArray[np.float64]:
        """Return the sizes that the share multiplies."""
        return sizes if self.is_relative else np.full(sizes.shape, typical)


def typical_size(expected: NDArray[np.floating]) -> float:
    """Return the mean size of an output's elements, apart from 0 and infinity, from a sample."""
    some = np.abs(expected[:: expected.size // _SAMPLE | 1], dtype=np.float64)
    some = some[(some > 0) & (some < np.inf)]
    return float(some.mean()) if some.size else 0.0


def element_bounds(info: Any, expected: NDArray[np.floating], responses: Responses) -> NDArray[Any]:
    """Return the bound of each element, rounded up: float32, or float64 for a float64 output."""
    of_largest = _of_largest(info, expected)
    factor, in_single = _reference_factor(info), responses.in_single
    floor = _floor(expected, factor * _median(in_single))

    def explained(piece: slice, _: NDArray[np.float64]) -> NDArray[np.float64]:
        amplified = _amplification(info, responses.struck[piece] == expected[piece])
        least = _least_bounds(floor, factor * in_single[piece])
        bound: NDArray[np.float64] = np.maximum(amplified * responses.sensitivity[piece], least)
        bound += np.minimum(amplified * responses.of_integers[piece], of_largest)
        return bound

    return _bounds(info, expected, explained)


def carried_bounds(
    info: Any, expected: NDArray[np.floating], carried: Carried, in_single: NDArray[np.float64]
) -> NDArray[Any]:
    """Return the bound of each element of a large output; see `element_bounds`.

    ``in_single`` is the error of the reference in float32, which shows where ``carried`` is too small.
    """
    typical, factor = typical_size(expected), _reference_factor(info)
    floor = _floor(expected, factor * _median(in_single))
    of_largest = _of_largest(info, expected) if carried.adds_largest else 0.0

    def explained(piece: slice, size: NDArray[np.float64]) -> NDArray[np.float64]:
        least = _least_bounds(floor, factor * in_single[piece])
        return np.maximum(carried.share * carried.base(size, typical), least) + of_largest

    return _bounds(info, expected, explained)


def amplified_bounds(
    info: Any, expected: NDArray[np.floating], responses: Responses, is_few: bool
) -> NDArray[np.float64]:
    """Return the part of the bounds that changes of inputs explain, if all or no elements depend on few inputs."""
    amplified = float(_amplification(info, is_few))
    bounds: NDArray[np.float64] = responses.sensitivity
    if responses.knows_integers:
        most = _of_largest(info, expected) / amplified
        bounds = bounds + np.minimum(responses.of_integers, most)
    return amplified * bounds


def _amplification(info: Any, is_few: Any) -> Any:
    return _arithmetic(info) / 2 * np.where(is_few, _AMPLIFICATION_OF_FEW, _AMPLIFICATION)


def _of_largest(info: Any, expected: NDArray[np.floating]) -> float:
    return _ROUNDINGS * _arithmetic(info) * largest(expected)


def _bounds(
    info: Any,
    expected: NDArray[np.floating],
    explained: Callable[[slice, NDArray[np.float64]], NDArray[np.float64] | float],
) -> NDArray[Any]:
    """Return a bound for each element: its own rounding, and what else ``explained`` returns for a piece.

    A type of less than 16 bits has few values. There a result may be any value to which a number within the
    rest of the bound rounds: half an ulp away from the expected value, or more next to a middle.
    """
    kind, is_tiny = np.float64 if info.bits == 64 else np.float32, info.bits < 16
    own = _RESULT_ROUNDINGS * _arithmetic(info) + (0.0 if is_tiny else float(info.eps))
    bounds = np.empty(expected.size, kind)

    def fill(_: int, begin: int, end: int) -> None:
        piece = slice(begin, end)
        size = np.abs(expected[piece], dtype=np.float64)
        bound = explained(piece, size) + own * size + _least_value(info)
        if is_tiny:
            bound = _distance_of_rounded(info.name, expected[piece], bound)
        bound[~np.isfinite(size)] = 0
        bounds[piece] = np.nextafter(bound.astype(kind), np.finfo(kind).max)

    with np.errstate(all="ignore"):
        in_pieces(fill, expected.size)
    return bounds


def _least_bounds(floor: float, errors: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.maximum(floor, errors)


def _floor(expected: NDArray[np.floating], median_error: float) -> float:
    """Return the least bound: the median of errors, as one may be small by chance.

    If many elements are smaller, it is at most their size, so that errors of small elements show among
    large elements.
    """
    return min(_median(expected, _SMALL_SHARE) or math.inf, median_error)


def _median(sizes: NDArray[np.floating], share: float = 0.5) -> float:
    """Return a quantile of the nonzero finite magnitudes, from a sample."""
    some = np.abs(sizes[:: sizes.size // _SAMPLE | 1])
    some = some[(some > 0) & (some < np.inf)]
    place = int(share * (some.size - 1))
    return float(np.partition(some, place)[place]) if some.size else 0.0


def _distance_of_rounded(
    name: str, expected: NDArray[np.floating], error: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the largest distance from an expected value of a number within an error, rounded to a type."""
    wide = np.nan_to_num(expected, posinf=0, neginf=0)
    ends = (nearest_value(wide + sign * error, name) for sign in (1, -1))
    far: NDArray[np.float64] = np.max([np.abs(end - wide) for end in ends], axis=0)
    return far


def _least_value(info: Any) -> float:
    """Return the least normal number, because devices may write smaller numbers as 0.

    Conversions to 16 bits keep subnormal numbers. Types of less bits have results of float32.
    """
    if info.bits < 16:
        return float(np.finfo(np.float32).smallest_normal)
    return float(info.smallest_subnormal if info.bits == 16 else info.smallest_normal)
