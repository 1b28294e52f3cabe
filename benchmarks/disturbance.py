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
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import groupby, islice
from pathlib import Path
from statistics import fmean, geometric_mean, median
from typing import Any

import numpy as np
from harness import (
    bench_of,
    command_line,
    evaluator_of,
    finish,
    problem_on,
    provenance,
    sampled,
    write,
)

from autotune.arrays import usable_cores
from autotune.devices.binary import Binary
from autotune.devices.choose import choose_device
from autotune.devices.device import Device
from autotune.kernel.catalog import find_kernel
from autotune.kernel.space import enumerate_space
from autotune.measure.compiler import CompileJob, CompilerPool, compile_job
from autotune.measure.measurement import Measurement, Status
from autotune.measure.tasks import Job
from autotune.measure.timing import StoppingRule
from autotune.run.bench import Bench
from autotune.values import Configuration, Problem

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
#: What is timed, on a GPU.
PROBLEMS = {"sgemm": Problem(m=2048, n=2048, k=2048), "transpose": Problem(m=8192, n=8192)}


class CompilerLoad:
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
            compile_job(kernel, configuration, problem, device)
            for configuration in map(space.configuration, order.tolist())
            if kernel.allows(configuration, problem)
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
    """Time all kernels and write the result."""
    options = _arguments()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["AUTOTUNE_CACHE_DIR"] = cache  # cold, or nothing would be compiled
        device = choose_device(options.device)
        processes = max(1, usable_cores() - 1)
        begun = time.monotonic()
        with closing(CompilerLoad(device, processes)) as load:
            count = max(1, options.configurations // len(PROBLEMS))
            rows = [row for name in PROBLEMS for row in timed(name, device, load, count)]
    result = {
        **provenance(device),
        "cores": usable_cores(),
        "compiler_processes": processes,
        "compiled_meanwhile": load.compiled,
        "cores_at_work": {"idle": fmean(load.idle_cores), "busy": fmean(load.busy_cores)},
        "seconds": time.monotonic() - begun,
        "asked": {"busy_over_idle": ASKED},
        "summary": {name: _summary([row[name] for row in rows]) for name in _RATIOS},
        "rows": rows,
    }
    for name, found in result["summary"].items():
        print(f"{name}: " + ", ".join(f"{key} {value:.4%}" for key, value in found.items()))
    print(f"{len(rows)} configurations, {load.compiled} compiled meanwhile")
    write(options.out / f"disturbance-{device.folder}.json", result)


#: What is compared: the conditions, and two halves of the idle passes.
_RATIOS = ("busy_over_idle", "idle_over_idle")


def timed(name: str, device: Device, load: CompilerLoad, count: int) -> list[dict[str, Any]]:
    """Rows of one kernel: the medians of each configuration under either condition."""
    kernel = find_kernel(name)
    problem = problem_on(device, kernel, PROBLEMS[name])
    space = enumerate_space(kernel, device)
    candidates = sampled(kernel, space, problem, 3 * count, most_known=count)
    with bench_of(kernel, device, problem) as (bench, job):
        binaries = _binaries(bench, job, candidates)
        chosen = [
            configuration
            for configuration, binary in binaries.items()
            if _lasts(_measured(bench, job, configuration, binary))
        ][:count]
        passes: list[dict[Configuration, tuple[float, ...]]] = []
        for is_busy, group in groupby(PASSES):
            with load.busy() if is_busy else load.idle():
                passes += [
                    {
                        configuration: _measured(
                            bench, job, configuration, binaries[configuration]
                        ).samples_ms
                        for configuration in chosen
                    }
                    for _ in group
                ]
    return [
        _row(name, problem, configuration, [samples[configuration] for samples in passes])
        for configuration in chosen
    ]


def _binaries(
    bench: Bench, job: Job, configurations: Sequence[Configuration]
) -> dict[Configuration, Binary]:
    evaluator = evaluator_of(bench, job)
    evaluator.hint(configurations)
    binaries = {configuration: evaluator.binary(configuration) for configuration in configurations}
    return {key: binary for key, binary in binaries.items() if binary is not None}


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
    return median([sample_ms for samples in passes for sample_ms in samples])


def _summary(ratios: Sequence[float]) -> dict[str, float]:
    """How far from 1: the typical one, the largest, and all together with their sign."""
    away = [abs(ratio - 1) for ratio in ratios]
    return {
        "median_difference": median(away),
        "largest_difference": max(away),
        "mean": geometric_mean(ratios) - 1,
    }


def _arguments() -> argparse.Namespace:
    parser = command_line(__doc__, "disturbance-<device>.json")
    parser.add_argument("--configurations", type=int, default=30)
    return parser.parse_args()


if __name__ == "__main__":
    finish(main)
