"""What holds for a whole report: space, verification, limits of the device, provenance."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.measure.limits import Limits
from autotune.measure.measurement import Measurement, drift
from autotune.report import wording
from autotune.report.content import ReportContent
from autotune.report.table import NONE, Table, listed, plural, problem_name


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
        f"{plural(len(space.parameters), 'parameter')} span "
        f"{plural(space.cartesian, 'combination')}, of which {wording.count(len(space))} "
        f"({wording.percent(kept)}) are valid on this device."
    )
    most = max((len(one.trials) for one in content.problems), default=0)
    if most and len(space):
        share = wording.percent(min(1.0, most / len(space)))
        text += f" At most {wording.count(most)} ({share}) were tried on one problem."
    return text


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


def device_limits(content: ReportContent) -> Table:
    """What the device reaches, and what its data sheet promises."""
    device, measured = content.device, content.limits
    peaks = (
        wording.bandwidth(device.peak_gb_per_s) if device.peak_gb_per_s else NONE,
        wording.arithmetic(device.peak_gflop_per_s) if device.peak_gflop_per_s else NONE,
    )
    if measured is None and peaks == (NONE, NONE):
        return Table((), ())
    about = (
        ("read", "Read bandwidth", wording.bandwidth, peaks[0]),
        ("copy", "Copy bandwidth (read + write)", wording.bandwidth, peaks[0]),
        ("ffma", "FP32 rate (FFMA)", wording.arithmetic, peaks[1]),
    )
    limits = measured or Limits()
    rows = tuple(
        (
            words,
            unit(rate) if (rate := limits.rates[name]) else NONE,
            peak,
            limits.reached_by.get(name, NONE) if rate else NONE,
        )
        for name, words, unit, peak in about
    )
    columns = ("Limit", "Measured", "Peak by clocks", "Reached by")
    return Table(columns, rows, frozenset({1, 2}), frozenset({3}))


def provenance(content: ReportContent) -> Table:
    """What it was measured with, so that it can be measured again."""
    device, about = content.device, content.record.provenance
    run = dict(content.run)
    entries = [one.entry for one in content.problems if one.entry]
    trials = [trial for one in content.problems for trial in one.trials]
    sources = {"source": listed(one.source for one in entries), **run}.get("source", "")
    named = {
        "Kernel": content.kernel,
        "Device": f"{device.name} ({device.arch})",
        "Device uuid": device.uuid,
        "Driver": device.driver or about.driver,
        "Toolchain": run.get("toolchain") or about.toolchain,
        "autotune": about.version,
        "Date": run.get("measured") or about.created[:10],
        "Command": run.get("command", ""),
        "Strategy": run.get("strategy") or listed(one.strategy for one in entries),
        "Seed": run.get("seed") or listed(str(one.seed) for one in entries),
        "Effort": run.get("effort") or listed(one.effort for one in entries),
        "Budget": run.get("budget", ""),
        "Runs": run.get("runs", ""),
        "Inputs": run.get("inputs", ""),
        "SM clock": _clocks(trials),
        "Throttled": _throttled(trials),
        "Drift": _drift(trials),
        "Timing": run.get("timing") or listed(one.timing for one in entries),
        "Source (sha256)": ", ".join(one[:16] for one in sources.split(", ")),
        "Space (sha256)": content.space.fingerprint[:16] if content.space else "",
    }
    rows = tuple((name, wording.one_line(text)) for name, text in named.items() if text)
    return Table(("What", "Value"), rows, wide=frozenset({1}))


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
    reasons = listed(sorted({reason for reasons in found for reason in reasons}))
    return f"{len(found)} of {len(trials)} measurements ({reasons})" if found else ""


def _drift(trials: Sequence[Measurement]) -> str:
    """How far the reference moved while others were measured; empty where it was not timed again."""
    extremes = drift(trials)
    if extremes is None:
        return ""
    low, high = extremes
    count = sum(one.recheck is not None for one in trials)
    return f"{100 * low:+.1f} % to {100 * high:+.1f} %: a reference timed again {plural(count, 'time')}"
