"""Device processes and compilers that go on to the next test: to start both takes half a second.

For tests of runs, not of processes: those of a worker that dies or hangs start their own.
"""

import os
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

import pytest

from autotune.devices.device import Device
from autotune.errors import AutotuneError
from autotune.measure.device_worker import device_actor
from autotune.measure.process import ENDED, ChildActor
from autotune.run import bench

#: Variables that every test has of its own, which no process of a run reads.
_EACH_TEST = ("HOME", "PYTEST_CURRENT_TEST")


class KeptActor:
    """An actor for one run; another run gets its process, unless a task is left in it."""

    queues = False

    def __init__(self, actor: ChildActor, idle: list[ChildActor]) -> None:
        self._actor, self._idle = actor, idle
        self._tasks: list[None] = []
        self._is_closed = False

    def start(self) -> None:
        self._actor.start()

    def ask(self, *args: Any, **options: Any) -> Any:
        if self._is_closed:
            raise AutotuneError(ENDED)
        self._tasks.append(None)
        try:
            return self._actor.ask(*args, **options)
        finally:
            self._tasks.pop()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._tasks:
            self._actor.close()
        else:
            self._idle.append(self._actor)


class KeptProcesses:
    """Idle processes by what they were begun for."""

    def __init__(self) -> None:
        self._idle: defaultdict[tuple[object, ...], list[ChildActor]] = defaultdict(list)

    def lend(self, patch: pytest.MonkeyPatch) -> None:
        """Let runs of this process use them."""
        patch.setattr(bench, "device_actor", self._device_actor)
        patch.setattr(bench, "ChildActor", self._compiler)

    def close(self) -> None:
        """End all that are idle."""
        for actor in chain.from_iterable(self._idle.values()):
            actor.close()

    def _device_actor(self, device: Device) -> KeptActor:
        return self._kept(partial(device_actor, device), device)

    def _compiler(self, begin: "partial[None]") -> KeptActor:
        return self._kept(partial(ChildActor, begin), begin.func, begin.args)

    def _kept(self, make: Callable[[], ChildActor], *key: object) -> KeptActor:
        """Return an actor for a key, and for all that a process has from its parent."""
        settings = {name: value for name, value in os.environ.items() if name not in _EACH_TEST}
        idle = self._idle[(*key, str(settings), sys.executable, *sys.path)]
        return KeptActor(idle.pop() if idle else make(), idle)
