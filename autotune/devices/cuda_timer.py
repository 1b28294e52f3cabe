"""Times calls on a CUDA stream, as graphs if they can be captured."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

from autotune.devices.base import batch_size
from autotune.devices.cuda_checks import checks_module
from autotune.devices.cuda_stream import CudaStream, repeat
from autotune.devices.graph import CaptureError, Graph, record_event

#: Seconds for which empty kernels are timed to measure the cost of timing: a GPU leaves its idle clock after
#: about 0.1 s of work.
_CALIBRATION_S = 0.3
#: Number of the last pairs of samples that count for this cost.
_CALIBRATION_PAIRS = 50
#: Resolution of events: 32 ns on an H100.
_TICK_MS = 0.000032
#: Work that is enqueued ahead in a sustained load.
_AHEAD_MS = 20.0
#: Sleep of the host between two checks of the device.
_POLL_S = 0.0005


class CudaTimer:
    """See `autotune.devices.base.Timer`.

    A sample is one launch of a graph with the flush, an event, the call and another event. The cost of
    the events is measured once per process (`graph_overhead_ms`) and subtracted. docs/timing.md compares
    this way of timing with CUPTI and others.
    """

    def __init__(self, stream: CudaStream, call: Callable[[], object], cold: bool) -> None:
        self._stream, self._call, self._cold = stream, call, cold
        #: Calls of a hot sample; 0 before the first hot sample.
        self._calls = 0
        self._once = self._captured(stream.flush if cold else None)
        self._clean: _Sample | None = None
        self._batch: _Sample | None = None
        self.launched_by = "graph" if self._once else "stream"
        self.overhead_ms = graph_overhead_ms(stream) if self._once else 0.0

    def __call__(self, count: int) -> list[float]:
        return self.singly(count) if self._cold else self.hot(count)

    def hot(self, count: int) -> list[float]:
        if not count:
            return []
        if not self._calls:
            self._calls = batch_size(min(self.singly(3)))
            self._batch = self._captured(None, self._calls) if self._once else None
        if self._batch:
            return [self._net(self._batch.take_ms()) / self._calls for _ in range(count)]
        many = partial(repeat, self._call, self._calls)
        return self._stream.samples_ms(many, count, None, calls=self._calls)

    def clean(self, count: int) -> list[float]:
        flush = self._stream.flush_clean
        if self._once and not self._clean:
            self._clean = self._captured(flush)
        if not self._clean:
            return self._stream.samples_ms(self._call, count, flush)
        return [self._net(self._clean.take_ms()) for _ in range(count)]

    def sustained(self, is_enough: Callable[[int], bool]) -> None:
        (call_ms,) = self.hot(1)  # determines the calls of a batch
        launch = self._batch.launch if self._batch else partial(repeat, self._call, self._calls)
        ahead = max(2, math.ceil(_AHEAD_MS / (call_ms * self._calls)))
        stream, running, done = self._stream, deque[Any](), 0
        try:
            while not is_enough(done):
                while len(running) < ahead:
                    stream.guarded(launch)
                    running.append(stream.stream.record())
                time.sleep(_POLL_S)
                while running and stream.guarded(lambda: running[0].done):
                    running.popleft()
                    done += self._calls
        finally:
            stream.guarded(stream.stream.synchronize)

    def by_stream(self) -> None:
        self._once, self._clean, self._batch = None, None, None
        self.launched_by, self.overhead_ms = "stream", 0.0

    def singly(self, count: int) -> list[float]:
        if self._once:
            return [self._net(self._once.take_ms()) for _ in range(count)]
        flush = self._stream.flush if self._cold else None
        return self._stream.samples_ms(self._call, count, flush)

    def _net(self, taken_ms: float) -> float:
        return max(round(taken_ms - self.overhead_ms, 6), _TICK_MS)

    def _captured(self, flush: Callable[[], object] | None, calls: int = 1) -> _Sample | None:
        """Capture a sample as a graph; None if the call cannot be captured."""
        try:
            return _Sample(self._stream, partial(repeat, self._call, calls), flush)
        except CaptureError:
            return None


class _Sample:
    """A graph of a flush (unless hot), an event, the timed call, and another event."""

    def __init__(
        self,
        stream: CudaStream,
        call: Callable[[], object],
        flush: Callable[[], object] | None,
    ) -> None:
        event = stream.cupy.cuda.Event
        self._stream, self._events = stream, (event(), event())
        pointer = stream.stream.ptr

        def enqueue() -> None:
            if flush is not None:
                flush()
            record_event(self._events[0].ptr, pointer)
            call()
            record_event(self._events[1].ptr, pointer)

        # No memory pool, because its blocks may be reused after the call returns.
        with stream.cupy.cuda.using_allocator(_no_allocation):
            self._graph = Graph(pointer, enqueue)

    def launch(self) -> None:
        """Enqueue the graph."""
        self._graph.launch()

    def take_ms(self) -> float:
        """Launch once, wait, and return the time between the events."""
        self._stream.guarded(self.launch)
        self._stream.guarded(self._stream.stream.synchronize)
        return float(self._stream.cupy.cuda.get_elapsed_time(*self._events))


def graph_overhead_ms(stream: CudaStream) -> float:
    """Return the milliseconds that two events of a graph, and the launch after the first, add to a sample.

    This cost is the intercept of the times of one and of nine empty kernels. It excludes the time of a kernel
    and of a further launch. On an H100 it is 2.1 µs. After its subtraction, medians of 19 calls of 1 to
    76 µs (kernels, CUB, cuBLAS, a copy) differ from CUPTI's by -0.04 to +0.41 µs, with a median of +0.2 µs.
    It is measured once for each stream, while the clock rises from idle; only the last samples count.
    """
    if stream.graph_overhead_ms is None:
        stream.graph_overhead_ms = _measured_overhead_ms(stream)
    return stream.graph_overhead_ms


def _measured_overhead_ms(stream: CudaStream) -> float:
    empty = checks_module(stream.cupy, stream.device.arch, "float32").get_function("empty")
    launch = partial(empty, (1,), (32,), (), stream=stream.stream)
    launch()
    alone, nine = (_Sample(stream, partial(repeat, launch, n), stream.flush) for n in (1, 9))
    pairs: list[tuple[float, float]] = []
    start = time.perf_counter()
    while time.perf_counter() - start < _CALIBRATION_S or len(pairs) < _CALIBRATION_PAIRS:
        pairs.append((alone.take_ms(), nine.take_ms()))
    last = pairs[-_CALIBRATION_PAIRS:]
    single, many = (median(pair[place] for pair in last) for place in (0, 1))
    return max(0.0, single - (many - single) / 8)


def _no_allocation(nbytes: int) -> Any:
    raise CaptureError(f"it allocates {nbytes} bytes at every call")
