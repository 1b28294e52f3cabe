"""Time to a verified winner of large problems, with empty caches, and Kernel Tuner 1.5.0 on the same kernels.

Each row is one command, `autotune run KERNEL --problem … --budget …`, in a process and a home folder of its own. It
is watched from outside: seconds from its start to the first row in the store, to the record of the winner and to its
end; memory of all its processes and of the device; rows per second from the first to the last. A command that is not
through after `--limit` is killed. The space files are copies, whose references note each call. Calls with at least
half of the problem's elements are `full`.

The kernels are in `time_to_winner/`, written for this; products and transposes are the package's own, without their
records. With `--rival` Kernel Tuner tunes the kernels of one launch: its user computes the answer in float32
and gives it the same budget. A scan is three launches, which it cannot tune: the histogram takes its place.

    python benchmarks/time_to_winner.py --part 1 --rival      # some 9 minutes on an H200, as is part 2
    python benchmarks/time_to_winner.py --kernels stencil,scan --budget 20
    python benchmarks/time_to_winner.py --kernels make_run    # on a CPU: `make run`, 60 s
    python benchmarks/time_to_winner.py --device opencl:cpu --small --budget 10 --kernels stencil     # a look
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import ROOT, command_line, finish, merge, provenance
from watching import Watched, watch

from autotune.arrays import usable_cores
from autotune.devices.choose import choose_device
from autotune.devices.device import Device
from autotune.kernel.catalog import find_kernel
from autotune.kernel.spec import Kernel
from autotune.values import Problem, Value

OWN = Path("benchmarks/time_to_winner")
#: Folders that a copy of the space files needs.
COPIED = (Path("spaces"), Path("kernels"), OWN, Path("examples/kernel_tuner/kernels"))
GB = 1e9


@dataclass(frozen=True)
class Case:
    """A row of the table."""

    kernel: str
    #: Of a GPU; None for the quick problems, within the default budget on a CPU.
    problem: Problem | None
    part: int
    #: Folder of the space file.
    spaces: Path = OWN
    #: Largest seconds asked for: to the first row; to the winner after the budget ends. None: no slower than before.
    first_s: float | None = 3
    over_s: float | None = 10
    #: Whether Kernel Tuner can tune it.
    has_rival: bool = False


BUNDLED = Path("spaces")
CASES = {
    "stencil": Case("stencil", Problem(nx=512, ny=512, nz=512), 1, has_rival=True),
    "convolution": Case(
        "convolution", Problem(width=8192, height=8192, filter=17), 1, has_rival=True
    ),
    "sgemm_8192": Case("sgemm", Problem(m=8192, n=8192, k=8192), 1, BUNDLED),
    "sgemm_16384": Case("sgemm", Problem(m=16384, n=16384, k=16384), 1, BUNDLED),
    "hgemm_16384": Case("hgemm", Problem(m=16384, n=16384, k=16384), 1, BUNDLED),
    "nbody": Case("nbody", Problem(n=1 << 17), 2, over_s=15),
    "scan": Case("scan", Problem(n=1 << 30), 2, first_s=5),
    "histogram": Case("histogram", Problem(n=1 << 30), 2, first_s=5, has_rival=True),
    "transpose": Case("transpose", Problem(m=1 << 15, n=1 << 15), 2, BUNDLED, first_s=5),
    "collatz": Case("collatz", Problem(n=3 << 19), 2, over_s=25),
    "make_run": Case("sgemm", None, 0, BUNDLED, first_s=None, over_s=None),
}


def problem_of(case: Case, kernel: Kernel, is_small: bool) -> Problem | None:
    """Return the problem of a case; if ``is_small``, the kernel's quick problem of a CPU."""
    return kernel.quick_problems["opencl"][0] if is_small and case.problem else case.problem


def as_option(problem: Problem) -> str:
    return ",".join(f"{name}={value}" for name, value in problem.items())


# ---------------------------------------------------------------------- ours


def copy_with_count(case: Case, folder: Path) -> Path:
    """Copy the space files, the case's with decorators that note each call; return their folder."""
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name)
    spaces = folder / case.spaces
    if case.spaces != OWN:
        shutil.copy(ROOT / OWN / "_counted.py", spaces)
    file = spaces / f"{case.kernel}.py"
    text = file.read_text()
    for hook, decorator in (("arguments", "noted"), ("reference", "counted")):
        before, after = text.split(f"@{case.kernel}.{hook}\n")
        decorated = f"@{case.kernel}.{hook}\n@{decorator}\n"
        text = f"{before}from _counted import {decorator}\n\n\n{decorated}{after}"
    file.write_text(text)
    return spaces


