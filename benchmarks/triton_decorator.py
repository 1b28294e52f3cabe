"""Measure the decorator against `triton.autotune`, on kernels of other projects with one import changed.

Four are of Triton's tutorials (`tutorials.py`), one of flash-linear-attention, left out where `fla` is not installed.
Parts, each in processes of its own with cold caches; the results of all are merged into
``results/triton-<device>.json``. Needs a GPU with nothing else on it, and torch.

======== =============================================================================================
`theirs` `triton.autotune`: configurations per second of first calls, host time of a launch
`ours`   the same of our decorator, then the first calls of a second process
`fifth`  our decorator with a fifth of the evaluations
`race`   the configurations that these three found, launched by Triton in graphs, in turns
`faults` a kernel with configurations that are wrong, fault and hang
======== =============================================================================================

    python benchmarks/triton_decorator.py
    python benchmarks/triton_decorator.py --part theirs --part ours --kernel matmul
"""

from __future__ import annotations

import difflib
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from harness import command_line, finish, provenance, read, write

from autotune.devices.choose import choose_device
from autotune.errors import UsageError

HERE = Path(__file__).parent
PARTS = ("theirs", "ours", "fifth", "race", "faults")
#: The module of a kernel's file. The copy that is ported has no package.
LIBRARY = {"fla_layer_norm": "fla.modules.norm.layernorm"}
KERNELS = ("vector_add", "softmax", "matmul", "layer_norm", *LIBRARY)
#: The changed lines, by file: what a person does to port it.
PORTS = {
    "tutorials": {
        "from triton import Config, autotune\n": "from triton import Config\n\nfrom autotune.triton import autotune\n"
    },
    "fla_layer_norm": {
        "import triton\n": "import triton\nfrom autotune.triton import autotune\n",
        "@triton.autotune(": "@autotune(",
    },
}
OURS = "from autotune.triton import autotune\n"
A_FIFTH = """from autotune.triton import autotune as tuned

def autotune(configs, **named):
    return tuned(configs, budget=f"{max(1, len(configs) // 5)}evals", **named)
"""
#: Launches between two looks at the clock, how often; launches in a graph, and its replays.
LAUNCHES, ROUNDS, IN_GRAPH, REPLAYS = 200, 20, 20, 30


def main() -> None:
    parser = command_line(__doc__, "triton-<device>.json")
    parser.add_argument("--kernel", choices=KERNELS, action="append")
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--task", help="measure in this process, and print a document")
    options = parser.parse_args()
    if options.task:
        print(json.dumps(TASKS[options.task](json.load(sys.stdin))))
        return
    device = choose_device(options.device)
    file = options.out / f"triton-{device.folder}.json"
    known = read(file)
    names = [name for name in options.kernel or KERNELS if source_of(name)]
    rows = {row["kernel"]: row for row in known.get("rows", [])}
    for name in names:
        rows[name] = {**rows.get(name, {"kernel": name}), "lines_changed": lines_changed(name)}
    faults, about = known.get("faults"), known.get("about", {})
    for part in options.part or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            if part == "faults":
                faults = in_process("faults", None, Path(folder))
                print(faults)
            else:
                for name, found in measured_part(part, names, rows, Path(folder)).items():
                    rows[name] |= found
        ordered = [rows[name] for name in KERNELS if name in rows]
        about[part] = provenance(device)
        write(file, {"about": about, "rows": ordered, "faults": faults})
    for row in rows.values():
        print(shown(row))


# ---------------------------------------------------------------------- sources


def source_of(name: str) -> str:
    """Return the text of a kernel's file; empty where its library is not installed."""
    if name not in LIBRARY:
        return (HERE / "tutorials.py").read_text(encoding="utf-8")
    if find_spec(LIBRARY[name].partition(".")[0]) is None:
        return ""
    found = find_spec(LIBRARY[name])
    assert found is not None and found.origin is not None
    return Path(found.origin).read_text(encoding="utf-8")


