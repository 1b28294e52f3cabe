"""The contract between a search strategy and its session.

A strategy chooses configurations. The session measures and remembers them, keeps the budget and ends
the search.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from autotune.kernel.space import Space
from autotune.measure.evaluator import nothing
from autotune.measure.measurement import Measurement

#: Function that takes the number of a configuration and its result.
Tell: TypeAlias = Callable[[int, Measurement], None]
#: Function that returns the number of a compiled configuration, or None.
AtHand: TypeAlias = Callable[[], "int | None"]

#: Minimum number of results before a rule ends a search.
LEAST_RESULTS = 32

if TYPE_CHECKING:
    from numpy.random import Generator


def is_measured_whole(count: int, evaluations: int | None, compiles_meanwhile: bool) -> bool:
    """Return whether a search needs no model for a space of a number of configurations.

    A number of ``evaluations`` allows it, or under a time budget there are few; twice as many where
    others are compiled while one is measured.
    """
    few = 2 * LEAST_RESULTS if compiles_meanwhile else LEAST_RESULTS
    return count <= (few if evaluations is None else evaluations)


class BudgetSpent(Exception):
    """The session ended the search. A strategy lets it pass through."""


@dataclass(frozen=True)
class RelatedProblem:
    """Measurements of the same space at another problem size."""

    #: Coordinates of the problem, comparable with `Session.problem_features`: 1 apart for a factor of
    #: 16 in a size.
    features: tuple[float, ...]
    #: Measurements by number of the configuration, in the order measured.
    measured: Mapping[int, Measurement]


@dataclass(frozen=True)
class Outlook:
    """Gain that a strategy expects of a longer search."""

    #: Expected improvement by the next proposal, as a share of the best time.
    gain: float
    #: Whether the strategy ended because the gain is too small.
    is_enough: bool = False


class Session(Protocol):
    """One search, as a strategy sees it."""

    #: Coordinates of this problem, and problems of equally many coordinates that were searched before.
    problem_features: tuple[float, ...]
    related: Sequence[RelatedProblem]
    #: Numbers of configurations compiled for other problems; their binaries most likely serve here.
    compiled: Collection[int]
    #: Set by strategies that have a model.
    outlook: Outlook | None

    @property
    def evaluations_left(self) -> int | None:
        """Return how many measurements the budget still allows; None if only time limits them."""

    def measure(self, indices: Sequence[int]) -> list[Measurement]:
        """Measure configurations by their number in the space and return them in the order given.

        On a GPU the configuration that is compiled first is measured first, so that a batch may be as
        large as the space. A configuration measured before in this search costs nothing. Raises
        `BudgetSpent` when the budget does not allow the whole batch, after measuring what it allows.
        """

    def stream(
        self, proposals: Iterable[int], tell: Tell, ahead: int, at_hand: AtHand = nothing
    ) -> None:
        """Measure proposals as they come, until there are no more or the budget is spent.

        The next proposal is taken whenever fewer than ``ahead`` wait for their result. ``tell`` gets
        each result as soon as it is there, in any order. A configuration ``at_hand`` is measured
        while a device would wait for compilers.
        """

    def best(self, count: int) -> list[int]:
        """Return the numbers of the fastest configurations of this search so far, best first."""

    def hint(self, indices: Sequence[int]) -> None:
        """Let compilers begin with likely next proposals, best first; return at once."""


Strategy: TypeAlias = Callable[[Space, Session, "Generator"], None]


def fastest(measured: Mapping[int, Measurement], count: int) -> list[int]:
    """Return the numbers of the fastest configurations, best first, without failures."""
    timed = [
        (cost, index)
        for index, measurement in measured.items()
        if (cost := measurement.cost) is not None
    ]
    return [index for _, index in sorted(timed)[:count]]
