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
registers; of ``reduce`` what ends by an atomic or by the last block (its ticket resets itself, and
Kernel Tuner zeroes ``out`` before it verifies; what later launches add up there nobody looks at); of
``transpose`` the tiles in shared memory. Grids are numbers that our launch functions computed, and
preprocessor symbols the same text that we give the compiler.

The rate is configurations divided by the time from the first one asked for to the last result. What
comes before (processes, context, upload) is reported beside it as ``startup_s`` of both.
Kernel Tuner's own parts are its own report; ours are told apart by what the main process waited for.

    python benchmarks/throughput.py                     # all three kernels, some 8 minutes on an H100
    python benchmarks/throughput.py --kernel sgemm      # one; results merge into the same file
    python benchmarks/throughput.py --kernel reduce --configurations 40     # a look
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from autotune import __version__
from autotune.arrays import usable_cores
from autotune.devices.choose import choose_device
from autotune.devices.device import Device
from autotune.kernel.catalog import find_kernel
from autotune.kernel.launches import launch_sequence
from autotune.kernel.source import flattened
from autotune.kernel.space import Space, enumerate_space
from autotune.kernel.spec import Kernel, Launch
from autotune.measure.data import EXACT, RANDOM, Dataset, prepare
from autotune.measure.evaluator import DeviceEvaluator
from autotune.measure.racing import race
from autotune.measure.several import SeveralEvaluator
from autotune.measure.tasks import Contender
from autotune.run.bench import Bench, stopping_rule
from autotune.run.request import Request
from autotune.search.session import Budget, SearchSession, search
from autotune.search.simple import in_given_order
from autotune.store import RunInfo, Store
from autotune.values import Configuration, Problem

RESULTS = Path(__file__).resolve().parent / "results"
ITERATIONS = 7
#: Of a block, without the opt-in that Kernel Tuner's backends lack.
MOST_SHARED_BYTES = 48 * 1024
#: Kernel Tuner twice, ours twice, and the order undoes a drift that is linear in time.
PARTS = (("kernel_tuner", 0), ("ours", 0), ("ours", 1), ("kernel_tuner", 1))
ROUNDS = 200


@dataclass(frozen=True)
class Subject:
    """A kernel, a problem, and the part of its space that Kernel Tuner can express."""

    problem: Problem
    values: Mapping[str, tuple[Any, ...]]
    #: The problem for a device without much speed, to try this script on.
    small: Problem
    configurations: int


SUBJECTS = {
    "sgemm": Subject(
        Problem(m=4096, n=4096, k=4096),
        {
            "VARIANT": ("portable",),
            "ALG": ("register",),
            "BM": (64, 128),
            "BN": (64, 128),
            "BK": (8, 16),
            "TM": (4, 8),
            "TN": (4, 8),
            "VEC": (2, 4),
            "PAD": (0, 4),
            "UNROLL": (2, 8),
            "MIN_BLOCKS": (1,),
            "MAX_REGISTERS": (0,),
        },
        Problem(m=256, n=256, k=256),
        208,
    ),
    "reduce": Subject(
        Problem(n=1 << 26),
        {
            "VARIANT": ("portable",),
            "WAVES": (1, 2, 8, 32),
            "WARP_TAIL": ("barrier", "shfl_down"),
            "FINISH": ("atomic", "ticket"),
            "MIN_BLOCKS": (1, 2),
        },
        Problem(n=1 << 20),
        400,
    ),
    "transpose": Subject(
        Problem(m=8192, n=8192),
        {
            "ALG": ("shared",),
            "TILE_X": (16, 32, 64, 128),
            "TILE_Y": (16, 32, 64, 128),
            "RESIDENT": (0,),
            "ORDER": ("row", "group"),
            "GROUP": (4, 8),
            "LOAD": ("plain", "stream"),
            "MIN_BLOCKS": (1, 2),
        },
        Problem(m=512, n=512),
        208,
    ),
}


