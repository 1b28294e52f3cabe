"""A pebble pool of child processes that can be ended by any thread, twice, and through a Ctrl-C."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Future, InvalidStateError
from contextlib import suppress
from typing import Any

from autotune.errors import MissingDependencyError
from autotune.measure.process import spawn_context

#: Between two looks at whether pebble's thread has ended.
_GLANCE_S = 0.01
#: Between two looks at whether pebble has given the pool up.
_WATCH_S = 0.25


class ChildPool:
    """Processes that do what they are given, and that pebble replaces when they end.

    Parameters
    ----------
    processes : int
        How many.
    initializer : callable
        What each does first: a function of a module, given the process id of the parent.
    purpose : str
        What for, in the message where pebble is missing.

    Raises
    ------
    MissingDependencyError
        Without pebble.
    """

    def __init__(self, processes: int, initializer: Callable[[int], None], purpose: str) -> None:
        try:
            from pebble import ProcessPool
        except ImportError as error:
            raise MissingDependencyError("pebble", "tune", purpose) from error
        self._pool: Any = ProcessPool(
            max_workers=processes,
            context=spawn_context(),
            initializer=initializer,
            initargs=[os.getpid()],
        )
        self._ending = threading.Lock()
        self._is_started = False
        self._ended = threading.Event()
        #: Futures of what was given and is not done.
        self._given: set[Future[Any]] = set()

    @property
    def active(self) -> bool:
        """Whether it takes tasks; starts the processes at the first call.

        Pebble gives up the whole pool when an idle process is killed.
        """
        self._start()
        return bool(self._pool.active)

    def schedule(
        self, task: Callable[..., Any], args: Sequence[Any] = (), timeout: float | None = None
    ) -> Future[Any]:
        """Give the first idle process something to do.

        If that is killed while it is idle, the future ends in `BrokenExecutor`.

        Raises
        ------
        RuntimeError
            If the pool is not active.
        """
        self._start()
        future: Future[Any] = self._pool.schedule(task, args=list(args), timeout=timeout)
        self._given.add(future)
        future.add_done_callback(self._given.discard)
        return future

    def _start(self) -> None:
        """Start the processes, in a thread that lasts as long as they do.

        A child is killed when the thread that started it ends (prctl(2), PR_SET_PDEATHSIG), and
        callers are threads of a search, or of a pool that has ended. Those that replace one are
        started by pebble's own thread.
        """
        if not self._is_started:
            started: Future[None] = Future()
            threading.Thread(target=self._keep, args=[started], daemon=True).start()
            started.result()
            self._is_started = True

    def _keep(self, started: Future[None]) -> None:
        try:
            _ = self._pool.active  # which starts it
        except BaseException as error:  # for the caller to raise
            started.set_exception(error)
        else:
            started.set_result(None)
            self._watch()

    def _watch(self) -> None:
        """Until the pool is ended, fail what pebble forgets when it gives the pool up.

        It fails the tasks that it knows of just then. One that is given to it at that moment, when
        the pool still looked active, stays in a queue that nobody reads any more.
        """
        before: set[Future[Any]] = set()
        while not self._ended.wait(_WATCH_S):
            is_broken = not self._pool.active and not self._ending.locked()
            now = set(self._given) if is_broken else set()
            for future in before & now:
                with suppress(InvalidStateError):  # it was failed in time after all
                    future.set_exception(BrokenExecutor("its pool of processes was given up"))
            before = now

    def end(self) -> None:
        """End the processes, whatever they are doing; returns when they have ended.

        Whoever calls while another thread ends them, or after a Ctrl-C broke off the wait, waits for
        the same end: pebble's two ways into it would take each other's processes (`KeyError`) and
        close each other's pipes ("Bad file descriptor").

        Raises
        ------
        RuntimeError
            If a process cannot be killed.
        """
        done: Future[None] = Future()
        # In a thread of its own, as Python interrupts the main thread only.
        threading.Thread(target=self._end_for, args=[done], daemon=True).start()
        done.result()

    def _end_for(self, done: Future[None]) -> None:
        try:
            with self._ending:
                if not self._ended.is_set():
                    self._pool.stop()
                    self._await_manager()
                    self._pool.join()
                    self._ended.set()
        except BaseException as error:  # for the caller to raise
            done.set_exception(error)
        else:
            done.set_result(None)

    def _await_manager(self) -> None:
        """Wait until the thread that replaces processes has really ended.

        `Thread.join` does not tell: a Ctrl-C in it, or in `Thread.is_alive`, makes Python up to 3.12
        take a running thread for an ended one (`Thread._wait_for_tstate_lock`).
        """
        while any(map(self._is_manager, threading.enumerate())):
            time.sleep(_GLANCE_S)

    def _is_manager(self, thread: threading.Thread) -> bool:
        target = getattr(thread, "_target", None)
        return getattr(target, "__name__", "") == "pool_manager_loop" and (
            self._pool._pool_manager in getattr(thread, "_args", ())
        )
