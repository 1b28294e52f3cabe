"""Formats that results are exported to, by name.

Each is a function from tuned records, or from measurements, to the text of named files: equal input
gives equal bytes (for `cuda` the kernel's declaration and sources are input too). Knows no places and
writes nothing; a format is imported when it is used. Public modules: `cpp`, `cuda`, `header`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from autotune.errors import UsageError, unknown

if TYPE_CHECKING:
    from autotune.interop.formats import Results
    from autotune.tuned.record import TunedRecord


def _header(records: Sequence[TunedRecord]) -> dict[str, str]:
    from autotune.export.header import render

    return {f"{records[0].kernel}.hpp": render(records)}


def _cuda(records: Sequence[TunedRecord]) -> dict[str, str]:
    from autotune.export.cuda import render

    return render(records)


def _json(records: Sequence[TunedRecord]) -> dict[str, str]:
    from autotune.tuned.writing import encode

    files = {f"{record.device.folder}/{record.kernel}.json": encode(record) for record in records}
    return {name: data.decode() for name, data in files.items()}


def _t4(results: Results) -> dict[str, str]:
    from autotune.interop.formats import t4_text

    return {f"{results.kernel}-t4.json": t4_text(results)}


def _cache(results: Results) -> dict[str, str]:
    from autotune.interop.formats import cache_text

    return {f"{results.kernel}-cache.json": cache_text(results)}


@dataclass(frozen=True)
class Format:
    """An export format."""

    name: str
    doc: str
    #: Input of `render`: tuned records of one kernel, or all measurements of one problem and device.
    source: Literal["records", "measurements"]
    #: Makes names of files, below a folder, and their text.
    render: Callable[[Any], dict[str, str]]


FORMATS = {
    format.name: format
    for format in (
        Format("header", "C++17 header with a constexpr lookup", "records", _header),
        Format("cuda", "sources that stand alone, and a C++ launcher of them", "records", _cuda),
        Format("json", "tuned record, what `lookup` reads", "records", _json),
        Format("t4", "FAIR autotuning results, schema T4 1.0.0", "measurements", _t4),
        Format(
            "cache", "Kernel Tuner's cache, for simulation and dashboards", "measurements", _cache
        ),
    )
}


def export_records(format: str, records: Sequence[TunedRecord]) -> dict[str, str]:
    """Export tuned records of one kernel: names of files, below a folder, and their text."""
    render = _found(format, "records").render
    if not records:
        raise UsageError("nothing is tuned yet, so there is nothing to export")
    return render(records)


def export_measurements(format: str, results: Results) -> dict[str, str]:
    """Export everything that was measured: names of files and their text."""
    return _found(format, "measurements").render(results)


def _found(name: str, source: str) -> Format:
    if name not in FORMATS:
        raise UsageError(unknown("format", name, FORMATS))
    if FORMATS[name].source != source:
        raise UsageError(f"format {name} is made from {FORMATS[name].source}, not {source}")
    return FORMATS[name]
