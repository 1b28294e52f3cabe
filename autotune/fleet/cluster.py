"""Starts a fleet and keeps it: a Dask scheduler in this process, workers here, by ssh or as jobs of Slurm.

Dask runs all of it (`SpecCluster`). This knows with what words a worker of ours is started, and not
what it does.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import shlex
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dask
from distributed import Nanny, Scheduler, Security, Status
from distributed.deploy.spec import SpecCluster
from distributed.deploy.ssh import Worker

from autotune.arrays import usable_cores
from autotune.devices.device import Device, for_arch
from autotune.errors import FleetError, UsageError
from autotune.files import data_folder
from autotune.fleet.address import ROLES, Endpoint, Tls, find, is_taken, refuse_open

#: A worker that says nothing for so long is lost: its host may vanish without closing its connections.
LOST_AFTER_S = 60
#: How often workers that were lost are started again.
_MEND_EVERY_S = 30.0
#: How often it is looked whether the scheduler was stopped.
_LOOK_EVERY_S = 0.5
#: How long ending may take before it is left to the workers, which end without their scheduler.
_CLOSE_S = 20
#: How long a host may take to answer.
_SSH_S = 30
#: Cores of a job of Slurm where nobody says.
CORES_PER_JOB = 8
#: What only the client needs, and no file of a batch system or worker may hold.
_SECRETS = ("AUTOTUNE_STORE", "PGPASSWORD")
#: Options of sbatch that jobs without a GPU do not inherit.
_OF_GPUS = ("gres", "constraint", "gpus")
_MODULE = "autotune.fleet.worker"

#: Workers by name, as `SpecCluster` takes them.
Workers = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Listening:
    """Where a scheduler listens, and to whom."""

    host: str
    port: int = 0
    tls: Tls | None = None
    is_open_accepted: bool = False

    @property
    def protocol(self) -> str:
        """What an address begins with."""
        return "tls://" if self.tls else "tcp://"


def local_workers(
    devices: Sequence[Device], compilers: int | None = None, host: str = "127.0.0.1"
) -> Workers:
    """A worker for each device of this machine, and one that compiles for all.

    ``compilers`` are its processes; default: one for each core but one for each GPU.
    """
    if compilers is None:
        compilers = max(1, usable_cores() - sum(device.leaves_host_free for device in devices))
    workers = {
        device.selector: _nanny(host, 2, "--device", device.selector, "--compilers", 0)
        for device in devices
    }
    if compilers:
        words = ("--device", "none", "--compilers", compilers)
        workers["compile"] = _nanny(host, max(2, compilers), *words)
    return workers


def _nanny(host: str, threads: int, *words: object) -> dict[str, Any]:
    return {"cls": Nanny, "options": {**_worker_options(*words), "nthreads": threads, "host": host}}


def _worker_options(*words: object) -> dict[str, Any]:
    """What a worker of ours takes; its memory is not Dask's to limit, as most of it is its children's."""
    return {
        "preload": [_MODULE],
        "preload_argv": [[str(word) for word in words]],
        "memory_limit": 0,
        "death_timeout": LOST_AFTER_S,  # without a scheduler
    }


class SshWorker(Worker):  # type: ignore[misc]
    """Dask's worker on another host, that says of which host what went wrong there."""

    async def start(self) -> None:
        """Start it.

        Raises
        ------
        FleetError
            If the host cannot be reached, or has no autotune that can be a worker.
        """
        import asyncssh

        try:
            async with asyncssh.connect(self.address, **self.connect_options) as connection:
                tried = await connection.run(f"{self.remote_python} -c 'import {_MODULE}'")
            if tried.exit_status != 0:
                said = str(tried.stderr).strip().splitlines() or [f"exit code {tried.exit_status}"]
                raise FleetError(f"{self.remote_python} there: {said[-1]}")
            await super().start()
        except (OSError, asyncssh.Error, FleetError) as error:
            raise FleetError(f"{self.address}: {error}") from None


def ssh_workers(hosts: Sequence[str], python: str) -> Workers:
    """A worker on each host, for all of its devices and cores; who connects is up to ``~/.ssh/config``.

    Raises
    ------
    UsageError
        If a host is named twice.
    """
    twice = [host or "an empty name" for host in hosts if not host or hosts.count(host) > 1]
    if twice:
        raise UsageError(f"--ssh: {twice[0]}: each host once, as in --ssh gpu1,gpu2")
    return {
        host: {
            "cls": SshWorker,
            "options": {
                "address": host,
                "connect_options": {"connect_timeout": _SSH_S},
                "kwargs": {**_worker_options(), "name": host},
                "remote_python": shlex.quote(python),
            },
        }
        for host in hosts
    }


