"""Tables of the evidence for an answer, per problem: finals, search, energy, parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.kernel.space import Space
from autotune.measure.measurement import Status, front
from autotune.report import wording
from autotune.report.content import ProblemContent, ReportContent, relevant
from autotune.report.table import Table
from autotune.report.wording import NONE, value_text
from autotune.tuned.record import ContenderResult, RaceResult
from autotune.values import Configuration, Value

#: Only the most important parameters are drawn; all are in the table.
DRAWN_PARAMETERS = 12

_STATUS_WORDS = {
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
    Status.NOT_DETERMINISTIC: "declared deterministic, but its results differ between runs",
}


def finals(content: ReportContent, problem: ProblemContent) -> Table:
    """Return the table of the finals: the winner, the others best first, then the vendor's calls."""
    if problem.entry is None:
        return Table()
    race = problem.entry.race
    rows = [_final(content, problem, race, found) for found in race.contenders]
    has_energy = any(found.energy for entry in content.entries for found in entry.race.contenders)
    for row in rows:
        if not has_energy:
            del row["Energy (95 %)"]
    return Table.of(rows, words=("Verdict",), wide="Configuration", strong=[0])


def _final(
    content: ReportContent, problem: ProblemContent, race: RaceResult, found: ContenderResult
) -> dict[str, str]:
    compared = {"time": "Time", "energy": "Energy", "edp": "EDP"}
    won, time = found is race.winner, found.time_ms
    trial = next((t for t in problem.trials if t.configuration == found.configuration), None)
    energy = found.energy and wording.energy(
        found.energy.call_mj.value, found.energy.call_mj.interval
    )
    return {
        "Configuration": content.text(found.configuration or {})
        if won
        else contender_name(content, race, found),
        "Median": wording.time(time.value),
        "95 % interval": NONE if time.low is None else wording.interval(time.value, time.interval),
        "Energy (95 %)": energy or NONE,
        f"{compared.get(content.record.objective, 'Cost')} / winner's (95 %)": NONE
        if won or not found.ratio
        else wording.ratio(found.ratio.value, found.ratio.interval),
        "Verdict": verdict(race, found),
        "Clean cache": NONE if found.clean_ms is None else wording.time(found.clean_ms),
        "Hot cache": NONE if found.hot_ms is None else wording.time(found.hot_ms),
        "Registers": wording.count(found.registers),
        "Spills": wording.size(found.spill_bytes),
        "Shared per block": wording.size(trial.shared_bytes if trial else None),
    }


def verdict(race: RaceResult, found: ContenderResult) -> str:
    """Return ``winner``, ``tied``, ``slower`` or ``vendor``."""
    if found.vendor:
        return "vendor"
    return "winner" if found is race.winner else "tied" if found.tied else "slower"


def contender_name(content: ReportContent, race: RaceResult, found: ContenderResult) -> str:
    """Return a vendor's name, or the parameters in which a configuration differs from the winner."""
    if found.configuration is None:
        return wording.one_line(found.vendor)
    chosen, winner = content.chosen(found.configuration), race.winner.configuration or {}
    changed = {name: value for name, value in chosen.items() if winner.get(name) != value}
    return wording.one_line(str(Configuration(changed) if changed else chosen))


def outcomes(content: ReportContent, problem: ProblemContent) -> Table:
    """Return the number of trials that ended in each way, with an example of each failure."""
    rows = []
    for status, count in problem.status_counts.items():
        those = [trial for trial in problem.trials if trial.status is status]
        example = next((trial for trial in those if trial.message), those[0])
        message = wording.one_line(example.message) or "no message"
        rows.append(
            {
                "Status": str(status),
                "Meaning": _STATUS_WORDS[status],
                "Count": wording.count(count),
                "Share": wording.percent(count / len(problem.trials)),
                "Example": NONE
                if status.is_timed
                else f"{content.text(example.configuration)}: {message}",
            }
        )
    return Table.of(rows, words=("Meaning", "Example"), wide="Example")


