"""Measures configurations of one problem on one or more devices: compile, prune, verify, time."""

from __future__ import annotations

import hashlib
import math
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import islice
from queue import SimpleQueue
from statistics import median
from typing import Any, Protocol, TypeAlias

from autotune.compiling.binaries import Compiled, CompileFailure
from autotune.compiling.job import CompileJob, compile_job
from autotune.devices.base import Binary
from autotune.devices.device import Device
from autotune.errors import AutotuneError, FleetError
from autotune.kernel import modules
from autotune.kernel.launches import LaunchSequence, exceeded_limit, launch_sequence
from autotune.kernel.spec import Kernel
from autotune.measure.compilers import MAX_SUGGESTED, CompilerPool
from autotune.measure.device_worker import DeviceWorker
from autotune.measure.measurement import Measurement, Status, with_metrics
from autotune.measure.timing import StoppingRule
from autotune.measure.worker_state import Job
from autotune.values import Configuration

#: Configurations that a GPU has at a time: one is measured, the next is prepared.
PER_DEVICE = 2
#: Maximum number of configurations in flight to a device of another machine.
_MAX_IN_FLIGHT = 8
#: Configurations that a CPU compiles before it measures them.
_CPU_BATCH = 16
#: Statuses of configurations without a binary.
_STATUS_OF_FAILURE = {
    CompileFailure.REJECTED: Status.COMPILE_FAILED,
    CompileFailure.RESOURCES: Status.PRUNED,
    CompileFailure.TIMED_OUT: Status.TIMED_OUT,
}
#: Maximum number of configurations whose compile job is cached.
_CACHED_JOBS = 1024
#: Seconds after which the main thread gives way to the thread with the next task of a device.
_SWITCH_S = 0.0002

#: The result of a compile, or a measurement that needs none.
_Outcome: TypeAlias = Compiled | Measurement
#: Measurements by their key; see `DeviceEvaluator.twins`.
_ByTwin: TypeAlias = dict[str, Measurement]


def nothing() -> None:
    """Return None: no compiled configuration is at hand."""


def ignore(configuration: Configuration) -> None:
    """Do nothing when a configuration begins."""


class Evaluator(Protocol):
    """The contract of an evaluator: `DeviceEvaluator`, or a replay of a recorded space."""

    def measure(
        self,
        configurations: Iterable[Configuration],
        begin: Callable[[Configuration], None] = ignore,
        ahead: int | None = None,
        at_hand: Callable[[], Configuration | None] = nothing,
    ) -> Iterable[Measurement]:
        """Yield one measurement per configuration, in any order.

        ``configurations`` is read only when devices and compilers need more, at most ``ahead`` before the
        results. The thread that reads the results calls ``begin`` with each configuration that a device
        begins. If a device would wait for compilers, it gets a configuration that was compiled before:
        ``at_hand`` returns one, or None.
        """

    def hint(self, configurations: Sequence[Configuration]) -> None:
        """Take note of configurations that probably come next; return at once."""

    def recall(self, measurement: Measurement) -> None:
        """Take note of a result of an earlier run."""