@dataclass(frozen=True)
class SlurmGroup:
    """Jobs that share what they ask Slurm for: so many with one GPU of an architecture, so many without."""

    archs: Mapping[str, int]
    compilers: int
    cores: int
    #: Long options of sbatch.
    options: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> SlurmGroup:
        """Read ``partition=gpu, arch=sm_90:4, arch=sm_80:8, compilers=2, cores=16``.

        Every other name is a long option of sbatch.

        Raises
        ------
        UsageError
            If it is not of this form, or asks for no worker.
        """
        archs: Counter[str] = Counter()
        options: dict[str, str] = {}
        for part in filter(None, map(str.strip, text.split(","))):
            name, sign, value = (word.strip() for word in part.partition("="))
            if not sign or not value or not re.fullmatch(r"[a-z][a-z-]*", name):
                raise UsageError(f"--slurm: {part!r}: expected NAME=VALUE, as in partition=gpu")
            if name == "arch":
                arch, _, count = value.partition(":")
                archs[for_arch(arch).arch] += _count(part, count or "1")
            elif name in options:
                raise UsageError(
                    f"--slurm: {name} is given twice; a second --slurm is a group of its own"
                )
            else:
                options[name] = value
        compilers = _count("compilers", options.pop("compilers", "0"), least=0)
        cores = _count("cores", options.pop("cores", str(CORES_PER_JOB)))
        if not archs and not compilers:
            raise UsageError(
                f"--slurm {text!r}: asks for no worker; for example arch=sm_90:4, compilers=2"
            )
        return cls(dict(archs), compilers, cores, options)

    def workers(self, python: str, security: Security | None) -> Workers:
        """A job for each GPU, and for each compiling worker."""
        jobs: dict[str, dict[str, Any]] = {}
        for arch, count in self.archs.items():
            asked = {"gres": "gpu:1", "constraint": arch, **self.options}
            words = ("--compilers", max(1, self.cores - 1))
            for number in range(count):
                jobs[f"{arch}-{number}"] = self._job(words, asked, python, security)
        others = {name: value for name, value in self.options.items() if name not in _OF_GPUS}
        compiling = ("--device", "none", "--compilers", self.cores)
        for number in range(self.compilers):
            jobs[f"compile-{number}"] = self._job(compiling, others, python, security)
        return jobs

    def _job(
        self,
        words: Sequence[object],
        asked: Mapping[str, str],
        python: str,
        security: Security | None,
    ) -> dict[str, Any]:
        from dask_jobqueue.slurm import SLURMJob

        threads = max(2, self.cores)
        given = ["--nthreads", threads, "--memory-limit", 0, "--preload", _MODULE, *words]
        options = {
            "cores": self.cores,
            "death_timeout": LOST_AFTER_S,
            "processes": 1,
            "memory": "1GB",  # Dask wants to know; left out of the script
            "job_directives_skip": ["--mem=", "-t "],  # the partition's, unless asked for
            "job_extra_directives": [
                f"--{name}={shlex.quote(value)}" for name, value in asked.items()
            ],
            "job_name": "autotune-fleet",
            "log_directory": str(data_folder("fleet")),
            "python": shlex.quote(python),
            "security": security,
            "worker_extra_args": [str(word) for word in given],
        }
        return {"cls": SLURMJob, "options": options}


def _count(what: str, text: str, least: int = 1) -> int:
    if not text.isdigit() or int(text) < least:
        raise UsageError(f"--slurm: {what}: {text!r}: expected a number of at least {least}")
    return int(text)


def slurm_workers(groups: Sequence[SlurmGroup], python: str, tls: Tls | None) -> Workers:
    """The jobs of all groups; what a name has twice is numbered on."""
    security = tls.security() if tls else None
    jobs: dict[str, Mapping[str, Any]] = {}
    for number, group in enumerate(groups):
        suffix = f"-{number}" if number else ""
        jobs |= {f"{name}{suffix}": job for name, job in group.workers(python, security).items()}
    return jobs


