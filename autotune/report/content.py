"""The content of a report as values, without layout: a record, and the search of each problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from autotune.kernel.space import Space
from autotune.measure.measurement import Measurement, Status
from autotune.report import wording
from autotune.tuned.record import RecordedDevice, TunedProblem, TunedRecord
from autotune.values import Configuration, Problem, Value


@dataclass(frozen=True)
class ProblemContent:
    """One problem: its answer and its search."""

    problem: Problem
    #: One per configuration, in the order they were asked for; one that failed in the finals
    #: carries that failure.
    trials: tuple[Measurement, ...] = ()
    #: The answer, with its finals, from the tuned record; None where nothing was right.
    entry: TunedProblem | None = None
    #: Whether the record holds another winner than this search's: from a more thorough run.
    is_superseded: bool = False

    @property
    def name(self) -> str:
        return wording.one_line(str(self.problem)) or "the problem"

    @property
    def best_ms(self) -> float | None:
        """Smallest median of the search; None where nothing was right."""
        times = [trial.median_ms for trial in self.trials if trial.status is Status.OK]
        return min((time for time in times if time is not None), default=None)

    @property
    def winner(self) -> Measurement | None:
        """The trial of the recorded winner; None where it is not among the trials."""
        wanted = None if self.entry is None else dict(self.entry.configuration)
        return next((trial for trial in self.trials if dict(trial.configuration) == wanted), None)

    @property
    def status_counts(self) -> dict[Status, int]:
        """Number of trials that ended in each way, in the order of the statuses."""
        met = [trial.status for trial in self.trials]
        return {status: met.count(status) for status in Status if status in met}


@dataclass(frozen=True)
class ReportContent:
    """The content of a report of one kernel on one device."""

    record: TunedRecord
    #: All problems that were tuned now or are in the record.
    problems: tuple[ProblemContent, ...]
    space: Space | None = None
    #: Command, seed, strategy and other settings of the run, as text.
    run: Mapping[str, str] = field(default_factory=dict)

    @property
    def kernel(self) -> str:
        return self.record.kernel

    @property
    def device(self) -> RecordedDevice:
        return self.record.device

    @property
    def trials(self) -> int:
        """Number of configurations tried, over all problems."""
        return sum(len(problem.trials) for problem in self.problems)

    @cached_property
    def free(self) -> frozenset[str]:
        """Parameters that have a choice: of several values among the valid configurations."""
        if self.space is None:
            return frozenset(k for k, values in self.record.parameters.items() if len(values) > 1)
        rows = self.space.rows
        differs = rows.min(axis=0) != rows.max(axis=0) if len(rows) else ()
        return frozenset(
            k for k, is_free in zip(self.space.names, differs, strict=False) if is_free
        )

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
        """The answers."""
        return [problem.entry for problem in self.problems if problem.entry]


def relevant(configuration: Mapping[str, Value], space: Space | None) -> Mapping[str, Value]:
    """Return the parameters that have an effect; all where the configuration is of an older space."""
    if space is None or not space.applicability:  # nothing is conditional
        return configuration
    is_declared = set(configuration) == set(space.parameters) and all(
        configuration[name] in values for name, values in space.parameters.items()
    )
    return space.relevant(configuration) if is_declared else configuration


def content_of(
    record: TunedRecord,
    problems: Sequence[ProblemContent],
    space: Space | None = None,
    run: Mapping[str, str] | None = None,
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
    return ReportContent(record, (*joined, *others), space, dict(run or {}))
