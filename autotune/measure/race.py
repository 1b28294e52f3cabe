"""Times contenders in interleaved rounds, even if one of them fails a launch or ends the process.

Half of this module runs in the worker process and takes samples. The other half watches the worker from the
parent process. A contender that fails leaves the race with a reason, and the others continue.
`autotune.run.verdict` names the winner.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any, TypeVar

from autotune.compiling.binaries import code_hash
from autotune.data.dataset import RANDOM
from autotune.devices.base import (
    Binary,
    ContextLostError,
    Executor,
    LaunchError,
    Poison,
    Timer,
)
from autotune.devices.device import UNKNOWN_CLOCKS, Clocks
from autotune.errors import AutotuneError
from autotune.measure import tasks, vendor_call, verify, worker_state
from autotune.measure.device_worker import DeviceWorker
from autotune.measure.measurement import Energy, Measurement, Status
from autotune.measure.process import PREPARE_TIMEOUT_S, ActorDied, ActorFailed, Turns, retire
from autotune.measure.timing import FINALS_S, Caches, Take, Timing, measure_energy, taking_of
from autotune.measure.verify import NotDeterministic, WrongResult
from autotune.measure.worker_state import Job
from autotune.values import Configuration, Problem

T = TypeVar("T")

#: Number of clean calls, and of batches of hot calls, of each finalist after the rounds.
_SINGLE_CALLS = 5
#: Minimum time limit of a race that starts again.
_MIN_RESTART_S = 1.0
#: Minimum number of rounds of energy windows, even after the time limit: fewer rounds prove no difference.
_MIN_WINDOWS = 6
#: Share of the time for rounds of samples if energy windows follow.
_SAMPLES_SHARE = 0.3
#: Longest time of one energy window, on a device whose counter is updated ten times a second.
_WINDOW_S = 2.0
#: Maximum number of launches of a finalist that are checked after its race.
_MAX_CHECKED_LAUNCHES = 64
#: No checked launch begins after this time in seconds.
CHECKED_LAUNCHES_S = 0.05
#: Maximum number of runs, on the same data, whose bits are compared for a finalist declared deterministic.
_MAX_RUNS = 100
#: Minimum number of these runs.
_MIN_RUNS = 3
#: No such run begins after this time in seconds, on a GPU.
_RUNS_S = 0.25
#: The same on a CPU.
_RUNS_ON_CPU_S = 0.05
#: Status of a contender by the error of its launches.
_STATUS: dict[type[Exception], Status] = {
    LaunchError: Status.LAUNCH_FAILED,
    MemoryError: Status.LAUNCH_FAILED,
    WrongResult: Status.WRONG_RESULT,
    NotDeterministic: Status.NOT_DETERMINISTIC,
}


@dataclass(frozen=True)
class Contender:
    """A configuration in a race, or a vendor's call by its name."""

    configuration: Configuration = field(default_factory=Configuration)
    #: Binary to launch; None for a vendor's call, and after the race.
    binary: Binary | None = None
    #: Name of the vendor's call; empty for a configuration.
    vendor: str = ""
    #: True for a vendor's call that may answer calls, so that it is verified like a configuration.
    answers: bool = False
    #: Measurement of the configuration by its search.
    row: Measurement | None = None
    #: True if the kernel declares that every run of it gives the same bits.
    deterministic: bool = False
    #: Sizes at which the finals found the configuration correct.
    verified: tuple[Problem, ...] = ()
    #: After the race, the `autotune.compiling.binaries.code_hash` of the binary; empty for a vendor's call.
    code: str = ""

    @property
    def registers(self) -> int:
        """Registers per thread; 0 if unknown."""
        return self.row.largest_function.registers or 0 if self.row else 0


@dataclass(frozen=True)
class Failure:
    """The reason why a contender left the race."""

    status: Status
    message: str


@dataclass(frozen=True)
class ContenderSamples:
    """The samples of one contender; empty for a vendor's call that is not available on this device."""

    #: Milliseconds of each round, taken by `Race.timing`.
    times_ms: tuple[float, ...] = ()
    #: Median of clean calls after the rounds; None if not taken.
    clean_ms: float | None = None
    #: Median of calls back to back after the rounds; None if not taken.
    hot_ms: float | None = None
    #: One energy window of each energy round.
    energy: tuple[Energy, ...] = ()
    #: Number of runs on the same data that gave the same bits; 0 if bits were not compared.
    identical_runs: int = 0
    #: What decides the results of a vendor's call; see `autotune.kernel.declaration.Baseline`.
    pins: str = ""
    #: Why there are no samples; None if the contender did not fail.
    failure: Failure | None = None


