"""The figures of the Markdown report: the search, the parameters, the finals, each as SVG text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autotune.measure.measurement import Status
from autotune.report import wording
from autotune.report.content import FinalistContent, ProblemContent, ReportContent
from autotune.report.effects import Effect, Step, ValueEffect, search_steps
from autotune.report.evidence import DRAWN_PARAMETERS
from autotune.report.svg import Figure, Scale
from autotune.report.table import difference_text, problem_name, value_text

#: Fits GitHub's column unscaled.
_WIDTH = 760
#: More times than this of one value are drawn as a box rather than as dots.
_DOTS = 40
_PANEL_COLUMNS = 3


def search_figure(problem: ProblemContent) -> str:
    """Best so far over evaluations, every trial's time, and failures along the bottom."""
    steps = search_steps(problem.trials)
    times = [one.trial.median_ms for one in steps if one.trial.median_ms is not None]
    name = problem_name(problem)
    if not times:
        return _empty(f"Search, {name}", "Nothing was timed")
    unit, length = wording.time_unit(min(times))
    figure = Figure(_WIDTH, 320, f"Best time so far, {name}")
    low, high = min(times) / length, max(times) / length
    y = Scale(low * 0.93, high * 1.07, 236, 44, is_log=high > 1.2 * low)
    x = Scale(0.5, len(steps) + 0.5, 74, _WIDTH - 20)
    figure.text(16, 24, f"Time ({unit})", "dim")
    figure.x_axis(x, 262, "Configurations tried", top=44)
    figure.y_axis(y, x.start, x.end)
    _trials(figure, steps, x, y, length)
    best = [(x(one.number), y(one.best_ms / length)) for one in steps if one.best_ms is not None]
    figure.path(_stairs(best), "line blue")
    _search_legend(figure, steps)
    return figure.render()


def _trials(figure: Figure, steps: Sequence[Step], x: Scale, y: Scale, length: float) -> None:
    """Dots for what was timed, crosses on the axis for what failed."""
    for status, colour in ((Status.STOPPED_EARLY, "amber"), (Status.OK, "grey")):
        figure.dots(
            [
                (x(one.number), y(one.trial.median_ms / length))
                for one in steps
                if one.trial.status is status and one.trial.median_ms is not None
            ],
            colour,
        )
    failures = [(x(one.number), 254.0) for one in steps if not one.trial.status.is_timed]
    figure.crosses(failures, "red")


def _search_legend(figure: Figure, steps: Sequence[Step]) -> None:
    met = [one.trial.status for one in steps]
    failed = sum(not one.is_timed for one in met)
    marks = [("blue", "best so far", True), ("grey", "one configuration", True)]
    marks.append(("amber", "stopped early", Status.STOPPED_EARLY in met))
    marks.append(("red", f"failed ({failed})", failed > 0))
    left = _WIDTH - 20.0
    for colour, words, shown in reversed(marks):
        if shown:
            left -= 7.2 * len(words) + 26
            figure.box(left, 16, 10, 10, f"fill {colour}")
            figure.text(left + 15, 25, words, "dim")


