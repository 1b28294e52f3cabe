"""What a lookup costs: importing it, the first answer, a repeated one, and one for a new size.

Asked are the shipped records, of sgemm for compute capability 9.0. Prints milliseconds and microseconds; fails at
nothing.

    python benchmarks/lookup.py
"""

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from harness import ROOT, finish

from autotune import lookup
from autotune.tuned.lookup import clear_cache


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


def first() -> None:
    """A lookup that reads files."""
    clear_cache()
    lookup("sgemm", arch=90, m=512, n=512, k=512)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20, help="new interpreters per import")
    runs = parser.parse_args().runs
    bare = import_ms("pass", runs)
    whole = import_ms("from autotune import lookup", runs)
    print(f"from autotune import lookup   {whole - bare:7.1f} ms over bare Python ({bare:.1f} ms)")
    os.environ["AUTOTUNE_TUNED"] = str(ROOT / "reports")
    print(f"first answer, reading files   {us_per_call(first, 20) / 1e3:7.2f} ms")
    for name, arch in (("arch given  ", 90), ("own device  ", None)):
        again = partial(lookup, "sgemm", arch=arch, m=512, n=512, k=500)
        print(f"again, {name}           {us_per_call(again, 20000):7.2f} µs")
    sizes = itertools.count(100)
    new_us = us_per_call(lambda: lookup("sgemm", arch=90, m=next(sizes), n=512, k=100), 500)
    print(f"a new size                    {new_us:7.2f} µs")


if __name__ == "__main__":
    finish(main)
