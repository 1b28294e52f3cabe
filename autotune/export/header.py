"""Tuned records -> one C++17 header with a constexpr lookup.

Knows C++ and the table of `autotune.tuned.table`, which lookup in Python walks as well: the header
holds the same rows in the same order, so both answer alike. Equal records give equal bytes.

The text is in ``header.hpp.j2``; this module fills it in.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from autotune import __version__
from autotune.errors import UsageError
from autotune.export.reserved import taken
from autotune.kernel.expression import MAX_INTEGER
from autotune.tuned.formula import waves_of
from autotune.tuned.reading import Loaded, decode
from autotune.tuned.record import (
    COMMON_SHARED_BYTES,
    TIME,
    Cost,
    Entry,
    Plan,
    Prediction,
    Promise,
    Term,
    Triple,
    TunedRecord,
    Value,
    relaid,
)
from autotune.tuned.table import (
    CUDA_ARCH_MACRO,
    SIXTEENTHS,
    Group,
    LookupRow,
    LookupTable,
    ProblemKey,
    arch_number,
    build_table,
    deterministic_only,
    pick,
)
from autotune.tuned.writing import encode

_INT = range(-(2**31) + 1, 2**31)
_LONG = range(-MAX_INTEGER, MAX_INTEGER + 1)


def render(records: Sequence[TunedRecord]) -> str:
    """Write the header of one kernel's records, of one device or of several.

    Raises
    ------
    UsageError
        If there are no records, or they are of several kernels or of other problem fields or
        parameters than the newest.
    """
    return header_of(Writer(records))


def header_of(writer: Writer) -> str:
    """The header of a table that was made already."""
    return filled("header.hpp.j2", _context(writer))


def filled(template: str, context: Mapping[str, Any]) -> str:
    """The text of a template of this folder."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("autotune", "export"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # C++: `identifier`, `comment` and `literal` do the escaping
    )
    return environment.get_template(template).render(context)


def identifier(name: str, others: Container[str] = ()) -> str:
    """A C++ identifier for a name: the name itself wherever it is one, and none of the others."""
    plain = re.sub(r"[^A-Za-z0-9]+|_+", "_", name).strip("_") or "value"
    plain = f"v{plain}" if plain[0].isdigit() else plain
    return f"{plain}_" if plain in taken() or plain in others else plain


def comment(text: str) -> str:
    """Text that cannot end a line comment: printable ASCII, without backslash or trigraph."""
    printable = "".join(letter if " " <= letter <= "~" else "?" for letter in text)
    return printable.replace("\\", "/").replace("??", "?.")


def expression(form: Any) -> str:
    """A stored expression in C++, over `number`s of the header."""
    names = {"//": "floor_div", "min": "minimum", "max": "maximum", "and": "both"}
    match form:
        case int():
            return literal(form)
        case str():
            return identifier(form)
        case ["-", 0, ["//", ["-", 0, above], below]]:
            return f"ceil_div({expression(above)}, {expression(below)})"
    operator, left, right = form[0], expression(form[1]), expression(form[2])
    name = names.get(operator)
    return f"{name}({left}, {right})" if name else f"({left} {operator} {right})"


def literal(value: int) -> str:
    """An integer in C++, as a `number` that says so where it does not fit."""
    if value in _INT:
        return f"number{{{value}}}"
    return f"number{{{value}LL}}" if value in _LONG else "number{0, false}"


def time(cost: Cost, multiple: int) -> str:
    """The time of a configuration in C++, as an `estimate` of the header, in several lines."""
    parts = [f"estimate{{{_sum(cost.fixed)}}}"]
    for slots, terms in cost.waves:
        parts.append(f"in_waves({expression(waves_of(cost.plan.grid, slots))}, {_sum(terms)})")
    factors = [
        f"unless_multiple({identifier(name)}, {multiple}, {factor!r})"
        for name, factor in cost.misaligned.items()
    ]
    total = "\n    + ".join(parts)
    return "\n    * ".join([f"({total})", *factors]) if factors else total


def _sum(terms: Sequence[Term]) -> str:
    products = (
        " * ".join([repr(product), *(identifier(name) for name in names)])
        for product, names in terms
    )
    return " + ".join(products) or "0.0"


@dataclass(frozen=True)
class _Enum:
    """A C++ enumeration of str values."""

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
    """The identifier of each name; records of earlier versions may have names that share one."""
    known = {name: identifier(name) for name in names}
    alike = [name for name, cpp in known.items() if list(known.values()).count(cpp) > 1]
    if alike:
        raise UsageError(f"{table.kernel}: a header cannot tell {' and '.join(alike)} apart")
    return known


