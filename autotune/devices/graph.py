"""Captures the work on a CUDA stream once, as a graph to launch many times."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: CU_EVENT_RECORD_EXTERNAL of the driver API: a node of the graph records the event at every launch. Without it
#: the event would only order work within the capture.
_EXTERNAL = 1


class CaptureError(Exception):
    """The enqueued work cannot be captured; ``str(error)`` is the reason."""


class GraphError(Exception):
    """A graph was not launched; ``str(error)`` is the driver's name of the error."""


class Graph:
    """An executable graph of the work that one call of ``enqueue()`` puts on a stream.

    ``stream`` is the pointer of a stream that is not being captured. ``enqueue`` must enqueue on this stream
    only, and neither wait nor allocate; otherwise `CaptureError` is raised.
    """

    def __init__(self, stream: int, enqueue: Callable[[], object]) -> None:
        from cuda.bindings import driver

        self._driver = driver
        self._stream = driver.CUstream(stream)
        # Thread-local, because calls of other threads could otherwise end the capture.
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._ask(driver.cuStreamBeginCapture(self._stream, mode))
        failure: Exception | None = None
        try:
            enqueue()
        except Exception as error:  # libraries raise errors of their own types
            failure = error
        # End the capture in any case; otherwise the stream would stay unusable.
        result, self._graph = driver.cuStreamEndCapture(self._stream)
        if self._graph is not None:
            self._destroy_with_self(driver.cuGraphDestroy, self._graph)
        if failure is not None:
            raise CaptureError(f"{type(failure).__name__}: {failure}") from failure
        self._ask((result,))
        if self._allocates():
            raise CaptureError("it allocates device memory at every call")
        self._executable = self._ask(driver.cuGraphInstantiate(self._graph, 0))
        self._destroy_with_self(driver.cuGraphExecDestroy, self._executable)
        self._ask(driver.cuGraphUpload(self._executable, self._stream))

    def launch(self) -> None:
        """Enqueue the whole graph; `GraphError` if the driver refuses or the context is lost."""
        (status,) = self._driver.cuGraphLaunch(self._executable, self._stream)
        if int(status) != 0:
            raise GraphError(str(status))

    def _destroy_with_self(self, destroy: Callable[[Any], object], graph: Any) -> None:
        """Destroy a graph with this object: graphs hold device memory, and a search makes thousands."""
        weakref.finalize(self, destroy, graph).atexit = False  # at exit the context may be lost

    def _allocates(self) -> bool:
        """Return whether the graph allocates memory: allocation would be timed, but is not part of a kernel."""
        count = self._ask(self._driver.cuGraphGetNodes(self._graph))[1]
        nodes = self._ask(self._driver.cuGraphGetNodes(self._graph, count))[0]
        kind = self._driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEM_ALLOC
        return any(self._ask(self._driver.cuGraphNodeGetType(node)) == kind for node in nodes)

    def _ask(self, result: tuple[Any, ...]) -> Any:
        if int(result[0]) != 0:
            raise CaptureError(str(result[0]).rpartition(".")[2])
        return result[1] if len(result) == 2 else result[1:]


def capture_of(stream: int) -> int:
    """Return the id of the capture of a stream, unique in this process."""
    from cuda.bindings import driver

    _, _, number, *_ = driver.cuStreamGetCaptureInfo(driver.CUstream(stream))
    return int(number)


@contextmanager
def everything_allowed() -> Iterator[None]:
    """Let this thread allocate and load code while a stream is captured, in any capture mode."""
    from cuda.bindings import driver

    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    _, before = driver.cuThreadExchangeStreamCaptureMode(relaxed)
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(before)


def record_event(event: int, stream: int) -> None:
    """Enqueue the recording of an event, as a node of the graph during a capture."""
    from cuda.bindings import driver

    (status,) = driver.cuEventRecordWithFlags(
        driver.CUevent(event), driver.CUstream(stream), _EXTERNAL
    )
    if int(status) != 0:
        raise CaptureError(str(status))
