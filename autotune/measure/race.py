"""Times contenders in interleaved rounds, even if one of them fails a launch or ends the process.

One half runs in the worker and takes samples; the other watches it from outside. A contender that fails
leaves with its reason, and the others race on. `autotune.run.verdict` names the winner.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any, TypeVar

import numpy as np

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
from autotune.measure import tasks, verify, worker_state
from autotune.measure.device_worker import DeviceWorker
from autotune.measure.launchable import Launchable
from autotune.measure.measurement import Energy, Measurement, Status
from autotune.measure.process import PREPARE_TIMEOUT_S, ActorDied, ActorFailed, Turns, retire
from autotune.measure.timing import FINALS_S, Caches, Take, Timing, measure_energy, taking_of
from autotune.measure.verify import NotDeterministic, WrongResult
from autotune.measure.worker_state import Job
from autotune.values import Configuration

T = TypeVar("T")

#: Clean calls, and batches of hot ones, of each finalist after the rounds.
_SINGLE_CALLS = 5
#: Shortest time of a race that begins again.
_LEAST_SECONDS = 1.0
#: Least number of rounds of energy windows, even if the time is over: fewer prove no difference.
_LEAST_WINDOWS = 6
#: Share of the time for rounds of samples if windows follow, and the longest time of one window on a device
#: whose counter moves ten times a second.
_SAMPLES_SHARE, _WINDOW_S = 0.3, 2.0
#: Launches of a finalist that are checked after its race, and the seconds in which they begin.
_FURTHER, FURTHER_S = 64, 0.05
#: Runs on the same data of a finalist that is declared deterministic, whose bits are compared; the
#: seconds in which they begin, on a GPU and on a CPU; and the fewest runs.
_RUNS, _RUNS_S, _RUNS_ON_CPU_S, _LEAST_RUNS = 100, 0.25, 0.05, 3
#: The status of a contender by the error of its launches.
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
    #: What is launched; None for a vendor's call, and after the race.
    binary: Binary | None = None
    #: Name of the vendor's call; empty for a configuration.
    vendor: str = ""
    #: Measurement of the configuration by its search.
    row: Measurement | None = None
    #: Whether the kernel declares that it gives the same bits in every run of this problem.
    deterministic: bool = False

    @property
    def registers(self) -> int:
        """Return registers per thread; 0 where unknown."""
        return self.row.largest_function.registers or 0 if self.row else 0


@dataclass(frozen=True)
class Failure:
    """The reason why a contender is out."""

    status: Status
    message: str


@dataclass(frozen=True)
class ContenderSamples:
    """The samples of one contender. A vendor's call that this device cannot make has none."""

    #: Milliseconds of each round, taken as `Race.timing` says.
    times_ms: tuple[float, ...] = ()
    #: Medians of clean calls, and of calls back to back, after the rounds; None if not taken.
    clean_ms: float | None = None
    hot_ms: float | None = None
    #: One energy window of each energy round.
    energy: tuple[Energy, ...] = ()
    #: Runs on the same data that gave the same bits; 0 where this was not asked.
    identical_runs: int = 0
    #: Why there are no samples; None if the contender did not fail.
    failure: Failure | None = None


@dataclass(frozen=True)
class Race:
    """Contenders and their samples, in the same order. The k-th times of all are of one round."""

    contenders: tuple[Contender, ...]
    samples: tuple[ContenderSamples, ...]
    #: Caches and launching, the same for all contenders.
    timing: Timing
    #: The worse of before and after the rounds.
    clocks: Clocks = UNKNOWN_CLOCKS
    #: The device that the worker used.
    device_uuid: str = ""

    @property
    def finalists(self) -> tuple[Contender, ...]:
        """Return the configurations among the contenders."""
        return tuple(contender for contender in self.contenders if not contender.vendor)

    @property
    def failures(self) -> dict[int, Failure]:
        """Return why contenders are out, by position."""
        found = ((place, samples.failure) for place, samples in enumerate(self.samples))
        return {place: failure for place, failure in found if failure is not None}


@dataclass(frozen=True)
class RaceRules:
    """The length of a race, and what is measured."""

    rounds: int
    seed: int
    #: No further round begins after this time.
    max_seconds: float
    #: Launch all contenders one by one, to compare with times that were taken in this way.
    by_stream: bool = False
    #: Rounds of energy windows after the rounds of samples.
    windows: int = 0
    #: Time each contender clean and hot too, and compare the bits of those declared deterministic.
    finals: bool = False