class Writer:
    """The table of some records in C++ words."""

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
        folders = list(self.table.devices)
        self.devices = _enum("device", "", folders)
        self.plans: dict[bytes, Plan] = {}
        self.positions: dict[bytes, int] = {}
        self.shapes: list[str] = []
        self.conditions: list[str] = []
        self.default = self.number(self.table.default.plan)
        #: The same table where only what is deterministic may answer.
        self.repeating = deterministic_only(self.table)
        groups = [*self._own_groups(self.table), *self._own_groups(self.repeating)]
        self.groups = list(dict.fromkeys(groups))
        self.promises: list[Promise] = []
        self.predictions: list[Prediction] = []
        for row in (row for group in self.groups for row in _rows(group)):
            self.number(row.plan)
            if row.prediction is not None and self.prediction(row) < 0:
                self.predictions.append(row.prediction)
        for _, cost in self._costs():
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

    def _own_groups(self, table: LookupTable) -> list[Group]:
        """Devices and architectures; the rows of an architecture with one device are the device's."""
        alone = (arch for arch in table.archs.values() if self._only_device(table, arch) is arch)
        return [*table.devices.values(), *alone]

    def _only_device(self, table: LookupTable, arch: Group) -> Group:
        """The device of an architecture that has but one; else the architecture."""
        devices = [device for device in table.devices.values() if device.arch == arch.name]
        return devices[0] if len(devices) == 1 else arch

    def _costs(self) -> Iterator[tuple[Prediction, Cost]]:
        for prediction in self.predictions:
            for cost in prediction.costs:
                yield prediction, cost

    def _values(self, parameter: str) -> list[str]:
        """What is declared now, and what an older entry that stayed has beside it."""
        held = (plan.configuration[parameter] for plan in self.plans.values())
        return [str(value) for value in dict.fromkeys((*self.table.parameters[parameter], *held))]

    def _categories(self, position: int) -> list[str]:
        rows = [row for group in self.table.devices.values() for row in _rows(group)]
        return sorted({str(row.problem[position]) for row in rows}) or ["none"]

    def number(self, plan: Plan) -> int:
        """The position of a plan among those of the header."""
        key = msgspec.json.encode(plan)
        self.plans.setdefault(key, plan)
        return self.positions.setdefault(key, len(self.positions))

    def name_of(self, group: Group) -> str:
        """What a group is called in a comment."""
        own = [*self.table.devices.values(), *self.table.archs.values()]
        return group.name if group in own else f"{group.name}, deterministic"

    def arch_id(self, arch: str) -> int:
        """90 for ``sm_90``; below -1 for what has no number, so that no integer asks for it."""
        number = arch_number(arch)
        return number if number is not None else -2 - sorted(self.table.archs).index(arch)

    def plan_row(self, plan: Plan) -> str:
        """One line of the table of plans."""
        values = [self.value(name, plan.configuration[name]) for name in self.parameters]
        shape = condition = -1
        if plan.grid is not None:
            shape = _index(self.shapes, _joined(map(expression, plan.grid)))
        if plan.requires is not None:
            condition = _index(self.conditions, expression(plan.requires))
        archs = plan.archs or ()
        bits = sum(1 << i for i, number in enumerate(self.archs) if f"sm_{number}" in archs)
        sizes = [_extent(plan.block), str(plan.shared_bytes)]
        about = [_bool(plan.exclusive), _bool(plan.deterministic), str(shape), str(condition)]
        examined = _bool(plan.archs is not None)
        return _joined([*values, *sizes, *about, f"{bits}ULL", examined])

    def value(self, name: str, value: Value) -> str:
        """The value of a parameter."""
        if isinstance(value, bool):
            return _bool(value)
        return self.enums[name][value] if isinstance(value, str) else str(value)

    def problem(self, values: ProblemKey) -> str:
        """Values of a problem, or where it lies, as arguments."""
        return _joined(
            self.enums[name][value] if isinstance(value, str) else _long(value)
            for name, value in zip(self.fields, values, strict=True)
        )

    def exact_row(self, row: LookupRow) -> str:
        """One line of the table of measured problems."""
        fraction = _fraction(row.expected_fraction)
        grid = _extent(row.grid or (0, 0, 0))
        return f"{{{self.problem(row.problem)}}}, {self.number(row.plan)}, {fraction}, {grid}"

    def near_row(self, row: LookupRow) -> str:
        """One line of the table of nearest problems."""
        first = self.promise(row)
        about = (self.number(row.plan), row.reach, first, first + len(row.promised))
        return _joined(
            [f"{{{self.problem(row.place)}}}", *map(str, (*about, self.prediction(row)))]
        )

    def promise(self, row: LookupRow) -> int:
        """The position of what a row promises among all that is promised."""
        wanted, known = list(row.promised), self.promises
        for first in range(len(known) - len(wanted) + 1):
            if known[first : first + len(wanted)] == wanted:
                return first
        known += wanted
        return len(known) - len(wanted)

    def prediction(self, row: LookupRow) -> int:
        """The position of a row's prediction among those of the header; -1 where it has none."""
        known = enumerate(self.predictions)
        return next((i for i, prediction in known if prediction is row.prediction), -1)

    def prediction_rows(self) -> list[dict[str, str]]:
        """The plans of each prediction, and where they are in the table of all."""
        rows, first = [], 0
        for prediction in self.predictions:
            plans = _joined(str(self.number(cost.plan)) for cost in prediction.costs)
            last = first + len(prediction.costs)
            rows.append({"span": f"{first}, {last}", "plans": plans})
            first = last
        return rows

    def times(self) -> list[str]:
        """The time of each cost, in the order of the predictions."""
        return [time(c, p.multiple).replace("\n", "\n      ") for p, c in self._costs()]

    def spans(self) -> dict[Group, str]:
        """Where the rows of each device and architecture are: its arch, and the spans of all and of some."""
        spans: dict[Group, str] = {}
        exact = near = 0
        for group in self.groups:
            ends = exact + len(group.exact), near + len(group.rows)
            spans[group] = _joined(map(str, (exact, ends[0], near, ends[1])))
            exact, near = ends
        lines: dict[Group, str] = {}
        for kind in ("devices", "archs"):
            for name, group in getattr(self.table, kind).items():
                repeating = getattr(self.repeating, kind)[name]
                both = (
                    f"{{{spans[self._only_device(table, each)]}}}"
                    for table, each in ((self.table, group), (self.repeating, repeating))
                )
                lines[group] = f"{self.arch_id(group.arch)}, {{{_joined(both)}}}"
        return lines

    def assertions(self) -> list[str]:
        """What Python's lookup answers for every measured problem, as conditions."""
        lines = []
        for group in [*self.table.devices.values(), *self.table.archs.values()]:
            is_device = group is self.table.devices.get(group.name)
            which = f"device::{self.devices.enumerators[group.name]}" if is_device else None
            where = which or str(self.arch_id(group.arch))
            if where.startswith("-"):
                continue
            questions = itertools.product(group.exact, (False, True))
            for problem, deterministic in questions:
                device, arch = (group.name, None) if is_device else (None, group.arch)
                table = self.repeating if deterministic else self.table
                if deterministic and self.repeating.devices == self.table.devices:
                    continue
                row, quality = pick(table, problem, device, arch)
                demand = ", demand::deterministic" if deterministic else ""
                asked = f"lookup({where}, {self.problem(problem)}{demand})"
                hit = "kernel_default" if quality == "default" else quality
                lines.append(f"{asked}.plan == {self.number(row.plan)}")
                lines.append(f"{asked}.hit == quality::{hit}")
        return lines


