"""Formats that results are exported to, by name.

Each is a pure function from tuned records, or from measurements, to the text of named files: equal
input gives equal bytes. Knows no places and writes nothing; a format is imported when it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from autotune.errors import UsageError, unknown
from autotune.export import t4

if TYPE_CHECKING:
    from autotune.tuned.record import TunedRecord


@dataclass(frozen=True)
class Format:
    """One format by name."""

    name: str
    doc: str
    #: What it is made from: the winners, or everything that was measured.
    source: Literal["records", "measurements"]


FORMATS = {
    format.name: format
    for format in (
        Format("header", "C++17 header with a constexpr lookup", "records"),
        Format("json", "tuned record, what `lookup` reads", "records"),
        Format("wisdom", "Kernel Launcher's wisdom file", "records"),
        Format("t4", "FAIR autotuning results, schema T4 1.0.0", "measurements"),
        Format("cache", "Kernel Tuner's cache file, for simulation and dashboards", "measurements"),
    )
}


def export_records(format: str, records: Sequence[TunedRecord]) -> dict[str, str]:
    """Export tuned records of one kernel: names of files, below a folder, and their text.

    Raises
    ------
    UsageError
        If there is no such format or no records, or the format cannot hold them.
    """
    _check(format, "records")
    if not records:
        raise UsageError("nothing is tuned yet, so there is nothing to export")
    if format == "header":
        from autotune.export import header

        return {f"{records[0].kernel}.hpp": header.render(records)}
    if format == "wisdom":
        from autotune.export import wisdom

        return wisdom.render(records)
    from autotune.tuned.writing import encode

    files = {f"{record.device.folder}/{record.kernel}.json": encode(record) for record in records}
    return {name: data.decode() for name, data in files.items()}


def export_measurements(format: str, results: t4.Results) -> dict[str, str]:
    """Export everything that was measured: names of files and their text.

    Raises
    ------
    UsageError
        If there is no such format.
    """
    _check(format, "measurements")
    render = t4.results if format == "t4" else t4.cache
    return {f"{results.kernel}-{format}.json": render(results)}


def _check(format: str, source: str) -> None:
    if format not in FORMATS:
        raise UsageError(unknown("format", format, FORMATS))
    if FORMATS[format].source != source:
        raise UsageError(f"format {format} is made from {FORMATS[format].source}, not {source}")
