"""Export tuned records or measurements: return the names and contents of files.

Equal input gives equal bytes; for ``cuda`` the kernel's declaration and sources are input too. The package writes no
files. Public modules: `header` with `writer`; `launcher` with `signature` and `sequence` for CUDA sources; `cpp`, C++
text for both; `precompiled`, binaries for `load`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from autotune.errors import UsageError

if TYPE_CHECKING:
    from autotune.interop.formats import Results
    from autotune.tuned.record import TunedRecord


def export_records(
    format: str, records: Sequence[TunedRecord], stale_reasons: Sequence[str] = ()
) -> dict[str, str | bytes]:
    """Return the files of tuned records of one kernel: relative names and contents.

    ``header``: a C++17 header with a constexpr lookup. ``cuda``: self-contained sources and their launcher.
    ``binaries``: compiled configurations, for the cache of binaries. The header names the ``stale_reasons``.
    """
    if not records:
        raise UsageError("nothing is tuned yet, so there is nothing to export")
    if format == "cuda":
        from autotune.export import launcher

        return launcher.render(records, stale_reasons)
    if format == "binaries":
        from autotune.export.precompiled import precompiled

        return {**precompiled(records)}
    from autotune.export import header

    return {f"{records[0].kernel}.hpp": header.render(records, stale_reasons)}


def export_measurements(format: str, results: Results) -> dict[str, str]:
    """Return the file with all measurements of one problem and device: name and text.

    ``t4``: FAIR autotuning results, schema T4 1.0.0. ``cache``: Kernel Tuner's cache.
    """
    from autotune.interop.formats import cache_text, t4_text

    text = t4_text(results) if format == "t4" else cache_text(results)
    return {f"{results.kernel}-{format}.json": text}
