"""`autotune doctor`, `fleet`: this machine, its cache, its results store and its devices."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autotune.cli import emit_json
from autotune.cli.console import JSON, PATH, print_table
from autotune.errors import UsageError, needing

if TYPE_CHECKING:
    from autotune.devices.device import Device


@click.group("doctor", invoke_without_command=True)
@click.option(
    "--limits",
    is_flag=True,
    help="Measure and store a GPU's memory bandwidth, FP32 rate and tensor core rate (CUDA).",
)
@click.option(
    "--device", metavar="NAME", help="Device to measure with --limits; default: the first usable."
)
@JSON
@click.pass_context
def doctor(context: click.Context, limits: bool, device: str | None, as_json: bool) -> None:
    """Check this machine, and print the command that fixes each problem.

    \b
    autotune doctor
    autotune doctor --limits
    autotune doctor cache --clear
    """
    if context.invoked_subcommand:
        return
    if limits:
        _limits(device, as_json)
        return
    from autotune.doctor import findings

    found = findings()
    if as_json:
        emit_json([vars(finding) for finding in found])
        return
    marks = {
        "ok": ("✓", "green"),
        "absent": ("–", "bright_black"),
        "warn": ("!", "yellow"),
        "bad": ("✗", "red"),
    }
    for finding in found:
        mark, colour = marks[finding.state]
        click.secho(f"{mark} ", fg=colour, nl=False)
        click.echo(f"{finding.topic}: {finding.text}")
        if finding.remedy:
            click.echo(f"    {finding.remedy}")


def _limits(name: str | None, as_json: bool) -> None:
    from autotune.devices.choose import choose_device
    from autotune.run.device_limits import known_limits
    from autotune.run.run import measure_limits
    from autotune.store import default_url, open_for_runs

    device = choose_device(name)
    with open_for_runs(default_url()) as store:
        measure_limits(device, store)
    limits = known_limits(device)
    if as_json:
        emit_json({"name": device.name, "uuid": device.uuid, "limits": dict(limits)})
        return
    click.echo(device.name)
    units = {"read": "GB/s", "copy": "GB/s, read + written", "ffma": "GFLOP/s", "tensor": "GFLOP/s"}
    for limit, unit in units.items():
        words = f"{limits[limit]:10.4g} {unit}" if limit in limits else "not measured"
        click.echo(f"  {limit:6}  {words}")


@doctor.command("cache")
@click.option(
    "--clear",
    type=click.Choice(["all", "data", "binaries"]),
    is_flag=False,
    flag_value="all",
    help="Remove data, binaries or both, except files that a run is using.",
)
@JSON
def cache(clear: str | None, as_json: bool) -> None:
    """Show the size of cached data sets and binaries, or remove them.

    AUTOTUNE_CACHE_DIR names the folder. AUTOTUNE_CACHE_SIZE (default 4G) is the limit for data sets; the
    limit for binaries is a quarter of it. autotune removes the least recently used files first.

    \b
    autotune doctor cache
    autotune doctor cache --clear
    autotune doctor cache --clear data
    """
    from autotune.cache import BINARIES, DATA, entries, limit_bytes
    from autotune.cache import clear as clear_kind
    from autotune.files import cache_folder
    from autotune.report import wording

    for kind in (DATA, BINARIES) if clear == "all" else (clear,) if clear else ():
        gone = sum(entry.size_bytes for entry in clear_kind(kind))
        click.echo(f"{kind}: {wording.size(gone)} removed", err=True)
    rows: list[dict[str, Any]] = []
    for kind in (DATA, BINARIES):
        sizes = [entry.size_bytes for entry in entries(kind)]
        kept = {"kind": kind, "kept": len(sizes), "folder": str(cache_folder(kind))}
        rows.append({**kept, "size_bytes": sum(sizes), "limit_bytes": limit_bytes(kind)})
    if as_json:
        emit_json(rows)
        return
    for row in rows:
        row["size"], row["limit"] = (
            wording.size(row.pop(name)) for name in ("size_bytes", "limit_bytes")
        )
    print_table(rows)


@doctor.command("store")
@JSON
def store(as_json: bool) -> None:
    """Show the address of the results store, and its rows by kernel.

    AUTOTUNE_STORE names the store: a SQLite file or postgresql://user@host/database. Passwords are
    read from ~/.pgpass, PGPASSWORD or AUTOTUNE_STORE, and never printed.

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


