"""The content of a report as values: per problem the answer, the search, the finals. No layout.

A live run and stored rows both end here (see `sources`); the writers know nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from autotune.kernel.space import Space
from autotune.measure.measurement import Measurement, Status
from autotune.tuned.record import RaceResult, RecordedDevice, TunedProblem, TunedRecord
from autotune.values import Configuration, Problem, Value


@dataclass(frozen=True)
class ProblemContent:
    """All that is known about one problem."""

    problem: Problem
    #: One per configuration, in the order they were asked for; one that failed in the finals
    #: carries that failure.
    trials: tuple[Measurement, ...] = ()
    #: What the tuned record says: the answer. None where nothing was right.
    entry: TunedProblem | None = None
    #: The finals of the run; None where only the record is left of them.
    race: RaceResult | None = None

    @property
    def best_ms(self) -> float | None:
        """Return the smallest median of the search; None where nothing was right."""
        times = [trial.median_ms for trial in self.trials if trial.status is Status.OK]
        return min((time for time in times if time is not None), default=None)

    @property
    def winner(self) -> Measurement | None:
        """Return the trial of the recorded winner; None where it is not among the trials."""
        wanted = None if self.entry is None else dict(self.entry.configuration)
        return next((trial for trial in self.trials if dict(trial.configuration) == wanted), None)

    @property
    def is_superseded(self) -> bool:
        """Return whether the record holds another winner than these finals: from a more thorough run."""
        won = self.race and self.race.winner.configuration
        return bool(won and self.entry and won != self.entry.configuration)


@dataclass(frozen=True)
class ReportContent:
    """A report of one kernel on one device."""

    record: TunedRecord
    #: Every problem that was tuned now or is in the record.
    problems: tuple[ProblemContent, ...]
    space: Space | None = None
    #: How the run was made, for a person: command, seed, strategy and the like.
    run: Mapping[str, str] = field(default_factory=dict)

    @property
    def kernel(self) -> str:
        return self.record.kernel

    @property
    def device(self) -> RecordedDevice:
        return self.record.device

    @property
    def trials(self) -> int:
        """Return how many configurations were tried, over all problems."""
        return sum(len(problem.trials) for problem in self.problems)

    @cached_property
    def free(self) -> frozenset[str]:
        """Return the parameters that have a choice: of several values among the valid configurations."""
        if self.space is None:
            return frozenset(k for k, values in self.record.parameters.items() if len(values) > 1)
        rows = self.space.rows
        differs = rows.min(axis=0) != rows.max(axis=0) if len(rows) else ()
        return frozenset(
            k for k, is_free in zip(self.space.names, differs, strict=False) if is_free
        )

    def chosen(self, configuration: Mapping[str, Value]) -> Configuration:
        """Return a configuration without what has no choice or no effect in it."""
        matters = relevant(configuration, self.space)
        kept = {
            name: value
            for name, value in configuration.items()
            if name in self.free and name in matters
        }
        return Configuration(kept or dict(configuration))


def relevant(configuration: Mapping[str, Value], space: Space | None) -> Mapping[str, Value]:
    """Return the part of a configuration that has an effect; all of it where it is of an older space."""
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
    """Join what was searched with what the record says.

    Every problem gets its entry of the record, and entries of other runs follow with no trials.
    """
    joined = [replace(problem, entry=record.tuned(problem.problem)) for problem in problems]
    searched = {problem.problem for problem in problems}
    others = [
        ProblemContent(Problem(dict(entry.problem)), entry=entry)
        for entry in record.problems
        if Problem(dict(entry.problem)) not in searched
    ]
    return ReportContent(record, (*joined, *others), space, dict(run or {}))
