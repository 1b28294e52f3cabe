"""`autotune doctor`: check this machine, its cache and its results store."""

from __future__ import annotations

import click

from autotune.cli import emit_json, storage
from autotune.cli.options import JSON
from autotune.cli.tables import print_table


@click.group("doctor", invoke_without_command=True)
@click.option("--limits", is_flag=True, help="Measure what the device reaches, once, and keep it.")
@click.option("--device", metavar="NAME", help="Device to measure; default: the first usable.")
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
    from dataclasses import asdict

    from autotune.devices.choose import choose_device
    from autotune.measure.limits import Limits
    from autotune.run.limits import known_limits, measure_limits
    from autotune.store import default_url, open_for_runs

    device = choose_device(name)
    with open_for_runs(default_url()) as store:
        measure_limits(device, store, fresh=True)
    limits = known_limits(device) or Limits()
    if as_json:
        emit_json({"name": device.name, "uuid": device.uuid, **asdict(limits)})
        return
    click.echo(device.name)
    shown = (
        ("read", limits.read_gb_per_s, "GB/s"),
        ("copy", limits.copy_gb_per_s, "GB/s, read + written"),
        ("ffma", limits.ffma_gflop_per_s, "GFLOP/s"),
    )
    for limit, rate, unit in shown:
        words = f"{rate:10.4g} {unit}  ({limits.reached_by[limit]})" if rate else "not known"
        click.echo(f"  {limit}  {words}")


@doctor.command("cache")
@click.option(
    "--clear",
    type=click.Choice(["all", "data", "binaries"]),
    is_flag=False,
    flag_value="all",
    help="Remove files that no run in progress uses: all, or one kind.",
)
@JSON
def cache(clear: str | None, as_json: bool) -> None:
    """Show the size of cached data sets and binaries, or remove them.

    AUTOTUNE_CACHE_DIR names the folder. AUTOTUNE_CACHE_SIZE (default 4G) limits the data sets that stay
    between two runs; a quarter of it limits the binaries. The least recently used files go first.

    \b
    autotune doctor cache
    autotune doctor cache --clear
    autotune doctor cache --clear data
    """
    from autotune.files import cache_folder
    from autotune.measure.cache import BINARIES, DATA, entries, limit_bytes
    from autotune.measure.cache import clear as clear_kind
    from autotune.report import wording

    for kind in (DATA, BINARIES) if clear == "all" else (clear,) if clear else ():
        gone = sum(entry.size_bytes for entry in clear_kind(kind))
        click.echo(f"{kind}: {wording.size(gone)} removed", err=True)
    rows = []
    for kind in (DATA, BINARIES):
        sizes = [entry.size_bytes for entry in entries(kind)]
        row = {"kind": kind, "kept": len(sizes), "folder": str(cache_folder(kind))}
        rows.append((row, {"size": sum(sizes), "limit": limit_bytes(kind)}))
    if as_json:
        emit_json([{**row, **{f"{name}_bytes": n for name, n in of.items()}} for row, of in rows])
    else:
        print_table(
            {**row, **{name: wording.size(n) for name, n in of.items()}} for row, of in rows
        )


doctor.add_command(storage.store)
doctor.add_command(storage.merge)

COMMANDS = {"doctor": doctor}
