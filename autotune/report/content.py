"""The values of a report, without layout, from a run or from rows of the store."""

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

#: Maximum number of the newest rows of one problem in a report.
_MAX_ROWS = 10_000
#: Maximum number of the fastest rows of one problem that are added to them.
_MAX_FASTEST = 100
#: A figure never mixes rows that differ in one of these: they were measured in different ways.
_kind = attrgetter("device_uuid", "driver", "toolchain", "source", "arguments", "timing")


@dataclass(frozen=True)
class ProblemContent:
    """A problem with its tuned entry and the trials of its search."""

    problem: Problem
    #: One trial per configuration, in search order. A failure in the finals replaces the search result.
    trials: tuple[Measurement, ...] = ()
    #: The record's entry with its finals; None without a correct configuration.
    entry: TunedProblem | None = None

    @property
    def name(self) -> str:
        return wording.one_line(str(self.problem)) or "the problem"

    @property
    def best_ms(self) -> float | None:
        """The smallest median time of the search; None without a correct configuration."""
        times = [trial.median_ms for trial in self.trials if trial.status is Status.OK]
        return min((time for time in times if time is not None), default=None)

    @property
    def winner(self) -> Measurement | None:
        """The trial of the recorded winner, or None."""
        return None if self.entry is None else self.trial_of(self.entry.configuration)

    def trial_of(self, configuration: Mapping[str, Value]) -> Measurement | None:
        """Return the trial of a configuration, or None."""
        wanted = dict(configuration)
        return next((trial for trial in self.trials if dict(trial.configuration) == wanted), None)

    @property
    def status_counts(self) -> dict[Status, int]:
        """The number of trials by status, in the order of `Status`."""
        met = [trial.status for trial in self.trials]
        return {status: met.count(status) for status in Status if status in met}


@dataclass(frozen=True)
class ReportContent:
    """The content of a report of one kernel on one device."""

    record: TunedRecord
    #: The problems of this run and of the record.
    problems: tuple[ProblemContent, ...]
    space: Space | None = None

    @property
    def trials(self) -> int:
        """The number of configurations tried, summed over all problems."""
        return sum(len(problem.trials) for problem in self.problems)

    @cached_property
    def free(self) -> frozenset[str]:
        """The parameters with several values among the valid configurations."""
        if self.space is None:
            return frozenset(k for k, values in self.record.parameters.items() if len(values) > 1)
        return self.space.free

    def chosen(self, configuration: Mapping[str, Value]) -> Configuration:
        """Return a configuration without parameters that have a single value or no effect."""
        matters = relevant(configuration, self.space)
        kept = {
            name: value
            for name, value in configuration.items()
            if name in self.free and name in matters
        }
        return Configuration(kept or dict(configuration))

    def text(self, configuration: Mapping[str, Value]) -> str:
        """Return `chosen` of a configuration as one line."""
        return wording.one_line(str(self.chosen(configuration)))

    @property
    def entries(self) -> list[TunedProblem]:
        """The tuned entries."""
        return [problem.entry for problem in self.problems if problem.entry]

    @property
    def measured_limits(self) -> dict[str, list[float]]:
        """The measured limits of the device by name, in GB/s or GFLOP/s, ascending.

        A limit is a winner's rate divided by its share of the limit; see `device_limit`. A limit can have
        several values if winners come from several runs or cards; ``read+copy`` has one for each mix.
        """
        measured: dict[str, list[float]] = {}
        for entry in self.entries:
            rate = entry.gflop_per_s if entry.limit_name in ARITHMETIC else entry.gb_per_s
            if entry.limit_name and entry.limit_fraction and rate:
                measured.setdefault(entry.limit_name, []).append(rate / entry.limit_fraction)
        return {name: sorted(rates) for name, rates in measured.items()}


def relevant(configuration: Mapping[str, Value], space: Space | None) -> Mapping[str, Value]:
    """Return the parameters with an effect; all of them if the configuration is from an older space."""
    if space is None or not space.applicability:  # nothing is conditional
        return configuration
    return space.relevant(configuration) if space.declares(configuration) else configuration


def content_of(
    record: TunedRecord,
    problems: Sequence[ProblemContent],
    space: Space | None = None,
) -> ReportContent:
    """Return the content of searches and a record.

    Each searched problem gets its entry of the record. The record's other entries follow, without trials.
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
    """Return the content of a finished run, including problems without a winner.

    ``record`` is the record that the run was merged into, from which lookup answers.
    """
    problems = [ProblemContent(result.problem, result.trials) for result in run.problems]
    return content_of(record, problems, run.space)


def of_run(run: RunResult, record: TunedRecord) -> ReportContent:
    """Return the content of a run without the record's other problems."""
    content = from_run(run, record)
    now = {result.problem for result in run.problems}
    return replace(content, problems=tuple(p for p in content.problems if p.problem in now))


def from_store(store: Store, record: TunedRecord, space: Space | None = None) -> ReportContent:
    """Return the content of a record and the store's rows of its kernel and device; see `from_rows`.

    If a problem has too many rows for a page, only the newest and the fastest are used.
    """
    last_ones = store.newest_of_scopes(record.kernel, record.device.name)
    scopes = [last.scope for found in _comparable(last_ones, record).values() for last in found]
    rows = [row for scope in scopes for row in rows_of(store, scope)]
    return from_rows(sorted(rows, key=attrgetter("id")), record, space)


def rows_of(store: Store, scope: str) -> list[Row]:
    """Return the newest and the fastest rows of a scope, oldest first."""
    rows = {row.id: row for row in store.rows(scope=scope, most=_MAX_ROWS)}
    rows |= {row.id: row for row in store.fastest(scope, _MAX_FASTEST)}
    return [rows[number] for number in sorted(rows)]


def from_rows(
    rows: Sequence[Row], record: TunedRecord, space: Space | None = None
) -> ReportContent:
    """Return the content of a record and rows of its kernel, which are given oldest first.

    Without rows, the content is that of the record. Only rows with the same device, driver, toolchain, source
    and timing share a problem. Rows that match the record's entry are preferred, else the newest.
    """
    chosen = _comparable(rows, record)
    problems = [
        ProblemContent(problem, newest(row.measurement for row in found))
        for problem, found in chosen.items()
    ]
    return content_of(record, problems, space)


def _comparable(rows: Iterable[Row], record: TunedRecord) -> dict[Problem, list[Row]]:
    """Return by problem the rows of the record's kernel and device that were measured in the same way."""
    by_problem: dict[Problem, list[Row]] = {}
    for row in rows:
        if row.device_name == record.device.name and _is_of(row, record):
            by_problem.setdefault(row.problem, []).append(row)
    return {
        problem: _measured_alike(found, record.tuned(problem))
        for problem, found in by_problem.items()
    }


def _is_of(row: Row, record: TunedRecord) -> bool:
    """Return whether a row belongs to the record's kernel, not to another kernel of the same name."""
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
