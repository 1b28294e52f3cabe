"""A report's tables and sentences as plain text, the same for Markdown and HTML. No markup."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autotune import tuned
from autotune.measurement import Measurement, Status
from autotune.report import wording
from autotune.report.content import FinalistContent, ProblemContent, ReportContent, resources_of
from autotune.report.effects import Effect
from autotune.values import Configuration, Problem, Value

NONE = "–"
#: A limit is itself a measurement; what lies further above it than this is an error.
MOST_OF_LIMIT = 1.05
MANY_PARAMETERS = 8
#: Only the most important parameters are drawn; all are in the table.
DRAWN_PARAMETERS = 12
#: Of the portfolio only the best are shown.
PORTFOLIO_ROWS = 8

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
}
_LIMIT_WORDS = {
    "read": "read bandwidth",
    "copy": "copy bandwidth",
    "ffma": "FP32 rate (FFMA)",
    "launch": "launch latency",
}


@dataclass(frozen=True)
class Table:
    """Columns and rows of text.

    ``numeric`` columns are aligned right, ``wide`` ones may wrap; rows in ``strong`` stand out.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()
    wide: frozenset[int] = frozenset()
    strong: frozenset[int] = frozenset()


def headline(content: ReportContent) -> str:
    """One sentence: how much was done, and how good it is."""
    entries = [one.entry for one in content.problems if one.entry]
    parts = [f"{len(entries)} of {_plural(len(content.problems), 'problem')} tuned"]
    if content.trials:
        parts[0] += f", {_plural(content.trials, 'configuration')} tried"
    parts += [*_vendor_sentence(entries), *_limit_sentence(entries)]
    return "; ".join(parts) + "."


def warnings(content: ReportContent) -> list[str]:
    """What a reader must not overlook: one sentence for each reason, with its problems."""
    found: dict[str, list[str]] = {}
    for one in content.problems:
        for reason in _reasons(one):
            found.setdefault(reason, []).append(problem_name(one))
    return [f"{'; '.join(names)}: {reason}." for reason, names in found.items()]


def problem_name(problem: ProblemContent) -> str:
    """How a problem is called in titles and tables."""
    return wording.one_line(str(problem.problem)) or "the problem"


def answers(content: ReportContent) -> Table:
    """Per problem: time, interval, rate, vendor, limit, ties."""
    vendors = dict.fromkeys(
        one.entry.vendor.name for one in content.problems if one.entry and one.entry.vendor
    )
    vendor = next(iter(vendors)) if len(vendors) == 1 else "vendor"
    columns = (
        "Problem",
        "Time",
        "95 % interval",
        "Rate",
        f"Speed vs {vendor} (95 %)",
        "Share of measured limit",
        "Tied",
        "Tried",
    )
    rows = tuple(_answer(one, len(vendors) > 1) for one in content.problems)
    keep = [
        i
        for i, title in enumerate(columns)
        if i < 4 or title == "Tied" or any(row[i] != NONE for row in rows)
    ]
    return Table(
        tuple(columns[i] for i in keep),
        tuple(tuple(row[i] for i in keep) for row in rows),
        numeric=frozenset(range(1, len(keep))),
    )


def configurations(content: ReportContent) -> Table:
    """Per problem: the winner's parameters, without what has no choice or no effect.

    Parameters go down where they are many: twenty columns fit no page.
    """
    solved = [
        (one, content.chosen(one.entry.configuration)) for one in content.problems if one.entry
    ]
    met = {name for _, chosen in solved for name in chosen}
    names = [name for name in content.record.parameters if name in met]
    titles = [wording.one_line(name) for name in names]
    rows = [
        (problem_name(one), *(value_text(chosen.get(name, NONE)) for name in names))
        for one, chosen in solved
    ]
    if rows and len(names) > MANY_PARAMETERS and len(rows) < len(names):
        first, *others = zip(("Parameter", *titles), *rows, strict=True)
        return Table(first, tuple(others), numeric=frozenset(range(1, len(first))))
    return Table(("Problem", *titles), tuple(rows), numeric=frozenset(range(1, 1 + len(names))))


def winner_resources(content: ReportContent) -> Table:
    """Per problem: what the winner takes of the device."""
    limit = content.device.shared_bytes_per_block
    rows = []
    for one in content.problems:
        if one.entry is None:
            continue
        entry, shared = one.entry, _entry_shared(one.entry)
        used = wording.percent(shared / limit) if shared is not None and limit else NONE
        rows.append(
            (
                problem_name(one),
                " × ".join(map(str, entry.block)),
                wording.count(math.prod(entry.block)),
                wording.count(entry.registers),
                wording.size(entry.spill_bytes),
                wording.size(shared),
                used,
            )
        )
    columns = (
        "Problem",
        "Block",
        "Threads per block",
        "Registers per thread",
        "Spills per thread",
        "Shared per block",
        "Of the device's",
    )
    return Table(columns, tuple(rows), numeric=frozenset(range(1, 7)))