def _table(records: Sequence[TunedRecord]) -> LookupTable:
    if not records:
        raise UsageError("no tuned records to make a header of")
    kernels = sorted({record.kernel for record in records})
    if len(kernels) > 1:
        raise UsageError(f"a header is of one kernel, not of {', '.join(kernels)}")

    def refuse(message: str) -> None:
        raise UsageError(f"{message}; tune again or leave it out")

    plain = (decode(encode(relaid(record, {}))) for record in records)
    loaded = [Loaded("header", record.device.folder, record) for record in plain]
    return build_table(loaded, refuse)


def _context(writer: Writer) -> dict[str, Any]:
    """Everything the template names."""
    table = writer.table
    plans = [writer.plan_row(plan) for plan in writer.plans.values()]
    spans = writer.spans()
    kernel = identifier(table.kernel)
    fields = [_field(writer, name, integer) for name, integer in table.fields.items()]
    integers = [field["name"] for field in fields if field["integer"]]
    return {
        "kernel": kernel,
        "guard": f"AUTOTUNE_{kernel}_HPP",
        "version": comment(__version__),
        "about": [comment(line) for record in writer.records for line in _about(record)],
        "example": _example(writer),
        "parameters": [
            {"name": cpp, "type": _type(writer, name)} for name, cpp in writer.parameters.items()
        ],
        "fields": fields,
        "no_integers": not integers,
        "signature": _joined(f"{field['type']} {field['name']}" for field in fields),
        "arguments": _joined(field["name"] for field in fields),
        "places": _joined(
            f"sixteenths(p_.{field['name']})" if field["integer"] else f"p_.{field['name']}"
            for field in fields
        ),
        "distance": " + ".join(f"apart(a_.{name}, b_.{name})" for name in integers) or "0",
        "devices": _devices(writer, spans),
        "arch_groups": [spans[group] for group in table.archs.values()],
        "enums": list(writer.enums.values()),
        "roots": SIXTEENTHS,
        "archs": writer.archs,
        "cuda_arch_macro": CUDA_ARCH_MACRO,
        "plans": plans,
        "shapes": writer.shapes,
        "conditions": writer.conditions,
        "common_shared_bytes": COMMON_SHARED_BYTES,
        "default_plan": writer.default,
        "groups": [
            {
                "about": comment(writer.name_of(group)),
                "exact": [writer.exact_row(row) for row in group.exact.values()],
                "near": [writer.near_row(row) for row in group.rows],
            }
            for group in writer.groups
        ],
        "no_exact": f"{{{_joined(field['zero'] for field in fields)}}}, 0, -1, {{0, 0, 0}}",
        "no_near": f"{{{_joined(field['zero'] for field in fields)}}}, 0, -1, 0, 0, -1",
        "promises": [f"{within}, {_fraction(share)}" for within, share in writer.promises],
        "predictions": writer.prediction_rows(),
        "times": writer.times(),
        "assertions": writer.assertions(),
    }


