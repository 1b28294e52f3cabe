"""Writes the table of measured results into README.md, from the tuned records in reports/.

python benchmarks/readme_table.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

from autotune import tuned

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- results -->\n", "<!-- /results -->"
KERNELS = ("sgemm", "reduce", "transpose", "gemv", "prefetch", "copy")


def table() -> str:
    """One row per kernel, device and problem: time, rate, ratio to the vendor, share of the limit."""
    lines = [
        "| kernel | problem | time | rate | vendor / ours (95 %) | of measured limit |",
        "|---|---|--:|--:|--:|--:|",
    ]
    records = [
        record
        for record in tuned.read_all(ROOT / "reports")
        if record.device.backend == "cuda" and record.kernel in KERNELS
    ]
    records.sort(key=lambda one: (one.device.name, KERNELS.index(one.kernel)))
    for record in records:
        lines += [_row(record, entry) for entry in record.entries]
    if not records:
        return "Nothing is recorded yet.\n"
    where = "; ".join(dict.fromkeys(f"{r.device.name}, driver {r.device.driver}" for r in records))
    dates = sorted({entry.tuned_on for record in records for entry in record.entries})
    return (
        "\n".join(lines)
        + f"\n\n{where}; {dates[0]}"
        + (f" to {dates[-1]}" if len(dates) > 1 else "")
        + "; float32, random data, L2 cold, ours and the vendor's library (cuBLAS, CUB) interleaved "
        "in the same run.\nEach from `autotune run KERNEL --effort full` on one of several H100s; "
        "budget, strategy, clocks and device uuid are in the reports "
        "([reports](reports)). Limits are what `autotune doctor --limits` measured on the same device.\n"
    )


def _row(record: tuned.TunedRecord, entry: tuned.Entry) -> str:
    problem = ", ".join(f"{name}={value}" for name, value in entry.problem.items())
    vendor = ""
    if entry.vendor:
        low, high = entry.vendor.ratio_interval
        vendor = f"{entry.vendor.ratio:.3f} ({low:.3f}–{high:.3f}) {entry.vendor.name}"
    share = f"{entry.limit_fraction:.0%} {entry.limit_name}" if entry.limit_fraction else ""
    return (
        f"| {record.kernel} | {problem} | {_time(entry.median_ms)} | {_rate(entry)} "
        f"| {vendor} | {share} |"
    )


def _time(median_ms: float) -> str:
    return f"{1000 * median_ms:.4g} µs" if median_ms < 1 else f"{median_ms:.4g} ms"


def _rate(entry: tuned.Entry) -> str:
    flops, moved = entry.gflop_per_s or 0.0, entry.gb_per_s or 0.0
    return f"{flops / 1000:.3g} TFLOP/s" if flops > 4 * moved else f"{moved:.4g} GB/s"


def main() -> None:
    """Replace the table between the marks, or say that it is out of date."""
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    new = f"{before}{BEGIN}{table()}{END}{after}"
    if "--check" in sys.argv:
        sys.exit(
            0 if new == text else "README.md: results are out of date; run this without --check"
        )
    readme.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
