"""Formats that results are exported to: from tuned records, or from measurements, to the text of named files.

Equal input gives equal bytes (for ``cuda`` the kernel's declaration and sources are input too). Knows no places and
writes nothing; a format is imported when it is used. Public modules: `header`; `launcher` with `signature` and
`sequence` for CUDA sources; `cpp`, the text of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from autotune.errors import UsageError

if TYPE_CHECKING:
    from autotune.interop.formats import Results
    from autotune.tuned.record import TunedRecord


def export_records(format: str, records: Sequence[TunedRecord]) -> dict[str, str | bytes]:
    """Return the files of tuned records of one kernel: their names below a folder, and their content.

    ``header``: a C++17 header with a constexpr lookup. ``cuda``: sources that stand alone, and a launcher of them.
    """
    if not records:
        raise UsageError("nothing is tuned yet, so there is nothing to export")
    if format == "cuda":
        from autotune.export import launcher

        return launcher.render(records)
    from autotune.export import header

    return {f"{records[0].kernel}.hpp": header.render(records)}


def export_measurements(format: str, results: Results) -> dict[str, str]:
    """Return the file of all measurements of one problem and device: its name and text.

    ``t4``: FAIR autotuning results, schema T4 1.0.0. ``cache``: Kernel Tuner's cache.
    """
    from autotune.interop.formats import cache_text, t4_text

    text = t4_text(results) if format == "t4" else cache_text(results)
    return {f"{results.kernel}-{format}.json": text}
