"""Times contenders in interleaved rounds, whatever one of them does to launch, context or process.

One half runs in the worker and takes samples; the other watches it from outside. A contender that
fails is out with its reason and the others race on. `autotune.run.verdict` names the winner.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TypeVar

from autotune.devices.base import Binary, ContextLostError, Executor, LaunchError
from autotune.devices.device import UNKNOWN_CLOCKS, Clocks
from autotune.errors import AutotuneError
from autotune.measure import energy, tasks
from autotune.measure.actor import PREPARE_TIMEOUT_S, ActorDied, ActorTimeout, Turns
from autotune.measure.measurement import Energy, Measurement, Status
from autotune.measure.process import retire
from autotune.measure.tasks import Job
from autotune.measure.timing import Timing
from autotune.measure.verify import NotDeterministic, WrongResult
from autotune.measure.worker import DeviceWorker
from autotune.values import Configuration

T = TypeVar("T")

#: Clean calls, and batches of hot ones, of each finalist after the rounds.
_SINGLE_CALLS = 5
#: Shortest time of a race that begins again.
_LEAST_SECONDS = 1.0
#: Rounds of energy windows, however little time there is: fewer prove no difference.
_LEAST_WINDOWS = 6
#: Share of the time for rounds of samples where windows follow, and the longest time of one window
#: on a device whose counter moves ten times a second.
_SAMPLES_SHARE, _WINDOW_S = 0.3, 2.0
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
    #: Medians of clean calls, and of calls back to back, after the rounds; None where not taken.
    clean_ms: float | None = None
    hot_ms: float | None = None
    #: One energy window of each energy round.
    energy: tuple[Energy, ...] = ()
    #: Runs on the same data that gave the same bits; 0 where this was not asked.
    identical_runs: int = 0
    #: Why there are no samples; None where the contender did not fail.
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
        except (ActorTimeout, ActorDied) as error:
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
    """The samples of one heat; of failures alone where a contender broke the device context."""

    samples: tuple[ContenderSamples, ...]
    #: How all contenders were launched; see `autotune.devices.base.Timer`.
    launched_by: str = ""
    clocks: Clocks = UNKNOWN_CLOCKS
    device_uuid: str = ""
    context_lost: bool = False


# ------------------------------------------------------------------ in the worker


def run_heat(job: Job, contenders: Sequence[Contender], rules: RaceRules, turns: Turns) -> Heat:
    """Race in this process; ends where the context is lost."""
    failures = dict[int, Failure]()
    try:
        found = (_entrant(job, one, place, turns, failures) for place, one in enumerate(contenders))
        entrants = [entrant for entrant in found if entrant is not None]
        for entrant in entrants if rules.by_stream else ():
            entrant.by_stream()
        executor, _ = tasks.current()
        before = executor.clocks()
        end = time.monotonic() + rules.max_seconds
        samples_s = rules.max_seconds * (_SAMPLES_SHARE if rules.windows else 1.0)
        times = tasks.interleaved(executor, entrants, rules.rounds, rules.seed, samples_s)
        clocks = before.worst(executor.clocks())
        calls = _SINGLE_CALLS if rules.finals else 0
        clean = [entrant.clean(calls) for entrant in entrants]
        hot = [entrant.hot(calls) for entrant in entrants]
        energies = _windows(executor, entrants, rules.windows, rules.seed, end)
        for entrant, taken in zip(entrants, times, strict=True):
            entrant.verify(len(taken), rules.finals)
    except ContextLostError as error:
        retire()
        failures[turns.running] = Failure(Status.CRASHED, str(error))
        samples = (ContenderSamples(failure=failures.get(i)) for i in range(len(contenders)))
        return Heat(tuple(samples), context_lost=True)
    taken_of = {
        entrant.place: ContenderSamples(
            tuple(times[index]),
            median(clean[index]) if clean[index] else None,
            median(hot[index]) if hot[index] else None,
            tuple(energies[index]),
            entrant.identical_runs,
        )
        for index, entrant in enumerate(entrants)
    }
    taken_of |= {place: ContenderSamples(failure=failure) for place, failure in failures.items()}
    return Heat(
        tuple(taken_of.get(place, ContenderSamples()) for place in range(len(contenders))),
        entrants[0].launched_by if entrants else "",
        clocks,
        executor.device.uuid,
    )


def _windows(
    executor: Executor,
    entrants: Sequence[Entrant],
    rounds: int,
    seed: int,
    end_s: float,
) -> list[list[Energy]]:
    """Return the energy windows of every round, each round in a new random order."""
    energies: list[list[Energy]] = [[] for _ in entrants]
    order = list(range(len(entrants)))
    shuffle = random.Random(seed)
    for done in range(rounds):
        if done >= _LEAST_WINDOWS and time.monotonic() > end_s:
            break
        shuffle.shuffle(order)
        for index in order:
            energies[index] += entrants[index].energy(executor)
    return energies


def _entrant(
    job: Job,
    contender: Contender,
    place: int,
    turns: Turns,
    failures: dict[int, Failure],
) -> Entrant | None:
    """Get a contender ready; None where it failed or cannot run here."""
    turns.begin_turn(place)
    try:
        taken = take(job, contender)
    except ContextLostError:
        raise
    except (LaunchError, MemoryError, WrongResult) as error:
        failures[place] = Failure(Status.LAUNCH_FAILED, str(error))
    except Exception as error:
        if not contender.vendor:  # a vendor's library raises what it likes
            raise
        failures[place] = Failure(Status.LAUNCH_FAILED, f"{type(error).__name__}: {error}")
    else:
        return Entrant(taken, place, turns, failures) if taken is not None else None
    return None


def take(job: Job, contender: Contender) -> tasks.ContenderTimer | None:
    """Get a contender ready to be timed; None where the vendor's call cannot be made."""
    if contender.vendor:
        return tasks.take_vendor(job, contender.vendor)
    assert contender.binary is not None
    return tasks.take(job, contender.configuration, contender.binary)


