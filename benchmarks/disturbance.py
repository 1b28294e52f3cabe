"""Whether compiling at full load disturbs the times that are measured meanwhile.

The same 30 configurations, of kernels that last over 50 µs, are timed by the worker as a search times
them, again and again: while nothing compiles, and while all cores but one compile other
configurations of ``sgemm`` with a cold cache, as in a search. The passes alternate, so that a
drift of the device favours neither. Compared are the medians of all samples
of a configuration under either condition; beside it stand the idle passes compared with each
other: what would be seen if compiling changed nothing.

    python benchmarks/disturbance.py                      # some 40 s on an H100
    python benchmarks/disturbance.py --device opencl:cpu --configurations 4     # a look
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby, islice
from pathlib import Path
from statistics import fmean, geometric_mean, median
from typing import Any

import numpy as np

from autotune import __version__
from autotune.arrays import usable_cores
from autotune.devices.binary import Binary
from autotune.devices.choose import choose_device
from autotune.devices.device import Device
from autotune.kernel.catalog import find_kernel
from autotune.kernel.space import enumerate_space
from autotune.kernel.spec import Kernel
from autotune.measure.compiler import CompileJob, CompilerPool, compile_job
from autotune.measure.evaluator import DeviceEvaluator
from autotune.measure.measurement import Measurement, Status
from autotune.measure.tasks import Job
from autotune.measure.timing import StoppingRule
from autotune.run.bench import Bench
from autotune.run.request import Request
from autotune.values import Configuration, Problem

RESULTS = Path(__file__).resolve().parent / "results"
#: Asked: the most that a median may differ.
ASKED = 0.005
#: Shorter ones are not asked about: there a launch counts as much as the kernel.
SHORTEST_MS = 0.05
#: Passes over the configurations; True while compilers are busy. The first, to warm up, is dropped.
PASSES = (False, False, True, True, True, False, False, False, True, True, True, False)
#: Every pass takes as many samples of each configuration.
RULE = StoppingRule(min_samples=15, max_samples=15, precision=0.0, false_stop=0.0)
#: What each compiler process is given: more than it gets through.
_JOBS_OF_EACH = 100


@dataclass(frozen=True)
class Subject:
    """A kernel, its problem, and one for a device without much speed."""

    kernel: str
    problem: Problem
    small: Problem


SUBJECTS = (
    Subject("sgemm", Problem(m=2048, n=2048, k=2048), Problem(m=256, n=256, k=256)),
    Subject("transpose", Problem(m=8192, n=8192), Problem(m=1024, n=1024)),
)


class Load:
    """Compilers at work on as much as the measuring could ever wait for.

    Parameters
    ----------
    device : Device
        Which is compiled for.
    processes : int
        That compile at once.
    """

    def __init__(self, device: Device, processes: int) -> None:
        kernel = find_kernel("sgemm")
        problem = Problem(m=512, n=512, k=512)
        space = enumerate_space(kernel, device)
        order = np.random.default_rng(1).permutation(len(space))
        self._processes = processes
        self._pool = CompilerPool(processes)
        self._unused: Iterator[CompileJob] = (
            compile_job(kernel, one, problem, device)
            for one in map(space.configuration, order.tolist())
            if kernel.allows(one, problem)
        )
        #: Of what ended while something was measured.
        self.compiled = 0
        #: Cores at work, by stretch of either condition.
        self.busy_cores: list[float] = []
        self.idle_cores: list[float] = []

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Compile on all processes, which are up before this begins; ends with what is at work.

        Raises
        ------
        RuntimeError
            If there was not enough to compile, so that it ended before.
        """
        given = list(islice(self._unused, _JOBS_OF_EACH * self._processes))
        for job in given:
            self._pool.submit(job)
        while self._done(given) < self._processes:
            time.sleep(0.01)
        before = self._done(given)
        with self._counted(self.busy_cores):
            yield
        done = self._done(given)
        if done > len(given) - self._processes:
            raise RuntimeError(f"only {len(given)} jobs: the compilers were idle before the end")
        self.compiled += done - before
        self._pool.forget()

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Compile nothing."""
        with self._counted(self.idle_cores):
            yield

    def _done(self, jobs: Sequence[CompileJob]) -> int:
        return sum(map(self._pool.ready, jobs))

    @contextmanager
    def _counted(self, cores: list[float]) -> Iterator[None]:
        """Note how many cores our children kept at work, the device process included."""
        start, worked = time.monotonic(), _core_seconds()
        yield
        cores.append((_core_seconds() - worked) / (time.monotonic() - start))

    def close(self) -> None:
        """End the processes."""
        self._pool.close()


def _core_seconds() -> float:
    """Processor time of all child processes that live (proc(5), /proc/PID/stat)."""
    ticks = 0
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            fields = file.read_text().rpartition(")")[2].split()
            if int(fields[1]) == os.getpid():
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Time all subjects and write the result."""
    options = _arguments()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["AUTOTUNE_CACHE_DIR"] = cache  # cold, or nothing would be compiled
        device = choose_device(options.device)
        processes = max(1, usable_cores() - 1)
        begun = time.monotonic()
        with closing(Load(device, processes)) as load:
            rows = [
                row
                for subject in SUBJECTS
                for row in timed(subject, device, load, options.configurations // len(SUBJECTS))
            ]
            compiled, cores = load.compiled, (load.idle_cores, load.busy_cores)
    result = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "benchmarks/disturbance.py", *sys.argv[1:]]),
        "version": __version__,
        "device": device.name,
        "driver": device.driver,
        "cores": usable_cores(),
        "compiler_processes": processes,
        "compiled_meanwhile": compiled,
        "cores_at_work": {
            name: fmean(one) for name, one in zip(("idle", "busy"), cores, strict=True)
        },
        "seconds": time.monotonic() - begun,
        "asked": {"busy_over_idle": ASKED},
        "summary": {name: _summary([row[name] for row in rows]) for name in _RATIOS},
        "rows": rows,
    }
    out = options.out or RESULTS / f"disturbance-{device.folder}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for name, found in result["summary"].items():
        print(f"{name}: " + ", ".join(f"{key} {value:.4%}" for key, value in found.items()))
    print(f"{len(rows)} configurations, {compiled} compiled meanwhile; written to {out}")


