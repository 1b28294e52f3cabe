"""The tables of finals and outcomes, and the data of the page's figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.kernel.space import Space
from autotune.measure.counters import FIGURES
from autotune.measure.measurement import front
from autotune.measure.roofline import ARITHMETIC, Limits
from autotune.report import wording
from autotune.report.content import ProblemContent, ReportContent, relevant
from autotune.report.text_table import Table
from autotune.tuned.counted import CountedVariant
from autotune.tuned.record import ContenderResult, RaceResult, TunedProblem
from autotune.tuned.rival import rival_of
from autotune.values import Configuration, Problem, Value

#: Maximum number of parameters in a figure, most important first.
DRAWN_PARAMETERS = 12


# ---------------------------------------------------------------------- tables


def finals(content: ReportContent, problem: ProblemContent) -> Table:
    """Return the table of the finals: the winner, the others best first, then the vendor's calls."""
    if problem.entry is None:
        return Table()
    race = problem.entry.race
    return Table.of(
        [_final(content, race, found) for found in race.contenders],
        words=("Verdict",),
        wide="Configuration",
        strong=[0],
    )


def _final(
    content: ReportContent, race: RaceResult, found: ContenderResult
) -> dict[str, str | None]:
    compared = {"time": "Time", "energy": "Energy", "edp": "EDP"}
    won, time, energy = found is race.winner, found.time_ms, found.energy and found.energy.call_mj
    name = contender_name(content, race, found)
    ratio = None if won else found.ratio
    return {
        "Configuration": content.text(found.configuration or {}) if won else name,
        "Median": wording.time(time.value),
        "95 % interval": None if time.low is None else wording.interval(time.value, time.interval),
        "Energy (95 %)": wording.energy(energy.value, energy.interval) if energy else None,
        f"{compared.get(content.record.objective, 'Cost')} / winner's (95 %)": wording.ratio(
            ratio.value, ratio.interval
        )
        if ratio
        else None,
        "Verdict": verdict(race, found),
        "Clean cache": wording.time(found.clean_ms) if found.clean_ms else None,
        "Hot cache": wording.time(found.hot_ms) if found.hot_ms else None,
        "Registers": wording.count(found.registers),
        "Spills": wording.size(found.spill_bytes),
    }


def verdict(race: RaceResult, found: ContenderResult) -> str:
    """Return ``winner``, ``tied``, ``slower`` or ``vendor``; ``answers`` for a vendor's call that does."""
    if found.vendor:
        rival = rival_of(race)
        return "answers" if rival and rival.name == found.vendor else "vendor"
    return "winner" if found is race.winner else "tied" if found.tied else "slower"


def contender_name(content: ReportContent, race: RaceResult, found: ContenderResult) -> str:
    """Return a vendor call's name, or the parameters in which a configuration differs from the winner."""
    if found.configuration is None:
        return wording.one_line(found.vendor)
    chosen, winner = content.chosen(found.configuration), race.winner.configuration or {}
    changed = {name: value for name, value in chosen.items() if winner.get(name) != value}
    return wording.one_line(str(Configuration(changed) if changed else chosen))


def outcomes(content: ReportContent, problem: ProblemContent) -> Table:
    """Return the number of trials by status, with an example of each failure."""
    rows = []
    for status, count in problem.status_counts.items():
        trials = [trial for trial in problem.trials if trial.status is status]
        example = next((trial for trial in trials if trial.message), trials[0])
        message = wording.one_line(example.message) or "no message"
        rows.append(
            {
                "Status": str(status),
                "Count": wording.count(count),
                "Share": wording.percent(count / len(problem.trials)),
                "Example": None
                if status.is_timed
                else f"{content.text(example.configuration)}: {message}",
            }
        )
    return Table.of(rows, words=("Example",), wide="Example")


def counters(
    content: ReportContent, problem: ProblemContent, counted: Iterable[CountedVariant]
) -> Table:
    """Return the counters of `autotune explain`, with a column for each configuration of the problem.

    Only counters of the source of the record's entry are shown.
    """
    entry = problem.entry
    current = [
        variant
        for variant in counted
        if entry
        and variant.source == entry.origin.source
        and dict(variant.problem) == dict(problem.problem)
    ]
    lines: dict[str, dict[str, str | None]] = {}
    for variant in sorted(current, key=lambda variant: variant.time_ms):
        name = content.text(variant.configuration)
        lines.setdefault("time", {"Figure": "time"})[name] = wording.time(variant.time_ms)
        for figure in FIGURES.values():
            if text := figure.text(variant.counters):
                lines.setdefault(figure.words, {"Figure": figure.words})[name] = text
    return Table.of(list(lines.values()))


