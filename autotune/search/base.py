"""The contract between a search strategy and its session.

A strategy chooses configurations. The session measures them, remembers their results, counts the
budget and ends the search.
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
MIN_RESULTS = 32

if TYPE_CHECKING:
    from numpy.random import Generator


def is_measured_whole(count: int, evaluations: int | None, compiles_meanwhile: bool) -> bool:
    """Return whether a search measures all ``count`` configurations of a space, without a model.

    It does so if the budget of ``evaluations`` suffices. Under a time budget it does so for a small
    space. The limit is twice as large if compilers work while a device measures.
    """
    few = 2 * MIN_RESULTS if compiles_meanwhile else MIN_RESULTS
    return count <= (few if evaluations is None else evaluations)


class BudgetSpent(Exception):
    """The session ended the search. A strategy lets it pass through."""


@dataclass(frozen=True)
class RelatedProblem:
    """Measurements of the same space at another problem size."""

    #: Coordinates of the problem, comparable with `Session.problem_features`. A factor of 16 in a size
    #: is a difference of 1.
    features: tuple[float, ...]
    #: Measurements by number of the configuration, in the order of measuring.
    measurements: Mapping[int, Measurement]


@dataclass(frozen=True)
class Outlook:
    """The gain that a strategy expects from a longer search."""

    #: Expected improvement by the next proposal, as a share of the best time.
    gain: float
    #: Whether the strategy ended because the gain is too small.
    is_enough: bool = False


class Session(Protocol):
    """One search, as a strategy sees it."""

    #: Coordinates of this problem.
    problem_features: tuple[float, ...]
    #: Problems that were searched before and have the same number of coordinates.
    related: Sequence[RelatedProblem]
    #: Numbers of configurations compiled for other problems; their binaries most likely fit this problem.
    compiled: Collection[int]
    #: The outlook at the end of the search; set by strategies that have a model.
    outlook: Outlook | None

    @property
    def evaluations_left(self) -> int | None:
        """The number of measurements that the budget still allows; None under a time budget."""

    def measure(self, indices: Sequence[int]) -> list[Measurement]:
        """Measure configurations by their number in the space; return results in the given order.

        A GPU measures configurations in the order in which their compiles end. A batch may therefore
        be as large as the space. Configurations that this search has measured cost nothing. If the
        budget does not allow the whole batch, measure the part that it allows and raise `BudgetSpent`.
        """

    def stream(
        self, proposals: Iterable[int], tell: Tell, ahead: int, at_hand: AtHand = nothing
    ) -> None:
        """Measure proposals until there are no more or the budget is spent.

        The session takes the next proposal when fewer than ``ahead`` wait for their result. It calls
        ``tell`` with each result at once, in any order. When a device would wait for compilers, the
        session calls ``at_hand`` for a compiled configuration and measures that.
        """

    def best(self, count: int) -> list[int]:
        """Return the numbers of the fastest configurations of this search so far, best first."""

    def hint(self, indices: Sequence[int]) -> None:
        """Let compilers begin with likely next proposals, the likeliest first; return at once."""


Strategy: TypeAlias = Callable[[Space, Session, "Generator"], None]


def fastest(measurements: Mapping[int, Measurement], count: int) -> list[int]:
    """Return the numbers of the fastest configurations, best first, without failures."""
    timed = [
        (cost, index)
        for index, measurement in measurements.items()
        if (cost := measurement.cost) is not None
    ]
    return [index for _, index in sorted(timed)[:count]]
