"""Seconds and memory of the commands that read a large results store, and of adding to it.

A store of a million rows is made through its own interface: nine tenths are of one kernel on one
problem, a twentieth the same again of a later run, the rest of another kernel on twenty problems.
Then 16 processes append, a search of the large kernel is resumed, and every command runs in a
process of its own. A store that is there already is used as it is.

    python benchmarks/store.py                                   # some ten minutes
    python benchmarks/store.py --rows 10000 --out /tmp           # a look
    python benchmarks/store.py --url postgresql://user@host/database
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from harness import command_line, finish, merge, provenance

from autotune import __version__
from autotune.devices.binary import CompiledFunction
from autotune.devices.choose import choose_device
from autotune.kernel.catalog import load_file
from autotune.kernel.space import enumerate_space
from autotune.measure.measurement import CheckResult, Measurement, Status
from autotune.run.bench import Bench
from autotune.run.request import Request
from autotune.search.session import Budget, SearchSession
from autotune.store import RunInfo, Scope, Store
from autotune.values import Configuration, Problem

#: Values of each of the six parameters of the large kernel.
VALUES = 10
#: Rows that are added by one transaction when the store is made, and by the writers.
FILLED, BATCH = 1000, 50
#: Processes that append at once, and what each of them does.
WRITERS, WRITTEN = 16, 2000
#: Configurations that a resumed search asks for at once.
ASKED = 512
SOURCE = """\
#include "dialect.h"
KERNEL(64, 1, 0) NAME(GLOBAL const float* x, GLOBAL float* out, int n) {
    const int i = BID(0) * 64 + TID(0);
    if (i < n) out[i] = 2 * x[i];
}
"""
SPACE = '''\
"""NAME: out = 2 * x, with parameters that change nothing."""

import numpy as np

from autotune import Kernel, Launch, Out, Problem, ceil_div

NAME = Kernel(
    "NAME.cu",
    problems=[Problem(n=n) for n in range(1000, 1000 + PROBLEMS)],
    **{f"P{i}": tuple(range(VALUES)) for i in range(6)},
)


@NAME.launch
def launch(c, p):
    return Launch(grid=(ceil_div(p.n, 64),), block=(64,))


@NAME.arguments
def arguments(p, rng):
    return {"x": rng.standard_normal(p.n, dtype=np.float32), "out": Out(p.n), "n": p.n}


@NAME.reference
def reference(x):
    return 2 * x
'''
COMMANDS = {
    "run": "run large --problem n=1000 --budget 20evals --device opencl:cpu",
    "results --best 5": "results --best 5",
    "results large --best 5": "results large --best 5",
    "results small --best 5": "results small --best 5",
    "report": "report large",
    "export cache": "export small cache",
    "export t4": "export small t4",
    "retune": "retune --stale --dry-run",
}


def main() -> None:
    parser = command_line(__doc__, "store.json", device=None)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--url", help="the store: a file's path or a database; default: a new file")
    parser.add_argument(
        "--only", action="append", choices=COMMANDS, help="of the commands (repeatable)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        os.environ |= {"HOME": made, "AUTOTUNE_CACHE_DIR": f"{made}/cache"}
        scopes = _written(folder)
        url = options.url or str(folder / "store.sqlite")
        row: dict[str, Any] = {
            "kernel": f"{url.partition(':')[0] if '://' in url else 'sqlite'} {options.rows}",
            **provenance(),
            "load": [round(load, 1) for load in os.getloadavg()],
            "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        }
        with Store.open(url) as store:
            begun = time.perf_counter()
            added = _filled(store, scopes, options.rows)
            row["fill_s"] = round(time.perf_counter() - begun, 1) if added else None
            row["resume_s"] = _resumed(store, folder, scopes[0])
        row["appended_per_s"] = _appended(url, scopes[1])
        row["commands"] = {
            name: _run(command, url, folder)
            for name, command in COMMANDS.items()
            if name in (options.only or COMMANDS)
        }
    merge(options.out / "store.json", row)


def _written(folder: Path) -> list[Scope]:
    """The scopes of both kernels, written below a folder: the large one's first."""
    device, scopes = choose_device("opencl:cpu"), []
    for kind in ("kernels", "spaces"):
        (folder / kind).mkdir()
    for name, problems in (("large", 1), ("small", 20)):
        (folder / "kernels" / f"{name}.cu").write_text(SOURCE.replace("NAME", name))
        text = SPACE.replace("NAME", name).replace("PROBLEMS", str(problems))
        file = folder / "spaces" / f"{name}.py"
        file.write_text(text.replace("VALUES", str(VALUES)))
        kernel = load_file(file)
        with closing(Bench(Request(kernel, device, ()))) as bench:
            scopes += [bench.scope(Problem(n=1000 + i)) for i in range(problems)]
    return scopes