def serve(
    workers: Workers, listening: Listening, file: Path, ready: Callable[[Endpoint], None]
) -> None:
    """Run a fleet until somebody stops it; ``ready`` is told where it is, once its workers are started.

    Workers that were lost, and jobs that ended, are started again. Its file goes with it.

    Raises
    ------
    UsageError
        If it would be open to others and nobody accepted that, its port is taken, or a fleet runs
        here already.
    FleetError
        If a worker could not be started.
    """
    address = f"{listening.protocol}{listening.host}:{listening.port}"
    refuse_open(address, listening.is_open_accepted)
    _refuse_second(file)
    for name in _SECRETS:
        os.environ.pop(name, None)
    os.environ["DASK_LOGGING__DISTRIBUTED"] = "warning"  # of workers here and in jobs
    cluster = _cluster(workers, listening)
    scheduler = Endpoint(
        address=cluster.scheduler.address,
        tls=listening.tls,
        is_open_accepted=listening.is_open_accepted,
        dashboard=_dashboard(cluster),
        host=platform.node(),
        process=os.getpid(),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        asked=len(workers),
        file=file,
    )
    try:
        scheduler.write(file)
        ready(scheduler)
        mended_s = time.monotonic()
        while cluster.scheduler.status is Status.running and _is_of(file, scheduler):
            time.sleep(_LOOK_EVERY_S)
            if time.monotonic() - mended_s > _MEND_EVERY_S:
                _mend(cluster)
                mended_s = time.monotonic()
    finally:
        # A scheduler that was stopped is asked once more by Dask, which would wait for it.
        with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
            cluster.close(timeout=_CLOSE_S)
        if _is_of(file, scheduler):
            file.unlink()


def _refuse_second(file: Path) -> None:
    """Refuse a second fleet in one place: who connects would not know which."""
    if file.exists() and is_taken(other := find(str(file), insecure=True)):
        raise UsageError(
            f"a fleet runs here already: {other.words}; run: autotune fleet stop, or start another "
            "with --file FILE"
        )


def _is_of(file: Path, scheduler: Endpoint) -> bool:
    """Whether a file still names a fleet: one that was started in the same moment may have replaced it."""
    try:
        return find(str(file), insecure=True).address == scheduler.address
    except UsageError:
        return False


def _cluster(workers: Workers, listening: Listening) -> SpecCluster:
    """Scheduler and workers, all started, or none."""
    dask.config.set({"distributed.scheduler.worker-ttl": f"{LOST_AFTER_S}s"})
    if tls := listening.tls:  # what workers inherit: paths
        files = {f"{role}.cert": tls.cert for role in ROLES} | {"ca-file": tls.ca}
        files |= {f"{role}.key": tls.key for role in ROLES}
        dask.config.set({f"distributed.comm.tls.{name}": path for name, path in files.items()})
        dask.config.set({"distributed.comm.require-encryption": True})
    security = tls.security() if tls else None
    options = {
        "host": listening.host,
        "port": listening.port,
        "protocol": listening.protocol,
        "security": security,
        "dashboard_address": "127.0.0.1:8787",  # of this machine only: it asks nobody who he is
    }
    try:
        return SpecCluster(
            dict(workers),
            {"cls": Scheduler, "options": options},
            security=security,
            name="autotune",
        )
    except Exception as error:
        cause = _first(error)
        if isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE:
            raise UsageError(
                f"--port {listening.port}: taken on {listening.host}; name another, or none for any that is free"
            ) from error
        raise FleetError(f"the fleet could not be started: {_first_words(cause)}") from error


def _first(error: BaseException) -> BaseException:
    """What others followed from: Dask tidies up before it tells, and what fails there hides it."""
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return error if before is None else _first(before)


def _first_words(error: BaseException) -> str:
    """What a person needs of an error; of a command that failed, what it wrote."""
    said = str(error) or type(error).__name__
    wrote = said.partition("stderr:")[2].strip()
    return (wrote or said).splitlines()[0]


def _dashboard(cluster: SpecCluster) -> str:
    """Where Dask's pages are; empty where what draws them is not installed."""
    if find_spec("bokeh") is None:
        return ""
    return f"http://127.0.0.1:{cluster.scheduler.services['dashboard'].port}/status"


def _mend(cluster: SpecCluster) -> None:
    """Start what was lost, and what could not be started last time."""
    for name, worker in list(cluster.workers.items()):
        if worker.status is Status.created:
            del cluster.workers[name]
    cluster.scale(len(cluster.worker_spec))
