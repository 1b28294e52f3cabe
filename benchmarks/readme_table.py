"""Writes the table of measured results into README.md.

Of each device: what `vendor.py` measured beside the vendor's libraries (``results/vendor-<device>.json``), else
the finals in the tuned records of ``reports/``.

python benchmarks/readme_table.py [--check]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import demands

from autotune import tuned
from autotune.catalog import find_kernel
from autotune.spec import Work
from autotune.values import Problem

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- results -->\n", "<!-- /results -->"

Row = Mapping[str, Any]
#: What one device measured: its name, and rows by kernel and problem.
Device = tuple[str, dict[str, Row]]


def table(results: Iterable[Mapping[str, Any]], records: Iterable[tuned.TunedRecord]) -> str:
    """One line per kernel and size, devices side by side; then what is asked, and whether it holds.

    Parameters
    ----------
    results : iterable of mapping
        Documents that `vendor.py` wrote.
    records : iterable of TunedRecord
        For the devices that have no such document.
    """
    documents = sorted(results, key=lambda one: str(one["device"]))
    named = {one["device"] for one in documents}
    devices = [(str(one["device"]), _by_key(one["rows"])) for one in documents]
    rest = [one for one in records if one.device.name not in named]
    for name in sorted({one.device.name for one in rest}):
        rows = [_recorded(one, e) for one in rest if one.device.name == name for e in one.entries]
        devices.append((name, _by_key(rows)))
    if not any(rows for _, rows in devices):
        return "Nothing is recorded yet.\n"
    return "\n".join(
        [
            *_lines(devices),
            "",
            *(_provenance(one) for one in documents),
            *_explained(devices),
            *(line for one in documents for line in _judged(one)),
        ]
    )


def _by_key(rows: Iterable[Row]) -> dict[str, Row]:
    return {_key(one): one for one in rows if one["kernel"] in demands.SIZES}


def _key(row: Row) -> str:
    return f"{row['kernel']} {json.dumps(row['problem'], sort_keys=True)}"


def _recorded(record: tuned.TunedRecord, entry: tuned.Entry) -> Row:
    """An entry of a tuned record in the form of a row of `vendor.py`."""
    vendor = entry.vendor
    return {
        "kernel": record.kernel,
        "problem": dict(entry.problem),
        "ours_ms": entry.median_ms,
        "ratio": vendor.ratio if vendor else None,
        "ratio_ci": list(vendor.ratio_interval) if vendor else None,
        "limit_fraction": entry.limit_fraction,
        "limit": entry.limit_name,
        "quality": "exact",
    }


def _lines(devices: list[Device]) -> list[str]:
    columns = ("time", "rate", "vendor / ours (95 %)", "of limit")
    head, rule = "| kernel | size |", "|---|---|"
    for name, _ in devices:
        short = f" {_short(name)}:" if len(devices) > 1 else ""
        head += "".join(f"{short} {column} |" for column in columns)
        rule += "--:|" * len(columns)
    keys = dict.fromkeys(key for _, rows in devices for key in rows)
    lines = []
    for key in sorted(keys, key=lambda one: _place(next(r[one] for _, r in devices if one in r))):
        rows = [rows.get(key) for _, rows in devices]
        any_row = next(one for one in rows if one)
        cells = [any_row["kernel"], demands.describe(any_row["problem"])]
        for row in rows:
            cells += _cells(row) if row else [""] * len(columns)
        lines.append("| " + " | ".join(cells) + " |")
    return [head, rule, *lines]


def _place(row: Row) -> tuple[int, int, str]:
    sizes = demands.SIZES[row["kernel"]]
    place = sizes.index(row["problem"]) if row["problem"] in sizes else len(sizes)
    return list(demands.SIZES).index(row["kernel"]), place, _key(row)


def _cells(row: Row) -> list[str]:
    ratio, share = "", ""
    if row["ratio"]:
        low, high = row["ratio_ci"]
        ratio = f"{row['ratio']:.3f} ({low:.3f}–{high:.3f})"
    if row["limit_fraction"] and row["ratio"]:  # without a vendor it is a limit of others itself
        share = f"{row['limit_fraction']:.1%} {row['limit']}"
    mark = "" if row["quality"] == "exact" else "\\*"
    return [_time(row["ours_ms"]) + mark, _rate(row), ratio, share]


def _time(median_ms: float) -> str:
    return f"{1000 * median_ms:.4g} µs" if median_ms < 1 else f"{median_ms:.4g} ms"


def _rate(row: Row) -> str:
    """Arithmetic or traffic per second, whichever the kernel has more of."""
    work: Work = _kernel(row["kernel"]).call_hook("work", Problem(row["problem"]))
    moved = work.bytes_read + work.bytes_written
    if work.flops > 4 * moved:
        return f"{work.flops / row['ours_ms'] / 1e9:.3g} TFLOP/s"
    return f"{moved / row['ours_ms'] / 1e6:.4g} GB/s"


_kernel = cache(find_kernel)


def _short(name: str) -> str:
    """``H100`` of ``NVIDIA H100 80GB HBM3``."""
    return next((word for word in name.split() if any(c.isdigit() for c in word)), name)


def _provenance(document: Mapping[str, Any]) -> str:
    dates = sorted({row["date"][:10] for row in document["rows"]} or {document["date"]})
    versions = document["versions"]
    libraries = ", ".join(
        f"{name} {versions[name]}" for name in ("cublas", "cub") if name in versions
    )
    return (
        f"{document['device']}, driver {document['driver']}, {libraries}, "
        f"{' to '.join(dict.fromkeys((dates[0], dates[-1])))}: `{document['command']}`.\n"
    )


def _explained(devices: list[Device]) -> list[str]:
    rows = [row for _, found in devices for row in found.values()]
    marked = any(row["quality"] != "exact" for row in rows)
    text = (
        "float32, random data, L2 cold. Ours and the vendor's library (cuBLAS, CUB, cudaMemcpy; for prefetch the "
        "same loop without prefetching) interleaved in random order in one run, with 95 % bootstrap intervals. "
        "The limit is `copy` on the same bytes in the same run, or the FFMA rate that `autotune doctor --limits` "
        "measures; of a misaligned copy, the aligned one."
    )
    if marked:
        text += " \\*: not tuned for this size; the configuration that `lookup` answers with."
    return [text, ""]


def _judged(document: Mapping[str, Any]) -> list[str]:
    """What was aimed for and is not reached on a device; how many aims are."""
    judged = [one for one in demands.verdicts(document["rows"]) if not one.beyond]
    failing = [one for one in judged if one.holds is False]
    open_ones = [one for one in judged if one.holds is None]
    short = _short(str(document["device"]))
    lines = [
        f"Of {len(judged)} aims (`benchmarks/demands.py`) {short} meets "
        f"{sum(one.holds is True for one in judged)}"
        + (f", {len(open_ones)} are not measured in full" if open_ones else "")
        + (". Missed:" if failing else "."),
        "",
    ]
    lines += [f"- {one.kernel}: {one.demand}: {one.found}" for one in failing]
    return [*lines, ""] if failing else lines


def main() -> None:
    """Replace the table between the marks, or say that it is out of date."""
    documents = [
        json.loads(file.read_text(encoding="utf-8"))
        for file in sorted((ROOT / "benchmarks" / "results").glob("vendor-*.json"))
    ]
    records = [one for one in tuned.read_all(ROOT / "reports") if one.device.backend == "cuda"]
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    new = f"{before}{BEGIN}{table(documents, records)}{END}{after}"
    if "--check" in sys.argv:
        sys.exit(
            0 if new == text else "README.md: results are out of date; run this without --check"
        )
    readme.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
