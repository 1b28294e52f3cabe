"""`autotune doctor`: what works on this machine."""

from __future__ import annotations

import click

from autotune.cli import emit_json
from autotune.cli.options import JSON


@click.command("doctor")
@click.option("--limits", is_flag=True, help="Measure what the device reaches, once, and keep it.")
@click.option("--device", metavar="NAME", help="Device to measure; default: the first usable.")
@JSON
def doctor(limits: bool, device: str | None, as_json: bool) -> None:
    """Say what works on this machine, and the command that mends the rest.

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
    marks = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "bad": ("✗", "red")}
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
    from autotune.store import Store, default_url

    device = choose_device(name)
    with Store.open(default_url()) as store:
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


COMMANDS = {"doctor": doctor}
