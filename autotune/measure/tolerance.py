"""The default tolerance: the largest error that rounding explains, for each element of an output.

Most of it is the element's *sensitivity*: the root mean square of its change, divided by `STEP`, when
every floating-point input is multiplied by 1 ± `STEP` with random signs. That is sqrt(Σ (∂y/∂x x)²)
without a derivative. docs/runs.md states the bound, and what it does not see.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.arrays import converted, in_pieces

#: Evaluations of the reference on changed inputs: with half as many, the least estimate among a million
#: elements is a fortieth of the truth, with these a tenth.
EVALUATIONS = 7
#: Fewer are enough where more would take longer than these seconds.
FEWEST, LONGEST_S = 3, 30.0
#: Relative change of each input: a rounding error of float32. Changes of float64 references are read
#: from the same step, because smaller ones drown in their own rounding.
STEP = 2.0**-24
#: Rounding errors of each input that a result may carry. Right kernels need up to 2,700 (a sum of 4096
#: positive terms, one by one), wrong ones 25,000 and more.
_AMPLIFICATION = 8192
#: The same for an element that few inputs reach, as one more evaluation shows: it changes one input in
#: so many, by this relative step. A result of 100 inputs or more is reached all but surely. Where most
#: elements are not reached, the others are by chance.
_AMPLIFICATION_OF_FEW = 128
_ONE_IN, _STRIKING_STEP, _BY_CHANCE = 8, 2.0**-6, 0.25
#: Errors of the reference itself, computed in float32, that a result may have: of 1 - cos(x) the difference
#: is exact and the cosine is not. So many evaluations find that error, and its median stands in for one that
#: is small by chance. A float64 that float32 hardly holds tells nothing.
_OF_REFERENCE, IN_SINGLE = 48, 4
_HELD_IN_SINGLE = 2.0**-100
#: Exact data have few different values, whose sums are rounded alike: so many times the error.
_ALIKE = 8
#: Rounding errors of the result itself, besides the one of the output's type.
_OWN = 4
#: Rounding errors of the median sensitivity: 1 + exp(x) is rounded where the result hardly depends on x.
#: Not more than this share of the elements may be smaller than that, so that small ones show among large ones,
#: unless they are smaller than their own errors.
_TYPICAL, _SMALL = 32, 1 / 16
#: Rounding errors of the largest value, where one bound serves all elements.
_ROUNDINGS, _ROUNDINGS_OF_HALF = 64, 4
#: The same of float32's, for sums of a half precision output: tensor cores cut off what they add, and are off by
#: 54 after 4096 terms (hgemm on an H100).
_ROUNDINGS_OF_SUMS = 256
#: Sums of more terms than the square of this, per output, may be off by more.
_SHORT = 64
#: Elements from which medians are taken.
_SAMPLE = 1 << 20
#: A change of numbers in place, with a generator.
Change: TypeAlias = Callable[[NDArray[Any], np.random.Generator], None]


class _BFloat16Info:
    """The limits of bfloat16; see `numpy.finfo`."""

    bits, eps = 16, 2.0**-7
    smallest_normal, smallest_subnormal = 2.0**-126, 2.0**-133


BFLOAT16 = _BFloat16Info()


def largest(values: NDArray[np.floating]) -> float:
    """Return the largest finite magnitude."""

    def of(_: int, begin: int, end: int) -> float:
        part = values[begin:end]
        return float(np.max(np.abs(part), where=np.isfinite(part), initial=0.0))

    return float(max(in_pieces(of, values.size), default=0.0))


def common_bound(
    info: Any,
    ours: float,
    exact: float | None,
    terms: float,
    in_single: float = 0.0,
) -> float:
    """Return one bound for all elements of an output: one that exact data decide, or has no reference.

    ``ours`` and ``exact`` are the largest values of both data sets. One random sum may be near 0 by
    accident; then the exact set tells its scale. ``terms`` are input elements for each element of the
    output: one thread that adds a million is right. ``in_single`` is the largest error of the reference
    in float32: values near the root of a polynomial are small, and its terms are not.
    """
    if exact is None:  # exact data themselves, which are not exact in the output's type
        return _ROUNDINGS * float(info.eps) * max(1.0, ours)
    roundings = _ROUNDINGS_OF_HALF if info.bits == 16 else _ROUNDINGS
    return _of_scale(info, roundings * float(info.eps), ours, exact, terms, in_single)


def bounds_of_half(
    info: Any, expected: NDArray[np.floating], exact: float, terms: float, in_single: float
) -> NDArray[np.float32]:
    """Return a bound for each element of an output of 16 bits that exact data decide.

    Sums are float32's, so their rounding and that of the result itself explain its error. The other
    parameters are those of `common_bound`.
    """
    relative = _ROUNDINGS_OF_SUMS * _arithmetic(info)
    of_sums = _of_scale(info, relative, largest(expected), exact, terms, in_single)
    bounds: NDArray[np.float32] = np.abs(expected).astype(np.float32)
    bounds *= float(info.eps) + _OWN * _arithmetic(info)
    bounds += of_sums
    bounds[~np.isfinite(bounds)] = 0
    return bounds


def _of_scale(
    info: Any, relative: float, ours: float, exact: float, terms: float, in_single: float
) -> float:
    """Return the error of results that are as large as both data sets say."""
    scale = max(ours, min(exact, 16 * ours)) * max(1.0, math.sqrt(terms) / _SHORT)
    return max(relative * scale, _of_reference(info) * in_single) + _least_value(info)


def is_map(expected: NDArray[np.floating], struck: NDArray[np.floating] | None) -> bool:
    """Return whether one input or two reach an element, by a result of inputs that `strike` changed."""
    return struck is not None and float(np.mean(struck != expected)) <= _BY_CHANCE


def held_in_single(info: Any) -> float:
    """Return the least value of an output whose error in float32 tells something of its own."""
    return _HELD_IN_SINGLE if info.bits == 64 else 0.0


def _arithmetic(info: Any) -> float:
    """Return the relative rounding error of the arithmetic that makes an output, of two half units."""
    return float(np.finfo(np.float64 if info.bits == 64 else np.float32).eps)


def _of_reference(info: Any) -> float:
    """Return what one error of the reference in float32 allows an output."""
    return _OF_REFERENCE * _arithmetic(info) / float(np.finfo(np.float32).eps)


def perturb(row: NDArray[np.floating], source: np.random.Generator) -> None:
    """Multiply each number by 1 ± `STEP`."""
    signs = np.unpackbits(_bytes(-(-row.size // 8), source)).view(np.int8)
    _scale(row, 2 * signs[: row.size] - 1, STEP)


def scatter(row: NDArray[np.floating], source: np.random.Generator) -> None:
    """Multiply each number by 1 and up to four `STEP` more or less: float32 rounds these differently."""
    steps = (_bytes(row.size, source) >> 5).view(np.int8)
    _scale(row, steps + (steps >> 2) - 4, STEP)


def flip(row: NDArray[np.integer], _: np.random.Generator) -> None:
    """Change each integer by 1, in its last bit: an index from 0 to an odd number stays one."""
    row ^= 1


def strike(row: NDArray[Any], source: np.random.Generator) -> None:
    """Change one number in `_ONE_IN`, clearly."""
    struck = _bytes(row.size, source) < 256 // _ONE_IN
    if row.dtype.kind == "f":
        _scale(row, struck, _STRIKING_STEP)
    else:
        row ^= struck


def _bytes(count: int, source: np.random.Generator) -> NDArray[np.uint8]:
    return np.frombuffer(source.bytes(count), np.uint8)


def _scale(row: NDArray[np.floating], steps: NDArray[Any], step: float) -> None:
    """Multiply each number by 1 and its steps: arithmetic takes half as long as a table of factors."""
    factors = steps.astype(np.float64)
    factors *= step
    factors += 1
    row *= factors


def changed(array: NDArray[Any], change: Change, key: int, number: int) -> NDArray[Any]:
    """Return a copy of an array of which each part is changed, by a generator of a key and a number.

    It is wide, unless it holds integers.
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
    """Add one evaluation to a root of summed squares; a change that is not finite tells nothing.

    Nor does that of an element smaller than ``least``. ``bits`` has the output's type.
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
        change *= change  # squares of smaller types are float64s
        root *= root
        root += change
        np.sqrt(root, out=root)

    with np.errstate(all="ignore"):
        in_pieces(add, expected.size)


@dataclass(frozen=True)
class Responses:
    """The changes of an output's elements when inputs change, as root mean squares; None: not known."""

    #: When each number changes by `STEP`, over that step.
    sensitivity: NDArray[np.float64]
    #: When the reference computes in float32, too.
    in_single: NDArray[np.float64] | None
    #: When each integer changes by its last bit, times the typical size of the integers.
    of_integers: NDArray[np.float64] | None
    #: The results for inputs that `strike` changed.
    struck: NDArray[np.floating] | None


