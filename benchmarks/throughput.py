"""Configurations per second: Kernel Tuner 1.5.0 and this package, on the same source and the same list.

Both get one list of configurations and must verify and time each. Kernel Tuner runs `tune_kernel`
(CuPy, brute force, an answer to verify against, 7 iterations) in the order of its search space; this
package runs its whole pipeline (engine, store, compilers, worker) in a random order. The list is
cut in halves and measured as Kernel Tuner, ours, ours, Kernel Tuner, each part in a process of its
own with cold caches, so that a drift of the device favours neither. The answer is computed before,
for both.

What Kernel Tuner cannot express is left out of the list, so that it has the best chance that it
can have: one kernel function per configuration, at most 48 KB of shared memory, no compiler option
that depends on the configuration. So: of ``sgemm`` the portable register tiles without a cap on
registers; of ``reduce`` what ends by the last block (its ticket resets itself); of ``transpose`` the
tiles in shared memory. ``convolution`` (a space of its own next to this file, made for this)
is all compiling: Kernel Tuner, which takes seconds for each, gets a sample of each half, spread evenly over
the sizes of tiles. Grids are numbers that our launch functions computed, and
preprocessor symbols the same text that we give the compiler.

The rate is configurations divided by the time from the first one asked for to the last result. What
comes before (processes, context, upload) is reported separately, as ``startup_s`` of both.
Kernel Tuner's own parts are its own report; of ours ``idle_s`` is when the device process had nothing to do.

    python benchmarks/throughput.py                     # all kernels, some 12 minutes on an H100
    python benchmarks/throughput.py --kernel sgemm      # one; results merge into the same file
    python benchmarks/throughput.py --ours              # our side alone, printed and not written
    python benchmarks/throughput.py --device opencl:cpu --kernel reduce --configurations 4     # a look
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from harness import (
    Waits,
    bench_of,
    command_line,
    evaluator_of,
    finish,
    merge,
    problem_on,
    provenance,
    raced,
    search_timed,
)

from autotune.arrays import usable_cores
from autotune.cli.console import lists
from autotune.data.dataset import EXACT, RANDOM, Dataset
from autotune.data.prepare import prepare_dataset
from autotune.devices.choose import choose_device
from autotune.devices.device import Device
from autotune.kernel import parsing
from autotune.kernel.catalog import find_kernel
from autotune.kernel.includes import flattened
from autotune.kernel.launches import launch_sequence
from autotune.kernel.space import Space, enumerate_space
from autotune.kernel.spec import Kernel, Launch
from autotune.measure.race import Contender
from autotune.run.verdict import ratio
from autotune.search.strategies import in_given_order
from autotune.values import Configuration, Problem

ITERATIONS = 7
#: Of a block, without the opt-in that Kernel Tuner's backends lack.
MOST_SHARED_BYTES = 48 * 1024
#: Kernel Tuner twice, ours twice, and the order undoes a drift that is linear in time.
PARTS = (("kernel_tuner", 0), ("ours", 0), ("ours", 1), ("kernel_tuner", 1))
ROUNDS = 200
#: Names of Kernel Tuner's parameters for the threads of a block in x, y and z.
_BLOCK = ("threads_x", "threads_y", "threads_z")


@dataclass(frozen=True)
class Subspace:
    """A problem, and the part of its kernel's space that Kernel Tuner can express."""

    problem: Problem
    #: As ``--fix`` of `autotune run` has it, with spaces between.
    values: str
    #: How many of them are measured.
    configurations: int
    #: Of how many that is Kernel Tuner's share; 0 where it is all.
    sample: int = 0
    #: As `find_kernel` takes it; the row's name where it is empty.
    kernel: str = ""


#: Folder of the space: this file's folder.
_CONVOLUTION = str(Path(__file__).with_name("convolution") / "convolution.py")
SUBSPACES = {
    "sgemm": Subspace(
        Problem(m=4096, n=4096, k=4096),
        "SOURCE=portable ALG=register BM=64,128 BN=64,128 BK=8,16 TM=4,8 TN=4,8 VEC=2,4 PAD=0,4"
        " UNROLL=2,8 MIN_BLOCKS=1",
        208,
    ),
    "reduce": Subspace(
        Problem(n=1 << 26),
        "SOURCE=portable WAVES=1,2,8,32 WARP_TAIL=barrier,shfl_down FINISH=ticket MIN_BLOCKS=1,2",
        400,
    ),
    "transpose": Subspace(
        Problem(m=8192, n=8192),
        "ALG=shared TILE_X=16,32,64,128 TILE_Y=16,32,64,128 RESIDENT=0 ORDER=row,group GROUP=4,8"
        " LOAD=plain,stream MIN_BLOCKS=1,2",
        208,
    ),
    "convolution_small_tiles": Subspace(
        Problem(width=4096, height=4096), "TILE_X=1,2 TILE_Y=1,2", 168, 12, _CONVOLUTION
    ),
    "convolution": Subspace(Problem(width=4096, height=4096), "", 160, 12, _CONVOLUTION),
}


