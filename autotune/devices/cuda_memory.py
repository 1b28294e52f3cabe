"""Buffers of a CUDA device between guard bands, and fast copies of large arrays to them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.arrays import usable_cores
from autotune.devices.base import GUARD_BYTES

#: Least size of an upload for which threads and page-locked memory are worth their start.
LARGE_UPLOAD_BYTES = 32 << 20
#: Size of a piece. Larger pieces were not faster on 16 cores.
_PIECE_BYTES = 16 << 20
#: Maximum number of pieces in flight at once. More were not faster on 16 cores.
_MAX_THREADS = 8


class CudaBuffer:
    """A guarded allocation: ``whole`` with its guard bands, ``inner`` without."""

    def __init__(self, cupy: Any, nbytes: int, offset_bytes: int) -> None:
        padded = -(-(offset_bytes + nbytes) // 256) * 256
        begin = GUARD_BYTES + offset_bytes
        self.nbytes = nbytes
        self.whole = cupy.empty(GUARD_BYTES + padded + GUARD_BYTES, cupy.uint8)
        self.inner = self.whole[begin : begin + nbytes]
        self.guards = (self.whole[:begin], self.whole[begin + nbytes :])


class Uploader:
    """Copies large arrays to a device and back, in page-locked pieces that several threads fill.

    The driver copies ordinary memory with one thread through one staging buffer, several times slower than
    the bus. The pages of a mapped file are read by the first thread that touches them, here by all threads.
    """

    def __init__(self, cupy: Any, device_index: int) -> None:
        self._cupy, self._device_index = cupy, device_index
        cuda = cupy.cuda
        memory = [
            cuda.alloc_pinned_memory(_PIECE_BYTES) for _ in range(min(_MAX_THREADS, usable_cores()))
        ]
        self._lanes = [
            (np.frombuffer(piece, np.uint8, _PIECE_BYTES), cuda.Stream(non_blocking=True))
            for piece in memory
        ]

    def copy(self, target: int, raw: NDArray[np.uint8]) -> None:
        """Copy bytes to a device address, and wait."""
        runtime = self._cupy.cuda.runtime

        def send(piece: NDArray[np.uint8], stream: Any, begin: int) -> None:
            part = raw[begin : begin + _PIECE_BYTES]
            np.copyto(piece[: part.size], part)
            source, kind = piece.ctypes.data, runtime.memcpyHostToDevice
            runtime.memcpyAsync(target + begin, source, part.size, kind, stream.ptr)
            stream.synchronize()

        self._in_lanes(send, raw.size)

    def fetch(self, source: int, raw: NDArray[np.uint8]) -> None:
        """Copy bytes from a device address, and wait."""
        runtime = self._cupy.cuda.runtime

        def receive(piece: NDArray[np.uint8], stream: Any, begin: int) -> None:
            part = raw[begin : begin + _PIECE_BYTES]
            target, kind = piece.ctypes.data, runtime.memcpyDeviceToHost
            runtime.memcpyAsync(target, source + begin, part.size, kind, stream.ptr)
            stream.synchronize()
            np.copyto(part, piece[: part.size])

        self._in_lanes(receive, raw.size)

    def _in_lanes(self, work: Callable[[NDArray[np.uint8], Any, int], None], nbytes: int) -> None:
        threads = len(self._lanes)

        def work_lane(lane: int) -> None:
            piece, stream = self._lanes[lane]
            self._cupy.cuda.Device(self._device_index).use()  # applies to this thread only
            for begin in range(lane * _PIECE_BYTES, nbytes, threads * _PIECE_BYTES):
                work(piece, stream, begin)

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work_lane, range(threads)))