def verification(content: ReportContent) -> Table:
    """Per problem: the winner's error and the bound it kept."""
    rows = []
    for one in content.problems:
        checks = one.entry.checks if one.entry else None
        if checks is not None:
            used = checks.max_error / checks.bound if checks.bound else 0.0
            figures = (checks.max_error, checks.rms_error, checks.bound)
            texts = (wording.number(value, 3) for value in figures)
            rows.append((problem_name(one), *texts, wording.percent(used)))
    columns = ("Problem", "Largest error", "RMS error", "Bound", "Bound used")
    return Table(columns, tuple(rows), numeric=frozenset(range(1, 5)))


def outcomes(problem: ProblemContent) -> Table:
    """How trials ended, by kind."""
    counts = _counts(problem)
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
    for status in _counts(problem):
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
        "Registers",
        "Spills",
        "Shared per block",
    )
    return Table(
        columns,
        tuple(rows),
        numeric=frozenset({1, 2, 3, 5, 6, 7}),
        wide=frozenset({0}),
        strong=strong,
    )


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
    return f"Of {_plural(len(known), 'compiled configuration')}: {', '.join(parts)}."


def removals(content: ReportContent) -> Table:
    """What each constraint removes from the full product."""
    found = content.space.removals if content.space else ()
    ordered = sorted(found, key=lambda one: -one.share)
    rows = tuple(
        (
            wording.one_line(one.name),
            wording.percent(one.share),
            wording.one_line(one.doc.strip().split("\n\n")[0]),
        )
        for one in ordered
    )
    return Table(("Constraint", "Removes", "Demands"), rows, frozenset({1}), frozenset({2}))


def space_sentence(content: ReportContent) -> str:
    """How large the space is, and how much of it was tried."""
    space = content.space
    if space is None:
        return ""
    kept = len(space) / space.cartesian if space.cartesian else 0.0
    text = (
        f"{_plural(len(space.parameters), 'parameter')} span "
        f"{_plural(space.cartesian, 'combination')}, of which {wording.count(len(space))} "
        f"({wording.percent(kept)}) are valid on this device."
    )
    most = max((len(one.trials) for one in content.problems), default=0)
    if most and len(space):
        share = wording.percent(min(1.0, most / len(space)))
        text += f" At most {wording.count(most)} ({share}) were tried on one problem."
    return text


def portfolio(content: ReportContent) -> Table:
    """The best of the portfolio, as time over each problem's best: in the mean, and at worst."""
    matrix = content.record.portfolio
    columns = list(zip(*matrix.median_ms, strict=True)) if matrix.median_ms else []
    best = [min((ms for ms in one if ms is not None), default=None) for one in columns]
    names = [wording.one_line(str(Problem(dict(one)))) for one in matrix.problems]
    rows = []
    for configuration, times in zip(matrix.configurations, matrix.median_ms, strict=True):
        pairs = zip(times, best, names, strict=True)
        ratios = [(ms / least, name) for ms, least, name in pairs if ms and least]
        failures = len(times) - len(ratios)
        mean = _mean([one for one, _ in ratios])
        worst, where = max(ratios, default=(math.inf, NONE))
        told = (wording.ratio(mean), wording.ratio(worst), where)
        text = configuration_text(content, configuration)
        failed = f"fails on {_plural(failures, 'problem')}"
        rows.append((failures, mean, (text, *((NONE, NONE, failed) if failures else told))))
    rows.sort(key=lambda one: one[:2])
    return Table(
        ("Configuration", "Geometric mean", "At worst", "On"),
        tuple(cells for _, _, cells in rows[:PORTFOLIO_ROWS]),
        frozenset({1, 2}),
        frozenset({0}),
    )


def fallback(content: ReportContent) -> Table:
    """What lookup uses for problems that were never measured, and how good that should be."""
    rows = tuple(
        (
            wording.one_line(str(Problem(dict(one.problem)))),
            configuration_text(content, one.plan.configuration),
            wording.percent(one.expected_fraction),
        )
        for one in content.record.fallback
        if one.expected_fraction is not None
    )
    columns = ("Nearest to", "Configuration", "Expected share of the best speed")
    return Table(columns, rows, frozenset({2}), frozenset({1}))


