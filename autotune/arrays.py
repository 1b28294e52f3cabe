"""Work on large arrays in pieces, on all cores: NumPy lets go of the interpreter's lock inside its loops.

Knows arrays, not what they are for. Pieces never depend on the number of threads, so results do not either.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

R = TypeVar("R")

#: Elements of a piece: a megabyte or two, which stay in a core's cache between two steps on them.
PIECE = 1 << 18
#: Rows and columns of a tile.
_TILE = 256


def in_pieces(work: Callable[[int, int, int], R], count: int, piece: int = PIECE) -> list[R]:
    """Call ``work(number, begin, end)`` for every piece of ``range(count)``, several at a time.

    Returns what each call returned, in the order of the pieces; the last may be shorter.
    """
    ranges = [
        (i, begin, min(begin + piece, count)) for i, begin in enumerate(range(0, count, piece))
    ]
    threads = min(len(ranges), usable_cores())
    if threads < 2:
        return [work(*bounds) for bounds in ranges]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda bounds: work(*bounds), ranges))


def converted(array: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    """Return a C-contiguous copy in another type; the array itself where it is one already."""
    if array.dtype == dtype and array.flags.c_contiguous:
        return array
    result: NDArray[Any] = np.empty(array.shape, dtype)
    cuts = _cuts(result, array)

    def convert(number: int, *_: int) -> None:
        new, old = cuts[number]
        with np.errstate(all="ignore"):
            np.copyto(new, old, casting="unsafe")

    in_pieces(convert, len(cuts), 1)
    return result


def narrowed(array: NDArray[Any], dtype: DTypeLike) -> NDArray[Any] | None:
    """Return a C-contiguous copy of real numbers in a narrower type; None where a value would change.

    NaN stays NaN. Each piece is converted and compared while it is in the cache.
    """
    if array.dtype == dtype:
        return converted(array, dtype)
    result: NDArray[Any] = np.empty(array.shape, dtype)
    cuts = _cuts(result, array)
    same = True
    # The next float after the largest integers is no integer of the type, but may be cast to one
    # that equals it as float.
    whole, beyond = result.dtype.kind in "iu" and array.dtype.kind == "f", math.inf
    if whole:
        beyond = float(np.iinfo(result.dtype).max) + 1

    def narrow(number: int, *_: int) -> None:
        nonlocal same
        if not same:
            return
        short, wide = cuts[number]
        with np.errstate(all="ignore"):
            np.copyto(short, wide, casting="unsafe")
            equal = short == wide
            if whole:
                equal &= wide < beyond
            if not equal.all():
                equal |= np.isnan(short) & np.isnan(wide)
                if not equal.all():  # only ever to False: another thread may have set it
                    same = False

    in_pieces(narrow, len(cuts), 1)
    return result if same else None


def largest_finite(array: NDArray[np.float64]) -> float:
    """Largest absolute value of a C-contiguous array that is neither infinite nor NaN; 0 if none is."""
    flat = array.reshape(-1)

    def largest(_: int, begin: int, end: int) -> float:
        sizes = np.abs(flat[begin:end])
        return float(np.max(sizes, where=np.isfinite(sizes), initial=0.0))

    return max(in_pieces(largest, flat.size), default=0.0)


def _cuts(new: NDArray[Any], old: NDArray[Any]) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Two arrays of one shape cut alike: in runs where both are contiguous, else in tiles.

    Where one is the other transposed, a tile is what fits a core's cache and its table of pages.
    """
    if old.flags.c_contiguous or old.ndim == 0:
        new, old = new.reshape(-1), old.reshape(-1)
        return [(new[i : i + PIECE], old[i : i + PIECE]) for i in range(0, len(new), PIECE)]
    rows, columns = range(0, len(new), _TILE), range(0, new.shape[-1], _TILE)
    if new.ndim == 1:
        columns = range(1)
    return [(_tile(new, i, j), _tile(old, i, j)) for i, j in itertools.product(rows, columns)]


def _tile(array: NDArray[Any], row: int, column: int) -> NDArray[Any]:
    """Part of an array along its first and its last axis."""
    part: NDArray[Any] = array[row : row + _TILE]
    return part if array.ndim == 1 else part[..., column : column + _TILE]


def usable_cores() -> int:
    """Count the cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