@dataclass(frozen=True)
class Race:
    """Contenders and their samples, in the same order. The k-th times of all contenders are from one round."""

    contenders: tuple[Contender, ...]
    samples: tuple[ContenderSamples, ...]
    #: Cache state and way of launching, the same for all contenders.
    timing: Timing
    #: Clocks before or after the rounds, whichever are worse.
    clocks: Clocks = UNKNOWN_CLOCKS
    #: The device that the worker used.
    device_uuid: str = ""

    def continued(self, later: Race) -> Race:
        """Return this race with the rounds of a later race of the same contenders after its own."""
        samples = tuple(
            replace(
                first,
                times_ms=first.times_ms + more.times_ms,
                failure=first.failure or more.failure,
            )
            for first, more in zip(self.samples, later.samples, strict=True)
        )
        return replace(later, samples=samples, clocks=self.clocks.worst(later.clocks))

    @property
    def finalists(self) -> tuple[Contender, ...]:
        """Configurations among the contenders."""
        return tuple(contender for contender in self.contenders if not contender.vendor)

    @property
    def failures(self) -> dict[int, Failure]:
        """Failures of contenders by position."""
        found = ((place, samples.failure) for place, samples in enumerate(self.samples))
        return {place: failure for place, failure in found if failure is not None}


@dataclass(frozen=True)
class RaceRules:
    """The length of a race, and its measurements."""

    rounds: int
    seed: int
    #: No further round begins after this time.
    max_seconds: float
    #: Launch without graphs, to compare with times that were taken in this way.
    by_stream: bool = False
    #: Rounds of energy windows after the rounds of samples.
    windows: int = 0
    #: Also time each contender clean and hot, and compare the bits of contenders declared deterministic.
    finals: bool = False


def race(worker: DeviceWorker, job: Job, contenders: Sequence[Contender], rules: RaceRules) -> Race:
    """Time contenders interleaved, in a new random order every round.

    Interleaved rounds of energy windows follow, until the time is over but at least `_MIN_WINDOWS`.

    A contender leaves the race after a failed launch, a lost context, a hang, or the second death of the
    process. (The first death may have an outside cause.) If the process was lost, the others race again
    from the beginning in the remaining time.

    Raises
    ------
    AutotuneError
        If the process fails and no contender is at fault.
    """
    failures: dict[int, Failure] = {}
    suspects: set[int] = set()
    end, least_s = time.monotonic() + rules.max_seconds, min(_MIN_RESTART_S, rules.max_seconds)
    while True:
        entered = [place for place in range(len(contenders)) if place not in failures]
        # The worker does not need the measurements of the search.
        running = [replace(contenders[place], row=None) for place in entered]
        limits_s = [
            PREPARE_TIMEOUT_S if contender.vendor else worker.timeout_s for contender in running
        ]
        left_s = max(least_s, end - time.monotonic())
        windows_s = rules.windows * len(running) * _WINDOW_S
        try:
            heat = worker.ask(
                run_heat,
                running,
                replace(rules, max_seconds=left_s),
                job=job,
                timeout_s=left_s + PREPARE_TIMEOUT_S + windows_s,
                turn_limits_s=limits_s,
            )
        except ActorFailed as error:
            culprit = entered[error.turn] if error.turn >= 0 else -1
            if isinstance(error, ActorDied) and culprit not in suspects:
                suspects.add(culprit)
            elif culprit < 0:
                raise AutotuneError(
                    f"the device process failed during the race: {error}"
                ) from error
            elif isinstance(error, ActorDied):
                message = f"the process died twice: {error}"
                failures[culprit] = Failure(Status.CRASHED, message)
            else:
                message = f"no sample in {limits_s[error.turn]:g} s; the kernel hangs"
                failures[culprit] = Failure(Status.TIMED_OUT, message)
            continue
        by_place = dict(zip(entered, heat.samples, strict=True))
        failures |= {
            place: samples.failure for place, samples in by_place.items() if samples.failure
        }
        if heat.context_lost:
            continue
        return Race(
            # Without binaries: a race may come back from another machine.
            tuple(map(_without_binary, contenders)),
            tuple(
                by_place.get(place) or ContenderSamples(failure=failures[place])
                for place in range(len(contenders))
            ),
            Timing.of(job.caches, heat.launched_by),
            heat.clocks,
            heat.device_uuid,
        )


