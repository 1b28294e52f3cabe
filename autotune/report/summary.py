"""Summarise a run for a console or notebook: a line for each problem, and tables and charts."""

from __future__ import annotations

from typing import Any

from autotune.kernel.space import Space
from autotune.report import charts, evidence, results, wording
from autotune.report.content import of_run
from autotune.report.text_table import unbroken
from autotune.run.result import ProblemResult, RunResult
from autotune.tuned.record import TunedRecord

#: Maximum number of problems in a text; the report has all.
_MAX_PROBLEMS = 6


def text(run: RunResult, record: TunedRecord | None) -> str:
    """Return kernel and device, and a line with time and configuration for each problem."""
    lines = [
        f"{problem.problem}: {_outcome(run.space, problem, record)}" for problem in run.problems
    ]
    shown = [wording.one_line(line) for line in lines[:_MAX_PROBLEMS]]
    if len(lines) > len(shown):
        shown.append(f"and {len(lines) - len(shown)} more problems")
    head = f"{_title(run)}:"
    return f"{head} {shown[0]}" if len(shown) == 1 else "\n  ".join([head, *shown])


def html(run: RunResult, record: TunedRecord | None) -> str:
    """Return the headline, winners, warnings and charts of a run as HTML without a style sheet."""
    if record is None:
        return f"<div>{unbroken(text(run, None))}</div>"
    content = of_run(run, record)
    head, *notes = (
        f"<p>{unbroken(text)}</p>"
        for text in (results.headline(content), *results.warnings(content, in_python=True))
    )
    table = results.winners(content, with_configurations=True).html()
    figures = "".join(
        _charts(evidence.problem_data(content, problem), is_open=problem is content.problems[0])
        for problem in content.problems[:_MAX_PROBLEMS]
    )
    return f"<div><b>{unbroken(_title(run))}</b>{head}{table}{''.join(notes)}{figures}</div>"


def _charts(data: dict[str, Any], is_open: bool) -> str:
    """Return the charts of a problem below its name; an empty text if nothing was timed."""
    drawn = charts.search(data)
    if not drawn:
        return ""
    opened = ' open="open"' if is_open else ""
    title = f"<summary>Search and parameters of {unbroken(data['name'])}</summary>"
    return f"<details{opened}>{title}{drawn}<br/>{charts.effects(data)}</details>"


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
        return "no configuration passed verification"
    measured = problem.measured[0]
    time = wording.time(measured.median_ms) if measured.median_ms else measured.message
    return f"{measured.status}, {time} with {measured.configuration}"
