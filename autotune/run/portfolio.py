"""Chosen configurations measured on every problem: what lookups of other sizes are made from.

Measures; `verdict`, `fallback` and `prediction` read the matrix.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing
from statistics import median

from autotune.devices.device import Device
from autotune.errors import AutotuneError, NothingValidError, UsageError
from autotune.kernel.space import is_member
from autotune.kernel.spec import Kernel
from autotune.measure.evaluator import DeviceEvaluator
from autotune.measure.measurement import Status
from autotune.measure.race import Contender, RaceRules, race
from autotune.run import verdict
from autotune.run.bench import Bench
from autotune.run.recording import refitted, request_for, require_current
from autotune.search.session import Listener, Phase, ignore
from autotune.tuned.record import TIME, Portfolio, TunedRecord
from autotune.values import Configuration, Problem

#: Configurations that are measured, however little time there is.
_LEAST = 4
#: Samples of each configuration on each problem, and the longest and shortest time for a problem's.
_ROUNDS = 9
_MOST_SECONDS, _LEAST_SECONDS = 10.0, 2.0


def measure_portfolio(
    bench: Bench,
    listener: Listener,
    problems: Mapping[Problem, float],
    candidates: Sequence[Configuration],
    seconds: float,
) -> Portfolio | None:
    """Measure configurations on every problem; ``problems`` have the times of their winners, in ms.

    The quickest problem first, whose checks may take half of the time, then each its share of what is
    left: what one does not need the others have, and the slowest decide how many are measured on all.

    Candidates are all valid here, the most important first: the last are left out where the time
    does not suffice; once most problems are measured, rather the slowest of these where more times are left
    so. None where the device process failed: the winners stand without it.
    """
    columns: dict[Problem, dict[Configuration, float | None]] = {}
    quickest_first = sorted(problems, key=problems.__getitem__)
    try:
        end = bench.clock_s() + seconds
        for problem in quickest_first:
            left_s = end - bench.clock_s()
            share_s = left_s / (len(problems) - len(columns))
            # The first checks have what begins only once in them, and where they end, they end for all others.
            check_s = share_s / 2 if columns else left_s / 2
            column = _measured_on(bench, listener, problem, candidates, share_s, check_s)
            times, with_it = len(columns) * len(candidates), (len(columns) + 1) * len(column)
            if with_it < times and 2 * len(columns) > len(problems):
                break
            columns[problem] = column
            candidates = list(column)
    except AutotuneError as error:
        warnings.warn(
            f"{bench.kernel.name}: the best were not compared on every problem, so "
            f"lookup of other problems uses the nearest winner: {error}",
            stacklevel=2,
        )
        return None
    return Portfolio(
        configurations=tuple(dict(candidate) for candidate in candidates),
        problems=tuple(dict(problem) for problem in problems if problem in columns),
        median_ms=tuple(
            tuple(columns[p][configuration] for p in problems if p in columns)
            for configuration in candidates
        ),
    )


def _measured_on(
    bench: Bench,
    listener: Listener,
    problem: Problem,
    configurations: Sequence[Configuration],
    seconds: float,
    check_s: float,
) -> dict[Configuration, float | None]:
    """Return the median time of configurations on one problem; None where one is not right there.

    Of those after the first `_LEAST` only what can be verified in ``check_s``.
    """
    listener(Phase(problem, "portfolio"))
    job = bench.job(problem)
    evaluator = DeviceEvaluator(bench.kernel, job, bench.compilers, bench.worker)
    allowed = [chosen for chosen in configurations if bench.kernel.allows(chosen, problem)]
    evaluator.hint(allowed)
    bench.worker.prepare(job)  # the first time it starts a process, which is nobody's share
    begun = bench.clock_s()
    times: dict[Configuration, float | None] = {}
    contenders = []
    for configuration in configurations:
        if len(times) >= _LEAST and bench.clock_s() > begun + check_s:
            break
        times[configuration] = None
        binary = evaluator.binary(configuration) if configuration in allowed else None
        if binary and bench.worker.check(job, configuration, binary).status is Status.OK:
            contenders.append(Contender(configuration, binary))
    race_s = min(_MOST_SECONDS, max(_LEAST_SECONDS, begun + seconds - bench.clock_s()))
    rules = RaceRules(_ROUNDS, bench.request.seed, race_s)
    raced = race(bench.worker, job, contenders, rules)
    for contender, samples in zip(contenders, raced.samples, strict=True):
        times[contender.configuration] = median(samples.times_ms) if samples.times_ms else None
    return times


def _compile(
    bench: Bench,
    listener: Listener,
    problems: Sequence[Problem],
    configurations: Sequence[Configuration],
) -> None:
    listener(Phase(problems[0], "compiling"))
    jobs = [
        bench.compile_job(configuration, problem)
        for problem in (problems if bench.kernel.static or bench.kernel.language else problems[:1])
        for configuration in configurations
    ]
    for act in (bench.compilers.submit, bench.compilers.result):
        for job in jobs:
            act(job)


def renewed(
    record: TunedRecord,
    kernel: Kernel,
    device: Device,
    seconds: float,
    listener: Listener = ignore,
) -> TunedRecord:
    """Return a record with its portfolio measured anew, as for one that was tuned in pieces.

    The best of its races and the default are measured on each of its problems, within a time that
    begins once all are compiled; its entries stay.
    """
    if record.objective != TIME:
        raise UsageError(
            f"{record.kernel} on {record.device.name} is tuned for {record.objective}; a portfolio is "
            f"of times"
        )
    require_current(record, kernel)
    entrants = verdict.portfolio_entrants(
        [tuned.race for tuned in record.problems], kernel.default()
    )
    chosen = [entrant for entrant in entrants if is_member(kernel, entrant, device)]
    if len(record.problems) < 2 or not chosen:
        raise NothingValidError(
            f"{record.kernel} on {record.device.name}: {len(record.problems)} problems with "
            f"{len(chosen)} configurations are no portfolio; run: autotune run {record.kernel}"
        )
    problems = {Problem(dict(entry.problem)): entry.median_ms for entry in record.problems}
    with closing(Bench(request_for(record, kernel, device))) as bench:
        _compile(bench, listener, list(problems), chosen)
        found = measure_portfolio(bench, listener, problems, chosen, seconds)
    if found is None:
        raise AutotuneError(f"{record.kernel}: the portfolio could not be measured")
    return refitted(record, kernel, found)
