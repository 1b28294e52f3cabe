"""The tables of a whole report: winners, answers for other problems, verification, provenance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from statistics import geometric_mean

from autotune.answers.table import Expected, Sizes
from autotune.kernel.space import Space
from autotune.measure.measurement import Measurement
from autotune.measure.roofline import ARITHMETIC
from autotune.measure.timing import Timing
from autotune.report import wording
from autotune.report.content import ProblemContent, ReportContent
from autotune.report.text_table import Table
from autotune.report.wording import NONE, limit_words, listed, plural, value_text, without_paths
from autotune.run.verdict import LESS_NOISE
from autotune.tuned.record import TIME, RaceResult, TunedProblem
from autotune.tuned.rival import rival_of
from autotune.values import SOURCE, Configuration, Problem

#: With more parameters than this, few problems are columns instead of rows.
MANY_PARAMETERS = 8
#: With more parameters than this, parameters with equal values in all winners are not shown.
_SIDE_BY_SIDE = 16
#: Maximum number of configurations in the table of the portfolio.
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
    """Return the speed relative to the vendor's: geometric mean, smallest and largest."""
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


def warnings(content: ReportContent, in_python: bool = False) -> list[str]:
    """Return a sentence for each reason to doubt results, with the problems it concerns.

    With ``in_python``, advice names arguments of `tune` instead of options of the command line.
    """
    found: dict[str, list[str]] = {}
    for problem in content.problems:
        for reason in _reasons(content, problem):
            found.setdefault(reason, []).append(problem.name)
    sentences = [f"{'; '.join(names)}: {reason}." for reason, names in found.items()]
    if any(entry.race.noise for entry in content.entries):
        sentences.append(f"For results with less noise, {wording.hint(LESS_NOISE, in_python)}.")
    return sentences


def winners(content: ReportContent, with_configurations: bool = False) -> Table:
    """Return a table of problems: time with interval, rate, speed against the vendor, limit and ties.

    ``with_configurations`` adds the configuration as the last column.
    """
    entries = content.entries
    vendors = {entry.race.vendor_name for entry in entries if entry.race.speedup}
    speed = f"Speed vs {vendor_names(entries) if len(vendors) == 1 else 'vendor'} (95 %)"
    rows = [_winner(content, problem, speed, len(vendors) > 1) for problem in content.problems]
    if with_configurations:
        for row, problem in zip(rows, content.problems, strict=True):
            if problem.entry:
                row["Configuration"] = content.text(problem.entry.configuration)
    return Table.of(rows, words=("Configuration",), wide="Configuration")


def configurations(content: ReportContent) -> Table:
    """Return the winners' parameters that have several values and an effect.

    Parameters are rows if there are many of them and few problems. If there are many of both, parameters with
    the same value in all winners are not shown. Winners of several sources share a column of parameters.
    """
    solved = [
        (problem, content.chosen(problem.entry.configuration))
        for problem in content.problems
        if problem.entry
    ]
    if content.record.sources:
        return _by_source(solved)
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


def _by_source(solved: Sequence[tuple[ProblemContent, Configuration]]) -> Table:
    rows = [
        (
            problem.name,
            value_text(problem.entry.configuration[SOURCE]),
            ", ".join(f"{n}={value_text(v)}" for n, v in chosen.items() if n != SOURCE),
        )
        for problem, chosen in solved
        if problem.entry
    ]
    return Table(("Problem", "Source", "Parameters"), tuple(rows), wide=frozenset({2}))


def portfolio(content: ReportContent) -> Table:
    """Return the portfolio's best configurations, sorted by their time over the time of the answers.

    The finals chose the answers, so a configuration that is faster only in this race counts as a tie.
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
        mean = geometric_mean([ratio for ratio, _ in ratios]) if ratios else inf
        worst, where = max(ratios, default=(inf, NONE))
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
    """Return the time of a problem's answer in the portfolio's race, else the best time."""
    entry, matrix = content.record.tuned(problem), content.record.portfolio
    if entry and entry.configuration in matrix.configurations:
        answered_ms = times_ms[matrix.configurations.index(entry.configuration)]
        if answered_ms is not None:
            return answered_ms
    return min((ms for ms in times_ms if ms is not None), default=None)


def other_sizes(content: ReportContent) -> Table:
    """Return the expected speed of lookup's answers for problems that were not measured."""
    predictions = (table.prediction for table in content.record.portfolio.tables)
    rows = [
        {
            "Configuration": "the fastest predicted",
            "Measured sizes": wording.count(prediction.sizes),
            "Expected share of the best speed": _kinds(prediction.expected),
        }
        for prediction in predictions
        if prediction and prediction.expected
    ]
    return Table.of(rows)


