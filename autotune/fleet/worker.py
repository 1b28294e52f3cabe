"""Preload of ``dask worker`` that adds the worker to a fleet: it announces devices, compiles, measures.

Child processes compile and measure, as in `autotune run`.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import pickle
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from queue import LifoQueue
from typing import Any

import click
from distributed import WorkerPlugin, get_worker

import autotune
from autotune.arrays import usable_cores
from autotune.cache import DATA, tidy
from autotune.data.prepare import prepare_dataset
from autotune.devices.choose import backend, choose_devices
from autotune.devices.device import BACKENDS, Device
from autotune.errors import AutotuneError, UsageError
from autotune.files import cache_folder
from autotune.kernel.snapshot import load_kernel
from autotune.measure.compilers import begin_for
from autotune.measure.device_worker import device_actor
from autotune.measure.process import ActorFailed, ChildActor
from autotune.measure.worker_state import Job

#: Name of the plugin and of the metric that describes the worker to clients.
NAME = "autotune"
#: Resource of a compiler process; the resource of a device is its uuid.
COMPILE = "autotune-compile"
#: Maximum number of jobs, with their data, that a worker keeps.
_MAX_JOBS = 64


class HostError(AutotuneError):
    """A machine of the fleet failed at a task that another machine may be able to do."""

    def __str__(self) -> str:
        return str(self.args[0])

    @property
    def address(self) -> str:
        """The address of the Dask worker."""
        return str(self.args[1])


@cache
def claim() -> str:
    """Return the versions that a client and its workers must share, as text.

    The fingerprint of the package's code is included because a checkout changes without a new version.
    Python's minor version is included because clients send bytecode, which is specific to it.
    """
    folder = Path(autotune.__file__).parent
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(f"{file.relative_to(folder)} ".encode() + file.read_bytes())
    package = f"autotune {autotune.__version__} (sources {digest.hexdigest()[:8]})"
    return f"{package} on Python {sys.version_info.major}.{sys.version_info.minor}"


class Host:
    """The devices and compilers of one Dask worker, and their processes."""

    def __init__(self, devices: Sequence[Device], compilers: int) -> None:
        self.devices = {device.uuid: device for device in devices}
        self.compilers = compilers
        self._stack = ExitStack()
        self._lock = threading.Lock()
        self._actors: dict[str, ChildActor] = {}
        self._compilers: LifoQueue[ChildActor] = LifoQueue()
        self._jobs: dict[tuple[str, str], Job] = {}
        backends = dict.fromkeys(device.backend for device in devices)
        for _ in range(max(1, compilers)):
            self._compilers.put(self._stack.enter_context(ChildActor(begin_for(""))))
        names = list(backends) or [name for name in BACKENDS if not backend(name).why_unavailable()]
        self._toolchains = {name: toolchain_of(name) for name in names or ["cuda"]}

    def announcement(self) -> dict[str, Any]:
        """Return a description of this worker in plain values; every heartbeat sends it to clients."""
        return {
            "claim": claim(),
            "toolchains": self._toolchains,
            "compilers": self.compilers,
            "devices": [asdict(device) for device in self.devices.values()],
        }

    def resources(self) -> dict[str, float]:
        """Return the resources for Dask's scheduler; a device takes one task at a time."""
        return {COMPILE: self.compilers, **dict.fromkeys(self.devices, 1)}

    def run(
        self,
        resource: str,
        task: Callable[..., Any],
        args: Sequence[Any],
        limits: Mapping[str, Any],
        job: Job | None,
    ) -> Any:
        """Run a task in the process of a device or compiler; ``limits`` are the limits of `Actor.ask`."""
        if resource != COMPILE:
            return self._actor(resource).ask(task, *args, job=job, **limits)
        compiler = self._compilers.get()
        try:
            return compiler.ask(task, *args, **limits)
        finally:
            self._compilers.put(compiler)

    def local_job(self, key: str, job: Job, resource: str) -> Job:
        """Return a client's job for a device of this machine, with its data on this machine's disk."""
        device = self.devices[resource]
        if (key, device.uuid) not in self._jobs:
            kernel = load_kernel(job.origin, job.fingerprint)
            with _preparing_data():
                datasets = tuple(
                    prepare_dataset(kernel, job.problem, dataset.name, dataset.seed)
                    for dataset in job.datasets
                )
            self._jobs[key, device.uuid] = replace(job, device=device, datasets=datasets)
            while len(self._jobs) > _MAX_JOBS:
                del self._jobs[next(iter(self._jobs))]
        return self._jobs[key, device.uuid]

    def close(self) -> None:
        """End all processes."""
        self._stack.close()
        tidy()

    def _actor(self, uuid: str) -> ChildActor:
        with self._lock:
            if uuid not in self._actors:
                actor = device_actor(self.devices[uuid])
                self._actors[uuid] = self._stack.enter_context(actor)
            return self._actors[uuid]


