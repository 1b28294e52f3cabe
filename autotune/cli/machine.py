"""`autotune doctor`: what works on this machine."""

from __future__ import annotations

import click

from autotune.cli import emit_json


@click.command("doctor")
@click.option("--limits", is_flag=True, help="Measure what the device reaches, once, and keep it.")
@click.option("--device", metavar="NAME", help="Device to measure; default: the first usable.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
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


def _limits(device: str | None, as_json: bool) -> None:
    import msgspec

    from autotune.devices.choose import choose_device
    from autotune.measure.probe import limits_of

    found = limits_of(choose_device(device), remeasure=True)
    if as_json:
        emit_json(msgspec.to_builtins(found))
        return
    click.echo(f"{found.name}, measured on {found.measured_on}")
    click.echo(f"  read            {found.read_gb_per_s:10.4g} GB/s")
    click.echo(f"  copy            {found.copy_gb_per_s:10.4g} GB/s (read + written)")
    click.echo(f"  FFMA            {found.ffma_gflop_per_s / 1000:10.4g} TFLOP/s")
    click.echo(f"  launch latency  {found.launch_us:10.4g} µs")


COMMANDS = {"doctor": doctor}
