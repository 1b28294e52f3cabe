"""The one picture of the Markdown report: each problem's speed over the vendor's, or its share of the limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.report import wording
from autotune.report.content import ReportContent
from autotune.report.svg import Figure, Scale
from autotune.report.table import limit_words, problem_name

#: Fits GitHub's column unscaled.
_WIDTH = 760
_ROW = 22
_TOP = 44
_LONGEST_NAME = 44


@dataclass(frozen=True)
class _Mark:
    """One line of the picture: a value with its interval, and the time at the right."""

    name: str
    value: float
    low: float
    high: float
    time: str

    @property
    def colour(self) -> str:
        """Of a ratio: green where it is surely above 1, red where surely below."""
        return "green" if self.low > 1 else "red" if self.high < 1 else "grey"


def overview(content: ReportContent) -> str | None:
    """The picture as SVG; None where no problem has a vendor or a limit beside it."""
    solved = [(problem_name(problem), problem.entry) for problem in content.problems]
    entries = [(name, entry, wording.time(entry.median_ms)) for name, entry in solved if entry]
    ratios = [
        _Mark(name, speedup.value, *speedup.interval, time)
        for name, entry, time in entries
        if (speedup := entry.race.speedup)
    ]
    if ratios:
        vendors = dict.fromkeys(
            entry.race.vendor_name for _, entry, _ in entries if entry.race.speedup
        )
        names = wording.one_line(" or ".join(vendors))
        low, high = min(mark.low for mark in ratios), max(mark.high for mark in ratios)
        bounds = (min(low, 0.99) / 1.02, max(high, 1.01) * 1.02)
        return _drawn(content, ratios, f"Speed over {names}, 95 % intervals", bounds, "×")
    shares = [
        _Mark(name, percent, percent, percent, time)
        for name, entry, time in entries
        if entry.limit_fraction is not None
        for percent in (100 * entry.limit_fraction,)
    ]
    if not shares:
        return None
    limits = dict.fromkeys(limit_words(entry.limit_name or "") for _, entry, _ in entries)
    title = f"Share of the measured {' or '.join(limits)} (%)"
    return _drawn(content, shares, title, (0, max(100.0, *(mark.high for mark in shares))), "")


def _drawn(
    content: ReportContent,
    marks: Sequence[_Mark],
    title: str,
    bounds: tuple[float, float],
    suffix: str,
) -> str:
    is_ratio, bottom = bool(suffix), _TOP + _ROW * len(marks)
    figure = Figure(_WIDTH, bottom + 34, f"{content.kernel} on {content.device.name}: {title}")
    names = [wording.one_line(mark.name, _LONGEST_NAME) for mark in marks]
    left = 36 + 7.5 * max(map(len, names))
    scale = Scale(*bounds, left, _WIDTH - 90, is_log=is_ratio)
    figure.text(16, 24, title, "ink bold")
    figure.text(_WIDTH - 16, 24, "time", "dim", "end")
    figure.x_axis(scale, bottom, top=_TOP - 10, suffix=suffix)
    if is_ratio:
        figure.line(scale(1), _TOP - 10, scale(1), bottom, "thin ink-line")
    for row, (mark, name) in enumerate(zip(marks, names, strict=True)):
        y = _TOP + _ROW * row + _ROW / 2
        colour = mark.colour if is_ratio else "blue"
        figure.line(scale(mark.low), y, scale(mark.high), y, f"line {colour}")
        figure.dots([(scale(mark.value), y)], colour)
        figure.text(16, y + 4, name, "ink")
        figure.text(_WIDTH - 16, y + 4, mark.time, "dim", "end")
    return figure.render()
