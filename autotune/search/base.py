"""The contract between a search strategy and the session it searches in.

A strategy chooses configurations; the session measures them, remembers them, keeps the budget and
ends the search. Neither knows devices or storage through this contract.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from autotune.kernel.space import Space
from autotune.measure.measurement import Measurement

if TYPE_CHECKING:
    from numpy.random import Generator


class BudgetSpent(Exception):
    """The session ended the search. A strategy lets it pass through."""


class Session(Protocol):
    """What a strategy may ask for."""

    @property
    def evaluations_left(self) -> int | None:
        """Measurements that the budget still allows; None where only time limits them."""

    def measure(self, indices: Sequence[int]) -> list[Measurement]:
        """Measure configurations by their number in the space; answers are in the order given.

        On a GPU what is compiled first is measured first, so that a batch may be as large as the
        space. One that was measured before in this search answers from memory and costs nothing.

        Raises
        ------
        BudgetSpent
            When the budget does not allow the whole batch: what it allows is measured first.
        """

    def best(self, count: int) -> list[int]:
        """Numbers of the fastest configurations of this search so far, best first."""

    def hint(self, indices: Sequence[int]) -> None:
        """Say what will likely be asked next, best first; returns at once."""


Search: TypeAlias = Callable[[Space, Session, "Generator"], None]


def fastest(measured: Mapping[int, Measurement], count: int) -> list[int]:
    """Numbers of the fastest of what was measured, best first; those without a time are left out."""
    timed = [
        (cost, index)
        for index, measurement in measured.items()
        if (cost := measurement.cost) is not None
    ]
    return [index for _, index in sorted(timed)[:count]]


@dataclass(frozen=True)
class StrategyInfo:
    """A strategy by name, and why it cannot be used where it cannot."""

    name: str
    doc: str
    #: Empty where the strategy is available.
    unavailable: str = ""
