"""The first part of a report: headline, warnings, winners, and answers for other problems."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import geometric_mean

from autotune.measure.timing import Timing
from autotune.report import wording
from autotune.report.content import ProblemContent, ReportContent
from autotune.report.table import Table
from autotune.report.wording import NONE, limit_words, listed, plural, value_text
from autotune.run.verdict import LESS_NOISE
from autotune.tuned.record import TIME, RaceResult, Sizes, TunedProblem
from autotune.values import Problem

#: A limit is itself a measurement; a larger share of it than this is an error.
MOST_OF_LIMIT = 1.05

MANY_PARAMETERS = 8
#: Number of columns that a page has room for.
_SIDE_BY_SIDE = 16

#: Number of the portfolio's best configurations that are shown.
PORTFOLIO_ROWS = 8


def headline(content: ReportContent) -> str:
    """Return a sentence with the number of tuned problems and their speed."""
    entries, objective = content.entries, content.record.objective
    goal = "" if objective == TIME else f" for {wording.one_line(objective)}"
    parts = [f"{len(entries)} of {plural(len(content.problems), 'problem')} tuned{goal}"]
    if content.trials:
        parts[0] += f", {plural(content.trials, 'configuration')} tried"
    if any(entry.race.speedup for entry in entries):
        parts.append(f"{vendor_speed(entries)} the speed of {vendor_names(entries)}")
    names = dict.fromkeys(limit_words(entry.limit_name) for entry in entries if entry.limit_name)
    if names:
        parts.append(f"{limit_share(entries)} of the device's measured {' or '.join(names)}")
    return "; ".join(parts) + "."


def vendor_speed(entries: Iterable[TunedProblem]) -> str:
    """Return the speed over the vendor's: geometric mean, smallest and largest."""
    return _spread([e.race.speedup.value for e in entries if e.race.speedup], wording.ratio)


def vendor_names(entries: Iterable[TunedProblem]) -> str:
    """Return the names of the vendor calls that winners are compared with."""
    return wording.one_line(listed(e.race.vendor_name for e in entries if e.race.speedup))


def limit_share(entries: Iterable[TunedProblem]) -> str:
    """Return the share of the measured limits: geometric mean, smallest and largest."""
    shares = [e.limit_fraction for e in entries if e.limit_fraction is not None]
    return _spread(shares, wording.percent)


def _spread(values: Sequence[float], text: Callable[[float], str]) -> str:
    if not values:
        return NONE
    mean = text(geometric_mean(values)) if min(values) > 0 else NONE
    return mean if len(values) == 1 else f"{mean} ({text(min(values))} – {text(max(values))})"


def warnings(content: ReportContent) -> list[str]:
    """Return a sentence for each reason to doubt results, with its problems."""
    found: dict[str, list[str]] = {}
    for problem in content.problems:
        for reason in _reasons(content, problem):
            found.setdefault(reason, []).append(problem.name)
    sentences = [f"{'; '.join(names)}: {reason}." for reason, names in found.items()]
    if any(entry.race.noise for entry in content.entries):
        sentences.append(f"For results with less noise, {LESS_NOISE}.")
    return sentences


def winners(content: ReportContent, with_configurations: bool = False) -> Table:
    """Return each problem's time with its interval, rate, vendor, limit and ties.

    Configurations are the last column where no table of their own follows.
    """
    entries = content.entries
    vendors = {entry.race.vendor_name for entry in entries if entry.race.speedup}
    speed = f"Speed vs {vendor_names(entries) if len(vendors) == 1 else 'vendor'} (95 %)"
    metrics = dict.fromkeys(name for entry in entries for name in entry.metrics)
    rows = [_winner(problem, speed, len(vendors) > 1, metrics) for problem in content.problems]
    optional = (speed, "Share of measured limit", "Energy (95 %)", "Power", "Tried")
    empty = [name for name in optional if all(row[name] == NONE for row in rows)]
    rows = [{k: cell for k, cell in row.items() if k not in empty} for row in rows]
    if with_configurations:
        for row, problem in zip(rows, content.problems, strict=True):
            row["Configuration"] = (
                content.text(problem.entry.configuration) if problem.entry else NONE
            )
    return Table.of(rows, words=("Configuration",), wide="Configuration")


