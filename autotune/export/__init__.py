"""Formats that results are exported to, by name.

Each is a function from tuned records, or from measurements, to the text of named files: equal input
gives equal bytes (for `cuda` the kernel's declaration and sources are input too). Knows no places and
writes nothing; a format is imported when it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from autotune.errors import UsageError, unknown

if TYPE_CHECKING:
    from autotune.devices.device import Device
    from autotune.export.measurements import Results
    from autotune.kernel.spec import Kernel
    from autotune.search.recorded import Recording
    from autotune.tuned.record import TunedRecord
    from autotune.values import Problem


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


def _wisdom(records: Sequence[TunedRecord]) -> dict[str, str]:
    from autotune.export.wisdom import render

    return render(records)


def _recorded_wisdom(recordings: Sequence[Recording]) -> dict[str, str]:
    from autotune.export.wisdom import render_recorded

    return render_recorded(recordings)


def _t1(described: tuple[Kernel, Problem, Device]) -> dict[str, str]:
    from autotune.export.t1 import render

    return render(*described)


def _t4(results: Results) -> dict[str, str]:
    from autotune.export import measurements

    return {f"{results.kernel}-t4.json": measurements.results(results)}


def _cache(results: Results) -> dict[str, str]:
    from autotune.export import measurements

    return {f"{results.kernel}-cache.json": measurements.cache(results)}


@dataclass(frozen=True)
class Format:
    """One format by name."""

    name: str
    doc: str
    #: What it is made from: the winners, everything that was measured, or the declaration.
    source: Literal["records", "measurements", "kernel"]
    #: Makes names of files, below a folder, and their text.
    render: Callable[[Any], dict[str, str]]


FORMATS = {
    format.name: format
    for format in (
        Format("header", "C++17 header with a constexpr lookup", "records", _header),
        Format("cuda", "sources that stand alone, and a C++ launcher of them", "records", _cuda),
        Format("json", "tuned record, what `lookup` reads", "records", _json),
        Format("wisdom", "Kernel Launcher's wisdom file", "records", _wisdom),
        Format("t1", "FAIR autotuning description of a kernel, schema T1 1.0.0", "kernel", _t1),
        Format("t4", "FAIR autotuning results, schema T4 1.0.0", "measurements", _t4),
        Format(
            "cache", "Kernel Tuner's cache, for simulation and dashboards", "measurements", _cache
        ),
    )
}


#: What holds measurements that were not verified here.
RECORDED_FORMATS = ("t4", "cache", "wisdom")


def export_records(format: str, records: Sequence[TunedRecord]) -> dict[str, str]:
    """Export tuned records of one kernel: names of files, below a folder, and their text.

    Raises
    ------
    UsageError
        If there is no such format or no records, or the format cannot hold them.
    """
    render = _found(format, "records").render
    if not records:
        raise UsageError("nothing is tuned yet, so there is nothing to export")
    return render(records)


def export_measurements(format: str, results: Results) -> dict[str, str]:
    """Export everything that was measured: names of files and their text.

    Raises
    ------
    UsageError
        If there is no such format.
    """
    return _found(format, "measurements").render(results)


def export_kernel(format: str, kernel: Kernel, problem: Problem, device: Device) -> dict[str, str]:
    """Export the declaration of a kernel for one problem and device: names of files and their text.

    Raises
    ------
    UsageError
        If there is no such format, or it cannot hold the declaration.
    """
    return _found(format, "kernel").render((kernel, problem, device))


def export_recorded(format: str, recording: Recording) -> dict[str, str]:
    """Export what someone else measured: names of files and their text.

    In the format that it came in the text is the one that was imported; in another, what that can
    hold.

    Raises
    ------
    UsageError
        If there is no such format, or it is for what was verified here.
    """
    if format not in FORMATS:
        raise UsageError(unknown("format", format, FORMATS))
    if format not in RECORDED_FORMATS:
        raise UsageError(
            f"format {format} is for what was verified here; what was imported goes to "
            f"{', '.join(RECORDED_FORMATS)}"
        )
    wisdom = _recorded_wisdom([recording]) if format == "wisdom" else {}
    if format == "wisdom" and not wisdom:
        raise UsageError(f"{recording.path.name}: nothing in it ran, so it has no winner")
    if recording.kind == format:
        name = next(iter(wisdom)) if format == "wisdom" else f"{recording.kernel}-{format}.json"
        files = {name: recording.text}
    elif format == "wisdom":
        files = wisdom
    else:
        from autotune.export.measurements import Results

        files = export_measurements(format, Results.of(recording))
    # What others call a kernel may be no name of a file.
    return {quote(name, ""): text for name, text in files.items()}


def _found(name: str, source: str) -> Format:
    if name not in FORMATS:
        raise UsageError(unknown("format", name, FORMATS))
    if FORMATS[name].source != source:
        raise UsageError(f"format {name} is made from {FORMATS[name].source}, not {source}")
    return FORMATS[name]
