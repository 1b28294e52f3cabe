"""Uploads host arrays to CUDA device memory, in page-locked pieces that several threads fill.

The driver copies ordinary memory through one staging buffer and one thread, several times slower than
the bus. Pages of a mapped file are read by the first thread that touches them, here by all threads.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.arrays import usable_cores

#: From this size on threads and page-locked memory are worth their start.
LEAST_BYTES = 32 << 20
#: Size of a piece, and how many are on their way: more of either was not faster on 16 cores.
_PIECE_BYTES, _THREADS = 16 << 20, 8


class Uploader:
    """The page-locked pieces and streams of the upload threads, kept for the next upload."""

    def __init__(self, cupy: Any, index: int) -> None:
        self._cupy, self._index = cupy, index

    def upload(self, target: int, array: NDArray[Any]) -> None:
        """Copy a contiguous array to a device address and wait for it."""
        raw = array.reshape(-1).view(np.uint8)
        threads = len(self._lanes)

        def copy(lane: int) -> None:
            piece, stream = self._lanes[lane]
            runtime = self._cupy.cuda.runtime
            self._cupy.cuda.Device(self._index).use()  # each thread has a current device of its own
            for begin in range(lane * _PIECE_BYTES, raw.size, threads * _PIECE_BYTES):
                part = raw[begin : begin + _PIECE_BYTES]
                np.copyto(piece[: part.size], part)
                runtime.memcpyAsync(
                    target + begin,
                    piece.ctypes.data,
                    part.size,
                    runtime.memcpyHostToDevice,
                    stream.ptr,
                )
                stream.synchronize()

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(copy, range(threads)))

    @cached_property
    def _lanes(self) -> list[tuple[NDArray[np.uint8], Any]]:
        """Page-locked piece and stream of each thread."""
        memory = self._cupy.cuda.alloc_pinned_memory
        return [
            (
                np.frombuffer(memory(_PIECE_BYTES), np.uint8, _PIECE_BYTES),
                self._cupy.cuda.Stream(non_blocking=True),
            )
            for _ in range(min(_THREADS, usable_cores()))
        ]
