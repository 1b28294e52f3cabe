"""Chosen configurations measured on every problem: what lookups of other sizes are made from.

Measures; what the matrix says is `selection`'s, `fallback`'s and `prediction`'s to tell.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from autotune.errors import AutotuneError, NothingValidError
from autotune.kernel.membership import is_member
from autotune.measure.compiler import compile_job
from autotune.measure.evaluator import DeviceEvaluator
from autotune.measure.measurement import Status
from autotune.measure.racing import race
from autotune.measure.tasks import Contender
from autotune.run import selection
from autotune.run.bench import Bench
from autotune.search.session import Listener, Phase
from autotune.tuned import record as tuned
from autotune.values import Configuration, Problem

#: Configurations that are measured, however little time there is.
_LEAST = 4
#: Samples of each configuration on each problem, and the longest and shortest time for a problem's.
_ROUNDS = 9
_MOST_SECONDS, _LEAST_SECONDS = 10.0, 2.0


@dataclass(frozen=True)
class KnownProblem:
    """What is known of a problem before."""

    #: Of its winner.
    median_ms: float
    #: Configurations that were verified there by search and finals.
    right: Collection[Configuration]


def measure(
    bench: Bench,
    listener: Listener,
    problems: Mapping[Problem, KnownProblem],
    candidates: Sequence[Configuration],
    seconds: float | None,
) -> selection.PortfolioTimes | None:
    """Measure configurations on every problem.

    The quickest problem first: what one needs less than its share of the time is left for the
    others, and the slowest decide how many configurations can be measured on all.

    Parameters
    ----------
    bench : Bench
        Where they are measured.
    listener : callable
        Told what happens.
    problems : mapping from Problem to KnownProblem
        At least two.
    candidates : sequence of Configuration
        What to measure, all valid here, the most important first.
    seconds : float, optional
        How long it may take. The last candidates are left out where it does not suffice.

    Returns
    -------
    Portfolio or None
        None where the device process failed: the winners stand without it.
    """
    end = math.inf if seconds is None else time.monotonic() + seconds
    columns: dict[Problem, dict[Configuration, float | None]] = {}
    try:
        for problem in sorted(problems, key=lambda one: problems[one].median_ms):
            share_s = (end - time.monotonic()) / (len(problems) - len(columns))
            right = problems[problem].right
            columns[problem] = _measured_on(bench, listener, problem, candidates, right, share_s)
            candidates = list(columns[problem])
    except AutotuneError as error:
        warnings.warn(
            f"{bench.kernel.name}: the best were not compared on every problem, so "
            f"lookup of other problems uses the nearest winner: {error}",
            stacklevel=2,
        )
        return None
    return selection.PortfolioTimes(
        configurations=tuple(candidates),
        problems=tuple(problems),
        median_ms=tuple(tuple(columns[p][one] for p in problems) for one in candidates),
    )


def _measured_on(
    bench: Bench,
    listener: Listener,
    problem: Problem,
    configurations: Sequence[Configuration],
    right: Collection[Configuration],
    seconds: float,
) -> dict[Configuration, float | None]:
    """Median time of configurations on one problem; None where one is not right there.

    Those in ``right`` are not verified again. Of those after the first `_LEAST` only what half of
    the time allows to verify.
    """
    listener(Phase(problem, "portfolio"))
    job = bench.job(problem)
    evaluator = DeviceEvaluator(bench.kernel, job, bench.compilers, bench.worker)
    evaluator.hint([one for one in configurations if bench.kernel.allows(one, problem)])
    bench.worker.prepare(job)  # the first time it starts a process, which is nobody's share
    end = time.monotonic() + seconds
    times: dict[Configuration, float | None] = {}
    contenders = []
    for one in configurations:
        if len(times) >= _LEAST and time.monotonic() > end - seconds / 2:
            break
        times[one] = None
        binary = evaluator.binary(one) if bench.kernel.allows(one, problem) else None
        if binary is None:
            continue
        if one in right or bench.worker.check(job, one, binary).status is Status.OK:
            contenders.append(Contender(one, binary))
    race_s = min(_MOST_SECONDS, max(_LEAST_SECONDS, end - time.monotonic()))
    raced = race(bench.worker, job, contenders, _ROUNDS, bench.request.seed, race_s)
    for contender, samples in zip(contenders, raced.samples_ms, strict=True):
        times[contender.configuration] = median(samples) if samples else None
    return times


def _compile(
    bench: Bench,
    listener: Listener,
    problems: Sequence[Problem],
    configurations: Sequence[Configuration],
) -> None:
    """Have all binaries made that will be asked for, so that no problem's time goes into it."""
    listener(Phase(problems[0], "compiling"))
    differing = problems if bench.kernel.static else problems[:1]
    jobs = [
        compile_job(bench.kernel, one, problem, bench.device)
        for problem in differing
        for one in configurations
    ]
    for job in jobs:
        bench.compilers.submit(job)
    for job in jobs:
        bench.compilers.result(job)


def measure_again(
    bench: Bench, listener: Listener, record: tuned.TunedRecord, seconds: float | None
) -> selection.PortfolioTimes:
    """Measure what won anywhere on every problem of a record, which was tuned in pieces perhaps.

    Parameters
    ----------
    bench : Bench
        Of the record's kernel and device.
    listener : callable
        Told what happens.
    record : TunedRecord
        Its winners and runners-up are measured, the problems taking turns, and the default.
    seconds : float, optional
        How long it may take once all are compiled.

    Raises
    ------
    NothingValidError
        If it has fewer than two problems, or no configuration of it is in the space any more.
    AutotuneError
        If the device process fails.
    """
    entries = record.entries
    ranks = [
        [one.configuration, *(other.configuration for other in one.runners_up)] for one in entries
    ]
    listed = [bench.kernel.default()]
    for place in range(max(map(len, ranks), default=0)):
        listed += [Configuration(dict(one[place])) for one in ranks if place < len(one)]
    chosen = [one for one in dict.fromkeys(listed) if is_member(bench.kernel, one, bench.device)][
        : selection.PORTFOLIO_SIZE
    ]
    if len(entries) < 2 or not chosen:
        raise NothingValidError(
            f"{record.kernel} on {record.device.name}: {len(entries)} problems with "
            f"{len(chosen)} configurations are no portfolio; run: autotune run {record.kernel}"
        )
    problems = {
        Problem(dict(one.problem)): KnownProblem(
            one.median_ms, {Configuration(dict(one.configuration))}
        )
        for one in entries
    }
    _compile(bench, listener, list(problems), chosen)
    found = measure(bench, listener, problems, chosen, seconds)
    if found is None:
        raise AutotuneError(f"{record.kernel}: the portfolio could not be measured")
    return found