def parameters_figure(problem: ProblemContent, found: Sequence[Effect]) -> str:
    """One panel per parameter: times over the best, by value; most important first."""
    name = problem_name(problem)
    if not found:
        return _empty(f"Parameters, {name}", "Too little was timed to compare values")
    found = found[:DRAWN_PARAMETERS]
    rows = -(-len(found) // _PANEL_COLUMNS)
    height = 230
    figure = Figure(_WIDTH, 40 + height * rows, f"Time by parameter value, {name}")
    figure.text(16, 24, "Time over the best of the search, by value", "dim")
    figure.text(_WIDTH - 20, 24, "bar: median, box: middle half, diamond: fastest", "dim", "end")
    top = max(max(one.relative) for effect in found for one in effect.values if one.relative)
    wide = (_WIDTH - 20) / _PANEL_COLUMNS
    for i, effect in enumerate(found):
        left = 16 + (i % _PANEL_COLUMNS) * wide
        above = 40 + (i // _PANEL_COLUMNS) * height
        _panel(figure, effect, left, above, wide - 10, height - 14, max(1.1, top))
    return figure.render()


def _panel(
    figure: Figure,
    effect: Effect,
    left: float,
    above: float,
    width: float,
    height: float,
    top: float,
) -> None:
    share = "" if effect.share is None else f"explains {wording.percent(effect.share)}"
    figure.text(left, above + 18, _cut(effect.parameter, 20), "ink bold")
    figure.text(left + width - 4, above + 18, share, "dim small", "end")
    y = Scale(0.97, top * 1.04, above + height - 24, above + 34, is_log=True)
    start, end = left + 40, left + width - 4
    figure.y_axis(y, start, end, "×")
    step = (end - start) / len(effect.values)
    shown = max(2, int(step / 7.5))
    for i, one in enumerate(effect.values):
        centre = start + (i + 0.5) * step
        _distribution(figure, one, centre, min(34.0, 0.62 * step), y)
        label = _cut(value_text(one.value), shown)
        figure.text(centre, above + height - 7, label, "dim small", "middle")


def _distribution(figure: Figure, one: ValueEffect, centre: float, width: float, y: Scale) -> None:
    """Dots or a box, the median, and the fastest."""
    if not one.relative:
        if one.failed:
            figure.crosses([(centre, y.start - 8)], "red")
        return
    if len(one.relative) <= _DOTS:
        spread = [(i * 0.618034 % 1 - 0.5) * width for i in range(len(one.relative))]
        pairs = zip(spread, one.relative, strict=True)
        figure.dots([(centre + dx, y(value)) for dx, value in pairs], "grey")
    else:
        p5, q1, q3, p95 = (float(v) for v in np.quantile(one.relative, [0.05, 0.25, 0.75, 0.95]))
        figure.line(centre, y(p5), centre, y(p95), "thin grey")
        figure.box(centre - width / 2, y(q3), width, max(1.0, y(q1) - y(q3)), "wash blue")
    middle = y(float(np.median(one.relative)))
    figure.line(centre - width / 2, middle, centre + width / 2, middle, "line blue")
    _diamond(figure, centre, y(min(one.relative)), "green")


def finals_figure(content: ReportContent, problem: ProblemContent) -> str:
    """Finalists and vendors: time over the winner's, with 95 % intervals."""
    name = problem_name(problem)
    if not problem.finalists:
        return _empty(f"Finals, {name}", "No finals are known")
    winner = next((one for one in problem.finalists if one.won), problem.finalists[0])
    bounds = [one.ratio for one in problem.finalists]
    bounds += [one.ratio for one in problem.baselines]
    low, high = min(one.low for one in bounds), max(one.high for one in bounds)
    room = max(0.01, 0.06 * (high - low))
    lines = len(bounds)
    figure = Figure(_WIDTH, 104 + 26 * lines, f"Finals, {name}")
    left = 290.0
    x = Scale(min(1.0, low) - room, max(1.0, high) + room, left, _WIDTH - 100)
    figure.text(16, 24, "Time over the winner's, 95 % intervals", "dim")
    figure.text(_WIDTH - 20, 24, "median", "dim", "end")
    figure.x_axis(
        x, 50 + 26 * lines, "Time over the winner's (right is slower)", top=40, suffix="×"
    )
    figure.line(x(1), 40, x(1), 50 + 26 * lines, "thin green")
    for i, one in enumerate(problem.finalists):
        words = difference_text(content, one.configuration, winner.configuration)
        _finalist(figure, one, words, x, 60 + 26 * i)
    for i, vendor in enumerate(problem.baselines, len(problem.finalists)):
        ratio = vendor.ratio
        _interval(figure, x, 60 + 26 * i, (ratio.low, ratio.value, ratio.high), "amber")
        _row(figure, 60 + 26 * i, vendor.name, wording.time(vendor.median_ms), "ink")
    return figure.render()


def _finalist(figure: Figure, one: FinalistContent, words: str, x: Scale, y: float) -> None:
    colour = "green" if one.won else "blue" if one.tied else "grey"
    if one.won:
        # A ratio to itself has no interval; its own time has.
        low, high = (bound / one.median_ms for bound in one.interval_ms)
        bounds = (max(x.low, low), 1.0, min(x.high, high))
    else:
        bounds = (one.ratio.low, one.ratio.value, one.ratio.high)
    _interval(figure, x, y, bounds, colour)
    label = "winner" if one.won else f"{_cut(words, 27)} (tied)" if one.tied else words
    _row(figure, y, label, wording.time(one.median_ms), "ink bold" if one.won else "ink")


def _row(figure: Figure, y: float, words: str, value: str, style: str) -> None:
    figure.text(16, y + 4, _cut(words, 34), style)
    figure.text(_WIDTH - 20, y + 4, value, style, "end")


def _interval(
    figure: Figure, x: Scale, y: float, bounds: tuple[float, float, float], colour: str
) -> None:
    low, middle, high = (x(one) for one in bounds)
    figure.line(low, y, high, y, f"line {colour}")
    for end in (low, high):
        figure.line(end, y - 4, end, y + 4, f"thin {colour}")
    _diamond(figure, middle, y, colour)


def _diamond(figure: Figure, x: float, y: float, colour: str) -> None:
    points = [(x - 5, y), (x, y - 5), (x + 5, y), (x, y + 5), (x - 5, y)]
    figure.path(points, f"fill {colour}")


def _stairs(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Level until the next one, then down; points that change nothing are left out."""
    stairs: list[tuple[float, float]] = []
    for x, y in points:
        if stairs and y != stairs[-1][1]:
            stairs += [(x, stairs[-1][1]), (x, y)]
        elif not stairs:
            stairs.append((x, y))
    return [*stairs, (points[-1][0], points[-1][1])] if points else []


def _empty(title: str, words: str) -> str:
    figure = Figure(_WIDTH, 60, title)
    figure.text(16, 35, words, "dim")
    return figure.render()


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: max(1, most - 1)] + "…"
