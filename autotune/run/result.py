"""The result of a run, by problem: measurements, final race, winner, disqualified configurations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autotune.answers.table import Portfolio
from autotune.errors import AutotuneError
from autotune.kernel.definition import Definition
from autotune.kernel.space import Space
from autotune.measure.measurement import Measurement, Status
from autotune.measure.race import Race
from autotune.measure.roofline import Limits
from autotune.run.request import Request
from autotune.run.verdict import judge
from autotune.store.flat import row_of
from autotune.tuned.record import RaceResult, TunedRecord
from autotune.values import Configuration, Problem, category_of

_WRONG = frozenset(
    {
        Status.WRONG_RESULT,
        Status.UNSAFE,
        Status.NOT_DETERMINISTIC,
        Status.CRASHED,
        Status.TIMED_OUT,
    }
)

#: Beginnings of `SearchSession.ended_by` if the budget ended the search.
_BY_BUDGET = ("time", "budget")


@dataclass(frozen=True)
class ProblemResult:
    """The result of one problem."""

    problem: Problem
    #: Measurements in the order of the search, new or remembered.
    measured: tuple[Measurement, ...]
    #: Measurements of configurations that failed verification in the finals.
    disqualified: tuple[Measurement, ...] = ()
    #: The final race; None if no configuration passed verification.
    race: Race | None = None
    #: The outcome of the race; None if no configuration passed verification.
    result: RaceResult | None = None
    seconds: float = 0.0
    #: Number of finalists in which compute-sanitizer found no fault; None if it did not run.
    sanitized: int | None = None
    #: Reason why the search ended; see `SearchSession.ended_by`.
    ended_by: str = ""
    #: Number of configurations that agree on the expected results; 0 if a reference computes them.
    agreed: int = 0
    #: Smallest and largest finite number of each array of the random data.
    drawn: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    #: Library and device that evaluated the reference of the random data; empty if it is unknown.
    reference: str = ""

    @property
    def trials(self) -> tuple[Measurement, ...]:
        """One measurement per configuration, in search order; for a disqualified one, its failure."""
        return newest((*self.measured, *self.disqualified))

    @property
    def winner(self) -> Configuration | None:
        """The configuration that won; None if no configuration passed verification."""
        return Configuration(self.result.winner.configuration) if self.result else None


def newest(measured: Iterable[Measurement]) -> tuple[Measurement, ...]:
    """Return the last measurement of each configuration, in the order of the first measurements."""
    return tuple({trial.configuration: trial for trial in measured}.values())


def wrong_somewhere(results: Iterable[ProblemResult]) -> frozenset[Configuration]:
    """Return configurations that were wrong, hung or crashed on a problem.

    They must not answer for other problems.
    """
    return frozenset(
        row.configuration
        for result in results
        for rows, statuses in ((result.measured, _WRONG), (result.disqualified, frozenset(Status)))
        for row in rows
        if row.status in statuses
    )


def without_wrong(results: Sequence[ProblemResult], request: Request) -> list[ProblemResult]:
    """Return results without finalists that failed in the finals of another problem of their category.

    Such a configuration is wrong at a size for which `lookup` could answer with it.
    """
    return [_without_wrong(found, results, request) for found in results]


def _without_wrong(
    found: ProblemResult, results: Sequence[ProblemResult], request: Request
) -> ProblemResult:
    faults = {
        row.configuration: replace(
            row, message=f"on another problem, {other.problem}: {row.message}"
        )
        for other in results
        if other is not found and category_of(other.problem) == category_of(found.problem)
        for row in other.disqualified
        if row.status in (Status.WRONG_RESULT, Status.UNSAFE, Status.CRASHED)
    }
    race = found.race
    if race is None or not any(f.configuration in faults for f in race.finalists):
        return found
    kept = [
        place
        for place, contender in enumerate(race.contenders)
        if contender.vendor or contender.configuration not in faults
    ]
    left = replace(
        race,
        contenders=tuple(race.contenders[place] for place in kept),
        samples=tuple(race.samples[place] for place in kept),
    )
    result = judge(left, request.objective, request.seed)
    wrong = [faults[f.configuration] for f in race.finalists if f.configuration in faults]
    return replace(
        found,
        race=left if result else None,
        result=result,
        disqualified=(*found.disqualified, *wrong),
    )


@dataclass(frozen=True)
class RunResult:
    """The result of a run."""

    request: Request
    problems: tuple[ProblemResult, ...]
    space: Space
    run_id: int
    definition: Definition
    toolchain: str
    #: The portfolio matrix; None for a run of one problem.
    portfolio: Portfolio | None = None
    #: Times on tuned and on random problem sizes, to which answers for other sizes are fitted; None if not timed.
    sizes: Portfolio | None = None
    #: Measured limits of the device; empty if they are unknown.
    limits: Limits = field(default_factory=dict)
    #: Inputs whose missing elements verification would not notice.
    unseen: tuple[str, ...] = ()
    #: Clear differences of winners from the reference on values that the data never hold.
    differs: Mapping[Configuration, tuple[str, ...]] = field(default_factory=dict)
    #: Ctrl-C or the error that ended the run before all problems were finished; None if the run is complete.
    ended: AutotuneError | None = None
    #: The tuned record of the problems that have a winner; None for a run of one configuration.
    record: TunedRecord | None = None

    @property
    def solved(self) -> tuple[ProblemResult, ...]:
        """The problems that have a winner."""
        return tuple(found for found in self.problems if found.result is not None)

    @property
    def spent_budget(self) -> bool:
        """True if the budget ended a search before it tried all configurations."""
        return any(found.ended_by.startswith(_BY_BUDGET) for found in self.problems)

    def rows(self) -> list[dict[str, Any]]:
        """Return all measurements as plain values; see `row_of`."""
        kernel, device = self.request.kernel.name, self.request.device.name
        return [
            {
                **row_of(kernel, tried.problem, measurement, device),
                "timing": self.request.timing_of(tried.problem).value,
            }
            for tried in self.problems
            for measurement in tried.trials
        ]

    def require_complete(self) -> None:
        """Raise the error that ended the run early."""
        if self.ended is not None:
            raise self.ended
