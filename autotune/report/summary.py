"""A run as a console and a notebook show it: a line for each problem, tables, and a plot."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from autotune.errors import MissingDependencyError
from autotune.kernel.space import Space
from autotune.report import answer, wording
from autotune.report.content import of_run
from autotune.report.table import unbroken
from autotune.run.recording import ProblemResult, RunResult
from autotune.tuned.record import TunedRecord

if TYPE_CHECKING:
    import plotly.graph_objects as plotly

#: Number of problems that a text names; the report has all.
_MOST = 6
#: Of the winner and of others; readable on light and dark.
_GREEN, _GREY = "#2da44e", "#8c959f"


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
    """Return headline, warnings and winners of a run as HTML without a style sheet."""
    if record is None:
        return f"<div>{unbroken(text(run, None))}</div>"
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
    names = [wording.one_line(str(problem.problem)) for problem in run.problems]
    figure = make_subplots(rows=max(1, len(names)), subplot_titles=names)
    for row, problem in enumerate(run.problems, 1):
        tried = enumerate(problem.measured, 1)
        found = [(n, each, each.median_ms) for n, each in tried if each.median_ms is not None]
        numbers, timed, times = zip(*found, strict=True) if found else ((), (), ())
        colours = [_GREEN if each.configuration == problem.winner else _GREY for each in timed]
        best = {"x": numbers, "y": list(accumulate(times, min)), "line": {"shape": "hv"}}
        figure.add_scatter(name="best so far", mode="lines", **best, row=row, col=1)
        figure.add_scatter(
            name="configurations",
            x=numbers,
            y=times,
            hovertext=[wording.one_line(str(each.configuration)) for each in timed],
            mode="markers",
            marker={"color": colours},
            row=row,
            col=1,
        )
    figure.update_yaxes(type="log", title="ms")
    figure.update_layout(title=_title(run), showlegend=False, height=120 + 280 * len(names))
    figure.update_xaxes(title="configurations tried", row=max(1, len(names)), col=1)
    return figure


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
