"""Contenders -> interleaved samples, whatever one of them does to the launch, context or process.

One half runs in the worker and times; the other watches it from outside. A contender that fails
leaves the race with its reason, and the rest go on. Who won is not asked here.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TypeVar

import numpy as np

from autotune.devices.base import ContextLostError, Executor, LaunchError
from autotune.devices.device import UNKNOWN_CLOCKS, Clocks
from autotune.errors import AutotuneError
from autotune.measure import energy, tasks
from autotune.measure.measurement import Energy, Status
from autotune.measure.process import ChildDied, ChildTimeout
from autotune.measure.tasks import Contender, Job
from autotune.measure.verify import NotDeterministic, WrongResult
from autotune.measure.worker import PREPARE_TIMEOUT_S, Worker

T = TypeVar("T")

#: Clean calls, and batches of hot ones, of each finalist after the race.
_BESIDE = 5
#: What a race that has to begin again gets at least.
_LEAST_SECONDS = 1.0
#: Rounds of energy windows, however little time there is: fewer prove no difference.
_LEAST_WINDOWS = 6
#: Share of the time that rounds of samples get where windows follow, and what one window takes at most
#: of a device whose counter moves ten times a second.
_SAMPLES_SHARE, _WINDOW_S = 0.3, 2.0


@dataclass(frozen=True)
class Elimination:
    """Why a contender is out."""

    status: Status
    message: str


@dataclass(frozen=True)
class Raced:
    """What came of a race, or of one heat in the worker, by contender."""

    #: Milliseconds of every round. Empty for one that failed or cannot run here.
    samples_ms: tuple[tuple[float, ...], ...]
    #: Medians of clean calls, and of calls back to back; None where there are none.
    clean_ms: tuple[float | None, ...]
    hot_ms: tuple[float | None, ...]
    #: How all of them were launched; see `autotune.devices.base.Timer`.
    launched_by: str
    #: Of those that failed, by position.
    failures: Mapping[int, Elimination] = field(default_factory=dict)
    #: Whether the last of them broke the device context, so that there are no samples.
    context_lost: bool = False
    #: The worse of before and after.
    clocks: Clocks = UNKNOWN_CLOCKS
    #: Of every round of windows; empty where energy was not asked for.
    energies: tuple[tuple[Energy, ...], ...] = ()
    #: Runs on the same data that gave the same bits; 0 where that was not asked.
    identical_runs: tuple[int, ...] = ()


def race(
    worker: Worker,
    job: Job,
    contenders: Sequence[Contender],
    rounds: int,
    seed: int,
    max_seconds: float,
    by_stream: bool = False,
    windows: int = 0,
    finals: bool = False,
) -> Raced:
    """Time contenders interleaved, in a new random order every round.

    So many rounds of energy windows follow, interleaved too: as many as there is time for, but
    `_LEAST_WINDOWS` at least.

    A launch that fails puts its contender out. So does a lost context, a hang or the second death
    of the process (the first may have come from outside): then the others race again from the
    beginning. That is done in what is left of the time, after a first death too.

    With ``finals`` each is timed clean and hot by itself too, and those that are declared
    deterministic have to keep that in the end.

    No further round is begun after ``max_seconds``. With ``by_stream`` all are launched one by one,
    to compare with times that were taken so.

    Raises
    ------
    AutotuneError
        If the process fails where no contender can be named for it.
    """
    failures: dict[int, Elimination] = {}
    suspects: set[int] = set()
    end, least_s = time.monotonic() + max_seconds, min(_LEAST_SECONDS, max_seconds)
    while True:
        entered = [place for place in range(len(contenders)) if place not in failures]
        running = [contenders[place] for place in entered]
        left_s = max(least_s, end - time.monotonic())
        worker.prepare(job)
        heat = _watched(worker, job, running, rounds, seed, left_s, by_stream, windows, finals)
        if isinstance(heat, _Broken):
            culprit = entered[heat.place] if heat.place >= 0 else -1
            if isinstance(heat.error, ChildDied) and culprit not in suspects:
                suspects.add(culprit)
            elif culprit < 0:
                raise AutotuneError(
                    f"the device process failed at the race: {heat.error}"
                ) from heat.error
            else:
                failures[culprit] = heat.elimination
            continue
        failures.update({entered[place]: failure for place, failure in heat.failures.items()})
        if not heat.context_lost:
            return _placed(heat, entered, len(contenders), failures)
        worker.renew()


@dataclass(frozen=True)
class _Broken:
    """A heat that the process did not survive."""

    #: Whose turn it was; -1 before the first.
    place: int
    error: ChildTimeout | ChildDied
    #: How long that turn may take.
    limit_s: float

    @property
    def elimination(self) -> Elimination:
        if isinstance(self.error, ChildTimeout):
            message = f"no sample in {self.limit_s:g} s; the kernel hangs"
            return Elimination(Status.TIMED_OUT, message)
        return Elimination(Status.CRASHED, f"the process died twice: {self.error}")


def _watched(
    worker: Worker,
    job: Job,
    running: Sequence[Contender],
    rounds: int,
    seed: int,
    left_s: float,
    by_stream: bool,
    windows: int,
    finals: bool,
) -> Raced | _Broken:
    """Run a heat in the worker; it ends early where a contender takes too long for its turn."""
    limits_s = [
        PREPARE_TIMEOUT_S if contender.baseline else worker.measure_timeout_s
        for contender in running
    ]
    with tempfile.TemporaryDirectory() as folder:
        progress = Progress.made(Path(folder) / "progress")
        try:
            return worker.run(
                left_s + PREPARE_TIMEOUT_S + windows * len(running) * _WINDOW_S,
                run_heat,
                job,
                running,
                rounds,
                seed,
                left_s,
                by_stream,
                windows,
                finals,
                progress.file,
                is_stuck=progress.watch(limits_s),
            )
        except (ChildTimeout, ChildDied) as error:
            place = progress.running
            return _Broken(place, error, limits_s[place] if place >= 0 else PREPARE_TIMEOUT_S)


def _placed(
    heat: Raced, entered: Sequence[int], count: int, failures: Mapping[int, Elimination]
) -> Raced:
    """A heat by the positions of all contenders."""
    samples: list[tuple[float, ...]] = [()] * count
    clean: list[float | None] = [None] * count
    hot: list[float | None] = [None] * count
    energies: list[tuple[Energy, ...]] = [()] * count
    runs = [0] * count
    for place, position in enumerate(entered):
        if position not in failures:
            samples[position] = heat.samples_ms[place]
            clean[position] = heat.clean_ms[place]
            hot[position] = heat.hot_ms[place]
            energies[position] = heat.energies[place]
            runs[position] = heat.identical_runs[place]
    return Raced(
        tuple(samples),
        tuple(clean),
        tuple(hot),
        heat.launched_by,
        failures,
        clocks=heat.clocks,
        energies=tuple(energies),
        identical_runs=tuple(runs),
    )


class Progress:
    """Which contender runs in the worker, in memory that both processes see.

    What hangs, or dies, cannot say so. The file is of two integers: the contender, and a count of
    its and all others' turns.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._cells = np.memmap(file, np.int64, "r+", shape=(2,))

    @classmethod
    def made(cls, file: Path) -> Progress:
        """A new one, where nobody runs."""
        np.array([-1, 0]).tofile(file)
        return cls(file)

    @property
    def running(self) -> int:
        """Whose turn it is; -1 before the first."""
        return int(self._cells[0])

    def turn(self, contender: int) -> None:
        """Say whose turn begins."""
        self._cells[0] = contender
        self._cells[1] += 1

    def watch(self, limits_s: Sequence[float]) -> Callable[[], bool]:
        """A function that tells whether the one that runs has taken too long for one turn."""
        seen, since = -1, time.monotonic()

        def is_stuck() -> bool:
            nonlocal seen, since
            turns = int(self._cells[1])
            if turns != seen:
                seen, since = turns, time.monotonic()
            limit_s = limits_s[self.running] if self.running >= 0 else PREPARE_TIMEOUT_S
            return time.monotonic() - since > limit_s

        return is_stuck


