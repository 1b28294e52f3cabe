"""Translate the lookup table of records into C++ text: enums, rows, plans, fitted times."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

import msgspec

from autotune.answers.table import (
    AnswerTable,
    Cost,
    Plan,
    PlannedLaunch,
    Prediction,
    ProblemKey,
    SizeRange,
    Triple,
    Value,
    blocks_of,
)
from autotune.errors import UsageError
from autotune.export.cpp import INT, comment, expression, identifier, listed, time
from autotune.kernel.expression import MAX_INTEGER, substitute
from autotune.tuned.merged import (
    DEFAULT,
    Group,
    LookupRow,
    LookupTable,
    arch_number,
    build_table,
    pick,
)
from autotune.tuned.reading import RecordFile, decode
from autotune.tuned.record import TunedRecord
from autotune.tuned.writing import encode
from autotune.values import SOURCE


@dataclass(frozen=True)
class _Enum:
    name: str
    about: str
    values: tuple[str, ...]
    enumerators: Mapping[str, str]

    def __getitem__(self, value: str) -> str:
        return f"{self.name}::{self.enumerators[value]}"


def _enum(name: str, about: str, values: Iterable[str]) -> _Enum:
    enumerators: dict[str, str] = {}
    for value in values:
        wanted = identifier(value)
        while wanted in enumerators.values():
            wanted += "x"  # two values that differ in punctuation only
        enumerators[value] = wanted
    return _Enum(name, comment(about), tuple(enumerators.values()), enumerators)


def _identifiers(table: LookupTable, names: Iterable[str]) -> dict[str, str]:
    known = {name: identifier(name) for name in names}
    alike = [name for name, cpp in known.items() if list(known.values()).count(cpp) > 1]
    if alike:
        raise UsageError(f"{table.kernel}: a header cannot tell {' and '.join(alike)} apart")
    return known


@dataclass(frozen=True)
class _Member:
    """A member of `config` with the parameters of one source."""

    source: str
    name: str
    type: str
    #: C++ names by parameter.
    parameters: Mapping[str, str]


class Writer:
    """Translates the lookup table of records into C++ text."""

    def __init__(self, records: Sequence[TunedRecord]) -> None:
        self.records = sorted(records, key=lambda record: record.device.folder)
        self.table = _table(self.records)
        self.parameters = _identifiers(self.table, self.table.parameters)
        self.fields = _identifiers(self.table, self.table.fields)
        names = {*self.parameters.values(), *self.fields.values()}
        self._types = {
            name: identifier(f"{cpp}_value", names)
            for name, cpp in (*self.parameters.items(), *self.fields.items())
        }
        taken = {*names, *self._types.values()}
        #: The members of `config`, one for each source; empty if there is only one source.
        self.members = [
            _Member(
                source,
                identifier(source, taken),
                identifier(f"{source}_parameters", taken),
                {name: self.parameters[name] for name in own},
            )
            for source, own in self.table.sources.items()
        ]
        folders = list(self.table.devices)
        self.devices = _enum("device", "", folders)
        self.plans: dict[bytes, Plan] = {}
        self.positions: dict[bytes, int] = {}
        self.shapes: list[str] = []
        #: The number of blocks of each shape.
        self.blocks: list[str] = []
        self.conditions: list[str] = []
        #: The lines of all launch sequences, one after the other, and where each sequence begins.
        self.launches: list[str] = []
        self._sequences: dict[tuple[str, ...], int] = {}
        #: The grids of tuned problems that were not traced.
        self.untraced: list[str] = []
        for row in _rows(self.table.defaults):
            self.number(row.plans[0])
        devices, archs = self.table.devices.values(), self.table.archs.values()
        shared = {id(group.exact) for group in devices}
        #: An architecture with a single device has no group of its own: it shares the device's rows.
        own = (group for group in archs if id(group.exact) not in shared)
        self.groups = [*devices, *own, self.table.defaults]
        self.tables: list[AnswerTable] = []
        for row in (row for group in self.groups for row in _rows(group)):
            for plan in _answering(row):
                self.number(plan)
            if row.table is not None and self.table_number(row) == 0:
                self.tables.append(row.table)
        for _, cost in self.costs():
            self.number(cost.plan)
        self.enums = {
            name: _enum(self._types[name], f"Values of {name}.", self._values(name))
            for name, values in self.table.parameters.items()
            if isinstance(values[0], str)
        } | {
            name: _enum(self._types[name], f"Values of {name}.", self._categories(i))
            for i, (name, integer) in enumerate(self.table.fields.items())
            if not integer
        }
        named = [arch for plan in self.plans.values() for arch in plan.archs or ()]
        numbers = {arch_number(arch) for arch in named} - {None}
        self.archs = sorted(number for number in numbers if number is not None) or [0]

    @property
    def made_of(self) -> str:
        """The line of a header with the fingerprints of its kernel and of its records."""
        made = self.table.newest.provenance
        files = map(encode, self.records)
        kernel, records = (
            sha256(data).hexdigest()[:16]
            for data in (f"{made.source}{made.arguments}".encode(), b"".join(files))
        )
        return f"Made of kernel {kernel} and records {records}."

    def parameter_paths(self) -> list[str]:
        """Return the members of a plan that together are its configuration."""
        if not self.members:
            return list(self.parameters.values())
        inner = (
            f"{member.name}.{cpp}" for member in self.members for cpp in member.parameters.values()
        )
        return [self.parameters[SOURCE], *inner]

    def _all_groups(self) -> list[Group]:
        return [*self.table.devices.values(), *self.table.archs.values()]

    def costs(self) -> Iterator[tuple[Prediction, Cost]]:
        for table in self.tables:
            if table.prediction is not None:
                for cost in table.prediction.costs:
                    yield table.prediction, cost

    def _values(self, parameter: str) -> list[str]:
        return [str(value) for value in self.table.parameters[parameter]]

    def _categories(self, position: int) -> list[str]:
        groups = (*self.table.devices.values(), self.table.defaults)
        rows = [row for group in groups for row in _rows(group)]
        return sorted({str(row.problem[position]) for row in rows}) or ["none"]

    def number(self, plan: Plan) -> int:
        """Return the position of a plan in the table, for arrays with the tuned layout."""
        requires = plan.requires and substitute(plan.requires, self.table.layout)
        requires = None if isinstance(requires, int) and requires else requires
        plan = msgspec.structs.replace(plan, requires=requires)
        key = msgspec.json.encode(plan)
        self.plans.setdefault(key, plan)
        return self.positions.setdefault(key, len(self.positions))

    def arch_id(self, arch: str) -> int:
        """Return 90 for ``sm_90``; for a name without a number, an id below -1 that no caller passes."""
        number = arch_number(arch)
        return number if number is not None else -2 - sorted(self.table.archs).index(arch)

    def plan_row(self, plan: Plan) -> str:
        """Return the line of a plan in the table of plans."""
        values = self._values_of(plan.configuration)
        lines = tuple(map(self._launch, plan.launches))
        first = self._sequences.setdefault(lines, len(self.launches))
        if first == len(self.launches):
            self.launches += lines
        condition = -1
        if plan.requires is not None:
            condition = _index(self.conditions, expression(plan.requires))
        archs = plan.archs or ()
        bits = sum(1 << i for i, number in enumerate(self.archs) if f"sm_{number}" in archs)
        launches = [str(first), str(len(lines)), str(first + len(plan.before))]
        about = [_bool(plan.exclusive), _bool(plan.deterministic), str(condition)]
        examined = _bool(plan.archs is not None)
        return ",".join([*values, *launches, *about, f"{bits}ULL", examined])

    def _launch(self, launch: PlannedLaunch) -> str:
        """Return the line of a launch in the table of launches."""
        shape = -1
        if launch.grid is not None:
            shape = _index(self.shapes, listed(map(expression, launch.grid)))
            if shape == len(self.blocks):
                self.blocks.append(expression(blocks_of(launch.grid)))
        entry = json.dumps(launch.entry or self.table.kernel)
        row = [entry, _extent(launch.block), str(launch.shared_bytes), str(shape)]
        if self.has_attributes:
            cluster = _extent(launch.cluster) if launch.cluster else "{0, 0, 0}"
            row += [cluster, _bool(launch.cooperative), _bool(launch.programmatic)]
        return ",".join(row)

    @cached_property
    def has_attributes(self) -> bool:
        """Return whether a launch of any plan has attributes; otherwise the header has no members for them."""
        return any(
            launch.has_attributes for plan in self.plans.values() for launch in plan.launches
        )

    def _values_of(self, configuration: Mapping[str, Value]) -> list[str]:
        """Return the members of a configuration; the members of other sources are empty."""
        if not self.members:
            return [self.value(name, configuration[name]) for name in self.parameters]
        source = configuration[SOURCE]
        members = [
            ",".join(self.value(name, configuration[name]) for name in member.parameters)
            if member.source == source
            else ""
            for member in self.members
        ]
        return [self.value(SOURCE, source), *(f"{{{values}}}" for values in members)]

    def value(self, name: str, value: Value) -> str:
        if isinstance(value, bool):
            return _bool(value)
        return self.enums[name][value] if isinstance(value, str) else str(value)

    def problem(self, values: ProblemKey) -> str:
        """Return the values of a problem, or of its place, as C++ arguments."""
        return listed(
            self.enums[name][value] if isinstance(value, str) else _long(value)
            for name, value in zip(self.fields, values, strict=True)
        )

    def exact_rows(self, row: LookupRow) -> Iterator[str]:
        """Yield the lines of a tuned problem: its winner, then its best deterministic plan."""
        problem = f"{{{self.problem(row.problem)}}}"
        first, *others = _answering(row)
        steps = row.tuned.launches if row.tuned else ()
        untraced = -1
        if steps and any(launch.grid is None for launch in first.launches):
            untraced = len(self.untraced)
            self.untraced += (_extent(step.concrete_grid) for step in steps)
        yield f"{problem}, {self.number(first)}, 1.0, {untraced}"
        for plan in others:
            yield f"{problem}, {self.number(plan)}, {_fraction(row.share_of_second)}, -1"

    def near_rows(self, row: LookupRow) -> Iterator[str]:
        """Yield the lines of a problem that answers for others: its first plan, then deterministic plans."""
        place, table = f"{{{self.problem(row.place)}}}", self.table_number(row)
        for position, plan in enumerate(_answering(row)):
            further, verified = _bool(position > 0), self._span_of_ranges(row)
            yield f"{place}, {self.number(plan)}, {further}, {table}, {verified}"

    def range_rows(self) -> list[str]:
        """Return the lines of all ranges of verified sizes."""
        return [
            listed(f"{{{self._corner(known, end)}}}" for end in (0, 1))
            for ranges in self._ranges()
            for known in ranges
        ]

    def _ranges(self) -> list[tuple[SizeRange, ...]]:
        """Return the different tuples of ranges of all rows."""
        found = list[tuple[SizeRange, ...]]()
        for row in (row for group in self.groups for row in group.near.values()):
            found += [row.verified] if row.verified not in found else []
        return found

    def _span_of_ranges(self, row: LookupRow) -> str:
        known = self._ranges()
        first = sum(map(len, known[: known.index(row.verified)]))
        return f"{first}, {first + len(row.verified)}"

    def _corner(self, ranges: SizeRange, end: int) -> str:
        """Return the least or the greatest problem of a range."""
        values = (ranges[name] for name in self.table.fields)
        return self.problem(tuple(v if isinstance(v, str) else v[end] for v in values))

    def table_number(self, row: LookupRow) -> int:
        """Return the position of a row's answer table; 0 if it has none."""
        known = enumerate(self.tables, 1)
        return next((i for i, table in known if table is row.table), 0)

    def spans_of_tables(self) -> Iterator[str]:
        """Yield the span of each table's costs, and the index of its expected speeds or -1."""
        costs = kinds = 0
        for table in self.tables:
            last = costs + len(table.prediction.costs) if table.prediction else costs
            kind = kinds if table.prediction and table.prediction.expected else -1
            kinds += kind >= 0
            yield f"{costs}, {last}, {kind}"
            costs = last

    def forest(self) -> dict[str, Any]:
        """Return the trees of costs and of expected speeds, padded to the same number of splits."""
        predictions = [table.prediction for table in self.tables if table.prediction]
        of_costs = [
            tree for prediction in predictions for trees in prediction.corrections for tree in trees
        ]
        expected = [prediction.expected for prediction in predictions if prediction.expected]
        depths = [
            *(len(tree.splits) for tree in of_costs),
            *(len(speeds.splits) for speeds in expected),
        ]
        levels = max([1, *depths]) if depths else 0

        def padded(splits: Sequence[tuple[int, int]], outcomes: list[str]) -> str:
            """Pad splits and outcomes; no feature exceeds the added splits, so added outcomes never apply."""
            full = [*splits, *[(0, MAX_INTEGER)] * (levels - len(splits))]
            cases = ",".join([*outcomes, *outcomes[:1] * ((1 << levels) - len(outcomes))])
            return f"{{{','.join(f'{{{f},{_long(t)}}}' for f, t in full)}}},{{{cases}}}"

        first, corrections, kinds = 0, list[str](), list[str]()
        for prediction in predictions:
            for trees in prediction.corrections or [()] * len(prediction.costs):
                corrections.append(f"{first}, {first + len(trees)}")
                first += len(trees)
        for known in expected:
            bounds = (self._bound([pair[end] for pair in known.ranges]) for end in (0, 1))
            shares = [f"{{{low!r}, {median!r}}}" for low, median in known.shares]
            kinds.append(f"{listed(bounds)}, {padded(known.splits, shares)}")
        return {
            "levels": levels,
            "trees": [
                padded(tree.splits, [repr(factor).removeprefix("0") for factor in tree.factors])
                for tree in of_costs
            ],
            "corrections": corrections,
            "kinds": kinds,
        }

    def _bound(self, sizes: Sequence[int]) -> str:
        """Return a problem with these integer fields and arbitrary categories."""
        left = iter(sizes)
        values = (
            _long(next(left)) if integer else self.field(name, integer)["zero"]
            for name, integer in self.table.fields.items()
        )
        return f"{{{listed(values)}}}"

    def field(self, name: str, integer: bool) -> dict[str, Any]:
        cpp = self.fields[name]
        enum = None if integer else self.enums[name]
        return {
            "name": cpp,
            "integer": integer,
            "type": enum.name if enum else "long long",
            "place_type": enum.name if enum else "int",
            "zero": f"{enum.name}::{enum.values[0]}" if enum else "0",
        }

    def times(self) -> list[str]:
        return [time(c, p.multiple).replace("\n", "\n      ") for p, c in self.costs()]

    def spans(self) -> dict[Group, str]:
        """Return the architecture and the row ranges of each group."""
        spans: dict[int, str] = {}
        ends = [0, 0]
        for group in self.groups:
            begins = ends
            ends = [
                begin + sum(len(_answering(row)) for row in rows.values())
                for begin, rows in zip(begins, (group.exact, group.near), strict=True)
            ]
            spans[id(group.exact)] = f"{begins[0]}, {ends[0]}, {begins[1]}, {ends[1]}"
        known = [(group, self.arch_id(group.arch)) for group in self._all_groups()]
        return {
            group: f"{arch}, {spans[id(group.exact)]}"
            for group, arch in (*known, (self.table.defaults, 0))
        }

    def assertions(self) -> list[str]:
        """Return C++ conditions: the header's lookup equals Python's lookup for every tuned problem."""
        lines = []
        for group in self._all_groups():
            device = group.name if group.device else None
            where = str(self.arch_id(group.arch))
            if device:
                where = f"device::{self.devices.enumerators[device]}"
            elif where.startswith("-"):
                continue
            for problem, deterministic in itertools.product(group.exact, (False, True)):
                hit = pick(self.table, problem, device, group.arch, deterministic=deterministic)
                if hit and deterministic and hit.plan is group.exact[problem].plans[0]:
                    continue
                demand = ", demand::deterministic" if deterministic else ""
                asked = f"lookup({where}, {self.problem(problem)}{demand})"
                quality = hit.quality if hit and hit.quality != DEFAULT else "kernel_default"
                number = self.number(hit.plan) if hit else -1
                lines.append(f"detail::is({asked}, {number}, quality::{quality})")
        return lines


