"""A run as a console and a notebook show it: a line for each problem, tables, and a plot."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from autotune.errors import MissingDependencyError
from autotune.kernel.space import Space
from autotune.measure.measurement import Measurement
from autotune.report import answer, wording
from autotune.report.content import of_run
from autotune.report.table import Table, unbroken
from autotune.run.recording import ProblemResult, RunResult
from autotune.tuned.record import TunedRecord

if TYPE_CHECKING:
    import plotly.graph_objects as plotly

#: Number of problems that a text names; the report has all.
_MOST = 6
#: Readable on light and dark.
_BLUE, _GREEN, _GREY = "#2f81f7", "#2da44e", "#8c959f"


def text(run: RunResult, record: TunedRecord | None) -> str:
    """Return kernel and device, and a line for each problem: its time and configuration."""
    lines = [
        f"{problem.problem}: {_outcome(run.space, problem, record)}" for problem in run.problems
    ]
    shown = [wording.one_line(line) for line in lines[:_MOST]]
    if len(lines) > len(shown):
        shown.append(f"and {len(lines) - len(shown)} more problems")
    head = f"{_title(run)}:"
    return f"{head} {shown[0]}" if len(shown) == 1 else "\n  ".join([head, *shown])


def html(run: RunResult, record: TunedRecord | None) -> str:
    """Return headline, warnings and tables of a run as HTML without a style sheet."""
    if record is None:
        return f"<div><b>{unbroken(_title(run))}</b>{_measured(run).html()}</div>"
    content = of_run(run, record)
    head, *notes = (
        f"<p>{unbroken(text)}</p>" for text in (answer.headline(content), *answer.warnings(content))
    )
    table = answer.winners(content, with_configurations=True).html()
    return f"<div><b>{unbroken(_title(run))}</b>{head}{table}{''.join(notes)}</div>"


def plot(run: RunResult) -> plotly.Figure:
    """Return a figure of all timed configurations, the best so far, and the winners."""
    try:
        from plotly.subplots import make_subplots
    except ImportError as error:
        raise MissingDependencyError("plotly", "tune", "the plot") from error
    problems = [problem for problem in run.problems if _timed(problem)]
    names = [wording.one_line(str(problem.problem)) for problem in problems]
    count = max(1, len(problems))
    figure = make_subplots(rows=count, subplot_titles=names)
    for row, problem in enumerate(problems, 1):
        _add(figure, problem, row)
    figure.update_layout(title=_title(run), showlegend=False, height=120 + 280 * count)
    figure.update_xaxes(title="configurations tried", row=count, col=1)
    return figure


def _add(figure: plotly.Figure, problem: ProblemResult, row: int) -> None:
    """Add a problem as a row: its configurations, the best so far, and the winner."""
    timed = _timed(problem)
    won = [dot for dot in timed if dot[2].configuration == problem.winner]
    figure.add_scatter(
        name="best so far",
        x=[number for number, _, _ in timed],
        y=list(accumulate((ms for _, ms, _ in timed), min)),
        mode="lines",
        line={"shape": "hv", "color": _BLUE},
        row=row,
        col=1,
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


def _title(run: RunResult) -> str:
    return f"{run.request.kernel.name} on {run.request.device.name}"


def _outcome(space: Space, problem: ProblemResult, record: TunedRecord | None) -> str:
    entry = record.tuned(problem.problem) if record else None
    if entry is not None:
        configuration = space.relevant(entry.configuration)
        noisy = " (noisy)" if entry.race.noise else ""
        named = ", ".join(f"{name}={value}" for name, value in configuration.items())
        return f"{wording.time(entry.median_ms)}{noisy} with {named or 'the one configuration'}"
    if record is not None or not problem.measured:
        return "no configuration was right"
    measured = problem.measured[0]
    time = wording.time(measured.median_ms) if measured.median_ms else measured.message
    return f"{measured.status}, {time} with {measured.configuration}"


def _measured(run: RunResult) -> Table:
    """Return the measurement of one configuration on each problem."""
    return Table.of(
        [
            {
                "Problem": str(problem.problem),
                "Status": str(row.status),
                "Time": wording.time(row.median_ms) if row.median_ms else wording.NONE,
                "Configuration": str(row.configuration),
                "Message": row.message,
            }
            for problem in run.problems
            for row in problem.measured
        ]
    )


def _timed(problem: ProblemResult) -> list[tuple[int, float, Measurement]]:
    """Return number, milliseconds and measurement of all timed configurations."""
    return [
        (number, row.median_ms, row)
        for number, row in enumerate(problem.measured, 1)
        if row.median_ms is not None
    ]
