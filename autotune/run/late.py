"""Verifies rows that were measured before the reference was evaluated; see `autotune.search.pending`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass

from autotune.measure.evaluator import DeviceEvaluator
from autotune.measure.measurement import Measurement
from autotune.run.bench import Bench
from autotune.values import Configuration


@dataclass(frozen=True)
class LateVerifier:
    """The verifier of one search."""

    bench: Bench
    evaluator: DeviceEvaluator
    #: Done when the expected outputs are in the cache; None if the search has begun with them.
    made: Future[None] | None

    @property
    def has_reference(self) -> bool:
        """True if the reference is evaluated, or has failed."""
        return self.made is None or self.made.done()

    def wait(self, waiting: Callable[[], object]) -> None:
        """Wait for the reference; call ``waiting`` if it is not there. The time does not count for budgets."""
        if self.made is not None and not self.made.done():
            waiting()
            with self.bench.off_budget():
                wait([self.made])

    def go_on(self) -> Configuration | None:
        """Let the evaluator go on with the reference; return the configuration that stood in for it."""
        if self.made is None:
            return None
        self.made.result()
        claim = self.evaluator.job.claim
        self.evaluator.go_on(self.bench.job(self.evaluator.job.problem))
        return claim.configuration if claim else None

    def verified(self, row: Measurement) -> Measurement:
        """Verify the configuration of a pending row; return the row with its new status."""
        return self.evaluator.verified(row)
