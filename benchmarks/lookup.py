"""What a lookup costs: importing it, the first answer, a repeated one, and one for a new size.

Run ``python benchmarks/lookup.py``. Prints milliseconds and microseconds; fails at nothing.
"""

import argparse
import functools
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import ROOT, finish

from autotune import lookup
from autotune.tuned.lookup import clear_cache

SIZES = [(m, n, k) for m in (64, 512, 4096) for n in (64, 512, 4096) for k in (64, 512, 4096)]


def import_ms(statement: str, runs: int) -> float:
    """Fastest of several new interpreters, from start to end."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", statement], cwd=ROOT, check=True)
        times.append((time.perf_counter() - start) * 1e3)
    return min(times)


def us_per_call(call: Callable[[], Any], count: int) -> float:
    """Median of five batches."""
    batches = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(count):
            call()
        batches.append((time.perf_counter() - start) / count * 1e6)
    return statistics.median(batches)


def write_record(folder: Path) -> None:
    """A record of 27 problems and the costs of 32 configurations, about what a full run leaves."""
    plan = {
        "configuration": {"BM": 128, "BN": 128, "BK": 16, "STAGES": 3, "VARIANT": "cuda"},
        "block": [128],
        "shared_bytes": 49152,
        "grid": [["-", 0, ["//", ["-", 0, "m"], 128]], ["-", 0, ["//", ["-", 0, "n"], 128]], 1],
        "requires": None,
        "archs": None,
    }
    problems = [dict(zip("mnk", size, strict=True)) for size in SIZES]
    cost = {
        "plan": plan,
        "fixed": [[0.003, []], [1e-6, ["k"]], [1e-9, ["m", "k"]], [1e-9, ["n", "k"]]],
        "waves": [[132, [[0.001, []], [4e-5, ["k"]]]], [264, [[0.001, []], [4e-6, ["k"]]]]],
        "misaligned": {"n": 1.3, "k": 1.1},
    }
    predictions = [{"multiple": 4, "costs": [cost] * 32}]
    record = {
        "format": "autotune tuned record",
        "schema_version": 1,
        "kernel": "benchmark_gemm",
        "device": {"name": "Benchmark GPU", "arch": "sm_90", "uuid": ""},
        "fields": dict.fromkeys("mnk", "integer"),
        "parameters": {name: [value] for name, value in plan["configuration"].items()},
        "default": plan,
        "entries": [
            {**plan, "problem": problem, "steps": [], "stale_reasons": []} for problem in problems
        ],
        "portfolio": {
            "configurations": [],
            "problems": [],
            "median_ms": [],
            "predictions": predictions,
        },
        "fallback": [
            {"problem": problem, "plan": plan, "expected_fraction": 0.97, "prediction": 0}
            for problem in problems
        ],
        "provenance": {"created": "2026-11-21"},
    }
    path = folder / "Benchmark_GPU" / "benchmark_gemm.json"
    path.parent.mkdir()
    path.write_text(json.dumps(record))


def ask(arch: int | None, m: int, k: int) -> None:
    """One lookup."""
    lookup("benchmark_gemm", arch=arch, m=m, n=512, k=k)


def first() -> None:
    """A lookup that reads files."""
    clear_cache()
    ask(90, 512, 512)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="new interpreters per import")
    runs = parser.parse_args().runs
    bare = import_ms("pass", runs)
    whole = import_ms("from autotune import lookup", runs)
    print(f"from autotune import lookup   {whole - bare:7.1f} ms over bare Python ({bare:.1f} ms)")
    new = itertools.count(100)
    with tempfile.TemporaryDirectory() as folder:
        write_record(Path(folder))
        os.environ["AUTOTUNE_TUNED"] = folder
        first_us = us_per_call(first, 20)
        print(f"first answer, reading files   {first_us / 1e3:7.2f} ms")
        for name, arch in (("arch given  ", 90), ("own device  ", None)):
            again_us = us_per_call(functools.partial(ask, arch, 512, 500), 20000)
            print(f"again, {name}           {again_us:7.2f} µs")
        new_us = us_per_call(lambda: ask(90, next(new), 100), 500)
        print(f"a new size, 32 costs          {new_us:7.2f} µs")


if __name__ == "__main__":
    finish(main)
