"""Process large arrays in pieces on all cores: NumPy releases the interpreter's lock inside its loops.

Pieces do not depend on the number of threads, so neither do results.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

R = TypeVar("R")
T = TypeVar("T")

#: Elements of a piece: 1 to 2 MB, which stay in a core's cache between two steps.
PIECE = 1 << 18


def in_pieces(work: Callable[[int, int, int], R], count: int, piece: int = PIECE) -> list[R]:
    """Call ``work(number, begin, end)`` for every piece of ``range(count)``, in several threads.

    Return the results in the order of the pieces. The last piece may be shorter.
    """
    begins = range(0, count, piece)
    bounds = [(i, begin, min(begin + piece, count)) for i, begin in enumerate(begins)]
    threads = min(len(bounds), usable_cores())
    if threads < 2:
        return [work(*piece) for piece in bounds]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda piece: work(*piece), bounds))


def in_threads(work: Callable[[T], R], items: Iterable[T], threads: int) -> list[R]:
    """Return the results of ``work`` for the items, in order.

    After an error no further item starts. An interrupt does not wait for threads, because a reference may
    run long.
    """
    pool = ThreadPoolExecutor(max(1, threads))
    try:
        results = list(pool.map(work, items))
    except BaseException as error:
        pool.shutdown(wait=isinstance(error, Exception), cancel_futures=True)
        raise
    pool.shutdown()
    return results


def converted(array: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    """Return a C-contiguous copy of another type; the array itself if it is contiguous and of that type."""
    if array.dtype == dtype and array.flags.c_contiguous:
        return array
    return _copied(array, dtype, _copy)[0]


def narrowed(array: NDArray[Any], dtype: DTypeLike) -> NDArray[Any] | None:
    """Return a C-contiguous copy of a narrower type; None if a value would change. NaN stays NaN."""
    result, same = _copied(array, dtype, _copy_and_compare)
    return result if all(same) else None


def _copied(
    array: NDArray[Any], dtype: DTypeLike, copy: Callable[[NDArray[Any], NDArray[Any]], R]
) -> tuple[NDArray[Any], list[R]]:
    """Copy in pieces: of a contiguous array's elements, else of the first axis."""
    result: NDArray[Any] = np.empty(array.shape, dtype)
    new, old = result, array
    if array.flags.c_contiguous:
        new, old = result.reshape(-1), array.reshape(-1)
    rows = max(1, PIECE * len(old) // max(1, old.size))
    return result, in_pieces(lambda _, i, j: copy(new[i:j], old[i:j]), len(old), rows)


def _copy(new: NDArray[Any], old: NDArray[Any]) -> None:
    with np.errstate(all="ignore"):
        np.copyto(new, old, casting="unsafe")


def _copy_and_compare(new: NDArray[Any], old: NDArray[Any]) -> bool:
    old = np.ascontiguousarray(old)  # read more than once
    _copy(new, old)
    return np.array_equal(new, old) or np.array_equal(new, old, equal_nan=True)


def available_bytes() -> int | None:
    """Return the memory that this machine can give to a process; None if it does not say."""
    with suppress(OSError), open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return None


def usable_cores() -> int:
    """Count the cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
