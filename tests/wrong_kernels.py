"""Kernels with wrong configurations, each the fastest of its space, and a run of each that is watched or killed.

Tests are in `test_wrong_kernels.py` and in `trust`. On a device:

    python tests/wrong_kernels.py --device cuda:0 --kills 20 --jobs 4
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager, suppress
from itertools import cycle
from pathlib import Path

from autotune.cli import run
from autotune.devices.choose import choose_device
from autotune.errors import UsageError
from autotune.run.bench import Site
from autotune.store import Store
from autotune.tuned.lookup import clear_cache, lookup

ROOT = Path(__file__).resolve().parents[1]
#: A multiple of every tile, with an index of more than 15 bits.
SIZE = 3 * 2**14 + 2**11
#: Statements for the marks of the source, by mark; `WRONG` is their condition.
Edits = dict[str, str]
#: Seconds after which the reference goes on in any case: a search that waits for it stores no row before.
LONGEST_S = 10.0

SOURCE = """\
#include "dialect.h"
#ifndef BLOCK
#define BLOCK 128
#define ITEMS 1
#define FAULT 0
#endif
// The right configurations take longer.
#define DETOUR (WRONG ? 0 : 100)

KERNEL(BLOCK, 1, 1) mirrored({x_type} x, GLOBAL float* out, int n, GLOBAL int* count)
{{
    SHARED float tile[BLOCK];
    for (int item = 0; item < ITEMS; ++item) {{
        const int i = (BID(0) * ITEMS + item) * BLOCK + TID(0);
        const float mine = i < n ? x[i] : 0;
        SYNC();
        {put}
        {wait}
        float value = mine + tile[TID(0) ^ 127];
        for (int r = 0; r < DETOUR; ++r) value = FMA(value, r < n ? 1.0f : 2.0f, 0.0f);
        if (i < n) {{
            count[i] = count[i] < 0 || count[i] > 1 << 20 ? 1 : count[i] + 1; // either poison
            {change}
            {store}
        }}
    }}
}}
"""
RIGHT = {
    "x_type": "GLOBAL const float*",
    "put": "tile[TID(0)] = mine;",
    "wait": "SYNC();",
    "change": "",
    "store": "out[i] = value;",
}
SPACE = '''\
"""mirrored: out[i] = x[i] + x[i ^ 127]."""

import time
from pathlib import Path

import numpy as np

from autotune import Kernel, Launch, Out, Problem, ceil_div

mirrored = Kernel(
    "mirrored.cu",
    problems=[Problem(n={size})],
    seeds=[{{"FAULT": fault, "ITEMS": items}} for fault in {faults} for items in (1, 2, 4)],
    default={{"FAULT": {default}}},
    BLOCK=(128, 256),
    ITEMS=(1, 2, 4),
    FAULT={faults},
)


@mirrored.scratch
def scratch(c, p):
    return {{"count": Out(p.n, "int32")}}


@mirrored.launch
def launch(c, p):
    return Launch(grid=(ceil_div(p.n, c.BLOCK * c.ITEMS),), block=(c.BLOCK,))


@mirrored.requires
def requires(c, p):
    return p.n % 1024 == 0


@mirrored.arguments
def arguments(p, rng):
    return {{"x": rng.standard_normal(p.n, dtype=np.float32), "out": Out(p.n), "n": p.n}}


@mirrored.tolerance
def tolerance(p):
    return 1e-5


@mirrored.reference
def reference(x):
    for _ in range(6000):  # a minute at most
        if len(x) != {size} or Path({go!r}).exists():
            break
        time.sleep(0.01)
    return x + x[np.arange(len(x)) ^ 127]
'''


def changed(change: str, **others: str) -> Edits:
    """Return edits with a statement that changes ``value`` of element ``i`` in wrong configurations."""
    return {"change": f"if (WRONG) {{ {change} }}", **others}


#: A float without the 13 last bits of its mantissa.
COARSE = """union { float value; unsigned bits; } word;
                word.value = value; word.bits &= 0xffffe000u; value = word.value;"""
#: Edits of the source by kernel. Names of `ALL` are wrong in all configurations.
KERNELS: dict[str, Edits] = {
    "few_elements": changed("if (i % 9973 == 7) value += 1;"),
    "corner": changed("if (i == 0) value += 1;"),
    "last_block": {"store": "if (!WRONG || i < n - 1) out[i] = value;"},
    "all_alike": changed("value += 1;"),
    "all_alike_in_one_element": changed("if (i == n / 2) value += 1;"),
    "second_launch": changed("if (count[i] > 1) value += 1;"),
    "tenth_launch": changed("if (count[i] > 9) value += 1;"),
    "nan_in_a_block": changed("if (BID(0) == 1) value = NAN;"),
    "fast_half": changed("value *= 2;"),
    "race": {"wait": "if (!WRONG) SYNC(); else if (TID(0) / 32 % 2) tile[TID(0)] = mine;"},
    "uninitialized_shared": {"put": "if (!WRONG || TID(0) % 64 < 63) tile[TID(0)] = mine;"},
    "reads_its_output": {"store": "if (WRONG) out[i] += value; else out[i] = value;"},
    "first_launch_only": {"store": "if (!WRONG || count[i] == 1) out[i] = value;"},
    "short_index": {"store": "out[WRONG ? i & 0x7fff : i] = value;"},
    "coarse": changed(COARSE),
    "rare_values": changed("if (value < -4) value = -value;"),
    "zeros": changed("if (value == 0) value = 1;"),
    "rounds": changed("value = (float)(int)value;"),
    "changes_its_input": changed("if (i == 5) x[i] = 0;", x_type="GLOBAL float*"),
    "beyond_the_end": changed("if (i == n - 1) out[n] = 1;"),
}
ALL = {"all_alike", "all_alike_in_one_element"}
#: Kernels of the usual suite; tests/contracts has one that is wrong from its tenth launch on.
USUAL = ("all_alike",)


def is_wrong(name: str, configuration: Mapping[str, object]) -> bool:
    """Return whether a configuration of a kernel is wrong."""
    if name == "fast_half":
        return configuration["BLOCK"] == 256
    return configuration["FAULT"] == 1


def write_kernel(folder: Path, name: str) -> Path:
    """Write the files of a kernel; return the folder of its space file.

    The reference of the tuned problem waits for the file ``go``. Half of the kernels try wrong configurations first.
    """
    condition = "(BLOCK == 256)" if name == "fast_half" else "FAULT"
    faults = (0, 1) if list(KERNELS).index(name) % 2 else (1, 0)
    if name in ALL or name == "fast_half":
        faults = (int(name in ALL),)
    text = SOURCE.format(**RIGHT | KERNELS[name]).replace("WRONG", condition)
    go = str(folder / "go")
    space = SPACE.format(size=SIZE, faults=faults, default=min(faults), go=go)
    for kind, file, content in (("kernels", "mirrored.cu", text), ("spaces", "mirrored.py", space)):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        (folder / kind / file).write_text(content)
    return folder / "spaces"


# ---------------------------------------------------------------------- what is written

#: BLOCK and FAULT of a configuration in a record, and in a header.
_IN_RECORD = re.compile(r'"BLOCK": *(\d+), *"ITEMS": *\d+, *"FAULT": *(\d+)')
_IN_HEADER = re.compile(r"\{(\d+), *\d+, *(\d+), *\{")


def wrong_answers(name: str, folder: Path) -> set[str]:
    """Return the wrong configurations in the records and headers of a run in a folder."""
    found = set[str]()
    for below in ("out/*", "data/autotune/tuned/*/*"):
        for file in folder.glob(f"{below}/mirrored.*"):
            pattern = {".json": _IN_RECORD, ".hpp": _IN_HEADER}.get(file.suffix)
            with suppress(FileNotFoundError):
                for block, fault in pattern.findall(file.read_text()) if pattern else ():
                    if is_wrong(name, {"BLOCK": int(block), "FAULT": int(fault)}):
                        found.add(f"{file.name}: BLOCK={block}, FAULT={fault}")
    return found


def rows_in(store: Path) -> int:
    """Return the number of rows of a store; 0 while there is no such file or table."""
    with (
        suppress(sqlite3.Error),
        closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as opened,
    ):
        return int(opened.execute("select count(*) from measurements").fetchone()[0])
    return 0


def statuses(name: str, store: Path) -> Counter[tuple[bool, str]]:
    """Count the rows of a store by whether the configuration is wrong, and by status."""
    if not store.exists():
        return Counter()
    with Store.open(store) as opened:
        rows = [row.measurement for row in opened.rows()]
    return Counter((is_wrong(name, row.configuration), str(row.status)) for row in rows)


class Trial:
    """A kernel in a folder, which is the current folder and holds all that runs write.

    XDG_DATA_HOME must be the folder's ``data``.
    """

    def __init__(self, name: str, folder: Path, device: str) -> None:
        self.name, self.folder, self.device = name, folder, device
        self.store = folder / "data" / "autotune" / "store.sqlite"
        write_kernel(folder, name)
        self.command = (
            *("run", "mirrored", "--device", device, "--strategy", "exhaustive"),
            *("--budget", "40evals", "--out", str(folder / "out")),
        )

    def run(self) -> list[str]:
        """Run in this process, watched; return what is wrong afterwards, or was at any time."""
        with self._watched() as seen:
            code = run(list(self.command))
        return [*sorted(seen), *self.faults(code)]

    @contextmanager
    def _watched(self) -> Iterator[set[str]]:
        """Collect wrong answers all the time; let the reference go on once five configurations are stored."""
        seen, ended = set[str](), threading.Event()
        latest = time.monotonic() + LONGEST_S

        def look() -> None:
            while not ended.wait(0.01):
                seen.update(wrong_answers(self.name, self.folder))
                if rows_in(self.store) >= 5 or time.monotonic() > latest:
                    self.go()

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield seen
        finally:
            ended.set()
            thread.join()

    def go(self) -> None:
        """Let the reference go on."""
        (self.folder / "go").touch()

    def faults(self, code: int | None) -> list[str]:
        """Return what is wrong after a run; ``code`` is its exit code, None if it was killed."""
        rows = statuses(self.name, self.store)
        found = sorted(wrong_answers(self.name, self.folder))
        found += [f"{count} wrong rows are ok" for count in [rows[True, "ok"]] if count]
        if code is not None and (code == 0) == (self.name in ALL):
            found.append(f"exit code {code}")
        clear_cache()
        with suppress(UsageError):  # there is no record
            answer = lookup("mirrored", n=SIZE, device=choose_device(self.device))
            if is_wrong(self.name, answer) and answer.quality != "default":
                found.append(f"lookup: {dict(answer)}")
        return found

    # ------------------------------------------------------------------ kills

    def kill(self, rows: int, delay_s: float) -> str:
        """Begin a run, and kill it some time after it has stored a row; return its rows by status.

        The reference goes on when ``rows`` are stored.
        """
        process = subprocess.Popen(
            [sys.executable, "-c", SEARCH_FIRST, *self.command],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        ends, latest = math.inf, time.monotonic() + LONGEST_S
        while process.poll() is None and time.monotonic() < ends:
            stored = rows_in(self.store)
            if stored and ends == math.inf:
                ends = time.monotonic() + delay_s
            if stored >= rows or time.monotonic() > latest:
                self.go()
            time.sleep(0.01)
        ending = "ended before" if process.poll() is not None else "killed"
        process.kill()
        process.wait()
        self.go()
        deadline = time.monotonic() + 60
        while session_of(process.pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        left = session_of(process.pid)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        counts = statuses(self.name, self.store)
        told = ", ".join(
            f"{n} {'wrong' if bad else 'right'} {what}" for (bad, what), n in counts.items()
        )
        return f"{ending}; {told}" + (f"; {len(left)} processes left" if left else "")


#: The command line, with the reference in a process of its own on a CPU, too.
SEARCH_FIRST = """
import sys
from autotune.cli import run
from autotune.run.bench import Site
Site.uses_references = lambda *_: True
sys.exit(run(sys.argv[1:]))
"""


def session_of(leader: int) -> list[int]:
    """Return the processes of a session that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                found.append(int(stat.parent.name))
    return found