# ------------------------------------------------------------------ in the worker


def run_heat(
    job: Job,
    contenders: Sequence[Contender],
    rounds: int,
    seed: int,
    max_seconds: float,
    by_stream: bool,
    windows: int,
    finals: bool,
    progress_file: Path,
) -> Raced:
    """Race in this process; ends where the context is lost."""
    progress, failures = Progress(progress_file), dict[int, Elimination]()
    try:
        entrants = [
            _entrant(job, contender, place, progress, failures)
            for place, contender in enumerate(contenders)
        ]
        timers = [entrant for entrant in entrants if entrant is not None]
        for timer in timers if by_stream else ():
            timer.by_stream()
        executor, _ = tasks.current()
        before = executor.clocks()
        end = time.monotonic() + max_seconds
        samples_s = max_seconds * (_SAMPLES_SHARE if windows else 1.0)
        samples = tasks.interleaved(executor, entrants, rounds, seed, samples_s)
        clocks = before.worst(executor.clocks())
        beside = _BESIDE if finals else 0
        clean = [entrant.clean(beside) if entrant else [] for entrant in entrants]
        hot = [entrant.hot(beside) if entrant else [] for entrant in entrants]
        energies = _windows(executor, entrants, windows, seed, end)
        for entrant, taken in zip(entrants, samples, strict=True):
            if entrant:
                entrant.verify(len(taken), finals)
    except ContextLostError as error:
        failures[progress.running] = Elimination(Status.CRASHED, str(error))
        return Raced((), (), (), "", failures, context_lost=True)
    return Raced(
        samples_ms=tuple(map(tuple, samples)),
        clean_ms=tuple(median(times) if times else None for times in clean),
        hot_ms=tuple(median(times) if times else None for times in hot),
        launched_by=timers[0].launched_by if timers else "",
        failures=failures,
        clocks=clocks,
        energies=tuple(map(tuple, energies)),
        identical_runs=tuple(entrant.identical_runs if entrant else 0 for entrant in entrants),
    )


