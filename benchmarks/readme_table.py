"""Writes the measured results of the asked sizes into README.md, and those of all others into docs/sizes.md.

Of each device: what `vendor.py` measured beside the vendor's libraries (``results/vendor-<device>.json``), else
the finals in the tuned records of ``reports/``; of sizes that nobody tunes ``results/unlisted-<device>.json``.

python benchmarks/readme_table.py [--check]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import demands

from autotune.kernel.catalog import find_kernel
from autotune.tuned import record as tuned
from autotune.values import Problem

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- results -->\n", "<!-- /results -->"

Row = Mapping[str, Any]
Document = Mapping[str, Any]
#: What one device measured: its name, and rows by kernel and problem.
Device = tuple[str, dict[str, Row]]
#: By kernel, in the order in which they are shown.
Sizes = Mapping[str, Sequence[Mapping[str, Any]]]


def table(results: Iterable[Document], records: Iterable[tuned.TunedRecord]) -> str:
    """One line per kernel and asked size, devices side by side; then what is asked, and whether it holds.

    Parameters
    ----------
    results : iterable of mapping
        Documents that `vendor.py` wrote.
    records : iterable of TunedRecord
        For the devices that have no such document.
    """
    documents = _sorted(results)
    devices = _chosen(_devices(documents, records), _is_asked)
    if not any(rows for _, rows in devices):
        return "Nothing is recorded yet.\n"
    return "\n".join(
        [
            *_lines(devices, demands.SIZES),
            "",
            *(_provenance(one) for one in documents),
            _explained(devices),
            "",
            "What else is tuned, and sizes that are not: [docs/sizes.md](docs/sizes.md).",
            "",
            *(line for one in documents for line in _judged(one)),
        ]
    )


def page(
    results: Iterable[Document],
    unlisted: Iterable[Document],
    records: Iterable[tuned.TunedRecord],
) -> str:
    """The sizes that are tuned without being asked for, and those that are not tuned, each in a table.

    Parameters
    ----------
    results, records
        As of `table`.
    unlisted : iterable of mapping
        Documents that ``vendor.py --unlisted`` wrote.
    """
    documents, others = _sorted(results), _sorted(unlisted)
    tuned_devices = _devices(documents, records)
    further = _chosen(tuned_devices, lambda row: not _is_asked(row))
    unmeasured: dict[str, dict[str, Row]] = {name: {} for name, _ in tuned_devices}
    answered = list((unmeasured | dict(_devices(others, []))).items())
    return "\n".join(
        [
            "<!-- Written by benchmarks/readme_table.py from the files in benchmarks/results. -->",
            "# Further sizes beside the vendor's library",
            "",
            _explained([*further, *answered]),
            "",
            "## Tuned, beside the sizes of the README",
            "",
            *_section(further, documents, _further_sizes()),
            "## Not tuned: what `lookup` answers",
            "",
            *_section(answered, others, demands.UNLISTED),
        ]
    )


def _section(devices: list[Device], documents: list[Document], sizes: Sizes) -> list[str]:
    """A table, what it comes to for each kernel, what is missing in it, and where it comes from."""
    shown = [*_lines(devices, sizes), ""] if any(rows for _, rows in devices) else []
    failures = {one["device"]: one.get("failures", []) for one in documents}
    for name, rows in devices:
        spreads = demands.spreads(rows.values())
        shown += [f"- {_short(name)}, {kernel}: {text}" for kernel, text in spreads.items()]
        failed = [one for one in failures.get(name, []) if not _is_asked(one)]
        shown += [
            f"- {_short(name)}, {one['kernel']}: failed at {demands.describe(one['problem'])}: {one['error']}"
            for one in failed
        ]
        shown += _missing(name, {*rows, *map(_key, failed)}, sizes)
    shown += [] if devices else ["Nothing is recorded yet."]
    return [*shown, "", *(_provenance(one) for one in documents)]


def _missing(device: str, known: set[str], sizes: Sizes) -> list[str]:
    lines = []
    for kernel, listed in sizes.items():
        missing = [one for one in listed if _key({"kernel": kernel, "problem": one}) not in known]
        if missing:
            lines.append(f"- {_short(device)}, {kernel}: not measured: {demands.listed(missing)}")
    return lines


def _further_sizes() -> Sizes:
    """What the space files tune on a GPU without being asked to."""
    return {
        name: [dict(one) for one in _kernel(name).problems["cuda"] if dict(one) not in asked]
        for name, asked in demands.SIZES.items()
    }


def _is_asked(row: Row) -> bool:
    return row["problem"] in demands.SIZES.get(row["kernel"], [])


def _sorted(documents: Iterable[Document]) -> list[Document]:
    return sorted(documents, key=lambda one: str(one["device"]))


def _devices(documents: list[Document], records: Iterable[tuned.TunedRecord]) -> list[Device]:
    named = {one["device"] for one in documents}
    devices = [(str(one["device"]), _by_key(one["rows"])) for one in documents]
    rest = [one for one in records if one.device.name not in named]
    for name in sorted({one.device.name for one in rest}):
        rows = [_recorded(one, e) for one in rest if one.device.name == name for e in one.entries]
        devices.append((name, _by_key(rows)))
    return devices


def _chosen(devices: list[Device], keep: Callable[[Row], bool]) -> list[Device]:
    return [(name, {k: row for k, row in rows.items() if keep(row)}) for name, rows in devices]


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


def _lines(devices: list[Device], sizes: Sizes) -> list[str]:
    columns = ("time", "rate", "vendor / ours (95 %)", "of limit")
    head, rule = "| kernel | size |", "|---|---|"
    for name, _ in devices:
        short = f" {_short(name)}:" if len(devices) > 1 else ""
        head += "".join(f"{short} {column} |" for column in columns)
        rule += "--:|" * len(columns)
    keys = dict.fromkeys(key for _, rows in devices for key in rows)
    lines = []
    any_rows = {key: next(rows[key] for _, rows in devices if key in rows) for key in keys}
    for key, any_row in sorted(any_rows.items(), key=lambda one: _place(one[1], sizes)):
        rows = [rows.get(key) for _, rows in devices]
        cells = [any_row["kernel"], demands.describe(any_row["problem"])]
        for row in rows:
            cells += _cells(row) if row else [""] * len(columns)
        lines.append("| " + " | ".join(cells) + " |")
    return [head, rule, *lines]


def _place(row: Row, sizes: Sizes) -> tuple[int, int, str]:
    mine = sizes.get(row["kernel"], [])
    place = mine.index(row["problem"]) if row["problem"] in mine else len(mine)
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
    work = _kernel(row["kernel"]).work_of(Problem(row["problem"]))
    assert work is not None
    moved = work.bytes_read + work.bytes_written
    if work.flops > 4 * moved:
        return f"{work.flops / row['ours_ms'] / 1e9:.3g} TFLOP/s"
    return f"{moved / row['ours_ms'] / 1e6:.4g} GB/s"


_kernel = cache(find_kernel)


def _short(name: str) -> str:
    """``H100`` of ``NVIDIA H100 80GB HBM3``."""
    return next((word for word in name.split() if any(c.isdigit() for c in word)), name)


def _provenance(document: Document) -> str:
    dates = sorted({row["date"][:10] for row in document["rows"]} or {document["date"]})
    versions = document["versions"]
    libraries = ", ".join(
        f"{name} {versions[name]}" for name in ("cublas", "cub") if name in versions
    )
    return (
        f"{document['device']}, driver {document['driver']}, {libraries}, "
        f"{' to '.join(dict.fromkeys((dates[0], dates[-1])))}: `{document['command']}`.\n"
    )


def _explained(devices: list[Device]) -> str:
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
    return text


def _judged(document: Document) -> list[str]:
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
    """Replace the table between the marks and the page, or say which of them is out of date."""
    results, unlisted = _documents("vendor"), _documents("unlisted")
    records = [one for one in tuned.read_all(ROOT / "reports") if one.device.backend == "cuda"]
    before, _, rest = (ROOT / "README.md").read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    texts = {
        "README.md": f"{before}{BEGIN}{table(results, records)}{END}{after}",
        "docs/sizes.md": page(results, unlisted, records),
    }
    if "--check" not in sys.argv:
        for name, text in texts.items():
            (ROOT / name).write_text(text, encoding="utf-8")
        return
    old = [name for name, text in texts.items() if not _holds(ROOT / name, text)]
    if old:
        sys.exit(f"{', '.join(old)}: results are out of date; run this without --check")


def _documents(kind: str) -> list[Document]:
    files = sorted((ROOT / "benchmarks" / "results").glob(f"{kind}-*.json"))
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def _holds(file: Path, text: str) -> bool:
    return file.is_file() and file.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    main()