# ---------------------------------------------------------------------- importance of parameters


def importance(problem: ProblemContent, space: Space | None = None) -> dict[str, float | None]:
    """Return the importance of each parameter with several tried values, largest first; see `explained`.

    For a parameter, only trials in which it has an effect count. The importance is None if too few trials
    were timed.
    """
    if problem.best_ms is None:
        return {}
    groups: dict[str, dict[Value, list[float]]] = {}
    for trial in problem.trials:
        for name, value in relevant(trial.configuration, space).items():
            times = groups.setdefault(name, {}).setdefault(value, [])
            if trial.median_ms is not None:
                times.append(trial.median_ms)
    shares = {
        name: explained(list(times.values())) for name, times in groups.items() if len(times) > 1
    }
    return dict(sorted(shares.items(), key=lambda share: -(share[1] or 0)))


def explained(groups: Sequence[Sequence[float]]) -> float | None:
    """Return the share of the variance of log time that groups explain: Kelley's epsilon squared.

    ``ε² = (SS_between − (k − 1)·MS_within) / SS_total`` over the log times of k groups (T. L.
    Kelley, "An unbiased correlation ratio measure", PNAS 21(9), 1935), at least 0. It is the
    first-order term of a functional ANOVA (Hutter, Hoos & Leyton-Brown, ICML 2014), computed from the
    sample, minus the share that k random groups would explain. The shares of several parameters need not
    sum to 1: the rest is interactions and noise.

    Return None if fewer than two groups were timed, or if no group has two members.
    """
    logs = [np.log(np.asarray(group, float)) for group in groups if len(group)]
    total, k = sum(len(group) for group in logs), len(logs)
    if k < 2 or total <= k:
        return None
    all_logs: NDArray[np.float64] = np.concatenate(logs)
    ss_total = float(((all_logs - all_logs.mean()) ** 2).sum())
    if ss_total <= 0:
        return 0.0
    ss_within = float(sum(((group - group.mean()) ** 2).sum() for group in logs))
    unbiased = ss_total - ss_within - (k - 1) * ss_within / (total - k)
    return min(1.0, max(0.0, unbiased / ss_total))


# ---------------------------------------------------------------------- figures of a problem


def problem_data(content: ReportContent, problem: ProblemContent) -> dict[str, Any]:
    """Return a problem's data for the figures, with its trials as columns."""
    trials, best = problem.trials, problem.best_ms or 1.0
    shares = importance(problem, content.space)
    unit, length = wording.time_unit(best)
    places = {trial.configuration: i for i, trial in enumerate(trials)}
    energy_unit, amount = wording.energy_unit(
        min((trial.energy_mj for trial in trials if trial.energy_mj is not None), default=1.0)
    )
    parameters = _parameters(content, problem, shares)
    names = [parameter["name"] for parameter in parameters]
    functions = [trial.largest_function for trial in trials]
    spent = accumulate(trial.compile_s + trial.verify_s + trial.measure_s for trial in trials)
    return {
        "name": problem.name,
        "unit": unit,
        "energy_unit": energy_unit,
        "best": best / length,
        "parameters": parameters,
        "effects": [
            {
                "parameter": names.index(wording.one_line(name)),
                "share": "" if share is None else f"importance {wording.percent(share)}",
            }
            for name, share in islice(shares.items(), DRAWN_PARAMETERS)
        ],
        "front": [places[trial.configuration] for trial in front(trials)],
        "trials": {
            "time": [_rounded(trial.median_ms, length) for trial in trials],
            "energy": [_rounded(trial.energy_mj, amount) for trial in trials],
            "seconds": [round(seconds, 2) for seconds in spent],
            "status": [str(trial.status) for trial in trials],
            "message": [
                "" if trial.status.is_timed else wording.one_line(trial.message) for trial in trials
            ],
            "registers": [function.registers for function in functions],
            "spills": [function.spill_bytes for function in functions],
            "shared": [trial.shared_bytes for trial in trials],
            "winner": places.get(problem.winner.configuration, -1) if problem.winner else -1,
        },
    }


