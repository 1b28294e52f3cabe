"""Draws the ratios to the vendor's libraries: a row of dots per kernel and device, a dot per size. Knows no files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import demands

from autotune.report.svg import Figure, Scale

#: Small enough that text is readable on a telephone, which shows it at two thirds.
WIDTH = 500
_TOP, _BAND, _HEAD, _LINE = 60, 66, 20, 18
_LEFT, _VENDOR, _RIGHT = 48, 126, WIDTH - 14
_COLOURS = ("blue", "amber", "green")
_VENDORS = {
    "copy": "cudaMemcpy",
    "gemv": "cuBLAS",
    "prefetch": "plain loop",
    "reduce": "CUB",
    "sgemm": "cuBLAS",
    "sgemm_tf32x3": "cuBLAS float32",
    "transpose": "cuBLAS",
}


def picture(devices: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """The picture of measured rows by the device's short name."""
    compared = {name: [row for row in rows if row["ratio"]] for name, rows in devices.items()}
    everything = [row for rows in compared.values() for row in rows]
    kernels = [
        kernel for kernel in demands.SIZES if any(row["kernel"] == kernel for row in everything)
    ]
    ratios = [row["ratio"] for row in everything]
    bottom = _TOP + _BAND * len(kernels)
    figure = Figure(
        WIDTH, bottom + 26, f"Speed over the vendor's library on {' and '.join(devices)}"
    )
    scale = Scale(min(ratios) / 1.04, max(ratios) * 1.04, _LEFT, _RIGHT, is_log=True)
    figure.text(12, 22, "Speed over the vendor's library", "ink bold")
    figure.text(_RIGHT, 22, "dot: a size, bar: geometric mean", "dim small", "end")
    figure.text(scale(1) - 8, 46, "◂ vendor faster", "dim small", "end")
    figure.text(scale(1) + 8, 46, "tuned kernel faster ▸", "dim small")
    figure.x_axis(scale, bottom, top=bottom, suffix="×")
    for band, kernel in enumerate(kernels):
        top = _TOP + _BAND * band
        rows = [row for row in everything if row["kernel"] == kernel]
        _head(figure, kernel, rows, top)
        lines = (top + _HEAD, top + _HEAD + _LINE * len(devices))
        for tick in scale.ticks(6):
            figure.line(scale(tick), lines[0], scale(tick), lines[1], "grid")
        figure.line(scale(1), lines[0], scale(1), lines[1], "thin ink-line")
        for line, (device, found) in enumerate(compared.items()):
            y = top + _HEAD + _LINE * (line + 0.5)
            figure.text(12, y + 4, device, "dim small")
            mine = [row for row in found if row["kernel"] == kernel]
            _dots(figure, scale, mine, y, _COLOURS[line % len(_COLOURS)])
    return figure


def _head(figure: Figure, kernel: str, rows: Sequence[Mapping[str, Any]], top: float) -> None:
    """The kernel, what it is compared with, and where that is worst."""
    worst = min(rows, key=lambda row: float(row["ratio"]))
    sizes = len({str(row["problem"]) for row in rows})
    figure.text(12, top + 12, kernel, "ink bold")
    figure.text(_VENDOR, top + 12, _VENDORS[kernel], "dim small")
    words = f"{sizes} sizes, least {worst['ratio']:.3f} at {demands.describe(worst['problem'])}"
    figure.text(_RIGHT, top + 12, words, "dim small", "end")


def _dots(
    figure: Figure, scale: Scale, rows: Sequence[Mapping[str, Any]], y: float, colour: str
) -> None:
    """Each ratio with its interval, and a bar at their geometric mean."""
    if not rows:
        return
    for row in rows:
        low, high = row["ratio_ci"]
        figure.line(scale(low), y, scale(high), y, f"thin {colour}")
    figure.dots([(scale(row["ratio"]), y) for row in rows], colour)
    mean = scale(demands.geometric_mean([row["ratio"] for row in rows]))
    figure.line(mean, y - 8, mean, y + 8, f"line {colour}")
