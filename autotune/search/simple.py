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


def random(space: Space, session: Session, rng: Generator) -> None:
    """Every configuration once, in random order."""
    session.measure(rng.permutation(len(space)).tolist())


def exhaustive(space: Space, session: Session, rng: Generator) -> None:
    """Every configuration once, in the order of the space."""
    session.measure(range(len(space)))


def in_given_order(order: Sequence[int]) -> Search:
    """A search of these numbers; compilers take them up in this order."""

    def search(space: Space, session: Session, rng: Generator) -> None:
        session.measure(order)

    return search