class DeviceEvaluator:
    """The evaluator of one device, or of several devices of one model.

    Times of two cards of one model differ by a few per cent. Early stops therefore compare a card only with
    its own best, and one card alone decides the winner. As a context manager the evaluator uploads data to
    all devices, and releases all but the first at the end. The job's device is the first; ``others`` are
    of the same model.
    """

    def __init__(
        self,
        kernel: Kernel,
        job: Job,
        compilers: CompilerPool,
        worker: DeviceWorker,
        rule: StoppingRule | None = None,
        others: Iterable[tuple[Device, DeviceWorker]] = (),
    ) -> None:
        self.kernel, self.job, self.compilers = kernel, job, compilers
        self._lanes = [
            _Lane(kernel, replace(job, device=device), its_worker, rule or StoppingRule())
            for device, its_worker in [(job.device, worker), *others]
        ]
        # Compiles would disturb times on a CPU, but not on a GPU while one core stays free.
        self.compiles_ahead = job.device.is_cuda
        self._per_device = PER_DEVICE if self.compiles_ahead or len(self._lanes) > 1 else 1
        #: Cached, because hints repeat.
        self.job_or_verdict = lru_cache(_CACHED_JOBS)(self._job_or_verdict)
        self._launches: Callable[[Configuration], LaunchSequence] = lru_cache(_CACHED_JOBS)(
            lambda c: launch_sequence(kernel, c, job.problem, job.device)
        )
        self._switch_s = sys.getswitchinterval()
        #: Key of binary, launch and workspaces, by configuration; an equal key means an equal measurement.
        self.twins: dict[Configuration, str] = {}

    def __enter__(self) -> DeviceEvaluator:
        # The caller's work on one result must not delay the thread with the next task. A thread that
        # computes gives way after 5 ms by default, which is longer than many tasks.
        self._switch_s = sys.getswitchinterval()
        sys.setswitchinterval(min(self._switch_s, _SWITCH_S))
        for lane in self._lanes:
            lane.prepare()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for measurements in progress, but not on Ctrl-C."""
        sys.setswitchinterval(self._switch_s)
        for lane in self._lanes:
            lane.end(wait=kind is None)
        del self._lanes[1:]

    def hint(self, configurations: Sequence[Configuration]) -> None:
        if not self.compiles_ahead:
            return
        jobs = []
        for stage in map(self.job_or_verdict, configurations[:MAX_SUGGESTED]):
            if isinstance(stage, CompileJob):
                jobs.append(stage)
                if len(jobs) == self.compilers.processes:
                    self.compilers.suggest(jobs)  # compilers begin while the others are prepared
        self.compilers.suggest(jobs)

    def recall(self, measurement: Measurement) -> None:
        for lane in self._lanes:
            if lane.job.device.uuid == (measurement.device_uuid or self.job.device.uuid):
                lane.recall(measurement)

    def measure(
        self,
        configurations: Iterable[Configuration],
        begin: Callable[[Configuration], None] = ignore,
        ahead: int | None = None,
        at_hand: Callable[[], Configuration | None] = nothing,
    ) -> Iterator[Measurement]:
        """Yield one measurement per configuration, in the order of finished compiles; a CPU keeps the order."""
        batch = _Batch(self, configurations, min(ahead or MAX_SUGGESTED, MAX_SUGGESTED), at_hand)
        try:
            while True:
                batch.take_up(any(lane.begun for lane in self._lanes))
                begun = 0
                while (lane := self._idlest()) and batch.supply():
                    configuration, outcome = batch.ready.popleft()
                    if not lane.begun:
                        begin(configuration)
                    lane.begin(self._measure_compiled, configuration, outcome, batch.done.put)
                    begun += 1
                if begun and self.has_room:
                    continue  # the next configuration may be compiled, too, and go to another device
                if batch.compiling == 0 and not any(lane.begun for lane in self._lanes):
                    return
                lane = batch.next_done()
                if lane not in self._lanes:
                    continue  # a compile has ended, or the device has failed
                try:
                    measurement = lane.begun[0].future.result()
                except AutotuneError as error:
                    self._give_up(lane, error)
                    batch.ready.extendleft(
                        (begun.configuration, begun.outcome) for begun in reversed(lane.begun)
                    )
                    continue
                lane.begun.popleft()
                yield measurement
                if lane.begun:
                    begin(lane.begun[0].configuration)
        finally:
            self.compilers.is_all_submitted = False
            for lane in self._lanes:
                while lane.begun:
                    lane.begun.popleft().future.cancel()

    def go_on(self, job: Job) -> None:
        """Go on with a job that has expected outputs; times so far no longer stop a measurement early."""
        self.job = job
        for lane in self._lanes:
            lane.go_on(replace(job, device=lane.job.device))

    def verified(self, measurement: Measurement) -> Measurement:
        """Verify the configuration of a pending measurement; return the measurement with its new status."""
        configuration = measurement.configuration
        binary = self.binary(configuration)
        if binary is None:
            message = "it compiled before, and does not compile now"
            return replace(measurement, status=Status.COMPILE_FAILED, message=message)
        found = self._lanes[0].worker.check(self.job, configuration, binary)
        measurement = measurement.verified(found)
        return with_metrics(measurement, self.kernel, self.job.problem, self.job.device)

    def binary(self, configuration: Configuration) -> Binary | None:
        """Return the binary of a configuration; None if it does not compile."""
        return self.compilers.result(self._compile_job(configuration)).binary

    def _job_or_verdict(self, configuration: Configuration) -> CompileJob | Measurement:
        with modules.running(self.kernel.folder):  # once for all functions of the space file
            return self._planned(configuration)

    def _planned(self, configuration: Configuration) -> CompileJob | Measurement:
        if self.kernel.allows(configuration, self.job.problem):
            why = exceeded_limit(self._launches(configuration), None, self.job.device)
        else:
            why = f"it requires what {self.job.problem} does not meet"
        if why:
            return Measurement(configuration, Status.PRUNED, why)
        return self._compile_job(configuration)

    def _compile_job(self, configuration: Configuration) -> CompileJob:
        return compile_job(
            self.kernel,
            configuration,
            self.job.problem,
            self.job.device,
            plan=self._launches(configuration),
        )

    def _measure_compiled(
        self,
        lane: _Lane,
        configuration: Configuration,
        outcome: _Outcome,
        before: Future[Any] | None,
    ) -> Measurement:
        """Prepare while another thread uses the device; then measure."""
        twin: str | Measurement = (
            self._twin_key(configuration, outcome) if isinstance(outcome, Compiled) else outcome
        )
        if before is not None:
            wait([before])
        if isinstance(twin, Measurement):
            return twin
        assert isinstance(outcome, Compiled) and outcome.binary is not None
        return lane.measure_binary(configuration, outcome.binary, outcome.seconds, twin)

    def _twin_key(self, configuration: Configuration, compiled: Compiled) -> str | Measurement:
        """Return the key of binary, launch and workspaces; a measurement if no binary can be launched."""
        binary, seconds = compiled.binary, compiled.seconds
        if binary is None:
            status = _STATUS_OF_FAILURE[compiled.failure]
            return Measurement(configuration, status, compiled.message, compile_s=seconds)
        launches = self._launches(configuration)
        excess = exceeded_limit(launches, binary, self.job.device)
        if excess:
            return Measurement(
                configuration, Status.PRUNED, excess, entries=binary.entries, compile_s=seconds
            )
        # A binary that is correct with a large workspace may write beyond a small one.
        workspaces = self.kernel.workspaces(configuration, self.job.problem, self.job.device)
        called = repr((launches, workspaces)).encode()
        twin = self.twins[configuration] = hashlib.sha256(binary.code + called).hexdigest()
        return twin

    @property
    def has_room(self) -> bool:
        """True if a device can take another configuration."""
        return self._idlest() is not None

    def _idlest(self) -> _Lane | None:
        """Return the device with the fewest configurations; None if all devices have enough."""
        lane = min(self._lanes, key=lambda lane: len(lane.begun))
        return lane if len(lane.begun) < max(self._per_device, lane.in_flight) else None

    def _give_up(self, lane: _Lane, error: AutotuneError) -> None:
        """Continue without a device that failed; raise the error if it is the first, which decides the winner."""
        if lane is self._lanes[0] or isinstance(error, FleetError):
            raise error
        self._lanes.remove(lane)
        lane.end(wait=False)
        device = lane.job.device
        warnings.warn(
            f"{device.selector} ({device.uuid}) failed, and the run continues on the other "
            f"devices: {error}",
            stacklevel=2,
        )


class _Batch:
    """Configurations between their source and a device, taken when compilers need work."""

    def __init__(
        self,
        evaluator: DeviceEvaluator,
        configurations: Iterable[Configuration],
        ahead: int,
        at_hand: Callable[[], Configuration | None],
    ) -> None:
        self._evaluator, self._compilers = evaluator, evaluator.compilers
        self._ahead = ahead
        self._source, self._at_hand = iter(configurations), at_hand
        self._is_dry = False
        #: Configurations that a device can take, in the order of compiling.
        self.ready: deque[tuple[Configuration, _Outcome]] = deque()
        self.compiling = 0
        #: Devices that have finished a configuration, and configurations that are compiled.
        self.done: SimpleQueue[_Lane | tuple[Configuration, Future[Compiled]]] = SimpleQueue()

    def take_up(self, is_measuring: bool) -> None:
        """Give the compilers more work; on a CPU wait for all measurements before and for the compilers after."""
        if not self._evaluator.compiles_ahead:
            if not (is_measuring or self.ready):
                self._compilers.is_all_submitted = True
                self._take(self._source, min(_CPU_BATCH, self._ahead))
            return
        while not self._is_dry and len(self.ready) + self.compiling < self._ahead:
            if self._compilers.has_enough and (is_measuring or self.ready or self.compiling):
                return  # jobs of others alone would end the search
            self._compilers.is_all_submitted = self._is_dry = not self._take(self._source)
            if not self.done.empty() or (self._evaluator.has_room and self.supply()):
                return  # the device gets its work first

    def supply(self) -> bool:
        """Return whether a configuration is ready; while compilers work, use a configuration at hand."""
        if not self.ready and self.compiling:
            self._take(iter(self._at_hand, None))
        return bool(self.ready)

    def _take(self, configurations: Iterator[Configuration], count: int = 1) -> bool:
        """Submit configurations to the compilers unless they are pruned; return False if there are none.

        Compiled configurations go to `ready`; others go to `done` when their compile ends. A CPU waits for all.
        """
        jobs = [
            (configuration, self._evaluator.job_or_verdict(configuration))
            for configuration in islice(configurations, count)
        ]
        stages = [
            (configuration, self._compilers.submit(job) if isinstance(job, CompileJob) else job)
            for configuration, job in jobs
        ]
        if not self._evaluator.compiles_ahead:
            wait([stage for _, stage in stages if isinstance(stage, Future)])
        for configuration, stage in stages:
            if isinstance(stage, Measurement):
                self.ready.append((configuration, stage))
            elif stage.done():
                self.ready.append((configuration, stage.result()))
            else:
                self.compiling += 1
                stage.add_done_callback(partial(self._compiled, configuration))
        return bool(stages)

    def _compiled(self, configuration: Configuration, future: Future[Compiled]) -> None:
        self.done.put((configuration, future))

    def next_done(self) -> _Lane | None:
        """Wait for a device to finish a configuration; None if a compile ends first."""
        done = self.done.get()
        if isinstance(done, _Lane):
            return done
        configuration, future = done
        self.compiling -= 1
        self.ready.append((configuration, future.result()))
        return None


@dataclass(frozen=True)
class _Begun:
    configuration: Configuration
    outcome: _Outcome
    future: Future[Measurement]


class _Lane:
    """One device with its worker, its best times, and threads: one measures, others prepare the next tasks."""

    def __init__(self, kernel: Kernel, job: Job, worker: DeviceWorker, rule: StoppingRule) -> None:
        self.worker = worker
        # A slower configuration may need less energy, so its time does not stop it early.
        self.rule = replace(rule, false_stop=0.0) if job.objective.needs_energy else rule
        self._kernel = kernel
        self._threads = ThreadPoolExecutor(_MAX_IN_FLIGHT)
        #: Last task of the threads.
        self._last: Future[Any] | None = None
        #: Shortest round trip to the device so far.
        self._round_trip_s = math.inf
        #: Time of the last configuration on the device.
        self._busy_s = 0.0
        #: Configurations in progress, in the order of their begin.
        self.begun: deque[_Begun] = deque()
        #: The job, its measurements, and the pending measurements of an earlier job without expected outputs.
        #: One attribute, because threads read it meanwhile.
        self._known: tuple[Job, _ByTwin, _ByTwin] = job, {}, {}
        self.go_on(job)

    @property
    def job(self) -> Job:
        return self._known[0]

    def go_on(self, job: Job) -> None:
        """Go on with a job, without the times so far; what was timed for a claim is not timed again."""
        pending = {k: m for k, m in dict(self._known[1]).items() if m.status is Status.PENDING}
        self._known = job, {}, {key: row for key, row in pending.items() if row.samples_ms}
        #: Samples of the fastest configuration so far, to compare with; empty if there is none.
        self._best_samples_ms: tuple[float, ...] = ()
        self._best_cost = math.inf
        #: UUID of the card of these samples; in a fleet another card may replace it.
        self._best_uuid = job.device.uuid

    def prepare(self) -> None:
        """Upload data in a thread; the first measurement raises the error if that fails."""
        self._last = self._threads.submit(self.worker.prepare, self.job)

    def begin(
        self,
        task: Any,
        configuration: Configuration,
        outcome: _Outcome,
        done: Callable[[_Lane], None],
    ) -> None:
        before = None if self.worker.actor.queues else self._last
        future = self._threads.submit(task, self, configuration, outcome, before)
        self._last = future
        self.begun.append(_Begun(configuration, outcome, future))
        future.add_done_callback(lambda _: done(self))

    def end(self, wait: bool) -> None:
        """End the threads; later configurations get new ones."""
        self._threads.shutdown(wait=wait, cancel_futures=True)
        self._threads, self._last = ThreadPoolExecutor(_MAX_IN_FLIGHT), None

    @property
    def in_flight(self) -> int:
        """Number of configurations in flight that keeps a device of another machine busy."""
        if not self.worker.actor.queues or not self._busy_s:
            return 0
        return min(_MAX_IN_FLIGHT, 1 + math.ceil(self._round_trip_s / self._busy_s))

    def measure_binary(
        self, configuration: Configuration, binary: Binary, compile_s: float, twin: str
    ) -> Measurement:
        """Measure a configuration, or reuse the measurement with an equal key."""
        job, known, timed = self._known
        if twin not in known and twin in timed:
            known[twin] = timed[twin].verified(self.worker.check(job, configuration, binary))
        elif twin not in known:
            best, begun_s = (self._best_samples_ms, self._best_cost), time.monotonic()
            known[twin] = found = self.worker.measure(job, configuration, binary, self.rule, *best)
            self._busy_s = found.verify_s + found.measure_s
            round_trip_s = time.monotonic() - begun_s - self._busy_s
            self._round_trip_s = min(self._round_trip_s, round_trip_s)
        measurement = replace(known[twin], configuration=configuration, compile_s=compile_s)
        measurement = with_metrics(measurement, self._kernel, job.problem, job.device)
        if job is self.job:
            self._compare_with(measurement)
        return measurement

    def recall(self, measurement: Measurement) -> None:
        """Compare later configurations with this measurement if it is the best of its card."""
        if measurement.status is Status.OK:
            self._compare_with(measurement)

    def _compare_with(self, measurement: Measurement) -> None:
        if measurement.status not in (Status.OK, Status.PENDING) or not measurement.samples_ms:
            return
        uuid = measurement.device_uuid or self.job.device.uuid
        if uuid != self._best_uuid:
            self._best_uuid, self._best_samples_ms, self._best_cost = uuid, (), math.inf
        best_ms = median(self._best_samples_ms) if self._best_samples_ms else math.inf
        if median(measurement.samples_ms) < best_ms:
            self._best_samples_ms = measurement.samples_ms
        cost = self.job.objective.cost(measurement)
        self._best_cost = min(self._best_cost, math.inf if cost is None else cost)
