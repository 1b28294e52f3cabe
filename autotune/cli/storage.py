"""`autotune store`: what the results store holds, its conversion, merging two of them, removing what is old."""

from __future__ import annotations

import sys
from contextlib import ExitStack

import click

from autotune.cli import emit_json
from autotune.cli.options import JSON
from autotune.cli.tables import print_table


@click.group("store")
def store() -> None:
    """Say what the results store holds; convert, merge and thin it.

    AUTOTUNE_STORE is where it is: a SQLite file or postgresql://user@host/database. Passwords are read
    from ~/.pgpass, PGPASSWORD or AUTOTUNE_STORE, and printed nowhere.

    \b
    autotune store info
    autotune store migrate
    autotune store vacuum --older-than 90d --dry-run
    """


@store.command("info")
@JSON
def info(as_json: bool) -> None:
    """Say where the store is, and how much of what is in it.

    \b
    autotune store info
    """
    from dataclasses import asdict

    from autotune.report import wording
    from autotune.store import Store, default_url
    from autotune.store.upkeep import contents

    with Store.open(default_url()) as opened:
        held = contents(opened)
    if as_json:
        emit_json({"store": str(opened.address), **asdict(held)})
        return
    click.echo(f"{opened.address}: schema {held.version}, {wording.size(held.size_bytes)}")
    began = (
        f", from {held.first_run[:10]} to {held.last_run[:10]}"
        if held.first_run and held.last_run
        else ""
    )
    click.echo(f"{wording.count(held.rows)} rows of {wording.count(held.runs)} runs{began}")
    if held.kernels:
        print_table({"kernel": name, "rows": f"{rows:,}"} for name, rows in held.kernels.items())


@store.command("migrate")
def migrate() -> None:
    """Convert the tables of an older autotune to this one's.

    A file is converted when it is opened; a server's tables, which others use too, only by this, and
    by who owns them. Older versions of autotune refuse them then. All rows stay as they are.

    \b
    autotune store migrate
    """
    from autotune.store import Store, default_url
    from autotune.store.schema import VERSION

    with Store.open(default_url(), may_convert=True) as opened:
        found = opened.found_version
    was = "" if found == VERSION else f", was {found}" if found else ", was empty"
    click.echo(f"{opened.address}: schema {VERSION}{was}")


@store.command("merge")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="INTO")
def merge(source: str, target: str) -> None:
    """Add to the store INTO what FROM has and it lacks; files and servers in any direction.

    What is there already is known by its content, so that merging again adds nothing and goes on where
    it was stopped. FROM stays as it is. Of two rows of one configuration the later one is remembered.

    \b
    autotune store merge node7.sqlite all.sqlite
    autotune store merge all.sqlite postgresql://tuner@db.example.com/autotune
    """
    from autotune.errors import UsageError
    from autotune.store import Store
    from autotune.store.address import Address
    from autotune.store.database import WAIT_S
    from autotune.store.merging import merge as merged

    addresses = [Address.parse(each, WAIT_S) for each in (source, target)]
    for address in addresses:
        if address.holds_secret:
            raise UsageError(
                f"{address}: every user of this machine sees the password of a command line; leave "
                "it out, and put it into ~/.pgpass or PGPASSWORD"
            )
    if addresses[0].url == addresses[1].url:
        raise UsageError(f"{addresses[0]}: FROM and INTO are one store")
    with ExitStack() as stack:
        first = stack.enter_context(Store.open(source, must_exist=True))
        second = stack.enter_context(Store.open(target))
        done = merged(first, second, _counted if sys.stderr.isatty() else lambda rows: None)
    click.echo(
        f"{done.rows:,} rows of {first.address}: {done.added:,} added to {second.address}, "
        f"{done.rows - done.added:,} were there"
    )


def _counted(rows: int) -> None:
    click.echo(f"\r{rows:,} rows", nl=False, err=True)


@store.command("vacuum")
@click.option("--older-than", metavar="AGE", help="Remove rows that are older: 90d, 12w, 36h.")
@click.option("--dry-run", is_flag=True, help="Only say how many rows that would be.")
def vacuum(older_than: str | None, dry_run: bool) -> None:
    """Give back the space of what was removed, and remove what is older than AGE.

    A configuration whose rows are gone is measured again where a search comes to it; tuned records are
    files of their own, and stay.

    \b
    autotune store vacuum
    autotune store vacuum --older-than 90d --dry-run
    """
    from autotune.report import wording
    from autotune.retune.stale import age_in_days
    from autotune.store import Store, default_url
    from autotune.store.upkeep import compact, remove_older, size_bytes

    days = age_in_days(older_than) if older_than else None
    with Store.open(default_url()) as opened:
        before = size_bytes(opened)
        rows = 0 if days is None else remove_older(opened, days, dry_run=dry_run)
        if not dry_run:
            compact(opened)
        now = size_bytes(opened)
    would = "would be " if dry_run else ""
    click.echo(
        f"{opened.address}: {rows:,} rows {would}removed; {wording.size(before)}, now {wording.size(now)}"
    )


COMMANDS = {"store": store}
