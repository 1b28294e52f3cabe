"""Whether compiling at full load disturbs the times that are measured meanwhile.

The same 30 configurations, of kernels that last over 50 µs, are timed by the worker as a search times
them, again and again: while nothing compiles, and while all cores but one compile other
configurations of ``sgemm`` with a cold cache, as in a search. The passes alternate (idle, busy,
busy, idle …), so that a drift of the device favours neither. Compared are the medians of all samples
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np

from autotune import __version__
from autotune.backends import choose_device
from autotune.bench import Bench
from autotune.catalog import find_kernel
from autotune.compiler import CompileJob, CompilerPool, compile_job
from autotune.device import Device
from autotune.evaluator import DeviceEvaluator
from autotune.measurement import Binary, Measurement, Status
from autotune.process import usable_cores
from autotune.request import Request
from autotune.space import enumerate_space
from autotune.spec import Kernel
from autotune.tasks import Job
from autotune.timing import StoppingRule
from autotune.values import Configuration, Problem

RESULTS = Path(__file__).resolve().parent / "results"
#: Asked: the most that a median may differ.
ASKED = 0.005
#: Shorter ones are not asked about: there a launch counts as much as the kernel.
SHORTEST_MS = 0.05
#: Passes over the configurations; True while compilers are busy. The first, to warm up, is dropped.
PASSES = (False, False, True, True, False, False, True)
#: Every pass takes as many samples of each configuration.
RULE = StoppingRule(min_samples=25, max_samples=25, precision=0.0, false_stop=0.0)


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
        self._pool = CompilerPool(processes)
        self._unused: Iterator[CompileJob] = (
            compile_job(kernel, one, problem, device)
            for one in map(space.configuration, order.tolist())
            if kernel.allows(one, problem)
        )
        self.compiled = 0

    @contextmanager
    def busy(self, jobs: int) -> Iterator[None]:
        """Compile; ends at once with what is still at work.

        Raises
        ------
        RuntimeError
            If there was not enough to compile, so that it ended before.
        """
        given = [job for job, _ in zip(self._unused, range(jobs), strict=False)]
        for job in given:
            self._pool.submit(job)
        while not any(map(self._pool.ready, given)):  # the processes are up
            time.sleep(0.01)
        yield
        done = sum(map(self._pool.ready, given))
        if done > len(given) - 2 * usable_cores():
            raise RuntimeError(f"only {len(given)} jobs: the compilers were idle before the end")
        self.compiled += done
        self._pool.forget()

    def close(self) -> None:
        """End the processes."""
        self._pool.close()


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
            compiled = load.compiled
    result = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "benchmarks/disturbance.py", *sys.argv[1:]]),
        "version": __version__,
        "device": device.name,
        "driver": device.driver,
        "cores": usable_cores(),
        "compiler_processes": processes,
        "compiled_meanwhile": compiled,
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
        passes = [
            _pass(bench, job, {one: binaries[one] for one in chosen}, load if is_busy else None)
            for is_busy in PASSES
        ]
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


def _pass(
    bench: Bench, job: Job, binaries: Mapping[Configuration, Binary], load: Load | None
) -> dict[Configuration, tuple[float, ...]]:
    """Samples of every configuration, all under one condition."""

    def measure_all() -> dict[Configuration, tuple[float, ...]]:
        return {
            one: _measured(bench, job, one, binary).samples_ms for one, binary in binaries.items()
        }

    if load is None:
        return measure_all()
    with load.busy(100 * usable_cores()):
        return measure_all()


def _row(
    kernel: str,
    problem: Problem,
    configuration: Configuration,
    passes: Sequence[tuple[float, ...]],
) -> dict[str, Any]:
    kept = list(zip(PASSES, passes, strict=True))[1:]
    idle = [samples for is_busy, samples in kept if not is_busy]
    busy = [samples for is_busy, samples in kept if is_busy]
    idle_ms, busy_ms = (
        median([one for samples in many for one in samples]) for many in (idle, busy)
    )
    first, *rest = idle
    return {
        "kernel": kernel,
        "problem": dict(problem),
        "configuration": dict(configuration),
        "idle_ms": idle_ms,
        "busy_ms": busy_ms,
        "busy_over_idle": busy_ms / idle_ms,
        "idle_over_idle": median([one for samples in rest for one in samples]) / median(first),
        "passes_ms": [median(samples) for _, samples in kept],
    }


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
