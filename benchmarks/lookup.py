"""What a lookup costs: importing it, the first answer, a repeated one, and one for a new size.

Run ``python benchmarks/lookup.py``. Prints milliseconds and microseconds; fails at nothing.
"""

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from autotune.tuned.lookup import clear_cache, lookup
from autotune.tuned.record import (
    Cost,
    Entry,
    FallbackRow,
    Plan,
    Portfolio,
    Prediction,
    Provenance,
    RecordedDevice,
    TunedRecord,
)
from autotune.tuned.writing import write

ROOT = Path(__file__).resolve().parent.parent
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
    plan = Plan(
        configuration={"BM": 128, "BN": 128, "BK": 16, "STAGES": 3, "VARIANT": "cuda"},
        block=(128, 1, 1),
        shared_bytes=49152,
        grid=(["-", 0, ["//", ["-", 0, "m"], 128]], ["-", 0, ["//", ["-", 0, "n"], 128]], 1),
    )
    problems = [dict(zip("mnk", size, strict=True)) for size in SIZES]
    cost = Cost(
        plan=plan,
        fixed=((0.003, ()), (1e-6, ("k",)), (1e-9, ("m", "k")), (1e-9, ("n", "k"))),
        waves=((132, ((0.001, ()), (4e-5, ("k",)))), (264, ((0.001, ()), (4e-6, ("k",))))),
        misaligned={"n": 1.3, "k": 1.1},
    )
    evidence = {
        "median_ms": 1.0,
        "interval_ms": (0.9, 1.1),
        "samples": 30,
        "evaluations": 40,
        "seed": 0,
        "effort": "full",
        "tuned_on": "2026-11-21",
        "options": (),
        **dict.fromkeys(("source", "timing", "strategy", "arguments", "driver"), ""),
        **dict.fromkeys(("toolchain", "device_uuid"), ""),
    }
    record = TunedRecord(
        kernel="benchmark_gemm",
        device=RecordedDevice(backend="cuda", name="Benchmark GPU", arch="sm_90"),
        fields=dict.fromkeys("mnk", "integer"),
        parameters={name: (value,) for name, value in plan.configuration.items()},
        default=plan,
        entries=tuple(
            Entry(**msgspec.structs.asdict(plan), **evidence, problem=problem)
            for problem in problems
        ),
        portfolio=Portfolio(predictions=(Prediction(multiple=4, costs=(cost,) * 32),)),
        fallback=tuple(
            FallbackRow(problem=problem, plan=plan, expected_fraction=0.97, prediction=0)
            for problem in problems
        ),
        provenance=Provenance(version="", toolchain="", driver="", created="2026-11-21"),
    )
    write(folder, record)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="new interpreters per import")
    runs = parser.parse_args().runs
    bare = import_ms("pass", runs)
    whole = import_ms("from autotune import lookup", runs)
    print(f"from autotune import lookup   {whole - bare:7.1f} ms over bare Python ({bare:.1f} ms)")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_record(folder)
        os.environ["AUTOTUNE_TUNED"] = str(folder)

        def first() -> None:
            clear_cache()
            lookup("benchmark_gemm", arch=90, m=512, n=512, k=512)

        new = itertools.count(100)

        def new_size() -> None:
            lookup("benchmark_gemm", arch=90, m=next(new), n=512, k=100)

        print(f"first answer, reading files   {us_per_call(first, 20) / 1e3:7.2f} ms")
        for name, arch in (("arch given  ", 90), ("own device  ", None)):
            print(f"again, {name}           {us_per_call(again_with(arch), 20000):7.2f} µs")
        print(f"a new size, 32 costs          {us_per_call(new_size, 500):7.2f} µs")


def again_with(arch: int | None) -> Callable[[], Any]:
    """A repeated lookup."""
    return lambda: lookup("benchmark_gemm", arch=arch, m=512, n=512, k=500)


if __name__ == "__main__":
    main()
