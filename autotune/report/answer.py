"""The beginning of a report: the answer per problem, how good it is, and warnings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import geometric_mean

from autotune.measure.timing import Timing
from autotune.report import wording
from autotune.report.content import ProblemContent, ReportContent
from autotune.report.table import (
    NONE,
    Table,
    configuration_text,
    limit_words,
    plural,
    problem_name,
    status_counts,
    value_text,
)
from autotune.run.verdict import LESS_NOISE
from autotune.tuned.record import TIME, RaceResult, Sizes, TunedProblem
from autotune.values import Problem

#: A limit is itself a measurement; what lies further above it than this is an error.
MOST_OF_LIMIT = 1.05

MANY_PARAMETERS = 8
#: As many columns as a page has room for.
_SIDE_BY_SIDE = 16

#: Of the portfolio only the best are shown.
PORTFOLIO_ROWS = 8


def headline(content: ReportContent) -> str:
    """Return one sentence: how much was done, and how good it is."""
    entries = [problem.entry for problem in content.problems if problem.entry]
    wanted = content.record.objective
    what = "" if wanted == TIME else f" for {wording.one_line(wanted)}"
    parts = [f"{len(entries)} of {plural(len(content.problems), 'problem')} tuned{what}"]
    if content.trials:
        parts[0] += f", {plural(content.trials, 'configuration')} tried"
    parts += [*_vendor_sentence(entries), *_limit_sentence(entries)]
    return "; ".join(parts) + "."


def warnings(content: ReportContent) -> list[str]:
    """Return what a reader must not overlook: one sentence for each reason, with its problems."""
    found: dict[str, list[str]] = {}
    for problem in content.problems:
        for reason in _reasons(content, problem):
            found.setdefault(reason, []).append(problem_name(problem))
    told = [f"{'; '.join(names)}: {reason}." for reason, names in found.items()]
    is_noisy = any(problem.entry and problem.entry.race.noise for problem in content.problems)
    return [*told, f"For results with less noise, {LESS_NOISE}."] if is_noisy else told


def answers(content: ReportContent, with_configurations: bool = False) -> Table:
    """Return the winners' table: per problem time, interval, rate, vendor, limit, ties.

    Pages have a table of configurations beside it; where one table is shown they are its last column.
    """
    vendors = dict.fromkeys(
        problem.entry.race.vendor_name
        for problem in content.problems
        if problem.entry and problem.entry.race.speedup
    )
    speed = f"Speed vs {next(iter(vendors)) if len(vendors) == 1 else 'vendor'} (95 %)"
    rows = [_answer(problem, speed, len(vendors) > 1) for problem in content.problems]
    metrics = dict.fromkeys(
        name for problem in content.problems if problem.entry for name in problem.entry.metrics
    )
    for row, problem in zip(rows, content.problems, strict=True):
        found = problem.entry.metrics if problem.entry else {}
        for name in metrics:
            row[wording.one_line(name)] = wording.number(found[name]) if name in found else NONE
    for column in (speed, "Share of measured limit", "Energy (95 %)", "Power", "Tried"):
        if all(row[column] == NONE for row in rows):
            for row in rows:
                del row[column]
    if not with_configurations:
        return Table.of(rows)
    for row, problem in zip(rows, content.problems, strict=True):
        winner = problem.entry.configuration if problem.entry else {}
        row["Configuration"] = configuration_text(content, winner) if winner else NONE
    return Table.of(rows, words="Configuration", wide="Configuration")


def configurations(content: ReportContent) -> Table:
    """Return each winner's parameters, without what has no choice or no effect.

    Parameters go down where they are many: twenty columns fit no page. Where they are many for many
    problems, those that all winners agree on are left out.
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
        (problem_name(problem), *(value_text(chosen.get(name, NONE)) for name in names))
        for problem, chosen in solved
    ]
    if rows and len(names) > MANY_PARAMETERS and len(rows) < len(names):
        first, *others = zip(("Parameter", *titles), *rows, strict=True)
        return Table(first, tuple(others), numeric=frozenset(range(1, len(first))))
    return Table(("Problem", *titles), tuple(rows), numeric=frozenset(range(1, 1 + len(names))))


def winner_resources(content: ReportContent) -> Table:
    """Return what each winner takes of the device."""
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
                "Problem": problem_name(problem),
                "Block": " × ".join(map(str, entry.plan.block)),
                "Threads per block": wording.count(math.prod(entry.plan.block)),
                "Registers per thread": wording.count(entry.winner.registers),
                "Spills per thread": wording.size(entry.winner.spill_bytes),
                "Shared per block": wording.size(shared),
                "Of the device's": used,
            }
        )
    return Table.of(rows)