def ported(name: str) -> str:
    """Return a kernel's file as our decorator tunes it."""
    text = source_of(name)
    for old, new in PORTS.get(name, PORTS["tutorials"]).items():
        if old not in text:
            raise UsageError(f"the file of {name} has no {old.strip()!r}")
        text = text.replace(old, new)
    return text


def lines_changed(name: str) -> int:
    """Return how many lines of code a port removes or adds, the larger of both."""
    lines = difflib.ndiff(source_of(name).splitlines(), ported(name).splitlines())
    marks = [line[0] for line in lines if line[2:]]
    return max(marks.count("-"), marks.count("+"))


def write_sources(side: str, names: Sequence[str], folder: Path) -> None:
    """Write the files of kernels as a side tunes them."""
    for name in names:
        text = source_of(name) if side in ("theirs", "race") else ported(name)
        text = text.replace(OURS, A_FIFTH) if side == "fifth" else text
        (folder / f"{module_of(name)}.py").write_text(text, encoding="utf-8")


def module_of(name: str) -> str:
    """Return the module of a kernel's file as a side tunes it."""
    return f"measured_{name if name in LIBRARY else 'tutorials'}"


def call_of(name: str, torch: Any) -> tuple[Any, Any, tuple[Any, ...], dict[str, Any]]:
    """Return a kernel, its grid and its arguments, in the size that is measured."""
    module = import_module(module_of(name))
    if name not in LIBRARY:
        return (*module.calls(torch)[name], {})
    import triton

    rows, columns = 1 << 16, 256
    x, weight = torch.randn(rows, columns, device="cuda"), torch.randn(columns, device="cuda")
    mean, rstd = torch.empty(rows, device="cuda"), torch.empty(rows, device="cuda")
    args = (x, torch.empty_like(x), weight, weight, None, None, mean, rstd, 1e-5)
    flags = {"HAS_RESIDUAL": False, "STORE_RESIDUAL_OUT": False, "IS_RMS_NORM": False}
    sizes = {"T": rows, "G": 1, "D": columns, "BD": columns, "NB": triton.cdiv(rows, 2048)}
    return (
        module.layer_norm_fwd_kernel,
        lambda meta: (triton.cdiv(rows, meta["BT"]),),
        args,
        {**sizes, **flags, "HAS_WEIGHT": True, "HAS_BIAS": True},
    )


# ---------------------------------------------------------------------- parts


def measured_part(
    part: str, names: Sequence[str], rows: Mapping[str, Mapping[str, Any]], folder: Path
) -> dict[str, dict[str, Any]]:
    """Return what a part adds to each row."""
    write_sources(part, names, folder)
    if part == "race":
        sides = ("theirs", "ours", "fifth")
        asked = {
            name: {
                each: rows[name][each]["config"]
                for each in sides
                if "config" in rows[name].get(each, {})
            }
            for name in names
        }
        found = in_process("race", asked, folder)
        return {name: {"best_ms": times} for name, times in found.items()}
    found = {name: {part: row} for name, row in in_process("first", names, folder).items()}
    if part == "ours":
        for name, row in in_process("first", names, folder).items():
            found[name]["second_process_s"] = row.get("first_s")
    return found


