"""Make a Dask worker one of a fleet: it announces its devices, compiles and measures.

Compiling and measuring happen in child processes, as in `autotune run`. This module is a preload of
``dask worker``.
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

#: Name of the plugin, and of the metric that announces a worker.
NAME = "autotune"
#: Resource of a compiler process; the resource of a device is its uuid.
COMPILE = "autotune-compile"
#: Jobs with their data that a worker remembers.
_KNOWN = 64


class HostError(AutotuneError):
    """A machine of the fleet failed at a task that another machine may do."""

    def __str__(self) -> str:
        return str(self.args[0])

    @property
    def address(self) -> str:
        """Of the Dask worker."""
        return str(self.args[1])


@cache
def claim() -> str:
    """Return the versions that a client and its workers must share.

    They are of the package, with a fingerprint of its code, and the minor of Python: code that is sent
    is bytecode of one minor; a checkout changes without changing its version.
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
        """Return the plain values that every heartbeat carries to clients."""
        return {
            "claim": claim(),
            "toolchains": self._toolchains,
            "compilers": self.compilers,
            "devices": [asdict(device) for device in self.devices.values()],
        }

    def resources(self) -> dict[str, float]:
        """Return the resources that Dask's scheduler counts: one task at a time for a device."""
        return {COMPILE: self.compilers, **dict.fromkeys(self.devices, 1)}

    def run(
        self,
        resource: str,
        task: Callable[..., Any],
        args: Sequence[Any],
        limits: Mapping[str, Any],
        job: Job | None,
    ) -> Any:
        """Run a task in the process of a device, or of a compiler; ``limits`` are of `Actor.ask`."""
        if resource != COMPILE:
            return self._actor(resource).ask(task, *args, job=job, **limits)
        compiler = self._compilers.get()
        try:
            return compiler.ask(task, *args, **limits)
        finally:
            self._compilers.put(compiler)

    def made(self, key: str, job: Job, resource: str) -> Job:
        """Return a client's job for this device, with its data on this machine's disk."""
        device = self.devices[resource]
        if (key, device.uuid) not in self._jobs:
            kernel = load_kernel(job.origin, job.fingerprint)
            with _making():
                datasets = tuple(
                    prepare_dataset(kernel, job.problem, known.name, known.seed)
                    for known in job.datasets
                )
            self._jobs[key, device.uuid] = replace(job, device=device, datasets=datasets)
            while len(self._jobs) > _KNOWN:
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
    """Return name and version of a compiler; empty if it is not installed."""
    try:
        return backend(name).toolchain()
    except AutotuneError:
        return ""


@contextmanager
def _making() -> Iterator[None]:
    """Let one worker of this machine make the data that all of them need."""
    with (cache_folder(DATA) / ".fleet").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


class FleetPlugin(WorkerPlugin):  # type: ignore[misc]
    """The plugin that makes a Dask worker one of a fleet.

    ``devices`` are selectors as those of ``--device``, or ``none``; default: all of the first backend
    that has one. ``compilers`` are processes; default: one for each core of a worker without devices,
    else one for each device, for which a core is left.
    """

    name = NAME

    def __init__(
        self, devices: Sequence[str | Device] | None = None, compilers: int | None = None
    ) -> None:
        self._devices, self._compilers = devices, compilers
        self.host: Host | None = None

    async def setup(self, worker: Any) -> None:
        """Find the devices, and announce them."""
        self.host = host = await asyncio.to_thread(self.made)
        worker.metrics[NAME] = lambda _: host.announcement()
        if worker.status.name == "running":  # registered before
            await worker.set_resources(**host.resources())
        else:
            worker.state.total_resources.update(host.resources())
            worker.state.available_resources.update(host.resources())

    async def teardown(self, worker: Any) -> None:
        """End the processes."""
        if self.host is not None:
            await asyncio.to_thread(self.host.close)

    def made(self) -> Host:
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
    """Be the preload: ``dask worker … --preload autotune.fleet.worker --device cuda:0``."""
    await worker.plugin_add(FleetPlugin(devices or None, compilers), catch_errors=False)


# ---------------------------------------------------------------------- tasks


def keep(content: bytes) -> bytes:
    """Return the content, as a Dask task: Dask sends it to the workers whose tasks need it."""
    return content


def run_task(
    asking: str, resource: str, packed: bytes, name: str = "", packed_job: bytes = b""
) -> Any:
    """Run a task of `Host.run`, as a Dask task; return its result, or its error as a value.

    An error of this machine is a `HostError`, so that another machine is asked.
    """
    worker, here = get_worker(), socket.gethostname()
    host: Host = worker.plugins[NAME].host
    try:
        if asking != claim():
            raise AutotuneError(f"it has {claim()}, and was asked by {asking}")
        job = host.made(name, pickle.loads(packed_job), resource) if packed_job else None
        task, args, limits = pickle.loads(packed)
        return host.run(resource, task, args, limits, job)
    except ActorFailed as error:
        return error
    except UsageError as error:
        return UsageError(f"{here}: {error}")
    except AutotuneError as error:
        return HostError(f"{here}: {error}", worker.address)
    except Exception as error:  # a lack of disk, memory, a library
        return HostError(f"{here}: {type(error).__name__}: {error}", worker.address)
