"""A fleet of simulated devices: how evenly it works, and what is lost when machines die.

A real Dask cluster, scheduler, workers, protocol and client, and the searches of a real run; only the
devices are recorded spaces, which take the recorded time of each configuration to compile and to
measure, divided by ``--factor``. That sleeps, so that two cores are enough for a hundred of them, as
long as the factor leaves the client and the scheduler, which do work, enough time.

Each search uses ``--together`` devices, as one kernel of a plan does, and measures ``--each``
configurations per device. The efficiency is the time of one device alone over the
number of devices times their time. Alone it would take hours: what one device does in a cluster of its
own says which share of the time it is busy, and what all together measured, divided by that share, is how
long it would take for that. With a share killed, processes of several workers each get
SIGKILL when a third of the rows is there; then rows are counted in the store: each configuration asked
for has one.

    python benchmarks/fleet.py                            # 1, 8, 32 and 128 devices, then with some killed
    python benchmarks/fleet.py --devices 8 --each 20      # a look
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import dask
from harness import RECORDED, command_line, finish, provenance, rows_in, write
from recorded import Recording, load

from autotune import Kernel, Launch, Problem
from autotune.compiling.binaries import Compiled
from autotune.compiling.job import CompileJob
from autotune.devices.base import Binary, CompiledFunction
from autotune.devices.device import Device, for_arch
from autotune.fleet import address
from autotune.fleet.client import Fleet
from autotune.fleet.site import FleetSite
from autotune.fleet.worker import COMPILE, FleetPlugin, Host
from autotune.measure.measurement import Measurement, Status
from autotune.measure.tasks import measure
from autotune.run.bench import Bench
from autotune.run.request import Request, Search
from autotune.run.searching import ProblemSearch
from autotune.search.session import Budget
from autotune.store import RunInfo, Store
from autotune.values import Configuration

#: One space for all searches, as one device alone is what they are compared with. Its times of measuring
#: are those of a whole benchmark, some tenths of a second.
SPACE = "gemm-RTX_3090"
#: Compiler processes for each device.
COMPILERS = 3
#: Bytes of a binary: as large as one of sgemm.
BINARY_BYTES = 40_000
#: Share of the rows after which machines die.
KILLED_AFTER = 1 / 3


class Simulated:
    """A recorded space, and what its configurations take."""

    def __init__(self, factor: float) -> None:
        self._factor = factor

    @cached_property
    def recording(self) -> Recording:
        return load(RECORDED / f"{SPACE}.json.gz")

    def measurement(self, configuration: Configuration) -> Measurement:
        index = self.recording.space.index(configuration)
        assert index is not None
        return self.recording.measurements[index]

    def compile_s(self, found: Measurement) -> float:
        return found.compile_s / self._factor

    def measure_s(self, found: Measurement) -> float:
        return (found.verify_s + found.measure_s) / self._factor

    def kernel(self, copy: int) -> Kernel:
        """A kernel of this space; copies are kernels of their own."""
        kernel = Kernel(
            f'// copy {copy}\nextern "C" __global__ void k() {{}}\n',
            name=f"{SPACE.replace('-', '_')}_{copy}",
            problems={"cuda": [Problem(space=SPACE, copy=copy)]},
            backends=["cuda"],
            default=dict(self.recording.space.configuration(0)),
            **self.recording.space.parameters,
        )

        @kernel.arguments
        def arguments(p: Problem, rng: Any) -> dict[str, Any]:
            return {}

        @kernel.reference
        def reference() -> None:
            return None

        @kernel.launch
        def launch(c: Configuration, p: Problem) -> Launch:
            return Launch(entry="k", grid=(1,), block=(32,), args=())

        return kernel


class SimulatedHost(Host):
    """A machine whose devices and compilers sleep."""

    simulated: Simulated

    def made(self, key: str, job: Any, resource: str) -> Any:
        return replace(job, device=self.devices[resource])

    def run(
        self, resource: str, task: Any, args: Sequence[Any], limits: Any, job: Any
    ) -> Compiled | Measurement | None:
        if resource == COMPILE:
            return self.compile(*args)
        if task is not measure:
            return None  # there is nothing to upload
        found = self.simulated.measurement(args[0])
        time.sleep(self.simulated.measure_s(found))
        return replace(found, configuration=args[0], device_uuid=resource)

    def compile(self, job: CompileJob) -> Compiled:
        values = dict(job.defines)
        parameters = self.simulated.recording.space.parameters
        chosen = {
            name: next(value for value in listed if str(value) == values[name])
            for name, listed in parameters.items()
        }
        found = self.simulated.measurement(Configuration(chosen))
        time.sleep(self.simulated.compile_s(found))
        if found.status is Status.COMPILE_FAILED:
            return Compiled(None, found.message, found.compile_s)
        code = job.key.encode() * (BINARY_BYTES // 64)
        return Compiled(Binary(code, (CompiledFunction("k"),), "", job.key), "", found.compile_s)


# ---------------------------------------------------------------------- machines


def device_of(number: int) -> Device:
    return replace(
        for_arch("sm_90"),
        name="simulated",
        uuid=f"simulated-{number:03}",
        driver="none",
        sm_count=1,
    )


class SimulatedPlugin(FleetPlugin):
    """Makes a Dask worker one with a simulated device."""

    def __init__(self, number: int, simulated: Simulated) -> None:
        super().__init__((device_of(number),), COMPILERS)
        self._simulated = simulated

    def make_host(self) -> Host:
        (device,) = self._devices
        host = SimulatedHost((device,), COMPILERS)
        host.simulated = self._simulated
        return host


async def serve(scheduler: str, first: int, count: int, factor: float) -> None:
    """Be some workers, in one process, until the scheduler is gone."""
    from distributed import Worker

    address.quiet()
    # What each worker does many times a second for its dashboard is of a host's worth of them here.
    dask.config.set(
        {
            "distributed.worker.profile.enabled": False,
            "distributed.admin.tick.interval": "2s",
            "distributed.admin.system-monitor.interval": "10s",
        }
    )
    simulated = Simulated(factor)
    _ = simulated.recording
    workers = [
        Worker(
            scheduler,
            name=f"simulated-{number}",
            nthreads=1 + COMPILERS,
            plugins=(SimulatedPlugin(number, simulated),),
            dashboard=False,
            memory_limit=0,
        )
        for number in range(first, first + count)
    ]
    await asyncio.gather(*workers)
    await asyncio.gather(*(worker.finished() for worker in workers))


@contextmanager
def cluster(devices: int, factor: float) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """Start a scheduler and workers for simulated devices; yield the scheduler's address and the processes.

    There are about ten processes, each with about a tenth of the devices.
    """
    together = max(1, round(devices / 10))
    with (
        tempfile.TemporaryDirectory() as folder,
        Path(folder, "log").open("wb") as log,
    ):
        file = Path(folder, "scheduler.json")
        command = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
        options = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--no-show"]
        scheduler = subprocess.Popen(
            [*command, *options, "--scheduler-file", str(file)], stdout=log, stderr=log
        )
        workers: list[subprocess.Popen[bytes]] = []
        try:
            while not file.exists():
                time.sleep(0.1)
            where = address.find(str(file)).address
            for first in range(0, devices, together):
                count = min(together, devices - first)
                serving = ["--serve", where, str(first), str(count), str(factor)]
                command = [sys.executable, __file__, *serving]
                workers.append(subprocess.Popen(command, stdout=log, stderr=log))
            yield where, workers
        finally:
            for process in (*workers, scheduler):
                process.kill()
                process.wait()


# ---------------------------------------------------------------------- searches


def searched(
    fleet: Fleet,
    options: argparse.Namespace,
    simulated: Simulated,
    devices: int,
    store_file: Path,
) -> Counter[str]:
    """Search as many copies of the space at once as there are devices for; returns how many rows each asked for."""
    cards = fleet.usable()
    together = min(options.together, devices)
    asked: Counter[str] = Counter()
    failures: list[BaseException] = []

    def tried(copy: int) -> None:
        try:
            search(copy)
        except BaseException as error:
            failures.append(error)

    def search(copy: int) -> None:
        kernel = simulated.kernel(copy)
        own = [card.device for card in cards[copy * together : (copy + 1) * together]]
        request = Request(
            kernel,
            own[0],
            kernel.problems["cuda"],
            others=tuple(own[1:]),
            goal=Search(options.strategy),
        )
        budget = Budget(evaluations=options.each * len(own))
        with (
            Store.open(f"sqlite:///{store_file}") as store,
            closing(Bench(request, FleetSite(fleet))) as bench,
        ):
            device = own[0].name
            run_id = store.begin_run(
                RunInfo(kernel.name, device, options.strategy, 0, "", "benchmark")
            )
            begun = ProblemSearch(bench, store, run_id, lambda event: None)
            (problem,) = request.problems
            found = begun.search(problem, simulated.recording.space, budget, [])
            asked[kernel.name] = len(found.measurements)
            store.finish_run(run_id, "done")

    threads = [
        threading.Thread(target=tried, args=(copy,))
        for copy in range(math.ceil(devices / together))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return asked


def measured(
    options: argparse.Namespace, simulated: Simulated, devices: int, kills: bool
) -> dict[str, Any]:
    """One cluster and its searches, with the rows that the store has in the end."""
    with (
        tempfile.TemporaryDirectory() as folder,
        cluster(devices, options.factor) as (where, processes),
        address.connected(address.find(where)) as client,
    ):
        client.wait_for_workers(devices, timeout=300)
        file = Path(folder, "store.sqlite")
        with Store.open(f"sqlite:///{file}"):
            pass
        with Fleet(client) as fleet:
            total = devices * options.each
            ended = threading.Event()
            killer = threading.Thread(
                target=_kill, args=(file, total, processes[0], ended), daemon=True
            )
            if kills:
                killer.start()
            begun, cpu = time.monotonic(), time.process_time()
            asked = searched(fleet, options, simulated, devices, file)
            seconds, cpu_s = time.monotonic() - begun, time.process_time() - cpu
            ended.set()
            left = len(fleet.usable())
        with Store.open(f"sqlite:///{file}") as store:
            stored = list(store.rows())
    rows = Counter((row.kernel, row.measurement.configuration) for row in stored)
    busy_s = sum(simulated.measure_s(row.measurement) for row in stored)
    return {
        "devices": devices,
        "killed_share": (devices - left) / devices,
        "seconds": seconds,
        "busy_share": busy_s / seconds / devices,
        "rows": sum(rows.values()),
        "rows_per_s": sum(rows.values()) / seconds,
        "rows_lost": sum(asked.values()) - len(rows),
        "rows_twice": sum(rows.values()) - len(rows),
        "client_cpu_share": cpu_s / seconds,
    }


def _kill(file: Path, total: int, process: subprocess.Popen[bytes], ended: threading.Event) -> None:
    """Kill a process of workers, with all that it does, when a share of the rows is there."""
    with Store.open(f"sqlite:///{file}") as store:
        while not ended.wait(0.2):
            if len(store.rows()) >= KILLED_AFTER * total:
                os.kill(process.pid, signal.SIGKILL)
                return


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        scheduler, first, count, factor = sys.argv[2:]
        asyncio.run(serve(scheduler, int(first), int(count), float(factor)))
        return
    parser = command_line(__doc__, "fleet-simulated.json", None)
    parser.add_argument("--devices", type=int, nargs="*", default=[8, 32, 128])
    parser.add_argument("--each", type=int, default=40, help="measurements for each device")
    parser.add_argument("--together", type=int, default=8, help="devices that share a search")
    parser.add_argument(
        "--factor", type=float, default=1.0, help="recorded times are divided by it"
    )
    parser.add_argument("--strategy", default="random")
    options = parser.parse_args()
    simulated = Simulated(options.factor)
    print(f"{simulated.recording.kernel}: {len(simulated.recording.space)}", flush=True)
    alone = measured(options, simulated, 1, kills=False)
    how = {"factor": options.factor, "each": options.each, "strategy": options.strategy}
    file = options.out / "fleet-simulated.json"
    for devices in options.devices:
        whole_s = 0.0
        for kills in (False, True):
            row = measured(options, simulated, devices, kills)
            row["efficiency"] = row["busy_share"] / alone["busy_share"]
            row["longer"] = row["seconds"] / whole_s - 1 if kills else 0.0
            whole_s = row["seconds"]
            row = {**row, "kills": kills, "alone_busy_share": alone["busy_share"], **how}
            _add(file, row)
            print(
                {name: row[name] for name in row if isinstance(row[name], float | int)}, flush=True
            )


def _add(file: Path, row: dict[str, Any]) -> None:
    """Write a row in place of the one of as many devices: sizes may be simulated one by one."""
    rows = {(each["devices"], each["kills"]): each for each in (*rows_in(file), row)}
    about = {"compilers": COMPILERS, "cores": os.cpu_count(), "spaces": [SPACE]}
    write(file, {**provenance(), **about, "rows": [rows[key] for key in sorted(rows)]})


if __name__ == "__main__":
    finish(main)
