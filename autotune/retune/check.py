"""Checks recorded winners: verifies and measures them again, and compares them with their records.

`retuning` decides what to do about a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from autotune.devices.device import Device
from autotune.errors import AutotuneError
from autotune.kernel.catalog import find_kernel
from autotune.kernel.space import is_member
from autotune.kernel.spec import Kernel
from autotune.measure.compiler import Compiled
from autotune.measure.limits import implausible
from autotune.measure.measurement import Measurement, Status
from autotune.measure.race import Contender, RaceRules, race
from autotune.measure.tasks import Job
from autotune.measure.timing import Caches, Timing
from autotune.retune.stale import Action, KnownEntry, Reason, Target, known_entries
from autotune.run.bench import Bench
from autotune.run.verdict import judge
from autotune.tuned.reading import kernel_names
from autotune.tuned.record import TIME, ContenderResult, Estimate, TunedProblem, TunedRecord
from autotune.values import Configuration, Problem

#: Rounds of the race, and the time after which no further round begins.
ROUNDS = 30
MAX_SECONDS = 10.0
#: Recorded configurations that race with the winner.
_MOST_RIVALS = 5
#: A winner whose time is surely longer than recorded by more than this share is a regression.
THRESHOLD = 0.05


@dataclass(frozen=True)
class Remeasured:
    """A recorded winner, measured again."""

    #: `OK`, or how its verification or its race ended.
    status: Status
    message: str = ""
    #: Its time now over the recorded one; None where nothing was timed.
    ratio: Estimate | None = None
    #: The winner in its race, and the fastest of those that raced; None where nothing was timed.
    now: ContenderResult | None = None
    fastest: ContenderResult | None = None

    @property
    def is_tied(self) -> bool:
        """Return whether it cannot be told from the fastest."""
        return self.now is None or bool(self.now.tied)

    @property
    def fastest_share(self) -> float:
        """Return the time of the fastest over the winner's."""
        if self.now is None or self.fastest is None:
            return 1.0
        return self.fastest.time_ms.value / self.now.time_ms.value


class Verdict(StrEnum):
    """The state of a recorded entry."""

    HELD = "held"
    FASTER = "faster"
    SLOWER = "slower"
    #: Wrong results, a crash, a time-out, or no longer a valid configuration.
    WRONG = "wrong"
    #: Nothing could be compared; the message says why.
    UNCHECKED = "unchecked"
    FAILED = "failed"

    @property
    def is_regression(self) -> bool:
        return self in (Verdict.SLOWER, Verdict.WRONG)


@dataclass(frozen=True)
class Checked:
    """A recorded entry and its verdict."""

    kernel: str
    device: Device
    known: KnownEntry
    verdict: Verdict
    message: str = ""
    now: Remeasured | None = None
    #: The kernel as declared; None where it was not found.
    declared: Kernel | None = None

    @property
    def target(self) -> Target:
        """The target of a search, where it is a regression."""
        assert self.declared is not None
        text = f"it is {self.verdict}: {self.message}" if self.message else f"it is {self.verdict}"
        problem = Problem(dict(self.known.entry.problem))
        why = (Reason(text, Action.SEARCH, fresh=True),)
        return Target(self.declared, self.device, problem, why, self.known)


def verdict(now: Remeasured, threshold: float) -> tuple[Verdict, str]:
    """Return the verdict and its message; slower and faster only where that is sure."""
    if now.status is not Status.OK:
        return Verdict.WRONG, f"{now.status}: {now.message}"
    assert now.ratio is not None
    low, high = now.ratio.interval
    if low > 1 + threshold:
        return Verdict.SLOWER, f"{now.ratio.value:.3f} of its recorded time"
    if high < 1 - threshold:
        return Verdict.FASTER, ""
    if now.fastest_share < 1 - threshold and not now.is_tied:
        return Verdict.HELD, f"a runner-up needs {now.fastest_share:.3f} of its time"
    return Verdict.HELD, ""


def recorded_entries(
    names: Sequence[str], device: Device, spaces: Path | None
) -> Iterator[Checked]:
    """Yield every entry that lookup answers with: `HELD` until measured, or why it cannot be."""
    for name in names or sorted(kernel_names(device.folder)):
        known, _ = known_entries(name, device)
        try:
            kernel, missing = find_kernel(name, spaces) if known else None, ""
        except AutotuneError as error:
            kernel, missing = None, str(error)
        for entry in known:
            why = missing or _incomparable(kernel, entry)
            state = Verdict.UNCHECKED if why else Verdict.HELD
            yield Checked(name, device, entry, state, why, declared=kernel)


def _incomparable(kernel: Kernel | None, known: KnownEntry) -> str:
    entry = known.entry
    if kernel is not None and set(entry.problem) != set(kernel.fields):
        return "the kernel has other problem fields now"
    if Timing(entry.race.timing) is Timing.OTHER:
        return f"timed in another way ({entry.race.timing})"
    return ""


def with_verdict(
    checked: Checked, now: Remeasured | AutotuneError | None, threshold: float
) -> Checked:
    """Return a recorded entry with the verdict of a new measurement; None: there was no time."""
    if now is None:
        return replace(checked, verdict=Verdict.UNCHECKED, message="no time left")
    if isinstance(now, AutotuneError):
        return replace(checked, verdict=Verdict.FAILED, message=str(now))
    state, message = verdict(now, threshold)
    return replace(checked, verdict=state, message=message, now=now)


