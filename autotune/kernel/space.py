"""The valid configurations of a kernel: enumerated once, held as index rows, addressed by number.

Each constraint becomes a boolean table over the parameters it names. Rows grow by one parameter at a
time, and every table is applied as soon as its parameters are there. So the cartesian product is never
in memory.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from inspect import signature
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from autotune.devices.device import CUDA_ARCHS, Device, for_arch
from autotune.errors import NothingValidError, UsageError, unknown
from autotune.kernel.declaration import DEVICE, Rule
from autotune.kernel.spec import Kernel
from autotune.values import Configuration, Value

if TYPE_CHECKING:
    from numpy.random import Generator

#: Value indices; see `index_type`.
Rows = NDArray[np.integer[Any]]
#: Memory for enumeration, the same on every machine.
_MOST_BYTES = 2 << 30
#: A rule is evaluated for at most this many combinations, in about half a minute.
_MOST_ASKED = 1 << 27
#: Rows that are extended and filtered at a time.
_BLOCK_ROWS = 1 << 18


@dataclass(frozen=True, eq=False)
class Space:
    """An ordered list of valid configurations."""

    #: The values of each parameter, in declared order.
    parameters: dict[str, tuple[Value, ...]]
    #: Value indices of each configuration, in lexicographic order.
    rows: Rows
    #: The share of the cartesian product that each constraint rejects, alone; in declared order.
    removed: tuple[float, ...] = ()
    #: Where parameters do not apply; see `canonical`.
    applicability: tuple[_ConstraintTable, ...] = ()
    #: The number of each row, ascending: value indices times `strides`.
    codes: NDArray[np.int64] = field(init=False, repr=False)
    strides: NDArray[np.int64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Places of a mixed-radix number: the last parameter counts ones.
        places = [1, *reversed(self.sizes)][: len(self.sizes)]
        strides = np.cumprod(places, dtype=np.int64)[::-1]
        object.__setattr__(self, "strides", strides)
        codes = np.zeros(len(self.rows), np.int64)
        for column, stride in zip(self.rows.T, strides, strict=True):
            codes += column * stride
        if len(codes) > 1 and np.any(np.diff(codes) <= 0):
            order = np.argsort(codes)
            object.__setattr__(self, "rows", self.rows[order])
            codes = codes[order]
        object.__setattr__(self, "codes", codes)

    @cached_property
    def occurring(self) -> tuple[NDArray[np.int64], ...]:
        """The value indices of each parameter that some configuration has, ascending."""
        counts = (np.bincount(column) for column in self.rows.T)
        return tuple(np.flatnonzero(count) for count in counts)

    @property
    def names(self) -> tuple[str, ...]:
        """Parameter names in declared order."""
        return tuple(self.parameters)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of values of each parameter."""
        return tuple(len(values) for values in self.parameters.values())

    @property
    def cartesian(self) -> int:
        """Number of points of the full product, valid or not."""
        return math.prod(self.sizes)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Configuration]:
        return (self.configuration(index) for index in range(len(self)))

    def configuration(self, index: int) -> Configuration:
        """Return the configuration of a number in ``range(len(space))``."""
        pairs = zip(self.parameters.items(), self.rows[index], strict=True)
        return Configuration({name: values[i] for (name, values), i in pairs})

    def row(self, configuration: Mapping[str, Value]) -> Rows:
        """Return the value indices of a configuration, valid or not."""
        for name in configuration:
            if name not in self.parameters:
                raise UsageError(unknown("parameter", name, self.parameters))
        row = np.zeros(len(self.parameters), index_type(self.sizes))
        for position, (name, values) in enumerate(self.parameters.items()):
            if name not in configuration:
                raise UsageError(f"configuration lacks a value of {name}")
            if configuration[name] not in values:
                raise UsageError(unknown(f"value of {name}:", configuration[name], values))
            row[position] = values.index(configuration[name])
        return row

    def find(self, row: Sequence[int] | NDArray[Any]) -> int | None:
        """Return the number of a row of value indices; None where it is not valid."""
        code = int(np.asarray(row, np.int64) @ self.strides)
        position = int(np.searchsorted(self.codes, code))
        found = position < len(self.codes) and self.codes[position] == code
        return position if found else None

    def find_all(self, codes: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return the numbers of the valid rows among these codes, ascending and each once.

        Parameters that do not apply count as their first value.
        """
        if self.applicability:
            rows = codes[:, None] // self.strides % self.sizes
            for table in self.applicability:
                idle = ~table.values[tuple(rows[:, list(table.positions)].T)]
                rows[np.ix_(idle, list(table.governs))] = 0
            codes = rows @ self.strides
        codes = np.unique(codes)
        places = np.searchsorted(self.codes, codes)
        found: NDArray[np.intp] = places[self.codes.take(places, mode="clip") == codes]
        return found

    def index(self, configuration: Mapping[str, Value]) -> int | None:
        """Return the number of a configuration; None where it is not valid."""
        try:
            return self.find(self.row(configuration))
        except UsageError:
            return None

    def __contains__(self, configuration: object) -> bool:
        return isinstance(configuration, Mapping) and self.index(configuration) is not None

    def canonical(self, row: Sequence[int] | NDArray[Any]) -> Rows:
        """Return a row with parameters that do not apply set to their first value."""
        result = np.array(row, index_type(self.sizes))
        for table in self.applicability:
            if not table.accepts(result):
                result[list(table.governs)] = 0
        return result

    def relevant(self, configuration: Mapping[str, Value]) -> dict[str, Value]:
        """Return the parameters of a configuration that apply."""
        row = self.row(configuration)
        rules = [table for table in self.applicability if not table.accepts(row)]
        idle = {self.names[position] for table in rules for position in table.governs}
        return {name: configuration[name] for name in self.parameters if name not in idle}

    def sample(self, rng: Generator, count: int) -> list[int]:
        """Return ``count`` distinct numbers in random order, or all."""
        return [int(i) for i in rng.permutation(len(self))[:count]]

    def restricted(self, allowed: Mapping[str, Sequence[Value]]) -> Space:
        """Return the part of the space in which some parameters take only the given values."""
        keep = np.ones(len(self), bool)
        for name, values in allowed.items():
            if name not in self.parameters:
                raise UsageError(unknown("parameter", name, self.parameters))
            declared = self.parameters[name]
            for value in values:
                if value not in declared:
                    raise UsageError(unknown(f"value of {name}:", value, declared))
            wanted = [declared.index(value) for value in values]
            keep &= np.isin(self.rows[:, self.names.index(name)], wanted)
        if not keep.any():
            chosen = ", ".join(f"{name}={'|'.join(map(str, v))}" for name, v in allowed.items())
            raise NothingValidError(f"no valid configuration has {chosen}")
        return Space(self.parameters, self.rows[keep], self.removed, self.applicability)

    @property
    def fingerprint(self) -> str:
        """sha256 of the parameters, their values and the valid rows."""
        text = json.dumps({name: list(values) for name, values in self.parameters.items()})
        return hashlib.sha256(text.encode() + self.rows.tobytes()).hexdigest()


@dataclass(frozen=True, eq=False)
class _ConstraintTable:
    """A rule evaluated for every combination of the values of the parameters it names."""

    positions: tuple[int, ...]
    values: NDArray[np.bool_]
    governs: tuple[int, ...] = ()

    @cached_property
    def share(self) -> float:
        """Share of the combinations that it accepts."""
        return float(self.values.mean())

    def accepts(self, row: Rows) -> bool:
        """Return whether it accepts the value indices of a configuration."""
        return bool(self.values[tuple(row[list(self.positions)])])


def index_type(sizes: Iterable[int]) -> np.dtype[Any]:
    """Return the integer type of value indices, for these numbers of values."""
    return np.dtype(np.int16 if max(sizes, default=0) <= 2**15 else np.int32)


def enumerate_space(kernel: Kernel, device: Device) -> Space:
    """Enumerate the valid configurations of a kernel on a device.

    A parameter that does not apply keeps its first value. A constraint is not applied where it names
    parameters that can be inapplicable and none of those applies.
    """
    sizes = [len(values) for values in kernel.parameters.values()]
    if (total := math.prod(sizes)) >= 2**62:  # configurations have numbers of 64 bits
        raise kernel.error(f"{total:.1e} combinations are too many to number; drop some values")
    applicability = _deciding_first([_table(kernel, rule, device) for rule in kernel.applies_rules])
    constraints = [_table(kernel, rule, device) for rule in kernel.constraint_rules]
    removed = tuple(1 - table.share for table in constraints)
    rows = _join(kernel, constraints, applicability)
    if not len(rows):
        pairs = sorted(zip(removed, kernel.constraint_rules, strict=True), key=itemgetter(0))
        excluded = "; ".join(
            f"{rule.name} ({rule.doc}) excludes {round(share * total)}"
            for share, rule in reversed(pairs)
        )
        raise NothingValidError(
            f"{kernel.name}: no valid configuration for {device.name}: of {total} combinations "
            f"{excluded}; relax these constraints, or declare more values"
        )
    return Space(kernel.parameters, rows, removed, applicability)


def _table(kernel: Kernel, rule: Rule, device: Device) -> _ConstraintTable:
    names = list(kernel.parameters)
    shape = [len(kernel.parameters[name]) for name in rule.parameters]
    if math.prod(shape) > _MOST_ASKED:
        raise kernel.error(
            f"rule {rule.name!r} depends on {len(shape)} parameters with {math.prod(shape):.1e} "
            f"combinations; at most {_MOST_ASKED:.1e} are evaluated: split it into rules of fewer"
        )
    asked: dict[str, Sequence[object]] = {**kernel.parameters, DEVICE: (device,)}

    def fill() -> NDArray[np.bool_]:
        # By position: keywords take seven times as long.
        points = itertools.product(*(asked[name] for name in signature(rule.function).parameters))
        answers = map(bool, itertools.starmap(rule.function, points))
        return np.fromiter(answers, bool, math.prod(shape)).reshape(shape)

    return _ConstraintTable(
        positions=tuple(names.index(name) for name in rule.parameters),
        values=kernel.guarded(f"rule {rule.name!r}", fill),
        governs=tuple(names.index(name) for name in rule.governs),
    )


def _deciding_first(tables: list[_ConstraintTable]) -> tuple[_ConstraintTable, ...]:
    """Order applicability tables so that each comes after those that govern its parameters."""
    ordered: list[_ConstraintTable] = []
    waiting = list(tables)
    while waiting:
        ready = [
            table
            for table in waiting
            if not any(set(table.positions) & set(other.governs) for other in waiting)
        ]
        ordered += ready or waiting  # rules in a circle have no order
        waiting = [table for table in waiting if table not in ordered]
    return tuple(ordered)


def _join(
    kernel: Kernel, constraints: list[_ConstraintTable], applicability: tuple[_ConstraintTable, ...]
) -> Rows:
    """Return the rows that all tables accept, in any order, variant by variant."""
    sizes = [len(values) for values in kernel.parameters.values()]
    dtype = index_type(sizes)
    # Rows before and after a parameter, and joined; then codes, their order, and differences.
    most = _MOST_BYTES // (3 * dtype.itemsize * len(sizes) + 3 * 8)
    parts: list[Rows] = []

    def refuse_more(count: int) -> None:
        if sum(map(len, parts)) + count > most:
            total = math.prod(sizes)
            valid = total * math.prod(table.share for table in constraints)
            raise kernel.error(
                f"{total:.1e} combinations, of which about {valid:.1e} are valid, are too many: "
                f"{most:.1e} fit into {_MOST_BYTES / 2**30:.3g} GiB; drop some values, or add "
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
    """Rows in which the same parameters apply, and so the same constraints."""

    count: int
    #: The value indices of each known parameter, or one index that all rows have.
    columns: dict[int, Rows | int]
    constraints: list[_ConstraintTable]


def _variants(
    sizes: list[int],
    deciding: list[int],
    constraints: list[_ConstraintTable],
    applicability: tuple[_ConstraintTable, ...],
) -> Iterator[_Variant]:
    """Yield rows of the parameters that decide which others apply, and of those that do not."""
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


def _order(count: int, deciding: list[int], constraints: list[_ConstraintTable]) -> list[int]:
    """Order parameters: those that decide which apply, then those of the constraint that needs fewest.

    Of constraints that need equally many further parameters the one that rejects most comes first.
    """
    order, waiting = list(deciding), list(constraints)
    while waiting:
        waiting.sort(key=lambda table: (len(set(table.positions) - set(order)), table.share))
        order += sorted(set(waiting.pop(0).positions) - set(order))
    return [*order, *(position for position in range(count) if position not in order)]


def _joined(
    variant: _Variant, order: list[int], sizes: list[int], refuse_more: Callable[[int], None]
) -> Rows:
    """Return the rows of a variant with every value of all other parameters, added in this order."""
    dtype = index_type(sizes)
    columns, count, waiting = variant.columns, variant.count, variant.constraints
    left = [position for position in order if position not in columns]
    for position in (None, *left):  # the constraints of what is known come first
        values = np.arange(1 if position is None else sizes[position], dtype=dtype)
        known = {*columns, position}
        ready = [table for table in waiting if known.issuperset(table.positions)]
        if not waiting:  # this many rows are certain
            refuse_more(count * math.prod(sizes[p] for p in left if p not in columns))
        waiting = [table for table in waiting if table not in ready]
        found, total, step = [], 0, max(1, _BLOCK_ROWS // len(values))
        for begin in range(0, count, step):
            which = np.repeat(np.arange(begin, min(begin + step, count)), len(values))
            column = np.tile(values, len(which) // len(values))
            for table in ready:
                asked = {p: _taken(columns[p], which) for p in table.positions if p != position}
                kept = _look(table, asked if position is None else {**asked, position: column})
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


def _look(
    table: _ConstraintTable, columns: Mapping[int, Rows | int]
) -> NDArray[np.bool_] | np.bool_:
    places: NDArray[np.intp] | int = 0
    for position, size in zip(table.positions, table.values.shape, strict=True):
        places = places * size + np.asarray(columns[position], np.intp)
    return table.values.reshape(-1)[places]


def is_member(kernel: Kernel, configuration: Mapping[str, Any], device: Device) -> bool:
    """Return ``configuration in enumerate_space(kernel, device)``."""
    if set(configuration) != set(kernel.parameters):
        return False
    for name, values in kernel.parameters.items():
        value = configuration[name]
        if not any(type(value) is type(allowed) and value == allowed for allowed in values):
            return False
    applies = applicable(kernel, configuration)
    if any(configuration[n] != kernel.parameters[n][0] for n, used in applies.items() if not used):
        return False
    return not any(broken_constraints(kernel, configuration, device))


def broken_constraints(
    kernel: Kernel, configuration: Mapping[str, Any], device: Device
) -> Iterator[Rule]:
    """Yield the constraints that a configuration of declared values breaks."""
    applies = applicable(kernel, configuration)
    conditional = {name for rule in kernel.applies_rules for name in rule.governs}
    for rule in kernel.constraint_rules:
        named = conditional & set(rule.parameters)
        if named and not any(applies[name] for name in named):
            continue  # it would judge placeholders
        asked = {name: configuration[name] for name in rule.parameters}
        if rule.uses_device:
            asked["device"] = device
        if not kernel.guarded(f"rule {rule.name!r}", partial(rule.function, **asked)):
            yield rule


def applicable(kernel: Kernel, configuration: Mapping[str, Any]) -> dict[str, bool]:
    """Return for each parameter whether it has an effect in a configuration."""
    applies = dict.fromkeys(kernel.parameters, True)
    for rule in kernel.applies_rules:
        asked = {name: configuration[name] for name in rule.parameters}
        if not kernel.guarded(f"rule {rule.name!r}", partial(rule.function, **asked)):
            applies |= dict.fromkeys(rule.governs, False)
    return applies


def valid_archs(kernel: Kernel, configuration: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the CUDA architectures whose declared space holds a configuration; see `tuned.Plan.archs`."""
    return tuple(arch for arch in CUDA_ARCHS if is_member(kernel, configuration, for_arch(arch)))
