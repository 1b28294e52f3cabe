"""The result of a run and of each of its problems. Values only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from autotune.errors import AutotuneError
from autotune.kernel.space import Space
from autotune.measure.limits import Limits
from autotune.measure.measurement import Measurement, Status
from autotune.measure.race import Race
from autotune.run.request import Request
from autotune.store.flat import row_of
from autotune.tuned.record import Portfolio, RaceResult, TunedRecord
from autotune.values import Configuration, Problem

_WRONG = frozenset(
    {
        Status.WRONG_RESULT,
        Status.UNSAFE,
        Status.NOT_DETERMINISTIC,
        Status.CRASHED,
        Status.TIMED_OUT,
    }
)

#: How begins what `SearchSession.ended_by` says of a search that its budget ended.
_BY_BUDGET = ("time", "budget")


@dataclass(frozen=True)
class ProblemResult:
    """The result of one problem."""

    problem: Problem
    #: In the order they were asked for, remembered ones included.
    measured: tuple[Measurement, ...]
    #: Rows of those that failed in the finals or before them.
    disqualified: tuple[Measurement, ...] = ()
    #: The finals and their outcome; None where nothing was right.
    race: Race | None = None
    result: RaceResult | None = None
    seconds: float = 0.0
    #: Finalists in which compute-sanitizer found nothing; None where it was not asked.
    sanitized: int | None = None
    #: Why the search ended; see `SearchSession.ended_by`.
    ended_by: str = ""

    @property
    def winner(self) -> Configuration | None:
        """Return the configuration that won; None where nothing was right."""
        return Configuration(self.result.winner.configuration) if self.result else None


def wrong_somewhere(results: Iterable[ProblemResult]) -> frozenset[Configuration]:
    """Return configurations that were wrong, hung or crashed on some problem: they answer for no other."""
    return frozenset(
        row.configuration
        for result in results
        for rows, statuses in ((result.measured, _WRONG), (result.disqualified, frozenset(Status)))
        for row in rows
        if row.status in statuses
    )


@dataclass(frozen=True)
class RunResult:
    """The result of a run."""

    request: Request
    problems: tuple[ProblemResult, ...]
    space: Space
    run_id: int
    source: str
    toolchain: str
    #: Finalists of all problems on every problem; None for a run of one problem.
    portfolio: Portfolio | None = None
    #: What the device was measured to reach; None where that is not known.
    limits: Limits | None = None
    #: What ended the run before all problems were decided: Ctrl-C, or an error; None: nothing did.
    ended: AutotuneError | None = None
    #: The tuned record of the problems that have a winner; None for a run of one configuration.
    record: TunedRecord | None = None

    @property
    def solved(self) -> tuple[ProblemResult, ...]:
        """Return the problems that have a winner."""
        return tuple(found for found in self.problems if found.result is not None)

    @property
    def spent_budget(self) -> bool:
        """Return whether the budget ended a search that had something left to try."""
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
            for measurement in tried.measured
        ]

    def require_complete(self) -> None:
        """Raise what ended the run early."""
        if self.ended is not None:
            raise self.ended
