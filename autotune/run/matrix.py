"""Measures configurations on random problem sizes, in a file that no lookup reads.

The file has one JSON object a line and only grows: a head, then configurations and sizes in the order in
which they came. A size has the median milliseconds of a call by the number of its configuration.
"""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice, product
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np

from autotune.compiling.job import CompileJob
from autotune.devices.device import Device
from autotune.errors import AutotuneError, NothingValidError, UsageError
from autotune.kernel.source import source_fingerprint
from autotune.kernel.space import is_member
from autotune.kernel.spec import Kernel
from autotune.measure.measurement import Status
from autotune.measure.process import ActorFailed
from autotune.measure.rotation import MOST_SETS, CompiledEntrant, SizeTask, time_sizes
from autotune.run.bench import Bench
from autotune.run.plans import plan_of
from autotune.run.recording import refitted
from autotune.run.request import Request
from autotune.run.sizes import size_fields
from autotune.tuned.dense import MOST_CONFIGURATIONS, MOST_IN_ALL, HeldOut, SizeFit
from autotune.tuned.fallback import counted
from autotune.tuned.prediction import MULTIPLE, Predictor
from autotune.tuned.record import (
    AnswerTable,
    Cost,
    Plan,
    Portfolio,
    Prediction,
    TableRow,
    TunedRecord,
)
from autotune.tuned.table import predicted_ms
from autotune.values import Configuration, Problem, by_category, category_of

FORMAT = "autotune size matrix"
#: Smallest value of a field that is not thin, and largest of one that is.
_LEAST, _THIN = 16, 70
#: Share of sizes with a thin side, and multiples that fields have, with equal shares.
THIN_SHARE, _MULTIPLES = 0.25, (64, 8, 1)
#: Longest time of a call at the device's peaks, and share of its memory that the arrays take.
_LONGEST_MS, _MEMORY_SHARE = 8.0, 0.1
#: Sizes of one task, tasks for which compiling has begun (and configurations are chosen), and the longest time of a
#: pair of size and configuration.
_AT_ONCE, _BEGUN, _PAIR_S = 8, 4, 20.0
#: Sizes on which every configuration is measured, and one that comes later. Then a fit chooses the most promising,
#: and random ones.
_COMPLETE, _NEW, _PROMISING, _RANDOM = 200, 48, 16, 4
#: Sizes that are drawn at most for one that is wanted, and draws in a row that give no other size, after which there
#: are no more.
_DRAWN, _IN_VAIN = 50, 10_000
#: Sizes that a fit needs, those of each of several categories, which learn from each other, and those whose held-out
#: answer was measured.
_ENOUGH, _ENOUGH_EACH, _ENOUGH_HELD_OUT = 60, 20, 10


