"""The content of a report as values, without layout, made from a run or from rows of the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING

from autotune.kernel.space import Space
from autotune.measure.measurement import Measurement, Status
from autotune.measure.roofline import ARITHMETIC
from autotune.report import wording
from autotune.run.result import newest
from autotune.tuned.record import TunedProblem, TunedRecord
from autotune.values import Configuration, Problem, Value

if TYPE_CHECKING:
    from autotune.run.result import RunResult
    from autotune.store import Row, Store

#: Maximum number of rows of one problem in a report, and the number of the fastest among them.
_MOST_ROWS, _FASTEST = 10_000, 100
#: Rows that differ in one of these were measured in different ways and never share a figure.
_kind = attrgetter("device_uuid", "driver", "toolchain", "source", "arguments", "timing")


@dataclass(frozen=True)
class ProblemContent:
    """One problem: its answer and its search."""

    problem: Problem
    #: One trial per configuration, in the order of the search; a failure in the finals replaces
    #: the result of the search.
    trials: tuple[Measurement, ...] = ()
    #: The tuned entry with its finals, from the record; None without a correct configuration.
    entry: TunedProblem | None = None

    @property
    def name(self) -> str:
        return wording.one_line(str(self.problem)) or "the problem"

    @property
    def best_ms(self) -> float | None:
        """Smallest median of the search; None without a correct configuration."""
        times = [trial.median_ms for trial in self.trials if trial.status is Status.OK]
        return min((time for time in times if time is not None), default=None)

    @property
    def winner(self) -> Measurement | None:
        """The trial of the recorded winner, or None."""
        wanted = None if self.entry is None else dict(self.entry.configuration)
        return next((trial for trial in self.trials if dict(trial.configuration) == wanted), None)

    @property
    def status_counts(self) -> dict[Status, int]:
        """Number of trials by status, in the order of the statuses."""
        met = [trial.status for trial in self.trials]
        return {status: met.count(status) for status in Status if status in met}


@dataclass(frozen=True)
class ReportContent:
    """The content of a report of one kernel on one device."""

    record: TunedRecord
    #: All problems that were tuned now or are in the record.
    problems: tuple[ProblemContent, ...]
    space: Space | None = None

    @property
    def trials(self) -> int:
        """Number of configurations tried, over all problems."""
        return sum(len(problem.trials) for problem in self.problems)

    @cached_property
    def free(self) -> frozenset[str]:
        """Parameters with several values among the valid configurations."""
        if self.space is None:
            return frozenset(k for k, values in self.record.parameters.items() if len(values) > 1)
        return self.space.free

    def chosen(self, configuration: Mapping[str, Value]) -> Configuration:
        """Return a configuration without parameters that have no choice or no effect."""
        matters = relevant(configuration, self.space)
        kept = {
            name: value
            for name, value in configuration.items()
            if name in self.free and name in matters
        }
        return Configuration(kept or dict(configuration))

    def text(self, configuration: Mapping[str, Value]) -> str:
        """Return a configuration on one line, without parameters that have no choice or effect."""
        return wording.one_line(str(self.chosen(configuration)))

    @property
    def entries(self) -> list[TunedProblem]:
        """The tuned entries."""
        return [problem.entry for problem in self.problems if problem.entry]

    @property
    def measured_limits(self) -> dict[str, list[float]]:
        """The measured limits of the device by name: GB/s or GFLOP/s, ascending.

        A limit is a winner's rate over its share of that limit. Winners of several runs or cards
        may have been compared with several measurements of one limit.
        """
        measured: dict[str, list[float]] = {}
        for entry in self.entries:
            rate = entry.gflop_per_s if entry.limit_name in ARITHMETIC else entry.gb_per_s
            if entry.limit_name and entry.limit_fraction and rate:
                measured.setdefault(entry.limit_name, []).append(rate / entry.limit_fraction)
        return {name: sorted(rates) for name, rates in measured.items()}


def relevant(configuration: Mapping[str, Value], space: Space | None) -> Mapping[str, Value]:
    """Return the parameters that have an effect; all, if the configuration is of an older space."""
    if space is None or not space.applicability:  # nothing is conditional
        return configuration
    return space.relevant(configuration) if space.declares(configuration) else configuration


def content_of(
    record: TunedRecord,
    problems: Sequence[ProblemContent],
    space: Space | None = None,
) -> ReportContent:
    """Join searches with the record.

    Each problem gets its entry of the record. Entries of other runs follow, without trials.
    """
    joined = [replace(problem, entry=record.tuned(problem.problem)) for problem in problems]
    searched = {problem.problem for problem in problems}
    others = [
        ProblemContent(Problem(dict(entry.problem)), entry=entry)
        for entry in record.problems
        if Problem(dict(entry.problem)) not in searched
    ]
    return ReportContent(record, (*joined, *others), space)


# ---------------------------------------------------------------------- from a run, from rows


def from_run(run: RunResult, record: TunedRecord) -> ReportContent:
    """Return the content of a run that just ended, problems without a winner included.

    ``record`` is the one that lookup answers from, after the run was merged into it.
    """
    problems = [ProblemContent(result.problem, result.trials) for result in run.problems]
    return content_of(record, problems, run.space)


def of_run(run: RunResult, record: TunedRecord) -> ReportContent:
    """Return the content of a run without the record's other problems."""
    content = from_run(run, record)
    now = {result.problem for result in run.problems}
    return replace(content, problems=tuple(p for p in content.problems if p.problem in now))