def configurations(content: ReportContent) -> Table:
    """Return each winner's parameters that have a choice and an effect.

    Many parameters of few problems are rows instead of columns. Of many parameters of many
    problems, those with the same value in all winners are left out.
    """
    solved = [
        (problem, content.chosen(problem.entry.configuration))
        for problem in content.problems
        if problem.entry
    ]
    met = {name for _, chosen in solved for name in chosen}
    names = [name for name in content.record.parameters if name in met]
    if len(solved) > 1 and len(names) > _SIDE_BY_SIDE:
        differing = [name for name in names if len({c.get(name, NONE) for _, c in solved}) > 1]
        names = differing or names
    titles = [wording.one_line(name) for name in names]
    rows = [
        (problem.name, *(value_text(chosen.get(name, NONE)) for name in names))
        for problem, chosen in solved
    ]
    if rows and len(names) > MANY_PARAMETERS and len(rows) < len(names):
        first, *others = zip(("Parameter", *titles), *rows, strict=True)
        return Table(first, tuple(others), numeric=frozenset(range(1, len(first))))
    return Table(("Problem", *titles), tuple(rows), numeric=frozenset(range(1, 1 + len(names))))


def winner_resources(content: ReportContent) -> Table:
    """Return each winner's block, registers and shared memory."""
    limit = content.device.shared_bytes_per_block
    rows = []
    for problem in content.problems:
        if problem.entry is None:
            continue
        entry, static = problem.entry, problem.entry.winner.static_shared_bytes
        is_known = static is not None or entry.plan.shared_bytes
        shared = (static or 0) + entry.plan.shared_bytes if is_known else None
        used = wording.percent(shared / limit) if shared is not None and limit else NONE
        rows.append(
            {
                "Problem": problem.name,
                "Block": " × ".join(map(str, entry.plan.block)),
                "Threads per block": wording.count(math.prod(entry.plan.block)),
                "Registers per thread": wording.count(entry.winner.registers),
                "Spills per thread": wording.size(entry.winner.spill_bytes),
                "Shared memory per block": wording.size(shared),
                "Share of available": used,
            }
        )
    return Table.of(rows)


def portfolio(content: ReportContent) -> Table:
    """Return the portfolio's best configurations, by their time over the time of each answer.

    The finals chose the answers. A configuration that was faster in this race alone counts as equal.
    """
    matrix = content.record.portfolio
    columns = list(zip(*matrix.median_ms, strict=True)) if matrix.median_ms else []
    best = [
        _answered_ms(content, problem, column)
        for problem, column in zip(matrix.problems, columns, strict=False)
    ]
    names = [wording.one_line(str(Problem(dict(problem)))) for problem in matrix.problems]
    rows = []
    for configuration, times in zip(matrix.configurations, matrix.median_ms, strict=True):
        pairs = zip(times, best, names, strict=True)
        ratios = [(max(1.0, ms / least), name) for ms, least, name in pairs if ms and least]
        failures = len(times) - len(ratios)
        mean = geometric_mean([ratio for ratio, _ in ratios]) if ratios else math.inf
        worst, where = max(ratios, default=(math.inf, NONE))
        row = {
            "Configuration": content.text(configuration),
            "Geometric mean": NONE if failures else wording.ratio(mean),
            "Worst": NONE if failures else wording.ratio(worst),
            "Worst problem": f"fails on {plural(failures, 'problem')}" if failures else where,
        }
        rows.append((failures, mean, row))
    rows.sort(key=lambda ranked: ranked[:2])
    best_rows = [row for _, _, row in rows[:PORTFOLIO_ROWS]]
    return Table.of(best_rows, words=("Worst problem",), wide="Configuration")


def _answered_ms(
    content: ReportContent, problem: Sizes, times_ms: Sequence[float | None]
) -> float | None:
    """Return the time of a problem's answer in the portfolio's race; without it, the best time."""
    entry, matrix = content.record.tuned(problem), content.record.portfolio
    if entry and entry.configuration in matrix.configurations:
        answered_ms = times_ms[matrix.configurations.index(entry.configuration)]
        if answered_ms is not None:
            return answered_ms
    return min((ms for ms in times_ms if ms is not None), default=None)


def fallback(content: ReportContent) -> Table:
    """Return the answers of lookup for problems that were never measured, and the expected speed."""
    rows = []
    for table in content.record.portfolio.tables:
        expected = ", ".join(
            f"{wording.percent(share)} (≤ {within})" for within, share in table.expected
        )
        answers = [
            (
                wording.one_line(str(Problem(dict(row.problem)))),
                content.text(row.plans[0].configuration),
            )
            for row in table.rows
        ]
        if table.prediction is not None:
            answers = [(f"any of {plural(len(table.rows), 'problem')}", "the fastest predicted")]
        rows += [
            {
                "Nearest to": name,
                "Configuration": text,
                "Expected share of the best speed (distance)": expected,
            }
            for name, text in answers
            if expected
        ]
    return Table.of(rows, words=("Configuration",), wide="Configuration")


