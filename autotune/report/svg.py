"""A small SVG writer: text, lines, dots, an axis with ticks. Equal input gives equal bytes.

Colours are classes with a light and a dark value, and the background is painted, so that a figure is
readable on any page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from autotune.report.wording import number, xml

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
#: The reader's preference, or one scheme for pages that choose between files.
_SCHEMES = {
    "": f"{_LIGHT}@media(prefers-color-scheme:dark){{{_DARK}}}\n",
    "light": _LIGHT,
    "dark": _DARK,
}


@dataclass(frozen=True)
class Scale:
    """A linear or logarithmic map of values to pixels."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = (self._measure(bound) for bound in (self.low, self.high, value))
        share = (at - low) / (high - low) if high > low else 0.5
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def _measure(self, value: float) -> float:
        return math.log10(max(value, 1e-300)) if self.is_log else value

    def ticks(self, about: int = 5) -> list[float]:
        """Return about that many round values in the range."""
        if not self.is_log:
            return _round_ticks(self.low, self.high, about)
        for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
            found = _decade_ticks(self.low, self.high, steps)
            if len(found) >= min(3, about):
                return found[:: math.ceil(len(found) / (about + 2))]
        return _round_ticks(self.low, self.high, about)


@dataclass
class Figure:
    """An SVG document that is being drawn."""

    width: float
    height: float
    title: str
    parts: list[str] = field(default_factory=list)

    def text(
        self, x: float, y: float, text: str, style: str = "ink", anchor: str = "start"
    ) -> None:
        """Draw a line of text; ``anchor`` is start, middle or end."""
        where = f' text-anchor="{anchor}"' if anchor != "start" else ""
        self.parts.append(
            f'<text x="{_n(x)}" y="{_n(y)}" class="{style}"{where}>{xml(text)}</text>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str) -> None:
        self.lines([(x1, y1, x2, y2)], style)

    def lines(self, ends: Iterable[tuple[float, float, float, float]], style: str) -> None:
        """Draw straight lines as one path."""
        body = "".join(f"M{_n(x1)} {_n(y1)}L{_n(x2)} {_n(y2)}" for x1, y1, x2, y2 in ends)
        if body:
            self.parts.append(f'<path class="{style}" d="{body}"/>')

    def dots(self, points: Iterable[tuple[float, float]], colour: str) -> None:
        """Draw dots as one path, which keeps the file small."""
        body = "".join(f"M{_n(x)} {_n(y)}h0" for x, y in points)
        if body:
            self.parts.append(f'<path class="dots {colour}" d="{body}"/>')

    def x_axis(self, scale: Scale, y: float, top: float = 0, suffix: str = "") -> None:
        """Draw ticks below ``y`` and grid lines up to ``top``."""
        for tick in scale.ticks(6):
            self.line(scale(tick), top, scale(tick), y, "grid")
            self.text(scale(tick), y + 17, number(tick) + suffix, "dim small", "middle")
        self.line(scale.start, y, scale.end, y, "axis")

    def render(self, scheme: str = "") -> str:
        """Return the document; ``scheme`` is light, dark, or empty for the reader's preference."""
        style = f"<style>{_STYLE}{_SCHEMES[scheme]}</style>"
        ground = '<rect width="100%" height="100%" class="ground"/>'
        width, height = _n(self.width), _n(self.height)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img">\n<title>{xml(self.title)}</title>\n'
        )
        return "\n".join((f"{head}{style}", ground, *self.parts, "</svg>")) + "\n"


def _round_ticks(low: float, high: float, about: int) -> list[float]:
    """Return multiples of 1, 2 or 5 times a power of ten."""
    if high <= low:
        return [low]
    raw = (high - low) / max(1, about)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def _decade_ticks(low: float, high: float, steps: Sequence[float]) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = (float(f"{step * 10.0**power:.6g}") for power in decades for step in steps)
    return [tick for tick in found if low * 0.9999 <= tick <= high * 1.0001]


def _n(value: float) -> str:
    """Return a coordinate to a tenth of a pixel."""
    text = f"{value:.1f}"
    return text.removesuffix(".0") if text != "-0.0" else "0"
