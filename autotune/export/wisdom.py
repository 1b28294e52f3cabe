"""Tuned records -> Kernel Launcher wisdom files 1.0: a header line, then a line per problem.

Knows that format (KernelTuner/kernel_launcher, src/wisdom.cpp). It has three integers for a problem
and no place for categories, so each combination of categories is a kernel of its own there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from autotune.errors import UsageError
from autotune.tuned.record import Entry, TunedRecord

_VERSION = "1.0"
_MOST_SIZES = 3


def render(records: Sequence[TunedRecord]) -> dict[str, str]:
    """The wisdom files of one kernel's records: ``<key>.wisdom`` and its text.

    The key is the kernel's name, with its categories if any.

    Raises
    ------
    UsageError
        If problems have more than three integer fields, or two categories the same file name.
    """
    files: dict[str, list[str]] = {}
    categories: dict[str, list[str]] = {}
    for record in sorted(records, key=lambda record: record.device.folder):
        sizes = [name for name, kind in record.fields.items() if kind == "integer"]
        if len(sizes) > _MOST_SIZES:
            raise UsageError(
                f"{record.kernel}: a wisdom file holds {_MOST_SIZES} sizes, not {len(sizes)}"
            )
        for entry in record.entries:
            category = [value for value in entry.problem.values() if isinstance(value, str)]
            key = _key(record.kernel, category)
            if categories.setdefault(key, category) != category:
                raise UsageError(
                    f"{record.kernel}: {category} and {categories[key]} have the same wisdom file"
                )
            lines = files.setdefault(key, [_header(record, key)])
            lines.append(_row(record, entry, [int(entry.problem[name]) for name in sizes]))
    return {f"{key}.wisdom": "\n".join(lines) + "\n" for key, lines in files.items()}


def _key(kernel: str, category: Sequence[str]) -> str:
    name = "-".join([kernel, *category])
    # Kernel Launcher replaces the same characters when it looks for the file.
    return "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "_-.") else "_"
        for letter in name
    )


def _header(record: TunedRecord, key: str) -> str:
    return json.dumps(
        {
            "version": _VERSION,
            "key": key,
            "objective": "time",
            "tunable_parameters": list(record.parameters),
        }
    )


def _row(record: TunedRecord, entry: Entry, sizes: list[int]) -> str:
    device, made = record.device, record.provenance
    return json.dumps(
        {
            "config": [entry.configuration[name] for name in record.parameters],
            "problem_size": [*sizes, 1, 1, 1][:_MOST_SIZES],
            "time": entry.median_ms,
            "environment": {
                "device_name": device.name,
                "compute_capability": device.arch.removeprefix("sm_"),
                "cuda_version": made.toolchain,
                "cuda_driver_version": made.driver,
                "autotune_version": made.version,
                "date": entry.tuned_on,
            },
        }
    )
