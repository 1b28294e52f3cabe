"""What a report says, as values: per problem the answer, the search, the finals. No layout.

A live run and stored rows both end here (see `sources`); the writers know nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from autotune.kernel.space import Space
from autotune.measure.limits import Limits
from autotune.measure.measurement import Measurement, Status
from autotune.run.selection import Ratio
from autotune.tuned import record as tuned
from autotune.values import Configuration, Problem, Value


@dataclass(frozen=True)
class Resources:
    """What one configuration takes per thread and per block; None where unknown."""

    registers: int | None = None
    spill_bytes: int | None = None
    #: Static and dynamic shared memory of one block.
    shared_bytes: int | None = None


@dataclass(frozen=True)
class FinalistContent:
    """One configuration of the finals."""

    configuration: Configuration
    median_ms: float
    interval_ms: tuple[float, float]
    samples: int
    #: Its time over the winner's: above 1 it is slower.
    ratio: Ratio
    tied: bool
    won: bool
    resources: Resources = Resources()
    #: Median of calls back to back; None where not taken.
    hot_ms: float | None = None


@dataclass(frozen=True)
class BaselineContent:
    """A vendor library in the same finals."""

    name: str
    median_ms: float
    #: Its time over the winner's: above 1 the winner is faster.
    ratio: Ratio
    hot_ms: float | None = None


@dataclass(frozen=True)
class ProblemContent:
    """All that is known about one problem.

    Parameters
    ----------
    problem : Problem
        Its sizes.
    trials : tuple of Measurement
        One per configuration, in the order they were asked for; one that failed in the finals
        carries that failure.
    entry : tuned.Entry, optional
        What the tuned record says: the answer. None where nothing was right.
    finalists, baselines : tuple
        Best first; empty where only the record is left of the finals.
    seconds : float, optional
        Wall time of the problem, finals included.
    """

    problem: Problem
    trials: tuple[Measurement, ...] = ()
    entry: tuned.Entry | None = None
    finalists: tuple[FinalistContent, ...] = ()
    baselines: tuple[BaselineContent, ...] = ()
    seconds: float | None = None

    @property
    def best_ms(self) -> float | None:
        """Smallest median of the search; None where nothing was right."""
        times = [one.median_ms for one in self.trials if one.status is Status.OK]
        return min((time for time in times if time is not None), default=None)

    @property
    def winner(self) -> Measurement | None:
        """The trial of the recorded winner; None where it is not among the trials."""
        wanted = None if self.entry is None else dict(self.entry.configuration)
        return next((one for one in self.trials if dict(one.configuration) == wanted), None)

    @property
    def is_superseded(self) -> bool:
        """Whether the record holds another winner than these finals: from a more thorough run."""
        won = next((one for one in self.finalists if one.won), None)
        return bool(
            won and self.entry and dict(won.configuration) != dict(self.entry.configuration)
        )


@dataclass(frozen=True)
class ReportContent:
    """A report of one kernel on one device.

    Parameters
    ----------
    record : tuned.TunedRecord
        The answers, the device and what they were found with.
    problems : tuple of ProblemContent
        Every problem that was tuned now or is in the record.
    space : Space, optional
        The valid configurations, and what constraints removed.
    limits : Limits, optional
        What the device reaches.
    run : mapping of str to str
        How the run was made, for a person: command, seed, strategy and the like.
    """

    record: tuned.TunedRecord
    problems: tuple[ProblemContent, ...]
    space: Space | None = None
    limits: Limits | None = None
    run: Mapping[str, str] = field(default_factory=dict)

    @property
    def kernel(self) -> str:
        return self.record.kernel

    @property
    def device(self) -> tuned.RecordedDevice:
        return self.record.device

    @property
    def trials(self) -> int:
        """Configurations tried, over all problems."""
        return sum(len(one.trials) for one in self.problems)

    @cached_property
    def free(self) -> frozenset[str]:
        """Parameters that have a choice: of several values among the valid configurations."""
        if self.space is None:
            return frozenset(k for k, values in self.record.parameters.items() if len(values) > 1)
        rows = self.space.rows
        differs = rows.min(axis=0) != rows.max(axis=0) if len(rows) else ()
        return frozenset(k for k, one in zip(self.space.names, differs, strict=False) if one)

    def chosen(self, configuration: Mapping[str, Value]) -> Configuration:
        """A configuration without what has no choice or no effect in it."""
        kept = {
            name: value
            for name, value in configuration.items()
            if name in self.free and applies(name, configuration, self.space)
        }
        return Configuration(kept or dict(configuration))


def applies(name: str, configuration: Mapping[str, Value], space: Space | None) -> bool:
    """Whether a parameter matters in a configuration; where it does not it is a placeholder."""
    if space is None or not space.applicability or not _is_declared(configuration, space):
        return True
    position = space.names.index(name)
    row = [space.parameters[one].index(configuration[one]) for one in space.names]
    return all(
        table.values[tuple(row[i] for i in table.positions)]
        for table in space.applicability
        if position in table.governs
    )


def _is_declared(configuration: Mapping[str, Value], space: Space) -> bool:
    """Whether every value is one of the space's: stored rows may come from an older space."""
    return set(configuration) == set(space.parameters) and all(
        configuration[name] in values for name, values in space.parameters.items()
    )


def content_of(
    record: tuned.TunedRecord,
    problems: Sequence[ProblemContent],
    space: Space | None = None,
    limits: Limits | None = None,
    run: Mapping[str, str] | None = None,
) -> ReportContent:
    """Join what was searched with what the record says.

    Every problem gets its entry of the record, and entries of other runs follow with no trials.
    """
    joined = [
        ProblemContent(
            problem=one.problem,
            trials=one.trials,
            entry=record.entry(one.problem),
            finalists=one.finalists,
            baselines=one.baselines,
            seconds=one.seconds,
        )
        for one in problems
    ]
    searched = {one.problem for one in problems}
    others = [
        ProblemContent(Problem(dict(entry.problem)), entry=entry)
        for entry in record.entries
        if Problem(dict(entry.problem)) not in searched
    ]
    return ReportContent(record, (*joined, *others), space, limits, dict(run or {}))


def resources_of(measurement: Measurement) -> Resources:
    """Resources of the function that needs most registers, with the launch's shared memory."""
    entry = max(measurement.entries, key=lambda one: one.registers or 0, default=None)
    if entry is None:
        return Resources(shared_bytes=measurement.dynamic_shared_bytes or None)
    static = entry.shared_bytes
    dynamic = measurement.dynamic_shared_bytes
    shared = None if static is None and not dynamic else (static or 0) + dynamic
    return Resources(entry.registers, entry.spill_bytes, shared)
