"""Draws ratios to the vendor's fastest calls: a row of dots for each kernel and state of the cache."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import jinja2
import problem_sizes

Row = Mapping[str, Any]

#: Pixels; small enough that text is readable on a telephone, which shows it at two thirds.
WIDTH = 500
_LEFT, _RIGHT, _TOP, _HEAD, _STATE = 48, WIDTH - 14, 60, 28, 20
_TICKS = (0.5, 1, 2, 5, 10, 20)
#: Kernels in the picture and their rivals; ``rows`` are softmax and similar kernels.
_VENDORS = {
    "copy": "cudaMemcpy",
    "gemv": "cuBLAS",
    "gemv_columns": "cuBLAS",
    "hgemm": "cuBLAS",
    "prefetch": "plain loop",
    "reduce": "CUB",
    "rows": "torch",
    "sgemm": "cuBLAS",
    "sgemm_tf32x3": "cuBLAS float32",
    "transpose": "cuBLAS",
}


def picture(
    devices: Mapping[str, Sequence[Row]], states: Sequence[str] = tuple(problem_sizes.STATES)
) -> str:
    """Return the picture of measured rows by the device's short name, as SVG for light and dark pages.

    Each kernel has a row of dots for each of `states`; the least ratio is named for all states.

    Rows of an earlier form are left out, and devices that have no others. A row may lack the ratio of a
    state, and may have a ``name`` in place of a problem.
    """
    compared = {
        device: chosen
        for device, rows in devices.items()
        if (
            chosen := [
                row
                for row in rows
                if row["ratio"] and row["kernel"] in _VENDORS and problem_sizes.is_current(row)
            ]
        )
    }
    everything = [row for rows in compared.values() for row in rows]
    ratios = [row[column] for row in everything for column in _columns([row]).values()]
    low, high = min(ratios) / 1.04, max(ratios) * 1.04

    def at(ratio: float) -> float:
        """Return the pixel of a ratio, on a logarithmic scale."""
        share = math.log(min(max(ratio, low), high) / low) / math.log(high / low)
        return round(_LEFT + share * (_RIGHT - _LEFT), 1)

    def dots(rows: Sequence[Row], column: str, colour: int, y: float) -> dict[str, Any]:
        """Return each ratio with its interval, and their geometric mean."""
        spans = [(*map(at, row[f"{column}_ci"]), at(row[column])) for row in rows]
        mean = at(geometric_mean([row[column] for row in rows]))
        return {"y": y, "colour": colour, "spans": spans, "mean": mean}

    bands: list[dict[str, Any]] = []
    band_height = _HEAD + _STATE * len(states)
    for kernel in (*problem_sizes.SIZES, "rows"):
        of_kernel = [row for row in everything if row["kernel"] == kernel]
        if not of_kernel:
            continue
        top, columns = _TOP + band_height * len(bands), _columns(of_kernel)
        shown = [state for state in states if state in columns]
        heights = {state: top + 30 + _STATE * place for place, state in enumerate(shown)}
        bands.append(
            {
                "kernel": kernel,
                "vendor": _VENDORS[kernel],
                "worst": _worst(of_kernel),
                "top": top,
                "foot": top + band_height - 8,
                "states": heights.items(),
                "rows": [
                    dots(mine, columns[state], place, y + 6 * place - 3)
                    for state, y in heights.items()
                    for place, rows in enumerate(compared.values())
                    if (mine := [row for row in rows if row["kernel"] == kernel])
                ],
            }
        )
    template = Path(__file__).with_name("results.svg.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, keep_trailing_newline=True)
    return environment.from_string(template).render(
        width=WIDTH,
        left=_LEFT,
        right=_RIGHT,
        bottom=_TOP + band_height * len(bands),
        legend=66,
        middle=max(at(1), 116),  # as far as the words left of the line find room
        even=at(1),
        devices=list(compared),
        ticks=[(at(tick), f"{tick}×") for tick in _TICKS if low <= tick <= high],
        bands=bands,
    )


def _columns(rows: Sequence[Row]) -> dict[str, str]:
    """Return by state the column of the ratios that rows have."""
    return {state: name for state, name in problem_sizes.STATES.items() if name in rows[0]}


def _worst(rows: Sequence[Row]) -> str:
    """Return where and in which state a kernel is slowest against the vendor."""
    columns = _columns(rows)
    worst, state = min(
        ((row, state) for row in rows for state in columns),
        key=lambda found: float(found[0][columns[found[1]]]),
    )
    sizes = len({row.get("name") or str(row["problem"]) for row in rows})
    ratio = worst[columns[state]]
    return f"least of {sizes}: {ratio:.3f} {state} at {_place(worst)}"


def _place(row: Row) -> str:
    """Return the size of a row; there is no room for types, which the tables have."""
    if "name" in row:
        return str(row["name"])
    size = {n: v for n, v in row["problem"].items() if n not in ("dtype", "out_dtype")}
    return problem_sizes.describe(size)
