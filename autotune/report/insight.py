"""How well the search's model predicts a problem's times, and from which parameters: one section.

Knows what `autotune.search.insight` finds, and draws it as SVG in the page's colours.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from autotune.measure.measurement import Status
from autotune.report import wording
from autotune.report.content import ProblemContent, ReportContent
from autotune.report.evidence import DRAWN_PARAMETERS
from autotune.report.svg import Figure, Scale
from autotune.report.table import configuration_text, plural

if TYPE_CHECKING:
    from autotune.search.insight import Insight, LeftOut

#: Share of the variance that a model explains below which what it owes to a parameter is a hint.
LEAST_SURE = 0.5
#: So many of what was predicted worst are named.
NAMED = 3
#: Pixels: of both figures, of the columns for what is slow and for what failed, of a row of bars.
_WIDTH, _HEIGHT, _TOP, _MARGIN = 560, 400, 34, 14
_SLOW_WIDTH, _FAILED_WIDTH, _ROW = 70, 40, 28
_LONGEST_NAME = 22
#: What is drawn alike, as the legend calls it.
_TIMED, _EARLY, _FAILED, _WINNER = "timed", "stopped early", "failed", "winner"


def section(content: ReportContent, problem: ProblemContent) -> str:
    """The section as HTML; empty where too little was timed."""
    from autotune.search.insight import insight

    found = insight(problem.trials)
    if found is None:
        return ""
    surprises = _surprises(found)
    lines = [
        "<section>",
        "<h3>Can the times be predicted, and from which parameters?</h3>",
        f'<p class="how">{html.escape(_words(found, len(problem.trials)))}</p>',
        f'<div class="figures">{_predictions(found, surprises, problem).inline()}',
        f"{_bars(found).inline() if found.importances else ''}</div>",
    ]
    if surprises:
        told = (_surprise_words(content, each) for each in surprises)
        items = "".join(f"<li>{html.escape(words)}</li>" for words in told)
        lines.append(f'<p>Least as predicted:</p><ol class="examples">{items}</ol>')
    return "\n".join([*lines, "</section>"])


def _words(found: Insight, tried: int) -> str:
    given = len(found.left_out)
    who = "Each configuration"
    if given < tried:
        who = f"Each of {wording.count(given)} configurations (of {wording.count(tried)})"
    text = (
        f"{who} as the model of the strategy “surrogate” predicts it from all others, with 95 % "
        f"intervals; {wording.percent(found.within)} of the times lie in theirs. The model explains "
        f"{wording.percent(max(0.0, found.explained))} of the variance of log time, with a rank "
        f"correlation of {found.rank_correlation:.2f}. What is slower than "
        f"{wording.time(found.slow_ms)} counts as that, and so does what failed; what was stopped "
        "early takes at least so long."
    )
    if not found.importances:
        return f"{text} That is too little to say which parameters matter."
    hint = " So little being explained, they are hints." if found.explained < LEAST_SURE else ""
    return (
        f"{text} Bars: the share that a model loses which is not told the parameter, interactions "
        f"with it included, and the share that it explains alone.{hint}"
    )


def _surprises(found: Insight) -> list[LeftOut]:
    """Outside of their intervals, worst first."""
    outside = [each for each in found.left_out if each.surprise is not None and not each.is_within]
    return sorted(outside, key=lambda each: -abs(each.surprise or 0.0))[:NAMED]


def _surprise_words(content: ReportContent, each: LeftOut) -> str:
    measured = wording.time(each.measurement.median_ms or 0.0)
    predicted = wording.time(each.predicted_ms)
    bounds = wording.interval(each.predicted_ms, each.interval_ms)
    name = configuration_text(content, each.measurement.configuration)
    return f"{name}: {measured}, predicted {predicted} ({bounds})"


# ---------------------------------------------------------------------- predicted against measured


def _predictions(found: Insight, surprises: Sequence[LeftOut], problem: ProblemContent) -> Figure:
    """Predicted over measured time; what is slow or failed has a column at the right."""
    figure = Figure(_WIDTH, _HEIGHT, "Predicted over measured time")
    plane = _Plane(found)
    plane.draw_axes(figure)
    figure.lines((plane.interval(each) for each in found.left_out), "thin grey faint")
    legend_x = plane.left + 130
    for kind, those in _kinds(found, problem).items():
        if those:
            _mark(figure, kind, [plane.at(each) for each in those])
            _mark(figure, kind, [(legend_x, _TOP - 18)])
            figure.text(legend_x + 9, _TOP - 14, kind, "dim small")
            legend_x += 28 + 6.3 * len(kind)
    for number, each in enumerate(surprises, 1):
        x, y = plane.at(each)
        figure.text(x + 6, y - 5, str(number), "bold")
    return figure


class _Plane:
    """Where times lie in the figure: logarithmic, with a column for slow and one for failed ones."""

    def __init__(self, found: Insight) -> None:
        self.unit, self._length = wording.time_unit(found.slow_ms)
        times_ms = [each.measurement.median_ms for each in found.left_out]
        timed_ms = [ms for ms in times_ms if ms is not None]
        predicted_ms = [each.predicted_ms for each in found.left_out]
        self._slow_ms, self._slowest_ms = found.slow_ms, max(timed_ms)
        self._has_slow = self._slowest_ms > found.slow_ms
        self._has_failed = None in times_ms
        right = _WIDTH - _MARGIN - (_FAILED_WIDTH if self._has_failed else 0)
        self._failed_x = right + _FAILED_WIDTH / 2
        self.left, self.bottom = 60.0, _HEIGHT - 44.0
        self._slow_end = right
        self._right = right - (_SLOW_WIDTH if self._has_slow else 0)
        low_ms = min(*timed_ms, *predicted_ms)
        high_ms = min(self._slow_ms, self._slowest_ms)
        self._x = self._scale(low_ms / 1.01, high_ms, self.left, self._right)
        highest_ms = max(high_ms, *predicted_ms) * 1.01
        self._y = self._scale(low_ms / 1.01, highest_ms, self.bottom, _TOP)

    def _scale(self, low_ms: float, high_ms: float, start: float, end: float) -> Scale:
        return Scale(low_ms / self._length, high_ms / self._length, start, end, is_log=True)

    def draw_axes(self, figure: Figure) -> None:
        figure.x_axis(self._x, self.bottom, top=_TOP)
        figure.y_axis(self._y, self.left, self._slow_end)
        diagonal = (self._x.low, self._x.high)
        start, end = ((self._x(value), self._y(value)) for value in diagonal)
        figure.line(*start, *end, "line blue")
        if self._has_slow:
            figure.line(*end, self._slow_end, end[1], "line blue")
            figure.line(end[0], _TOP, end[0], self.bottom, "thin grey dash")
            figure.line(self._right, self.bottom, self._slow_end, self.bottom, "axis")
            middle = (self._right + self._slow_end) / 2
            figure.text(middle, self.bottom + 17, "slower", "dim small", "middle")
        if self._has_failed:
            figure.text(self._failed_x, self.bottom + 17, "failed", "dim small", "middle")
        middle = (self.left + self._right) / 2
        figure.text(middle, _HEIGHT - 8, f"Measured ({self.unit})", "ink", "middle")
        figure.text(12, _TOP - 14, f"Predicted ({self.unit})", "ink")

    def at(self, each: LeftOut) -> tuple[float, float]:
        return self._across(each.measurement.median_ms), self._y(each.predicted_ms / self._length)

    def interval(self, each: LeftOut) -> tuple[float, float, float, float]:
        x = self._across(each.measurement.median_ms)
        low, high = (self._y(bound / self._length) for bound in each.interval_ms)
        return x, low, x, high

    def _across(self, time_ms: float | None) -> float:
        if time_ms is None:
            return self._failed_x
        if time_ms <= self._slow_ms:
            return self._x(time_ms / self._length)
        slow = Scale(self._slow_ms, self._slowest_ms, self._right + 6, self._slow_end - 6, True)
        return slow(time_ms)


def _kinds(found: Insight, problem: ProblemContent) -> dict[str, list[LeftOut]]:
    """What is drawn alike, by its name in the legend."""
    winner = problem.winner
    kinds: dict[str, list[LeftOut]] = {_TIMED: [], _EARLY: [], _FAILED: [], _WINNER: []}
    for each in found.left_out:
        status = each.measurement.status
        early_or_failed = _EARLY if status.is_timed else _FAILED
        kinds[_TIMED if status is Status.OK else early_or_failed].append(each)
        if each.measurement is winner:
            kinds[_WINNER].append(each)
    return kinds


def _mark(figure: Figure, kind: str, places: Sequence[tuple[float, float]]) -> None:
    if kind == _TIMED:
        figure.dots(places, "grey")
    elif kind == _EARLY:
        figure.outlines((_corners(*place, (-4, -4, -4)) for place in places), "thin amber")
    elif kind == _FAILED:
        strokes = ((x - 3, y - d, x + 3, y + d) for x, y in places for d in (-3, 3))
        figure.lines(strokes, "thin red")
    else:
        figure.outlines((_corners(*place, (8, 3.5) * 5) for place in places), "line green")


def _corners(x: float, y: float, radii: Sequence[float]) -> list[tuple[float, float]]:
    """Of a polygon, by their distances; the first is above, or below where negative."""
    turns = (math.tau * number / len(radii) for number in range(len(radii)))
    return [
        (x + radius * math.sin(turn), y - radius * math.cos(turn))
        for radius, turn in zip(radii, turns, strict=True)
    ]


# ---------------------------------------------------------------------- importances


def _bars(found: Insight) -> Figure:
    """Two bars for each parameter, those that matter most; faint where they are hints."""
    importances, is_hint = found.importances, found.explained < LEAST_SURE
    told = f"Of {wording.percent(max(0.0, found.explained))} explained"
    drawn, others = importances[:DRAWN_PARAMETERS], importances[DRAWN_PARAMETERS:]
    bottom = _TOP + _ROW * len(drawn)
    figure = Figure(_WIDTH, bottom + (50 if others else 30), "Importance of parameters")
    names = [wording.one_line(each.parameter, _LONGEST_NAME) for each in drawn]
    left = 20 + 9.0 * max(map(len, names))
    most = max(max(each.alone, each.total) for each in drawn)
    scale = Scale(0, 100 * max(most, 0.05), left, _WIDTH - 70)
    figure.text(_WIDTH - 8, _TOP - 14, f"{told}{': hints' if is_hint else ''}", "dim small", "end")
    fade = "faint " if is_hint else ""
    total, alone = f"bar {fade}blue", f"bar {fade}grey"
    for x, name, kind in ((left, "lost without it", total), (left + 130, "alone", alone)):
        figure.line(x, _TOP - 18, x + 14, _TOP - 18, kind)
        figure.text(x + 20, _TOP - 14, name, "dim small")
    figure.x_axis(scale, bottom, top=_TOP, suffix=" %")
    for row, (each, name) in enumerate(zip(drawn, names, strict=True)):
        y = _TOP + _ROW * (row + 0.5)
        figure.text(left - 8, y + 4, name, "ink", "end")
        figure.line(left, y - 5, scale(100 * each.total), y - 5, total)
        figure.line(left, y + 5, scale(100 * each.alone), y + 5, alone)
        figure.text(_WIDTH - 8, y + 4, wording.percent(each.total), "dim small", "end")
    if others:
        rest = (
            f"{plural(len(others), 'parameter')} more, at most {wording.percent(others[0].total)}"
        )
        figure.text(left, bottom + 40, rest, "dim small")
    return figure
