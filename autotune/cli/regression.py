"""`autotune check-tuned`: check tuned entries for regressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autotune.cli import emit_json, warn
from autotune.cli.console import FLEET, JSON, SPACES, print_table, words
from autotune.cli.upkeep import ARCHS, DEVICES, KERNELS, MAX_HOURS, retune_options
from autotune.errors import AutotuneError, RegressionError, UsageError

if TYPE_CHECKING:
    from autotune.retune.gate import CheckedEntry


@click.command("check-tuned")
@KERNELS
@click.option(
    "--threshold",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    metavar="PERCENT",
    help="The slowdown against the record that counts as a regression.",
)
@MAX_HOURS
@DEVICES
@ARCHS
@FLEET
@SPACES
@JSON
def check_tuned(
    kernels: tuple[str, ...],
    threshold: float,
    max_hours: float,
    selectors: tuple[str, ...],
    archs: tuple[str, ...],
    fleet: str | None,
    spaces: Path | None,
    as_json: bool,
) -> None:
    """Verify and time the tuned entries of KERNEL, or of all kernels, against their records.

    Checks all configurations that lookup answers with on this device. Each winner is verified again, and timed in
    turn with its runners-up; configurations that answer other sizes are verified. Exit code 5 if a result or a
    recorded launch is wrong, if a winner is surely slower, or if the kernel changed after it was tuned. A loss that
    noise neither shows nor excludes is undecided, with exit code 0.

    \b
    autotune check-tuned
    autotune check-tuned sgemm --threshold 3
    """
    from autotune.retune import retuning
    from autotune.retune.stale import StaleQuery, find_devices

    options = retune_options(fleet, max_hours, kernels)
    query = StaleQuery(find_devices(selectors, archs, options.fleet), kernels, spaces)
    checked, failed = retuning.check_tuned(query, options, threshold / 100)
    for name, message in failed.items():
        warn(f"{name} cannot be compared with its record: {message}")
    rows = [_checked_row(found) for found in checked]
    if as_json:
        emit_json(rows)
    elif rows:
        _show_checked(rows)
    else:
        click.echo("nothing is tuned for this device yet; run: autotune run sgemm", err=True)
    if kernels and not rows:
        raise UsageError(
            f"no entry of {', '.join(kernels)} to check; run: autotune run {kernels[0]}"
        )
    _require_no_regression(rows)


def _require_no_regression(rows: Sequence[Mapping[str, Any]]) -> None:
    regressions = [row for row in rows if row["verdict"] in ("slower", "wrong")]
    if regressions:
        first = regressions[0]
        names = " ".join(dict.fromkeys(row["kernel"] for row in regressions))
        raise RegressionError(
            f"{len(regressions)} of {len(rows)} tuned entries regressed, first {first['kernel']} "
            f"({words(first['problem'])}): {first['message']}; tune them again: autotune retune {names}"
        )
    stale = [row for row in rows if row["verdict"] == "stale"]
    if stale:
        first = stale[0]
        names = " ".join(dict.fromkeys(row["kernel"] for row in stale))
        raise RegressionError(
            f"{len(stale)} of {len(rows)} tuned entries are stale, first {first['kernel']} "
            f"({words(first['problem'])}): {first['message']}; tune them again: autotune retune {names}"
        )
    failed = [row for row in rows if row["verdict"] == "failed"]
    if failed:
        first = failed[0]
        raise AutotuneError(
            f"{len(failed)} of {len(rows)} tuned entries were not measured, first {first['kernel']}: "
            f"{first['message']}"
        )


def _checked_row(checked: CheckedEntry) -> dict[str, Any]:
    target, found = checked.target, checked.remeasurement
    known, slowdown, again = target.known, found and found.slowdown, found and found.winner
    ratio, relative = slowdown and slowdown.ratio, slowdown and slowdown.relative
    assert known is not None
    recorded_on = known.entry.origin.device_uuid or known.record.device.uuid
    here = (found and found.device_uuid) or target.device.uuid
    return {
        "kernel": target.kernel.name,
        "device": target.device.name,
        "problem": dict(target.problem),
        "layer": known.layer,
        "config": dict(checked.other or known.entry.configuration),
        "verdict": str(checked.verdict),
        "message": checked.message,
        "recorded_ms": None if checked.other else known.entry.median_ms,
        "recorded_interval_ms": None if checked.other else known.entry.winner.time_ms.interval,
        "now_ms": again and again.time_ms.value,
        "now_interval_ms": again and again.time_ms.interval,
        "ratio": ratio and ratio.value,
        "ratio_interval": ratio and ratio.interval,
        "relative": relative and relative.value,
        "relative_interval": relative and relative.interval,
        "other_gpu": bool(recorded_on and here and recorded_on != here),
    }


def _show_checked(rows: Sequence[Mapping[str, Any]]) -> None:
    print_table(
        {
            "kernel": row["kernel"],
            "problem": words(row["problem"]),
            "recorded ms": row["recorded_ms"],
            "ms now": row["now_ms"],
            "now / recorded": "{:.3f} ({:.3f} … {:.3f})".format(
                row["ratio"], *row["ratio_interval"]
            )
            if row["ratio"]
            else "",
            "verdict": row["verdict"],
            "from": row["layer"],
            "note": row["message"],
            "": "recorded on another GPU of this model" if row["other_gpu"] else "",
        }
        for row in rows
    )


COMMANDS = {"check-tuned": check_tuned}