def device_limits(content: ReportContent) -> Table:
    """What the device reaches, and what its data sheet promises."""
    device, measured = content.device, content.limits
    peaks = (
        wording.bandwidth(device.peak_gb_per_s) if device.peak_gb_per_s else NONE,
        wording.arithmetic(device.peak_gflop_per_s) if device.peak_gflop_per_s else NONE,
    )
    if measured is None and peaks == (NONE, NONE):
        return Table((), ())
    reached = (
        (
            wording.bandwidth(measured.read_gb_per_s),
            wording.bandwidth(measured.copy_gb_per_s),
            wording.arithmetic(measured.ffma_gflop_per_s),
            f"{wording.number(measured.launch_us, 3)} µs",
        )
        if measured
        else (NONE,) * 4
    )
    rows = (
        ("Read bandwidth", reached[0], peaks[0]),
        ("Copy bandwidth (read + write)", reached[1], peaks[0]),
        ("FP32 rate (FFMA)", reached[2], peaks[1]),
        ("Launch latency", reached[3], NONE),
    )
    return Table(("Limit", "Measured", "Peak by clocks"), rows, frozenset({1, 2}))


def provenance(content: ReportContent) -> Table:
    """What it was measured with, so that it can be measured again."""
    device, about = content.device, content.record.provenance
    run = dict(content.run)
    entries = [one.entry for one in content.problems if one.entry]
    trials = [trial for one in content.problems for trial in one.trials]
    sources = {"source": _listed(one.source for one in entries), **run}.get("source", "")
    named = {
        "Kernel": content.kernel,
        "Device": f"{device.name} ({device.arch})",
        "Device uuid": device.uuid,
        "Driver": device.driver or about.driver,
        "Toolchain": run.get("toolchain") or about.toolchain,
        "autotune": about.version,
        "Date": run.get("measured") or about.created,
        "Command": run.get("command", ""),
        "Strategy": run.get("strategy") or _listed(one.strategy for one in entries),
        "Seed": run.get("seed") or _listed(str(one.seed) for one in entries),
        "Effort": run.get("effort") or _listed(one.effort for one in entries),
        "Budget": run.get("budget", ""),
        "Runs": run.get("runs", ""),
        "Inputs": run.get("inputs", ""),
        "SM clock": _clocks(trials),
        "Throttled": _throttled(trials),
        "Timing": run.get("timing") or _listed(one.timing for one in entries),
        "Source (sha256)": ", ".join(one[:16] for one in sources.split(", ")),
        "Space (sha256)": content.space.fingerprint[:16] if content.space else "",
    }
    rows = tuple((name, wording.one_line(text)) for name, text in named.items() if text)
    return Table(("What", "Value"), rows, wide=frozenset({1}))


def configuration_text(content: ReportContent, configuration: Mapping[str, Value]) -> str:
    """A configuration on one line, without what is no choice."""
    return wording.one_line(str(content.chosen(configuration)))


def difference_text(content: ReportContent, one: Configuration, winner: Configuration) -> str:
    """What a configuration has otherwise than the winner, as far as it has an effect."""
    chosen = content.chosen(one)
    changed = {name: value for name, value in chosen.items() if winner.get(name) != value}
    return wording.one_line(str(Configuration(changed) if changed else chosen))


def value_text(value: object) -> str:
    """A parameter's value."""
    return wording.one_line(str(int(value)) if isinstance(value, bool) else str(value))


def limit_words(name: str) -> str:
    """What a measured limit is called."""
    return _LIMIT_WORDS.get(name, wording.one_line(name))


def rate_text(entry: tuned.Entry) -> str:
    """The rate that the binding limit is about; both where none is known."""
    moved = wording.bandwidth(entry.gb_per_s) if entry.gb_per_s else ""
    done = wording.arithmetic(entry.gflop_per_s) if entry.gflop_per_s else ""
    if entry.limit_name == "ffma":
        return done or moved or NONE
    if entry.limit_name is not None:
        return moved or done or NONE
    return ", ".join(one for one in (moved, done) if one) or NONE


# ---------------------------------------------------------------------- inside