@dataclass(frozen=True)
class Matchup:
    """What every part of one comparison shares."""

    #: Of `SUBSPACES`.
    name: str
    device: Device
    problem: Problem
    count: int

    @classmethod
    def of(cls, options: argparse.Namespace, name: str) -> Matchup:
        subspace, device = SUBSPACES[name], choose_device(options.device)
        problem = problem_on(device, find_kernel(subspace.kernel or name), subspace.problem)
        return cls(name, device, problem, options.configurations or subspace.configurations)

    @cached_property
    def kernel(self) -> Kernel:
        return find_kernel(SUBSPACES[self.name].kernel or self.name)

    def space(self) -> Space:
        """The part of the space that can be expressed."""
        chosen = parsing.restriction(
            self.kernel.name,
            self.kernel.parameters,
            lists(SUBSPACES[self.name].values.split()),
        )
        if self.device.backend != "cuda":  # parameters that mean nothing there have their one value
            ours = {"MIN_BLOCKS": (1,), "LOAD": ("plain",)}
            chosen |= {name: ours[name] for name in ours if name in self.kernel.parameters}
        return enumerate_space(self.kernel, self.device).restricted(chosen)

    def order(self, space: Space, half: int) -> list[int]:
        """Numbers of one half's configurations: a sample of the space that the count decides."""
        drawn = np.random.default_rng(self.count).permutation(len(space)).tolist()
        fitting = (index for index in drawn if self._is_expressible(space.configuration(index)))
        return list(islice(fitting, self.count))[half::2]

    def kernel_tuners(self, space: Space, half: int) -> list[int]:
        """Of one half what Kernel Tuner measures: all, or as many evenly spread over the space."""
        order, sample = sorted(self.order(space, half)), SUBSPACES[self.name].sample
        if not sample or 2 * len(order) <= sample:
            return order
        places = np.linspace(0, len(order), sample // 2, endpoint=False) + len(order) / sample
        return [order[int(place)] for place in places]

    def _is_expressible(self, configuration: Configuration) -> bool:
        steps = launch_sequence(self.kernel, configuration, self.problem, self.device)
        return len(steps.launches) == 1 and steps.main.shared_bytes <= MOST_SHARED_BYTES

    def datasets(self) -> tuple[Dataset, ...]:
        return tuple(prepare_dataset(self.kernel, self.problem, name) for name in (EXACT, RANDOM))


# ------------------------------------------------------------------ ours


def run_ours(matchup: Matchup, half: int) -> dict[str, Any]:
    """Measure one half by the whole pipeline; return times and where they went."""
    space = matchup.space()
    order = matchup.order(space, half)
    begun = time.perf_counter()
    with bench_of(matchup.kernel, matchup.device, matchup.problem) as (bench, job):
        device = Waits(bench.worker, "measure")
        with evaluator_of(bench, job) as evaluator:
            startup_s = time.perf_counter() - begun
            scope = bench.scope(matchup.problem)
            done = search_timed(space, evaluator, scope, in_given_order(order))
    measured = done.measurements
    verify_s = sum(measurement.verify_s for measurement in measured)
    benchmark_s = sum(measurement.measure_s for measurement in measured)
    best = min(
        (measurement for measurement in measured if measurement.median_ms is not None),
        key=lambda measurement: measurement.median_ms or 0.0,
    )
    return {
        "configurations": len(measured),
        "startup_s": startup_s,
        "wall_s": done.seconds,
        "statuses": Counter(str(measurement.status) for measurement in measured),
        "compile_in_all_processes_s": sum(measurement.compile_s for measurement in measured),
        "verify_s": verify_s,
        "benchmark_s": benchmark_s,
        "device_process_s": device.seconds,
        "idle_s": done.seconds - device.seconds,
        "launches_s": sum(sum(measurement.samples_ms) for measurement in measured) / 1000,
        "samples": sum(len(measurement.samples_ms) for measurement in measured),
        "winner": dict(best.configuration),
        "winner_ms": best.median_ms,
    }


# ------------------------------------------------------------------ Kernel Tuner


class Expressed:
    """A list of configurations in the words of Kernel Tuner.

    Its search space is the product of the values that occur, sizes of blocks among them; a
    restriction leaves those of the list.
    """

    def __init__(
        self,
        kernel: Kernel,
        problem: Problem,
        device: Device,
        configurations: Sequence[Configuration],
    ) -> None:
        self.kernel, self.device = kernel, device
        self.source = flattened(kernel.source_file(configurations[0])).text
        sequences = [
            launch_sequence(kernel, configuration, problem, device)
            for configuration in configurations
        ]
        self.launches = [sequence.main for sequence in sequences]
        points = [
            {**configuration, **dict(zip(_BLOCK, (*launch.block, 1, 1), strict=False))}
            for configuration, launch in zip(configurations, self.launches, strict=True)
        ]
        self._names = list(points[0])
        keys = list(map(self._key, points))
        self._launches = dict(zip(keys, self.launches, strict=True))
        self._defines = {
            key: kernel.macros(configuration, problem, device)
            for key, configuration in zip(keys, configurations, strict=True)
        }
        self.tune_params = {
            name: sorted({point[name] for point in points}, key=str) for name in self._names
        }

    def _key(self, params: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(params[name] for name in self._names)

    def is_listed(self, params: Mapping[str, Any]) -> bool:
        return self._key(params) in self._launches

    def launch(self, params: Mapping[str, Any]) -> Launch:
        return self._launches[self._key(params)]

    def defines(self) -> dict[str, Callable[[Mapping[str, Any]], str]]:
        """Preprocessor symbols as functions of a configuration."""
        names = next(iter(self._defines.values()))
        return {name: partial(self._define, name) for name in names}

    def _define(self, name: str, params: Mapping[str, Any]) -> str:
        return self._defines[self._key(params)][name]

    def tune(
        self, arguments: list[Any], answer: list[Any], tolerance: float, **options: Any
    ) -> list[dict[str, Any]]:
        """Run `tune_kernel` on arguments in the kernel's order; ``answer`` is None for inputs."""
        import kernel_tuner

        by_backend: dict[str, Any] = {"lang": "OpenCL", "compiler_options": ["-cl-std=CL3.0"]}
        if self.device.backend == "cuda":
            by_backend = {
                "lang": "CuPy",
                "compiler_options": ["-std=c++17"],
                "smem_args": {"size": lambda params: self.launch(params).shared_bytes},
            }
            _pad_uuid()
        results, _ = kernel_tuner.tune_kernel(
            self.launches[0].entry or self.kernel.name,
            self.source,
            lambda params: self.launch(params).grid,
            arguments,
            self.tune_params,
            grid_div_x=[],
            grid_div_y=[],
            grid_div_z=[],
            block_size_names=list(_BLOCK),
            restrictions=self.is_listed,
            answer=answer,
            atol=tolerance,
            defines=self.defines(),
            platform=0,
            device=self.device.index,
            iterations=ITERATIONS,
            quiet=True,
            verbose=False,
            **by_backend,
            **options,
        )
        return list(results)


def _pad_uuid() -> None:
    """Let Kernel Tuner run on a GPU whose identifier holds a zero byte.

    CuPy ends the bytes of the identifier there, as in a C string, and Kernel Tuner stops at an
    identifier of fewer than 16 (`ValueError: bytes is not a 16-char string`).
    """
    import cupy

    whole = cupy.cuda.runtime.getDeviceProperties

    def padded(device: int) -> dict[str, Any]:
        properties: dict[str, Any] = whole(device)
        return {**properties, "uuid": properties["uuid"].ljust(16, b"\0")}

    cupy.cuda.runtime.getDeviceProperties = padded


def run_kernel_tuner(matchup: Matchup, half: int) -> dict[str, Any]:
    """Measure one half by `tune_kernel`; return its own account of the time."""
    space = matchup.space()
    configurations = [space.configuration(index) for index in matchup.kernel_tuners(space, half)]
    _, dataset = matchup.datasets()
    kernel = matchup.kernel
    expressed = Expressed(kernel, matchup.problem, matchup.device, configurations)
    arguments, answer, tolerance = _arguments(dataset, expressed.launches)
    begun = time.perf_counter()
    results = expressed.tune(arguments, answer, tolerance, strategy="brute_force")
    wall = time.perf_counter() - begun
    timed = [row for row in results if isinstance(row.get("time"), float) and row["time"] < 1e20]
    spent = {
        name: sum(row.get(f"{name}_time", 0.0) for row in results) / 1000
        for name in ("compile", "verification", "benchmark", "strategy", "framework")
    }
    best = min(timed, key=lambda row: row["time"])
    return {
        "configurations": len(results),
        "startup_s": wall - sum(spent.values()),
        "wall_s": sum(spent.values()),
        "statuses": {"ok": len(timed), "failed": len(results) - len(timed)},
        "compile_s": spent["compile"],
        "verify_s": spent["verification"],
        "benchmark_s": spent["benchmark"],
        "framework_s": spent["strategy"] + spent["framework"],
        "launches_s": sum(sum(row["times"]) for row in timed) / 1000,
        "samples": ITERATIONS * len(timed),
        "winner": {name: best[name] for name in kernel.parameters},
        "winner_ms": best["time"],
    }


def _arguments(dataset: Dataset, launches: list[Launch]) -> tuple[list[Any], list[Any], float]:
    """Return arguments in the kernel's order, their expected results, and the largest tolerance."""
    values: dict[str, Any] = {}
    answers: dict[str, Any] = {}
    for argument in dataset.arguments:
        if argument.kind == "scalar":
            values[argument.name] = argument.scalar
        elif argument.kind == "out":
            values[argument.name] = np.zeros(argument.shape, argument.dtype)
        else:
            values[argument.name] = np.array(dataset.array(argument.name))
        if argument.kind in ("out", "inout"):
            answers[argument.name] = dataset.expected(argument.name).astype(argument.dtype)
    # The workspace of `reduce`: as large as any configuration needs.
    blocks = max(int(np.prod(launch.grid)) for launch in launches)
    values["partial"] = np.zeros(blocks, np.float32)
    values["ticket"] = np.zeros(1, np.uint32)
    order = launches[0].args or [argument.name for argument in dataset.arguments]
    arguments = [values[name] for name in order]
    return arguments, [answers.get(name) for name in order], max(dataset.bounds.values())


# ------------------------------------------------------------------ the comparison


def run_race(matchup: Matchup, winners: Mapping[str, Configuration]) -> dict[str, Any]:
    """Time both winners interleaved, and ours under a second name: how far equals differ."""
    chosen = [winners["ours"], winners["kernel_tuner"], winners["ours"]]
    with bench_of(matchup.kernel, matchup.device, matchup.problem) as (bench, job):
        evaluator = evaluator_of(bench, job)
        contenders = [
            Contender(configuration, evaluator.binary(configuration)) for configuration in chosen
        ]
        ours, theirs, again = raced(bench.worker, job, contenders, ROUNDS)
    between, itself = ratio(theirs, ours), ratio(again, ours)
    return {
        "ours_ms": median(ours),
        "kernel_tuner_ms": median(theirs),
        "same_configuration": chosen[0] == chosen[1],
        "kernel_tuner_over_ours": between.value,
        "interval_95": [between.low, between.high],
        "ours_over_itself": itself.value,
        "ours_over_itself_interval_95": [itself.low, itself.high],
        "rounds": len(ours),
    }


class Parts:
    """The parts of one kernel's comparison, each in a process of its own with cold caches."""

    def __init__(self, options: argparse.Namespace, name: str, cache: str) -> None:
        self._options, self._name = options, name
        # Inputs and answers are made once, before the clock runs; binaries of one half are no use
        # to the other.
        self._environment = {**os.environ, "AUTOTUNE_CACHE_DIR": cache, "PYOPENCL_NO_CACHE": "1"}
        self.run("inputs")

    def run(self, part: str, half: int = 0, winners: Mapping[str, Any] | None = None) -> Any:
        """Run a part; what it prints last is its result."""
        command = [
            *(sys.executable, __file__, "--kernel", self._name, "--part", part),
            *("--half", str(half), "--configurations", str(self._options.configurations)),
            *(("--device", self._options.device) if self._options.device else ()),
            *(("--winners", json.dumps(winners)) if winners else ()),
        ]
        with tempfile.TemporaryDirectory() as cupy_cache:
            environment = {**self._environment, "CUPY_CACHE_DIR": cupy_cache}
            done = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, text=True, check=True
            )
        return json.loads(done.stdout.strip().splitlines()[-1])

    def halves(self, order: tuple[tuple[str, int], ...]) -> dict[str, dict[str, Any]]:
        """Measure halves of the list in this order; by tool what its halves come to."""
        found: dict[str, list[dict[str, Any]]] = {}
        for tool, half in order:
            done = self.run(tool, half)
            found.setdefault(tool, []).append(done)
            print(
                f"{self._name} {tool} half {half}: {done['configurations']} in {done['wall_s']:.1f} s "
                f"({_per_s(done):.2f}/s), startup {done['startup_s']:.1f} s",
                flush=True,
            )
        return {tool: _added(halves) for tool, halves in found.items()}


def compare(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """Run all parts of one kernel; return the row."""
    with tempfile.TemporaryDirectory() as cache:
        parts = Parts(options, name, cache)
        found = parts.halves(PARTS)
        race = parts.run("race", winners={tool: half["winner"] for tool, half in found.items()})
    ours, theirs = found["ours"], found["kernel_tuner"]
    if ours["configurations"] != theirs["configurations"] and not SUBSPACES[name].sample:
        raise SystemExit(
            f"{name}: ours measured {ours['configurations']}, Kernel Tuner {theirs['configurations']}"
        )
    return {
        "kernel": name,
        "problem": dict(Matchup.of(options, name).problem),
        "configurations": ours["configurations"],
        "kernel_tuner_configurations": theirs["configurations"],
        "ours_per_s": _per_s(ours),
        "kernel_tuner_per_s": _per_s(theirs),
        "ratio": _per_s(ours) / _per_s(theirs),
        "ratio_with_startup": _per_s(ours, "startup_s") / _per_s(theirs, "startup_s"),
        "share_of_wall_measuring": (ours["verify_s"] + ours["benchmark_s"]) / ours["wall_s"],
        "ours": ours,
        "kernel_tuner": theirs,
        "winners": race,
    }


def _per_s(found: Mapping[str, Any], *more: str) -> float:
    """Configurations per second of wall time, and of what else is named."""
    return float(found["configurations"] / sum(found[key] for key in ("wall_s", *more)))


def _added(halves: list[dict[str, Any]]) -> dict[str, Any]:
    """Both halves together: sums, and the better winner."""
    best = min(halves, key=lambda half: half["winner_ms"])
    total = {
        key: sum(half[key] for half in halves)
        for key in best
        if key != "statuses" and not key.startswith("winner")
    }
    statuses = sum((Counter(half["statuses"]) for half in halves), Counter[str]())
    winner = {key: value for key, value in best.items() if key.startswith("winner")}
    return {**total, "statuses": dict(sorted(statuses.items())), **winner}


def run_part(options: argparse.Namespace) -> dict[str, Any]:
    """What a process of `Parts` does."""
    matchup = Matchup.of(options, options.kernel)
    if options.part == "inputs":
        matchup.datasets()
        return {}
    if options.part == "race":
        winners = json.loads(options.winners)
        return run_race(matchup, {tool: Configuration(values) for tool, values in winners.items()})
    run = run_ours if options.part == "ours" else run_kernel_tuner
    return run(matchup, options.half)


def about(device: Device) -> dict[str, Any]:
    """What each row says of how it was measured."""
    versions = {name: version(name) for name in ("kernel_tuner", "numpy")}
    python = platform.python_version()
    return {
        **provenance(device), "cores": usable_cores(), "python": python, "versions": versions
    }  # fmt: skip


def main() -> None:
    options = _options()
    if options.part:
        print(json.dumps(run_part(options)))
        return
    device = choose_device(options.device)
    for name in [options.kernel] if options.kernel else SUBSPACES:
        if device.backend not in find_kernel(SUBSPACES[name].kernel or name).backends:
            print(f"{name}: not on {device.selector}, its source is for other backends", flush=True)
            continue
        if options.ours:
            with tempfile.TemporaryDirectory() as cache:
                ours = Parts(options, name, cache).halves(PARTS[1:3])["ours"]
            print(f"{name}: ours {_per_s(ours):.2f}/s: {json.dumps(ours)}", flush=True)
            continue
        row = compare(options, name)
        print(
            f"{name}: {row['configurations']} configurations, ours {row['ours_per_s']:.2f}/s, "
            f"Kernel Tuner {row['kernel_tuner_per_s']:.2f}/s, ratio {row['ratio']:.1f} "
            f"({row['ratio_with_startup']:.1f} with startup), measuring "
            f"{row['share_of_wall_measuring']:.0%} of the time; winner's time over ours "
            f"{row['winners']['kernel_tuner_over_ours']:.4f}",
            flush=True,
        )
        merge(options.out / f"throughput-{device.folder}.json", {**row, **about(device)})


def _options() -> argparse.Namespace:
    parser = command_line(__doc__, "throughput-<device>.json", "cuda:0")
    parser.add_argument("--kernel", choices=SUBSPACES, help="default: all")
    parser.add_argument(
        "--configurations", type=int, default=0, help="default: by kernel, 160 to 400"
    )
    parser.add_argument("--ours", action="store_true", help="measure our side only, write nothing")
    for hidden in ("--part", "--winners"):
        parser.add_argument(hidden, default="", help=argparse.SUPPRESS)
    parser.add_argument("--half", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    finish(main)
