"""The parts about a whole report: space, verification, the device's limits with the roofline, provenance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autotune.measure.measurement import Measurement
from autotune.report import wording
from autotune.report.content import ReportContent
from autotune.report.table import Table
from autotune.report.wording import NONE, limit_words, listed, plural
from autotune.tuned.record import TIME, TunedProblem
from autotune.values import Problem


def removals(content: ReportContent) -> Table:
    """Return the share of all combinations that each constraint removes."""
    found = content.space.removals if content.space else ()
    ordered = sorted(found, key=lambda removal: -removal.share)
    rows = [
        {
            "Constraint": wording.one_line(removal.name),
            "Removes": wording.percent(removal.share),
            "Rule": wording.one_line(removal.doc.strip().split("\n\n")[0]),
        }
        for removal in ordered
    ]
    return Table.of(rows, words=("Rule",), wide="Rule")


def space_sentence(content: ReportContent) -> str:
    """Return a sentence with the size of the space and the part of it that was tried."""
    space = content.space
    if space is None:
        return ""
    kept = len(space) / space.cartesian if space.cartesian else 0.0
    text = (
        f"{plural(len(space.parameters), 'parameter')} have "
        f"{plural(space.cartesian, 'combination')}; {wording.count(len(space))} "
        f"({wording.percent(kept)}) of them are valid on this device."
    )
    most = max((len(problem.trials) for problem in content.problems), default=0)
    if most and len(space):
        share = wording.percent(min(1.0, most / len(space)))
        text += f" At most {wording.count(most)} ({share}) were tried on one problem."
    return text


def verification(content: ReportContent) -> Table:
    """Return each winner's error, its bound, and whether the winner is deterministic."""
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
                }
            )
    return Table.of(rows)


def _determinism(entry: TunedProblem) -> str:
    """Return whether a winner is deterministic, and if not, the cost of the best one that is."""
    if entry.plan.deterministic:
        runs = entry.winner.identical_runs
        return f"yes, {plural(runs, 'run')} compared" if runs else "declared"
    best = entry.race.best_deterministic
    if best is None or best.ratio is None:
        return "not declared"
    return f"not declared; the best that is takes {wording.ratio(best.ratio.value)} the time"


def device_limits(content: ReportContent) -> Table:
    """Return the limits that winners are compared with, and the peaks by clocks."""
    device, measured = content.device, _measured_limits(content.entries)
    rows = []
    for name, text, peak in (
        ("read", wording.bandwidth, device.peak_gb_per_s),
        ("copy", wording.bandwidth, device.peak_gb_per_s),
        ("ffma", wording.arithmetic, device.peak_gflop_per_s),
    ):
        rates = listed(text(rate) for rate in measured.get(name, ()))
        if rates:
            known = text(peak) if peak else NONE
            rows.append({"Limit": limit_words(name), "Measured": rates, "Peak by clocks": known})
    return Table.of(rows)


def _measured_limits(entries: Sequence[TunedProblem]) -> dict[str, list[float]]:
    """Return the measured limits of the device by name: GB/s or GFLOP/s, ascending.

    A limit is a winner's rate over its share of that limit. Winners of several runs or cards may
    have been compared with several measurements of one limit.
    """
    measured: dict[str, list[float]] = {}
    for entry in entries:
        rate = entry.gflop_per_s if entry.limit_name == "ffma" else entry.gb_per_s
        if entry.limit_name and entry.limit_fraction and rate:
            measured.setdefault(entry.limit_name, []).append(rate / entry.limit_fraction)
    return {name: sorted(rates) for name, rates in measured.items()}


def roofline(content: ReportContent) -> dict[str, Any] | None:
    """Return all winners below the device's roofs, as data of a figure; None without roofs.

    A roof is the largest of the measured limits, else the peak by clocks. A peak that a winner
    passes is left out: it is another unit's, as FP32's is where tensor cores multiply.
    ``of_bytes``: a problem does no arithmetic, so rates are drawn over bytes, not over intensity.
    """
    entries, device = content.entries, content.device
    limits = _measured_limits(entries)
    bandwidth = _roof(
        {name: limits[name] for name in ("read", "copy") if name in limits},
        device.peak_gb_per_s,
        [entry.gb_per_s or 0 for entry in entries],
        wording.bandwidth,
    )
    arithmetic = _roof(
        {name: limits[name] for name in ("ffma",) if name in limits},
        device.peak_gflop_per_s,
        [entry.gflop_per_s or 0 for entry in entries],
        wording.arithmetic,
    )
    points = [_point(entry) for entry in entries if entry.gb_per_s]
    if not points or not (bandwidth or arithmetic):
        return None
    return {
        "of_bytes": not all(point["operations"] for point in points),
        "bandwidth": bandwidth,
        "arithmetic": arithmetic,
        "points": points,
    }