def _without_binary(contender: Contender) -> Contender:
    code = code_hash(contender.binary) if contender.binary else ""
    return replace(contender, binary=None, code=code)


@dataclass(frozen=True)
class Heat:
    """The samples of one attempt at a race; only failures if a contender broke the device context."""

    samples: tuple[ContenderSamples, ...]
    #: How all contenders were launched; see `autotune.devices.base.Timer`.
    launched_by: str = ""
    clocks: Clocks = UNKNOWN_CLOCKS
    device_uuid: str = ""
    context_lost: bool = False


# ------------------------------------------------------------------ in the worker


@dataclass(frozen=True)
class Entrant:
    """A contender that is ready for timing."""

    timer: Timer
    caches: Caches
    #: Runs once on the working buffers, with a data set's scalars; None for a vendor's call that does not answer.
    run: Callable[[str], object] | None = None
    scratch: verify.Scratch = field(default_factory=dict)
    deterministic: bool = False
    #: See `ContenderSamples`.
    pins: str = ""

    def samples_ms(self, count: int) -> list[float]:
        """Take samples with the contents of the caches that the job requests."""
        return taking_of(self.timer, self.caches)(count)

    def verify(self, launches: int, compare_runs: bool) -> int:
        """Check further launches after the race; return how many runs on the same data gave the same bits.

        The first launch runs as it was timed. Then each contender that may answer calls runs on every data set,
        at most `_MAX_CHECKED_LAUNCHES` times and until `CHECKED_LAUNCHES_S`, but at least once on each. Each
        launch finds the outputs and workspaces of the launch before, from other data. A configuration that
        reuses an old result is then wrong, and each launch is a chance for a rare fault to show.

        If the contender is declared deterministic, the bits of at most `_MAX_RUNS` runs are compared,
        until `_RUNS_S` (`_RUNS_ON_CPU_S`) but at least `_MIN_RUNS`.
        """
        executor, data, _ = worker_state.current()
        tasks.verify_timed(self.timer, launches, self.scratch, afresh=True)
        if self.run is None:
            return 0
        end = time.monotonic() + CHECKED_LAUNCHES_S
        names = list(data.datasets)
        for further in range(_MAX_CHECKED_LAUNCHES):
            if further >= len(names) and time.monotonic() > end:
                break
            name = names[further % len(names)]
            data.restore(name)
            self.run(name)
            launches += 1
            verify.verify_last(data, name, launches, with_harm=False)
        verify.verify_last(data, name, launches)
        if not (compare_runs and self.deterministic):
            return 0
        end = time.monotonic() + (_RUNS_S if executor.device.is_cuda else _RUNS_ON_CPU_S)
        return verify.identical_runs(
            data,
            RANDOM,
            partial(self.run, RANDOM),
            lambda done: done < _MAX_RUNS and (done < _MIN_RUNS or time.monotonic() < end),
        )


def take(job: Job, contender: Contender) -> Entrant | None:
    """Prepare a contender for timing; None if a vendor's call is not available.

    Workspaces get another poison than in `verify`: a configuration that relies on a poison is then wrong.
    """
    if contender.vendor:
        return _take_vendor(job, contender)
    assert contender.binary is not None
    ready = worker_state.launchable(job, contender.configuration, contender.binary)
    ready.data.poison_scratch(Poison.FINITE)
    ready.data.refresh(RANDOM, wholly=True)
    module, steps = ready.bind(RANDOM)
    ready.executor.run(module, steps)  # the first launch pays for loading
    return Entrant(
        ready.executor.timer(module, steps, job.is_flushed),
        job.caches,
        lambda name: ready.executor.run(*ready.bind(name)),
        ready.scratch,
        ready.deterministic,
    )


def _take_vendor(job: Job, contender: Contender) -> Entrant | None:
    found = vendor_call.prepared(job, contender.vendor, contender.answers)
    if found is None:
        return None
    executor, *_ = worker_state.current()
    return Entrant(
        executor.timer_of(found.calls[RANDOM], job.is_flushed),
        job.caches,
        found.run if contender.answers else None,
        deterministic=contender.deterministic,
        pins=found.pins,
    )


def launch_alike(timers: Sequence[Timer], by_stream: bool = False) -> None:
    """Make all timers launch on the stream if ``by_stream``, or if one of them cannot be captured."""
    if by_stream or any(timer.launched_by == "stream" for timer in timers):
        for timer in timers:
            timer.by_stream()


