"""Draws ratios to the vendor's fastest calls: a row of dots for each kernel and state of the cache. Knows no files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import problem_sizes

from autotune.report.svg import Figure, Scale

Row = Mapping[str, Any]

#: Small enough that text is readable on a telephone, which shows it at two thirds.
WIDTH = 500
_TOP, _HEAD, _LINE, _GAP = 60, 20, 20, 8
_LEFT, _VENDOR, _RIGHT = 48, 124, WIDTH - 14
#: Pixels between the dots of one device and those of the next, and between their names.
_APART, _LEGEND = 6, 66
#: The width of the words left of the line, in pixels.
_VENDOR_FASTER = 104
_COLOURS = ("blue", "amber", "green")
_BAND = _HEAD + _LINE * len(problem_sizes.STATES) + _GAP
_VENDORS = {
    "copy": "cudaMemcpy",
    "gemv": "cuBLAS",
    "prefetch": "plain loop",
    "reduce": "CUB",
    "sgemm": "cuBLAS",
    "sgemm_tf32x3": "cuBLAS float32",
    "transpose": "cuBLAS",
}


def picture(devices: Mapping[str, Sequence[Row]]) -> Figure:
    """The picture of measured rows by the device's short name.

    Rows of an earlier form are left out, and devices that have no others.
    """
    compared = {
        device: chosen
        for device, rows in devices.items()
        if (chosen := [row for row in rows if row["ratio"] and problem_sizes.is_current(row)])
    }
    everything = [row for rows in compared.values() for row in rows]
    kernels = [
        kernel
        for kernel in problem_sizes.SIZES
        if any(row["kernel"] == kernel for row in everything)
    ]
    ratios = [row[column] for row in everything for column in problem_sizes.STATES.values()]
    bottom = _TOP + _BAND * len(kernels)
    title = "Speed over the vendor's fastest call"
    figure = Figure(WIDTH, bottom + 26, f"{title} on {' and '.join(compared)}")
    scale = Scale(min(ratios) / 1.04, max(ratios) * 1.04, _LEFT, _RIGHT, is_log=True)
    figure.text(12, 22, title, "ink bold")
    for place, device in enumerate(compared):
        x = _RIGHT - _LEGEND * (len(compared) - 1 - place)
        figure.text(x, 22, device, "dim small", "end")
        figure.dots([(x - 42, 18)], _COLOURS[place % len(_COLOURS)])
    # Around the line, as far as the words find room beside it.
    middle = max(scale(1), 12 + _VENDOR_FASTER)
    figure.text(middle - 8, 46, "◂ vendor faster", "dim small", "end")
    figure.text(middle + 8, 46, "tuned kernel faster ▸", "dim small")
    figure.text(_RIGHT, 46, "bar: geometric mean", "dim small", "end")
    figure.x_axis(scale, bottom, top=bottom, suffix="×")
    for band, kernel in enumerate(kernels):
        top = _TOP + _BAND * band
        _head(figure, kernel, [row for row in everything if row["kernel"] == kernel], top)
        lines = (top + _HEAD, top + _BAND - _GAP)
        for tick in scale.ticks(6):
            figure.line(scale(tick), lines[0], scale(tick), lines[1], "grid")
        figure.line(scale(1), lines[0], scale(1), lines[1], "thin ink-line")
        for line, (state, column) in enumerate(problem_sizes.STATES.items()):
            y = top + _HEAD + _LINE * (line + 0.5)
            figure.text(12, y + 4, state, "dim small")
            for place, rows in enumerate(compared.values()):
                mine = [row for row in rows if row["kernel"] == kernel]
                shifted = y + _APART * (place - (len(compared) - 1) / 2)
                _dots(figure, scale, mine, column, shifted, _COLOURS[place % len(_COLOURS)])
    return figure


def _head(figure: Figure, kernel: str, rows: Sequence[Row], top: float) -> None:
    """The kernel, what it is compared with, and where and in which state that is worst."""
    worst, state = min(
        ((row, state) for row in rows for state in problem_sizes.STATES),
        key=lambda found: float(found[0][problem_sizes.STATES[found[1]]]),
    )
    sizes = len({str(row["problem"]) for row in rows})
    figure.text(12, top + 12, kernel, "ink bold")
    figure.text(_VENDOR, top + 12, _VENDORS[kernel], "dim small")
    least = f"{worst[problem_sizes.STATES[state]]:.3f} {state}"
    words = f"least of {sizes}: {least} at {problem_sizes.describe(worst['problem'])}"
    figure.text(_RIGHT, top + 12, words, "dim small", "end")


def _dots(
    figure: Figure, scale: Scale, rows: Sequence[Row], column: str, y: float, colour: str
) -> None:
    """Each ratio with its interval, and a bar at their geometric mean."""
    if not rows:
        return
    for row in rows:
        low, high = row[f"{column}_ci"]
        figure.line(scale(low), y, scale(high), y, f"thin {colour}")
    figure.dots([(scale(row[column]), y) for row in rows], colour)
    mean = scale(problem_sizes.geometric_mean([row[column] for row in rows]))
    figure.line(mean, y - 8, mean, y + 8, f"line {colour}")
