"""The default choice among strategies: all where all fits in the budget, else `surrogate`.

`surrogate` needs the fewest evaluations, and the least time (benchmarks/search_quality.py; docs/search.md has
the tables). It ends where little is left to gain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.kernel.space import Space
from autotune.search import simple
from autotune.search.base import Session

if TYPE_CHECKING:
    from numpy.random import Generator


def search(space: Space, session: Session, rng: Generator, ahead: int = 1) -> None:
    """In order where all fits in the budget; else the surrogate, until little is left to gain."""
    left = session.evaluations_left
    if left is not None and left >= len(space):
        simple.exhaustive(space, session, rng)
    else:
        surrogate(space, session, rng, ahead, may_end=True)


def surrogate(
    space: Space, session: Session, rng: Generator, ahead: int = 1, may_end: bool = False
) -> None:
    """See `autotune.search.sampler.search`, which is imported when it is needed: it needs Optuna."""
    from autotune.search import sampler
    from autotune.search.proposals import EndRule

    # Much of what is measured where other sizes are known was compiled for them: it says little that is new.
    rule = EndRule(least=4 * EndRule.least) if session.elsewhere else EndRule()
    sampler.search(space, session, rng, ahead=ahead, rule=rule if may_end else None)
