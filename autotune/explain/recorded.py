"""Joins variants with the counters that are kept next to records, and adds new ones there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from autotune.explain.variants import Facts, Setting, with_time
from autotune.kernel.source import arguments_fingerprint, source_fingerprint
from autotune.tuned.clock import timestamp
from autotune.tuned.counted import CountedVariant, add_counts, file_of, known_counts
from autotune.tuned.reading import layers
from autotune.tuned.record import RecordedDevice


def write_explanation(folder: Path, setting: Setting, facts: Sequence[Facts]) -> Path:
    """Write the measurements of variants next to a folder's records; return the file."""
    source, arguments = _fingerprints(setting)
    new = [
        CountedVariant(
            problem=dict(setting.problem),
            configuration=dict(each.variant.configuration),
            time_ms=each.time_ms,
            counters=each.metrics,
            absent=each.absent,
            source=source,
            arguments=arguments,
            created=timestamp(),
        )
        for each in facts
        if each.time_ms is not None and not each.is_recorded
    ]
    file = file_of(folder, setting.device.folder, setting.kernel.name)
    add_counts(file, setting.kernel.name, RecordedDevice.of(setting.device), new)
    return file


def _fingerprints(setting: Setting) -> tuple[str, str]:
    kernel = setting.kernel
    return source_fingerprint(kernel), arguments_fingerprint(kernel, setting.problem)


def with_recorded(setting: Setting, facts: Sequence[Facts]) -> tuple[list[Facts], list[str]]:
    """Return variants with the counters and times on record, and notes on them."""
    kernel, device = setting.kernel, setting.device
    places = [folder for _, folder in layers(kernel.project)]
    known = known_counts(file_of(each, device.folder, kernel.name) for each in places)
    result, notes = [], dict[str, None]()
    for each in facts:
        key = frozenset(setting.problem.items()), frozenset(each.variant.configuration.items())
        found = None if each.failure else known.get(key)
        if found and (found.source, found.arguments) != _fingerprints(setting):
            notes[f"counters of {found.created[:10]} are left out: the kernel changed since"] = None
        elif found:
            notes[f"counters of {device.name}, {found.created[:10]}"] = None
            if each.time_ms is None:
                each = with_time(setting, each, found.time_ms, True)
            each = replace(each, metrics=dict(found.counters), absent=found.absent)
        result.append(each)
    return result, list(notes)
