"""The default choice among strategies: what fits in the budget is tried in order, else our own.

benchmarks/search_quality.py compares it with the others; docs/search.md has the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.kernel.space import Space
from autotune.search import simple
from autotune.search.base import Session

if TYPE_CHECKING:
    from numpy.random import Generator


def search(space: Space, session: Session, rng: Generator, batch: int = 1) -> None:
    """In order where all fits in the budget, else `surrogate`."""
    left = session.evaluations_left
    if left is not None and left >= len(space):
        simple.exhaustive(space, session, rng)
    else:
        surrogate(space, session, rng, batch)


def surrogate(space: Space, session: Session, rng: Generator, batch: int = 1) -> None:
    """See `autotune.search.sampler.search`, which is imported when it is needed: it needs Optuna."""
    from autotune.search import sampler

    sampler.search(space, session, rng, batch=batch)