def _roof(
    measured: dict[str, list[float]],
    peak: float,
    rates: Sequence[float],
    text: Callable[[float], str],
) -> dict[str, Any] | None:
    """Return a roof's rate per second, and its name."""
    if measured:
        rate, limit = max((rates[-1], name) for name, rates in measured.items())
        name = f"measured {limit_words(limit)}"
    elif peak and peak >= max(rates, default=0):
        rate, name = peak, "peak by clocks"
    else:
        return None
    return {"rate": _rounded(rate * 1e9), "name": f"{name}, {text(rate)}"}


def _point(entry: TunedProblem) -> dict[str, Any]:
    seconds, speedup = entry.median_ms / 1e3, entry.race.speedup
    vendor_ms = entry.median_ms * speedup.value if speedup else None
    return {
        "name": wording.one_line(str(Problem(dict(entry.problem)))),
        "bytes": _rounded((entry.gb_per_s or 0) * 1e9 * seconds),
        "operations": _rounded((entry.gflop_per_s or 0) * 1e9 * seconds),
        "seconds": _rounded(seconds),
        "time": wording.time(entry.median_ms),
        "vendor": wording.one_line(entry.race.vendor_name),
        "vendor_seconds": vendor_ms and _rounded(vendor_ms / 1e3),
        "vendor_time": wording.time(vendor_ms) if vendor_ms else "",
    }


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def provenance(content: ReportContent) -> Table:
    """Return device, versions and settings: all that is needed to measure again."""
    device, about = content.device, content.record.provenance
    run, entries = dict(content.run), content.entries
    trials = [trial for problem in content.problems for trial in problem.trials]
    sources = {"source": listed(entry.origin.source for entry in entries), **run}.get("source", "")
    named = {
        "Kernel": content.kernel,
        "Device": f"{device.name} ({device.arch})",
        "Device uuid": device.uuid,
        "Driver": device.driver or about.driver,
        "Toolchain": run.get("toolchain") or about.toolchain,
        "autotune": about.version,
        "Date": run.get("measured") or about.created[:10],
        "Measured by": listed(filter(None, (entry.origin.who for entry in entries))),
        "Commit": listed(_short(entry.origin.commit) for entry in entries if entry.origin.commit),
        "Command": run.get("command", ""),
        "Strategy": run.get("strategy") or listed(entry.origin.strategy for entry in entries),
        "Seed": run.get("seed") or listed(str(entry.origin.seed) for entry in entries),
        "Effort": run.get("effort") or listed(entry.origin.effort for entry in entries),
        "Budget": run.get("budget", ""),
        "Runs": run.get("runs", ""),
        "Rows shown": run.get("rows", ""),
        "SM clock": _clocks(trials),
        "Throttled": _throttled(trials),
        "Objective": "" if content.record.objective == TIME else content.record.objective,
        "Power limit": _power_limit(entries),
        "Timing": run.get("timing") or listed(entry.race.timing for entry in entries),
        "Source (sha256)": ", ".join(source[:16] for source in sources.split(", ")),
        "Space (sha256)": content.space.fingerprint[:16] if content.space else "",
    }
    rows = [{"Item": name, "Value": wording.one_line(text)} for name, text in named.items() if text]
    return Table.of(rows, words=("Value",), wide="Value")


def _short(commit: str) -> str:
    """Return a commit's first 12 digits, and the mark of changed files."""
    name, *dirty = commit.partition("-")
    return "".join([name[:12], *dirty])


def _power_limit(entries: Sequence[TunedProblem]) -> str:
    """Return the device's power limit while energy was measured; empty without energy."""
    energies = [entry.winner.energy for entry in entries]
    limits = sorted({energy.limit_w for energy in energies if energy and energy.limit_w})
    return listed(f"{wording.number(limit_w)} W" for limit_w in limits)


def _clocks(trials: Sequence[Measurement]) -> str:
    """Return the range of clocks; empty where the device does not report them."""
    clocks = [trial.clocks.sm_mhz for trial in trials if trial.clocks.sm_mhz is not None]
    if not clocks:
        return ""
    low, high = min(clocks), max(clocks)
    return f"{low} MHz" if low == high else f"{low} to {high} MHz"


def _throttled(trials: Sequence[Measurement]) -> str:
    """Return the number of throttled measurements, and the reasons."""
    found = [trial.clocks.throttle_reasons for trial in trials if trial.clocks.throttle_reasons]
    reasons = listed(sorted({reason for reasons in found for reason in reasons}))
    return f"{len(found)} of {len(trials)} measurements ({reasons})" if found else ""
