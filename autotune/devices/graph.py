"""Captures the work on a CUDA stream as a graph, once, to launch it often."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: CU_EVENT_RECORD_EXTERNAL of the driver API: an event recorded by a node of the graph at every
#: launch, not a mark for the capture itself.
_EXTERNAL = 1


class CaptureError(Exception):
    """The enqueued work cannot be captured; ``str(error)`` says why."""


class GraphError(Exception):
    """A graph was not launched; ``str(error)`` is the driver's name of the error."""


class Graph:
    """An executable graph of the work that ``enqueue()``, called once, puts on a stream.

    The stream is given by its pointer, and is not being captured. ``enqueue`` enqueues on it only,
    without waiting, and allocates nothing; otherwise `CaptureError` is raised.
    """

    def __init__(self, stream: int, enqueue: Callable[[], object]) -> None:
        from cuda.bindings import driver

        self._driver = driver
        self._stream = driver.CUstream(stream)
        # Thread-local: other threads may do what would end a capture.
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._ask(driver.cuStreamBeginCapture(self._stream, mode))
        failure: Exception | None = None
        try:
            enqueue()
        except Exception as error:  # libraries raise errors of their own kinds
            failure = error
        # Ends in any case: else the stream would stay unusable.
        result, self._graph = driver.cuStreamEndCapture(self._stream)
        if self._graph is not None:
            self._until_gone(driver.cuGraphDestroy, self._graph)
        if failure is not None:
            raise CaptureError(f"{type(failure).__name__}: {failure}") from failure
        self._ask((result,))
        if self._allocates():
            raise CaptureError("it allocates device memory at every call")
        self._executable = self._ask(driver.cuGraphInstantiate(self._graph, 0))
        self._until_gone(driver.cuGraphExecDestroy, self._executable)
        self._ask(driver.cuGraphUpload(self._executable, self._stream))

    def launch(self) -> None:
        """Enqueue the whole graph; `GraphError` if the driver refuses or the context is lost."""
        (status,) = self._driver.cuGraphLaunch(self._executable, self._stream)
        if int(status) != 0:
            raise GraphError(str(status))

    def _until_gone(self, destroy: Callable[[Any], object], made: Any) -> None:
        """Destroy a graph with this object: graphs hold device memory, and a search makes thousands."""
        weakref.finalize(self, destroy, made).atexit = False  # the context may be gone by then

    def _allocates(self) -> bool:
        """Return whether the graph allocates: that would be timed, and is no part of a kernel."""
        count = self._ask(self._driver.cuGraphGetNodes(self._graph))[1]
        nodes = self._ask(self._driver.cuGraphGetNodes(self._graph, count))[0]
        kind = self._driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEM_ALLOC
        return any(self._ask(self._driver.cuGraphNodeGetType(node)) == kind for node in nodes)

    def _ask(self, result: tuple[Any, ...]) -> Any:
        if int(result[0]) != 0:
            raise CaptureError(str(result[0]).rpartition(".")[2])
        return result[1] if len(result) == 2 else result[1:]


def capture_of(stream: int) -> int:
    """Return the number of the capture that a stream is part of, unique in this process."""
    from cuda.bindings import driver

    _, _, number, *_ = driver.cuStreamGetCaptureInfo(driver.CUstream(stream))
    return int(number)


@contextmanager
def everything_allowed() -> Iterator[None]:
    """Allow this thread to allocate and load code while a stream is captured, in any mode."""
    from cuda.bindings import driver

    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    _, before = driver.cuThreadExchangeStreamCaptureMode(relaxed)
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(before)


def record_event(event: int, stream: int) -> None:
    """Enqueue the recording of an event, as a node of the graph if one is captured."""
    from cuda.bindings import driver

    (status,) = driver.cuEventRecordWithFlags(
        driver.CUevent(event), driver.CUstream(stream), _EXTERNAL
    )
    if int(status) != 0:
        raise CaptureError(str(status))
