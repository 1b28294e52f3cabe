"""Read and write the times and counters of variants, which are kept next to records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from autotune.explain.variants import Facts, Setting, with_time
from autotune.kernel.source import arguments_fingerprint, source_fingerprint
from autotune.tuned.counted import CountedVariant, add_counts, file_of, known_counts
from autotune.tuned.dates import timestamp
from autotune.tuned.reading import layers
from autotune.tuned.recorded_device import RecordedDevice


def write_explanation(folder: Path, setting: Setting, facts: Sequence[Facts]) -> Path:
    """Write the measurements of variants next to the records of a folder; return the file."""
    source, arguments = _fingerprints(setting)
    new = [
        CountedVariant(
            problem=dict(setting.problem),
            configuration=dict(variant.variant.configuration),
            time_ms=variant.time_ms,
            counters=variant.metrics,
            absent=variant.absent,
            source=source,
            arguments=arguments,
            created=timestamp(),
        )
        for variant in facts
        if variant.time_ms is not None and not variant.is_recorded
    ]
    file = file_of(folder, setting.device.folder, setting.kernel.name)
    add_counts(file, setting.kernel.name, RecordedDevice.of(setting.device), new)
    return file


def _fingerprints(setting: Setting) -> tuple[str, str]:
    kernel = setting.kernel
    return source_fingerprint(kernel), arguments_fingerprint(kernel, setting.problem)


def with_recorded(setting: Setting, facts: Sequence[Facts]) -> tuple[list[Facts], list[str]]:
    """Return variants with their recorded counters and times, and notes on the records."""
    kernel, device = setting.kernel, setting.device
    folders = [folder for _, folder in layers(kernel.project)]
    known = known_counts(file_of(folder, device.folder, kernel.name) for folder in folders)
    result, notes = [], dict[str, None]()
    for variant in facts:
        key = frozenset(setting.problem.items()), frozenset(variant.variant.configuration.items())
        found = None if variant.failure else known.get(key)
        if found and (found.source, found.arguments) != _fingerprints(setting):
            date = found.created[:10]
            notes[f"counters of {date} are not shown: the kernel has changed since"] = None
        elif found:
            notes[f"counters of {device.name}, {found.created[:10]}"] = None
            if variant.time_ms is None:
                variant = with_time(setting, variant, found.time_ms, True)
            variant = replace(variant, metrics=dict(found.counters), absent=found.absent)
        result.append(variant)
    return result, list(notes)
