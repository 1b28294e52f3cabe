"""Joins the rule tables of one source into rows, one for each valid configuration.

Rows grow by one parameter at a time. A rule filters the rows as soon as they have all of its parameters,
so the cartesian product is never in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.kernel.rules import Source
from autotune.kernel.spec import Kernel

#: Value indices; see `index_type`.
Rows = NDArray[np.integer[Any]]
#: Memory limit for the enumeration in bytes, equal on every machine.
_MAX_BYTES = 2 << 30
#: Rows to extend and filter at a time.
_BLOCK_ROWS = 1 << 18


@dataclass(frozen=True, eq=False)
class RuleTable:
    """The results of a rule for every combination of values of the parameters that it names."""

    #: Columns of the parameters that the rule names.
    positions: tuple[int, ...]
    #: The results, with an axis for each of these parameters.
    values: NDArray[np.bool_]
    #: For applicability: columns of the parameters that apply only if the rule holds.
    governs: tuple[int, ...] = ()
    #: The value index of each governed parameter that does not apply.
    first: tuple[int, ...] | int = 0

    @cached_property
    def share(self) -> float:
        """Share of the combinations that the rule accepts."""
        return float(self.values.mean())

    def accepts(self, row: Rows) -> bool:
        """Return whether the rule accepts a configuration, given as value indices."""
        return bool(self.values[tuple(row[list(self.positions)])])


def index_type(sizes: Iterable[int]) -> np.dtype[Any]:
    """Return the integer type of value indices, for parameters with these numbers of values."""
    return np.dtype(np.int16 if max(sizes, default=0) <= 2**15 else np.int32)


def join_rows(
    kernel: Kernel,
    source: Source,
    constraints: list[RuleTable],
    applicability: tuple[RuleTable, ...],
) -> Rows:
    """Return the rows that all tables accept, in any order."""
    sizes = [len(values) for values in source.parameters.values()]
    dtype = index_type(sizes)
    # Three copies of the rows exist at once (before and after a parameter is added, and joined), and
    # three arrays of 8 bytes a row: codes, their order and their differences.
    max_rows = _MAX_BYTES // (3 * dtype.itemsize * len(sizes) + 3 * 8)
    parts: list[Rows] = []

    def refuse_more(count: int) -> None:
        if sum(map(len, parts)) + count > max_rows:
            total = math.prod(sizes)
            valid = total * math.prod(table.share for table in constraints)
            raise kernel.error(
                f"{total:.1e} combinations with about {valid:.1e} valid ones are too many: "
                f"{max_rows:.1e} fit into {_MAX_BYTES / 2**30:.3g} GiB; drop some values, or add "
                "constraints"
            )

    deciding = sorted({position for rule in applicability for position in rule.positions})
    refuse_more(math.prod(sizes[position] for position in deciding))
    order = _order(len(sizes), deciding, constraints)
    for variant in _variants(sizes, deciding, constraints, applicability):
        parts.append(_joined(variant, order, sizes, refuse_more))
    return np.concatenate(parts)


@dataclass(frozen=True, eq=False)
class _Variant:
    """Rows in which the same parameters, and so the same constraints, apply."""

    #: Number of rows.
    count: int
    #: The value indices of each column that is filled, or one index for all rows.
    columns: dict[int, Rows | int]
    constraints: list[RuleTable]


def _variants(
    sizes: list[int],
    deciding: list[int],
    constraints: list[RuleTable],
    applicability: tuple[RuleTable, ...],
) -> Iterator[_Variant]:
    """Yield the variants: each fills the deciding parameters, and parameters that do not apply."""
    shape = [sizes[position] for position in deciding]
    points = np.indices(shape, index_type(sizes)).reshape(len(shape), math.prod(shape))
    applies = np.ones((len(sizes), points.shape[1]), bool)
    for rule in applicability:
        applies[list(rule.governs)] &= _look(rule, dict(zip(deciding, points, strict=True)))
    is_valid = np.all(applies[deciding] | (points == 0), axis=0)
    variants, of_point = np.unique(applies[:, is_valid], axis=1, return_inverse=True)
    governed = {position for rule in applicability for position in rule.governs}
    for number, is_used in enumerate(variants.T):
        own = points[:, is_valid][:, of_point.reshape(-1) == number]
        columns: dict[int, Rows | int] = dict.fromkeys(np.flatnonzero(~is_used).tolist(), 0)
        for position, column in zip(deciding, own, strict=True):
            columns[position] = column if np.ptp(column) else int(column[0])
        named = ((table, list(governed.intersection(table.positions))) for table in constraints)
        applied = [table for table, some in named if not some or is_used[some].any()]
        yield _Variant(own.shape[1], columns, applied)


def _order(count: int, deciding: list[int], constraints: list[RuleTable]) -> list[int]:
    """Return the order in which rows get their parameters.

    Deciding parameters come first. Then the constraint that lacks the fewest parameters adds its own, and
    so on. Among constraints that lack equally many, the one that rejects most comes first.
    """
    order, waiting = list(deciding), list(constraints)
    while waiting:
        waiting.sort(key=lambda table: (len(set(table.positions) - set(order)), table.share))
        order += sorted(set(waiting.pop(0).positions) - set(order))
    return [*order, *(position for position in range(count) if position not in order)]


def _joined(
    variant: _Variant, order: list[int], sizes: list[int], refuse_more: Callable[[int], None]
) -> Rows:
    """Return the rows of a variant, extended by the values of all other parameters in this order."""
    dtype = index_type(sizes)
    columns, count, waiting = variant.columns, variant.count, variant.constraints
    left = [position for position in order if position not in columns]
    for position in (None, *left):  # None: apply the constraints over the filled columns first
        values = np.arange(1 if position is None else sizes[position], dtype=dtype)
        known = {*columns, position}
        ready = [table for table in waiting if known.issuperset(table.positions)]
        if not waiting:  # no constraint is left, so the number of rows is known
            refuse_more(count * math.prod(sizes[p] for p in left if p not in columns))
        waiting = [table for table in waiting if table not in ready]
        found, total, step = [], 0, max(1, _BLOCK_ROWS // len(values))
        for begin in range(0, count, step):
            which = np.repeat(np.arange(begin, min(begin + step, count)), len(values))
            column = np.tile(values, len(which) // len(values))
            for table in ready:
                known_values = {
                    p: _taken(columns[p], which) for p in table.positions if p != position
                }
                added = {} if position is None else {position: column}
                kept = _look(table, {**known_values, **added})
                kept = np.broadcast_to(kept, len(which))
                which, column = which[kept], column[kept]
            found.append((which, column))
            total += len(which)
            refuse_more(total)
        which, column = map(np.concatenate, zip(*found, strict=True))
        columns = {p: _taken(known_column, which) for p, known_column in columns.items()}
        columns |= {} if position is None else {position: column}
        count = total
        if not count:
            break
    rows = np.empty((count, len(sizes)), dtype)
    for place, filled in columns.items() if count else ():
        rows[:, place] = filled
    return rows


def _taken(column: Rows | int, which: NDArray[np.intp]) -> Rows | int:
    return column if isinstance(column, int) else column[which]


def _look(table: RuleTable, columns: Mapping[int, Rows | int]) -> NDArray[np.bool_] | np.bool_:
    places: NDArray[np.intp] | int = 0
    for position, size in zip(table.positions, table.values.shape, strict=True):
        places = places * size + np.asarray(columns[position], np.intp)
    return table.values.reshape(-1)[places]
