"""The evidence for an answer, per problem: finals, the search, failures, parameters."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.measure.measurement import Status
from autotune.report import wording
from autotune.report.content import ProblemContent, ReportContent
from autotune.report.effects import Effect
from autotune.report.table import (
    NONE,
    Table,
    configuration_text,
    plural,
    status_counts,
    value_text,
)
from autotune.tuned.record import ContenderResult, RaceResult
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
    """Return the table of the finals: the winner, the others best first, then the vendor's calls."""
    if problem.race is None:
        return Table((), ())
    rows = [_final(content, problem, problem.race, each) for each in problem.race.contenders]
    return Table.of(rows, words="Verdict", wide="Configuration", strong=[0])


def _final(
    content: ReportContent, problem: ProblemContent, race: RaceResult, found: ContenderResult
) -> dict[str, str]:
    trial = next((t for t in problem.trials if t.configuration == found.configuration), None)
    won = found is race.winner
    ratio = wording.ratio(found.ratio.value, found.ratio.interval) if found.ratio else NONE
    energies = {}
    if any(each.energy for other in content.problems for each in _contenders(other)):
        energies["Energy"] = NONE
        if found.energy:
            taken = found.energy.call_mj
            energies["Energy"] = wording.energy(taken.value, taken.interval)
    return {
        "Configuration": configuration_text(content, found.configuration or {})
        if won
        else contender_name(content, race, found),
        "Median": wording.time(found.time_ms.value),
        "95 % interval": NONE
        if found.time_ms.low is None
        else wording.interval(found.time_ms.value, found.time_ms.interval),
        **energies,
        f"{_compared(content)} / winner's (95 %)": NONE if won else ratio,
        "Verdict": verdict(race, found),
        "Clean": NONE if found.clean_ms is None else wording.time(found.clean_ms),
        "Hot": NONE if found.hot_ms is None else wording.time(found.hot_ms),
        "Registers": wording.count(found.registers),
        "Spills": wording.size(found.spill_bytes),
        "Shared per block": wording.size(trial.shared_bytes if trial else None),
    }


def _contenders(problem: ProblemContent) -> Sequence[ContenderResult]:
    return problem.race.contenders if problem.race else ()


def _compared(content: ReportContent) -> str:
    """Return the name of what finals compared."""
    name = content.record.objective
    return {"time": "Time", "energy": "Energy", "edp": "EDP"}.get(name, "Cost")


def verdict(race: RaceResult, found: ContenderResult) -> str:
    """Return ``winner``, ``tied``, ``slower`` or ``vendor``."""
    if found.vendor:
        return "vendor"
    return "winner" if found is race.winner else "tied" if found.tied else "slower"


def contender_name(content: ReportContent, race: RaceResult, found: ContenderResult) -> str:
    """Return a vendor's name, or what a configuration has otherwise than the winner."""
    if found.configuration is None:
        return wording.one_line(found.vendor)
    chosen, winner = content.chosen(found.configuration), race.winner.configuration or {}
    changed = {name: value for name, value in chosen.items() if winner.get(name) != value}
    return wording.one_line(str(Configuration(changed) if changed else chosen))


def outcomes(problem: ProblemContent) -> Table:
    """Return how trials ended, by kind."""
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
    """Return for each kind of failure its status, a message, and a configuration."""
    found = []
    for status in status_counts(problem):
        if not status.is_timed:
            those = [trial for trial in problem.trials if trial.status is status]
            trial = next((trial for trial in those if trial.message), those[0])
            message = wording.one_line(trial.message) or "no message"
            found.append((str(status), message, configuration_text(content, trial.configuration)))
    return found


def importance(content: ReportContent, problem: ProblemContent, found: Sequence[Effect]) -> Table:
    """Return each parameter's effect, the winner's value, and the cost of the worst value."""
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
    """Return one sentence on what the compiled configurations take; empty where nothing is known."""
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
