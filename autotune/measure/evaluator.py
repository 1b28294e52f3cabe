"""Measures configurations of one problem on one device: compile > prune > verify > time.

Yields measurements in the order asked, each as soon as it is made. Knows nothing of search or
storage; `replay.ReplayEvaluator` honours the same contract over a recorded space.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from statistics import median
from typing import Any, Protocol

from autotune.devices.binary import Binary
from autotune.kernel.launches import LaunchSequence, launch_sequence, over_limit
from autotune.kernel.spec import Kernel
from autotune.measure.compiler import Compiled, CompileJob, CompilerPool, compile_job
from autotune.measure.measurement import Measurement, Status
from autotune.measure.tasks import Job
from autotune.measure.timing import StoppingRule
from autotune.measure.worker import Worker
from autotune.values import Configuration

#: Configurations that a device has at a time: one that it measures, and the next, which gets ready
#: meanwhile.
PER_DEVICE = 2

#: Configurations whose compile job is remembered.
_KNOWN = 1024


class Evaluator(Protocol):
    """Whatever can say how fast configurations are."""

    def measure(self, configurations: Sequence[Configuration]) -> Iterable[Measurement]:
        """Yield one measurement per configuration, in order."""

    def hint(self, configurations: Sequence[Configuration]) -> None:
        """Learn what will likely be asked next; returns at once."""

    def recall(self, measurement: Measurement) -> None:
        """Learn a result that was remembered instead of measured."""


class DeviceEvaluator:
    """Measures on a device.

    Parameters
    ----------
    kernel : Kernel
        What to measure.
    job : Job
        Problem, device and data.
    compilers : CompilerPool
        Shared by all problems of a run.
    worker : Worker
        Shared by all problems of a run.
    rule : StoppingRule
        How long to time.
    """

    def __init__(
        self,
        kernel: Kernel,
        job: Job,
        compilers: CompilerPool,
        worker: Worker,
        rule: StoppingRule | None = None,
    ) -> None:
        self.kernel, self.job = kernel, job
        self.compilers, self.worker = compilers, worker
        self.rule = rule or StoppingRule()
        #: Samples of the best so far: what others are held against. Empty where there is none.
        self.best_samples_ms: tuple[float, ...] = ()
        self._same: dict[str, Measurement] = {}
        #: By configuration, oldest first; no more than `_KNOWN`.
        self._known: dict[Configuration, CompileJob | Measurement] = {}
        # A CPU cannot compile and be timed at once; a GPU can, while one core stays free.
        self._ahead = job.device.leaves_host_free

    def hint(self, configurations: Sequence[Configuration]) -> None:
        if self._ahead:
            self.compilers.suggest(
                job for one in configurations if isinstance(job := self.planned(one), CompileJob)
            )

    def measure(self, configurations: Sequence[Configuration]) -> Iterator[Measurement]:
        planned = {one: self.planned(one) for one in configurations}
        jobs = {one: job for one, job in planned.items() if isinstance(job, CompileJob)}
        for job in jobs.values():
            self.compilers.submit(job)
        waiting = {} if self._ahead else {one: self.compilers.result(j) for one, j in jobs.items()}
        for configuration in configurations:
            if configuration in waiting:
                yield self._measured(configuration, waiting[configuration])
            else:
                yield self.carried_out(configuration, planned[configuration])

    def recall(self, measurement: Measurement) -> None:
        time_ms = measurement.median_ms if measurement.status is Status.OK else None
        if time_ms is not None and (self.best_ms is None or time_ms < self.best_ms):
            self.best_samples_ms = measurement.samples_ms

    @property
    def best_ms(self) -> float | None:
        """Median of the best so far."""
        return median(self.best_samples_ms) if self.best_samples_ms else None

    def binary(self, configuration: Configuration) -> Binary | None:
        """The binary of a configuration; None where it does not compile."""
        return self.compilers.result(self._compile_job(configuration)).binary

    def carried_out(
        self,
        configuration: Configuration,
        planned: CompileJob | Measurement,
        before: Future[Any] | None = None,
    ) -> Measurement:
        """Measure what was planned, here or by another evaluator for the same kind of device.

        Parameters
        ----------
        configuration : Configuration
            What to measure.
        planned : CompileJob or Measurement
            See `planned`.
        before : Future, optional
            What another thread does on the device until then: meanwhile this one waits for a binary
            and gets ready.
        """
        if isinstance(planned, Measurement):
            return planned
        return self._measured(configuration, self.compilers.result(planned), before)

    def planned(self, configuration: Configuration) -> CompileJob | Measurement:
        """What to compile, or the verdict on what need not be; remembered, as hints repeat."""
        if configuration not in self._known:
            why = self._pruned(configuration)
            self._known[configuration] = (
                Measurement(configuration, Status.PRUNED, why)
                if why
                else self._compile_job(configuration)
            )
            while len(self._known) > _KNOWN:
                del self._known[next(iter(self._known))]
        return self._known[configuration]

    def _compile_job(self, configuration: Configuration) -> CompileJob:
        return compile_job(self.kernel, configuration, self.job.problem, self.job.device)

    def _plan(self, configuration: Configuration) -> LaunchSequence:
        return launch_sequence(self.kernel, configuration, self.job.problem, self.job.device)

    def _pruned(self, configuration: Configuration) -> str:
        """Why a configuration need not be compiled; empty where it must be."""
        if not self.kernel.allows(configuration, self.job.problem):
            return f"it requires what {self.job.problem} does not meet"
        return over_limit(self._plan(configuration), None, self.job.device)

    def _measured(
        self, configuration: Configuration, compiled: Compiled, before: Future[Any] | None = None
    ) -> Measurement:
        """Measure what compiled; equal binary, launch and workspaces share one measurement."""
        if compiled.binary is None:
            return Measurement(
                configuration,
                _status_without_binary(compiled),
                compiled.message,
                compile_s=compiled.seconds,
            )
        launches = self._plan(configuration)
        excess = over_limit(launches, compiled.binary, self.job.device)
        if excess:
            return Measurement(
                configuration,
                Status.PRUNED,
                excess,
                entries=compiled.binary.entries,
                compile_s=compiled.seconds,
            )
        # A binary that is right with a large workspace may write beyond a small one.
        workspaces = self.kernel.workspaces(configuration, self.job.problem, self.job.device)
        called = repr((launches, workspaces)).encode()
        twin = hashlib.sha256(compiled.binary.code + called).hexdigest()
        if before is not None:
            wait([before])
        if twin not in self._same:
            self._same[twin] = self.worker.measure(
                self.job, configuration, compiled.binary, self.rule, self.best_samples_ms
            )
        self.recall(self._same[twin])
        return replace(self._same[twin], configuration=configuration, compile_s=compiled.seconds)


def _status_without_binary(compiled: Compiled) -> Status:
    if compiled.over_limit:
        return Status.PRUNED
    return Status.TIMED_OUT if compiled.timed_out else Status.COMPILE_FAILED
