"""`autotune fleet start`, `status`, `stop`: the Dask cluster that ``--fleet`` tunes on."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autotune.cli import emit_json
from autotune.cli.options import JSON, PATH, TRUST
from autotune.cli.tables import print_table
from autotune.errors import AutotuneError, FleetError, UsageError

if TYPE_CHECKING:
    from autotune.fleet.address import Endpoint

#: How long a detached fleet may take to start: ssh to many hosts, or a busy file system.
_START_S = 300.0
#: How long one may take to end, its jobs cancelled.
_STOP_S = 60.0

_FILE = click.option(
    "--file",
    type=PATH,
    help="The scheduler file; default: fleet.json in $XDG_DATA_HOME/autotune.",
)
_WHERE = click.argument("where", required=False)
_TLS = (
    click.option(
        "--tls-ca", metavar="PEM", help="Certificate of the authority that signed all others."
    ),
    click.option("--tls-cert", metavar="PEM", help="Certificate that this side shows."),
    click.option("--tls-key", metavar="PEM", help="Its private key."),
    click.option(
        "--insecure", is_flag=True, help="Accept a scheduler that runs code of whoever reaches it."
    ),
)


def _tls(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_TLS):
        command = option(command)
    return command


@click.group("fleet")
def fleet() -> None:
    """Start, show and stop a fleet: one Dask cluster of GPUs and compilers for `--fleet`.

    \b
    autotune fleet start --local --detach
    autotune fleet start --ssh gpu1,gpu2 --tls-ca ca.pem --tls-cert fleet.pem --tls-key fleet.key
    autotune fleet start --slurm 'partition=gpu, arch=sm_90:4, arch=sm_80:8' --insecure
    autotune fleet status
    autotune fleet stop
    """


@fleet.command("start")
@click.option(
    "--local", is_flag=True, help="A worker for each device of this machine, and one that compiles."
)
@click.option(
    "--device",
    "selectors",
    multiple=True,
    metavar="NAME",
    help="Of --local: cuda:0, cuda:all, opencl:cpu (repeatable); default: all.",
)
@click.option(
    "--compilers",
    type=click.IntRange(min=0),
    help="Of --local: compiler processes; default: a core each, less one for each GPU.",
)
@click.option(
    "--ssh", metavar="HOST,HOST", help="A worker on each host, for all its devices and cores."
)
@click.option(
    "--slurm",
    multiple=True,
    metavar="GROUP",
    help="Jobs with a GPU each, and some that compile: 'partition=gpu, arch=sm_90:4, compilers=2, cores=8' "
    "and any long option of sbatch (repeatable).",
)
@click.option(
    "--host",
    help="Address of this machine that workers reach; default: 127.0.0.1 for --local alone.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Default: any that is free.")
@click.option(
    "--python",
    default=sys.executable,
    help="Python of the workers elsewhere; default: the path of this one.",
)
@_tls
@_FILE
@click.option(
    "--detach",
    is_flag=True,
    help="Go on in the background, with fleet.log beside the scheduler file.",
)
def start(
    local: bool,
    selectors: tuple[str, ...],
    compilers: int | None,
    ssh: str | None,
    slurm: tuple[str, ...],
    host: str | None,
    port: int,
    python: str,
    tls_ca: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    insecure: bool,
    file: Path | None,
    detach: bool,
) -> None:
    """Start a scheduler here and its workers; stay until `autotune fleet stop` or Ctrl-C.

    Whoever reaches a scheduler without TLS runs code as you on every worker: outside of this machine
    it takes --tls-ca, --tls-cert and --tls-key, or --insecure.

    \b
    autotune fleet start --local
    autotune fleet start --local --device cuda:0 --device opencl:cpu --detach
    """
    from autotune.fleet.address import Tls, default_file, quiet

    file = (file or default_file()).absolute()
    if not (local or ssh or slurm):
        raise UsageError("fleet start: say where: --local, --ssh HOST,HOST or --slurm GROUP")
    if detach:
        _detached(file)
        return
    quiet()
    from distributed.utils import get_ip

    from autotune.fleet import cluster

    tls = Tls.given(tls_ca, tls_cert, tls_key)
    here = host or (get_ip() if ssh or slurm else "127.0.0.1")
    workers: dict[str, Any] = {}
    if local:
        workers |= cluster.local_workers(_devices(selectors), compilers, here)
    if ssh:
        workers |= cluster.ssh_workers([name.strip() for name in ssh.split(",")], python)
    if slurm:
        groups = [cluster.SlurmGroup.parse(text) for text in slurm]
        workers |= cluster.slurm_workers(groups, python, tls)
    listening = cluster.Listening(here, port, tls, insecure)
    cluster.serve(workers, listening, file, _say_ready)
    click.echo("the fleet was stopped", err=True)


def _devices(selectors: tuple[str, ...]) -> list[Any]:
    """Devices of this machine that were named; else all of the first backend that has any."""
    from autotune.devices.choose import backend, choose_devices
    from autotune.devices.device import BACKENDS

    if selectors:
        return [device for selector in selectors for device in choose_devices(selector)]
    return next((found for name in BACKENDS if (found := backend(name).devices())), [])


def _say_ready(scheduler: Endpoint) -> None:
    click.echo(
        f"fleet: {scheduler.address}, {_workers(scheduler.asked)}; scheduler file: {scheduler.file}"
    )
    if scheduler.dashboard:
        click.echo(f"dashboard: {scheduler.dashboard}")
    click.echo("tune on it: autotune run KERNEL --fleet " + str(scheduler.file), err=True)


def _workers(count: int) -> str:
    return f"{count} worker{'' if count == 1 else 's'}"


def _detached(file: Path) -> None:
    """Run the same command in a session of its own; wait until its fleet is there."""
    from autotune.fleet.address import find
    from autotune.retune.schedule import program

    file.parent.mkdir(parents=True, exist_ok=True)
    log = file.with_suffix(".log")
    arguments = [word for word in sys.argv[1:] if word != "--detach"]
    log.unlink(missing_ok=True)
    with log.open("ab") as written:
        child = subprocess.Popen(
            [*program(), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline_s = time.monotonic() + _START_S
    try:
        while time.monotonic() < deadline_s and child.poll() is None:
            if file.exists() and (scheduler := find(str(file), insecure=True)).process == child.pid:
                _say_ready(scheduler)
                return
            time.sleep(0.1)
    except BaseException:  # Ctrl-C, too: what nobody waited for is not left behind
        child.terminate()
        raise
    code, said = child.poll(), log.read_text(errors="replace").strip().splitlines()
    if code is None:
        child.terminate()
        raise FleetError(f"the fleet was not there after {_START_S:.0f} s; see {log}")
    last = said[-1].removeprefix("error: ") if said else f"it ended with {code}"
    raise (UsageError if code == 2 else FleetError)(f"{last} (all of it: {log})")


@fleet.command("status")
@_WHERE
@_tls
@TRUST
@JSON
def status(
    where: str | None,
    tls_ca: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    insecure: bool,
    as_json: bool,
) -> None:
    """Show the workers of a fleet: devices, what each does, rates and faults, who was set aside.

    WHERE is a scheduler file or an address; default: the fleet that was started here. Rates are of
    the time that a device was busy; compile rates, of one core.

    \b
    autotune fleet status
    autotune fleet status tls://gpu1:8786 --json
    """
    from autotune.fleet.address import Tls, connected, find
    from autotune.fleet.status import workers

    scheduler = find(where, Tls.given(tls_ca, tls_cert, tls_key), insecure=insecure)
    with connected(scheduler) as client:
        rows = workers(client)
    if as_json:
        emit_json({**_facts(scheduler), "workers": rows})
        return
    here = f"{len(rows)} of {_workers(scheduler.asked)}" if scheduler.asked else _workers(len(rows))
    click.echo(f"fleet {scheduler.words}: {here}")
    if scheduler.dashboard:
        click.echo(
            f"dashboard {scheduler.dashboard}" + (f" on {scheduler.host}" if scheduler.host else "")
        )
    if not rows:
        click.echo("no worker is there yet; jobs may wait in their queue: squeue --me", err=True)
        return
    print_table(line for row in rows for line in _lines(row))
    for row in rows:
        if row["set_aside"]:
            click.echo(f"set aside: {row['name']} at {row['address']}: {row['set_aside']}")


def _facts(scheduler: Endpoint) -> dict[str, Any]:
    names = ("address", "dashboard", "host", "process", "started", "file")
    return {**{name: getattr(scheduler, name) for name in names}, "asked": scheduler.asked}


def _lines(row: dict[str, Any]) -> list[dict[str, object]]:
    """A line for each device of a worker, and one for its compilers."""
    if row["version"] is None:
        return [_line(row, {"doing": "no worker of autotune, or just starting"})]
    lines = [
        {
            "device": f"{device['backend']}:{device['index']} {device['name']} ({device['arch']})",
            "doing": "set aside" if row["set_aside"] else device["doing"] or "waits",
            "done": device["measured"],
            "per s": device["measured_per_busy_s"],
            "faults": device["failed"],
        }
        for device in row["devices"]
    ]
    if row["compilers"] or not lines:
        compilers = {
            "device": f"{row['compilers']} compilers",
            "done": row["compiled"],
            "per s": row["compiled_per_core_s"],
            "faults": row["compile_failed"],
        }
        lines.append(compilers)
    return [_line(row, values) for values in lines]


def _line(row: dict[str, Any], values: dict[str, object]) -> dict[str, object]:
    columns = ("device", "doing", "done", "per s", "faults")
    return {"worker": row["name"], **{name: values.get(name) for name in columns}}


@fleet.command("stop")
@_WHERE
@_tls
@TRUST
def stop(
    where: str | None,
    tls_ca: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    insecure: bool,
) -> None:
    """Stop a fleet: its scheduler, its workers, and its jobs. What was measured is kept.

    \b
    autotune fleet stop
    """
    from autotune.fleet.address import Tls, connect, find, is_taken

    scheduler = find(where, Tls.given(tls_ca, tls_cert, tls_key), insecure=insecure)
    if scheduler.file and not is_taken(scheduler):
        scheduler.file.unlink()
        click.echo(f"{scheduler.words}: had ended already; its scheduler file is removed")
        return
    connect(scheduler).shutdown()
    deadline_s = time.monotonic() + _STOP_S
    while is_taken(scheduler) or (scheduler.file and scheduler.host and scheduler.file.exists()):
        if time.monotonic() > deadline_s:
            raise AutotuneError(
                f"{scheduler.words}: still ending after {_STOP_S:.0f} s; process {scheduler.process} does it"
            )
        time.sleep(0.1)
    click.echo(f"{scheduler.words}: stopped")


COMMANDS = {"fleet": fleet}
