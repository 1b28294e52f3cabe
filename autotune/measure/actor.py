"""The contract of actors: they run tasks in another process, and can always be ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

R = TypeVar("R")

#: Longest time to make a context and upload the data of a job.
PREPARE_TIMEOUT_S = 600.0
#: The error of tasks whose actor was closed meanwhile.
ENDED = "the processes of the run were ended"


class ActorDied(Exception):
    """The process ended before it answered."""

    #: The turn that it died in; -1 before the first, and in a task without turns.
    turn = -1


class ActorTimeout(Exception):
    """A task, or one of its turns, took too long; its process was killed."""

    #: As of `ActorDied`.
    turn = -1


class Actor(Protocol):
    """A process that runs functions of modules, one at a time. Any thread may use it."""

    #: Whether it is on another machine, where the tasks of several threads wait. Else threads had
    #: better wait for their turn here.
    queues: bool

    def start(self) -> None:
        """Begin the process, which else happens at the first task; return at once."""

    def ask(
        self,
        task: Callable[..., R],
        *args: Any,
        job: Any = None,
        timeout_s: float,
        turn_limits_s: Sequence[float] = (),
        key: str = "",
    ) -> R:
        """Return ``task(*args)``, or raise what it raises.

        With ``job`` the process prepares that first, within `PREPARE_TIMEOUT_S`, and calls
        ``task(job, *args)``. With ``turn_limits_s`` the task gets `Turns` as its last argument, and
        none of its turns may take longer than its limit. Tasks of an equal ``key`` may share one answer.

        Raises `ActorDied`, `ActorTimeout`, and `AutotuneError` if the actor was closed.
        """

    def close(self) -> None:
        """End the process, whatever it does, for good. Any thread may, twice, and after Ctrl-C."""


class Turns:
    """The number of the turn that a task is at, in memory that two processes share.

    A task that hangs or dies cannot say where. The file has two integers: the turn, and a count of
    all turns so far.
    """

    def __init__(self, file: Path) -> None:
        self._cells = np.memmap(file, np.int64, "r+", shape=(2,))

    @classmethod
    def begin(cls, file: Path) -> Turns:
        """Write the file of a task that has not begun a turn."""
        np.array([-1, 0]).tofile(file)
        return cls(file)

    @property
    def running(self) -> int:
        """The turn that runs; -1 before the first."""
        return int(self._cells[0])

    def begin_turn(self, turn: int) -> None:
        """Note that a turn begins."""
        self._cells[0] = turn
        self._cells[1] += 1

    def watch(self, limits_s: Sequence[float]) -> Callable[[], bool]:
        """Return a function that says whether the turn that runs has taken longer than its limit."""
        seen, since = -1, time.monotonic()

        def is_stuck() -> bool:
            nonlocal seen, since
            count = int(self._cells[1])
            if count != seen:
                seen, since = count, time.monotonic()
            limit_s = limits_s[self.running] if self.running >= 0 else PREPARE_TIMEOUT_S
            return time.monotonic() - since > limit_s

        return is_stuck
