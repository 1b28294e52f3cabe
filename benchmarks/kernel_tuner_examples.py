"""How soon Kernel Tuner's six examples are tuned, by Kernel Tuner 1.5.0 and by `autotune run`.

The same sources and configurations, all of them, on an OpenCL device; each side checks every
configuration against the same reference before it is timed. The clock of theirs runs from importing
Kernel Tuner, through drawing the data and computing the reference, to the first result and to the
end of `tune_kernel`. Ours runs from the start of the command to the first and the last
configuration in its store, and to its end: after finals, odd sizes, header and report. Nothing is
compiled or remembered before.

    python benchmarks/kernel_tuner_examples.py                      # some minutes
    python benchmarks/kernel_tuner_examples.py --kernel stencil
"""

from __future__ import annotations

import json
import os
import shlex
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from harness import command_line, finish, provenance, write

from autotune.devices.choose import choose_device
from autotune.kernel.catalog import load_file
from autotune.kernel.launches import launch_sequence
from autotune.kernel.source import flattened
from autotune.kernel.spec import Kernel, Out
from autotune.measure.draw import Draw
from autotune.values import Configuration, Problem

SPACES = Path(__file__).parents[1] / "examples" / "kernel_tuner" / "spaces"
#: A problem that a CPU has done in milliseconds, and the values that are searched in full.
CASES: dict[str, tuple[dict[str, int], dict[str, list[int]]]] = {
    "vector_add": ({"n": 10_000_000}, {}),
    "convolution": (
        {"width": 512, "height": 512, "filter": 17},
        {
            "block_size_x": [16, 32, 64],
            "block_size_y": [1, 4],
            "tile_size_x": [1, 2],
            "tile_size_y": [1],
        },
    ),
    "pnpoly": (
        {"n": 200_000, "vertices": 600},
        {
            "block_size_x": [64, 256],
            "tile_size": [1, 4],
            "use_precomputed_slopes": [1],
            "use_method": [0],
        },
    ),
    "matmul": ({"width": 512}, {"block_size_x": [16, 32], "tile_size_x": [1, 2]}),
    "stencil": (
        {"width": 4096, "height": 2048},
        {"block_size_x": [32, 64, 128, 256], "block_size_y": [1, 4, 16]},
    ),
    "reduction": (
        {"n": 8_000_000},
        {"block_size_x": [64, 256], "use_shuffle": [0], "num_blocks": [64, 256]},
    ),
}
_COUNT = "SELECT count(DISTINCT configuration) FROM measurements"
#: In words of Kernel Tuner.
RESTRICTIONS = {"matmul": ["block_size_x == block_size_y * tile_size_y"]}


def theirs(name: str, device_index: int) -> dict[str, Any]:
    """Tune an example by `tune_kernel`; run in a process of its own."""
    start = time.perf_counter()
    import kernel_tuner
    from kernel_tuner.observers import BenchmarkObserver

    firsts: list[float] = []

    class First(BenchmarkObserver):  # type: ignore[misc]
        def get_results(self) -> dict[str, Any]:
            firsts.append(time.perf_counter() - start)
            return {}

    kernel, fields = load_file(SPACES / f"{name}.py"), CASES[name][0]
    problem, device = Problem(fields), choose_device("opencl:cpu")
    first = kernel.default()
    given = _arguments(kernel, problem)
    answers = _answers(kernel, given)
    tolerance = kernel.tolerance_of(problem) or 1e-3
    launch = launch_sequence(kernel, first, problem, device).main
    names = [str(name) for name in launch.args or given]
    if "partial" in names:  # of the first of two kernels: a sum for each block
        given["partial"] = Out(1024)
        answers = {"partial": np.float32(answers["sum"].sum())}
    made = [_made(given[argument]) for argument in names]

    def params_launch(params: Mapping[str, Any]) -> Any:
        return launch_sequence(kernel, Configuration(_chosen(kernel, params)), problem, device).main

    def macros(macro: str) -> Any:
        return lambda params: kernel.macros(Configuration(_chosen(kernel, params)), problem)[macro]

    results, _ = kernel_tuner.tune_kernel(
        launch.entry,
        flattened(kernel.source_file(first)),
        lambda params: params_launch(params).grid,
        made,
        _searched(kernel, name),
        grid_div_x=[],
        grid_div_y=[],
        grid_div_z=[],
        restrictions=RESTRICTIONS.get(name),
        answer=[answers.get(argument) for argument in names],
        atol=tolerance,
        verify=_sums_agree if "partial" in names else None,
        defines={macro: macros(macro) for macro in kernel.macros(first, problem)},
        lang="OpenCL",
        device=device_index,
        compiler_options=["-cl-std=CL3.0"],
        observers=[First()],
        quiet=True,
    )
    times = [row["time"] for row in results if isinstance(row["time"], float)]
    return {
        "first_s": firsts[0],
        "all_s": time.perf_counter() - start,
        "configurations": len(results),
        "best_ms": min(times),
    }


