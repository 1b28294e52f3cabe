"""The isolated process of one device, seen from outside: ask, wait at most so long, replace.

Knows that tasks can hang, kill their process or break their context; not what they do.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import BrokenExecutor, wait
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar

from autotune.devices.base import ContextLostError, LaunchError
from autotune.devices.binary import Binary
from autotune.devices.device import Device
from autotune.errors import AutotuneError
from autotune.measure import tasks
from autotune.measure.measurement import Measurement, Status
from autotune.measure.pool import ChildPool
from autotune.measure.process import awaited, begin_child
from autotune.measure.tasks import Job, Reply
from autotune.measure.timing import StoppingRule
from autotune.measure.verify import WrongResult
from autotune.values import Configuration

R = TypeVar("R")

#: Longest time to make a context and upload the data of a problem.
PREPARE_TIMEOUT_S = 600.0
#: Longest time one configuration may take to be verified and timed.
MEASURE_TIMEOUT_S = 20.0
#: Processes that stand by: one that dies without a word is replaced twice within a second, and to
#: import what a GPU needs takes longer than that.
_STANDBYS = 2
#: Between two looks at whether a task is stuck.
_GLANCE_S = 0.1


class WorkerDied(Exception):
    """The process ended in the middle of a task."""


class WorkerTimeout(Exception):
    """A task took too long; its process was killed."""


class Worker:
    """One process that holds the context of one device.

    Parameters
    ----------
    measure_timeout_s : float
        Longest time one configuration may take.
    standby_for : Device, optional
        Keep processes with all imported that this device needs, to take the place of one that ends:
        a crash then costs a context and an upload, not an interpreter too.
    """

    def __init__(
        self,
        measure_timeout_s: float = MEASURE_TIMEOUT_S,
        standby_for: Device | None = None,
    ) -> None:
        self.measure_timeout_s = measure_timeout_s
        self._standby_for = standby_for
        self._standbys: list[ChildPool] = []
        #: Processes that had to be replaced so far.
        self.respawns = 0
        self._prepared: Job | None = None
        self._closed = False
        self._pool = self._new_pool()

    def measure(
        self,
        job: Job,
        configuration: Configuration,
        binary: Binary,
        rule: StoppingRule,
        best_samples_ms: tuple[float, ...],
    ) -> Measurement:
        """Verify and time one configuration, whatever it does to the process.

        A process that dies without a word is tried once more in a fresh one: it may have been
        killed from outside.
        """
        return self._guarded(
            job,
            configuration,
            binary,
            tasks.measure,
            job,
            configuration,
            binary,
            rule,
            best_samples_ms,
        )

    def check(self, job: Job, configuration: Configuration, binary: Binary) -> Measurement:
        """Verify one configuration without timing it."""
        return self._guarded(job, configuration, binary, tasks.check, job, configuration, binary)

    def prepare(self, job: Job) -> None:
        """Make the context and upload the data of a job.

        Raises
        ------
        AutotuneError
            If that fails; retrying would not help.
        """
        if self._prepared == job:
            return
        self._final(PREPARE_TIMEOUT_S, tasks.prepare, job)
        self._prepared = job
        self._keep_standbys()

    def run(
        self,
        timeout_s: float,
        task: Callable[..., R],
        *args: Any,
        is_stuck: Callable[[], bool] | None = None,
    ) -> R:
        """Run any task in the process.

        Parameters
        ----------
        timeout_s : float
            Longest time it may take.
        task : callable
            A function of a module.
        *args
            Its arguments.
        is_stuck : callable, optional
            Asked now and then; once it is true the process is killed, before its time.

        Raises
        ------
        WorkerTimeout
            If it took too long; the process has been replaced.
        WorkerDied
            If the process ended; it has been replaced.
        """
        if self._closed:  # by another thread than the one that measures
            raise AutotuneError("the device process was ended with its run")
        if not self._pool.active:
            self._replace()  # killed while idle, at which pebble gives up the whole pool
        try:
            future = self._pool.schedule(task, args=list(args), timeout=timeout_s)
            while is_stuck is not None and not wait([future], _GLANCE_S).done:
                if is_stuck():
                    future.cancel()  # which kills the process
                    self._replace()
                    raise WorkerTimeout("no progress")
            result: R = awaited(future, lambda: self._closed)
            return result
        except BrokenExecutor as error:
            self._replace()
            raise WorkerDied("killed before the task began") from error
        except FutureTimeout as error:
            self._replace()
            raise WorkerTimeout(f"no answer after {timeout_s:g} s") from error
        except OSError as error:
            if type(error).__name__ != "ProcessExpired":
                raise
            self._replace()
            raise WorkerDied(_death(error)) from error

    def renew(self) -> None:
        """Begin a new process: the context of this one is lost."""
        self._replace()

    def close(self) -> None:
        """End the process, whatever it is doing, for good."""
        self._closed = True
        self._pool.end()
        for one in self._standbys:
            one.end()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _guarded(
        self,
        job: Job,
        configuration: Configuration,
        binary: Binary,
        task: Callable[..., Reply],
        *args: Any,
    ) -> Measurement:
        """Run a task that yields an outcome; a time-out or death becomes one too."""
        draft = {
            "configuration": configuration,
            "entries": binary.entries,
            "binary_key": binary.key,
            "device_uuid": job.device.uuid,
        }
        message = ""
        for _ in range(2):
            self.prepare(job)
            try:
                outcome = self.run(self.measure_timeout_s, task, *args)
            except WorkerTimeout:
                message = f"no result after {self.measure_timeout_s:g} s; the kernel hangs"
                return Measurement(status=Status.TIMED_OUT, message=message, **draft)  # type: ignore[arg-type]
            except WorkerDied as error:
                message = f"the process died twice: {error}"
                continue
            except MemoryError as error:
                raise _no_memory(error) from error
            if outcome.context_lost:
                self._replace()
            return replace(outcome.measurement, device_uuid=job.device.uuid)
        return Measurement(status=Status.CRASHED, message=message, **draft)  # type: ignore[arg-type]

    def _final(self, timeout_s: float, task: Callable[..., R], *args: Any) -> R:
        """Run a task whose failure ends the run; one whose process was killed is begun again."""
        try:
            try:
                return self.run(timeout_s, task, *args)
            except WorkerDied:
                return self.run(timeout_s, task, *args)
        except (WorkerTimeout, WorkerDied) as error:
            raise AutotuneError(f"the device process failed at {task.__name__}: {error}") from error
        except ContextLostError as error:
            self._replace()
            raise AutotuneError(f"{task.__name__}: the device context is lost: {error}") from error
        except (LaunchError, WrongResult) as error:
            raise AutotuneError(f"{task.__name__}: {error}") from error
        except MemoryError as error:
            raise _no_memory(error) from error

    def _new_pool(self) -> ChildPool:
        return ChildPool(1, begin_child, "measuring")

    def _keep_standbys(self) -> None:
        """Begin what is missing of the processes that stand by."""
        if self._standby_for is None or self._closed:
            return
        for one in [one for one in self._standbys if not one.active]:  # killed while idle
            self._standbys.remove(one)
            one.end()
        while len(self._standbys) < _STANDBYS:
            self._standbys.append(self._new_pool())
            self._standbys[-1].schedule(tasks.get_ready, args=[self._standby_for])

    def _replace(self) -> None:
        """Retire a process that ended or whose context is broken."""
        self._pool.end()
        self._prepared = None
        self.respawns += 1
        if self._closed:
            return
        self._keep_standbys()
        self._pool = self._standbys.pop(0) if self._standbys else self._new_pool()


def _no_memory(error: MemoryError) -> AutotuneError:
    return AutotuneError(
        f"not enough device memory: {error}; use a smaller problem, or see nvidia-smi for other "
        "processes that use the device"
    )


def _death(error: OSError) -> str:
    code = getattr(error, "exitcode", None)
    if isinstance(code, int) and code < 0:
        return f"killed by signal {-code}"
    return f"exit code {code}"
