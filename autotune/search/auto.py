"""The default choice among strategies: by the space, the budget, and whether batches are served faster.

Where evaluations are counted `surrogate` needs fewest (benchmarks/search_quality.py; docs/search.md has
the table). Where time is short on a GPU with many compilers, a strategy that asks for whole generations
tries half as many configurations again: sgemm's 35 sizes with a budget of 106 s on an H100 got 1,253
measurements from `kt:genetic_algorithm` and 0.980 of the best known speed, 832 and 0.973 from
`surrogate` (2026-11-22).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.kernel.space import Space
from autotune.search import kernel_tuner, simple
from autotune.search.base import Session

if TYPE_CHECKING:
    from numpy.random import Generator

#: Asks for whole generations, which several devices or compilers can share.
POPULATION = "genetic_algorithm"


def search(
    space: Space, session: Session, rng: Generator, batch: int = 1, in_batches: bool = False
) -> None:
    """In order where all fits in the budget, generations where they are served faster, else `surrogate`."""
    left = session.evaluations_left
    if left is not None and left >= len(space):
        simple.exhaustive(space, session, rng)
    elif in_batches:
        kernel_tuner.search(POPULATION, space, session, rng)
    else:
        surrogate(space, session, rng, batch)


def surrogate(space: Space, session: Session, rng: Generator, batch: int = 1) -> None:
    """See `autotune.search.sampler.search`, which is imported when it is needed: it needs Optuna."""
    from autotune.search import sampler

    sampler.search(space, session, rng, batch=batch)