def _kinds(expected: Expected) -> str:
    """Return the lower tenth and the median of the worst and of the best category of size."""
    worst, best = min(expected.shares), max(expected.shares)
    return ", ".join(dict.fromkeys(f"{low:.2f} to {median:.2f}" for low, median in (worst, best)))


def _rate_text(entry: TunedProblem) -> str:
    """Return bandwidth or arithmetic rate, whichever the limit concerns; both if no limit is known."""
    moved = wording.bandwidth(entry.gb_per_s) if entry.gb_per_s else ""
    done = wording.arithmetic(entry.gflop_per_s) if entry.gflop_per_s else ""
    if entry.limit_name in ARITHMETIC:
        return done or moved or NONE
    if entry.limit_name is not None:
        return moved or done or NONE
    return ", ".join(rate for rate in (moved, done) if rate) or NONE


def _winner(
    content: ReportContent, problem: ProblemContent, speed: str, name_vendor: bool
) -> dict[str, str | None]:
    entry, tried = problem.entry, len(problem.trials)
    if entry is None:
        return {"Problem": problem.name, "Time": "no winner", "Tried": wording.count(tried or None)}
    energy, speedup = entry.winner.energy, entry.race.speedup
    vendor = f" {entry.race.vendor_name}" if name_vendor else ""
    rival = rival_of(entry.race)
    vendor += f"; {rival.name} answers" if rival else ""
    share, limit = entry.limit_fraction, limit_words(entry.limit_name or "")
    won = energy.call_mj if energy else None
    return {
        "Problem": problem.name,
        "Time": _time(entry),
        "95 % interval": wording.interval(entry.median_ms, entry.winner.time_ms.interval),
        "Energy (95 %)": wording.energy(won.value, won.interval) if won else None,
        "Power": f"{wording.number(energy.power_w, 3)} W" if energy and energy.power_w else None,
        "Rate": _rate_text(entry),
        speed: wording.one_line(wording.ratio(speedup.value, speedup.interval) + vendor)
        if speedup
        else None,
        "Speed vs default": _over_default(content, problem),
        "Share of measured limit": f"{wording.percent(share)} of {limit}" if share else None,
        "Tied": _tied(entry.race),
        "Tried": wording.count(max(tried, entry.origin.evaluations)),
        **{wording.one_line(k): wording.number(v) for k, v in entry.metrics.items()},
    }


def _tied(race: RaceResult) -> str:
    """Return the number of ties, with the range of the intervals of their time over the winner's."""
    ends = [tie.ratio.interval for tie in race.runners_up if tie.tied and tie.ratio]
    if not ends:
        return wording.count(race.tied)
    lows, highs = zip(*ends, strict=True)
    return f"{wording.count(race.tied)} ({min(lows):.3f} … {max(highs):.3f}×)"


def _over_default(content: ReportContent, problem: ProblemContent) -> str | None:
    """Return the default's time over the winner's: in the finals, in the portfolio's race, or in the search."""
    record, entry = content.record, problem.entry
    default = record.default.configuration
    if entry is None:
        return None
    if (raced := entry.race.of(default)) and raced.ratio:
        return wording.ratio(raced.ratio.value)
    default_over, winner_over = (
        1 + record.slowdown(entry.problem, configuration)
        for configuration in (default, entry.configuration)
    )
    if default_over < inf > winner_over:
        return wording.ratio(default_over / winner_over)
    trials = problem.trial_of(default), problem.winner
    times_ms = [trial.median_ms for trial in trials if trial and trial.median_ms]
    return wording.ratio(times_ms[0] / times_ms[1]) if len(times_ms) == 2 else None


def _time(entry: TunedProblem) -> str:
    remarks = ", ".join(filter(None, (Timing(entry.race.timing).remark, *_doubts(entry))))
    return wording.time(entry.median_ms) + (f" ({remarks})" if remarks else "")


def _doubts(entry: TunedProblem) -> Iterator[str]:
    if entry.race.noise:
        yield "noisy"
    if entry.checks and entry.checks.unseen:
        yield "weak check"
    if entry.checks and entry.checks.agreed:
        yield "no reference"


def _reasons(content: ReportContent, problem: ProblemContent) -> list[str]:
    entry = problem.entry
    if entry is None:
        ends = ", ".join(
            f"{wording.count(n)} {status}" for status, n in problem.status_counts.items()
        )
        why = (
            f"no configuration passed verification and was timed ({ends})"
            if ends
            else "nothing was measured"
        )
        return [f"no answer, because {why}"]
    stale = content.record.stale_reasons(entry)
    reasons = [f"should be tuned again, {why.rstrip('.')}" for why in stale]
    if entry.race.noise:
        reasons.append(f"noisy, {'; '.join(entry.race.noise)}")
    if entry.checks and entry.checks.unseen:
        names = " and ".join(map(wording.one_line, entry.checks.unseen))
        reasons.append(f"weak check, a missing element of {names} would not have been noticed")
    if entry.checks and entry.checks.differs:
        found = "; ".join(map(wording.one_line, entry.checks.differs))
        reasons.append(f"differs from the reference on values that the data never hold, {found}")
    if entry.checks and entry.checks.agreed:
        reasons.append(f"no reference, {entry.checks.agreed} configurations agree on the results")
    return reasons