def element_bounds(
    info: Any,
    expected: NDArray[np.floating],
    responses: Responses,
    is_exact: bool = False,
) -> NDArray[Any]:
    """Return the bound of each element, rounded up: float32, or float64 for a float64 output.

    Where inputs cannot be changed that may matter, rounding errors of the largest value are allowed. Exact
    data show a missing element by narrow bounds, though few different values are rounded alike.
    """
    kind = np.float64 if info.bits == 64 else np.float32
    arithmetic = _arithmetic(info)
    own, least = float(info.eps) + _OWN * arithmetic, _least_value(info)
    small = _median(expected, _SMALL) or math.inf
    floor = arithmetic / 2 * _TYPICAL * _median(responses.sensitivity)
    of_largest = _ROUNDINGS * arithmetic * largest(expected)
    struck, in_single, error = responses.struck, responses.in_single, _of_reference(info)
    if is_exact:
        error *= _ALIKE
    if in_single is not None:
        some = slice(None, None, expected.size // _SAMPLE | 1)
        smallest = np.abs(expected[some]) <= small
        small = max(small, error * _median(in_single[some][smallest]))
        floor = max(floor, error * _median(in_single))
    floor = min(small, floor)
    are_few = is_exact or is_map(expected, struck)
    if is_exact:
        of_largest = 2 * max(of_largest, _ROUNDINGS * arithmetic)
    bounds = np.empty(expected.size, kind)

    def fill(_: int, begin: int, end: int) -> None:
        size = np.abs(expected[begin:end], dtype=np.float64)
        factor: Any = (_AMPLIFICATION_OF_FEW if are_few else _AMPLIFICATION) * arithmetic / 2
        if struck is not None and not are_few:
            is_few = struck[begin:end] == expected[begin:end]
            if is_few.any():
                factor = np.where(is_few, _AMPLIFICATION_OF_FEW, _AMPLIFICATION) * arithmetic / 2
        bound = factor * responses.sensitivity[begin:end]
        np.maximum(bound, floor, out=bound)
        if in_single is not None:
            np.maximum(bound, error * in_single[begin:end], out=bound)
        bound += own * size
        rest: Any = of_largest
        if responses.of_integers is not None:
            rest = np.minimum(rest, factor * responses.of_integers[begin:end])
        bound += rest
        bound += least
        bound[~np.isfinite(size)] = 0
        most = np.finfo(kind).max
        np.minimum(bound, most, out=bound)
        bounds[begin:end] = np.nextafter(bound.astype(kind), most)

    with np.errstate(all="ignore"):
        in_pieces(fill, expected.size)
    return bounds


def _median(sizes: NDArray[np.floating], share: float = 0.5) -> float:
    """Return the magnitude below which a share of the elements other than 0 is, by a sample."""
    some = np.abs(sizes[:: sizes.size // _SAMPLE | 1])
    some = some[(some > 0) & (some < np.inf)]
    place = int(share * (some.size - 1))
    return float(np.partition(some, place)[place]) if some.size else 0.0


def _least_value(info: Any) -> float:
    """Return the least normal number, below which devices may write 0; of float16 the least at all."""
    return float(info.smallest_subnormal if info.bits == 16 else info.smallest_normal)
