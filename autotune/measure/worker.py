"""The isolated process of one device, seen from outside: ask, wait at most so long, replace.

Knows that tasks can hang, kill their process or break their context; not what they do.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from autotune.devices.base import ContextLostError, LaunchError
from autotune.devices.binary import Binary
from autotune.devices.device import Device
from autotune.errors import AutotuneError
from autotune.measure import overlap, tasks
from autotune.measure.measurement import Measurement, Status
from autotune.measure.process import Child, ChildDied, Children, ChildTimeout
from autotune.measure.tasks import Job
from autotune.measure.timing import StoppingRule
from autotune.measure.verify import WrongResult
from autotune.values import Configuration

R = TypeVar("R")
P = ParamSpec("P")

#: Longest time to make a context and upload the data of a problem.
PREPARE_TIMEOUT_S = 600.0
#: Longest time one configuration may take to be verified and timed.
MEASURE_TIMEOUT_S = 20.0
#: Processes that stand by: one that dies without a word is replaced twice within a second, and to
#: import what a GPU needs takes longer than that.
STANDBYS = 2


class Worker:
    """One process that holds the context of one device.

    Processes begin with all imported that ``device`` needs. So many as ``standbys`` are kept to take
    the place of one that ends: a crash then costs a context and an upload, not an interpreter too.
    """

    #: Whether it takes tasks of several threads and keeps them for when it is free; else they had better wait.
    queues = False

    def __init__(
        self,
        measure_timeout_s: float = MEASURE_TIMEOUT_S,
        device: Device | None = None,
        standbys: int = 0,
    ) -> None:
        self.measure_timeout_s = measure_timeout_s
        self._begin = None if device is None else begin_for(device)
        self._most_standbys = standbys
        #: Held for a task, as the process does one at a time.
        self._turn = threading.Lock()
        self._children = Children()
        self._child: Child | None = None
        self._standbys: list[Child] = []
        #: Processes that had to be replaced so far.
        self.respawns = 0
        self._prepared: Job | None = None

    def start(self) -> None:
        """Begin the process, which else happens at the first task; returns at once."""
        with self._turn:
            if self._child is None:
                self._child = self._children.begin(self._begin)

    @property
    def pid(self) -> int:
        """Process id of the process; 0 before there is one."""
        return self._child.pid if self._child else 0

    def measure(
        self,
        job: Job,
        configuration: Configuration,
        binary: Binary,
        rule: StoppingRule,
        best_samples_ms: tuple[float, ...],
        best_cost: float = math.inf,
    ) -> Measurement:
        """Verify and time one configuration, whatever it does to the process.

        A process that dies without a word is tried once more in a fresh one: it may have been
        killed from outside.
        """
        return self._guarded(
            tasks.measure, job, configuration, binary, rule, best_samples_ms, best_cost
        )

    def check(self, job: Job, configuration: Configuration, binary: Binary) -> Measurement:
        """Verify one configuration without timing it."""
        return self._guarded(tasks.check, job, configuration, binary)

    def check_at_once(self, job: Job, configuration: Configuration, binary: Binary) -> Measurement:
        """Run two launches of a configuration that is right alone at the same time."""
        return self._guarded(overlap.check, job, configuration, binary)

    def prepare(self, job: Job) -> None:
        """Make the context and upload the data of a job.

        Raises
        ------
        AutotuneError
            If that fails; retrying would not help.
        """
        if self._prepared == job and self._child is not None and self._child.is_ready:
            return
        self._final(PREPARE_TIMEOUT_S, tasks.prepare, job)
        self._prepared = job
        with self._turn:
            self._keep_standbys()

    def run(
        self,
        timeout_s: float,
        task: Callable[..., R],
        *args: Any,
        is_stuck: Callable[[], bool] | None = None,
    ) -> R:
        """Run any task in the process; tasks of other threads wait. See `Child.ask`.

        Raises
        ------
        ChildTimeout, ChildDied
            If it took too long, or the process ended; the process has been replaced.
        AutotuneError
            If the worker was closed.
        """
        self.start()
        with self._turn:
            assert self._child is not None
            if not self._child.is_ready:  # killed while idle, or left by a Ctrl-C
                self._replace()
            try:
                return self._child.ask(timeout_s, task, *args, is_stuck=is_stuck)
            except (ChildDied, ChildTimeout):
                self._replace()
                raise

    def have(
        self, task: Callable[Concatenate[Worker, P], R], *args: P.args, **options: P.kwargs
    ) -> R:
        """Call a function that asks this process for several things, such as a race: where the process is."""
        return task(self, *args, **options)

    def renew(self) -> None:
        """Begin a new process: the context of this one is lost."""
        with self._turn:
            self._replace()

    def close(self) -> None:
        """End the process, whatever it is doing, for good. Any thread may, and twice."""
        self._children.end()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _guarded(
        self,
        task: Callable[..., Measurement],
        job: Job,
        configuration: Configuration,
        binary: Binary,
        *args: Any,
    ) -> Measurement:
        """Run a task that measures; a time-out or death of the process becomes a measurement, too."""
        failed = Measurement(
            configuration,
            Status.CRASHED,
            entries=binary.entries,
            binary_key=binary.key,
            device_uuid=job.device.uuid,
        )
        for _ in range(2):
            self.prepare(job)
            try:
                measured = self.run(self.measure_timeout_s, task, job, configuration, binary, *args)
            except ChildTimeout:
                message = f"no result after {self.measure_timeout_s:g} s; the kernel hangs"
                return replace(failed, status=Status.TIMED_OUT, message=message)
            except ChildDied as error:
                failed = replace(failed, message=f"the process died twice: {error}")
                continue
            except MemoryError as error:
                raise _no_memory(error) from error
            if measured.status is Status.CRASHED:  # the context is lost
                self.renew()
            return replace(measured, device_uuid=job.device.uuid)
        return failed

    def _final(self, timeout_s: float, task: Callable[..., R], *args: Any) -> R:
        """Run a task whose failure ends the run; one whose process was killed is begun again."""
        try:
            try:
                return self.run(timeout_s, task, *args)
            except ChildDied:
                return self.run(timeout_s, task, *args)
        except (ChildTimeout, ChildDied) as error:
            raise AutotuneError(f"the device process failed at {task.__name__}: {error}") from error
        except ContextLostError as error:
            self.renew()
            raise AutotuneError(f"{task.__name__}: the device context is lost: {error}") from error
        except (LaunchError, WrongResult) as error:
            raise AutotuneError(f"{task.__name__}: {error}") from error
        except MemoryError as error:
            raise _no_memory(error) from error

    def _keep_standbys(self) -> None:
        """Begin what is missing of the processes that stand by."""
        self._standbys = [child for child in self._standbys if child.is_ready]
        while len(self._standbys) < self._most_standbys:
            self._standbys.append(self._children.begin(self._begin))

    def _replace(self) -> None:
        """Retire a process that ended or whose context is broken."""
        if self._child is not None:
            self._child.end()
        self._prepared = None
        self._keep_standbys()
        first = self._standbys.pop(0) if self._standbys else None
        self._child = first or self._children.begin(self._begin)
        self.respawns += 1


def begin_for(device: Device) -> Callable[[], object]:
    """What the process of a device begins with."""
    return partial(tasks.get_ready, device)


def _no_memory(error: MemoryError) -> AutotuneError:
    return AutotuneError(
        f"not enough device memory: {error}; use a smaller problem, or see nvidia-smi for other "
        "processes that use the device"
    )