def _filled(store: Store, scopes: list[Scope], rows: int) -> bool:
    """Fill an empty store; False where it holds something."""
    large, *small = scopes
    info = RunInfo("large", large.device_name, "random", 0, __version__, "benchmark")
    first = store.begin_run(info)
    store.finish_run(first, "done")
    if first > 1:
        return False
    shares = [(large, rows * 9 // 10), (large, rows // 20)]
    shares += [(scope, rows // 20 // len(small)) for scope in small]
    for scope, count in shares:
        run = store.begin_run(replace(info, kernel=scope.kernel))
        numbered = _measurements(count)
        while batch := list(islice(numbered, FILLED)):
            store.add_many(run, scope, batch)
        store.finish_run(run, "done")
    return True


def _resumed(store: Store, folder: Path, scope: Scope) -> float:
    """Seconds until a search that is done again knows what it is and has its first answers."""
    space = enumerate_space(load_file(folder / "spaces" / "large.py"), choose_device("opencl:cpu"))
    begun = time.perf_counter()
    session = SearchSession(space, _Nobody(), store, 0, scope, Budget())
    session.hint(range(ASKED))
    session.known()
    return round(time.perf_counter() - begun, 2)


class _Nobody:
    """Measures nothing."""

    def hint(self, configurations: Any) -> None:
        pass


def _appended(url: str, scope: Scope) -> float:
    """Rows per second of `WRITERS` processes at once, an attempt before each row as in a run."""
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(WRITERS + 1)
    processes = [
        context.Process(target=_write, args=(url, scope, number, ready))
        for number in range(WRITERS)
    ]
    for process in processes:
        process.start()
    ready.wait()
    begun = time.perf_counter()
    for process in processes:
        process.join()
    assert all(process.exitcode == 0 for process in processes)
    return round(WRITERS * WRITTEN / (time.perf_counter() - begun), 1)


def _write(url: str, scope: Scope, number: int, ready: Any) -> None:
    info = RunInfo(scope.kernel, scope.device_name, "random", number, __version__, "benchmark")
    with Store.open(url) as store:
        run = store.begin_run(info)
        rows = _measurements(WRITTEN)
        ready.wait()
        while some := list(islice(rows, BATCH)):
            store.open_attempts(run, scope, [row.configuration for row in some])
            store.add_many(run, scope, some)
        store.finish_run(run, "done")


def _measurements(count: int) -> Iterator[Measurement]:
    """Rows as a GPU's search yields them: three of four stopped early, one of fifty wrong."""
    noise = random.Random(count)
    for number, place in enumerate(noise.sample(range(VALUES**6), count)):
        named = {f"P{i}": place // VALUES**i % VALUES for i in range(6)}
        status = Status.OK if number % 4 == 0 else Status.STOPPED_EARLY
        time_ms = (1 if status is Status.OK else 3) + noise.random()
        yield Measurement(
            Configuration(named),
            Status.WRONG_RESULT if number % 50 == 0 else status,
            ""
            if status is Status.OK
            else "1.02 ms is the best so far; all 2 samples exceed 1.5 ms",
            samples_ms=tuple(time_ms + 0.01 * noise.random() for _ in range(7)),
            checks=tuple(
                CheckResult("out", name, 1e-7, 1e-8, 1e-5) for name in ("exact", "random")
            ),
            entries=(CompiledFunction("large", registers=32, spill_bytes=0, shared_bytes=4096),),
            binary_key=f"{noise.getrandbits(256):064x}",
            compile_s=0.2,
            verify_s=0.01,
            measure_s=0.01,
            launched_by="graph",
        )


def _run(command: str, url: str, folder: Path) -> dict[str, Any]:
    """Seconds and megabytes of a command; its last line where it fails."""
    environment = {**os.environ, "AUTOTUNE_STORE": url, "COLUMNS": "200"}
    words = [sys.executable, "-m", "autotune", *command.split()]
    begun, most_kb = time.perf_counter(), 0
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(words, env=environment, cwd=folder, stdout=said, stderr=said)
        while process.poll() is None:
            with suppress(OSError, IndexError):  # it may end in between
                status = Path(f"/proc/{process.pid}/status").read_text()
                most_kb = max(most_kb, int(status.partition("VmHWM:")[2].split()[0]))
            time.sleep(0.02)
        seconds = time.perf_counter() - begun
        said.seek(0)
        lines = said.read().decode().splitlines()
    found = {
        "seconds": round(seconds, 2),
        "megabytes": round(most_kb / 1024),
    }
    print(f"{command}: {found}")
    return found if process.returncode == 0 else {**found, "failed": (lines or [""])[-1]}


if __name__ == "__main__":
    finish(main)
