"""Measures the decorator beside `triton.autotune`, on kernels of Triton's tutorials with one import changed.

Each kernel is tuned by both in processes of their own with cold caches. Rows have configurations per second of the
first call, the time of the best configuration in a CUDA graph, the host's time of a launch, and the first call of
a second process. They go to ``results/triton-<device>.json``. Needs a GPU with nothing else on it, and torch.

    python benchmarks/triton_decorator.py
    python benchmarks/triton_decorator.py --kernel matmul
"""

from __future__ import annotations

import difflib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from harness import command_line, finish, provenance, write

from autotune.devices.choose import choose_device
from autotune.errors import UsageError, unknown

SOURCE = Path(__file__).with_name("tutorials.py")
KERNELS = ("vector_add", "softmax", "matmul", "layer_norm")
#: The changed lines: what a person does to port a file.
PORTED = {
    "from triton import Config, autotune\n": "from triton import Config\n\nfrom autotune.triton import autotune\n"
}
#: Launches between two looks at the clock, how often, and replays of the graph.
LAUNCHES, ROUNDS, REPLAYS = 200, 20, 50


def main() -> None:
    parser = command_line(__doc__, "triton-<device>.json")
    parser.add_argument("--kernel", choices=KERNELS, action="append")
    parser.add_argument("--task", help="measure one kernel in this process, and print a row")
    options = parser.parse_args()
    if options.task:
        print(json.dumps(measured(options.task)))
        return
    device = choose_device(options.device)
    rows = [compared(name) for name in options.kernel or KERNELS]
    for row in rows:
        print(shown(row))
    result = {"about": provenance(device), "lines_changed": lines_changed(), "rows": rows}
    write(options.out / f"triton-{device.folder}.json", result)


def ported(text: str) -> str:
    """Return the tutorials as our decorator tunes them."""
    for old, new in PORTED.items():
        if old not in text:
            raise UsageError(f"{SOURCE.name} has no line {old.strip()!r}")
        text = text.replace(old, new)
    return text


def lines_changed() -> int:
    """Return how many lines of code a port removes or adds, the larger of both."""
    before = SOURCE.read_text(encoding="utf-8")
    marks = [
        line[0]
        for line in difflib.ndiff(before.splitlines(), ported(before).splitlines())
        if line[2:]
    ]
    return max(marks.count("-"), marks.count("+"))


def compared(name: str) -> dict[str, Any]:
    """Return the row of one kernel: ours in two processes, and Triton's."""
    text = SOURCE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        theirs = in_process(name, text, Path(folder) / "theirs")
        ours = in_process(name, ported(text), Path(folder) / "ours")
        again = in_process(name, ported(text), Path(folder) / "ours")
    return {"kernel": name, **ratios(ours, theirs, again)}


def in_process(name: str, text: str, folder: Path) -> dict[str, Any]:
    """Tune and measure in a process whose caches and records are in a folder."""
    folder.mkdir(exist_ok=True)
    (folder / "tutorials.py").write_text(text, encoding="utf-8")
    kept = {
        each: str(folder / each)
        for each in ("TRITON_CACHE_DIR", "AUTOTUNE_CACHE_DIR", "XDG_DATA_HOME")
    }
    command = [sys.executable, __file__, "--task", f"{folder}:{name}"]
    done = subprocess.run(
        command, env={**os.environ, **kept}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise UsageError(f"{name}: {done.stderr.strip().splitlines()[-1]}")
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def measured(task: str) -> dict[str, Any]:
    """Call a kernel of a folder for the first time, then again and again."""
    folder, _, name = task.rpartition(":")
    if name not in KERNELS:
        raise UsageError(unknown("kernel", name, KERNELS))
    import torch

    sys.path.insert(0, folder)
    import tutorials

    function, grid, args = tutorials.calls(torch)[name]
    torch.cuda.synchronize()
    begun_s = time.perf_counter()
    function[grid](*args)
    torch.cuda.synchronize()
    first_s = time.perf_counter() - begun_s
    host_us = []
    for _ in range(ROUNDS):
        begun_s = time.perf_counter()
        for _ in range(LAUNCHES):
            function[grid](*args)
        host_us.append(1e6 * (time.perf_counter() - begun_s) / LAUNCHES)
        torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(REPLAYS):
            function[grid](*args)
    times_ms = []
    for _ in range(ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times_ms.append(start.elapsed_time(end) / REPLAYS)
    return {
        "configurations": len(function.configs),
        "first_s": first_s,
        "best_ms": median(times_ms),
        "launch_us": median(host_us),
        "config": str(function.best_config),
    }


def ratios(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], again: Mapping[str, Any]
) -> dict[str, Any]:
    """Return both measurements, and ours over Triton's: above 1 ours is faster."""
    speed = {
        side: row["configurations"] / row["first_s"]
        for side, row in (("ours", ours), ("theirs", theirs))
    }
    return {
        "configurations": ours["configurations"],
        "configurations_per_s": speed,
        "search": speed["ours"] / speed["theirs"],
        "best": theirs["best_ms"] / ours["best_ms"],
        "best_ms": {"ours": ours["best_ms"], "theirs": theirs["best_ms"]},
        "launch_us": {"ours": ours["launch_us"], "theirs": theirs["launch_us"]},
        "second_process_s": again["first_s"],
        "config": {"ours": ours["config"], "theirs": theirs["config"]},
    }


def shown(row: Mapping[str, Any]) -> str:
    """Return a row as a line of text."""
    return (
        f"{row['kernel']}: {row['configurations']} configurations, "
        f"{row['configurations_per_s']['ours']:.1f}/s ({row['search']:.2f} x Triton's), "
        f"best {row['best']:.3f} x, launch {row['launch_us']['ours']:.1f} us "
        f"(Triton {row['launch_us']['theirs']:.1f}), second process {row['second_process_s']:.2f} s"
    )


if __name__ == "__main__":
    finish(main)
