"""Draws ratios to the vendor's fastest calls: a row of dots for each kernel and state of the cache. Knows no files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import problem_sizes

from autotune.report.wording import number

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
    scale = Scale(min(ratios) / 1.04, max(ratios) * 1.04, _LEFT, _RIGHT)
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


# ---------------------------------------------------------------------- SVG

_STYLE = """
svg{font:13px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif}
.line{fill:none;stroke:var(--c);stroke-width:2}.thin{fill:none;stroke:var(--c);stroke-width:1.3}
.dots{fill:none;stroke:var(--c);stroke-width:8;stroke-linecap:round;stroke-opacity:.7}
.bold{font-weight:600}.small{font-size:12px}
"""
_LIGHT = """
.ground{fill:#fff}.ink{fill:#1f2328}.dim{fill:#59636e}.grid{stroke:#e4e8ec}.axis{stroke:#9aa4af}
.blue{--c:#0969da}.green{--c:#1a7f37}.red{--c:#cf222e}.amber{--c:#b35900}.grey{--c:#8c959f}
.ink-line{--c:#1f2328}
"""
_DARK = """
.ground{fill:#0d1117}.ink{fill:#e6edf3}.dim{fill:#9198a1}.grid{stroke:#21262d}.axis{stroke:#656c76}
.blue{--c:#4493f8}.green{--c:#3fb950}.red{--c:#f85149}.amber{--c:#d29922}.grey{--c:#7d8590}
.ink-line{--c:#e6edf3}
"""
_SCHEMES = {"light": _LIGHT, "dark": _DARK}


@dataclass(frozen=True)
class Scale:
    """A logarithmic map of values to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        low, high, at = map(math.log10, (self.low, self.high, value))
        share = (at - low) / (high - low)
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def ticks(self, about: int) -> list[float]:
        """Return about that many round values in the range."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
            found = [float(f"{step * 10.0**power:.6g}") for power in powers for step in steps]
            found = [tick for tick in found if self.low <= tick <= self.high]
            if len(found) >= 3:
                break
        return found[:: math.ceil(len(found) / (about + 2))]


@dataclass
class Figure:
    """An SVG document that is being drawn. Colours are classes with a light and a dark value."""

    width: float
    height: float
    title: str
    parts: list[str] = field(default_factory=list)

    def text(
        self, x: float, y: float, text: str, style: str = "ink", anchor: str = "start"
    ) -> None:
        """Draw a line of text; ``anchor`` is start, middle or end."""
        where = f' text-anchor="{anchor}"' if anchor != "start" else ""
        body = escape(text, quote=False)
        self.parts.append(f'<text x="{_n(x)}" y="{_n(y)}" class="{style}"{where}>{body}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str) -> None:
        self.parts.append(f'<path class="{style}" d="M{_n(x1)} {_n(y1)}L{_n(x2)} {_n(y2)}"/>')

    def dots(self, points: Iterable[tuple[float, float]], colour: str) -> None:
        """Draw dots as one path, which keeps the file small."""
        body = "".join(f"M{_n(x)} {_n(y)}h0" for x, y in points)
        self.parts.append(f'<path class="dots {colour}" d="{body}"/>')

    def x_axis(self, scale: Scale, y: float, top: float, suffix: str) -> None:
        """Draw ticks below ``y`` and grid lines up to ``top``."""
        for tick in scale.ticks(6):
            self.line(scale(tick), top, scale(tick), y, "grid")
            self.text(scale(tick), y + 17, number(tick) + suffix, "dim small", "middle")
        self.line(scale.start, y, scale.end, y, "axis")

    def render(self, scheme: str) -> str:
        """Return the document; ``scheme`` is light or dark."""
        style = f"<style>{_STYLE}{_SCHEMES[scheme]}</style>"
        ground = '<rect width="100%" height="100%" class="ground"/>'
        width, height = _n(self.width), _n(self.height)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img">\n<title>{escape(self.title, quote=False)}</title>\n'
        )
        return "\n".join((f"{head}{style}", ground, *self.parts, "</svg>")) + "\n"


def _n(value: float) -> str:
    """Return a coordinate to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")