def energy_front(content: ReportContent, problem: ProblemContent) -> Table:
    """Return the Pareto front of time and energy; empty where no energy was measured."""
    found = front(problem.trials)
    rows = [
        {
            "Configuration": content.text(trial.configuration),
            "Time": wording.time(trial.median_ms or 0),
            "Energy": wording.energy(trial.energy_mj or 0),
            "Power": f"{wording.number(trial.energy.power_w, 3)} W" if trial.energy else NONE,
            "Time / fastest": _over(trial.median_ms, found[0].median_ms),
            "Energy / least": _over(trial.energy_mj, found[-1].energy_mj),
            "SM clock": f"{trial.energy.clocks.sm_mhz} MHz"
            if trial.energy and trial.energy.clocks.sm_mhz
            else NONE,
        }
        for trial in found
    ]
    strong = [place for place, trial in enumerate(found) if trial is problem.winner]
    return Table.of(rows, wide="Configuration", strong=strong)


def _over(value: float | None, least: float | None) -> str:
    return wording.ratio(value / least) if value and least else NONE


# ---------------------------------------------------------------------- parameters


@dataclass(frozen=True)
class Effect:
    """The effect of one parameter on the time."""

    parameter: str
    #: For each value the times over the best of the search; none where all failed.
    relative: Mapping[Value, Sequence[float]]
    #: Share of the variance of log time that the parameter explains alone, 0 to 1; None where too
    #: little was timed. See `explained`.
    share: float | None


def effects(problem: ProblemContent, space: Space | None = None) -> tuple[Effect, ...]:
    """Return the effects of parameters with several values, most important first.

    Trials to which a parameter does not apply are left out of its effect.
    """
    best = problem.best_ms
    if best is None:
        return ()
    groups: dict[str, dict[Value, list[float]]] = {}
    for trial in problem.trials:
        for name, value in relevant(trial.configuration, space).items():
            times = groups.setdefault(name, {}).setdefault(value, [])
            if trial.median_ms is not None:
                times.append(trial.median_ms / best)
    found = [
        Effect(name, relative, explained(list(relative.values())))
        for name, relative in groups.items()
        if len(relative) > 1
    ]
    return tuple(sorted(found, key=lambda effect: -(effect.share or 0)))


def explained(groups: Sequence[Sequence[float]]) -> float | None:
    """Return the share of the variance of log time between groups: Kelley's epsilon squared.

    ``ε² = (SS_between − (k − 1)·MS_within) / SS_total`` over the log times of k groups (T. L.
    Kelley, "An unbiased correlation ratio measure", PNAS 21(9), 1935), no less than 0. It is the
    first-order term of a functional ANOVA (Hutter, Hoos & Leyton-Brown, ICML 2014) taken from the
    sample itself, less the share that as many random groups would explain. Shares of several
    parameters need not sum to 1: the rest are interactions and noise.

    None: fewer than two groups were timed, or none has two members.
    """
    logs = [np.log(np.asarray(group, float)) for group in groups if len(group)]
    total, k = sum(len(group) for group in logs), len(logs)
    if k < 2 or total <= k:
        return None
    everything: NDArray[np.float64] = np.concatenate(logs)
    ss_total = float(((everything - everything.mean()) ** 2).sum())
    if ss_total <= 0:
        return 0.0
    ss_within = float(sum(((group - group.mean()) ** 2).sum() for group in logs))
    unbiased = ss_total - ss_within - (k - 1) * ss_within / (total - k)
    return min(1.0, max(0.0, unbiased / ss_total))


def importance(content: ReportContent, problem: ProblemContent, found: Sequence[Effect]) -> Table:
    """Return each parameter's importance, its winning value, and the cost of its worst value."""
    winner = content.chosen(problem.entry.configuration) if problem.entry else Configuration()
    rows = []
    for effect in found:
        timed = {value: min(times) for value, times in effect.relative.items() if times}
        worst = max(timed, key=timed.__getitem__, default=None)
        cost = NONE if worst is None else f"{value_text(worst)}: {wording.ratio(timed[worst])}"
        rows.append(
            {
                "Parameter": wording.one_line(effect.parameter),
                "Importance alone": NONE if effect.share is None else wording.percent(effect.share),
                "Winner's value": value_text(winner.get(effect.parameter, NONE)),
                "Time / best with the worst value": cost,
                "Timed": wording.count(sum(map(len, effect.relative.values()))),
            }
        )
    return Table.of(rows)
