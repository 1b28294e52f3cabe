"""Winners -> Kernel Launcher wisdom files 1.0: a header line, then a line per problem.

Knows that format (KernelTuner/kernel_launcher, src/wisdom.cpp), which `autotune.search.recorded`
reads back. It has three integers for a problem and no place for categories, so each combination of
categories is a kernel of its own there. The members ``kernel`` and ``problem`` of a line are ours:
Kernel Launcher passes over them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from autotune.errors import UsageError
from autotune.tuned.record import Entry, TunedRecord

if TYPE_CHECKING:
    from autotune.search.recorded import Recording

_VERSION = "1.0"
_MOST_SIZES = 3


class _Winner(NamedTuple):
    """One line of a wisdom file."""

    kernel: str
    parameters: list[str]
    problem: Mapping[str, Any]
    configuration: Mapping[str, Any]
    time_ms: float
    environment: dict[str, str]


def render(records: Sequence[TunedRecord]) -> dict[str, str]:
    """The wisdom files of one kernel's records: ``<key>.wisdom`` and its text.

    The key is the kernel's name, with its categories if any.

    Raises
    ------
    UsageError
        If problems have more than three integer fields, two categories the same file name, or the
        records several objectives.
    """
    objectives = {record.objective for record in records}
    if len(objectives) > 1:
        raise UsageError(
            f"{records[0].kernel}: records tuned for {' and '.join(sorted(objectives))} cannot stand "
            "in one wisdom file; choose by --device"
        )
    ordered = sorted(records, key=lambda record: record.device.folder)
    return _files(_tuned(record, entry) for record in ordered for entry in record.entries)


def render_recorded(recordings: Sequence[Recording]) -> dict[str, str]:
    """The wisdom files of the best of what others measured of one kernel; see `render`."""
    return _files(
        _Winner(
            recording.kernel,
            list(recording.space.parameters),
            recording.problem,
            best.configuration,
            best.median_ms or 0.0,
            {"device_name": recording.device.name},
        )
        for recording in recordings
        for best in recording.best(1)
    )


def _tuned(record: TunedRecord, entry: Entry) -> _Winner:
    device, made = record.device, record.provenance
    return _Winner(
        record.kernel,
        list(record.parameters),
        {name: entry.problem[name] for name in record.fields},
        entry.configuration,
        entry.median_ms,
        {
            "device_name": device.name,
            "compute_capability": device.arch.removeprefix("sm_"),
            "cuda_version": made.toolchain,
            "cuda_driver_version": made.driver,
            "autotune_version": made.version,
            "date": entry.tuned_on,
        },
    )


def _files(winners: Iterable[_Winner]) -> dict[str, str]:
    files: dict[str, list[str]] = {}
    shapes: dict[str, tuple[list[str], list[str]]] = {}
    for winner in winners:
        sizes = [value for value in winner.problem.values() if not isinstance(value, str)]
        if len(sizes) > _MOST_SIZES:
            raise UsageError(
                f"{winner.kernel}: a wisdom file holds {_MOST_SIZES} sizes, not {len(sizes)}"
            )
        category = [value for value in winner.problem.values() if isinstance(value, str)]
        key = _key(winner.kernel, category)
        shape = category, winner.parameters
        if shapes.setdefault(key, shape) != shape:
            other, parameters = shapes[key]
            if other != category:
                raise UsageError(
                    f"{winner.kernel}: {category} and {other} have the same wisdom file"
                )
            raise UsageError(
                f"{winner.kernel}: parameters {', '.join(winner.parameters)} and "
                f"{', '.join(parameters)} cannot stand in one wisdom file; choose by --device"
            )
        lines = files.setdefault(key, [_header(winner, key)])
        lines.append(_row(winner, sizes))
    return {f"{key}.wisdom": "\n".join(lines) + "\n" for key, lines in files.items()}


def _key(kernel: str, category: Sequence[str]) -> str:
    name = "-".join([kernel, *category])
    # Kernel Launcher replaces the same characters when it looks for the file.
    return "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "_-.") else "_"
        for letter in name
    )


def _header(winner: _Winner, key: str) -> str:
    return json.dumps(
        {
            "version": _VERSION,
            "key": key,
            "objective": "time",
            "tunable_parameters": winner.parameters,
        }
    )


def _row(winner: _Winner, sizes: list[Any]) -> str:
    return json.dumps(
        {
            "config": [winner.configuration[name] for name in winner.parameters],
            "problem_size": [*sizes, 1, 1, 1][:_MOST_SIZES],
            "time": winner.time_ms,
            "kernel": winner.kernel,
            "problem": dict(winner.problem),
            "environment": winner.environment,
        }
    )