def _parameters(
    content: ReportContent, problem: ProblemContent, varied: Iterable[str]
) -> list[dict[str, Any]]:
    """Return the parameters with several values: name, values, and the index of each trial's value.

    Declared values come first, then other tried values. The index is -1 if the parameter has no effect.
    """
    declared = content.space.parameters if content.space else content.record.parameters
    shown = content.free.union(varied)
    met = dict.fromkeys(name for trial in problem.trials for name in trial.configuration)
    applied = [relevant(trial.configuration, content.space) for trial in problem.trials]
    parameters = []
    for name in {**declared, **met}:
        if name not in shown and name in declared:
            continue
        tried = (
            trial.configuration[name] for trial in problem.trials if name in trial.configuration
        )
        values = list(dict.fromkeys((*declared.get(name, ()), *tried)))
        number = {value: i for i, value in enumerate(values)}
        parameters.append(
            {
                "name": wording.one_line(name),
                "values": [wording.value_text(value) for value in values],
                "trials": [number[row[name]] if name in row else -1 for row in applied],
            }
        )
    return parameters


# ---------------------------------------------------------------------- roofline


def roofline(content: ReportContent, known: Limits | None = None) -> dict[str, Any] | None:
    """Return the data of the roofline: all winners and the limits that they are compared with.

    ``known`` are the device's recorded limits. They add roofs of arithmetic that no winner was compared with,
    and the rate of a copy if arithmetic limits all winners. The result is None if no winner was compared with
    a limit. ``of_bytes`` in the result means that a problem has no arithmetic, so the figure shows rates over
    bytes instead of intensity. The memory roofs are the fastest first.
    """
    compared = content.measured_limits
    points = [_point(entry, compared) for entry in content.entries if entry.gb_per_s]
    if not points or not compared:
        return None
    others = {name: [rate] for name, rate in (known or {}).items() if name not in compared}
    memory = {name: rates for name, rates in compared.items() if name not in ARITHMETIC}
    memory = memory or {name: others[name] for name in others if name == "copy"}
    arithmetic = {name: (compared | others).get(name) for name in ARITHMETIC}
    return {
        "of_bytes": not all(point["operations"] for point in points),
        "memory": sorted(
            (_roof(name, rates) for name, rates in memory.items()), key=lambda roof: -roof["rate"]
        ),
        "arithmetic": {name: _roof(name, rates) for name, rates in arithmetic.items() if rates},
        "points": points,
    }


def _roof(limit: str, rates: Sequence[float]) -> dict[str, Any]:
    label = f"{wording.limit_words(limit)}, {wording.limit_rates(limit, rates)}"
    return {"rate": _rounded(rates[-1] * 1e9), "label": label}


def _point(entry: TunedProblem, compared: Iterable[str]) -> dict[str, Any]:
    """Return a winner's data, with its share of its limit.

    ``roof`` is the arithmetic limit above the winner: its own, else the kernel's only one; empty if unknown.
    """
    kernels = [name for name in ARITHMETIC if name in compared]
    only = kernels[0] if len(kernels) == 1 else ""
    roof = entry.limit_name if entry.limit_name in kernels else only
    seconds, speedup = entry.median_ms / 1e3, entry.race.speedup
    vendor_ms = entry.median_ms * speedup.value if speedup else None
    return {
        "name": wording.one_line(str(Problem(dict(entry.problem)))),
        "roof": roof,
        "share": _rounded(entry.limit_fraction),
        "limit": wording.limit_words(entry.limit_name or ""),
        "bytes": _rounded((entry.gb_per_s or 0) * 1e9 * seconds),
        "operations": _rounded((entry.gflop_per_s or 0) * 1e9 * seconds),
        "seconds": _rounded(seconds),
        "time": wording.time(entry.median_ms),
        "vendor": wording.one_line(entry.race.vendor_name),
        "vendor_seconds": _rounded(vendor_ms, 1e3),
        "vendor_time": wording.time(vendor_ms) if vendor_ms else "",
    }


def _rounded(value: float | None, unit: float = 1.0) -> float | None:
    """Return a value in a unit, rounded to six digits: enough for a figure."""
    return None if value is None else float(f"{value / unit:.6g}")
