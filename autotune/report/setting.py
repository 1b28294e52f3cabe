"""The parts of a report that hold for all problems: space, verification, limits of the device, provenance."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.measure.measurement import Measurement, clock_change_words, clock_changes
from autotune.report import wording
from autotune.report.content import ReportContent
from autotune.report.roofline import measured_limits
from autotune.report.table import NONE, Table, limit_words, listed, plural, problem_name
from autotune.tuned.record import TIME, TunedProblem


def removals(content: ReportContent) -> Table:
    """Return what each constraint removes from the full product."""
    found = content.space.removals if content.space else ()
    ordered = sorted(found, key=lambda removal: -removal.share)
    rows = [
        {
            "Constraint": wording.one_line(removal.name),
            "Removes": wording.percent(removal.share),
            "Demands": wording.one_line(removal.doc.strip().split("\n\n")[0]),
        }
        for removal in ordered
    ]
    return Table.of(rows, words="Demands", wide="Demands")


def space_sentence(content: ReportContent) -> str:
    """Return how large the space is, and how much of it was tried."""
    space = content.space
    if space is None:
        return ""
    kept = len(space) / space.cartesian if space.cartesian else 0.0
    text = (
        f"{plural(len(space.parameters), 'parameter')} span "
        f"{plural(space.cartesian, 'combination')}, of which {wording.count(len(space))} "
        f"({wording.percent(kept)}) are valid on this device."
    )
    most = max((len(problem.trials) for problem in content.problems), default=0)
    if most and len(space):
        share = wording.percent(min(1.0, most / len(space)))
        text += f" At most {wording.count(most)} ({share}) were tried on one problem."
    return text


def verification(content: ReportContent) -> Table:
    """Return each winner's error and the bound it kept, and whether its bits are always the same."""
    rows = []
    for problem in content.problems:
        entry = problem.entry
        checks = entry.checks if entry else None
        if entry is not None and checks is not None:
            used = checks.max_error / checks.bound if checks.bound else 0.0
            rows.append(
                {
                    "Problem": problem_name(problem),
                    "Largest error": wording.number(checks.max_error, 3),
                    "RMS error": wording.number(checks.rms_error, 3),
                    "Bound": wording.number(checks.bound, 3),
                    "Bound used": wording.percent(used),
                    "Same bits in every run": _repeats(entry),
                }
            )
    return Table.of(rows)


def _repeats(entry: TunedProblem) -> str:
    """Return whether a winner is deterministic, and if not, what one that is would cost."""
    if entry.plan.deterministic:
        runs = entry.winner.identical_runs
        return f"yes, in {plural(runs, 'run')} compared" if runs else "declared"
    best = entry.race.best_deterministic
    if best is None or best.ratio is None:
        return "no"
    return f"no; at {wording.ratio(best.ratio.value)} the time"


def device_limits(content: ReportContent) -> Table:
    """Return the measured limits, and the peaks by the data sheet."""
    device = content.device
    reached = measured_limits(problem.entry for problem in content.problems if problem.entry)
    rows = []
    for name, text, peak in (
        ("read", wording.bandwidth, device.peak_gb_per_s),
        ("copy", wording.bandwidth, device.peak_gb_per_s),
        ("ffma", wording.arithmetic, device.peak_gflop_per_s),
    ):
        rates = listed(text(rate) for rate in reached.get(name, ()))
        if rates:
            known = text(peak) if peak else NONE
            rows.append({"Limit": limit_words(name), "Measured": rates, "Peak by clocks": known})
    return Table.of(rows)


def provenance(content: ReportContent) -> Table:
    """Return what a person needs to measure again."""
    device, about = content.device, content.record.provenance
    run = dict(content.run)
    entries = [problem.entry for problem in content.problems if problem.entry]
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
        "Inputs": run.get("inputs", ""),
        "SM clock": _clocks(trials),
        "Throttled": _throttled(trials),
        "Clock change": _clock_change(trials),
        "Objective": "" if content.record.objective == TIME else content.record.objective,
        "Power limit": _power_limit(entries),
        "Timing": run.get("timing") or listed(entry.race.timing for entry in entries),
        "Source (sha256)": ", ".join(source[:16] for source in sources.split(", ")),
        "Space (sha256)": content.space.fingerprint[:16] if content.space else "",
    }
    rows = [{"What": name, "Value": wording.one_line(text)} for name, text in named.items() if text]
    return Table.of(rows, words="Value", wide="Value")


def _short(commit: str) -> str:
    """Return a commit as git abbreviates it in long histories, and whether files differed from it."""
    name, *dirty = commit.partition("-")
    return "".join([name[:12], *dirty])


def _power_limit(entries: Sequence[TunedProblem]) -> str:
    """Return the allowed power while energy was measured; empty where it was not."""
    energies = [entry.winner.energy for entry in entries]
    limits = sorted({energy.limit_w for energy in energies if energy and energy.limit_w})
    return listed(f"{wording.number(limit_w)} W" for limit_w in limits)


def _clocks(trials: Sequence[Measurement]) -> str:
    """Return the clocks around the measurements; empty where the device does not say."""
    clocks = [trial.clocks.sm_mhz for trial in trials if trial.clocks.sm_mhz is not None]
    if not clocks:
        return ""
    low, high = min(clocks), max(clocks)
    return f"{low} MHz" if low == high else f"{low} to {high} MHz"


def _throttled(trials: Sequence[Measurement]) -> str:
    """Return how many measurements were throttled, and why."""
    found = [trial.clocks.throttle_reasons for trial in trials if trial.clocks.throttle_reasons]
    reasons = listed(sorted({reason for reasons in found for reason in reasons}))
    return f"{len(found)} of {len(trials)} measurements ({reasons})" if found else ""


def _clock_change(trials: Sequence[Measurement]) -> str:
    """Return how much the device sped up or slowed down; empty where the reference was not timed again."""
    count = sum(trial.recheck is not None for trial in trials)
    often = "once" if count == 1 else plural(count, "time")
    return (
        f"{clock_change_words(clock_changes(trials))}: a reference timed again {often}"
        if count
        else ""
    )
