"""Recorded spaces searched as if their device were here; `autotune.interop.formats` reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from autotune.errors import UsageError
from autotune.interop.formats import Recording
from autotune.kernel.space import Space
from autotune.measure.evaluator import ignore, nothing
from autotune.measure.measurement import Measurement
from autotune.search.session import Budget, SearchSession
from autotune.values import Configuration


@dataclass(frozen=True)
class ReplayEvaluator:
    """Measures configurations by looking them up in a recording."""

    recording: Recording

    def measure(
        self,
        configurations: Iterable[Configuration],
        begin: Callable[[Configuration], None] = ignore,
        ahead: int | None = None,
        at_hand: Callable[[], Configuration | None] = nothing,
    ) -> Iterator[Measurement]:
        """Yield the recorded measurements, in this order."""
        for configuration in configurations:
            index = self.recording.space.index(configuration)
            if index is None:
                name = self.recording.path.name
                raise UsageError(f"{name} has no configuration {configuration}")
            begin(configuration)
            yield self.recording.measurements[index]

    def hint(self, configurations: Sequence[Configuration]) -> None:
        """Ignore likely next configurations: nothing is compiled."""

    def recall(self, measurement: Measurement) -> None:
        """Ignore a remembered result: the recording has it too."""


def session(recording: Recording, budget: Budget, space: Space | None = None) -> SearchSession:
    """Return a search of a recording, or of a part of its space, without a store."""
    return SearchSession(
        space=space or recording.space,
        evaluator=ReplayEvaluator(recording),
        store=None,
        run_id=0,
        scope=recording.scope,
        budget=budget,
    )
