"""Make a Dask worker one of a fleet: it announces its devices, compiles and measures.

Compiling and measuring happen in child processes, as in `autotune run`. This module is a preload of
``dask worker``.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import io
import pickle
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import click
from distributed import WorkerPlugin, get_worker

import autotune
from autotune.arrays import usable_cores
from autotune.devices.choose import backend, choose_devices
from autotune.devices.device import BACKENDS, Device
from autotune.errors import AutotuneError, UsageError
from autotune.files import cache_folder
from autotune.measure.cache import DATA, InUse
from autotune.measure.compiler import Compiled, CompileJob, CompilerPool
from autotune.measure.data import loaded_as, prepare
from autotune.measure.tasks import Job
from autotune.measure.worker import STANDBYS, Worker

#: What a worker is known by: the plugin, and the metric that it announces itself with.
NAME = "autotune"
#: The resource of a compiler process; of a device it is its uuid.
COMPILE = "autotune-compile"
#: Jobs with their data that a worker remembers.
_KNOWN = 64


class HostError(AutotuneError):
    """A machine of the fleet failed at a task that another may do."""

    def __str__(self) -> str:
        return str(self.args[0])

    @property
    def address(self) -> str:
        """Of the Dask worker."""
        return str(self.args[1])


@dataclass(frozen=True)
class Claim:
    """The versions that a client and its workers must share."""

    version: str
    python: str

    def __str__(self) -> str:
        return f"autotune {self.version} on Python {self.python}"


@cache
def claim() -> Claim:
    """Return this process's: the package with a fingerprint of its code, and the minor of Python.

    Code that is sent is bytecode of one minor; a checkout changes without changing its version.
    """
    folder = Path(autotune.__file__).parent
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(f"{file.relative_to(folder)} ".encode() + file.read_bytes())
    major, minor = sys.version_info[:2]
    return Claim(f"{autotune.__version__} (sources {digest.hexdigest()[:8]})", f"{major}.{minor}")


class Host:
    """The devices and compilers of one Dask worker, and their processes."""

    def __init__(self, devices: Sequence[Device], compilers: int) -> None:
        self.devices = {device.uuid: device for device in devices}
        self.compilers = compilers
        self._stack = ExitStack()
        self._lock = threading.Lock()
        self._workers: dict[str, Worker] = {}
        self._pool: CompilerPool | None = None
        self._in_use: InUse | None = None
        self._jobs: dict[tuple[str, str], Job] = {}
        #: Tasks that were done, and that failed.
        self._done, self._failed = 0, 0
        backends = dict.fromkeys(device.backend for device in devices)
        names = list(backends) or [name for name in BACKENDS if not backend(name).why_unavailable()]
        self._toolchains = {name: _toolchain(name) for name in names or ["cuda"]}

    def announcement(self) -> dict[str, Any]:
        """Return what every heartbeat carries to clients: plain values."""
        return {
            **asdict(claim()),
            "toolchains": self._toolchains,
            "compilers": self.compilers,
            "devices": [asdict(device) for device in self.devices.values()],
            "done": self._done,
            "failed": self._failed,
        }

    def resources(self) -> dict[str, float]:
        """Return what Dask's scheduler counts: one task at a time for a device."""
        return {COMPILE: self.compilers, **dict.fromkeys(self.devices, 1)}

    def compile(self, job: CompileJob) -> Compiled:
        """Compile through the cache of this machine."""
        return self._compiler_pool(job.device.backend).result(job)

    def call(self, uuid: str, method: str, load: Callable[[Device], tuple[Any, ...]]) -> Any:
        """Call a method of a device's process; ``load`` gives its arguments."""
        arguments = load(self.devices[uuid])
        return getattr(self._worker(uuid), method)(*arguments)

    def count(self, is_done: bool) -> None:
        """Count a task."""
        with self._lock:
            self._done += is_done
            self._failed += not is_done

    def made(self, key: str, job: Job, device: Device) -> Job:
        """Return a client's job for this device, with its data on this machine's disk."""
        if (key, device.uuid) not in self._jobs:
            kernel = loaded_as(job.origin, job.known_by)
            with self._lock:
                if self._in_use is None:
                    self._in_use = self._stack.enter_context(InUse())
                in_use = self._in_use
            with _making():
                datasets = tuple(
                    prepare(kernel, job.problem, known.name, known.seed, in_use=in_use)
                    for known in job.datasets
                )
            self._jobs[key, device.uuid] = replace(job, device=device, datasets=datasets)
            while len(self._jobs) > _KNOWN:
                del self._jobs[next(iter(self._jobs))]
        return self._jobs[key, device.uuid]

    def close(self) -> None:
        """End all processes."""
        self._stack.close()

    def _worker(self, uuid: str) -> Worker:
        with self._lock:
            if uuid not in self._workers:
                device = self.devices[uuid]
                worker = Worker(device=device, standbys=STANDBYS if device.leaves_host_free else 0)
                self._workers[uuid] = self._stack.enter_context(worker)
            return self._workers[uuid]

    def _compiler_pool(self, backend_name: str) -> CompilerPool:
        with self._lock:
            if self._pool is None:
                pool = CompilerPool(max(1, self.compilers), backend_name, on_demand=True)
                self._pool = self._stack.enter_context(pool)
            return self._pool


