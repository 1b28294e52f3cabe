"""How long the configurations of a portfolio would take for a problem that was never measured.

Walks what was fitted when the record was made (`autotune.prediction` says how); knows neither plans
nor tables. Standard library only, and only operations that the exported header does bit for bit
alike: sums, products and quotients of doubles in one order, and integers of 64 bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from autotune.expression import Json, value_of

#: A coefficient in milliseconds, and the integer problem fields that it is multiplied by.
Term: TypeAlias = "tuple[float, tuple[str, ...]]"


class Cost(NamedTuple):
    """What one configuration takes: ``fixed + waves * per_wave``, corrected by what is near."""

    #: Rounds of blocks that it takes until all were resident once: a stored expression.
    waves: Json
    fixed: tuple[Term, ...]
    per_wave: tuple[Term, ...]
    #: Measured over predicted time, one per problem of the portfolio; None where it was not measured.
    corrections: tuple[float | None, ...]

    def time_ms(self, fields: Mapping[str, Any], weights: Sequence[float]) -> float | None:
        """The time for a problem; None where it cannot be told.

        Parameters
        ----------
        fields : mapping
            The problem, its integers of at most 64 bits.
        weights : sequence of float
            What each problem of the portfolio counts.
        """
        try:
            waves = value_of(self.waves, fields)
        except ValueError:
            return None
        weight = correction = 0.0
        for one, ratio in zip(weights, self.corrections, strict=True):
            if ratio is not None:
                weight += one
                correction += one * ratio
        if weight == 0:
            return None
        total = _sum(self.fixed, fields) + waves * _sum(self.per_wave, fields)
        return total * (correction / weight)


def _sum(terms: Sequence[Term], fields: Mapping[str, Any]) -> float:
    total = 0.0
    for coefficient, names in terms:
        for name in names:
            coefficient *= fields[name]
        total += coefficient
    return total


def weight(distance: int, reach: int) -> float:
    """What a measured problem counts at a distance: 1 where it lies, a quarter at ``reach``."""
    share = reach / (reach + distance)
    return share * share


def waves_of(grid: Sequence[Json], slots: int) -> Json:
    """Stored expression of the rounds that a grid takes where ``slots`` blocks are resident."""
    blocks: Json = grid[0]
    for axis in grid[1:]:
        blocks = axis if blocks == 1 else blocks if axis == 1 else ["*", blocks, axis]
    return ["-", 0, ["//", ["-", 0, blocks], slots]]
