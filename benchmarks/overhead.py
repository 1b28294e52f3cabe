"""What the framework costs per configuration: everything but compiling and the device.

Two measurements. *replay*: a recorded space through engine, strategy, store and events, 10,000
configurations at full speed, on so many cores; the clock runs from the first configuration to the
last row, and resident memory is read on the way. *device*: a real search of few configurations
whose binaries are compiled before; what is left beside the device process's own time is ours:
planning, rows, and handing work to that process and back, which is timed with a task that does
nothing.

    python benchmarks/overhead.py
    python benchmarks/overhead.py --device cuda:0 --configurations 300
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from autotune import __version__
from autotune.arrays import usable_cores
from autotune.devices.choose import choose_device
from autotune.kernel.catalog import find_kernel
from autotune.kernel.space import enumerate_space
from autotune.measure.evaluator import DeviceEvaluator
from autotune.run.bench import Bench, stopping_rule
from autotune.run.request import Request
from autotune.search.names import find
from autotune.search.replay import Recording, ReplayEvaluator, load
from autotune.search.session import Budget, Event, Measured, SearchSession, search
from autotune.search.simple import in_given_order
from autotune.store import RunInfo, Scope, Store

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT.parent / "shared" / "recorded" / "gemm-RTX_3090.json.gz"
STRATEGIES = "random,auto,kt:genetic_algorithm"
#: Kernel that *device* measures, on its first quick problem.
KERNEL = "transpose"


@dataclass
class Watch:
    """A listener that notes how memory grows with the rows."""

    every: int
    rows: int = 0
    rss_mb: list[float] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Measured):
            self.rows += 1
            if self.rows % self.every == 0:
                self.rss_mb.append(resident_mb())


def resident_mb() -> float:
    """Resident memory of this process, in MiB (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


def replayed(recording: Recording, strategy: str, count: int, every: int = 1000) -> dict[str, Any]:
    """Search a recording through the whole pipeline but for compilers and device."""
    device = recording.device
    watch = Watch(every)
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "store") as store:
        scope = Scope(
            kernel=recording.kernel,
            problem=recording.problem,
            device_uuid=device.uuid,
            device_name=device.name,
            driver="",
            toolchain="",
            source="",
            arguments="",
            timing="",
        )
        run = store.begin_run(RunInfo(recording.kernel, device.name, strategy, 0, "", "overhead"))
        begun, cpu = time.perf_counter(), time.process_time()
        session = SearchSession(
            recording.space, ReplayEvaluator(recording), store, run, scope,
            Budget(evaluations=count), watch,
        )  # fmt: skip
        measured = search(session, find(strategy), 0)
        seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
        store.finish_run(run, "done")
        rows = len(store.remembered(scope))
    if not len(measured) == rows == watch.rows == count:
        raise SystemExit(f"{strategy}: {len(measured)} measured, {rows} rows, expected {count}")
    return {
        "strategy": strategy,
        "configurations": count,
        "seconds": round(seconds, 3),
        "cpu_seconds": round(cpu, 3),
        "ms_per_configuration": round(1000 * seconds / count, 4),
        "rss_mb": watch.rss_mb,
    }


def on_device(selector: str, count: int) -> dict[str, Any]:
    """Search a few configurations on a device, binaries compiled before."""
    kernel, device = find_kernel(KERNEL), choose_device(selector)
    problem = kernel.quick_problems[device.backend][0]
    space = enumerate_space(kernel, device)
    order = np.random.default_rng(0).permutation(len(space))[:count].tolist()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bench = Bench(Request(kernel, device, (problem,)))
        stack.callback(bench.close)
        job = bench.job(problem)
        bench.worker.prepare(job)
        store = stack.enter_context(Store.open(folder / "store"))
        evaluator = DeviceEvaluator(
            kernel, job, bench.compilers, bench.worker, stopping_rule(device)
        )
        for index in order:
            evaluator.hint([space.configuration(index)])
        for index in order:
            evaluator.binary(space.configuration(index))
        run = store.begin_run(RunInfo(KERNEL, device.name, "given", 0, "", "overhead"))
        hand_over_s = median(
            seconds_of(bench.worker.run, 10.0, len, bytes(40_000)) for _ in range(200)
        )
        in_device_process: list[float] = []
        measure = bench.worker.measure

        def timed_measure(*given: Any) -> Any:
            start = time.perf_counter()
            result = measure(*given)
            in_device_process.append(time.perf_counter() - start)
            return result

        bench.worker.measure = timed_measure  # type: ignore[method-assign]
        begun = time.perf_counter()
        session = SearchSession(space, evaluator, store, run, bench.scope(problem), Budget())
        measured = list(search(session, in_given_order(order), 0).values())
        seconds = time.perf_counter() - begun
    device_s = sum(in_device_process) - hand_over_s * len(in_device_process)
    return {
        "kernel": KERNEL,
        "problem": dict(problem),
        "device": device.name,
        "driver": device.driver,
        "configurations": len(measured),
        "seconds": round(seconds, 3),
        "device_seconds": round(device_s, 3),
        "hand_over_ms": round(1000 * hand_over_s, 3),
        "overhead_ms_per_configuration": round(1000 * (seconds - device_s) / len(measured), 3),
    }


def seconds_of(call: Callable[..., object], *given: Any) -> float:
    """Time one call."""
    start = time.perf_counter()
    call(*given)
    return time.perf_counter() - start


def cpu_name() -> str:
    """The processor's model name (Linux), or what Python knows."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def main() -> None:
    """Measure, print, write."""
    options = _options()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores or None])
    result: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "benchmarks/overhead.py", *sys.argv[1:]]),
        "machine": {"cpu": cpu_name(), "cores": usable_cores(), "system": platform.platform()},
        "versions": {"autotune": __version__, "python": platform.python_version()},
    }
    if options.recording.exists():
        recording = load(options.recording)
        result["recording"] = options.recording.name
        result["replay"] = []
        for strategy in options.strategies.split(","):
            found = replayed(recording, strategy, options.replayed)
            result["replay"].append(found)
            print(
                f"{strategy}: {found['configurations']} in {found['seconds']:.1f} s, "
                f"{found['ms_per_configuration']:.2f} ms each, RSS {found['rss_mb'][0]:.0f} -> "
                f"{found['rss_mb'][-1]:.0f} MiB",
                flush=True,
            )
    if options.device:
        found = result["device"] = on_device(options.device, options.configurations)
        print(
            f"{found['device']}: {found['configurations']} in {found['seconds']:.1f} s, of which "
            f"device {found['device_seconds']:.1f} s; {found['overhead_ms_per_configuration']:.2f} "
            "ms of overhead each"
        )
    options.out.mkdir(parents=True, exist_ok=True)
    name = result["device"]["device"] if options.device.startswith("cuda") else cpu_name()
    file = options.out / f"overhead-{re.sub(r'[^A-Za-z0-9]+', '_', name).strip('_')}.json"
    file.write_text(json.dumps(result, indent=1) + "\n")
    print(file)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--recording", type=Path, default=RECORDED, help="a recorded space")
    parser.add_argument("--strategies", default=STRATEGIES, help="names, separated by commas")
    parser.add_argument("--replayed", type=int, default=10_000, help="configurations replayed")
    parser.add_argument("--device", default="opencl:0", help="empty for none")
    parser.add_argument("--configurations", type=int, default=40, help="measured on the device")
    parser.add_argument("--cores", type=int, default=2, help="0 for all")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    return parser.parse_args()


if __name__ == "__main__":
    main()