@dataclass
class SizeMatrix:
    """The configurations and sizes of a file, for one kernel and device."""

    file: Path
    head: Mapping[str, Any]
    configurations: list[Configuration] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    #: Of each problem the milliseconds by number of the configuration.
    times_ms: list[dict[int, float]] = field(default_factory=list)
    #: Problems before the last configuration.
    before_the_last: int = 0

    @classmethod
    def opened(cls, file: Path, kernel: Kernel, device: Device) -> SizeMatrix:
        """Read a file, or begin it; UsageError where it is of another kernel or device."""
        head = {
            "format": FORMAT,
            "kernel": kernel.name,
            "device": device.name,
            "source": source_fingerprint(kernel),
        }
        matrix = cls(file, head)
        if not file.exists():
            matrix._append([head])
            return matrix
        matrix._read()
        return matrix

    def _read(self) -> None:
        for number, line in enumerate(self.file.read_bytes().splitlines()):
            try:
                row = msgspec.json.decode(line)
                if number == 0:
                    found = row
                elif "configuration" in row:
                    self.configurations.append(Configuration(row["configuration"]))
                    self.before_the_last = len(self.problems)
                else:
                    self.problems.append(Problem(row["problem"]))
                    self.times_ms.append({int(n): float(ms) for n, ms in row["ms"].items()})
            except (msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
                raise UsageError(f"{self.file}:{number + 1}: no row of sizes: {error}") from None
        differing = [name for name, value in self.head.items() if found.get(name) != value]
        if differing:
            name = differing[0]
            raise UsageError(
                f"{self.file}: {name} is {found.get(name)!r}, not {self.head[name]!r}; name another file"
            )

    def _append(self, rows: Sequence[object]) -> None:
        with open(self.file, "ab") as file:
            file.write(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))

    def add_configurations(self, configurations: Sequence[Configuration]) -> None:
        """Append configurations that are not there."""
        new = [one for one in configurations if one not in self.configurations]
        self._append([{"configuration": dict(one)} for one in new])
        self.configurations += new
        self.before_the_last = len(self.problems) if new else self.before_the_last

    def add(self, problems: Sequence[Problem], times_ms: Sequence[Mapping[int, float]]) -> None:
        """Append measured sizes."""
        pairs = list(zip(problems, times_ms, strict=True))
        self._append([{"problem": dict(problem), "ms": times} for problem, times in pairs])
        self.problems += problems
        self.times_ms += map(dict, times_ms)

    def after_the_last(self) -> frozenset[Problem]:
        """Return the sizes that came after the last configuration: there each could have been the fastest."""
        return frozenset(self.problems[self.before_the_last :])

    def portfolio(self) -> Portfolio:
        """Return the times as a portfolio without answers; sizes that nothing allows are left out."""
        rows = range(len(self.configurations))
        timed = [pair for pair in zip(self.problems, self.times_ms, strict=True) if pair[1]]
        return Portfolio(
            configurations=tuple(map(dict, self.configurations)),
            problems=tuple(dict(problem) for problem, _ in timed),
            median_ms=tuple(tuple(times.get(row) for _, times in timed) for row in rows),
        )


def candidates_of(
    records: Sequence[TunedRecord], kernel: Kernel, device: Device
) -> list[Configuration]:
    """Return the default, and of records portfolios, winners, what tied with them, and answers.

    They are in the space of the device. Those of records were verified on the records' devices.
    """
    found = [kernel.default()]
    for record in records:
        found += map(Configuration, record.portfolio.configurations)
        found += [Configuration(dict(plan.configuration)) for plan in record.plans()]
        races = [entry.race for entry in record.problems if entry.race]
        tied = [finalist for race in races for finalist in race.contenders if finalist.tied]
        found += [Configuration(dict(each.configuration)) for each in tied if each.configuration]
    return [one for one in dict.fromkeys(found) if is_member(kernel, one, device)]


def right_seeds(
    kernel: Kernel, device: Device, say: Callable[[str], object] = str
) -> list[Configuration]:
    """Return the seeds of a kernel that are right on its odd sizes; say why others are left out."""
    seeds = [
        seed for seed in map(kernel.completed, kernel.seeds) if is_member(kernel, seed, device)
    ]
    problems = tuple(kernel.edges_on(device) or [kernel.first_problem(device.backend)])
    with closing(Bench(Request(kernel, device, problems))) as bench:
        jobs = [bench.job(problem) for problem in problems]
        for seed, problem in product(seeds, problems):
            if kernel.allows(seed, problem):
                bench.compilers.submit(bench.compile_job(seed, problem))
        found = {seed: bench.verify_on(jobs, seed) for seed in seeds}
    for seed, measured in found.items():
        if measured and measured.status is not Status.OK:
            say(f"{seed} is left out: {measured.status}: {measured.message}")
    return [seed for seed, measured in found.items() if measured and measured.status is Status.OK]


