"""The searches that need no library: at random, in order, and the default choice.

Knows no device and no storage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from autotune.kernel.space import Space
from autotune.search.base import Search, Session

if TYPE_CHECKING:
    from numpy.random import Generator

#: Configurations hinted ahead: enough to keep many compilers busy through one measurement.
AHEAD = 64
#: Asked for in one batch, for several devices to share.
AT_ONCE = 16


def random(space: Space, session: Session, rng: Generator) -> None:
    """Every configuration once, in random order."""
    visit(rng.permutation(len(space)).tolist(), session)


def exhaustive(space: Space, session: Session, rng: Generator) -> None:
    """Every configuration once, in the order of the space."""
    visit(range(len(space)), session)


def in_given_order(order: Sequence[int]) -> Search:
    """A search of these numbers, in this order."""
    return lambda space, session, rng: visit(order, session)


def visit(order: Sequence[int], session: Session) -> None:
    """Measure these, in this order."""
    for start in range(0, len(order), AT_ONCE):
        session.hint(order[start : start + AHEAD])
        session.measure(order[start : start + AT_ONCE])