def _field(writer: Writer, name: str, integer: bool) -> dict[str, Any]:
    cpp = writer.fields[name]
    enum = None if integer else writer.enums[name]
    return {
        "name": cpp,
        "integer": integer,
        "type": enum.name if enum else "long long",
        "place_type": enum.name if enum else "int",
        "zero": f"{enum.name}::{enum.values[0]}" if enum else "0",
    }


def _devices(writer: Writer, spans: Mapping[Group, str]) -> list[dict[str, str]]:
    devices = [record.device for record in writer.records]
    abouts = {device.folder: f"{device.name}, {device.arch}" for device in devices}
    return [
        {
            "name": cpp,
            "about": comment(abouts[folder]),
            "group": spans[writer.table.devices[folder]],
        }
        for folder, cpp in writer.devices.enumerators.items()
    ]


def _type(writer: Writer, name: str) -> str:
    values = writer.table.parameters[name]
    if isinstance(values[0], bool):
        return "bool"
    if isinstance(values[0], str):
        return writer.enums[name].name
    if isinstance(values[0], float):
        return "double"
    return "int" if all(value in _INT for value in values) else "long long"


def _example(writer: Writer) -> str:
    for group in writer.groups:
        for problem in group.exact:
            number = arch_number(group.arch)
            where = number or f"device::{writer.devices.enumerators[group.name]}"
            return f"{where}, {writer.problem(problem)}"
    return f"90, {_joined(writer.fields.values())}"


def _about(record: TunedRecord) -> list[str]:
    """Provenance of one record and what was measured, a line each."""
    return [origin(record), *(f"  {measured(entry)}" for entry in record.entries)]


def origin(record: TunedRecord) -> str:
    """Provenance of one record."""
    device, made = record.device, record.provenance
    driver = f"driver {made.driver}" if made.driver else ""
    tuned_for = "" if record.objective == TIME else f"tuned for {record.objective}"
    parts = [device.name, device.arch, driver, made.toolchain, made.created[:10], tuned_for]
    return _joined(part for part in parts if part)


def measured(entry: Entry) -> str:
    """What was measured for one problem, in a line."""
    problem = " ".join(f"{name}={value}" for name, value in entry.problem.items())
    parts = [f"{entry.median_ms:.4g} ms {entry.timing}"]
    if entry.gflop_per_s:
        parts.append(f"{entry.gflop_per_s:.4g} GFLOP/s")
    if entry.gb_per_s:
        parts.append(f"{entry.gb_per_s:.4g} GB/s")
    if entry.vendor:
        low, high = entry.vendor.ratio_interval
        ratio = f"{entry.vendor.ratio:.3f} [{low:.3f}, {high:.3f}]"
        parts.append(f"{ratio} times as fast as {entry.vendor.name}")
    parts += [f"stale: {reason}" for reason in entry.stale_reasons]
    parts += [f"unsure: {entry.unsure}"] if entry.unsure else []
    return f"{problem}: {', '.join(parts)}"


def _rows(group: Group) -> list[LookupRow]:
    return [*group.exact.values(), *group.rows]


def _index(known: list[str], text: str) -> int:
    if text not in known:
        known.append(text)
    return known.index(text)


def _joined(parts: Iterable[str]) -> str:
    return ", ".join(parts)


def _extent(sizes: Triple) -> str:
    return f"{{{_joined(map(str, sizes))}}}"


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _long(value: int) -> str:
    return str(value) if value in _INT else f"{value}LL"


def _fraction(value: float | None) -> str:
    return "-1" if value is None else repr(float(value))
