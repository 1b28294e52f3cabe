"""Tables of docs/results.md about kernels in Triton: rows of matrices, and the decorator."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import rows

RESULTS = Path(__file__).parent / "results"

Row = Mapping[str, Any]
Document = Mapping[str, Any]


def torch_rows() -> list[str]:
    """Return what benchmarks/rows.py measured: a table of each device."""
    lines = [
        "## Rows against torch and Liger",
        "",
        "Times of others over ours, cold, unless the column says otherwise.",
        "",
    ]
    for document in documents("rows"):
        found = document["rows"]
        lines += [_about(document["about"]), "", *(f"- {text}" for text in rows.summary(found)), ""]
        others = ("eager", "compiled", "liger")
        lines += [f"|kernel|size|type|GB/s|of copy|{'|'.join(others)}|hot|error|"]
        lines += [f"|---|---|---|{'--:|' * 7}"]
        for row in found:
            times = row["cold_ms"]
            rates = [
                f"{times[each] / times['ours']:.2f}" if each in times else "" for each in others
            ]
            rate = f"{row['nbytes'] / times['ours'] / 1e6:.0f}"
            error = row["error"]["ours"] / max(row["error"]["eager"], 1e-30)
            name = rows.name_of(row).replace(" x ", "×").rsplit(" ", 2)
            cells = [*name, rate, f"{rows.copy_share(row):.2f}", *rates]
            cells += [f"{rows.ratio(row, 'hot'):.2f}", f"{error:.2f}"]
            lines.append(f"|{'|'.join(cells)}|")
        lines += [""]
    return lines


def decorator() -> list[str]:
    """Return what benchmarks/triton_decorator.py measured: a table of each device, of kernels with both sides."""
    lines = ["## The decorator against triton.autotune", ""]
    for document in documents("triton"):
        parts = document["about"]
        about = f"{_about(next(iter(parts.values())))} Measured parts: {', '.join(parts)}."
        lines += [about, ""]
        both = [row for row in document["rows"] if {"ours", "theirs"} <= {*row}]
        if both:
            cells = [_decorated(row) for row in both]
            shown = [name for name in cells[0] if any(each[name] for each in cells)]
            lines += [f"|{'|'.join(shown)}|", f"|---|{'--:|' * (len(shown) - 1)}"]
            lines += [*(f"|{'|'.join(each[name] for name in shown)}|" for each in cells), ""]
        if faults := document["faults"]:
            lines += [
                f"A first call with a wrong, a faulting and a hanging configuration took {faults['seconds']:.1f} s, "
                f"with {len(faults['warnings'])} warnings; correct result: {faults['is_right']}.",
                "",
            ]
    return lines


def _decorated(row: Row) -> dict[str, str]:
    """Return the cells of a kernel by column; empty where it was not measured."""
    ours, theirs, best = row["ours"], row["theirs"], row.get("best_ms", {})
    times = {each: best["theirs"] / best[each] for each in ("ours", "fifth") if each in best}
    return {
        "kernel": row["kernel"],
        "configurations": str(ours["measured"]),
        "first call, s": f"{ours['first_s']:.1f}",
        "Triton's": f"{theirs['first_s']:.1f}",
        "best time, Triton's over ours": f"{times['ours']:.3f}" if "ours" in times else "",
        "of a fifth": f"{times['fifth']:.3f}" if "fifth" in times else "",
        "launch, µs": f"{ours['launch_us']:.1f}",
        "Triton's launch": f"{theirs['launch_us']:.1f}",
        "`triton.jit`": f"{theirs['jit_launch_us']:.1f}",
        "second process, s": f"{row['second_process_s']:.2f}",
        "lines changed": str(row["lines_changed"]),
    }


def documents(kind: str) -> list[Document]:
    """Return the documents of another program, by device."""
    files = sorted(RESULTS.glob(f"{kind}-*.json"))
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def _about(about: Mapping[str, str]) -> str:
    return (
        f"{about['device']}, driver {about['driver']}, {about['date'][:10]}: `{about['command']}`."
    )
