"""`autotune doctor store` and `merge`: the results store; the list of runs for `autotune results`."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime

import click

from autotune.cli import emit_json
from autotune.cli.options import JSON
from autotune.cli.tables import print_table


@click.command("store")
@JSON
def store(as_json: bool) -> None:
    """Show where the results store is, and its rows by kernel.

    AUTOTUNE_STORE names the store: a SQLite file or postgresql://user@host/database. Passwords are
    read from ~/.pgpass, PGPASSWORD or AUTOTUNE_STORE, and printed nowhere.

    \b
    autotune doctor store
    """
    from autotune.store import Store, default_url

    with Store.open(default_url()) as opened:
        kernels = opened.rows_by_kernel()
    rows = sum(kernels.values())
    if as_json:
        emit_json({"store": str(opened.address), "rows": rows, "kernels": kernels})
        return
    click.echo(f"{opened.address}: {rows:,} rows")
    if kernels:
        print_table({"kernel": name, "rows": f"{count:,}"} for name, count in kernels.items())


@click.command("merge")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="INTO")
def merge(source: str, target: str) -> None:
    """Add to the results store INTO the rows of FROM that it lacks: files or servers.

    Rows are compared by content. Merging again adds nothing, and continues a merge that was stopped.
    FROM is not changed. Of two rows of one configuration the later one is remembered.

    \b
    autotune doctor merge node7.sqlite all.sqlite
    autotune doctor merge all.sqlite postgresql://tuner@db.example.com/autotune
    """
    from autotune.errors import UsageError
    from autotune.store import Store, merging
    from autotune.store.address import Address
    from autotune.store.database import WAIT_S

    addresses = [Address.parse(each, WAIT_S) for each in (source, target)]
    for address in addresses:
        if address.holds_secret:
            raise UsageError(
                f"{address}: every user of this machine sees the password of a command line; leave "
                "it out, and put it into ~/.pgpass or PGPASSWORD"
            )
    if addresses[0].url == addresses[1].url:
        raise UsageError(f"{addresses[0]}: FROM and INTO are one store")
    with Store.open(source, must_exist=True) as first, Store.open(target) as second:
        merged = merging.merge(first, second)
    click.echo(
        f"{merged.rows:,} rows of {first.address}: {merged.added:,} added to {second.address}, "
        f"{merged.rows - merged.added:,} were there"
    )


def list_runs(kernel: str | None, device: str | None, last: int, as_json: bool) -> None:
    """Print the newest runs, oldest first, and how each ended: `autotune results --runs`."""
    from autotune.errors import UsageError, unknown
    from autotune.kernel.catalog import space_files
    from autotune.store import Store, default_url

    with Store.open(default_url()) as opened:
        found = opened.runs(kernel, device, last)
    if as_json:
        emit_json([{**asdict(run), "seconds": run.seconds} for run in found])
    elif found:
        print_table(
            {
                "run": run.id,
                "kernel": run.kernel,
                "started": f"{datetime.fromisoformat(run.started).astimezone():%Y-%m-%d %H:%M}",
                "took": "" if run.seconds is None else _duration(round(run.seconds)),
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
        click.echo(f"no runs yet; run: autotune run {kernel or 'KERNEL'}", err=True)


def _duration(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