def race(worker: DeviceWorker, job: Job, contenders: Sequence[Contender], rules: RaceRules) -> Race:
    """Time contenders interleaved, in a new random order every round.

    Rounds of energy windows follow, interleaved too: as many as there is time for, but
    `_LEAST_WINDOWS` at least.

    A launch that fails puts its contender out. A lost context, a hang or the second death of the
    process does too (the first may have come from outside). The others then race again from the
    beginning, in what is left of the time.

    Raises
    ------
    AutotuneError
        If the process fails where no contender can be named for it.
    """
    failures: dict[int, Failure] = {}
    suspects: set[int] = set()
    end, least_s = time.monotonic() + rules.max_seconds, min(_LEAST_SECONDS, rules.max_seconds)
    while True:
        entered = [place for place in range(len(contenders)) if place not in failures]
        # The rows of the search are not needed there.
        running = [replace(contenders[place], row=None) for place in entered]
        limits_s = [PREPARE_TIMEOUT_S if one.vendor else worker.timeout_s for one in running]
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
                raise AutotuneError(f"the device process failed at the race: {error}") from error
            elif isinstance(error, ActorDied):
                message = f"the process died twice: {error}"
                failures[culprit] = Failure(Status.CRASHED, message)
            else:
                message = f"no sample in {limits_s[error.turn]:g} s; the kernel hangs"
                failures[culprit] = Failure(Status.TIMED_OUT, message)
            continue
        by_place = dict(zip(entered, heat.samples, strict=True))
        failures |= {place: s.failure for place, s in by_place.items() if s.failure}
        if heat.context_lost:
            continue
        return Race(
            # Binaries stay where they are: a race may come back from another machine.
            tuple(replace(contender, binary=None) for contender in contenders),
            tuple(
                by_place.get(place) or ContenderSamples(failure=failures[place])
                for place in range(len(contenders))
            ),
            Timing.of(job.caches, heat.launched_by),
            heat.clocks,
            heat.device_uuid,
        )


@dataclass(frozen=True)
class Heat:
    """The samples of one heat; only failures if a contender broke the device context."""

    samples: tuple[ContenderSamples, ...]
    #: How all contenders were launched; see `autotune.devices.base.Timer`.
    launched_by: str = ""
    clocks: Clocks = UNKNOWN_CLOCKS
    device_uuid: str = ""
    context_lost: bool = False


# ------------------------------------------------------------------ in the worker


@dataclass(frozen=True)
class Entrant:
    """A contender that is ready to be timed."""

    timer: Timer
    caches: Caches
    #: None for a vendor's call.
    ready: Launchable | None = None

    def samples_ms(self, count: int) -> list[float]:
        """Take samples from the caches that the job asks for."""
        return taking_of(self.timer, self.caches)(count)

    def verify(self, launches: int, compare_runs: bool) -> int:
        """Check further launches after the race; return how many runs on the same data gave the same bits.

        The first is launched as it was timed. Then follow launches of a configuration on every data
        set in turn: `_FURTHER`, or those of `FURTHER_S`, but one turn at least.
        Each finds the outputs and workspaces of the launch before, from other data. A result that is
        kept there instead of computed is then wrong. A fault that is rare has as many chances to show.

        Runs are compared for configurations declared deterministic: `_RUNS`, or those of `_RUNS_S`
        (`_RUNS_ON_CPU_S`), but at least `_LEAST_RUNS`.
        """
        executor, data, _ = worker_state.current()
        ready = self.ready
        tasks.verify_timed(self.timer, launches, ready.scratch if ready else {}, afresh=True)
        if ready is None:
            return 0
        end = time.monotonic() + FURTHER_S
        names = list(data.datasets)
        for further in range(_FURTHER):
            if further >= len(names) and time.monotonic() > end:
                break
            name = names[further % len(names)]
            data.restore(name)
            executor.run(*ready.bind(name))
            launches += 1
            verify.verify_last(data, name, launches, with_harm=False)
        verify.verify_last(data, name, launches)
        if not (compare_runs and ready.deterministic):
            return 0
        end = time.monotonic() + (_RUNS_S if executor.device.is_cuda else _RUNS_ON_CPU_S)
        return verify.identical_runs(
            data,
            RANDOM,
            partial(executor.run, *ready.bind(RANDOM)),
            lambda done: done < _RUNS and (done < _LEAST_RUNS or time.monotonic() < end),
        )


