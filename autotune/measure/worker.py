"""Measure on one device by an actor: a hang, crash or lost context costs one configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from autotune.devices.base import Binary, ContextLostError, LaunchError
from autotune.devices.device import Device
from autotune.errors import AutotuneError
from autotune.measure import tasks
from autotune.measure.measurement import Measurement, Status
from autotune.measure.process import Actor, ActorDied, ActorTimeout, ChildActor
from autotune.measure.tasks import Job
from autotune.measure.verify import WrongResult
from autotune.values import Configuration

R = TypeVar("R")

#: Longest time one configuration may take to be verified and timed.
MEASURE_TIMEOUT_S = 20.0
#: Longest time of a task that only prepares: the preparation has a limit of its own.
_NOTHING_S = 60.0
#: Processes that stand by: one that dies without a word is replaced twice within a second, and to
#: import what a GPU needs takes longer than that.
STANDBYS = 2


class DeviceWorker:
    """The measurements on one device, whose context an actor's process holds."""

    def __init__(self, actor: Actor, timeout_s: float = MEASURE_TIMEOUT_S) -> None:
        self.actor, self.timeout_s = actor, timeout_s

    def measure(
        self,
        job: Job,
        configuration: Configuration,
        binary: Binary,
        *how: Any,
        task: Callable[..., Measurement] = tasks.measure,
    ) -> Measurement:
        """Verify and time one configuration, whatever it does to the process; see `tasks.measure`.

        A time-out or death of the process becomes a measurement, too. A process that dies without a
        word is tried once more in a fresh one: it may have been killed from outside.
        """
        failed = replace(tasks.draft_of(job, configuration, binary), status=Status.CRASHED)
        limit_s = self.timeout_s
        for _ in range(2):
            try:
                return self.ask(task, configuration, binary, *how, job=job, timeout_s=limit_s)
            except ActorTimeout:
                message = f"no result after {limit_s:g} s; the kernel hangs"
                return replace(failed, status=Status.TIMED_OUT, message=message)
            except ActorDied as error:
                failed = replace(failed, message=f"the process died twice: {error}")
        return failed

    def check(self, job: Job, configuration: Configuration, binary: Binary) -> Measurement:
        """Verify one configuration without timing it."""
        return self.measure(job, configuration, binary, task=tasks.check)

    def check_at_once(self, job: Job, configuration: Configuration, binary: Binary) -> Measurement:
        """Run two launches of a configuration that is right alone at the same time."""
        return self.measure(job, configuration, binary, task=tasks.check_at_once)

    def prepare(self, job: Job) -> None:
        """Make the context and upload the data of a job; raise `AutotuneError` if that fails."""
        self.ask(_nothing, job=job, timeout_s=_NOTHING_S)

    def ask(
        self,
        task: Callable[..., R],
        *args: Any,
        job: Job,
        timeout_s: float,
        turn_limits_s: Sequence[float] = (),
    ) -> R:
        """Run any task on a job; see `Actor.ask`. Raises `AutotuneError` if the job cannot be prepared."""
        try:
            return self.actor.ask(
                task, *args, job=job, timeout_s=timeout_s, turn_limits_s=turn_limits_s
            )
        except MemoryError as error:
            raise AutotuneError(
                f"not enough device memory: {error}; use a smaller problem, or see nvidia-smi for "
                "other processes that use the device"
            ) from error
        except ContextLostError as error:
            raise AutotuneError(f"prepare: the device context is lost: {error}") from error
        except (LaunchError, WrongResult) as error:
            raise AutotuneError(f"prepare: {error}") from error

    def __enter__(self) -> DeviceWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.actor.close()


def device_actor(device: Device | None = None) -> ChildActor:
    """Return a process that measures on a device of this machine.

    It begins with all imports that ``device`` needs. On a CPU no process stands by: one that starts
    would disturb what is timed.
    """
    if device is None:
        return ChildActor(prepare=tasks.prepare)
    standbys = STANDBYS if device.leaves_host_free else 0
    return ChildActor(begin_for(device), tasks.prepare, standbys)


def begin_for(device: Device) -> Callable[[], object]:
    """Return the function that the process of a device begins with."""
    return partial(tasks.get_ready, device)


def _nothing(_: Job) -> None:
    pass
