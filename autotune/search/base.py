"""The contract between a search strategy and the session it searches in.

A strategy chooses configurations; the session measures them, remembers them, keeps the budget and
ends the search. Neither knows devices or storage through this contract.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from autotune.kernel.space import Space
from autotune.measure.evaluator import nothing
from autotune.measure.measurement import Measurement

#: What takes a result: the number of a configuration, and what came of it.
Tell: TypeAlias = Callable[[int, Measurement], None]
#: Gives the number of a configuration that takes no compiler; None while there is none.
AtHand: TypeAlias = Callable[[], "int | None"]

if TYPE_CHECKING:
    from numpy.random import Generator


class BudgetSpent(Exception):
    """The session ended the search. A strategy lets it pass through."""


@dataclass(frozen=True)
class Elsewhere:
    """What was measured of the same space at another place, such as another size."""

    #: Where that was, as a point: coordinates that two searches differ in, one unit apart for a factor
    #: of 16 in a size.
    place: tuple[float, ...]
    #: By number, in order.
    measured: Mapping[int, Measurement]


@dataclass(frozen=True)
class Outlook:
    """What a strategy expects of going on."""

    #: What the next proposals are expected to save, as a share of the best time.
    gain: float
    #: Whether it ended because that is too little.
    is_enough: bool = False


class Session(Protocol):
    """What a strategy may ask for."""

    #: Where this search is, and what was measured at other places; places have equally many coordinates.
    place: tuple[float, ...]
    elsewhere: Sequence[Elsewhere]
    #: Numbers of what was compiled elsewhere, measured there or not: its binary most likely serves here.
    compiled: Collection[int]
    #: Set by strategies that can say it.
    outlook: Outlook | None

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

    def stream(
        self, proposals: Iterable[int], tell: Tell, ahead: int, at_hand: AtHand = nothing
    ) -> None:
        """Measure proposals as they come, until there are no more.

        Another is taken whenever fewer than ``ahead`` wait for their result; ``tell`` gets each as
        it is there, in any order, before the next is taken. What is ``at_hand`` is measured while a
        device would wait for compilers.

        Raises
        ------
        BudgetSpent
            When the budget is spent.
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
