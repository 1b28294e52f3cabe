"""A run as a notebook shows it: one line, the answer with a picture of all measurements, or a plot.

Nothing is fetched, and the picture is an image of its own, so that no style of it reaches the notebook.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from itertools import accumulate
from typing import TYPE_CHECKING

from autotune.errors import MissingDependencyError
from autotune.kernel.space import Space
from autotune.measure.measurement import Measurement
from autotune.report import answer, wording
from autotune.report.sources import of_run
from autotune.report.svg import Figure, Scale
from autotune.report.table import Table
from autotune.run.result import ProblemResult, RunResult
from autotune.tuned.record import TunedRecord
from autotune.values import Configuration

if TYPE_CHECKING:
    import plotly.graph_objects as plotly

_TITLE = "Configurations in the order they were tried; the line is the best so far"
#: Problems that a summary names or draws; the report has all.
_MOST = 6
#: Of the plot, on light and dark.
_BLUE, _GREEN, _GREY = "#2f81f7", "#2da44e", "#8c959f"
_WIDTH, _PANEL, _TOP, _LEFT = 720, 150, 34, 84


def text(run: RunResult, record: TunedRecord | None) -> str:
    """Return kernel and device, and a line for each problem: its time and configuration."""
    lines = [
        f"{problem.problem}: {_outcome(run.space, problem, record)}" for problem in run.problems
    ]
    shown = [wording.one_line(line) for line in lines[:_MOST]]
    if len(lines) > len(shown):
        shown.append(f"and {len(lines) - len(shown)} problems more")
    head = f"{run.request.kernel.name} on {run.request.device.name}:"
    return f"{head} {shown[0]}" if len(shown) == 1 else "\n  ".join([head, *shown])


def html(run: RunResult, record: TunedRecord | None) -> str:
    """Return the winners as a table, the warnings, and the picture."""
    parts = [f"<b>{_text(run.request.kernel.name)} on {_text(run.request.device.name)}</b>"]
    if record is None:
        parts.append(_table(_single(run)))
        return f"<div>{''.join(parts)}</div>"
    content = of_run(run, record)
    parts.append(f"<p>{_text(answer.headline(content))}</p>")
    parts.append(_table(answer.answers(content, with_configurations=True)))
    parts += [f"<p>{_text(warning)}</p>" for warning in answer.warnings(content)]
    drawn = picture(run)
    if drawn:
        data = base64.b64encode(drawn.encode()).decode()
        parts.append(f'<img src="data:image/svg+xml;base64,{data}" alt="{_text(_TITLE)}"/>')
    return f"<div>{''.join(parts)}</div>"


def picture(run: RunResult) -> str:
    """Return every timed configuration as a dot, and the best so far as a line, as SVG; empty without any."""
    problems = [problem for problem in run.problems if _timed(problem)][:_MOST]
    if not problems:
        return ""
    figure = Figure(_WIDTH, _TOP + len(problems) * _PANEL, _TITLE)
    figure.text(16, 22, _TITLE, "ink bold")
    for row, problem in enumerate(problems):
        _draw(figure, problem, _TOP + row * _PANEL)
    return figure.render()


def plot(run: RunResult) -> plotly.Figure:
    """Return the picture as a plotly figure, with the configuration of each dot.

    Raises
    ------
    MissingDependencyError
        If plotly is not installed.
    """
    try:
        from plotly.subplots import make_subplots
    except ImportError as error:
        raise MissingDependencyError("plotly", "tune", "the plot") from error
    problems = [problem for problem in run.problems if _timed(problem)]
    names = [wording.one_line(str(problem.problem)) for problem in problems]
    figure = make_subplots(rows=max(1, len(problems)), subplot_titles=names)
    for row, problem in enumerate(problems, 1):
        _add(figure, problem, row)
    title = f"{run.request.kernel.name} on {run.request.device.name}"
    figure.update_layout(title=title, showlegend=False, height=120 + 280 * max(1, len(problems)))
    figure.update_xaxes(title="configurations tried", row=max(1, len(problems)), col=1)
    return figure


def _add(figure: plotly.Figure, problem: ProblemResult, row: int) -> None:
    """Add one problem as a row: its dots, the best so far, and the winner."""
    timed = _timed(problem)
    won = [
        (number, ms, trial) for number, ms, trial in timed if trial.configuration == _won(problem)
    ]
    times = [ms for _, ms, _ in timed]
    numbers = [number for number, _, _ in timed]
    best = {"x": numbers, "y": list(accumulate(times, min)), "mode": "lines"}
    figure.add_scatter(
        name="best so far", line={"shape": "hv", "color": _BLUE}, **best, row=row, col=1
    )
    for name, colour, dots in (("tried", _GREY, timed), ("won the finals", _GREEN, won)):
        figure.add_scatter(
            name=name,
            x=[number for number, _, _ in dots],
            y=[ms for _, ms, _ in dots],
            hovertext=[wording.one_line(str(trial.configuration)) for _, _, trial in dots],
            mode="markers",
            marker={"color": colour},
            row=row,
            col=1,
        )
    figure.update_yaxes(type="log", title="ms", row=row, col=1)


def _outcome(space: Space, problem: ProblemResult, record: TunedRecord | None) -> str:
    entry = record.tuned(problem.problem) if record else None
    if entry is not None:
        configuration = space.relevant(entry.configuration)
        noisy = " (noisy)" if entry.race.noise else ""
        named = ", ".join(f"{name}={value}" for name, value in configuration.items())
        return f"{wording.time(entry.median_ms)}{noisy} with {named or 'the one configuration'}"
    if record is not None or not problem.measured:
        return "nothing was right"
    measured = problem.measured[0]
    time = wording.time(measured.median_ms) if measured.median_ms else measured.message
    return f"{measured.status}, {time} with {measured.configuration}"


def _single(run: RunResult) -> Table:
    """Return the measurement of one configuration on each problem."""
    return Table.of(
        [
            {
                "Problem": str(problem.problem),
                "Status": str(row.status),
                "Time": wording.time(row.median_ms) if row.median_ms else "–",
                "Configuration": str(row.configuration),
                "Message": row.message,
            }
            for problem in run.problems
            for row in problem.measured
        ]
    )


def _timed(problem: ProblemResult) -> list[tuple[int, float, Measurement]]:
    """Return number, milliseconds and measurement of each timed configuration."""
    return [
        (number, row.median_ms, row)
        for number, row in enumerate(problem.measured, 1)
        if row.median_ms is not None
    ]


def _won(problem: ProblemResult) -> Configuration | None:
    return problem.winner


def _draw(figure: Figure, problem: ProblemResult, top: float) -> None:
    timed = _timed(problem)
    times = [ms for _, ms, _ in timed]
    x = Scale(0, len(problem.measured), _LEFT, _WIDTH - 24)
    y = Scale(min(times) / 1.1, max(times) * 1.1, top + _PANEL - 34, top + 30, is_log=True)
    figure.text(16, top + 16, wording.one_line(str(problem.problem), 90), "ink")
    figure.x_axis(x, top + _PANEL - 30, top + 26)
    for tick in y.ticks(3):
        figure.line(_LEFT, y(tick), _WIDTH - 24, y(tick), "grid")
        unit, length = wording.time_unit(tick * 1.0001)
        figure.text(
            _LEFT - 8, y(tick) + 4, f"{wording.number(tick / length)} {unit}", "dim small", "end"
        )
    points = [(x(number), y(ms)) for number, ms, _ in timed]
    figure.dots(points, "grey")
    _draw_best(figure, points, x.end)
    won = _won(problem)
    for point, (_, _, row) in zip(points, timed, strict=True):
        if row.configuration == won:
            figure.dots([point, (x.end - 92, top + 12)], "green")
            figure.text(x.end, top + 16, "won the finals", "dim small", "end")


def _draw_best(figure: Figure, points: Sequence[tuple[float, float]], end: float) -> None:
    """Draw the best so far, a line that goes down in steps."""
    lowest = list(accumulate((y for _, y in points), max))  # pixels count from the top
    for at, (x, _) in enumerate(points):
        following = points[at + 1][0] if at + 1 < len(points) else end
        figure.line(x, lowest[at], following, lowest[at], "thin blue")
        if at + 1 < len(points):
            figure.line(following, lowest[at], following, lowest[at + 1], "thin blue")


def _table(table: Table) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in table.columns)
    body = "".join(f"<tr>{_cells(table, row)}</tr>" for row in table.rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cells(table: Table, row: Sequence[str]) -> str:
    styles = ("right" if column in table.numeric else "left" for column in range(len(row)))
    pairs = zip(styles, row, strict=True)
    return "".join(f'<td style="text-align:{style}">{_text(cell)}</td>' for style, cell in pairs)


def _text(words: str) -> str:
    return escape(wording.one_line(words))