def random_sizes(
    kernel: Kernel, device: Device, seed: int, thin_share: float = THIN_SHARE
) -> Iterator[Problem]:
    """Yield different problems, log-uniform in each field up to its largest declared value.

    A third are multiples of 64, a third of 8; ``thin_share`` of them have a thin side. Fields that are no sizes keep
    values of declared problems, those of each category about as often. Problems that are too large for the
    device, or too slow, are left out.
    """
    declared = kernel.problems.get(device.backend) or kernel.all_problems()
    fields = size_fields(kernel, declared[0])
    if not fields:
        raise UsageError(f"{kernel.name}: no integer field that may differ at run time")
    most = {name: max(problem[name] for problem in declared) for name in fields}
    counts = Counter(map(category_of, declared))
    largest = max(counts.values())
    even = [p for p in declared for _ in range(largest // counts[category_of(p)])]
    rng, known, in_vain = random.Random(seed), set[Problem](), 0
    while in_vain < _IN_VAIN:
        in_vain += 1
        multiple, thin = rng.choice(_MULTIPLES), rng.random() < thin_share and len(fields) > 1
        sizes = {}
        for name in fields:
            drawn = _log_uniform(rng, min(_LEAST, most[name]), most[name])
            sizes[name] = max(multiple, round(drawn / multiple) * multiple)
        if thin:
            name = rng.choice(fields)
            sizes[name] = round(_log_uniform(rng, 1, min(_THIN, most[name])))
        problem = rng.choice(even).replace(**sizes)
        if problem not in known and _is_feasible(kernel, device, problem):
            known.add(problem)
            in_vain = 0
            yield problem


def _log_uniform(rng: random.Random, least: float, most: float) -> float:
    return math.exp(rng.uniform(math.log(least), math.log(most)))


def _is_feasible(kernel: Kernel, device: Device, problem: Problem) -> bool:
    work = kernel.work_of(problem)
    if work is None:
        return True
    moved, peak = work.bytes_read + work.bytes_written, device.peak_gflop_per_s
    if MOST_SETS * moved > _MEMORY_SHARE * (device.memory_bytes or math.inf):
        return False
    computing_ms = work.flops / peak / 1e6 if peak else 0.0
    moving_ms = moved / device.peak_gb_per_s / 1e6 if device.peak_gb_per_s else 0.0
    return max(computing_ms, moving_ms) <= _LONGEST_MS


def measure_sizes(
    matrix: SizeMatrix,
    kernel: Kernel,
    device: Device,
    count: int,
    seed: int,
    seconds: float,
    say: Callable[[str], object] = str,
    thin_share: float = THIN_SHARE,
) -> bool:
    """Measure configurations of a matrix on random sizes; return whether all sizes are measured.

    ``count`` sizes that a configuration allows are drawn by the seed; those that the matrix has are not
    measured again. No size begins after ``seconds``.

    Raises
    ------
    NothingValidError
        If no configuration allows any of the sizes.
    """

    def is_allowed(problem: Problem) -> bool:
        return any(kernel.allows(each, problem) for each in matrix.configurations)

    tried = islice(random_sizes(kernel, device, seed, thin_share), _DRAWN * count)
    drawn = list(islice(filter(is_allowed, tried), count))
    if not drawn:
        raise NothingValidError(f"{kernel.name}: its configurations allow no random size")
    measured = set(matrix.problems)
    left = [problem for problem in drawn if problem not in measured]
    if not left:
        return True
    with closing(Bench(Request(kernel, device, (drawn[0],)))) as bench:
        end = bench.clock_s() + seconds
        binaries = Binaries(bench, matrix.configurations)
        chooser = Chooser(matrix, kernel, device, seed)
        begun = deque[tuple[list[Problem], list[_Pair]]]()
        while (left or begun) and bench.clock_s() < end:
            while left and len(begun) < _BEGUN:
                part, left = left[:_AT_ONCE], left[_AT_ONCE:]
                begun.append((part, [(p, number) for p in part for number in chooser.chosen(p)]))
                binaries.begin(begun[-1][1])
            part, pairs = begun.popleft()
            for problem, times_ms in _measured(bench, part, binaries.of(pairs), say):
                matrix.add([problem], [times_ms])
            if len(matrix.problems) % (10 * _AT_ONCE) < _AT_ONCE:
                done = len(drawn) - len(left) - sum(len(waiting) for waiting, _ in begun)
                say(f"{done} of {len(drawn)} sizes, {end - bench.clock_s():.0f} s left")
    return not left and not begun


#: A problem, and the number of a configuration.
_Pair: TypeAlias = tuple[Problem, int]


class Binaries:
    """Configurations with the binaries that problems need: those of a language differ by the size."""

    def __init__(self, bench: Bench, configurations: Sequence[Configuration]) -> None:
        self._bench, self._configurations = bench, configurations
        self._jobs = dict[Hashable, CompileJob]()
        self._entrants = dict[tuple[int, str], CompiledEntrant]()

    def begin(self, pairs: Sequence[_Pair]) -> None:
        """Begin to compile what was not compiled before, and return at once."""
        for pair in pairs:
            self._bench.compilers.submit(self._job(*pair))

    def of(self, pairs: Sequence[_Pair]) -> dict[_Pair, CompiledEntrant]:
        """Return what compiles, once it has; the rest is left out."""
        self.begin(pairs)
        found = dict[_Pair, CompiledEntrant]()
        for problem, number in pairs:
            job = self._job(problem, number)
            if binary := self._bench.compilers.result(job).binary:
                entrant = CompiledEntrant(self._configurations[number], binary)
                found[problem, number] = self._entrants.setdefault((number, job.key), entrant)
        if not self._entrants:
            kernel, device = self._bench.kernel, self._bench.device
            raise NothingValidError(
                f"{kernel.name}: no configuration to measure on {device.name}; name a record of such a "
                "device by --from"
            )
        return found

    def _job(self, problem: Problem, number: int) -> CompileJob:
        kernel = self._bench.kernel
        key = number, problem if kernel.language else kernel.static_of(problem)
        if key not in self._jobs:
            self._jobs[key] = self._bench.compile_job(self._configurations[number], problem)
        return self._jobs[key]


def _measured(
    bench: Bench,
    problems: Sequence[Problem],
    entrants: Mapping[_Pair, CompiledEntrant],
    say: Callable[[str], object],
) -> list[tuple[Problem, dict[int, float]]]:
    """Measure sizes; a pair that breaks or hangs the process is left out, and the others begin again.

    The times are by number of the configuration.
    """
    job, pairs = bench.job(problems[0], names=()), list(entrants)
    while True:
        sent = list(dict.fromkeys(entrants[pair] for pair in pairs))
        places = {entrant: place for place, entrant in enumerate(sent)}
        of_sizes = [[pair for pair in pairs if pair[0] == problem] for problem in problems]
        tasks = [
            SizeTask(problem, tuple(places[entrants[pair]] for pair in of_size))
            for problem, of_size in zip(problems, of_sizes, strict=True)
        ]
        try:
            times = bench.worker.ask(
                time_sizes,
                sent,
                tasks,
                job=job,
                timeout_s=_PAIR_S * max(1, len(pairs)),
                turn_limits_s=[_PAIR_S] * max(1, len(pairs)),
            )
        except ActorFailed as error:
            if error.turn < 0:
                raise AutotuneError(f"the device process failed: {error}") from error
            problem, number = pairs.pop(error.turn)
            left_out = entrants[problem, number].configuration
            say(f"{problem}: {left_out} is left out: {error}")
            continue
        return [
            (
                problem,
                {
                    number: found[place]
                    for (_, number), place in zip(of_size, task.entrants, strict=True)
                    if place in found
                },
            )
            for problem, of_size, task, found in zip(problems, of_sizes, tasks, times, strict=True)
        ]


class Chooser:
    """Chooses the configurations to measure on a size: all at first, then those that a fit promises."""

    def __init__(self, matrix: SizeMatrix, kernel: Kernel, device: Device, seed: int) -> None:
        self._matrix, self._kernel, self._device = matrix, kernel, device
        self._rng = random.Random(seed)
        self._fitted_at = _COMPLETE
        #: Of each configuration of the matrix.
        self._costs: list[Cost | None] = []
        #: Those chosen that the fit does not have.
        self._new = set[int]()

    def chosen(self, problem: Problem) -> tuple[int, ...]:
        """Return numbers of configurations that the problem allows."""
        allowed = [
            number
            for number, configuration in enumerate(self._matrix.configurations)
            if self._kernel.allows(configuration, problem)
        ]
        known = len(self._matrix.problems)
        is_of_sizes = all(isinstance(value, int) for value in problem.values())
        if known < _COMPLETE or len(allowed) <= _PROMISING + _RANDOM or not is_of_sizes:
            return tuple(allowed)
        grown = known - self._fitted_at
        if not self._costs or grown >= self._fitted_at or (grown >= _NEW and self._new):
            self._costs, self._fitted_at, self._new = self._fitted(), known, set()
        fields = self._kernel.filled(problem)
        times = {
            number: predicted_ms(cost, MULTIPLE, fields)
            for number in allowed
            if (cost := self._costs[number])
        }
        new = [number for number in allowed if number not in times]
        self._new.update(new)
        ranked = sorted(times, key=times.__getitem__)
        rest = ranked[_PROMISING:]
        some = self._rng.sample(rest, min(_RANDOM, len(rest)))
        return (*new, *ranked[:_PROMISING], *some)

    def _fitted(self) -> list[Cost | None]:
        """Fit the time of each configuration; None where it was never timed."""
        measured = self._matrix.portfolio()
        plans = _plans(measured, self._kernel, self._device)
        columns = range(len(measured.problems))
        fits = Predictor(measured, columns, plans, self._device.sm_count)
        curves = fits.curves(columns)
        return [
            fits.cost(plan, curve) if plan and curve else None
            for plan, curve in zip(plans, curves, strict=True)
        ]


def _plans(matrix: Portfolio, kernel: Kernel, device: Device) -> list[Plan | None]:
    """Return how configurations launch; None for one that was never timed."""
    plans = list[Plan | None]()
    for values, times in zip(matrix.configurations, matrix.median_ms, strict=True):
        timed = next((p for p, ms in zip(matrix.problems, times, strict=True) if ms), None)
        configuration = Configuration(dict(values))
        plan = plan_of(kernel, configuration, Problem(dict(timed)), device) if timed else None
        plans.append(plan)
    return plans


def fitted_to_sizes(
    record: TunedRecord,
    kernel: Kernel,
    matrix: Portfolio,
    deciding: Set[Problem] = frozenset(),
) -> tuple[TunedRecord, HeldOut]:
    """Return a record whose answers for other problems are fitted to times on random sizes.

    Second is what held-out sizes get from such fits. Configurations are chosen by their times on the sizes in
    ``deciding``, by those on all where these are few. A category on whose problems the record's portfolio has
    no time of what was chosen gets the first random size that has one in their place.

    Raises
    ------
    UsageError
        If there are too few sizes of a category.
    """
    where, device = f"{record.kernel} on {record.device.name}", record.device.planned_for()
    known = _timed(record.portfolio)
    categories, fits = by_category(matrix.problems) or {(): []}, dict[tuple[str, ...], SizeFit]()
    lacking = list[int]()
    predictions, shares, kept = (
        dict[tuple[str, ...], Prediction](),
        list[Any](),
        set[Configuration](),
    )
    needed = _ENOUGH if len(categories) == 1 else _ENOUGH_EACH
    most = min(MOST_CONFIGURATIONS, MOST_IN_ALL // len(categories))
    for category, columns in categories.items():
        count = len(columns)
        if count < needed:
            raise UsageError(
                f"{where}: {count} sizes{_of(category)} are too few to fit, {needed} are needed"
            )
        part = _columns(matrix, columns)
        plans = _plans(part, kernel, device)
        fits[category] = SizeFit(counted(part, plans), plans, device.sm_count, kernel.layout)
    for category, fit in fits.items():
        fit.others = [other for other in fits.values() if other is not fit]
        completed, spreads = fit.completed()
        decide = [n for n, each in enumerate(fit.matrix.problems) if Problem(each) in deciding]
        is_enough = len(decide) >= _COMPLETE
        chosen = fit.chosen(completed[:, decide] if is_enough else completed, spreads, most)
        held_out = fit.held_out(chosen)
        if held_out.measured < _ENOUGH_HELD_OUT:
            raise UsageError(
                f"{where}: {held_out.measured} answers on sizes{_of(category)} held out of the fit were "
                f"measured, {_ENOUGH_HELD_OUT} are needed; measure more sizes"
            )
        predictions[category] = fit.prediction(chosen, held_out)
        shares.append(held_out.shares)
        configurations = {Configuration(matrix.configurations[number]) for number in chosen}
        kept |= configurations
        if not known & {(category, each) for each in configurations}:
            # A table needs a time, which no chosen one may have at the first size.
            lacking += [
                c for c in categories[category] if any(matrix.median_ms[n][c] for n in chosen)
            ][:1]
    old = _joined(record.portfolio, _rows(_columns(matrix, lacking), kept))
    tables = [(table, category_of(table.rows[0].problem)) for table in old.tables]
    measured = _rows(old, kept)
    if not measured.configurations or any(category not in predictions for _, category in tables):
        measured = old  # categories that were not measured answer as before
    measured = msgspec.structs.replace(
        measured,
        tables=tuple(
            msgspec.structs.replace(table, prediction=predictions[category])
            for table, category in tables
            if category in predictions
        ),
    )
    record = msgspec.structs.replace(record, portfolio=measured)
    return refitted(record, kernel, measured), HeldOut(np.concatenate(shares))


def _of(category: Sequence[str]) -> str:
    return "".join(f" of {value}" for value in category)


def _timed(portfolio: Portfolio) -> set[tuple[tuple[str, ...], Configuration]]:
    """Return which configurations have a time on a problem of which category."""
    return {
        (category_of(problem), Configuration(values))
        for values, times in zip(portfolio.configurations, portfolio.median_ms, strict=True)
        for problem, ms in zip(portfolio.problems, times, strict=True)
        if ms
    }


def _joined(portfolio: Portfolio, further: Portfolio) -> Portfolio:
    """Return a portfolio with the problems of another one, each in a table of its own."""
    if not further.problems:
        return portfolio
    times, others = (
        dict(zip(map(Configuration, each.configurations), each.median_ms, strict=True))
        for each in (portfolio, further)
    )
    unknown, unknown_there = ((None,) * len(each.problems) for each in (portfolio, further))
    joined = {
        each: times.get(each, unknown) + others.get(each, unknown_there)
        for each in (*times, *others)
    }
    rows = [TableRow(problem=problem, plans=()) for problem in further.problems]
    return msgspec.structs.replace(
        portfolio,
        configurations=tuple(map(dict, joined)),
        problems=portfolio.problems + further.problems,
        median_ms=tuple(joined.values()),
        tables=(*portfolio.tables, *(AnswerTable(rows=(row,)) for row in rows)),
    )


def _rows(matrix: Portfolio, kept: Set[Configuration]) -> Portfolio:
    """Return some configurations of a matrix with their times."""
    rows = [n for n, each in enumerate(matrix.configurations) if Configuration(each) in kept]
    return msgspec.structs.replace(
        matrix,
        configurations=tuple(matrix.configurations[row] for row in rows),
        median_ms=tuple(matrix.median_ms[row] for row in rows),
    )


def _columns(matrix: Portfolio, columns: Sequence[int]) -> Portfolio:
    """Return some problems of a matrix with their times."""
    return msgspec.structs.replace(
        matrix,
        problems=tuple(matrix.problems[column] for column in columns),
        median_ms=tuple(tuple(row[column] for column in columns) for row in matrix.median_ms),
    )