@cache
def toolchain_of(name: str) -> str:
    """Return name and version of a backend's compiler; empty if it is not installed."""
    try:
        return backend(name).toolchain()
    except AutotuneError:
        return ""


@contextmanager
def _preparing_data() -> Iterator[None]:
    """Lock the data cache, so that only one worker of this machine makes each data set."""
    with (cache_folder(DATA) / ".fleet").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


class FleetPlugin(WorkerPlugin):  # type: ignore[misc]
    """The plugin that adds a Dask worker to a fleet.

    Parameters
    ----------
    devices : sequence of str or Device, optional
        Selectors as for ``--device``, or ``none``; default: all devices of the first backend with devices.
    compilers : int, optional
        Number of compiler processes. Default for a worker without devices: the number of cores. Default
        for other workers: the number of devices, at most the cores that GPUs leave free, at least 1.
    """

    name = NAME

    def __init__(
        self, devices: Sequence[str | Device] | None = None, compilers: int | None = None
    ) -> None:
        self._devices, self._compilers = devices, compilers
        self.host: Host | None = None

    async def setup(self, worker: Any) -> None:
        """Find the devices and announce them."""
        self.host = host = await asyncio.to_thread(self.make_host)
        worker.metrics[NAME] = lambda _: host.announcement()
        if worker.status.name == "running":  # already registered with the scheduler
            await worker.set_resources(**host.resources())
        else:
            worker.state.total_resources.update(host.resources())
            worker.state.available_resources.update(host.resources())

    async def teardown(self, worker: Any) -> None:
        """End the child processes."""
        if self.host is not None:
            await asyncio.to_thread(self.host.close)

    def make_host(self) -> Host:
        """Find the devices and count the compilers."""
        devices = _found(self._devices)
        compilers = self._compilers
        if compilers is None:
            free = usable_cores() - sum(device.is_cuda for device in devices)
            compilers = min(max(free, 1), len(devices)) if devices else usable_cores()
        return Host(devices, compilers)


def _found(devices: Sequence[str | Device] | None) -> list[Device]:
    if devices is None:
        return next((found for name in BACKENDS if (found := backend(name).devices())), [])
    found = []
    for named in devices:
        if isinstance(named, Device):
            found.append(named)
        elif named != "none":
            found += choose_devices(named)
    return found


@click.command()
@click.option("--device", "devices", multiple=True, metavar="NAME")
@click.option("--compilers", type=click.IntRange(min=0))
async def dask_setup(worker: Any, devices: tuple[str, ...], compilers: int | None) -> None:
    """Set up the preload: ``dask worker … --preload autotune.fleet.worker --device cuda:0``."""
    await worker.plugin_add(FleetPlugin(devices or None, compilers), catch_errors=False)


# ---------------------------------------------------------------------- tasks


def keep(content: bytes) -> bytes:
    """Return the content. As a Dask task, this sends the content once to each worker that needs it."""
    return content


def run_task(
    client: str, resource: str, packed: bytes, name: str = "", packed_job: bytes = b""
) -> Any:
    """Run a task of `Host.run` as a Dask task; return its result, or its error as a value.

    An error of this machine becomes a `HostError`, so that the client tries another machine.
    """
    worker, here = get_worker(), socket.gethostname()
    host: Host = worker.plugins[NAME].host
    try:
        if client != claim():
            raise AutotuneError(f"this worker has {claim()}, the client has {client}")
        job = host.local_job(name, pickle.loads(packed_job), resource) if packed_job else None
        task, args, limits = pickle.loads(packed)
        return host.run(resource, task, args, limits, job)
    except ActorFailed as error:
        return error
    except UsageError as error:
        return UsageError(f"{here}: {error}")
    except AutotuneError as error:
        return HostError(f"{here}: {error}", worker.address)
    except Exception as error:  # such as a full disk, too little memory or a missing library
        return HostError(f"{here}: {type(error).__name__}: {error}", worker.address)