def _windows(
    executor: Executor,
    entrants: Sequence[Entrant | None],
    rounds: int,
    seed: int,
    end_s: float,
) -> list[list[Energy]]:
    """Energy windows of every round, each in a new random order."""
    energies: list[list[Energy]] = [[] for _ in entrants]
    order = [place for place, entrant in enumerate(entrants) if entrant is not None]
    shuffle = random.Random(seed)
    for done in range(rounds):
        if done >= _LEAST_WINDOWS and time.monotonic() > end_s:
            break
        shuffle.shuffle(order)
        for place in order:
            energies[place] += entrants[place].energy(executor)  # type: ignore[union-attr]  # None was left out
    return energies


def _entrant(
    job: Job,
    contender: Contender,
    place: int,
    progress: Progress,
    failures: dict[int, Elimination],
) -> Entrant | None:
    """What takes samples of a contender; None where it failed or cannot run here."""
    progress.turn(place)
    try:
        taken = tasks.take(job, contender)
    except ContextLostError:
        raise
    except (LaunchError, MemoryError, WrongResult) as error:
        failures[place] = Elimination(Status.LAUNCH_FAILED, str(error))
    except Exception as error:
        if not contender.baseline:  # a vendor's library raises what it likes
            raise
        failures[place] = Elimination(Status.LAUNCH_FAILED, f"{type(error).__name__}: {error}")
    else:
        return Entrant(taken, place, progress, failures) if taken is not None else None
    return None


class Entrant:
    """A timer that says when its turn is, and is silent once a launch has failed.

    See `autotune.devices.base.Timer`.
    """

    def __init__(
        self,
        taken: tasks.Taken,
        place: int,
        progress: Progress,
        failures: dict[int, Elimination],
    ) -> None:
        self._taken, self._timer, self._place = taken, taken.timer, place
        self._progress, self._failures = progress, failures
        #: On the same data, which gave the same bits.
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
        """One window."""
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
        if self._place in self._failures:
            return []
        self._progress.turn(self._place)
        try:
            return take(count)
        except (LaunchError, MemoryError) as error:
            self._failures[self._place] = Elimination(Status.LAUNCH_FAILED, str(error))
        except WrongResult as error:
            self._failures[self._place] = Elimination(Status.WRONG_RESULT, str(error))
        except NotDeterministic as error:
            self._failures[self._place] = Elimination(Status.NOT_DETERMINISTIC, str(error))
        return []
