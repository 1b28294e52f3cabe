"""A process that evaluates references in the order of their need, while the run measures.

A reference in pure Python holds the interpreter's lock, and one in NumPy takes all cores and much memory. In
a process of its own it does not delay the tasks of a device.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from enum import IntEnum
from functools import partial
from queue import PriorityQueue
from typing import Any, TypeAlias, TypeVar

from autotune.arrays import in_threads, usable_cores
from autotune.data import device_reference
from autotune.data.prepare import prepare_dataset
from autotune.data.sight import Unseen, unseen_inputs
from autotune.devices.cupy_arrays import CupyArrays
from autotune.devices.device import Device
from autotune.errors import AutotuneError, MissingDependencyError
from autotune.kernel.snapshot import Origin, load_kernel
from autotune.kernel.spec import Kernel
from autotune.measure.process import ActorFailed, ChildActor
from autotune.values import Problem

R = TypeVar("R")

#: Time limit in seconds of a task: a user's reference may run for hours.
_LONGEST_S = 10 * 86_400.0
#: Number of cores for making a data set: its reference is evaluated several times at once.
_CORES_OF_DATA = 4

#: The source of a kernel, the fingerprint of its functions, and the device of the run.
_Source: TypeAlias = tuple[Origin, str, Device]


class Need(IntEnum):
    """The order of tasks; the first is done first."""

    #: Somebody waits.
    NOW = 0
    #: Data of the problem that is searched.
    SEARCH = 1
    #: Data of the problem that is searched next.
    NEXT = 2
    #: Other data of finals.
    FINALS = 3
    #: Inputs that verification would not notice.
    SIGHT = 4


class References:
    """The process of one kernel's references and the queue of its tasks; any thread may use it.

    The first task starts it, or `start` does.
    """

    def __init__(self, origin: Origin, fingerprint: str, device: Device) -> None:
        self._source: _Source = origin, fingerprint, device
        self._actor = ChildActor(prepare=open_kernel)
        self._tasks: PriorityQueue[tuple[int, int, Callable[[], object]]] = PriorityQueue()
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._has_started = False

    def start(self) -> None:
        """Start the process; return at once."""
        with self._lock:
            if not self._has_started:
                self._has_started = True
                threading.Thread(target=self._serve, daemon=True).start()
                self._actor.start()

    def submit(self, need: Need, task: Callable[..., R], *args: Any) -> Future[R]:
        """Run ``task(source, *args)`` in the process when nothing more urgent waits.

        The future has the exception of the task; `AutotuneError` if the process ended.
        """
        self.start()
        future: Future[R] = Future()

        def run() -> None:
            try:
                future.set_result(
                    self._actor.ask(task, *args, job=self._source, timeout_s=_LONGEST_S)
                )
            except ActorFailed as error:
                future.set_exception(
                    AutotuneError(
                        f"the process that evaluates the reference ended ({error}); if the machine has "
                        "too little memory, use a smaller problem"
                    )
                )
            except BaseException as error:
                future.set_exception(error)

        self._tasks.put((need, next(self._numbers), run))
        return future

    def close(self) -> None:
        """Kill the process; the futures of its tasks get an error."""
        self._actor.close()
        self._tasks.put((len(Need), next(self._numbers), self._end))

    def _serve(self) -> None:
        while True:
            _, _, run = self._tasks.get()
            if run == self._end:
                return
            run()

    def _end(self) -> None:
        """Mark the end of the queue."""


# ------------------------------------------------------------------ in the process

_kernel: Kernel | None = None


def open_kernel(source: _Source) -> None:
    """Load the kernel of this process; large references are evaluated on a GPU of CUDA."""
    global _kernel
    origin, fingerprint, device = source
    if device.is_cuda:
        with suppress(MissingDependencyError):  # NumPy serves
            device_reference.use(CupyArrays(device))
    _kernel = load_kernel(origin, fingerprint)


def make_datasets(_: _Source, wanted: Mapping[Problem, Sequence[str]], seed: int) -> None:
    """Make the data sets of several problems at once; each problem has its data sets' names."""
    assert _kernel is not None
    make_all(partial(prepare_dataset, _kernel), wanted, seed)


def make_all(
    make: Callable[[Problem, str, int], object], wanted: Mapping[Problem, Sequence[str]], seed: int
) -> None:
    """Call ``make(problem, name, seed)`` for the data sets of several problems at once, in this process."""

    def make_each(problem: Problem) -> None:
        for name in wanted[problem]:
            make(problem, name, seed)

    in_threads(make_each, wanted, usable_cores() // _CORES_OF_DATA)


def find_unseen(_: _Source, problems: Sequence[Problem], seed: int) -> tuple[Unseen, ...]:
    """Return the inputs whose missing elements verification would not notice."""
    assert _kernel is not None
    return unseen_inputs(_kernel, problems, seed)