def environment_in(home: Path) -> dict[str, str]:
    """Return variables of a process whose home and caches are empty."""
    ours = ("AUTOTUNE_", "XDG_", "CUPY_", "CUDA_CACHE", "POCL_CACHE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    others = [folder for folder in sys.path[1:] if folder]  # the first has this script
    path = os.pathsep.join([str(ROOT), *others])
    return {**kept, "HOME": str(home), "PYTHONPATH": path, "PYOPENCL_NO_CACHE": "1"}


def run_ours(
    case: Case, problem: Problem | None, device: Device, budget_s: float, limit_s: float
) -> dict[str, Any]:
    """Run the command of a case; return what was seen."""
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        spaces, out = copy_with_count(case, home / "copy"), home / "out"
        command = [
            *(sys.executable, "-m", "autotune", "run", case.kernel, "--spaces", str(spaces)),
            *(("--problem", as_option(problem)) if problem else ()),
            *(("--budget", f"{budget_s:g}s") if problem else ()),
            *("--device", device.selector, "--out", str(out)),
        ]
        found = watch(
            command,
            environment_in(home),
            limit_s,
            home / ".local/share/autotune/store.sqlite",
            lambda: any(out.glob(f"*/{case.kernel}.json")),
            home / "log",
        )
        return {**as_row(found), **count_in(spaces / "calls.jsonl", problem or {})}


def as_row(found: Watched) -> dict[str, Any]:
    """Return the facts of a watched command as a row."""
    searched_s = (found.last_row_s or 0) - (found.first_row_s or 0)
    return {
        "first_s": found.first_row_s,
        "winner_s": found.record_s,
        "end_s": found.seconds,
        "ended": {None: "killed", 0: "done"}.get(found.code, f"code {found.code}"),
        "configurations": found.rows,
        "per_s": (found.rows - 1) / searched_s if searched_s else None,
        "host_gb": found.host_bytes / GB,
        "host_with_files_gb": found.host_bytes_with_files / GB,
        "device_gb": None if found.device_bytes is None else found.device_bytes / GB,
        "output": found.output[-30:],
    }


def count_in(calls: Path, problem: Mapping[str, Value]) -> dict[str, Any]:
    """Return the number of evaluations of the reference, and their seconds."""
    lines = [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else []
    drawn = [
        line["elements"] for line in lines if line.get("problem", {}).items() >= problem.items()
    ]
    begun = [line for line in lines if "begun" in line]
    libraries = [line["library"] for line in begun]
    return {
        "evaluations": len(begun),
        "evaluations_full": sum(
            2 * line["elements"] >= min(drawn, default=math.inf) for line in begun
        ),
        "evaluations_by": {name: libraries.count(name) for name in sorted(set(libraries))},
        "evaluations_s": sum(line.get("seconds", 0.0) for line in lines),
    }


# ---------------------------------------------------------------------- Kernel Tuner


def run_rival(
    case: Case, problem: Problem, device: Device, budget_s: float, limit_s: float
) -> dict[str, Any]:
    """Tune the kernel of a case by Kernel Tuner in a process of its own."""
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        command = [
            *(sys.executable, str(Path(__file__).with_name("time_to_winner_rival.py"))),
            *(case.kernel, as_option(problem), "--spaces", str(ROOT / case.spaces)),
            *("--device", device.selector, "--seconds", f"{budget_s:g}"),
        ]
        begun = time.time()
        nowhere = home / "none"
        log = home / "log"
        found = watch(command, environment_in(home), limit_s, nowhere, lambda: False, log)
    row = as_row(found)
    kept = {name: row[name] for name in ("end_s", "ended", "host_gb", "device_gb")}
    if found.code != 0:
        return {**kept, "output": row["output"]}
    told = json.loads(found.output[-1])
    times = [at - begun for at in told["results"]]
    searched_s = times[-1] - times[0] if times else 0.0
    return {
        **kept,
        "answer_s": told["answer"] - begun,
        "first_s": times[0] if times else None,
        "configurations": len(times),
        "per_s": (len(times) - 1) / searched_s if searched_s else None,
        "best_ms": told["best_ms"],
    }


# ---------------------------------------------------------------------- the table


def compare(name: str, device: Device, options: argparse.Namespace, ends: float) -> dict[str, Any]:
    """Return the row of a case; ``ends`` is the time at which everything ends."""
    case = CASES[name]
    kernel = find_kernel(case.kernel, ROOT / case.spaces)
    problem = problem_of(case, kernel, options.small)

    def limit_s() -> float:
        return min(options.limit, ends - time.monotonic())

    row = {
        "kernel": name,
        "problem": dict(problem) if problem else None,
        "budget_s": options.budget,
        "asked_first_s": case.first_s,
        "asked_winner_s": None if case.over_s is None else options.budget + case.over_s,
        "arrays_gb": arrays_gb(kernel, problem),
        **run_ours(case, problem, device, options.budget, limit_s()),
    }
    if options.rival and case.has_rival and problem and limit_s() > options.budget:
        row["kernel_tuner"] = run_rival(case, problem, device, options.budget, limit_s())
    return row


def arrays_gb(kernel: Kernel, problem: Problem | None) -> float | None:
    """Return the size of the arrays: what the least work of the problem reads and writes."""
    if problem is None or "work" not in kernel.hooks:
        return None
    work = kernel.call_hook("work", problem)
    return float(work.bytes_read + work.bytes_written) / GB


COLUMNS = (
    *("problem", "first s (asked)", "winner s (asked)", "end s", "evaluations (full)"),
    *("arrays GB", "host GB", "device GB", "configurations", "per s"),
    *("Kernel Tuner: first s", "configurations", "per s"),
)


def table_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a table in Markdown."""
    lines = [COLUMNS, ("---", *["--:"] * (len(COLUMNS) - 1))]
    for row in rows:
        rival = row.get("kernel_tuner", {})
        size = as_option(Problem(row["problem"])) if row["problem"] else ""
        end = "" if row["ended"] == "done" else f" ({row['ended']})"
        lines.append(
            (
                f"{row['kernel']} {size}",
                f"{shown(row['first_s'])} ({shown(row['asked_first_s'])})",
                f"{shown(row['winner_s'])} ({shown(row['asked_winner_s'])})",
                f"{shown(row['end_s'])}{end}",
                f"{row['evaluations']} ({row['evaluations_full']})",
                *(shown(row[name]) for name in ("arrays_gb", "host_gb", "device_gb")),
                *(shown(row[name]) for name in ("configurations", "per_s")),
                *(shown(rival.get(name)) for name in ("first_s", "configurations", "per_s")),
            )
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def shown(value: float | None) -> str:
    if value is None:
        return "-"
    return (
        str(value) if isinstance(value, int) else f"{value:.3g}" if value < 10 else f"{value:.1f}"
    )


def main() -> None:
    options = _options()
    ends = time.monotonic() + options.seconds
    device, rows = choose_device(options.device), list[dict[str, Any]]()
    file = options.out / f"time-to-winner-{device.folder}.json"
    for name in options.kernels or [n for n, case in CASES.items() if case.part in options.part]:
        case, left_s = CASES[name], ends - time.monotonic()
        if device.backend not in find_kernel(case.kernel, ROOT / case.spaces).backends:
            print(f"{name}: not on {device.selector}, its source is for other backends", flush=True)
        elif left_s < options.budget:
            print(f"{name}: left out, {left_s:.0f} s of {options.seconds:.0f} are left", flush=True)
        else:
            rows.append(compare(name, device, options, ends))
            print(table_of(rows[-1:]).splitlines()[-1], flush=True)
            merge(file, {**rows[-1], **provenance(device), "cores": usable_cores()})
    print(table_of(rows), flush=True)


def _kernels(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in CASES]:
        raise argparse.ArgumentTypeError(f"unknown {unknown[0]!r}; known: {', '.join(CASES)}")
    return names


def _options() -> argparse.Namespace:
    parser = command_line(__doc__, "time-to-winner-<device>.json")
    parser.add_argument("--kernels", type=_kernels, help=f"of {','.join(CASES)}; default: parts")
    parser.add_argument(
        "--part", type=int, nargs="*", default=(1, 2), choices=(1, 2), help="default: both"
    )
    parser.add_argument("--budget", type=float, default=45, help="seconds; default: 45")
    parser.add_argument("--seconds", type=float, default=1200, help="for everything; default: 1200")
    parser.add_argument(
        "--limit", type=float, default=150, help="seconds for one command; default: 150"
    )
    parser.add_argument("--rival", action="store_true", help="Kernel Tuner too")
    parser.add_argument("--small", action="store_true", help="problems of a CPU, to try the script")
    return parser.parse_args()


if __name__ == "__main__":
    finish(main)