def portfolio(content: ReportContent) -> Table:
    """Return the best of the portfolio, as time over that of each problem's answer: in the mean, and at worst.

    The answers are the finals': what this race saw faster than an answer counts as equal to it.
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
            "Configuration": configuration_text(content, configuration),
            "Geometric mean": NONE if failures else wording.ratio(mean),
            "At worst": NONE if failures else wording.ratio(worst),
            "On": f"fails on {plural(failures, 'problem')}" if failures else where,
        }
        rows.append((failures, mean, row))
    rows.sort(key=lambda ranked: ranked[:2])
    best_rows = [row for _, _, row in rows[:PORTFOLIO_ROWS]]
    return Table.of(best_rows, words="On", wide="Configuration")


def _answered_ms(
    content: ReportContent, problem: Sizes, times_ms: Sequence[float | None]
) -> float | None:
    """Return the time of a problem's answer in the portfolio's race; of the best where it was not in it."""
    entry, matrix = content.record.tuned(problem), content.record.portfolio
    if entry and entry.configuration in matrix.configurations:
        answered_ms = times_ms[matrix.configurations.index(entry.configuration)]
        if answered_ms is not None:
            return answered_ms
    return min((ms for ms in times_ms if ms is not None), default=None)


def fallback(content: ReportContent) -> Table:
    """Return what lookup uses for problems that were never measured, and the speed to expect."""
    rows = []
    for table in content.record.portfolio.tables:
        expected = ", ".join(
            f"{wording.percent(share)} (≤ {within})" for within, share in table.expected
        )
        if not expected:
            continue
        answers = [
            (
                wording.one_line(str(Problem(dict(row.problem)))),
                configuration_text(content, row.plans[0].configuration),
            )
            for row in table.rows
        ]
        if table.prediction is not None:
            answers = [(f"any of {plural(len(table.rows), 'problem')}", "the fastest predicted")]
        rows += [(name, text, expected) for name, text in answers]
    named = [
        {
            "Nearest to": name,
            "Configuration": text,
            "At least of the best speed, within a distance": expected,
        }
        for name, text, expected in rows
    ]
    return Table.of(named, words="Configuration", wide="Configuration")


def _rate_text(entry: TunedProblem) -> str:
    """Return the rate that the binding limit is about; both where none is known."""
    moved = wording.bandwidth(entry.gb_per_s) if entry.gb_per_s else ""
    done = wording.arithmetic(entry.gflop_per_s) if entry.gflop_per_s else ""
    if entry.limit_name == "ffma":
        return done or moved or NONE
    if entry.limit_name is not None:
        return moved or done or NONE
    return ", ".join(rate for rate in (moved, done) if rate) or NONE


def _answer(problem: ProblemContent, speed: str, name_vendor: bool) -> dict[str, str]:
    entry = problem.entry
    vendor, limit = NONE, NONE
    if entry and entry.race.speedup:
        vendor = wording.ratio(entry.race.speedup.value, entry.race.speedup.interval)
        vendor += f" {entry.race.vendor_name}" if name_vendor else ""
    if entry and entry.limit_fraction is not None:
        share = wording.percent(entry.limit_fraction)
        limit = f"{share} of {limit_words(entry.limit_name or '')}"
    taken = entry.winner.energy if entry else None
    tried = len(problem.trials) or (entry.origin.evaluations if entry else None)
    return {
        "Problem": problem_name(problem),
        "Time": _time(entry) if entry else "no winner",
        "95 % interval": wording.interval(entry.median_ms, entry.winner.time_ms.interval)
        if entry
        else NONE,
        "Energy (95 %)": wording.energy(taken.call_mj.value, taken.call_mj.interval)
        if taken
        else NONE,
        "Power": f"{wording.number(taken.power_w, 3)} W" if taken and taken.power_w else NONE,
        "Rate": _rate_text(entry) if entry else NONE,
        speed: wording.one_line(vendor),
        "Share of measured limit": limit,
        "Tied": _tied(entry.race) if entry else NONE,
        "Tried": wording.count(tried),
    }


def _tied(race: RaceResult) -> str:
    """Return how many are tied, with their time over the winner's: rounds decide it, not medians."""
    ratios = sorted(each.ratio.value for each in race.runners_up if each.tied and each.ratio)
    ends = " … ".join(dict.fromkeys(f"{ratio:.3f}" for ratio in (*ratios[:1], *ratios[-1:])))
    return wording.count(race.tied) + (f" ({ends}×)" if ends else "")


def _time(entry: TunedProblem) -> str:
    remarks = ", ".join(
        filter(None, (Timing(entry.race.timing).remark, "noisy" if entry.race.noise else ""))
    )
    return wording.time(entry.median_ms) + (f" ({remarks})" if remarks else "")


def _vendor_sentence(entries: Sequence[TunedProblem]) -> list[str]:
    speedups = [entry.race.speedup for entry in entries if entry.race.speedup]
    if not speedups:
        return []
    ratios = [speedup.value for speedup in speedups]
    vendors = filter(None, (entry.race.vendor_name for entry in entries))
    names = wording.one_line(" and ".join(dict.fromkeys(vendors)))
    if len(ratios) == 1:
        return [f"{wording.ratio(ratios[0], speedups[0].interval)} the speed of {names}"]
    return [
        f"{min(ratios):.3f}× to {max(ratios):.3f}× the speed of {names} "
        f"(geometric mean {geometric_mean(ratios):.3f}×)"
    ]


def _limit_sentence(entries: Sequence[TunedProblem]) -> list[str]:
    shares = [entry.limit_fraction for entry in entries if entry.limit_fraction is not None]
    if not shares:
        return []
    names = dict.fromkeys(limit_words(entry.limit_name) for entry in entries if entry.limit_name)
    low, high = wording.percent(min(shares)), wording.percent(max(shares))
    span = low if low == high else f"{low} to {high}"
    return [f"{span} of the device's measured {' or '.join(names)}"]


def _reasons(content: ReportContent, problem: ProblemContent) -> list[str]:
    entry = problem.entry
    if entry is None:
        ends = ", ".join(
            f"{wording.count(n)} {status}" for status, n in status_counts(problem).items()
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
            f"the record keeps an earlier winner (effort {entry.origin.effort}); the figures show the "
            "later, less thorough search"
        )
    return reasons
