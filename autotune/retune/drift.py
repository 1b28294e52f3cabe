"""A recorded winner verified and measured again, beside its rivals: what it is now, and then.

Decides nothing about what to do with that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from autotune.devices.device import Device
from autotune.kernel.membership import is_member
from autotune.kernel.spec import Kernel
from autotune.measure.compiler import Compiled, compile_job
from autotune.measure.limits import implausible
from autotune.measure.measurement import Measurement, Status
from autotune.measure.racing import race
from autotune.measure.tasks import Contender, Job
from autotune.measure.timing import Caches, Timing, median_interval
from autotune.run.bench import Bench
from autotune.run.recording import RUNNERS_UP
from autotune.run.selection import Finalist, Ratio, decide
from autotune.tuned.record import TIME, Entry, TunedRecord
from autotune.values import Configuration, Problem

#: Rounds of the race, and the time after which no further one is begun.
ROUNDS = 30
MAX_SECONDS = 10.0


@dataclass(frozen=True)
class Remeasured:
    """What became of a recorded winner."""

    #: `OK`, or how its verification or its race ended.
    status: Status
    message: str = ""
    samples_ms: tuple[float, ...] = ()
    #: Time now over the recorded one; None where nothing was timed or nothing can be compared.
    ratio: Ratio | None = None
    #: Whether it cannot be told from the fastest of those that raced.
    is_tied: bool = True
    #: The fastest of those that raced, and how much of the winner's time it needs.
    fastest: Configuration | None = None
    fastest_share: float = 1.0

    @property
    def median_ms(self) -> float | None:
        """Median now; None where nothing was timed."""
        return median(self.samples_ms) if self.samples_ms else None

    @property
    def interval_ms(self) -> tuple[float, float] | None:
        """95 % interval of that median."""
        return median_interval(self.samples_ms) if self.samples_ms else None


def remeasure(bench: Bench, record: TunedRecord, entry: Entry) -> Remeasured:
    """Verify a recorded winner on every data set and odd size, then race it with its rivals.

    The bench is of the record's kernel and device, and times as its request says.

    Raises
    ------
    AutotuneError
        If the device process fails.
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
    kernel: Kernel, device: Device, record: TunedRecord, entry: Entry
) -> list[Configuration]:
    """Who else may be the fastest: the runners-up, else the best of the portfolio, the default."""
    listed = [Configuration(runner_up.configuration) for runner_up in entry.runners_up]
    listed = listed or _best_of_portfolio(record, entry)
    members = [rival for rival in listed if is_member(kernel, rival, device)][:RUNNERS_UP]
    if is_member(kernel, kernel.default(), device):
        members.append(kernel.default())
    winner = Configuration(entry.configuration)
    return [rival for rival in dict.fromkeys(members) if rival != winner]


def against_record(entry: Entry, samples_ms: tuple[float, ...]) -> Ratio | None:
    """Time now over the recorded one, with its 95 % interval.

    The interval of a ratio from the intervals of two independent medians (MOVER on logarithms:
    Zou & Donner, Statistics in Medicine 27, 2008). A recorded interval that does not hold its
    own median says nothing, and is taken to have no width.
    """
    then, now = entry.median_ms, median(samples_ms)
    if not then > 0:
        return None
    low, high = median_interval(samples_ms)
    then_low, then_high = entry.interval_ms
    if not 0 < then_low <= then <= then_high:
        then_low = then_high = then
    down = math.hypot(math.log(now / low), math.log(then_high / then))
    up = math.hypot(math.log(high / now), math.log(then / then_low))
    value = now / then
    return Ratio(value, value * math.exp(-down), value * math.exp(up))


def _verified(bench: Bench, job: Job, configuration: Configuration) -> Measurement:
    """Compile and verify one configuration on the data sets of a job."""
    compiled = _compiled(bench, job, configuration)
    if compiled.binary is None:
        return Measurement(configuration, Status.COMPILE_FAILED, compiled.message)
    return bench.worker.check(job, configuration, compiled.binary)


def _compiled(bench: Bench, job: Job, configuration: Configuration) -> Compiled:
    return bench.compilers.result(
        compile_job(bench.kernel, configuration, job.problem, bench.device)
    )


def _raced(bench: Bench, job: Job, entry: Entry, configurations: list[Configuration]) -> Remeasured:
    """Race the winner, who comes first, with the others, all of them right."""
    contenders = [
        Contender(configuration, _compiled(bench, job, configuration).binary)
        for configuration in configurations
    ]
    raced = bench.worker.have(
        race,
        job,
        contenders,
        ROUNDS,
        bench.request.seed,
        MAX_SECONDS,
        by_stream=not Timing(entry.timing).by_graph,
    )
    if 0 in raced.failures:
        failure = raced.failures[0]
        return Remeasured(failure.status, f"beside its rivals: {failure.message}")
    finalists = [
        Finalist(
            Measurement(configuration, Status.OK),
            times,
            deterministic=bench.kernel.is_deterministic(configuration, job.problem),
        )
        for configuration, times in zip(configurations, raced.samples_ms, strict=True)
        if times
    ]
    result, winner = decide(finalists, {}, bench.request.seed), finalists[0]
    fastest = result.tied[0]
    work = bench.kernel.work_of(job.problem)
    is_cold = job.caches is Caches.COLD
    why = implausible(winner.median_ms, work, job.device, is_cold) if work else ""
    return Remeasured(
        status=Status.IMPLAUSIBLE if why else Status.OK,
        message=why,
        samples_ms=winner.samples_ms,
        ratio=against_record(entry, winner.samples_ms),
        is_tied=winner in result.tied,
        fastest=fastest.measurement.configuration,
        fastest_share=fastest.median_ms / winner.median_ms,
    )


def _best_of_portfolio(record: TunedRecord, entry: Entry) -> list[Configuration]:
    """The configurations of the matrix, fastest on the entry's problem first."""
    matrix = record.portfolio
    problems = [dict(problem) for problem in matrix.problems]
    if dict(entry.problem) not in problems:
        return []
    column = problems.index(dict(entry.problem))
    times = [(row[column], place) for place, row in enumerate(matrix.median_ms)]
    ranked = sorted((time_ms, place) for time_ms, place in times if time_ms)
    return [Configuration(matrix.configurations[place]) for _, place in ranked]
