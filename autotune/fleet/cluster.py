"""Run a fleet of this machine's devices: a Dask scheduler in this process, and worker processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dask
from distributed import Nanny, Scheduler, Security, Status
from distributed.deploy.spec import SpecCluster

from autotune.arrays import usable_cores
from autotune.devices.device import Device
from autotune.errors import FleetError, UsageError
from autotune.fleet.address import Endpoint, find, is_listening, write

#: A silent worker counts as lost after this time; a worker without a scheduler ends after this time.
LOST_AFTER_S = 60
#: Time between two checks that the scheduler still runs.
_POLL_S = 0.5
#: Maximum time for workers to end; later workers end on their own because the scheduler is gone.
_CLOSE_S = 20
#: Environment variables that only the client needs.
_SECRETS = ("AUTOTUNE_STORE", "PGPASSWORD")


def serve(
    devices: Sequence[Device],
    compilers: int | None,
    file: Path,
    ready: Callable[[str, int, str], None],
    has_tls: bool = True,
) -> None:
    """Run a scheduler, a worker for each device and a compiling worker, until Ctrl-C or SIGTERM.

    Dead workers are restarted. The scheduler file is deleted when the fleet ends. It has the certificate that
    the fleet makes for itself, unless Dask's configuration names certificates.

    Parameters
    ----------
    devices : sequence of Device
        The devices that get a worker.
    compilers : int or None
        Processes of the compiling worker; default: the number of cores minus the number of GPUs.
    file : Path
        The scheduler file to write.
    ready : callable
        Called with the address, the number of workers and the URL of Dask's dashboard.
    has_tls : bool
        False: every user of this machine can run code as this user.

    Raises
    ------
    UsageError
        If a fleet with this file already runs.
    FleetError
        If a worker does not start.
    """
    if file.exists() and is_listening(running := find(str(file)).address):
        raise UsageError(
            f"a fleet already runs here: {running} ({file}); end it with Ctrl-C, or start a second one "
            "with --file FILE"
        )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for name in _SECRETS:
        os.environ.pop(name, None)
    os.environ["DASK_LOGGING__DISTRIBUTED"] = "warning"  # for the workers
    file.parent.mkdir(parents=True, exist_ok=True)
    workers = _workers(devices, compilers)
    cluster = _started(workers, has_tls)
    try:
        write(file, Endpoint.of(cluster))
        ready(cluster.scheduler.address, len(workers), cluster.dashboard_link)
        while cluster.scheduler.status is Status.running:
            time.sleep(_POLL_S)
    finally:
        cluster.close(timeout=_CLOSE_S)
        file.unlink(missing_ok=True)


def _workers(devices: Sequence[Device], compilers: int | None) -> dict[str, dict[str, Any]]:
    if compilers is None:
        compilers = max(1, usable_cores() - sum(device.is_cuda for device in devices))
    workers = {
        device.selector: _worker(2, "--device", device.selector, "--compilers", 0)
        for device in devices
    }
    if compilers:
        words = ("--device", "none", "--compilers", compilers)
        workers["compile"] = _worker(max(2, compilers), *words)
    return workers


def _worker(threads: int, *words: object) -> dict[str, Any]:
    options = {
        "host": "127.0.0.1",
        "nthreads": threads,
        "preload": ["autotune.fleet.worker"],
        "preload_argv": [[str(word) for word in words]],
        "memory_limit": 0,  # no limit: Dask would also count the child processes
        "death_timeout": LOST_AFTER_S,
    }
    return {"cls": Nanny, "options": options}


def _started(workers: dict[str, dict[str, Any]], has_tls: bool) -> SpecCluster:
    """Start scheduler and workers."""
    dask.config.set({"distributed.scheduler.worker-ttl": f"{LOST_AFTER_S}s"})
    try:
        security = _security(has_tls)
        for worker in workers.values():
            worker["options"]["security"] = security
        options = {
            "host": "127.0.0.1",
            "port": 0,
            "protocol": "tls://" if has_tls else "tcp://",
            "dashboard_address": "127.0.0.1:8787",
            "security": security,
        }
        scheduler = {"cls": Scheduler, "options": options}
        return SpecCluster(workers, scheduler, security=security, name="autotune")
    except Exception as error:
        cause: BaseException = error  # Dask's clean-up fails too and hides the first error
        while (before := cause.__cause__ or cause.__context__) is not None:
            cause = before
        words = (str(cause) or type(cause).__name__).splitlines()[0]
        raise FleetError(f"the fleet could not be started: {words}") from error


def _security(has_tls: bool) -> Security:
    """Return the certificates of Dask's configuration, else a new one that only this process has."""
    if not has_tls:
        return Security(require_encryption=False)
    configured = Security()
    return configured if configured.tls_scheduler_cert else Security.temporary()