@dataclass(frozen=True)
class Setting:
    """What every part of one comparison shares."""

    kernel_name: str
    device: Device
    problem: Problem
    count: int

    @classmethod
    def of(cls, options: argparse.Namespace, name: str) -> Setting:
        subject, device = SUBJECTS[name], choose_device(options.device)
        problem = subject.problem if device.backend == "cuda" else subject.small
        return cls(name, device, problem, options.configurations or subject.configurations)

    @cached_property
    def kernel(self) -> Kernel:
        return find_kernel(self.kernel_name)

    def space(self) -> Space:
        """The part of the space that the subject names."""
        kernel = self.kernel
        chosen = SUBJECTS[self.kernel_name].values
        if self.device.backend != "cuda":  # parameters that mean nothing there have their one value
            chosen = {**chosen, "MIN_BLOCKS": (1,), "LOAD": ("plain",)}
        chosen = {name: chosen[name] for name in chosen if name in kernel.parameters}
        return enumerate_space(kernel, self.device).restricted(chosen)

    def order(self, space: Space, half: int) -> list[int]:
        """Numbers of one half's configurations: a sample of the space that the count decides."""
        drawn = np.random.default_rng(self.count).permutation(len(space)).tolist()
        fitting = (index for index in drawn if self._is_expressible(space.configuration(index)))
        return list(islice(fitting, self.count))[half::2]

    def _is_expressible(self, configuration: Configuration) -> bool:
        steps = launch_sequence(self.kernel, configuration, self.problem, self.device)
        return len(steps.launches) == 1 and steps.first.shared_bytes <= MOST_SHARED_BYTES

    def datasets(self) -> tuple[Dataset, ...]:
        """Inputs and answers; made where they are not there."""
        return tuple(prepare(self.kernel, self.problem, name) for name in (EXACT, RANDOM))

    def bench(self) -> Bench:
        return Bench(Request(self.kernel, self.device, (self.problem,)))


# ------------------------------------------------------------------ ours


def run_ours(setting: Setting, half: int) -> dict[str, Any]:
    """Measure one half by the whole pipeline; return times and where they went."""
    space = setting.space()
    order = setting.order(space, half)
    begun = time.perf_counter()
    with ExitStack() as stack:
        bench = setting.bench()
        stack.callback(bench.close)
        job = bench.job(setting.problem)
        bench.worker.prepare(job)
        store = stack.enter_context(
            Store.open(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "store.sqlite")
        )
        waits = _Waits(bench)
        single = DeviceEvaluator(
            bench.kernel, job, bench.compilers, bench.worker, stopping_rule(setting.device)
        )
        is_gpu = setting.device.backend == "cuda"  # as `Tuning` does
        evaluator = stack.enter_context(SeveralEvaluator([single])) if is_gpu else single
        ready = time.perf_counter()
        session = SearchSession(
            space,
            evaluator,
            store,
            store.begin_run(
                RunInfo(setting.kernel_name, setting.device.name, "given", 0, "", "throughput")
            ),
            bench.scope(setting.problem),
            Budget(),
        )
        measured = list(search(session, in_given_order(order), 0).values())
        ended = time.perf_counter()
    timed = [one for one in measured if one.median_ms is not None]
    verify_s, benchmark_s = (
        sum(one.verify_s for one in measured),
        sum(one.measure_s for one in measured),
    )
    wall = ended - ready
    best = min(timed, key=lambda one: one.median_ms or 0.0)
    return {
        "configurations": len(measured),
        "startup_s": ready - begun,
        "wall_s": wall,
        "statuses": _counts(str(one.status) for one in measured),
        "compile_in_all_processes_s": sum(one.compile_s for one in measured),
        "compile_s": waits.compiler_s,
        "verify_s": verify_s,
        "benchmark_s": benchmark_s,
        "device_process_s": waits.device_s,
        "framework_s": wall - waits.compiler_s - verify_s - benchmark_s,
        "launches_s": sum(sum(one.samples_ms) for one in measured) / 1000,
        "samples": sum(len(one.samples_ms) for one in measured),
        "winner": dict(best.configuration),
        "winner_ms": best.median_ms,
    }


class _Waits:
    """How long whoever measures waited for compilers and for the device process."""

    def __init__(self, bench: Bench) -> None:
        self.compiler_s = self.device_s = 0.0
        result, measure = bench.compilers.result, bench.worker.measure

        def timed_result(*args: Any) -> Any:
            start = time.perf_counter()
            try:
                return result(*args)
            finally:
                self.compiler_s += time.perf_counter() - start

        def timed_measure(*args: Any) -> Any:
            start = time.perf_counter()
            try:
                return measure(*args)
            finally:
                self.device_s += time.perf_counter() - start

        bench.compilers.result, bench.worker.measure = timed_result, timed_measure  # type: ignore[method-assign]


