"""The default choice among strategies, by the size of the space and of the budget.

Replayed on the recorded spaces beside this checkout (benchmarks/search_quality.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.space import Space
from autotune.strategies import kernel_tuner_adapter, simple
from autotune.strategies.base import Session

if TYPE_CHECKING:
    from numpy.random import Generator

#: Below this many evaluations no strategy has learned anything yet.
TINY = 20
STRATEGY = "adaptive_tabu_greywolf"


def search(space: Space, session: Session, rng: Generator) -> None:
    """In order where all fits in the budget, at random where hardly anything does, else Kernel Tuner."""
    left = session.evaluations_left
    if left is not None and left >= len(space):
        simple.exhaustive(space, session, rng)
    elif left is not None and left < TINY:
        simple.random(space, session, rng)
    else:
        kernel_tuner_adapter.search(STRATEGY, space, session, rng)