def remeasure(bench: Bench, record: TunedRecord, entry: TunedProblem) -> Remeasured:
    """Verify a recorded winner on every data set and odd size, then race it with its rivals.

    The bench is of the record's kernel and device, and times as its request says.
    """
    kernel, device = bench.kernel, bench.device
    problem, winner = Problem(dict(entry.problem)), Configuration(entry.configuration)
    if not is_member(kernel, winner, device):
        return Remeasured(Status.PRUNED, "its configuration is not in the declared space")
    job = bench.job(problem)
    edges = [edge for edge in bench.other_jobs(job) if kernel.allows(winner, edge.problem)]
    for checked in (*edges, job):
        verified = _verified(bench, checked, winner)
        if verified.status is not Status.OK:
            where = "" if checked is job else f"on {checked.problem} with other inputs: "
            return Remeasured(verified.status, where + verified.message)
    # Those of another objective may well be faster.
    everyone = rivals(kernel, device, record, entry) if record.objective == TIME else []
    others = [rival for rival in everyone if _verified(bench, job, rival).status is Status.OK]
    return _raced(bench, job, entry, [winner, *others])


def rivals(
    kernel: Kernel, device: Device, record: TunedRecord, entry: TunedProblem
) -> list[Configuration]:
    """Return who else may be the fastest: the runners-up, else the best of the portfolio, the default."""
    listed = [Configuration(other.configuration) for other in entry.race.runners_up]
    listed = listed or _best_of_portfolio(record, entry)
    members = [rival for rival in listed if is_member(kernel, rival, device)][:_MOST_RIVALS]
    if is_member(kernel, kernel.default(), device):
        members.append(kernel.default())
    winner = Configuration(entry.configuration)
    return [rival for rival in dict.fromkeys(members) if rival != winner]


def over_recorded(now: Estimate, then: Estimate) -> Estimate:
    """Return the time now over the recorded one, with its 95 % interval.

    The interval of a ratio from the intervals of two independent medians (MOVER on logarithms:
    Zou & Donner, Statistics in Medicine 27, 2008). A recorded interval that does not hold its
    own median says nothing, and is taken to have no width.
    """
    low, high = now.interval
    then_low, then_high = then.interval
    if not 0 < then_low <= then.value <= then_high:
        then_low = then_high = then.value
    down = math.hypot(math.log(now.value / low), math.log(then_high / then.value))
    up = math.hypot(math.log(high / now.value), math.log(then.value / then_low))
    value = now.value / then.value
    return Estimate(value, value * math.exp(-down), value * math.exp(up))


def _verified(bench: Bench, job: Job, configuration: Configuration) -> Measurement:
    """Compile and verify one configuration on the data sets of a job."""
    compiled = _compiled(bench, job, configuration)
    if compiled.binary is None:
        return Measurement(configuration, Status.COMPILE_FAILED, compiled.message)
    return bench.worker.check(job, configuration, compiled.binary)


def _compiled(bench: Bench, job: Job, configuration: Configuration) -> Compiled:
    return bench.compilers.result(bench.compile_job(configuration, job.problem))


def _raced(
    bench: Bench, job: Job, entry: TunedProblem, configurations: list[Configuration]
) -> Remeasured:
    """Race the winner, who comes first, with the others, all of them right."""
    contenders = [
        Contender(
            configuration,
            _compiled(bench, job, configuration).binary,
            deterministic=bench.kernel.is_deterministic(configuration, job.problem),
        )
        for configuration in configurations
    ]
    by_stream = not Timing(entry.race.timing).by_graph
    rules = RaceRules(ROUNDS, bench.request.seed, MAX_SECONDS, by_stream=by_stream)
    raced = race(bench.worker, job, contenders, rules)
    if failure := raced.samples[0].failure:
        return Remeasured(failure.status, f"in the race with its rivals: {failure.message}")
    result = judge(raced, seed=bench.request.seed)
    now = result.of(configurations[0]) if result else None
    assert result is not None and now is not None
    work = bench.kernel.work_of(job.problem)
    is_cold = job.caches is Caches.COLD
    why = implausible(now.time_ms.value, work, job.device, is_cold) if work else ""
    return Remeasured(
        Status.IMPLAUSIBLE if why else Status.OK,
        why,
        over_recorded(now.time_ms, entry.winner.time_ms),
        now,
        min((e for e in result.finalists if e.tied), key=lambda each: each.time_ms.value),
    )


def _best_of_portfolio(record: TunedRecord, entry: TunedProblem) -> list[Configuration]:
    """The configurations of the matrix, fastest on the entry's problem first."""
    matrix = record.portfolio
    problems = [dict(problem) for problem in matrix.problems]
    if dict(entry.problem) not in problems:
        return []
    column = problems.index(dict(entry.problem))
    times = [(row[column], place) for place, row in enumerate(matrix.median_ms)]
    ranked = sorted((time_ms, place) for time_ms, place in times if time_ms)
    return [Configuration(matrix.configurations[place]) for _, place in ranked]
