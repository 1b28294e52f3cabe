"""What supports an answer, per problem: finals, the search, failures, parameters."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.measure.measurement import Status
from autotune.report import wording
from autotune.report.content import FinalistContent, ProblemContent, ReportContent, resources_of
from autotune.report.effects import Effect
from autotune.report.table import (
    NONE,
    Table,
    configuration_text,
    difference_text,
    plural,
    status_counts,
    value_text,
)
from autotune.values import Configuration

#: Only the most important parameters are drawn; all are in the table.
DRAWN_PARAMETERS = 12

#: How a status is called in a sentence.
STATUS_WORDS = {
    Status.OK: "right and timed",
    Status.STOPPED_EARLY: "right, clearly slower, stopped early",
    Status.PRUNED: "needs more than the device has",
    Status.COMPILE_FAILED: "does not compile",
    Status.LAUNCH_FAILED: "does not launch",
    Status.WRONG_RESULT: "wrong result",
    Status.TIMED_OUT: "timed out",
    Status.CRASHED: "crashed",
    Status.IMPLAUSIBLE: "faster than the device can be",
    Status.UNSAFE: "compute-sanitizer found a fault",
}


def finals(content: ReportContent, problem: ProblemContent) -> Table:
    """The finalists and the vendor, best first."""
    winner = next(
        (finalist.configuration for finalist in problem.finalists if finalist.won), Configuration()
    )
    rows = [_final(content, finalist, winner) for finalist in problem.finalists]
    strong = frozenset(i for i, finalist in enumerate(problem.finalists) if finalist.won)
    dashes = (NONE,) * 3
    rows += [
        (
            wording.one_line(vendor.name),
            wording.time(vendor.median_ms),
            NONE,
            _ratio_text(vendor.ratio.value, vendor.ratio.low, vendor.ratio.high),
            "vendor",
            NONE if vendor.hot_ms is None else wording.time(vendor.hot_ms),
            *dashes,
        )
        for vendor in problem.baselines
    ]
    columns = (
        "Configuration",
        "Median",
        "95 % interval",
        "Time / winner's (95 %)",
        "Verdict",
        "Hot",
        "Registers",
        "Spills",
        "Shared per block",
    )
    return Table(
        columns,
        tuple(rows),
        numeric=frozenset({1, 2, 3, 5, 6, 7, 8}),
        wide=frozenset({0}),
        strong=strong,
    )


def outcomes(problem: ProblemContent) -> Table:
    """How trials ended, by kind."""
    counts = status_counts(problem)
    rows = tuple(
        (
            str(status),
            STATUS_WORDS[status],
            wording.count(count),
            wording.percent(count / len(problem.trials)),
        )
        for status, count in counts.items()
    )
    return Table(("Status", "Meaning", "Count", "Share"), rows, numeric=frozenset({2, 3}))


def failure_examples(content: ReportContent, problem: ProblemContent) -> list[tuple[str, str, str]]:
    """For each kind of failure: its status, a message, and the configuration it is of."""
    found = []
    for status in status_counts(problem):
        if not status.is_timed:
            those = [trial for trial in problem.trials if trial.status is status]
            trial = next((trial for trial in those if trial.message), those[0])
            message = wording.one_line(trial.message) or "no message"
            found.append((str(status), message, configuration_text(content, trial.configuration)))
    return found


def importance(content: ReportContent, problem: ProblemContent, found: Sequence[Effect]) -> Table:
    """What each parameter explains, what the winner holds, and what the worst value costs."""
    winner = content.chosen(problem.entry.configuration) if problem.entry else Configuration()
    rows = []
    for effect in found:
        timed = [value for value in effect.values if value.best is not None]
        worst = max(timed, key=lambda value: value.best or 0, default=None)
        cost = f"{value_text(worst.value)}: {wording.ratio(worst.best or 0)}" if worst else NONE
        rows.append(
            (
                wording.one_line(effect.parameter),
                NONE if effect.share is None else wording.percent(effect.share),
                value_text(winner[effect.parameter]) if effect.parameter in winner else NONE,
                cost,
                wording.count(effect.timed),
            )
        )
    columns = ("Parameter", "Explains alone", "Winner's value", "Cost of the worst value", "Timed")
    return Table(columns, tuple(rows), numeric=frozenset(range(1, 5)))


def resources(problem: ProblemContent) -> str:
    """One sentence on what the compiled configurations take; empty where nobody says."""
    known = [(resources_of(trial), trial) for trial in problem.trials if trial.entries]
    registers = sorted(taken.registers for taken, _ in known if taken.registers is not None)
    spilling = [(taken, trial) for taken, trial in known if taken.spill_bytes]
    parts = []
    if registers:
        middle = registers[len(registers) // 2]
        parts.append(f"{registers[0]} to {registers[-1]} registers per thread (median {middle})")
    if any(taken.spill_bytes is not None for taken, _ in known):
        parts.append(f"{len(spilling)} of {len(known)} spill")
    shared = [taken.shared_bytes for taken, _ in known if taken.shared_bytes]
    if shared:
        parts.append(f"up to {wording.size(max(shared))} of shared memory per block")
    if not parts:
        return ""
    return f"Of {plural(len(known), 'compiled configuration')}: {', '.join(parts)}."


def _final(
    content: ReportContent, finalist: FinalistContent, winner: Configuration
) -> tuple[str, ...]:
    verdict = "winner" if finalist.won else "tied" if finalist.tied else "slower"
    return (
        configuration_text(content, winner)
        if finalist.won
        else difference_text(content, finalist.configuration, winner),
        wording.time(finalist.median_ms),
        wording.interval(finalist.median_ms, finalist.interval_ms),
        NONE
        if finalist.won
        else _ratio_text(finalist.ratio.value, finalist.ratio.low, finalist.ratio.high),
        verdict,
        NONE if finalist.hot_ms is None else wording.time(finalist.hot_ms),
        wording.count(finalist.resources.registers),
        wording.size(finalist.resources.spill_bytes),
        wording.size(finalist.resources.shared_bytes),
    )


def _ratio_text(value: float, low: float, high: float) -> str:
    return wording.ratio(value, (low, high))
