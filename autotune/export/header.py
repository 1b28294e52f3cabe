"""Write tuned records as one C++17 header with a constexpr lookup.

The header has the rows of `autotune.tuned.merged` in the same order, and searches them by the rule of
`autotune.answers.table`. Equal records give equal bytes. The template is ``header.hpp.j2``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autotune import __version__
from autotune.answers.table import (
    COMMON_SHARED_BYTES,
    SIXTEENTHS,
)
from autotune.devices.device import MAX_GRID
from autotune.export.cpp import INT, comment, filled, identifier, listed
from autotune.export.writer import Writer
from autotune.tuned.merged import (
    CUDA_ARCH_MACRO,
    Group,
    arch_number,
)
from autotune.tuned.record import TIME, TunedProblem, TunedRecord
from autotune.values import SOURCE


def render(records: Sequence[TunedRecord], stale_reasons: Sequence[str] = ()) -> str:
    """Return the header of one kernel's records, for one device or several.

    Raises `UsageError` if the records are of several kernels, or if their fields or parameters differ from
    those of the newest record. ``stale_reasons`` are the changes of the kernel since it was tuned.
    """
    return header_of(Writer(records), stale_reasons)


def header_of(writer: Writer, stale_reasons: Sequence[str] = ()) -> str:
    return filled("header.hpp.j2", _context(writer, stale_reasons))


def _context(writer: Writer, stale_reasons: Sequence[str]) -> dict[str, Any]:
    table = writer.table
    plans = [writer.plan_row(plan) for plan in writer.plans.values()]
    spans = writer.spans()
    kernel = identifier(table.kernel)
    fields = [writer.field(name, integer) for name, integer in table.fields.items()]
    integers = [field["name"] for field in fields if field["integer"]]
    return {
        "kernel": kernel,
        "guard": f"AUTOTUNE_{kernel}_HPP",
        "version": comment(__version__),
        "about": [
            *made_of(writer, stale_reasons),
            *(comment(line) for record in writer.records for line in _about(writer, record)),
        ],
        "example": _example(writer),
        "sources": [
            {
                "type": member.type,
                "about": comment(f"Parameters of the source {member.source}."),
                "parameters": _members(writer, member.parameters),
            }
            for member in writer.members
        ],
        "parameters": _parameters(writer),
        "fields": fields,
        "no_integers": not integers,
        "signature": listed(f"{field['type']} {field['name']}" for field in fields),
        "arguments": listed(field["name"] for field in fields),
        "places": listed(
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
        "blocks": writer.blocks,
        **writer.forest(),
        "features": listed(
            [
                *(f"asked_.{name}" for name in integers),
                *(f"power_in(asked_.{name})" for name in integers),
            ]
        ),
        "conditions": writer.conditions,
        "common_shared_bytes": COMMON_SHARED_BYTES,
        "defaults": spans[table.defaults],
        "launches": writer.launches,
        "attributed": writer.has_attributes,
        "most_launches": max(len(plan.launches) for plan in writer.plans.values()),
        "max_grid": MAX_GRID,
        "groups": [
            {
                "about": comment(group.name),
                "exact": [line for row in group.exact.values() for line in writer.exact_rows(row)],
                "near": [line for row in group.near.values() for line in writer.near_rows(row)],
            }
            for group in writer.groups
        ],
        "grids": writer.untraced,
        "no_exact": f"{{{listed(field['zero'] for field in fields)}}}, 0, -1, -1",
        "no_near": f"{{{listed(field['zero'] for field in fields)}}}, 0, false, 0, 0, 0",
        "ranges": writer.range_rows(),
        "no_range": listed([f"{{{listed(field['zero'] for field in fields)}}}"] * 2),
        "tables": list(writer.spans_of_tables()),
        "cost_plans": [writer.number(cost.plan) for _, cost in writer.costs()],
        "cost_rounds": [cost.waves[0][0] if cost.waves else 1 for _, cost in writer.costs()],
        "times": writer.times(),
        "assertions": writer.assertions(),
    }


def _parameters(writer: Writer) -> list[dict[str, str]]:
    """Return the members of `config`: all parameters, or the source and a member for each source."""
    if not writer.members:
        return _members(writer, writer.parameters)
    own = [{"name": member.name, "type": member.type} for member in writer.members]
    return [*_members(writer, {SOURCE: writer.parameters[SOURCE]}), *own]


def _members(writer: Writer, names: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": cpp, "type": _type(writer, name)} for name, cpp in names.items()]


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
    return "int" if all(value in INT for value in values) else "long long"


def _example(writer: Writer) -> str:
    for group in writer.groups:
        for problem in group.exact:
            number = arch_number(group.arch)
            where = number or f"device::{writer.devices.enumerators[group.name]}"
            return f"{where}, {writer.problem(problem)}"
    return f"90, {listed(writer.fields.values())}"


def made_of(writer: Writer, stale_reasons: Sequence[str]) -> list[str]:
    """Return the lines of a generated file that say what it is made of, and whether that is stale."""
    lines = [writer.made_of]
    if stale_reasons:
        kernel = writer.table.kernel
        lines.append(f"Stale: {', '.join(stale_reasons)}. Tune again: autotune run {kernel}")
    return [comment(line) for line in lines]


def _about(writer: Writer, record: TunedRecord) -> Iterator[str]:
    yield origin(record)
    for entry in record.problems:
        reasons = writer.table.newest.stale_reasons(entry)
        stale = f", left out because stale: {', '.join(reasons)}" if reasons else ""
        yield f"  {time_text(entry)}{stale}"


def origin(record: TunedRecord) -> str:
    """Return the provenance of one record."""
    device, made = record.device, record.provenance
    driver = f"driver {made.driver}" if made.driver else ""
    tuned_for = "" if record.objective == TIME else f"tuned for {record.objective}"
    parts = [device.name, device.arch, driver, made.toolchain, made.created[:10], tuned_for]
    return listed(part for part in parts if part)


def time_text(entry: TunedProblem) -> str:
    """Return the measurements of one problem as a line."""
    problem = " ".join(f"{name}={value}" for name, value in entry.problem.items())
    parts = [f"{entry.median_ms:.4g} ms {entry.race.timing}"]
    if entry.gflop_per_s:
        parts.append(f"{entry.gflop_per_s:.4g} GFLOP/s")
    if entry.gb_per_s:
        parts.append(f"{entry.gb_per_s:.4g} GB/s")
    if entry.race.speedup:
        low, high = entry.race.speedup.interval
        ratio = f"{entry.race.speedup.value:.3f} [{low:.3f}, {high:.3f}]"
        parts.append(f"{ratio} times as fast as {entry.race.vendor_name}")
    parts += [f"noise: {'; '.join(entry.race.noise)}"] if entry.race.noise else []
    return f"{problem}: {', '.join(parts)}"
