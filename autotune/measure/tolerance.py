"""The default tolerance: the largest error that rounding explains, for each element of an output.

Most of it is the element's *sensitivity*: the root mean square of its change, divided by `STEP`, when
every floating-point input is multiplied by 1 ± `STEP` with random signs. That is sqrt(Σ (∂y/∂x x)²)
without a derivative. docs/runs.md states the bound, and what it does not see.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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
#: so many, by this relative step. A result of 200 inputs or more is reached all but surely.
_AMPLIFICATION_OF_FEW = 1024
_ONE_IN, _STRIKING_STEP = 16, 2.0**-6
#: Rounding errors of the result itself, besides the one of the output's type.
_OWN = 4
#: Rounding errors of the median sensitivity: 1 + exp(x) is rounded where the result hardly depends on x.
_TYPICAL = 32
#: Rounding errors of the largest value, where one bound serves all elements.
_ROUNDINGS, _ROUNDINGS_OF_HALF = 64, 4
#: Sums of more terms than the square of this, per output, may be off by more.
_SHORT = 64
#: Elements from which the median is taken.
_SAMPLE = 1 << 20
#: A change of numbers in place, with a generator.
Change: TypeAlias = Callable[[NDArray[Any], np.random.Generator], None]


def largest(values: NDArray[np.floating]) -> float:
    """Return the largest finite magnitude."""

    def of(_: int, begin: int, end: int) -> float:
        part = values[begin:end]
        return float(np.max(np.abs(part), where=np.isfinite(part), initial=0.0))

    return float(max(in_pieces(of, values.size), default=0.0))


def common_bound(
    info: np.finfo[np.floating], ours: float, exact: float | None, terms: float
) -> float:
    """Return one bound for all elements: of an output that exact data decide, or of those that do not.

    ``ours`` and ``exact`` are the largest values of both data sets. One random sum may be near 0 by
    accident; then the exact set tells its scale. ``terms`` are input elements for each element of the
    output: one thread that adds a million is right.
    """
    if exact is None:  # exact data themselves, which are not exact in the output's type
        return _ROUNDINGS * float(info.eps) * max(1.0, ours)
    roundings = _ROUNDINGS_OF_HALF if info.bits == 16 else _ROUNDINGS
    scale = max(ours, min(exact, 16 * ours)) * max(1.0, math.sqrt(terms) / _SHORT)
    return roundings * float(info.eps) * scale + _least_value(info)


def perturb(row: NDArray[np.floating], source: np.random.Generator) -> None:
    """Multiply each number by 1 ± `STEP`."""
    signs = np.unpackbits(np.frombuffer(source.bytes(-(-row.size // 8)), np.uint8))
    row *= np.array([1 - STEP, 1 + STEP])[signs[: row.size]]


def strike(row: NDArray[np.floating], source: np.random.Generator) -> None:
    """Change one number in `_ONE_IN`, clearly."""
    row[source.integers(_ONE_IN, size=row.size, dtype=np.uint8) == 0] *= 1 + _STRIKING_STEP


def changed(array: NDArray[Any], change: Change, key: int, number: int) -> NDArray[Any]:
    """Return a wide copy of an array of which each part is changed, by a generator of a key and a number."""
    wide = converted(array, np.complex128 if array.dtype.kind == "c" else np.float64)
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
    sensitivity: NDArray[np.float64], expected: NDArray[np.floating], found: NDArray[np.floating]
) -> None:
    """Add one evaluation to a root of summed squares; a change that is not finite tells nothing."""

    def add(_: int, begin: int, end: int) -> None:
        change = found[begin:end] - expected[begin:end]
        change[~np.isfinite(change)] = 0
        np.hypot(sensitivity[begin:end], change, out=sensitivity[begin:end])

    with np.errstate(all="ignore"):
        in_pieces(add, expected.size)


def element_bounds(
    info: np.finfo[np.floating],
    expected: NDArray[np.floating],
    sensitivity: NDArray[np.float64],
    reached: NDArray[np.floating] | None,
) -> NDArray[Any]:
    """Return the bound of each element, rounded up: float32, or float64 for a float64 output.

    ``reached`` are the results for inputs that `strike` changed. None where inputs that are no floating-point
    numbers, and so were not changed, may matter: then rounding errors of the largest value are allowed
    everywhere.
    """
    kind = np.float64 if info.bits == 64 else np.float32
    arithmetic = float(np.finfo(kind).eps)
    own = float(info.eps) + _OWN * arithmetic
    some = sensitivity[:: sensitivity.size // _SAMPLE | 1]
    some = some[(some > 0) & (some < np.inf)]
    typical = float(np.median(some)) if some.size else 0.0
    rest = _least_value(info)
    if reached is None:
        rest += _ROUNDINGS * arithmetic * largest(expected)
    bounds = np.empty(expected.size, kind)

    def fill(_: int, begin: int, end: int) -> None:
        size = np.abs(expected[begin:end].astype(np.float64))
        factor: Any = _AMPLIFICATION
        if reached is not None and info.bits > 16:  # half precision adds in half precision
            is_reached = reached[begin:end] != expected[begin:end]
            factor = np.where(is_reached, _AMPLIFICATION, _AMPLIFICATION_OF_FEW)
        amplified = np.maximum(factor * sensitivity[begin:end], _TYPICAL * typical)
        bound = own * size + arithmetic / 2 * amplified + rest
        bound[~np.isfinite(size)] = 0
        most = np.finfo(kind).max
        bounds[begin:end] = np.nextafter(np.minimum(bound, most).astype(kind), most)

    with np.errstate(all="ignore"):
        in_pieces(fill, expected.size)
    return bounds


def _least_value(info: np.finfo[np.floating]) -> float:
    """Return the least normal number, below which devices may write 0; of float16 the least at all."""
    return float(info.smallest_subnormal if info.bits == 16 else info.smallest_normal)
