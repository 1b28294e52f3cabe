"""`autotune runs`: what ran, with what command, and how it ended."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

import click

from autotune.cli import emit_json
from autotune.cli.options import JSON, kernel_names

if TYPE_CHECKING:
    from autotune.store import PastRun


@click.command("runs")
@click.argument("kernel", required=False, shell_complete=kernel_names)
@click.option("--device", metavar="NAME", help="Only this device, by its name.")
@click.option(
    "--last",
    type=click.IntRange(1),
    default=20,
    metavar="N",
    show_default=True,
    help="Only the newest N.",
)
@JSON
def runs(kernel: str | None, device: str | None, last: int, as_json: bool) -> None:
    """List what ran, of KERNEL or of all, oldest first, and how it ended.

    finished: by itself; budget: its time or evaluations were spent; interrupted: by Ctrl-C or a signal;
    failed: by an error, or nothing was right; killed: without a word.

    \b
    autotune runs
    autotune runs sgemm --last 5 --json
    """
    from autotune.cli.tables import print_table
    from autotune.errors import UsageError, unknown
    from autotune.kernel.catalog import space_files
    from autotune.store import Store, default_url

    with Store.open(default_url()) as store:
        found = store.runs(kernel, device, last)
    if as_json:
        emit_json([{**asdict(run), "seconds": run.seconds} for run in found])
    elif found:
        print_table(
            {
                "run": run.id,
                "kernel": run.kernel,
                "started": _local(run.started),
                "took": _took(run),
                "rows": str(run.rows),
                "ended": run.ended,
                "device": run.device_name,
                "command": run.command,
            }
            for run in found
        )
    elif kernel and kernel not in (known := space_files()):
        raise UsageError(unknown("kernel", kernel, sorted(known)))
    else:
        click.echo(f"nothing ran yet; run: autotune run {kernel or 'KERNEL'}", err=True)


def _local(moment: str) -> str:
    """A moment by the clock of this machine, to the minute."""
    return f"{datetime.fromisoformat(moment).astimezone():%Y-%m-%d %H:%M}"


def _took(run: PastRun) -> str:
    """How long a run took; of one that was killed, until its newest row."""
    if run.seconds is None:
        return ""
    minutes, seconds = divmod(round(run.seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


COMMANDS = {"runs": runs}