def _table(records: Sequence[TunedRecord]) -> LookupTable:
    if not records:
        raise UsageError(
            "no tuned records for a header; tune the kernel first: autotune run KERNEL"
        )
    for what in ("kernel", "objective"):
        found = sorted({getattr(record, what) for record in records})
        if len(found) > 1:
            raise UsageError(
                f"a header has one {what}, not {', '.join(found)}; export them separately"
            )

    def refuse(message: str) -> None:
        raise UsageError(f"{message}; tune it again, or export without it")

    ordered = (decode(encode(record)) for record in records)
    loaded = [RecordFile("header", record.device.folder, record) for record in ordered]
    return build_table(loaded, refuse)


def _rows(group: Group) -> list[LookupRow]:
    return [*group.exact.values(), *group.near.values()]


def _answering(row: LookupRow) -> list[Plan]:
    """Return a row's first plan and its deterministic plans; all others are for other layouts."""
    return [row.plans[0], *(plan for plan in row.plans[1:] if plan.deterministic)]


def _index(known: list[str], text: str) -> int:
    if text not in known:
        known.append(text)
    return known.index(text)


def _extent(sizes: Triple) -> str:
    return f"{{{listed(map(str, sizes))}}}"


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _long(value: int) -> str:
    return str(value) if value in INT else f"{value}LL"


def _fraction(value: float | None) -> str:
    return "-1" if value is None else repr(float(value))
