"""How long the configurations of a portfolio would take for a problem that was never measured.

Walks what was fitted when the record was made (`autotune.tuned.prediction` says how); knows neither plans
nor tables. Standard library only, and only operations that the exported header does bit for bit
alike: sums and products of doubles in one order, and integers of 64 bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from autotune.kernel.expression import Json, value_of

#: A coefficient in milliseconds, and the integer problem fields that it is multiplied by.
Term: TypeAlias = "tuple[float, tuple[str, ...]]"


class Cost(NamedTuple):
    """The time of one configuration as a function of the problem; see `autotune.tuned.record.Cost`."""

    fixed: tuple[Term, ...]
    #: Stored expressions of how many waves a grid takes, with the time of each.
    waves: tuple[tuple[Json, tuple[Term, ...]], ...]
    #: Factors where a field is no multiple of so much: field, multiple, factor.
    misaligned: tuple[tuple[str, int, float], ...]

    def time_ms(self, fields: Mapping[str, Any]) -> float:
        """The time for a problem whose integers have at most 64 bits.

        Raises
        ------
        ValueError
            If the grid cannot be told.
        """
        total = sum_of(self.fixed, fields)
        for waves, terms in self.waves:
            total += value_of(waves, fields) * sum_of(terms, fields)
        for name, multiple, factor in self.misaligned:
            if fields[name] % multiple:
                total *= factor
        return total


def sum_of(terms: Sequence[Term], fields: Mapping[str, Any]) -> float:
    """A sum of products."""
    total = 0.0
    for product, names in terms:
        for name in names:
            product *= fields[name]
        total += product
    return total


def waves_of(grid: Sequence[Json], slots: int) -> Json:
    """Stored expression of the waves that a grid takes where ``slots`` blocks run at a time."""
    blocks: Json = 1
    for axis in grid:
        blocks = axis if blocks == 1 else blocks if axis == 1 else ["*", blocks, axis]
    return ["-", 0, ["//", ["-", 0, blocks], slots]]