# ------------------------------------------------------------------ Kernel Tuner


class Expressed:
    """A list of configurations in the words of Kernel Tuner.

    Its search space is the product of the values that occur, threads per block among them; a
    restriction leaves those of the list.
    """

    def __init__(self, setting: Setting, configurations: list[Configuration]) -> None:
        kernel, problem = setting.kernel, setting.problem
        launches = [
            launch_sequence(kernel, one, problem, setting.device).first for one in configurations
        ]
        points = [
            {**one, "threads": int(np.prod(launch.block))}
            for one, launch in zip(configurations, launches, strict=True)
        ]
        self._names = list(points[0])
        self._launches = {self._key(p): one for p, one in zip(points, launches, strict=True)}
        self._defines = {
            self._key(p): kernel.defines(one, problem)
            for p, one in zip(points, configurations, strict=True)
        }
        self.launches = launches
        self.tune_params = {
            name: sorted({one[name] for one in points}, key=str) for name in self._names
        }

    def _key(self, params: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(params[name] for name in self._names)

    def is_listed(self, params: Mapping[str, Any]) -> bool:
        """The restriction."""
        return self._key(params) in self._launches

    def launch(self, params: Mapping[str, Any]) -> Launch:
        return self._launches[self._key(params)]

    def defines(self) -> dict[str, Callable[[Mapping[str, Any]], str]]:
        """Preprocessor symbols as functions of a configuration."""
        names = next(iter(self._defines.values()))
        return {name: partial(self._define, name) for name in names}

    def _define(self, name: str, params: Mapping[str, Any]) -> str:
        return self._defines[self._key(params)][name]


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


def run_kernel_tuner(setting: Setting, half: int) -> dict[str, Any]:
    """Measure one half by `tune_kernel`; return its own account of the time."""
    import kernel_tuner

    space = setting.space()
    configurations = [space.configuration(index) for index in setting.order(space, half)]
    dataset = next(one for one in setting.datasets() if one.name == RANDOM)
    kernel, device = setting.kernel, setting.device
    expressed = Expressed(setting, configurations)
    arguments, answer, tolerance = _arguments(dataset, expressed.launches)
    by_backend: dict[str, Any] = {"lang": "OpenCL", "compiler_options": ["-cl-std=CL3.0"]}
    if device.backend == "cuda":
        by_backend = {
            "lang": "CuPy",
            "compiler_options": ["-std=c++17"],
            "smem_args": {"size": lambda params: expressed.launch(params).shared_bytes},
        }
        _pad_uuid()
    begun = time.perf_counter()
    results, _ = kernel_tuner.tune_kernel(
        kernel.name,
        flattened(kernel.source_file(configurations[0])),
        lambda params: expressed.launch(params).grid,
        arguments,
        expressed.tune_params,
        grid_div_x=[],
        grid_div_y=[],
        grid_div_z=[],
        block_size_names=["threads", "_one", "_one"],
        restrictions=expressed.is_listed,
        answer=answer,
        atol=tolerance,
        defines=expressed.defines(),
        platform=0,
        device=device.index,
        iterations=ITERATIONS,
        strategy="brute_force",
        quiet=True,
        verbose=False,
        **by_backend,
    )
    wall = time.perf_counter() - begun
    timed = [one for one in results if isinstance(one.get("time"), float) and one["time"] < 1e20]
    spent = {
        name: sum(one.get(f"{name}_time", 0.0) for one in results) / 1000
        for name in ("compile", "verification", "benchmark", "strategy", "framework")
    }
    best = min(timed, key=lambda one: one["time"])
    return {
        "configurations": len(results),
        "startup_s": wall - sum(spent.values()),
        "wall_s": sum(spent.values()),
        "statuses": {"ok": len(timed), "failed": len(results) - len(timed)},
        "compile_s": spent["compile"],
        "verify_s": spent["verification"],
        "benchmark_s": spent["benchmark"],
        "framework_s": spent["strategy"] + spent["framework"],
        "launches_s": sum(sum(one["times"]) for one in timed) / 1000,
        "samples": ITERATIONS * len(timed),
        "winner": dict(_configuration(kernel, best)),
        "winner_ms": best["time"],
    }


def _configuration(kernel: Any, params: Mapping[str, Any]) -> Configuration:
    return Configuration({name: params[name] for name in kernel.parameters})


def _arguments(dataset: Dataset, launches: list[Any]) -> tuple[list[Any], list[Any], float]:
    """Arguments in the kernel's order, the answers beside them, and the largest tolerance."""
    values: dict[str, Any] = {}
    answers: dict[str, Any] = {}
    for one in dataset.arguments:
        if one.kind == "scalar":
            values[one.name] = one.scalar
        elif one.kind == "out":
            values[one.name] = np.zeros(one.shape, one.dtype)
        else:
            values[one.name] = np.array(dataset.array(one.name))
        if one.kind in ("out", "inout"):
            answers[one.name] = dataset.expected(one.name).astype(one.dtype)
    # The workspace of `reduce`: as large as any configuration needs.
    values["partial"] = np.zeros(max(int(np.prod(one.grid)) for one in launches), np.float32)
    values["ticket"] = np.zeros(1, np.uint32)
    order = launches[0].args or [one.name for one in dataset.arguments]
    arguments = [values[name] for name in order]
    return arguments, [answers.get(name) for name in order], max(dataset.bounds.values())


# ------------------------------------------------------------------ the comparison


def run_race(setting: Setting, winners: Mapping[str, Configuration]) -> dict[str, Any]:
    """Time both winners interleaved, and ours under a second name: how far equals differ."""
    bench = setting.bench()
    try:
        job = bench.job(setting.problem)
        evaluator = DeviceEvaluator(bench.kernel, job, bench.compilers, bench.worker)
        chosen = [winners["ours"], winners["kernel_tuner"], winners["ours"]]
        contenders = [Contender(one, evaluator.binary(one)) for one in chosen]
        samples = race(bench.worker, job, contenders, ROUNDS, 0, 60.0).samples_ms
    finally:
        bench.close()
    ours, theirs, again = (np.array(one) for one in samples)
    return {
        "ours_ms": median(ours),
        "kernel_tuner_ms": median(theirs),
        "same_configuration": chosen[0] == chosen[1],
        "kernel_tuner_over_ours": float(median(theirs / ours)),
        "interval_95": _interval(theirs / ours),
        "ours_over_itself": float(median(again / ours)),
        "ours_over_itself_interval_95": _interval(again / ours),
        "rounds": len(ours),
    }


def _interval(ratios: np.ndarray) -> list[float]:
    """Percentile bootstrap interval of the median (Efron & Tibshirani 1993, §13.3)."""
    drawn = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
    return [float(one) for one in np.percentile(np.median(drawn, axis=1), (2.5, 97.5))]


def compare(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """Run all parts of one kernel, each in its own process; return the row."""
    setting = Setting.of(options, name)
    with tempfile.TemporaryDirectory() as folder:
        # Inputs and answers are made once, before the clock runs; binaries of one half are no use
        # to the other.
        environment = {**os.environ, "AUTOTUNE_CACHE_DIR": folder, "PYOPENCL_NO_CACHE": "1"}
        _part(options, name, "inputs", 0, environment)
        parts: dict[str, list[dict[str, Any]]] = {"kernel_tuner": [], "ours": []}
        for tool, half in PARTS:
            with tempfile.TemporaryDirectory() as cupy_cache:
                environment["CUPY_CACHE_DIR"] = cupy_cache
                done = _part(options, name, tool, half, environment)
            parts[tool].append(done)
            print(
                f"{name} {tool} half {half}: {done['configurations']} in {done['wall_s']:.1f} s "
                f"({done['configurations'] / done['wall_s']:.2f}/s), startup {done['startup_s']:.1f} s",
                flush=True,
            )
        ours, theirs = _added(parts["ours"]), _added(parts["kernel_tuner"])
        winners = json.dumps({"ours": ours["winner"], "kernel_tuner": theirs["winner"]})
        race = _part(options, name, "race", 0, environment, "--winners", winners)
    if ours["configurations"] != theirs["configurations"]:
        raise SystemExit(
            f"{name}: ours measured {ours['configurations']}, Kernel Tuner {theirs['configurations']}"
        )
    rates = [one["configurations"] / one["wall_s"] for one in (ours, theirs)]
    whole = [one["configurations"] / (one["wall_s"] + one["startup_s"]) for one in (ours, theirs)]
    return {
        "kernel": name,
        "problem": dict(setting.problem),
        "configurations": ours["configurations"],
        "ours_per_s": rates[0],
        "kernel_tuner_per_s": rates[1],
        "ratio": rates[0] / rates[1],
        "ratio_with_startup": whole[0] / whole[1],
        "share_of_wall_measuring": (ours["verify_s"] + ours["benchmark_s"]) / ours["wall_s"],
        "ours": ours,
        "kernel_tuner": theirs,
        "winners": race,
    }


def _added(halves: list[dict[str, Any]]) -> dict[str, Any]:
    """Both halves as one: sums, and the better winner."""
    best = min(halves, key=lambda one: one["winner_ms"])
    total: dict[str, Any] = {}
    for key, value in best.items():
        if key == "statuses":
            names = sorted({name for one in halves for name in one[key]})
            total[key] = {name: sum(one[key].get(name, 0) for one in halves) for name in names}
        elif key.startswith("winner"):
            total[key] = value
        else:
            total[key] = sum(one[key] for one in halves)
    return total


def _counts(names: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in names:
        found[name] = found.get(name, 0) + 1
    return found


def _part(
    options: argparse.Namespace, name: str, part: str, half: int, environment: Any, *more: str
) -> dict[str, Any]:
    """Run one part in a process of its own; what it prints last is its result."""
    command = [
        sys.executable, __file__, "--kernel", name, "--part", part, "--half", str(half),
        "--device", options.device, "--configurations", str(options.configurations), *more,
    ]  # fmt: skip
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def run_part(options: argparse.Namespace) -> dict[str, Any]:
    """What a process of `_part` does."""
    setting = Setting.of(options, options.kernel)
    if options.part == "inputs":
        setting.datasets()
        return {}
    if options.part == "race":
        winners = json.loads(options.winners)
        return run_race(setting, {tool: Configuration(one) for tool, one in winners.items()})
    run = run_ours if options.part == "ours" else run_kernel_tuner
    return run(setting, options.half)


def write(options: argparse.Namespace, rows: list[dict[str, Any]]) -> Path:
    """Merge rows into the device's file: a kernel's new row replaces its old one."""
    device = choose_device(options.device)
    file = options.out / f"throughput-{device.folder}.json"
    old = json.loads(file.read_text())["rows"] if file.exists() else []
    new = {row["kernel"]: row for row in (*old, *rows)}
    about = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "benchmarks/throughput.py", *sys.argv[1:]]),
        "device": device.name,
        "driver": device.driver,
        "cores": usable_cores(),
        "python": platform.python_version(),
        "versions": {"autotune": __version__, **_versions("kernel_tuner", "numpy", "cupy-cuda13x")},
    }
    rows = [{**row, **about} if row in rows else row for row in new.values()]
    options.out.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    return file


def _versions(*packages: str) -> dict[str, str]:
    found = {}
    for name in packages:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def main() -> None:
    """Compare, print a line per part, write the file."""
    options = _options()
    if options.part:
        print(json.dumps(run_part(options)))
        return
    names = [options.kernel] if options.kernel else list(SUBJECTS)
    for name in names:
        row = compare(options, name)
        file = write(options, [row])
        print(
            f"{name}: {row['configurations']} configurations, ours {row['ours_per_s']:.2f}/s, "
            f"Kernel Tuner {row['kernel_tuner_per_s']:.2f}/s, ratio {row['ratio']:.1f} "
            f"({row['ratio_with_startup']:.1f} with startup), measuring "
            f"{row['share_of_wall_measuring']:.0%} of the time; winner's time over ours "
            f"{row['winners']['kernel_tuner_over_ours']:.4f}",
            flush=True,
        )
    print(file)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kernel", choices=SUBJECTS, help="default: all")
    parser.add_argument(
        "--configurations", type=int, default=0, help="default: by kernel, 208 or 400"
    )
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON file")
    for hidden in ("--part", "--winners"):
        parser.add_argument(hidden, default="", help=argparse.SUPPRESS)
    parser.add_argument("--half", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
