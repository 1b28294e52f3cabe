"""Finds whether an earlier run of the same command already has the results of a request."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from autotune.compiling.binaries import compile_now
from autotune.compiling.job import compile_job
from autotune.errors import UsageError
from autotune.retune.stale import (
    Action,
    KnownEntry,
    Reason,
    StaleQuery,
    has_measured_code,
    known_entries,
    reasons_to_tune,
)
from autotune.run.request import Request, Search
from autotune.search.session import Budget
from autotune.tuned.record import TunedRecord
from autotune.values import Configuration, Problem


@dataclass(frozen=True)
class Repetition:
    """The entries that an earlier run of the same command recorded, and what has changed since."""

    #: Record with the results of the request; None if at least one problem must be measured.
    record: TunedRecord | None = None
    #: Why entries of the same command are measured again, by problem.
    changes: tuple[tuple[Problem, str], ...] = ()


def repetition_of(request: Request, out: Path) -> Repetition:
    """Return what an earlier run of a request's command recorded in a folder.

    A command is the same with another budget or output. A larger one continues the search, so it repeats nothing.
    """
    goal = request.goal
    if request.is_experiment or request.accept or not isinstance(goal, Search) or goal.fresh:
        return Repetition()
    query = StaleQuery(devices=(request.device,), records=out)
    entries = {
        Problem(dict(known.entry.problem)): known
        for known in known_entries(request.kernel, request.device, out)
    }
    changes: list[tuple[Problem, str]] = []
    is_covered = True
    for problem in request.problems:
        known = entries.get(problem)
        if known is None or not _is_of_command(known, request):
            is_covered = False
        elif reasons := _reasons(query, request, known):
            changes.append((problem, "; ".join(reason.text for reason in reasons)))
        elif not _budget_of(known).covers(request.total_budget):
            changes.append((problem, "the budget is larger"))
    if changes or not is_covered or not request.problems:
        return Repetition(changes=tuple(changes))
    return Repetition(entries[request.problems[0]].record)


def _reasons(query: StaleQuery, request: Request, known: KnownEntry) -> tuple[Reason, ...]:
    """Return why an entry is measured again: not after an upgrade whose compiler makes the same machine code."""
    kernel, device, entry = request.kernel, request.device, known.entry
    reasons = reasons_to_tune(query, kernel, device, known)
    if any(reason.action is not Action.RECOMPILE for reason in reasons):
        return reasons
    if not reasons:
        return ()
    problem = Problem(dict(entry.problem))
    job = compile_job(kernel, Configuration(entry.configuration), problem, device)
    is_same = has_measured_code(kernel, device, entry, compile_now(job).binary)
    return () if is_same else reasons


def _is_of_command(known: KnownEntry, request: Request) -> bool:
    is_same = _plain(known.entry.origin.command) == _plain(request.command)
    is_same_objective = known.record.objective == request.objective.name
    return bool(request.command) and is_same and is_same_objective


def _plain(command: str) -> str:
    return re.sub(r" --(json\b|budget[ =]\S+)", "", command)


def _budget_of(known: KnownEntry) -> Budget:
    try:
        return Budget.parse(known.entry.origin.budget)
    except UsageError:  # an older record has none
        return Budget(seconds=0.0)