def tried(name: str, device: str, kill: tuple[int, float] | None) -> tuple[str, list[str]]:
    """Run a kernel in an empty folder, after a killed run if its moment is given; return its end and faults."""
    Site.uses_references = lambda *_: True
    with tempfile.TemporaryDirectory() as temporary:
        os.chdir(temporary)
        folder = Path(temporary)
        os.environ |= {"HOME": temporary, "XDG_DATA_HOME": str(folder / "data")}
        trial = Trial(name, folder, device)
        killed = trial.kill(*kill) if kill else ""
        faults = [*(trial.faults(None) if kill else ()), *trial.run()]
        os.chdir(ROOT)
    return killed, faults


def main() -> None:
    """Run all kernels, then kill runs, on a device; exit with 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--kernels", default=",".join(KERNELS), help="default: all")
    parser.add_argument("--kills", type=int, default=20, help="default: 20, one for each kernel")
    parser.add_argument("--jobs", type=int, default=1, help="kernels at once; default: 1")
    options = parser.parse_args()
    names, moments = options.kernels.split(","), random.Random(0)
    kills = [(moments.randrange(1, 12), moments.uniform(0, 3)) for _ in range(options.kills)]
    tasks: list[tuple[str, tuple[int, float] | None]] = [(name, None) for name in names]
    tasks += zip(cycle(names), kills, strict=False)
    bad, spawned = 0, multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, spawned, max_tasks_per_child=1) as pool:
        begun = [pool.submit(tried, name, options.device, kill) for name, kill in tasks]
        for (name, _), trial in zip(tasks, begun, strict=True):
            killed, faults = trial.result()
            bad += bool(faults) or "processes left" in killed
            print(f"{name}: {killed or 'run'}: {'; '.join(faults) or 'fine'}", flush=True)
    print(f"{len(tasks)} tried, {bad} bad")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
