"""Summarise a run for a console or notebook: a line for each problem, and tables."""

from __future__ import annotations

from autotune.kernel.space import Space
from autotune.report import results, wording
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
    """Return the headline, warnings and winners of a run as HTML without a style sheet."""
    if record is None:
        return f"<div>{unbroken(text(run, None))}</div>"
    content = of_run(run, record)
    head, *notes = (
        f"<p>{unbroken(text)}</p>"
        for text in (results.headline(content), *results.warnings(content))
    )
    table = results.winners(content, with_configurations=True).html()
    return f"<div><b>{unbroken(_title(run))}</b>{head}{table}{''.join(notes)}</div>"


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
