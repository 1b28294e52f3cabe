"""Work on large arrays in pieces, on all cores: NumPy lets go of the interpreter's lock inside its loops.

Knows arrays, not what they are for. Pieces never depend on the number of threads, so results do not either.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from autotune.process import usable_cores

R = TypeVar("R")

#: Elements of a piece: a few megabytes, which stay in a core's cache between two steps on them.
PIECE = 1 << 20


def in_pieces(work: Callable[[int, int, int], R], count: int, piece: int = PIECE) -> list[R]:
    """Call ``work(number, begin, end)`` for every piece of a range, several at a time.

    Parameters
    ----------
    work : callable
        Gets the number of the piece and its range.
    count : int
        Length of the whole range.
    piece : int
        Length of a piece; the last may be shorter.

    Returns
    -------
    list
        What each call returned, in the order of the pieces.
    """
    ranges = [
        (i, begin, min(begin + piece, count)) for i, begin in enumerate(range(0, count, piece))
    ]
    threads = min(len(ranges), usable_cores())
    if threads < 2:
        return [work(*one) for one in ranges]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda one: work(*one), ranges))


def converted(array: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    """A C-contiguous copy of an array in another type; the same array where that is what it is."""
    if array.dtype == dtype and array.flags.c_contiguous:
        return array
    result: NDArray[Any] = np.empty(array.shape, dtype)
    flat = _same_order(result, array)

    def convert(_: int, begin: int, end: int) -> None:
        with np.errstate(all="ignore"):
            np.copyto(flat[0][begin:end], flat[1][begin:end], casting="unsafe")

    in_pieces(convert, len(flat[0]), _rows(flat[0]))
    return result


def narrowed(array: NDArray[np.float64], dtype: DTypeLike) -> NDArray[Any] | None:
    """A C-contiguous copy in a narrower floating-point type; None where that would change a value.

    NaN stays NaN. Each piece is converted and compared while it is in the cache.
    """
    if array.dtype == dtype:
        return converted(array, dtype)
    result: NDArray[Any] = np.empty(array.shape, dtype)
    flat = _same_order(result, array)
    same = True

    def narrow(_: int, begin: int, end: int) -> None:
        nonlocal same
        if not same:
            return
        short, wide = flat[0][begin:end], flat[1][begin:end]
        with np.errstate(all="ignore"):
            np.copyto(short, wide, casting="unsafe")
            equal = short == wide
            if not equal.all():
                equal |= np.isnan(short) & np.isnan(wide)
                same = same and bool(equal.all())

    in_pieces(narrow, len(flat[0]), _rows(flat[0]))
    return result if same else None


def largest_finite(array: NDArray[np.float64]) -> float:
    """Largest absolute value of a C-contiguous array that is neither infinite nor NaN; 0 if none is."""
    flat = array.reshape(-1)

    def largest(_: int, begin: int, end: int) -> float:
        sizes = np.abs(flat[begin:end])
        return float(np.max(sizes, where=np.isfinite(sizes), initial=0.0))

    return max(in_pieces(largest, flat.size), default=0.0)


def _same_order(one: NDArray[Any], other: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Two arrays of one shape as they can be cut: flat where both are contiguous, else by rows."""
    if other.flags.c_contiguous or other.ndim == 0:
        return one.reshape(-1), other.reshape(-1)
    return one, other


def _rows(array: NDArray[Any]) -> int:
    """Rows of an array that make up a piece."""
    return max(1, PIECE * len(array) // max(1, array.size))
