"""The stream of a CUDA context: enqueues, waits, times with events, and converts errors of CUDA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from autotune.devices.base import ContextLostError, LaunchError
from autotune.devices.cuda_checks import checks_module
from autotune.devices.device import Device
from autotune.devices.graph import GraphError

#: A flush before a cold sample writes this multiple of the L2 cache.
_FLUSH_FACTOR = 4
#: Errors of too little memory; the context is still usable.
_NO_MEMORY = ("cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY")
#: Errors of a launch that leave the context usable.
_HARMLESS = (
    "cudaErrorInvalidValue",
    "cudaErrorInvalidConfiguration",
    "cudaErrorLaunchOutOfResources",
    "CUDA_ERROR_INVALID_VALUE",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
    "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
    "CUDA_ERROR_INVALID_CLUSTER_SIZE",
    "CUDA_ERROR_NOT_FOUND",
    "CUDA_ERROR_INVALID_IMAGE",
    "CUDA_ERROR_NO_BINARY_FOR_GPU",
    "CUDA_ERROR_INVALID_PTX",
)


class CudaStream:
    """One stream of a context that this process makes."""

    #: Milliseconds that timing by a graph adds to a sample; None until `cuda_timer` measures them.
    graph_overhead_ms: float | None = None

    def __init__(self, cupy: Any, device: Device) -> None:
        self.cupy = cupy
        self.device = device
        cupy.cuda.Device(device.index).use()
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.stream.use()

    def samples_ms(
        self,
        call: Callable[[], object],
        count: int,
        flush: Callable[[], object] | None,
        calls: int = 1,
    ) -> list[float]:
        """Return milliseconds per call, between two events around ``calls`` calls.

        The flush before a cold sample keeps the device busy while the host enqueues events and
        launches, so that launch latency is not between the events.
        """
        cp = self.cupy
        pairs = [(cp.cuda.Event(), cp.cuda.Event()) for _ in range(count)]
        for start, stop in pairs:
            if flush is not None:
                flush()
            start.record(self.stream)
            self.guarded(call)
            stop.record(self.stream)
        self.guarded(self.stream.synchronize)
        # Events have a resolution of half a microsecond (CUDA runtime API, cudaEventElapsedTime) and are
        # float32, so further digits mean nothing.
        return [round(float(cp.cuda.get_elapsed_time(a, b)) / calls, 6) for a, b in pairs]

    @cached_property
    def flush(self) -> Callable[[], None]:
        """Function that enqueues a write of enough memory to flush the L2 cache."""
        return partial(self.memset, self._flush_buffer, 0)

    @cached_property
    def flush_clean(self) -> Callable[[], None]:
        """Function that enqueues a flush, and a read that leaves no cache line to write back."""
        halves = self._flush_buffer
        half = halves.nbytes // 2
        differ = checks_module(self.cupy, self.device.arch, "float32").get_function("differ")
        args = (halves, halves[half:], np.uint64(half), self.cupy.empty(1, np.uint32))
        read = partial(differ, self.grid(half // 16), (256,), args, stream=self.stream)
        return partial(run_all, (self.flush, read))

    @cached_property
    def _flush_buffer(self) -> Any:
        size = max(self.device.l2_bytes, 32 << 20) * _FLUSH_FACTOR
        return self.cupy.empty(size, self.cupy.uint8)

    def grid(self, count: int) -> tuple[int]:
        """Return the number of blocks of 256 threads for ``count`` elements; a thread may take several."""
        return (max(1, min(-(-count // 256), 8 * self.device.sm_count)),)

    def memset(self, array: Any, value: int) -> None:
        """Enqueue a write of every byte of an array."""
        self.cupy.cuda.runtime.memsetAsync(array.data.ptr, value, array.nbytes, self.stream.ptr)

    def guarded(self, call: Callable[[], Any]) -> Any:
        """Call a function of CUDA; convert its error to MemoryError, `LaunchError` or `ContextLostError`."""
        errors = (
            self.cupy.cuda.runtime.CUDARuntimeError,
            self.cupy.cuda.driver.CUDADriverError,
            GraphError,
        )
        try:
            return call()
        except errors as error:
            if is_out_of_memory(error):
                raise MemoryError(str(error)) from error
            if any(name in str(error) for name in _HARMLESS):
                raise LaunchError(str(error)) from error
            raise ContextLostError(str(error)) from error


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error of CUDA means that the device has too little memory."""
    return any(name in str(error) for name in _NO_MEMORY)


def make_context_current() -> None:
    """Make the context of this thread's device current; a thread has none before its first call of CUDA's runtime."""
    from cupy.cuda import runtime

    runtime.setDevice(runtime.getDevice())


def run_all(calls: Sequence[Callable[[], object]]) -> None:
    """Make each call in turn."""
    for call in calls:
        call()


def repeat(call: Callable[[], object], times: int) -> None:
    """Make a call several times."""
    for _ in range(times):
        call()
