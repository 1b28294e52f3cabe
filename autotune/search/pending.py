"""Verifies the pending rows of a search, once the reference is evaluated."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from typing import Protocol

from autotune.measure.evaluator import Evaluator
from autotune.measure.measurement import Measurement, Status
from autotune.store import Scope
from autotune.values import Configuration

#: Pending rows that are verified when the reference is there; the others at the end of the search.
_FIRST = 4
#: Pending rows that are verified at the end of a search even if no time is left, as a multiple of the finalists.
_MOST_PER_FINALIST = 4


class Verifier(Protocol):
    """Verifies pending rows of a search."""

    @property
    def has_reference(self) -> bool:
        """True if the reference is evaluated, or has failed."""

    def wait(self, waiting: Callable[[], object]) -> None:
        """Wait for the reference; call ``waiting`` if it is not there. The time does not count for budgets."""

    def go_on(self) -> Configuration | None:
        """Let the evaluator go on with the reference; return the configuration that stood in for it.

        None if no configuration did. Raise the error of the reference if it has failed.
        """

    def verified(self, row: Measurement) -> Measurement:
        """Verify the configuration of a pending row; return the row with its new status."""


class RevisedSession(Protocol):
    """A session, as its pending rows see it; see `autotune.search.session.SearchSession`."""

    evaluator: Evaluator
    scope: Scope
    measurements: dict[int, Measurement]

    def best(self, count: int) -> list[int]:
        """Return the numbers of the fastest configurations of this search so far, best first."""

    def revise(self, index: int, measurement: Measurement) -> None:
        """Replace the row of a configuration, which was pending, and tell the strategy."""

    def measure_again(self, indices: Iterable[int]) -> None:
        """Measure configurations again before the next proposals."""

    def measure_rest(self) -> bool:
        """Measure what is left to measure again while the budget allows; return whether there was any."""

    def begin_again(self) -> None:
        """Give the whole budget again, since no result counts."""


class PendingRows:
    """The pending rows of a session; without a verifier there are none."""

    def __init__(self, session: RevisedSession, verifier: Verifier | None) -> None:
        self._session, self._verifier = session, verifier
        self._has_reference = False
        #: True if rows were compared with wrong outputs, until the end of the search.
        self._is_misled = False

    def glance(self, index: int) -> None:
        """Take note of a new row; if the reference has come, verify the best pending rows."""
        if self._verifier is None:
            return
        if not self._has_reference:
            if self._verifier.has_reference:
                self._take(self._verifier)
        elif _is_different(self._session.measurements[index]):  # it began before the reference came
            self._session.measure_again([index])

    def finish(self, count: int, waiting: Callable[[], object]) -> bool:
        """Wait for the reference, and verify pending rows, best first, until ``count`` rows are `OK`.

        Return whether the search must go on, since it compared with outputs that were wrong.
        """
        if self._verifier is None:
            return False
        if not self._has_reference:
            self._verifier.wait(waiting)
            self._take(self._verifier)
        most = _MOST_PER_FINALIST * count
        self._verify(self._verifier, count, most)
        if self._session.measure_rest():
            self._verify(self._verifier, count, most)
        was_misled, self._is_misled = self._is_misled, False
        return was_misled

    def _take(self, verifier: Verifier) -> None:
        """Compare the claim with the reference; measure again what differs from the claim."""
        session, self._has_reference = self._session, True
        claim = verifier.go_on()
        if claim is not None:
            agreeing = [row for row in session.measurements.values() if _is_timed(row)]
            found = verifier.verified(Measurement(claim, Status.PENDING))
            if found.status is not Status.OK:
                warnings.warn(
                    f"{session.scope.kernel} ({session.scope.problem}): all {len(agreeing)} configurations "
                    f"that were timed agree with each other and differ from the reference: {found.message}",
                    stacklevel=2,
                )
                session.begin_again()
                self._is_misled = True
        self._verify(verifier, _FIRST, _FIRST)
        rows = session.measurements.items()
        session.measure_again([index for index, row in rows if _is_different(row)])

    def _verify(self, verifier: Verifier, count: int, most: int) -> None:
        """Verify pending rows, best first, until ``count`` rows are `OK` or ``most`` are verified.

        Rows that were stopped early because of a wrong row are measured again.
        """
        session, right, verified = self._session, 0, 0
        for index in session.best(len(session.measurements)):
            row = session.measurements[index]
            if row.status is Status.PENDING:
                if verified >= most:
                    break
                verified += 1
                row = verifier.verified(row)
                session.revise(index, row)
            if row.status is Status.OK:
                session.evaluator.recall(row)
                right += 1
                if right >= count:
                    break
        rows = session.measurements.items()
        costs = [row.cost for _, row in rows if row.status is Status.OK and row.cost is not None]
        best = min(costs, default=math.inf)
        stopped = [(index, row.cost) for index, row in rows if row.status is Status.STOPPED_EARLY]
        session.measure_again([i for i, cost in stopped if cost is not None and cost <= best])


def _is_timed(row: Measurement) -> bool:
    return row.status is Status.PENDING and bool(row.samples_ms)


def _is_different(row: Measurement) -> bool:
    """Return whether a pending row was not timed, because it differs from the claim."""
    return row.status is Status.PENDING and not row.samples_ms