def interleaved(
    executor: Executor, takes: Sequence[Take], rounds: int, seed: int, max_seconds: float
) -> list[list[float]]:
    """Return the milliseconds of every round for each contender; each round has a new random order."""
    order = list(range(len(takes)))
    samples: list[list[float]] = [[] for _ in takes]
    for take in takes:
        take(1)  # the first launch pays for loading
    shuffle = random.Random(seed)
    start = time.perf_counter()
    for _ in range(rounds):
        shuffle.shuffle(order)
        taken, _ = worker_state.unthrottled(executor, lambda: [takes[i](1) for i in order])
        for index, times in zip(order, taken, strict=True):
            samples[index] += times
        if time.perf_counter() - start > max_seconds:
            break
    return samples


@dataclass
class _Attempts:
    """Runs steps of contenders, each in its turn; skips contenders that failed."""

    turns: Turns
    #: Failures by position.
    failures: dict[int, Failure] = field(default_factory=dict)

    def step(self, place: int, step: Callable[..., T], *args: Any) -> T | None:
        """Run a step of a contender; None if this step or an earlier step failed."""
        if place in self.failures:
            return None
        self.turns.begin_turn(place)
        try:
            return step(*args)
        except tuple(_STATUS) as error:
            status = next(found for kind, found in _STATUS.items() if isinstance(error, kind))
            self.failures[place] = Failure(status, str(error))
            return None


def run_heat(job: Job, contenders: Sequence[Contender], rules: RaceRules, turns: Turns) -> Heat:
    """Race in this process, and retire the process if the context is lost."""
    attempts = _Attempts(turns)
    try:
        heat = _heat(job, contenders, rules, attempts)
    except ContextLostError as error:
        retire()
        attempts.failures[turns.current] = Failure(Status.CRASHED, str(error))
        heat = Heat((ContenderSamples(),) * len(contenders), context_lost=True)
    samples = [
        ContenderSamples(failure=attempts.failures[place]) if place in attempts.failures else taken
        for place, taken in enumerate(heat.samples)
    ]
    return replace(heat, samples=tuple(samples))


def _heat(job: Job, contenders: Sequence[Contender], rules: RaceRules, attempts: _Attempts) -> Heat:
    step = attempts.step
    taken = {place: step(place, take, job, contender) for place, contender in enumerate(contenders)}
    entrants = {place: entrant for place, entrant in taken.items() if entrant is not None}
    launch_alike([entrant.timer for entrant in entrants.values()], rules.by_stream)
    executor, *_ = worker_state.current()
    before = executor.clocks()
    end_s = time.monotonic() + rules.max_seconds
    samples_s = rules.max_seconds * (_SAMPLES_SHARE if rules.windows else 1.0)

    def taking(place: int) -> Take:
        return lambda count: step(place, entrants[place].samples_ms, count) or []

    takes = [taking(place) for place in entrants]
    rounds = interleaved(executor, takes, rules.rounds, rules.seed, samples_s)
    times = dict(zip(entrants, rounds, strict=True))
    clocks = before.worst(executor.clocks())

    def single_ms(place: int, take: Take) -> float | None:
        calls = step(place, take, _SINGLE_CALLS) if rules.finals else None
        return median(calls) if calls else None

    clean = {place: single_ms(place, entrant.timer.clean) for place, entrant in entrants.items()}
    hot = {place: single_ms(place, entrant.timer.hot) for place, entrant in entrants.items()}
    windows: dict[int, list[Energy]] = {place: [] for place in entrants}
    order, shuffle = list(entrants), random.Random(rules.seed)
    for done in range(rules.windows):
        if done >= _MIN_WINDOWS and time.monotonic() > end_s:
            break
        shuffle.shuffle(order)
        for place in order:
            timer = entrants[place].timer
            if window := step(place, measure_energy, executor, timer, FINALS_S):
                windows[place].append(window)
    runs = {
        place: step(place, entrant.verify, len(times[place]), rules.finals)
        for place, entrant in entrants.items()
    }
    samples = {
        place: ContenderSamples(
            tuple(times[place]),
            clean[place],
            hot[place],
            tuple(windows[place]),
            runs[place] or 0,
            entrants[place].pins,
        )
        for place in entrants
    }
    return Heat(
        tuple(samples.get(place, ContenderSamples()) for place in range(len(contenders))),
        next((entrant.timer.launched_by for entrant in entrants.values()), ""),
        clocks,
        executor.device.uuid,
    )
