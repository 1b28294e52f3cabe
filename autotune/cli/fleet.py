"""`autotune fleet start`: run a Dask cluster of this machine's devices, for `--fleet`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.cli.options import PATH
from autotune.errors import UsageError, needing

if TYPE_CHECKING:
    from autotune.devices.device import Device


@click.group("fleet", invoke_without_command=True)
@click.pass_context
def fleet(context: click.Context) -> None:
    """Run a fleet on this machine: a Dask cluster of its GPUs and compilers, for `--fleet`.

    For many machines start Dask there, with our preload: see docs/fleet.md. `autotune doctor`
    shows the fleet that runs here.

    \b
    autotune fleet start --local
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@fleet.command("start")
@click.option("--local", is_flag=True, help="On this machine; the only place that there is.")
@click.option(
    "--device",
    "selectors",
    multiple=True,
    metavar="NAME",
    help="cuda:0, cuda:all, opencl:cpu (repeatable); default: all GPUs, else the CPU.",
)
@click.option(
    "--compilers",
    type=click.IntRange(min=0),
    help="Compiler processes; default: a core each, less one for each GPU.",
)
@click.option(
    "--file",
    type=PATH,
    help="The scheduler file; default: fleet.json in $XDG_DATA_HOME/autotune.",
)
def start(
    local: bool, selectors: tuple[str, ...], compilers: int | None, file: Path | None
) -> None:
    """Start a scheduler and a worker for each device; stay until Ctrl-C.

    Other users of this machine reach the scheduler, too, and run code as you, unless Dask's
    configuration has certificates: see docs/fleet.md.

    \b
    autotune fleet start --local
    autotune fleet start --local --device cuda:0 --device opencl:cpu
    """
    from autotune.fleet.address import default_file, quiet

    if not local:
        raise UsageError(
            "fleet start: add --local; other machines are started by Dask: see docs/fleet.md"
        )
    with needing("a fleet"):
        quiet()
        from autotune.fleet.cluster import serve
    scheduler_file = (file or default_file()).absolute()

    def say_ready(address: str, workers: int, dashboard: str) -> None:
        click.echo(f"fleet: {address}, {workers} worker{'' if workers == 1 else 's'}")
        if dashboard:
            click.echo(f"dashboard: {dashboard}")
        click.echo(f"tune on it: autotune run KERNEL --fleet {scheduler_file}", err=True)

    serve(_devices(selectors), compilers, scheduler_file, say_ready)


def _devices(selectors: tuple[str, ...]) -> list[Device]:
    """Return the named devices of this machine; default: all of the first backend that has any."""
    from autotune.devices.choose import backend, choose_devices
    from autotune.devices.device import BACKENDS

    if selectors:
        return [device for selector in selectors for device in choose_devices(selector)]
    return next((found for name in BACKENDS if (found := backend(name).devices())), [])


COMMANDS = {"fleet": fleet}