def _rate_text(entry: TunedProblem) -> str:
    """Return the rate of the binding limit's kind; both rates where no limit is known."""
    moved = wording.bandwidth(entry.gb_per_s) if entry.gb_per_s else ""
    done = wording.arithmetic(entry.gflop_per_s) if entry.gflop_per_s else ""
    if entry.limit_name == "ffma":
        return done or moved or NONE
    if entry.limit_name is not None:
        return moved or done or NONE
    return ", ".join(rate for rate in (moved, done) if rate) or NONE


def _winner(
    problem: ProblemContent, speed: str, name_vendor: bool, metrics: Iterable[str]
) -> dict[str, str]:
    entry = problem.entry
    row = {"Problem": problem.name, "Time": "no winner", "95 % interval": NONE}
    row |= dict.fromkeys(("Energy (95 %)", "Power", "Rate", speed), NONE)
    row |= {"Share of measured limit": NONE, "Tied": NONE, "Tried": NONE}
    row |= {wording.one_line(name): NONE for name in metrics}
    if problem.trials:
        row["Tried"] = wording.count(len(problem.trials))
    if entry is None:
        return row
    row["Time"] = _time(entry)
    row["95 % interval"] = wording.interval(entry.median_ms, entry.winner.time_ms.interval)
    if energy := entry.winner.energy:
        row["Energy (95 %)"] = wording.energy(energy.call_mj.value, energy.call_mj.interval)
        row["Power"] = f"{wording.number(energy.power_w, 3)} W" if energy.power_w else NONE
    row["Rate"] = _rate_text(entry)
    if speedup := entry.race.speedup:
        vendor = f" {entry.race.vendor_name}" if name_vendor else ""
        row[speed] = wording.one_line(wording.ratio(speedup.value, speedup.interval) + vendor)
    if entry.limit_fraction is not None:
        share = wording.percent(entry.limit_fraction)
        row["Share of measured limit"] = f"{share} of {limit_words(entry.limit_name or '')}"
    row["Tied"] = _tied(entry.race)
    row["Tried"] = wording.count(len(problem.trials) or entry.origin.evaluations)
    return row | {wording.one_line(k): wording.number(v) for k, v in entry.metrics.items()}


def _tied(race: RaceResult) -> str:
    """Return the number of ties, with their time over the winner's in the same rounds."""
    ratios = sorted(each.ratio.value for each in race.runners_up if each.tied and each.ratio)
    ends = " … ".join(dict.fromkeys(f"{ratio:.3f}" for ratio in (*ratios[:1], *ratios[-1:])))
    return wording.count(race.tied) + (f" ({ends}×)" if ends else "")


def _time(entry: TunedProblem) -> str:
    remarks = ", ".join(
        filter(None, (Timing(entry.race.timing).remark, "noisy" if entry.race.noise else ""))
    )
    return wording.time(entry.median_ms) + (f" ({remarks})" if remarks else "")


def _reasons(content: ReportContent, problem: ProblemContent) -> list[str]:
    entry = problem.entry
    if entry is None:
        ends = ", ".join(
            f"{wording.count(n)} {status}" for status, n in problem.status_counts.items()
        )
        why = (
            f"no configuration is both right and timed ({ends})" if ends else "nothing was measured"
        )
        return [f"no answer, because {why}"]
    stale = content.record.stale_reasons(entry)
    reasons = [f"should be tuned again, {why.rstrip('.')}" for why in stale]
    if entry.race.noise:
        reasons.append(f"noisy, {'; '.join(entry.race.noise)}")
    if entry.limit_fraction is not None and entry.limit_fraction > MOST_OF_LIMIT:
        reasons.append(
            f"more than the measured {limit_words(entry.limit_name or '')}; the limit was measured "
            "on a busy device (autotune doctor --limits measures it again), or the work function "
            "overstates the work"
        )
    if problem.is_superseded:
        reasons.append(
            f"the record keeps an earlier winner (effort {entry.origin.effort}); the search below is "
            "later and less thorough"
        )
    return reasons
