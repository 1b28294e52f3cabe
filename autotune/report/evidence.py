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
    winner = next((one.configuration for one in problem.finalists if one.won), Configuration())
    rows = [_final(content, one, winner) for one in problem.finalists]
    strong = frozenset(i for i, one in enumerate(problem.finalists) if one.won)
    dashes = (NONE,) * 3
    rows += [
        (
            wording.one_line(one.name),
            wording.time(one.median_ms),
            NONE,
            _ratio_text(one.ratio.value, one.ratio.low, one.ratio.high),
            "vendor",
            NONE if one.hot_ms is None else wording.time(one.hot_ms),
            *dashes,
        )
        for one in problem.baselines
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
            those = [one for one in problem.trials if one.status is status]
            one = next((one for one in those if one.message), those[0])
            message = wording.one_line(one.message) or "no message"
            found.append((str(status), message, configuration_text(content, one.configuration)))
    return found


def importance(content: ReportContent, problem: ProblemContent, found: Sequence[Effect]) -> Table:
    """What each parameter explains, what the winner holds, and what the worst value costs."""
    winner = content.chosen(problem.entry.configuration) if problem.entry else Configuration()
    rows = []
    for effect in found:
        timed = [one for one in effect.values if one.best is not None]
        worst = max(timed, key=lambda one: one.best or 0, default=None)
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
    known = [(resources_of(one), one) for one in problem.trials if one.entries]
    registers = sorted(one.registers for one, _ in known if one.registers is not None)
    spilling = [(one, trial) for one, trial in known if one.spill_bytes]
    parts = []
    if registers:
        middle = registers[len(registers) // 2]
        parts.append(f"{registers[0]} to {registers[-1]} registers per thread (median {middle})")
    if any(one.spill_bytes is not None for one, _ in known):
        parts.append(f"{len(spilling)} of {len(known)} spill")
    shared = [one.shared_bytes for one, _ in known if one.shared_bytes]
    if shared:
        parts.append(f"up to {wording.size(max(shared))} of shared memory per block")
    if not parts:
        return ""
    return f"Of {plural(len(known), 'compiled configuration')}: {', '.join(parts)}."


def _final(content: ReportContent, one: FinalistContent, winner: Configuration) -> tuple[str, ...]:
    verdict = "winner" if one.won else "tied" if one.tied else "slower"
    return (
        configuration_text(content, winner)
        if one.won
        else difference_text(content, one.configuration, winner),
        wording.time(one.median_ms),
        wording.interval(one.median_ms, one.interval_ms),
        NONE if one.won else _ratio_text(one.ratio.value, one.ratio.low, one.ratio.high),
        verdict,
        NONE if one.hot_ms is None else wording.time(one.hot_ms),
        wording.count(one.resources.registers),
        wording.size(one.resources.spill_bytes),
        wording.size(one.resources.shared_bytes),
    )


def _ratio_text(value: float, low: float, high: float) -> str:
    return wording.ratio(value, (low, high))
