"""The valid configurations of a kernel, stored as rows of value indices and addressed by number.

Each constraint becomes a boolean table over the parameters that it names; `joining` builds the rows from
the tables. Each source is enumerated separately. If there are several, a row has a column for each
parameter of any source. In a row, a parameter of other sources has its first value.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from inspect import signature
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from autotune.devices.device import CUDA_ARCHS, Device, for_arch
from autotune.errors import NothingValidError, UsageError, unknown
from autotune.kernel.joining import Rows, RuleTable, index_type, join_rows
from autotune.kernel.rules import DEVICE, Rule, Source
from autotune.kernel.spec import Kernel
from autotune.values import SOURCE, Configuration, Value

if TYPE_CHECKING:
    from numpy.random import Generator

#: Limit of combinations that a rule is evaluated for; they take about half a minute.
_MAX_EVALUATIONS = 1 << 27


@dataclass(frozen=True, eq=False)
class Space:
    """An ordered list of valid configurations."""

    #: The values of each parameter of any source, in declared order.
    parameters: dict[str, tuple[Value, ...]]
    #: Value indices of each configuration, in lexicographic order.
    rows: Rows
    #: The share of the source's cartesian product that each constraint alone rejects; in declared order.
    removed: tuple[float, ...] = ()
    #: Rules for parameters that do not apply; see `canonical`.
    applicability: tuple[RuleTable, ...] = ()
    #: Parameters and values of each source; empty for a kernel with one source.
    sources: Mapping[str, Mapping[str, tuple[Value, ...]]] = field(default_factory=dict)
    #: The code of each row, ascending: its value indices multiplied by `strides` and summed.
    codes: NDArray[np.int64] = field(init=False, repr=False)
    strides: NDArray[np.int64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # A code is a mixed-radix number; the last parameter is its lowest digit.
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
        """The value indices of each parameter that occur in valid configurations, ascending."""
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
        """Number of all configurations of all sources, valid or not."""
        return sum(map(_points, self.sources.values() or [self.parameters]))

    @cached_property
    def free(self) -> frozenset[str]:
        """Parameters with several values among the valid configurations of a source."""
        found: set[str] = set()
        for number, columns in enumerate(self._columns):
            rows = self.rows[self.rows[:, 0] == number] if self.sources else self.rows
            found.update(name for name, place, _ in columns if len(rows) and np.ptp(rows[:, place]))
        if self.sources and len(self.occurring[0]) > 1:
            found.add(SOURCE)
        return frozenset(found)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Configuration]:
        return (self.configuration(index) for index in range(len(self)))

    def names_of(self, configuration: Mapping[str, Value]) -> tuple[str, ...]:
        """Return the names of the parameters of a configuration's source."""
        if not self.sources:
            return self.names
        if SOURCE not in configuration:
            raise UsageError(f"configuration lacks a value for {SOURCE}")
        source = configuration[SOURCE]
        if source not in self.sources:
            raise UsageError(unknown(f"value of {SOURCE}:", source, self.sources))
        return (SOURCE, *self.sources[str(source)])

    @cached_property
    def _columns(self) -> tuple[tuple[tuple[str, int, tuple[Value, ...]], ...], ...]:
        """Names, columns and values of the parameters of each source."""
        own = [(SOURCE, *names) for names in self.sources.values()] or [self.names]
        places = {name: place for place, name in enumerate(self.names)}
        return tuple(
            tuple((name, places[name], self.parameters[name]) for name in names) for names in own
        )

    def configuration(self, index: int) -> Configuration:
        """Return the configuration with a number in ``range(len(space))``."""
        row = self.rows[index]
        columns = self._columns[row[0] if self.sources else 0]
        return Configuration({name: values[row[place]] for name, place, values in columns})

    def row(self, configuration: Mapping[str, Value]) -> Rows:
        """Return the value indices of a configuration, valid or not."""
        names = self.names_of(configuration)
        for name in configuration:
            if name not in names:
                raise UsageError(unknown("parameter", name, names))
        row = np.zeros(len(self.parameters), index_type(self.sizes))
        for position, (name, values) in enumerate(self.parameters.items()):
            if name not in names:
                continue
            if name not in configuration:
                raise UsageError(f"configuration lacks a value for {name}")
            if configuration[name] not in values:
                raise UsageError(unknown(f"value of {name}:", configuration[name], values))
            row[position] = values.index(configuration[name])
        return row

    def declares(self, configuration: Mapping[str, Value]) -> bool:
        """Return whether a configuration has exactly its source's parameters, with declared values."""
        try:
            self.row(configuration)
        except UsageError:
            return False
        return True

    def find(self, row: Sequence[int] | NDArray[Any]) -> int | None:
        """Return the number of a row of value indices; None if the row is not valid."""
        code = int(np.asarray(row, np.int64) @ self.strides)
        position = int(np.searchsorted(self.codes, code))
        found = position < len(self.codes) and self.codes[position] == code
        return position if found else None

    def find_all(self, codes: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return the numbers of the valid rows with these codes, ascending and without duplicates.

        Parameters that do not apply are first set to their first value.
        """
        if self.applicability:
            rows = codes[:, None] // self.strides % self.sizes
            for table in self.applicability:
                idle = ~table.values[tuple(rows[:, list(table.positions)].T)]
                rows[np.ix_(idle, list(table.governs))] = table.first
            codes = rows @ self.strides
        codes = np.unique(codes)
        places = np.searchsorted(self.codes, codes)
        found: NDArray[np.intp] = places[self.codes.take(places, mode="clip") == codes]
        return found

    def index(self, configuration: Mapping[str, Value]) -> int | None:
        """Return the number of a configuration; None if the configuration is not valid."""
        try:
            return self.find(self.row(configuration))
        except UsageError:
            return None

    def __contains__(self, configuration: object) -> bool:
        return isinstance(configuration, Mapping) and self.index(configuration) is not None

    def canonical(self, row: Sequence[int] | NDArray[Any]) -> Rows:
        """Return a copy of a row with each parameter that does not apply set to its source's first value."""
        result = np.array(row, index_type(self.sizes))
        for table in self.applicability:
            if not table.accepts(result):
                result[list(table.governs)] = table.first
        return result

    def relevant(self, configuration: Mapping[str, Value]) -> dict[str, Value]:
        """Return the parameters of a configuration that apply."""
        row = self.row(configuration)
        rules = [table for table in self.applicability if not table.accepts(row)]
        idle = {self.names[position] for table in rules for position in table.governs}
        return {name: value for name, value in configuration.items() if name not in idle}

    def sample(self, rng: Generator, count: int) -> list[int]:
        """Return ``count`` distinct numbers in random order, or all."""
        return [int(i) for i in rng.permutation(len(self))[:count]]

    def restricted(self, allowed: Mapping[str, Sequence[Value]]) -> Space:
        """Return the part of the space with only the given values of some parameters.

        A source that lacks one of these parameters is left out.
        """
        keep = np.ones(len(self), bool)
        for number, own in enumerate(self.sources.values()):
            if not {SOURCE, *own}.issuperset(allowed):
                keep &= self.rows[:, 0] != number
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
        return replace(self, rows=self.rows[keep])

    @property
    def fingerprint(self) -> str:
        """The sha256 of the parameters, their values and the valid rows."""
        text = json.dumps({name: list(values) for name, values in self.parameters.items()})
        return hashlib.sha256(text.encode() + self.rows.tobytes()).hexdigest()


def enumerate_space(kernel: Kernel, device: Device) -> Space:
    """Enumerate the valid configurations of a kernel on a device.

    A parameter that does not apply keeps its first value. A constraint is skipped if it names conditional
    parameters, and none of them applies.
    """
    if (total := _points(kernel.parameters)) >= 2**62:  # codes of configurations have 64 bits
        raise kernel.error(f"{total:.1e} combinations exceed 64-bit codes; drop some values")
    parts = [_space_of(kernel, source, device) for source in kernel.sources.values()]
    space = _joined_space(kernel, parts) if kernel.has_several_sources else parts[0]
    if not len(space):
        raise NothingValidError(_why_nothing(kernel, parts, device))
    return space


def _points(parameters: Mapping[str, Sequence[Value]]) -> int:
    return math.prod(map(len, parameters.values()))


def _space_of(kernel: Kernel, source: Source, device: Device) -> Space:
    """Return the valid configurations of one source, possibly none."""
    rules = [_table(kernel, source, rule, device) for rule in source.applies_rules]
    applicability = _deciding_first(rules)
    constraints = [_table(kernel, source, rule, device) for rule in source.constraint_rules]
    removed = tuple(1 - table.share for table in constraints)
    rows = join_rows(kernel, source, constraints, applicability)
    return Space(source.parameters, rows, removed, applicability)


def _joined_space(kernel: Kernel, parts: Sequence[Space]) -> Space:
    """Return the configurations of several sources as one space."""
    sizes = [len(values) for values in kernel.parameters.values()]
    rows = np.zeros((sum(map(len, parts)), len(sizes)), index_type(sizes))
    tables: list[RuleTable] = []
    begin = 0
    for number, part in enumerate(parts):
        places, indices = _mapping(kernel.parameters, part.parameters)
        block = rows[begin : begin + len(part)]
        block[:, 0] = number
        for column, place in enumerate(places):
            block[:, place] = indices[column][part.rows[:, column]]
        begin += len(part)
        foreign = tuple(sorted(set(range(1, len(sizes))).difference(places)))
        tables.append(RuleTable((0,), np.arange(len(parts)) != number, foreign))
        tables += (_widened(table, number, places, indices, sizes) for table in part.applicability)
    return Space(
        kernel.parameters,
        rows,
        tuple(share for part in parts for share in part.removed),
        tuple(tables),
        {name: source.parameters for name, source in kernel.sources.items()},
    )


def _mapping(
    parameters: Mapping[str, tuple[Value, ...]], own: Mapping[str, tuple[Value, ...]]
) -> tuple[list[int], list[NDArray[np.intp]]]:
    """Return, for each parameter of ``own``, its column in ``parameters`` and the indices of its values there."""
    names = list(parameters)
    indices = [
        np.array([parameters[name].index(value) for value in values], np.intp)
        for name, values in own.items()
    ]
    return [names.index(name) for name in own], indices


def _widened(
    table: RuleTable,
    number: int,
    places: Sequence[int],
    indices: Sequence[NDArray[np.intp]],
    sizes: Sequence[int],
) -> RuleTable:
    """Return a source's table for the columns and value indices of the joined space.

    The table accepts all rows of other sources, and all values that the source does not declare.
    """
    positions = (0, *(places[position] for position in table.positions))
    values = np.ones([sizes[position] for position in positions], bool)
    values[number][np.ix_(*(indices[position] for position in table.positions))] = table.values
    return RuleTable(
        positions,
        values,
        tuple(places[position] for position in table.governs),
        tuple(int(indices[position][0]) for position in table.governs),
    )


def _why_nothing(kernel: Kernel, parts: Sequence[Space], device: Device) -> str:
    excluded = [
        (round(share * part.cartesian), rule)
        for source, part in zip(kernel.sources.values(), parts, strict=True)
        for share, rule in zip(part.removed, source.constraint_rules, strict=True)
    ]
    shown = "; ".join(
        f"{rule.name} ({rule.doc}) excludes {count}"
        for count, rule in sorted(excluded, key=itemgetter(0), reverse=True)
    )
    return (
        f"{kernel.name}: no valid configuration for {device.name} among "
        f"{sum(part.cartesian for part in parts)} combinations: {shown}; relax these constraints, or "
        "declare more values"
    )


def _table(kernel: Kernel, source: Source, rule: Rule, device: Device) -> RuleTable:
    names = list(source.parameters)
    shape = [len(source.parameters[name]) for name in rule.parameters]
    if math.prod(shape) > _MAX_EVALUATIONS:
        raise kernel.error(
            f"rule {rule.name!r} depends on {len(shape)} parameters with {math.prod(shape):.1e} "
            f"combinations, more than {_MAX_EVALUATIONS:.1e}: split it into rules of fewer parameters"
        )
    arguments: dict[str, Sequence[object]] = {**source.parameters, DEVICE: (device,)}

    def fill() -> NDArray[np.bool_]:
        # Positional arguments, because keyword arguments take seven times as long.
        names = signature(rule.function).parameters
        points = itertools.product(*(arguments[name] for name in names))
        answers = map(bool, itertools.starmap(rule.function, points))
        return np.fromiter(answers, bool, math.prod(shape)).reshape(shape)

    return RuleTable(
        positions=tuple(names.index(name) for name in rule.parameters),
        values=kernel.guarded(f"rule {rule.name!r}", fill),
        governs=tuple(names.index(name) for name in rule.governs),
    )


def _deciding_first(tables: list[RuleTable]) -> tuple[RuleTable, ...]:
    """Return applicability tables in order: a table comes after the tables that govern its parameters."""
    ordered: list[RuleTable] = []
    waiting = list(tables)
    while waiting:
        ready = [
            table
            for table in waiting
            if not any(set(table.positions) & set(other.governs) for other in waiting)
        ]
        ordered += ready or waiting  # circular rules stay in declared order
        waiting = [table for table in waiting if table not in ordered]
    return tuple(ordered)


def is_member(kernel: Kernel, configuration: Mapping[str, Any], device: Device) -> bool:
    """Return ``configuration in enumerate_space(kernel, device)`` without enumerating the space."""
    if not kernel.is_declared(configuration):
        return False
    parameters = kernel.parameters_of(configuration)
    for name, values in parameters.items():
        value = configuration[name]
        if not any(type(value) is type(allowed) and value == allowed for allowed in values):
            return False
    applies = applicable(kernel, configuration)
    if any(configuration[n] != parameters[n][0] for n, used in applies.items() if not used):
        return False
    return not any(broken_constraints(kernel, configuration, device))


def broken_constraints(
    kernel: Kernel, configuration: Mapping[str, Any], device: Device
) -> Iterator[Rule]:
    """Yield the constraints that a configuration with declared values breaks."""
    source = kernel.source_of(configuration)
    applies = applicable(kernel, configuration)
    conditional = {name for rule in source.applies_rules for name in rule.governs}
    for rule in source.constraint_rules:
        named = conditional & set(rule.parameters)
        if named and not any(applies[name] for name in named):
            continue  # the first values of parameters that do not apply are placeholders
        arguments = {name: configuration[name] for name in rule.parameters}
        if rule.uses_device:
            arguments[DEVICE] = device
        if not kernel.guarded(f"rule {rule.name!r}", partial(rule.function, **arguments)):
            yield rule


def applicable(kernel: Kernel, configuration: Mapping[str, Any]) -> dict[str, bool]:
    """Return for each parameter of a configuration whether it applies."""
    applies = dict.fromkeys(kernel.parameters_of(configuration), True)
    for rule in kernel.source_of(configuration).applies_rules:
        arguments = {name: configuration[name] for name in rule.parameters}
        if not kernel.guarded(f"rule {rule.name!r}", partial(rule.function, **arguments)):
            applies |= dict.fromkeys(rule.governs, False)
    return applies


def valid_archs(kernel: Kernel, configuration: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the CUDA architectures whose space contains a configuration; see `tuned.Plan.archs`."""
    return tuple(arch for arch in CUDA_ARCHS if is_member(kernel, configuration, for_arch(arch)))