def take(job: Job, contender: Contender) -> Entrant | None:
    """Get a contender ready to be timed; None if a vendor's call cannot be made.

    Workspaces hold another poison than in `verify`: a configuration that relies on one is wrong later.
    """
    if contender.vendor:
        try:
            return _take_vendor(job, contender.vendor)
        except (ContextLostError, LaunchError, MemoryError, WrongResult):
            raise
        except Exception as error:  # a vendor's library raises what it likes
            raise LaunchError(f"{type(error).__name__}: {error}") from error
    assert contender.binary is not None
    ready = Launchable(job, contender.configuration, contender.binary)
    ready.data.poison_scratch(Poison.FINITE)
    ready.data.refresh(RANDOM, wholly=True)
    module, steps = ready.bind(RANDOM)
    ready.executor.run(module, steps)  # the first launch pays for loading
    return Entrant(ready.executor.timer(module, steps, job.is_flushed), job.caches, ready)


def _take_vendor(job: Job, name: str) -> Entrant | None:
    worker_state.prepare_job(job)
    executor, data, kernel = worker_state.current()
    baselines = {(known.name, known.backend): known for known in kernel.baselines}
    baseline = baselines.get((name, job.device.backend))
    if baseline is None:  # OpenCL has no vendor library to call
        return None
    data.refresh(RANDOM, wholly=True)
    call = executor.time_calls(baseline.prepare, vendor_arguments(data))
    if call is None:  # the library has nothing like this problem
        return None
    call()
    wrong = [result for result in verify.outputs(data, RANDOM) if not result.is_correct]
    if wrong:
        raise WrongResult(f"the baseline {name} computes something else: {wrong[0]}")
    return Entrant(executor.timer_of(call, job.is_flushed), job.caches)


def vendor_arguments(data: verify.DeviceData) -> Mapping[str, Any]:
    """Return the arguments of a vendor call: buffers with type and shape, and scalars."""
    arrays = {
        argument.name: (data.buffers[argument.name], np.dtype(argument.dtype), argument.shape)
        for argument in data.arguments
        if argument.name in data.buffers
    }
    return {**arrays, **data.scalars(RANDOM)}


def launch_alike(timers: Sequence[Timer], by_stream: bool = False) -> None:
    """Have all timers launch one by one if that is asked, or if one of them cannot be captured."""
    if by_stream or any(timer.launched_by == "stream" for timer in timers):
        for timer in timers:
            timer.by_stream()


def interleaved(
    executor: Executor, takes: Sequence[Take], rounds: int, seed: int, max_seconds: float
) -> list[list[float]]:
    """Return the milliseconds of every round, each in a new random order."""
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
    """The steps of contenders: each in its turn, and none after one that failed."""

    turns: Turns
    #: By position.
    failures: dict[int, Failure] = field(default_factory=dict)

    def step(self, place: int, step: Callable[..., T], *args: Any) -> T | None:
        """Run a step of a contender; None if it fails, or did before."""
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
    """Race in this process; end if the context is lost."""
    attempts = _Attempts(turns)
    try:
        heat = _heat(job, contenders, rules, attempts)
    except ContextLostError as error:
        retire()
        attempts.failures[turns.running] = Failure(Status.CRASHED, str(error))
        heat = Heat((ContenderSamples(),) * len(contenders), context_lost=True)
    samples = [
        ContenderSamples(failure=attempts.failures[place]) if place in attempts.failures else taken
        for place, taken in enumerate(heat.samples)
    ]
    return replace(heat, samples=tuple(samples))


def _heat(job: Job, contenders: Sequence[Contender], rules: RaceRules, attempts: _Attempts) -> Heat:
    step = attempts.step
    taken = {place: step(place, take, job, one) for place, one in enumerate(contenders)}
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
        if done >= _LEAST_WINDOWS and time.monotonic() > end_s:
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
            tuple(times[place]), clean[place], hot[place], tuple(windows[place]), runs[place] or 0
        )
        for place in entrants
    }
    return Heat(
        tuple(samples.get(place, ContenderSamples()) for place in range(len(contenders))),
        next((entrant.timer.launched_by for entrant in entrants.values()), ""),
        clocks,
        executor.device.uuid,
    )
