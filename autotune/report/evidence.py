"""What supports an answer, per problem: finals, the search, failures, parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from autotune.devices.binary import CompiledFunction
from autotune.measure.measurement import Status
from autotune.measure.timing import median_interval
from autotune.report import wording
from autotune.report.content import FinalsRow, ProblemContent, ReportContent
from autotune.report.effects import Effect
from autotune.report.table import (
    NONE,
    Table,
    configuration_text,
    plural,
    status_counts,
    value_text,
)
from autotune.run.selection import Finalist
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
    Status.NOT_DETERMINISTIC: "declared deterministic, and it is not",
}


def finals(content: ReportContent, problem: ProblemContent) -> Table:
    """The finalists and the vendors, best first."""
    strong = [i for i, row in enumerate(problem.finals) if row.verdict == "winner"]
    rows = [_final(content, row, problem.won or Configuration()) for row in problem.finals]
    return Table.of(rows, words="Verdict", wide="Configuration", strong=strong)


def _final(content: ReportContent, row: FinalsRow, winner: Configuration) -> dict[str, str]:
    trial = row.finalist.measurement if row.finalist else None
    function = trial.largest_function if trial else CompiledFunction("")
    won = row.verdict == "winner"
    ratio = wording.ratio(row.ratio.value, (row.ratio.low, row.ratio.high))
    interval = row.finalist and wording.interval(row.median_ms, row.finalist.interval_ms)
    other = contender_name(content, row, winner)
    return {
        "Configuration": configuration_text(content, winner) if won else other,
        "Median": wording.time(row.median_ms),
        "95 % interval": interval or NONE,
        **_costs(content, row),
        f"{_compared(content)} / winner's (95 %)": NONE if won else ratio,
        "Verdict": row.verdict,
        "Clean": NONE if row.clean_ms is None else wording.time(row.clean_ms),
        "Hot": NONE if row.hot_ms is None else wording.time(row.hot_ms),
        "Registers": wording.count(function.registers),
        "Spills": wording.size(function.spill_bytes),
        "Shared per block": wording.size(trial.shared_bytes if trial else None),
    }


def _compared(content: ReportContent) -> str:
    """What finals compared."""
    name = content.record.objective
    return {"time": "Time", "energy": "Energy", "edp": "EDP"}.get(name, "Cost")


def _costs(content: ReportContent, row: FinalsRow) -> dict[str, str]:
    """Energy of a call, where finals had windows."""
    if not any(finalist.energies for finalist in _finalists(content)):
        return {}
    energies = row.finalist.energies if row.finalist else row.vendor_energies
    taken = [window.call_mj for window in energies]
    return {"Energy": wording.energy(median(taken), median_interval(taken)) if taken else NONE}


def _finalists(content: ReportContent) -> Iterator[Finalist]:
    return (row.finalist for problem in content.problems for row in problem.finals if row.finalist)


def contender_name(content: ReportContent, row: FinalsRow, winner: Configuration) -> str:
    """A vendor by its name, a configuration by what it has otherwise than the winner."""
    if row.finalist is None:
        return wording.one_line(row.vendor)
    chosen = content.chosen(row.finalist.measurement.configuration)
    changed = {name: value for name, value in chosen.items() if winner.get(name) != value}
    return wording.one_line(str(Configuration(changed) if changed else chosen))


def outcomes(problem: ProblemContent) -> Table:
    """How trials ended, by kind."""
    rows = [
        {
            "Status": str(status),
            "Meaning": STATUS_WORDS[status],
            "Count": wording.count(count),
            "Share": wording.percent(count / len(problem.trials)),
        }
        for status, count in status_counts(problem).items()
    ]
    return Table.of(rows, words="Meaning")


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
            {
                "Parameter": wording.one_line(effect.parameter),
                "Explains alone": NONE if effect.share is None else wording.percent(effect.share),
                "Winner's value": value_text(winner.get(effect.parameter, NONE)),
                "Cost of the worst value": cost,
                "Timed": wording.count(effect.timed),
            }
        )
    return Table.of(rows)


def resources(problem: ProblemContent) -> str:
    """One sentence on what the compiled configurations take; empty where nobody says."""
    known = [trial for trial in problem.trials if trial.entries]
    functions = [trial.largest_function for trial in known]
    registers = sorted(taken.registers for taken in functions if taken.registers is not None)
    parts = []
    if registers:
        middle = registers[len(registers) // 2]
        parts.append(f"{registers[0]} to {registers[-1]} registers per thread (median {middle})")
    if any(taken.spill_bytes is not None for taken in functions):
        spilling = sum(bool(taken.spill_bytes) for taken in functions)
        parts.append(f"{spilling} of {len(known)} spill")
    shared = max((trial.shared_bytes or 0 for trial in known), default=0)
    if shared:
        parts.append(f"up to {wording.size(shared)} of shared memory per block")
    if not parts:
        return ""
    return f"Of {plural(len(known), 'compiled configuration')}: {', '.join(parts)}."