def in_process(task: str, asked: Any, folder: Path) -> Any:
    """Do a task in a process whose caches and records are in a folder."""
    kept = {
        each: str(folder / each)
        for each in ("TRITON_CACHE_DIR", "AUTOTUNE_CACHE_DIR", "XDG_DATA_HOME")
    }
    path = os.pathsep.join(filter(None, [str(folder), str(HERE), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, __file__, "--task", task],
        env={**os.environ, **kept, "PYTHONPATH": path},
        input=json.dumps(asked),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise UsageError(f"{task}: its process ended with {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def first_calls(names: Sequence[str]) -> dict[str, Any]:
    """Call kernels for the first time, then again and again; a failure is a row, too."""
    import torch

    found: dict[str, Any] = {}
    for name in names:
        try:
            found[name] = _first_call(name, torch)
        except Exception as error:  # the other kernels are measured
            found[name] = {"error": f"{type(error).__name__}: {error}"}
            print(name, found[name], file=sys.stderr)
    return found


def _first_call(name: str, torch: Any) -> dict[str, Any]:
    function, grid, args, named = call_of(name, torch)
    torch.cuda.synchronize()
    begun_s = time.perf_counter()
    function[grid](*args, **named)
    torch.cuda.synchronize()
    first_s = time.perf_counter() - begun_s
    config = function.best_config.all_kwargs()

    def plain() -> None:
        function.fn[grid](*args, **named, **config)

    return {
        "configurations": len(function.configs),
        "measured": _measured(function),
        "first_s": first_s,
        "launch_us": _host_us(lambda: function[grid](*args, **named), torch),
        "jit_launch_us": _host_us(plain, torch),
        "config": config,
    }


def _measured(function: Any) -> int:
    """Return how many configurations a first call measured: as its record says, Triton all of them."""
    records = Path(os.environ["XDG_DATA_HOME"]).rglob(f"{getattr(function, 'name', '-')}.json")
    found = [json.loads(file.read_text(encoding="utf-8"))["problems"] for file in records]
    return found[0][0]["origin"]["evaluations"] if found else len(function.configs)


def _host_us(launch: Callable[[], None], torch: Any) -> float:
    launch()
    taken = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        begun_s = time.perf_counter()
        for _ in range(LAUNCHES):
            launch()
        taken.append(1e6 * (time.perf_counter() - begun_s) / LAUNCHES)
    return median(taken)


def raced(asked: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Time configurations of each kernel in turns; arrays are larger than the L2 cache."""
    import torch

    found: dict[str, dict[str, float]] = {}
    for name, sides in asked.items():
        function, grid, args, named = call_of(name, torch)
        graphs = {}
        for side, config in sides.items():
            function.fn[grid](*args, **named, **config)
            torch.cuda.synchronize()
            graphs[side] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graphs[side]):
                for _ in range(IN_GRAPH):
                    function.fn[grid](*args, **named, **config)
        times: dict[str, list[float]] = {side: [] for side in graphs}
        for _ in range(REPLAYS):
            for side, graph in graphs.items():
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                graph.replay()
                end.record()
                torch.cuda.synchronize()
                times[side].append(start.elapsed_time(end) / IN_GRAPH)
        found[name] = {side: median(values) for side, values in times.items()}
    return found


def survived(_: None) -> dict[str, Any]:
    """Tune a kernel with bad configurations; return what was said of them, and what was chosen."""
    import faulty
    import torch

    begun_s = time.perf_counter()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        is_right = faulty.is_right(torch)
    torch.cuda.synchronize()  # this process's context is whole
    return {
        "is_right": is_right,
        "seconds": time.perf_counter() - begun_s,
        "config": faulty.add.best_config.all_kwargs(),
        "warnings": [str(each.message)[:300] for each in said],
    }


TASKS: dict[str, Callable[[Any], Any]] = {"first": first_calls, "race": raced, "faults": survived}


# ---------------------------------------------------------------------- printing


def shown(row: Mapping[str, Any]) -> str:
    """Return a row as a line of text: ours over Triton's, above 1 ours is better."""
    theirs, ours, best = (row.get(each, {}) for each in ("theirs", "ours", "best_ms"))
    parts = [f"{row['kernel']}: {row['lines_changed']} lines changed"]
    if "first_s" in ours:
        parts.append(f"{ours['measured'] / ours['first_s']:.1f} configurations/s")
        parts.append(f"launch {ours['launch_us']:.1f} us")
        parts.append(f"second process {row['second_process_s']:.2f} s")
    if "first_s" in theirs:
        parts.append(f"Triton {theirs['measured'] / theirs['first_s']:.1f}/s")
        parts.append(f"its launch {theirs['launch_us']:.1f}, jit {theirs['jit_launch_us']:.1f} us")
    parts += [
        f"best of {side} {best['theirs'] / best[side]:.3f}" for side in best if "theirs" in best
    ]
    return ", ".join(parts)


if __name__ == "__main__":
    finish(main)