def _toolchain(name: str) -> str:
    """Return name and version of a compiler; empty where it is not installed."""
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

    Parameters
    ----------
    devices : sequence of str or Device, optional
        Selectors as those of ``--device``, ``none`` for a worker that only compiles. Default: every
        device of the first backend that has one.
    compilers : int, optional
        Compiler processes. Default: the cores that devices leave free, for a worker without
        devices; else one for each device, for which a core is left.
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
            free = usable_cores() - sum(device.leaves_host_free for device in devices)
            compilers = min(max(free, 1), len(devices)) if devices else usable_cores()
        return Host(devices, compilers)


def _found(devices: Sequence[str | Device] | None) -> list[Device]:
    """Return the named devices; default: those of the first backend that has some."""
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


def compile_(asking: Claim, packed: bytes) -> Compiled | AutotuneError:
    """Compile, as a Dask task."""
    answer: Compiled | AutotuneError = _answered(
        asking, lambda host: host.compile(pickle.loads(packed))
    )
    return answer


def call(
    asking: Claim, uuid: str, method: str, packed: bytes, names: Sequence[str], *parts: Any
) -> Any:
    """Call a method of a device's process, as a Dask task; ``parts`` have ``names``."""
    by_name = dict(zip(names, parts, strict=True))
    return _answered(
        asking,
        lambda host: host.call(
            uuid, method, lambda device: _unpacked(host, device, packed, by_name)
        ),
    )


def applied(
    worker: Worker, task: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any]
) -> Any:
    """Call a task with options, for `Worker.have`."""
    return task(worker, *args, **options)


def _answered(asking: Claim, task: Callable[[Host], Any]) -> Any:
    """Return a task's result, or the error that it ended with, as a value."""
    worker, name = get_worker(), socket.gethostname()
    try:
        if asking != claim():
            raise AutotuneError(f"it has {claim()}, and was asked by {asking}")
        host: Host = worker.plugins[NAME].host
        is_done = False
        try:
            result = task(host)
            is_done = True
        finally:
            host.count(is_done)
        return result
    except AutotuneError as error:
        if isinstance(error, UsageError):
            return UsageError(f"{name}: {error}")
        return HostError(f"{name}: {error}", worker.address)
    except Exception as error:  # of a machine that lacks disk, memory, a library
        return HostError(f"{name}: {type(error).__name__}: {error}", worker.address)


class Packer(pickle.Pickler):
    """A pickler of a task's arguments; jobs travel by themselves, once to each machine."""

    def __init__(self, written: io.BytesIO, name_of: Callable[[object], str | None]) -> None:
        super().__init__(written, pickle.HIGHEST_PROTOCOL)
        self._name_of = name_of

    def persistent_id(self, given: Any) -> str | None:
        """Return the name of what travels by itself; None for all else."""
        return self._name_of(given)


class _Unpacker(pickle.Unpickler):
    def __init__(self, packed: bytes, load: Callable[[str], Any]) -> None:
        super().__init__(io.BytesIO(packed))
        self._load = load

    def persistent_load(self, name: Any) -> Any:
        return self._load(name)


def _unpacked(
    host: Host, device: Device, packed: bytes, parts: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Return the arguments of a task, with jobs as this device has them."""

    def load(name: str) -> Job:
        return host.made(name, pickle.loads(parts[name]), device)

    arguments: tuple[Any, ...] = _Unpacker(packed, load).load()
    return arguments