# ---------------------------------------------------------------------- provenance


def verification(content: ReportContent) -> Table:
    """Return the winners' errors, error bounds and determinism, and the range of each input array."""
    rows = []
    for problem in content.problems:
        entry = problem.entry
        checks = entry.checks if entry else None
        if entry is not None and checks is not None:
            used = checks.max_error / checks.bound if checks.bound else 0.0
            rows.append(
                {
                    "Problem": problem.name,
                    "Largest error": wording.number(checks.max_error, 3),
                    "RMS error": wording.number(checks.rms_error, 3),
                    "Bound": wording.number(checks.bound, 3),
                    "Bound used": wording.percent(used),
                    "Deterministic": _determinism(entry),
                    "Verified against": wording.one_line(checks.reference),
                    "Data": ", ".join(
                        f"{wording.one_line(name)} {least:.4g} … {most:.4g}"
                        for name, (least, most) in checks.drawn.items()
                    ),
                }
            )
    return Table.of(rows, words=["Verified against", "Data"], wide="Data")


def _determinism(entry: TunedProblem) -> str:
    """Return whether a winner is deterministic; if not, the time ratio of the best deterministic finalist."""
    if entry.plan.deterministic:
        runs = entry.winner.identical_runs
        return f"yes, {plural(runs, 'run')} compared" if runs else "declared"
    best = entry.race.best_deterministic
    if best is None or best.ratio is None:
        return "not declared"
    return f"not declared; the best that is takes {wording.ratio(best.ratio.value)} the time"


def provenance(content: ReportContent) -> Table:
    """Return the device, versions and settings that are needed to repeat the measurement."""
    device, about = content.record.device, content.record.provenance
    entries = content.entries
    origins = [entry.origin for entry in entries]
    trials = [trial for problem in content.problems for trial in problem.trials]
    clocks = sorted(t.clocks.sm_mhz for t in trials if t.clocks.sm_mhz is not None)
    limits_w = {e.winner.energy.limit_w for e in entries if e.winner.energy}
    named = {
        "Kernel": content.record.kernel,
        "Device": f"{device.name} ({device.arch})",
        "Device uuid": " ".join(dict.fromkeys(origin.device_uuid for origin in origins))
        or device.uuid,
        "Driver": device.driver or about.driver,
        "Toolchain": about.toolchain,
        "autotune": about.version,
        "Date": about.created[:10],
        "Measured by": listed(filter(None, (origin.who for origin in origins))),
        "Commit": listed(c[:12] + c[40:] for origin in origins if (c := origin.commit)),
        "Command": listed(without_paths(origin.command) for origin in origins if origin.command),
        "Strategy": listed(origin.strategy for origin in origins),
        "Seed": listed(str(origin.seed) for origin in origins),
        "Effort": listed(origin.effort for origin in origins),
        "Budget": listed(origin.budget for origin in origins if origin.budget),
        "SM clock": " to ".join(dict.fromkeys(f"{mhz} MHz" for mhz in (*clocks[:1], *clocks[-1:]))),
        "Throttled": _throttled(trials),
        "Objective": "" if content.record.objective == TIME else content.record.objective,
        "Power limit": listed(f"{wording.number(w)} W" for w in sorted(filter(None, limits_w))),
        "Timing": listed(entry.race.timing for entry in entries),
        "Source (sha256)": listed(origin.source[:16] for origin in origins),
        "Measured limits": listed(
            f"{limit_words(name)} {wording.limit_rates(name, rates)}"
            for name, rates in content.measured_limits.items()
        ),
        "Search space": _space_size(content.space),
        "Space (sha256)": content.space.fingerprint[:16] if content.space else "",
    }
    rows = [{"Item": name, "Value": wording.one_line(text)} for name, text in named.items() if text]
    return Table.of(rows, words=("Value",), wide="Value")


def _throttled(trials: Sequence[Measurement]) -> str:
    """Return the number of throttled measurements, and the reasons."""
    found = [trial.clocks.throttle_reasons for trial in trials if trial.clocks.throttle_reasons]
    reasons = listed(sorted({reason for reasons in found for reason in reasons}))
    return f"{len(found)} of {len(trials)} measurements ({reasons})" if found else ""


def _space_size(space: Space | None) -> str:
    """Return the number of valid configurations, and their share of all combinations."""
    if space is None:
        return ""
    share = wording.percent(len(space) / space.cartesian if space.cartesian else 0.0)
    return f"{wording.count(len(space))} of {wording.count(space.cartesian)} combinations are valid ({share})"