def _sums_agree(wanted: list[Any], found: list[Any], atol: float) -> bool:
    return bool(abs(found[0].sum() - wanted[0]) <= atol)


def _searched(kernel: Kernel, name: str) -> dict[str, list[Any]]:
    return {key: CASES[name][1].get(key, list(kept)) for key, kept in kernel.parameters.items()}


def _chosen(kernel: Kernel, params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: params[name] for name in kernel.parameters}


def _arguments(kernel: Kernel, problem: Problem) -> dict[str, Any]:
    return dict(kernel.call_hook("arguments", problem, Draw(exact=False, key=0)))


def _answers(kernel: Kernel, given: Mapping[str, Any]) -> dict[str, Any]:
    inputs = {n: v for n, v in given.items() if not isinstance(v, Out)}
    reference = kernel.hook("reference")
    taken = reference.__code__.co_varnames[: reference.__code__.co_argcount]
    wide = {
        n: v.astype(np.float64) if isinstance(v, np.ndarray) and v.dtype.kind == "f" else v
        for n, v in inputs.items()
    }
    (output,) = (n for n, v in given.items() if isinstance(v, Out))
    answer = reference(**{n: wide[n] for n in taken})
    return {output: np.asarray(answer).astype(np.dtype(given[output].dtype)).ravel()}


def _made(value: Any) -> Any:
    if isinstance(value, Out):
        return np.zeros(int(np.prod(value.shape)), value.dtype)
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value, np.float32).ravel()
    return np.int32(value)


def ours(name: str) -> dict[str, Any]:
    """Tune an example by `autotune run`, in folders of its own."""
    fields, fixed = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "store.sqlite")
        environment = {
            **os.environ,
            "AUTOTUNE_STORE": str(store),
            "AUTOTUNE_CACHE_DIR": str(Path(folder, "cache")),
        }
        command = [sys.executable, "-m", "autotune", "run", name, "--spaces", str(SPACES)]
        command += ["--device", "opencl:cpu", "--strategy", "exhaustive", "--out", folder, "--json"]
        command += ["--budget", "1000evals"]
        command += ["--problem", ",".join(f"{field}={value}" for field, value in fields.items())]
        for parameter, values in fixed.items():
            command += ["--fix", f"{parameter}={','.join(map(str, values))}"]
        start = time.perf_counter()
        grown: list[tuple[int, float]] = [(0, 0.0)]
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as running:
            while running.poll() is None:
                time.sleep(0.05)
                if (count := _configurations(store)) > grown[-1][0]:
                    grown.append((count, time.perf_counter() - start))
            printed, errors = running.communicate()
        taken = time.perf_counter() - start
        if running.returncode:
            raise SystemExit(f"error: {name}: {shlex.join(command)}: {errors.strip()}")
        (entry,) = json.loads(printed)["problems"]
        return {
            "first_s": grown[1][1],
            "all_s": grown[-1][1],
            "end_s": taken,
            "configurations": grown[-1][0],
            "best_ms": entry["median_ms"],
        }


def _configurations(store: Path) -> int:
    if not store.exists():
        return 0
    try:
        with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
            return int(connection.execute(_COUNT).fetchone()[0])
    except sqlite3.Error:  # not made yet
        return 0


def main() -> None:
    parser = command_line(__doc__, __file__, device=None)
    parser.add_argument(
        "--kernel", action="append", choices=list(CASES), help="only this (repeatable)"
    )
    parser.add_argument(
        "--theirs", choices=list(CASES), help="theirs alone, in this process; as JSON"
    )
    options = parser.parse_args()
    if options.theirs:
        print(json.dumps(theirs(options.theirs, 0)))
        return
    rows: dict[str, Any] = {}
    print("| example | configurations | first: theirs | ours | all: theirs | ours | with finals |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for name in options.kernel or CASES:
        command = [sys.executable, __file__, "--theirs", name]
        environment = {**os.environ, "PYOPENCL_NO_CACHE": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"error: {name}: Kernel Tuner: {done.stderr.strip().splitlines()[-1]}")
        them, us = json.loads(done.stdout.splitlines()[-1]), ours(name)
        rows[name] = {"theirs": them, "ours": us}
        counts = f"{them['configurations']}" + f" / {us['configurations']}" * (
            them["configurations"] != us["configurations"]
        )
        seconds = (them["first_s"], us["first_s"], them["all_s"], us["all_s"], us["end_s"])
        print(
            f"| {name} | {counts} | "
            + " | ".join(f"{taken_s:.1f} s" for taken_s in seconds)
            + " |",
            flush=True,
        )
    result = {**provenance(choose_device("opencl:cpu")), "rows": rows}
    write(options.out / "kernel_tuner_examples.json", result)


if __name__ == "__main__":
    finish(main)
