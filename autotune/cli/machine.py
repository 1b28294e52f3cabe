"""`autotune doctor` and `autotune cache`: the state of this machine, and the files kept on its disk."""

from __future__ import annotations

import click

from autotune.cli import emit_json
from autotune.cli.options import JSON
from autotune.cli.tables import print_table


@click.command("doctor")
@click.option("--limits", is_flag=True, help="Measure what the device reaches, once, and keep it.")
@click.option("--device", metavar="NAME", help="Device to measure; default: the first usable.")
@JSON
def doctor(limits: bool, device: str | None, as_json: bool) -> None:
    """Check this machine, and print the command that fixes each problem.

    \b
    autotune doctor
    autotune doctor --limits
    """
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


@click.command("cache")
@click.option(
    "--clear",
    type=click.Choice(["all", "data", "binaries"]),
    is_flag=False,
    flag_value="all",
    help="Remove what no run in progress works with: all of it, or one kind.",
)
@JSON
def cache(clear: str | None, as_json: bool) -> None:
    """Show what is kept so that it need not be made again, or remove it.

    AUTOTUNE_CACHE_SIZE (default 4G) bounds the data sets that are kept between two runs, and a quarter
    of it the compiled binaries: what was used longest ago goes first. AUTOTUNE_CACHE_DIR is where.

    \b
    autotune cache
    autotune cache --clear
    autotune cache --clear data
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


COMMANDS = {"doctor": doctor, "cache": cache}