def _answer(problem: ProblemContent, name_vendor: bool) -> tuple[str, ...]:
    entry, tried = problem.entry, wording.count(len(problem.trials) or None)
    if entry is None:
        return (problem_name(problem), "no winner", NONE, NONE, NONE, NONE, NONE, tried)
    vendor, limit = NONE, NONE
    if entry.vendor:
        vendor = wording.ratio(entry.vendor.ratio, entry.vendor.ratio_interval)
        vendor += f" {entry.vendor.name}" if name_vendor else ""
    if entry.limit_fraction is not None:
        share = wording.percent(entry.limit_fraction)
        limit = f"{share} of {limit_words(entry.limit_name or '')}"
    return (
        problem_name(problem),
        wording.time(entry.median_ms),
        wording.interval(entry.median_ms, entry.interval_ms),
        rate_text(entry),
        wording.one_line(vendor),
        limit,
        wording.count(entry.tied),
        wording.count(len(problem.trials) or entry.evaluations),
    )


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
        wording.count(one.resources.registers),
        wording.size(one.resources.spill_bytes),
        wording.size(one.resources.shared_bytes),
    )


def _ratio_text(value: float, low: float, high: float) -> str:
    return wording.ratio(value, (low, high))


def _entry_shared(entry: tuned.Entry) -> int | None:
    if entry.static_shared_bytes is None and not entry.shared_bytes:
        return None
    return (entry.static_shared_bytes or 0) + entry.shared_bytes


def _vendor_sentence(entries: Sequence[tuned.Entry]) -> list[str]:
    vendors = [one.vendor for one in entries if one.vendor]
    if not vendors:
        return []
    ratios = [one.ratio for one in vendors]
    names = wording.one_line(" and ".join(dict.fromkeys(one.name for one in vendors)))
    if len(ratios) == 1:
        return [f"{wording.ratio(ratios[0], vendors[0].ratio_interval)} the speed of {names}"]
    return [
        f"{min(ratios):.3f}× to {max(ratios):.3f}× the speed of {names} "
        f"(geometric mean {_mean(ratios):.3f}×)"
    ]


def _limit_sentence(entries: Sequence[tuned.Entry]) -> list[str]:
    shares = [one.limit_fraction for one in entries if one.limit_fraction is not None]
    if not shares:
        return []
    names = dict.fromkeys(limit_words(one.limit_name) for one in entries if one.limit_name)
    low, high = wording.percent(min(shares)), wording.percent(max(shares))
    span = low if low == high else f"{low} to {high}"
    return [f"{span} of the device's measured {' or '.join(names)}"]


def _mean(ratios: Sequence[float]) -> float:
    """The geometric mean; infinite of nothing, so that it sorts last."""
    if not ratios:
        return math.inf
    return math.exp(sum(math.log(one) for one in ratios) / len(ratios))


def _why_none(problem: ProblemContent) -> str:
    if not problem.trials:
        return "nothing was measured"
    listed = ", ".join(f"{wording.count(n)} {status}" for status, n in _counts(problem).items())
    return f"no configuration is both right and timed ({listed})"


def _reasons(problem: ProblemContent) -> list[str]:
    entry = problem.entry
    if entry is None:
        return [f"no answer, because {_why_none(problem)}"]
    reasons = [f"should be tuned again, {why.rstrip('.')}" for why in entry.stale_reasons]
    if entry.limit_fraction is not None and entry.limit_fraction > MOST_OF_LIMIT:
        reasons.append(
            f"more than the measured {limit_words(entry.limit_name or '')}; the limit was measured "
            "on a busy device (autotune doctor --limits measures it again), or the work function "
            "overstates the work"
        )
    if problem.is_superseded:
        reasons.append(
            f"the record keeps an earlier winner (effort {entry.effort}); the figures show the "
            "later, less thorough search"
        )
    return reasons


def _counts(problem: ProblemContent) -> dict[Status, int]:
    """How often trials ended in each way, in the order of the statuses."""
    met = [one.status for one in problem.trials]
    return {status: met.count(status) for status in Status if status in met}


def _clocks(trials: Sequence[Measurement]) -> str:
    """Clocks around the measurements; empty where the device does not say."""
    clocks = [one.clocks.sm_mhz for one in trials if one.clocks.sm_mhz is not None]
    if not clocks:
        return ""
    low, high = min(clocks), max(clocks)
    return f"{low} MHz" if low == high else f"{low} to {high} MHz"


def _throttled(trials: Sequence[Measurement]) -> str:
    """How many measurements were throttled, and why."""
    found = [one.clocks.throttle_reasons for one in trials if one.clocks.throttle_reasons]
    reasons = _listed(sorted({reason for reasons in found for reason in reasons}))
    return f"{len(found)} of {len(trials)} measurements ({reasons})" if found else ""


def _listed(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words))


def _plural(number: int, noun: str) -> str:
    return f"{wording.count(number)} {noun}" + ("" if number == 1 else "s")