#: What is compared: the conditions, and two halves of the idle passes.
_RATIOS = ("busy_over_idle", "idle_over_idle")


def timed(subject: Subject, device: Device, load: Load, count: int) -> list[dict[str, Any]]:
    """Rows of one kernel: the medians of each configuration under either condition."""
    kernel = find_kernel(subject.kernel)
    problem = subject.problem if device.backend == "cuda" else subject.small
    with closing(Bench(Request(kernel, device, (problem,)))) as bench:
        job = bench.job(problem)
        binaries = _binaries(bench, job, _some(kernel, device, problem, 3 * count))
        first = {one: _measured(bench, job, one, binary) for one, binary in binaries.items()}
        chosen = [one for one, found in first.items() if _lasts(found)][:count]
        passes: list[dict[Configuration, tuple[float, ...]]] = []
        for is_busy, group in groupby(PASSES):
            with load.busy() if is_busy else load.idle():
                for _ in group:
                    samples = {
                        one: _measured(bench, job, one, binaries[one]).samples_ms for one in chosen
                    }
                    passes.append(samples)
    return [_row(subject.kernel, problem, one, [found[one] for found in passes]) for one in chosen]


def _some(kernel: Kernel, device: Device, problem: Problem, count: int) -> list[Configuration]:
    """Seeds, then some of the space at random."""
    space = enumerate_space(kernel, device)
    order = np.random.default_rng(0).permutation(len(space))[:count].tolist()
    seeds = [kernel.completed(one) for one in kernel.seeds]
    known = [one for one in seeds if one in space][: count // 3]
    everyone = dict.fromkeys([*known, *map(space.configuration, order)])
    return [one for one in everyone if kernel.allows(one, problem)][:count]


def _binaries(
    bench: Bench, job: Job, configurations: Sequence[Configuration]
) -> dict[Configuration, Binary]:
    evaluator = DeviceEvaluator(bench.kernel, job, bench.compilers, bench.worker)
    evaluator.hint(configurations)
    binaries = {one: evaluator.binary(one) for one in configurations}
    return {one: binary for one, binary in binaries.items() if binary is not None}


def _lasts(found: Measurement) -> bool:
    return found.status is Status.OK and (found.median_ms or 0.0) >= SHORTEST_MS


def _measured(bench: Bench, job: Job, configuration: Configuration, binary: Binary) -> Measurement:
    return bench.worker.measure(job, configuration, binary, RULE, ())


def _row(
    kernel: str,
    problem: Problem,
    configuration: Configuration,
    passes: Sequence[tuple[float, ...]],
) -> dict[str, Any]:
    kept = list(zip(PASSES, passes, strict=True))[1:]
    idle = [samples for is_busy, samples in kept if not is_busy]
    busy = [samples for is_busy, samples in kept if is_busy]
    idle_ms, busy_ms = _pooled(idle), _pooled(busy)
    return {
        "kernel": kernel,
        "problem": dict(problem),
        "configuration": dict(configuration),
        "idle_ms": idle_ms,
        "busy_ms": busy_ms,
        "busy_over_idle": busy_ms / idle_ms,
        "idle_over_idle": _pooled(idle[::2]) / _pooled(idle[1::2]),
        "passes_ms": [median(samples) for _, samples in kept],
    }


def _pooled(passes: Sequence[tuple[float, ...]]) -> float:
    return median([one for samples in passes for one in samples])


def _summary(ratios: Sequence[float]) -> dict[str, float]:
    """How far from 1: the typical one, the largest, and all together with their sign."""
    away = [abs(one - 1) for one in ratios]
    return {
        "median_difference": median(away),
        "largest_difference": max(away),
        "mean": geometric_mean(ratios) - 1,
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", help="cuda:0, opencl:cpu … (default: the first usable)")
    parser.add_argument("--configurations", type=int, default=30)
    parser.add_argument("--out", type=Path, help="JSON file (default: benchmarks/results/)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
