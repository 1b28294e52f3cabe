"""The worker of one device, as the parent process sees it: it sends tasks and waits with a time limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import Thread
from typing import Any, TypeVar

from autotune.devices.base import Binary, ContextLostError, LaunchError
from autotune.devices.device import Device
from autotune.errors import AutotuneError
from autotune.measure import tasks, verify
from autotune.measure.measurement import Measurement, Status
from autotune.measure.process import (
    PREPARE_TIMEOUT_S,
    Actor,
    ActorDied,
    ActorTimeout,
    ChildActor,
)
from autotune.measure.worker_state import Job, get_ready, open_device, prepare_job
from autotune.values import Configuration

R = TypeVar("R")

#: Longest time of verifying and timing one configuration.
MEASURE_TIMEOUT_S = 20.0
#: Longest time of a task that only prepares a job: the preparation has its own limit.
_EMPTY_TASK_S = 60.0
#: Number of standby processes. A process that dies without a message is replaced twice within a second, and
#: the imports for a GPU take longer than that.
STANDBYS = 2


class DeviceWorker:
    """The tasks on one device; the process of its actor holds the context."""

    def __init__(self, actor: Actor, timeout_s: float = MEASURE_TIMEOUT_S) -> None:
        self.actor, self.timeout_s = actor, timeout_s
        self._is_started = False

    def start(self, device: Device) -> None:
        """Start the process and make a context before the first job needs it; return at once."""
        self.actor.start()
        if not (self._is_started or self.actor.queues):
            self._is_started = True
            Thread(target=self._open, args=[device], daemon=True).start()

    def _open(self, device: Device) -> None:
        with suppress(Exception):  # the first job raises the same exception
            self.actor.ask(open_device, device, timeout_s=PREPARE_TIMEOUT_S)

    def measure(
        self,
        job: Job,
        configuration: Configuration,
        binary: Binary,
        *args: Any,
        task: Callable[..., Measurement] | None = None,
    ) -> Measurement:
        """Run a task on one configuration, by default `tasks.measure`, and return its measurement.

        A time-out or the death of the process is a measurement too. If a process dies without a message, a
        new process tries once more: the first may have been killed from outside.
        """
        failed = replace(tasks.draft_of(job, configuration, binary), status=Status.CRASHED)
        limit_s = self.timeout_s
        for _ in range(2):
            try:
                return self.ask(
                    task or tasks.measure, configuration, binary, *args, job=job, timeout_s=limit_s
                )
            except ActorTimeout:
                message = f"no result after {limit_s:g} s; the kernel hangs"
                return replace(failed, status=Status.TIMED_OUT, message=message)
            except ActorDied as error:
                failed = replace(failed, message=f"the process died twice: {error}")
        return failed

    def check(self, job: Job, configuration: Configuration, binary: Binary) -> Measurement:
        """Verify one configuration without timing it."""
        return self.measure(job, configuration, binary, task=tasks.verify_configuration)

    def check_at_once(self, job: Job, configuration: Configuration, binary: Binary) -> Measurement:
        """Run two launches of a verified configuration at the same time."""
        return self.measure(job, configuration, binary, task=tasks.check_at_once)

    def prepare(self, job: Job) -> None:
        """Make the context and upload the data of a job; raise `AutotuneError` if that fails."""
        self.ask(prepare_job, job=job, timeout_s=_EMPTY_TASK_S)

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
        except (ContextLostError, LaunchError, verify.WrongResult) as error:
            raise AutotuneError(f"prepare: {error}") from error

    def __enter__(self) -> DeviceWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.actor.close()


def device_actor(device: Device | None = None) -> ChildActor:
    """Return a process that measures on a device of this machine.

    It begins with all imports for ``device``. A CPU gets no standby process, because its start would disturb
    the measurements.
    """
    if device is None:
        return ChildActor(prepare=prepare_job)
    standbys = STANDBYS if device.is_cuda else 0
    return ChildActor(partial(get_ready, device), prepare_job, standbys)
