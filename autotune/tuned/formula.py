"""How long a configuration would take for a problem that was never measured.

Walks what was fitted when the record was made (`autotune.tuned.prediction` says how); knows no
tables. Only operations that the exported header does bit for bit alike: sums and products of
doubles in one order, and integers of 64 bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.kernel.expression import Json, value_of
from autotune.tuned.record import Cost, Grid, Term


def time_ms(cost: Cost, multiple: int, fields: Mapping[str, Any]) -> float:
    """The time for a problem whose integers have at most 64 bits.

    Raises
    ------
    ValueError
        If the grid cannot be told.
    """
    total = _sum_of(cost.fixed, fields)
    blocks = value_of(_blocks_of(cost.plan.grid), fields) if cost.waves else 0
    for slots, terms in cost.waves:
        total += -(-blocks // slots) * _sum_of(terms, fields)
    for name, factor in cost.misaligned.items():
        if fields[name] % multiple:
            total *= factor
    return total


def _sum_of(terms: Sequence[Term], fields: Mapping[str, Any]) -> float:
    """A sum of products."""
    total = 0.0
    for product, names in terms:
        for name in names:
            product *= fields[name]
        total += product
    return total


def waves_of(grid: Grid | None, slots: int) -> Json:
    """Stored expression of the waves that a grid takes where ``slots`` blocks run at a time.

    Raises
    ------
    ValueError
        If the grid is not known.
    """
    return ["-", 0, ["//", ["-", 0, _blocks_of(grid)], slots]]


def _blocks_of(grid: Grid | None) -> Json:
    if grid is None:
        raise ValueError("a cost without grid")
    blocks: Json = 1
    for axis in grid:
        blocks = axis if blocks == 1 else blocks if axis == 1 else ["*", blocks, axis]
    return blocks
