"""How every child process of ours begins: it dies with its parent and leaves Ctrl-C to it."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import TypeVar

from autotune.errors import AutotuneError

T = TypeVar("T")

#: prctl option: signal to get when the parent dies. Source: prctl(2).
_PR_SET_PDEATHSIG = 1


class _Child(SpawnProcess):
    """A child to which Ctrl-C cannot come while it starts up, before `begin_child`."""

    def start(self) -> None:
        if not hasattr(signal, "pthread_sigmask"):
            super().start()
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a child inherits it
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Context(SpawnContext):
    Process = _Child


def spawn_context() -> SpawnContext:
    """The way to start children: a fresh interpreter, since device run-times survive no fork."""
    if hasattr(signal, "pthread_sigmask"):
        # Python's helper starts here, as it unblocks SIGINT when it starts; and it outlives us when
        # the terminal goes, where a second one would not know what the first was told.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return _Context()


def begin_child(parent: int) -> None:
    """Prepare a child process; the initializer of every pool.

    Parameters
    ----------
    parent : int
        Process id of the parent: if it is already gone, so is this child.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    # Pebble's own handler is Python, which a kernel or compiler that hangs never comes back to: each
    # process would then take 3 s to be stopped, one after the other.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # When the thread of the parent that started this process ends; see `ChildPool`.
    with suppress(OSError, AttributeError):  # not Linux: the pool's own pipes end it a little later
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    # Standard output belongs to the parent's results: what a child prints goes to stderr.
    os.dup2(2, 1)


def awaited(future: Future[T], is_ended: Callable[[], bool]) -> T:
    """The result of a future, unless another thread has ended the processes that would bring it.

    Pebble loses a task that a process takes up while it is being stopped.

    Raises
    ------
    AutotuneError
        If they were ended.
    """
    while not wait([future], timeout=0.5).done:
        if is_ended():
            raise AutotuneError("the processes of the run were ended")
    return future.result()