def from_store(store: Store, record: TunedRecord, space: Space | None = None) -> ReportContent:
    """Return the content of a kernel's rows on the record's device, as `from_rows` makes it.

    Of many rows of a problem it takes the newest and the fastest: as many as a page can draw.
    """
    last_ones = store.newest_of_scopes(record.kernel, record.device.name)
    scopes = [last.scope for found in _comparable(last_ones, record).values() for last in found]
    rows = [row for scope in scopes for row in rows_of(store, scope)]
    return from_rows(sorted(rows, key=attrgetter("id")), record, space)


def rows_of(store: Store, scope: str) -> list[Row]:
    """Return rows of one scope, oldest first: at most the newest and the fastest."""
    rows = {row.id: row for row in store.rows(scope=scope, most=_MOST_ROWS)}
    rows |= {row.id: row for row in store.fastest(scope, _FASTEST)}
    return [rows[number] for number in sorted(rows)]


def from_rows(
    rows: Sequence[Row], record: TunedRecord, space: Space | None = None
) -> ReportContent:
    """Return the content of a kernel's rows, oldest first, on the record's device.

    Without rows it is the content of the record alone. Rows of one problem share their device,
    driver, toolchain, source and timing: those of the record's entry where there are such rows,
    else those of the newest row.
    """
    chosen = _comparable(rows, record)
    problems = [
        ProblemContent(problem, newest(row.measurement for row in found))
        for problem, found in chosen.items()
    ]
    return content_of(record, problems, space)


def _comparable(rows: Iterable[Row], record: TunedRecord) -> dict[Problem, list[Row]]:
    """Return the record's rows that were measured in the same way, by problem."""
    by_problem: dict[Problem, list[Row]] = {}
    for row in rows:
        if row.device_name == record.device.name and _is_of(row, record):
            by_problem.setdefault(row.problem, []).append(row)
    return {
        problem: _measured_alike(found, record.tuned(problem))
        for problem, found in by_problem.items()
    }


def _is_of(row: Row, record: TunedRecord) -> bool:
    """Return whether a row is of the record's kernel, and not of another kernel of that name."""
    fields = set(row.problem) - set(record.layout)
    is_declared = record.is_declared(row.measurement.configuration)
    return row.kernel == record.kernel and is_declared and fields == set(record.fields)


def _measured_alike(rows: Sequence[Row], entry: TunedProblem | None) -> list[Row]:
    """Return the newest rows of one kind, preferably the kind of the record's entry."""
    fitting = [
        row
        for row in rows
        if entry and (row.source, row.timing) == (entry.origin.source, entry.race.timing)
    ]
    kind = _kind((fitting or rows)[-1])
    return [row for row in rows if _kind(row) == kind]