class Entrant:
    """A timer that says when its turn is, and is silent once a launch has failed.

    See `autotune.devices.base.Timer`.
    """

    def __init__(
        self,
        taken: tasks.ContenderTimer,
        place: int,
        turns: Turns,
        failures: dict[int, Failure],
    ) -> None:
        self._taken, self._timer, self.place = taken, taken.timer, place
        self._turns, self._failures = turns, failures
        #: Runs on the same data that gave the same bits.
        self.identical_runs = 0

    @property
    def launched_by(self) -> str:
        return self._timer.launched_by

    def by_stream(self) -> None:
        self._timer.by_stream()

    def __call__(self, count: int) -> list[float]:
        return self._tried(self._taken.samples_ms, count)

    def clean(self, count: int) -> list[float]:
        return self._tried(self._timer.clean, count)

    def hot(self, count: int) -> list[float]:
        return self._tried(self._timer.hot, count)

    def energy(self, executor: Executor) -> list[Energy]:
        """Take one window."""
        return self._tried(
            lambda _: [energy.measure(executor, self._timer, energy.FINALS_S)], count=1
        )

    def verify(self, launches: int, compare_runs: bool) -> None:
        """Leave the race if a further launch, after so many samples, is wrong, or others are not the same."""

        def verified(launches: int) -> list[float]:
            self._taken.verify(launches)
            if compare_runs:
                self.identical_runs = self._taken.identical_runs()
            return []

        self._tried(verified, launches)

    def _tried(self, take: Callable[[int], list[T]], count: int) -> list[T]:
        if self.place in self._failures:
            return []
        self._turns.begin_turn(self.place)
        try:
            return take(count)
        except tuple(_STATUS) as error:
            status = next(found for kind, found in _STATUS.items() if isinstance(error, kind))
            self._failures[self.place] = Failure(status, str(error))
            return []