@doctor.command("merge")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="INTO")
def merge(source: str, target: str) -> None:
    """Copy missing rows from the results store FROM to INTO. A store is a file or a server.

    A repeated merge adds no duplicates. If a merge is interrupted, repeat it to continue. FROM stays as
    it is.

    \b
    autotune doctor merge node7.sqlite all.sqlite
    autotune doctor merge all.sqlite postgresql://tuner@db.example.com/autotune
    """
    from autotune.store import Store
    from autotune.store.connection import Address
    from autotune.store.database import WAIT_S
    from autotune.store.sharing import merge as merge_stores

    addresses = [Address.parse(text, WAIT_S) for text in (source, target)]
    for address in addresses:
        if address.holds_secret:
            raise UsageError(
                f"{address}: other users of this machine can see a password on the command line; put it "
                "into ~/.pgpass or PGPASSWORD instead"
            )
    if addresses[0].url == addresses[1].url:
        raise UsageError(f"{addresses[0]}: FROM and INTO are the same store; name two stores")
    with Store.open(source, must_exist=True) as first, Store.open(target) as second:
        merged = merge_stores(first, second)
    click.echo(
        f"{merged.rows:,} rows of {first.address}: {merged.added:,} added to {second.address}, "
        f"{merged.rows - merged.added:,} were already there"
    )


@click.command("fleet")
@click.option(
    "--device",
    "selectors",
    multiple=True,
    metavar="NAME",
    help="Device with a worker: cuda:0, cuda:all or opencl:cpu (repeatable); default: all GPUs, else "
    "the CPU.",
)
@click.option(
    "--compilers",
    type=click.IntRange(min=0),
    help="Compiler processes; default: the number of cores minus the number of GPUs.",
)
@click.option(
    "--file",
    type=PATH,
    help="Scheduler file to write; default: $XDG_DATA_HOME/autotune/fleet.json.",
)
@click.option(
    "--no-tls",
    is_flag=True,
    help="Use no certificate: every user of this machine can run code as you.",
)
def fleet(
    selectors: tuple[str, ...], compilers: int | None, file: Path | None, no_tls: bool
) -> None:
    """Run a fleet on this machine: a Dask cluster of its GPUs and compilers.

    Starts a scheduler and a worker for each device, and runs until Ctrl-C. Other commands use the fleet with
    --fleet; autotune doctor shows it. For a fleet of several machines see docs/fleet.md.

    Only you can connect: the scheduler file has the key of a certificate made for this fleet, and no other
    user can read it. If Dask's configuration names certificates, the fleet uses those.

    \b
    autotune fleet
    """
    from autotune.fleet.address import OPEN, default_file, quiet

    with needing("a fleet"):
        quiet()
        from autotune.fleet.cluster import serve
    scheduler_file = (file or default_file()).absolute()

    def say_ready(address: str, workers: int, dashboard: str) -> None:
        click.echo(f"fleet: {address}, {workers} worker{'' if workers == 1 else 's'}")
        if dashboard:
            click.echo(f"dashboard: {dashboard}")
        click.echo(
            f"to use it: autotune run KERNEL --fleet {shlex.quote(str(scheduler_file))}", err=True
        )

    if no_tls:
        click.echo(f"warning: {OPEN}", err=True)
    serve(_devices(selectors), compilers, scheduler_file, say_ready, not no_tls)


def _devices(selectors: tuple[str, ...]) -> list[Device]:
    from autotune.devices.choose import backend, choose_devices
    from autotune.devices.device import BACKENDS

    if selectors:
        return [device for selector in selectors for device in choose_devices(selector)]
    return next((found for name in BACKENDS if (found := backend(name).devices())), [])


COMMANDS = {"doctor": doctor, "fleet": fleet}
