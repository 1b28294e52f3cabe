"""Draw the charts of a notebook as inline SVG: the search, and the effects of the parameters.

The data are those of the page's figures; see `evidence.problem_data`. Text and axes have the colour of the
surrounding text, so that the charts are readable on light and on dark ground.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate
from math import ceil, floor, log
from typing import Any

#: Maximum number of parameters, most important first.
_PANELS = 6
BLUE, GREEN, AMBER, RED, GREY = "#3b82d6", "#2da44e", "#c98a1b", "#e5534b", "#8c959f"
#: Steps of the ticks of a logarithmic axis, coarsest first.
_STEPS = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), tuple(1 + i / 10 for i in range(90)))


@dataclass(frozen=True)
class _Plot:
    """An area of a chart in pixels, with a linear x and a logarithmic y."""

    width: int
    height: int
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    left: int = 52
    bottom: int = 34
    top: int = 20

    def x(self, value: float) -> float:
        low, high = self.x_range
        return self.left + (value - low) / (high - low) * (self.width - self.left - 10)

    def y(self, value: float) -> float:
        low, high = self.y_range
        share = log(value / low) / log(high / low)
        return self.height - self.bottom - share * (self.height - self.bottom - self.top)

    def dots(self, points: Iterable[tuple[float, float]], colour: str, size: float) -> str:
        """Return all points as one path: a short text, also for thousands."""
        path = "".join(f"M{self.x(x):.1f} {self.y(y):.1f}h0" for x, y in points)
        return (
            f'<path d="{path}" stroke="{colour}" stroke-width="{size}" stroke-linecap="round" '
            'fill="none"/>'
        )

    def line(self, points: Sequence[tuple[float, float]]) -> str:
        """Return a line of steps."""
        first, *others = points
        steps = "".join(f"H{self.x(x):.1f}V{self.y(y):.1f}" for x, y in others)
        start = f"M{self.x(first[0]):.1f} {self.y(first[1]):.1f}"
        return f'<path d="{start}{steps}" stroke="{BLUE}" stroke-width="2" fill="none"/>'

    def text(self, x: float, y: float, words: str, anchor: str = "middle", fill: str = "") -> str:
        return (
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" '
            f'fill="{fill or "currentColor"}">{escape(words)}</text>'
        )

    def y_axis(self, suffix: str) -> Iterable[str]:
        """Yield the lines and numbers of the ticks."""
        for tick in _ticks(*self.y_range):
            y = self.y(tick)
            yield f'<path d="M{self.left} {y:.1f}H{self.width - 10}" stroke="currentColor" opacity=".15"/>'
            yield self.text(self.left - 6, y + 4, f"{tick:.4g}{suffix}", "end")

    def svg(self, label: str, parts: Iterable[str]) -> str:
        size = f'width="{self.width}" viewBox="0 0 {self.width} {self.height}"'
        style = "max-width:100%;height:auto;margin-right:14px;font:12px system-ui,sans-serif"
        head = f'<svg {size} role="img" aria-label="{escape(label)}" style="{style}">'
        return f"{head}{''.join(parts)}</svg>"


def _ticks(low: float, high: float) -> list[float]:
    """Return round values between two values: at least three."""
    found: list[float] = []
    for steps in _STEPS:
        powers = range(floor(log(low, 10)), ceil(log(high, 10)) + 1)
        found = [step * 10.0**power for power in powers for step in steps]
        found = [tick for tick in found if low <= tick <= high]
        if len(found) >= 3:
            break
    return found[:: ceil(len(found) / 6)] if found else [low]


def search(data: dict[str, Any]) -> str:
    """Return the chart of a search: the time of each configuration tried, and the best so far."""
    trials = data["trials"]
    rows = list(enumerate(zip(trials["time"], trials["status"], strict=True), start=1))
    timed = [(number, time) for number, (time, status) in rows if time and status == "ok"]
    if not timed:
        return ""
    early = [(number, time) for number, (time, status) in rows if time and status != "ok"]
    failed = [number for number, (time, _) in rows if time is None]
    least, most = (choose(time for _, time in (*timed, *early)) for choose in (min, max))
    low, high = least * (least / max(most, 1.1 * least)) ** 0.15, max(most, 1.1 * least) * 1.02
    plot = _Plot(640, 230, (0, len(rows) + 1), (low, high))
    best = list(zip((n for n, _ in timed), accumulate((t for _, t in timed), min), strict=True))
    parts = [
        *plot.y_axis(""),
        plot.dots(timed, GREY, 4),
        plot.dots(early, AMBER, 4),
        plot.dots([(number, low**0.6 * least**0.4) for number in failed], RED, 4),
        plot.line([*best, (len(rows), best[-1][1])]),
    ]
    winner = trials["winner"]
    if winner >= 0 and trials["time"][winner]:
        parts.append(plot.dots([(winner + 1, trials["time"][winner])], GREEN, 9))
    words = (("timed", GREY, timed), ("stopped early", AMBER, early), ("failed", RED, failed))
    legend = [(word, colour) for word, colour, points in words if points]
    legend += [("best so far", BLUE), ("winner of the finals", GREEN)]
    x = float(plot.left)
    for word, colour in legend:
        parts.append(plot.text(x, 12, f"● {word}", "start", colour))
        x += 7 * len(word) + 30
    foot = f"configurations tried: {len(rows)}; time in {data['unit']}"
    parts.append(plot.text(plot.x(len(rows) / 2), plot.height - 8, foot))
    return plot.svg(f"Search of {data['name']}", parts)


def effects(data: dict[str, Any]) -> str:
    """Return a chart for each of the most important parameters: time over the best, by value."""
    return "".join(_effect(data, effect) for effect in data["effects"][:_PANELS])


def _effect(data: dict[str, Any], effect: dict[str, Any]) -> str:
    parameter = data["parameters"][effect["parameter"]]
    ratios: dict[int, list[float]] = {}
    for place, time in zip(parameter["trials"], data["trials"]["time"], strict=True):
        if place >= 0 and time is not None:
            ratios.setdefault(place, []).append(time / data["best"])
    most = max([1.1, *(max(group) for group in ratios.values())])
    plot = _Plot(210, 150, (-0.5, max(0.5, len(ratios) - 0.5)), (most**-0.06, most**1.04), left=44)
    parts = [*plot.y_axis("×"), plot.text(4, 12, parameter["name"], "start")]
    parts.append(plot.text(plot.width - 4, 12, effect["share"], "end"))
    shown = ceil(len(ratios) / 8)
    for position, place in enumerate(sorted(ratios)):
        group = sorted(ratios[place])
        # Spread evenly, with the fastest in the middle.
        spread = [position + 0.5 * ((k * 0.618 + 0.5) % 1 - 0.5) for k in range(len(group))]
        parts.append(plot.dots(zip(spread, group, strict=True), GREY, 3))
        parts.append(plot.dots([(position, group[0])], BLUE, 7))
        if position % shown == 0:
            parts.append(plot.text(plot.x(position), 132, parameter["values"][place][:8]))
    return plot.svg(f"Effect of {parameter['name']}", parts)
