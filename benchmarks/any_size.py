"""Measure answers for sizes outside the fit against the best of the portfolio, the vendor and a search.

Sizes are drawn by a seed of their own, as `autotune sizes` draws them. On each, all configurations that may
answer and the vendor's calls are timed in interleaved rounds, as CUDA graphs of calls on two to eight sets of
buffers in turn; on the first ``--tune`` of them a search of ten seconds too, and on the first
``--first-call`` of them what ``load(tune="first_call")`` keeps, in processes of their own. Where ``load`` calls
another kernel with a smaller expected time, that kernel's answer is raced with the vendor's calls. Rows are
merged into ``results/any-size-<device>.json`` a few at a time, so the same command continues, and the figures
are printed.

    python benchmarks/any_size.py --kernel sgemm --count 200 --tune 0 --seconds 500
    python benchmarks/any_size.py --kernel sgemm --count 200 --tune 40 --seconds 560
    python benchmarks/any_size.py --kernel sgemm --count 30 --tune 30 --first-call 30
    python benchmarks/any_size.py --kernel gemv --count 40 --tune 0 --part 1/3
    python benchmarks/any_size.py --summary
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
import rivals
from any_size_task import race_sizes
from harness import command_line, finish, provenance, rows_in, write

from autotune.calling.binding import ResolvedCall, bind
from autotune.calling.choice import Choice, choose, expected_ms_of
from autotune.devices.choose import choose_device
from autotune.devices.device import Device
from autotune.kernel.catalog import find_kernel
from autotune.kernel.operand import Operand
from autotune.kernel.spec import Kernel
from autotune.linalg import PRODUCTS
from autotune.measure.rotation import CompiledEntrant, SizeTask
from autotune.run.bench import Bench
from autotune.run.drawing import random_sizes
from autotune.run.request import Request
from autotune.run.run import execute
from autotune.search.session import Budget
from autotune.store import Store
from autotune.tuned.reading import read_layers, user_folder
from autotune.values import Configuration, Problem

#: Seed of the held-out sizes: `autotune sizes` takes 1.
SEED = 20261124
#: Sizes of one task, and the longest time of a size.
AT_ONCE, SIZE_S = 4, 30.0
#: Time of a search.
TUNE_S = 10.0


def main() -> None:
    parser = command_line(__doc__, "any-size-<device>.json")
    parser.add_argument("--kernel", default="sgemm")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument(
        "--tune", type=int, default=0, help="sizes that are searched, the first ones"
    )
    parser.add_argument(
        "--first-call", type=int, default=0, help="sizes whose first call is tuned, the first ones"
    )
    parser.add_argument("--seconds", type=float, default=500.0, help="no size begins later")
    parser.add_argument(
        "--part",
        default="1/1",
        metavar="I/N",
        help="every N-th size from the I-th: a part for a card",
    )
    parser.add_argument("--summary", action="store_true", help="measure nothing")
    options = parser.parse_args()
    device, kernel = choose_device(options.device), find_kernel(options.kernel)
    file = options.out / f"any-size-{device.folder}.json"
    rows = rows_in(file)
    if not options.summary:
        end = time.monotonic() + options.seconds
        sizes = list(islice(random_sizes(kernel, device, SEED), options.count))
        searched, called = set(sizes[: options.tune]), set(sizes[: options.first_call])
        known = {(row["kernel"], Problem(row["problem"])): row for row in rows}
        first, step = map(int, options.part.split("/"))
        left = [
            size
            for size in sizes[first - 1 :: step]
            if (row := known.get((kernel.name, size))) is None
            or (size in searched and row["tuned_ms"] is None)
            or (size in called and row.get("first_call_ms") is None)
        ]
        with ExitStack() as stack:
            benches = Benches(device, stack)
            while left and time.monotonic() < end:
                count = 1 if left[0] in searched | called else AT_ONCE
                part, left = left[:count], left[count:]
                for row in measured(benches, kernel, device, part, searched, called):
                    known[kernel.name, Problem(row["problem"])] = row
                rows = sorted(known.values(), key=lambda row: str(row["kernel"]))
                write(file, {**provenance(device), "seed": SEED, "rows": rows})
    for name in dict.fromkeys(row["kernel"] for row in rows):
        summary([row for row in rows if row["kernel"] == name])


def measured(
    benches: Benches,
    kernel: Kernel,
    device: Device,
    sizes: Sequence[Problem],
    searched: set[Problem],
    called: set[Problem],
) -> list[dict[str, Any]]:
    """Race the answers on some sizes with the portfolio, the vendor, and what searches and first calls find."""
    answers = [choose(kernel, size, device) for size in sizes]
    found = [tuned(kernel, device, size) if size in searched else None for size in sizes]
    calls = [first_calls(kernel, device, size) if size in called else None for size in sizes]
    kept = [kept_by(kernel, each) if each else None for each in calls]
    ready = portfolio(kernel, device)
    everyone = [*ready, *(answer.configuration for answer in answers), *found, *kept]
    raced = race(benches.of(kernel, sizes[0]), sizes, list(dict.fromkeys(filter(None, everyone))))
    by_another = [passed_on(benches, kernel, device, size) for size in sizes]
    rows = []
    everything = zip(sizes, answers, found, calls, kept, raced, by_another, strict=True)
    for size, answer, won, both_calls, chosen, times, other in everything:
        of_vendor = {name: ms for name, ms in times.items() if isinstance(name, str)}
        answer_ms = times[answer.configuration]
        best_ms = min(times[each] for each in {*ready, answer.configuration} & times.keys())
        if other:
            answer, others_times = other
            answer_ms = others_times[answer.configuration]
            of_vendor |= {f"{n} again": t for n, t in others_times.items() if isinstance(n, str)}
            best_ms = min(best_ms, answer_ms)
        shares = answer.tuned and (answer.tuned.median_fraction, answer.tuned.expected_fraction)
        rows.append(
            {
                "kernel": kernel.name,
                "problem": dict(size),
                "quality": answer.tuned.quality if answer.tuned else None,
                "answered_by": answer.kernel,
                "answer_ms": answer_ms,
                "best_ms": best_ms,
                "tuned_ms": times[won] if won else None,
                "first_call_ms": times[chosen] if chosen else None,
                "first_call_s": both_calls and [call["seconds"] for call in both_calls],
                "vendor_ms": min(of_vendor.values(), default=None),
                "vendor": min(of_vendor, key=of_vendor.__getitem__, default=None),
                "expected": shares,
            }
        )
    return rows


def race(
    bench: Bench, sizes: Sequence[Problem], configurations: Sequence[Configuration]
) -> list[dict[Configuration | str, float]]:
    """Return median milliseconds of configurations, and of the vendor's calls by name, on each size."""
    kernel, device = bench.kernel, bench.device
    jobs = [bench.compile_job(configuration, sizes[0]) for configuration in configurations]
    for job in jobs:
        bench.compilers.submit(job)
    entrants = [
        CompiledEntrant(configuration, binary)
        for configuration, job in zip(configurations, jobs, strict=True)
        if (binary := bench.compilers.result(job).binary)
    ]
    numbered = list(enumerate(entrants))
    tasks = [
        SizeTask(size, tuple(n for n, each in numbered if kernel.allows(each.configuration, size)))
        for size in sizes
    ]
    symbols = rivals.cub_symbols(kernel.name, sizes[0])
    raced = bench.worker.ask(
        race_sizes,
        entrants,
        tasks,
        rivals.build_cub(device.arch, symbols) if device.is_cuda and symbols else None,
        job=bench.job(sizes[0], names=()),
        timeout_s=SIZE_S * len(sizes),
        turn_limits_s=[SIZE_S] * len(sizes),
    )
    return [
        {(entrants[n].configuration if isinstance(n, int) else n): ms for n, ms in times.items()}
        for times in raced
    ]


def passed_on(
    benches: Benches, kernel: Kernel, device: Device, size: Problem
) -> tuple[Choice, dict[Configuration | str, float]] | None:
    """Race the answer of the kernel that ``load`` calls for a product of this size; None: it is this one."""
    if kernel.name not in PRODUCTS.values():
        return None

    def expected_ms(call: ResolvedCall) -> float | None:
        return expected_ms_of(call.kernel, call.problem, device, deterministic=False)

    shapes = (size["m"], size["k"]), (size["k"], size["n"])
    operands = tuple(Operand.new(shape, "float32") for shape in shapes)
    call = bind(kernel, operands, {}, find_kernel, True, expected_ms)
    assert isinstance(call, ResolvedCall)
    if call.kernel.name == kernel.name:
        return None
    other = choose(call.kernel, call.problem, device)
    (times,) = race(benches.of(call.kernel, call.problem), [call.problem], [other.configuration])
    return other, times


class Benches:
    """A bench for each kernel that is measured, opened when it is."""

    def __init__(self, device: Device, stack: ExitStack) -> None:
        self._device, self._stack = device, stack
        self._open = dict[str, Bench]()

    def of(self, kernel: Kernel, size: Problem) -> Bench:
        """Return the bench of a kernel; its first size is of no meaning."""
        if kernel.name not in self._open:
            bench = Bench(Request(kernel, self._device, (size,)))
            self._open[kernel.name] = self._stack.enter_context(closing(bench))
        return self._open[kernel.name]


def portfolio(kernel: Kernel, device: Device) -> list[Configuration]:
    """Return the configurations that answer sizes that were not tuned."""
    for known in read_layers(kernel.name, kernel.project):
        if known.folder == device.folder:
            predictions = [table.prediction for table in known.record.portfolio.tables]
            costs = [cost for each in predictions if each for cost in each.costs]
            rows = [row for table in known.record.portfolio.tables for row in table.rows]
            plans = [cost.plan for cost in costs] or [row.plans[0] for row in rows]
            return list(dict.fromkeys(Configuration(dict(plan.configuration)) for plan in plans))
    return []


def tuned(kernel: Kernel, device: Device, size: Problem) -> Configuration | None:
    """Return what a search of `TUNE_S` finds, which knows nothing of earlier ones."""
    request = Request(kernel, device, (size,), budget=Budget(seconds=TUNE_S))
    with (
        tempfile.TemporaryDirectory() as folder,
        Store.open(f"sqlite:///{folder}/store.sqlite") as store,
    ):
        solved = execute(request, store).solved
    return solved[0].winner if solved else None


def first_calls(kernel: Kernel, device: Device, size: Problem) -> list[dict[str, Any]]:
    """Make the first call of a size in two processes, one after the other, that know the records alone."""
    script = str(Path(__file__).with_name("any_size_first_call.py"))
    command = [sys.executable, script, kernel.name, device.selector, json.dumps(dict(size))]
    with tempfile.TemporaryDirectory() as data:
        tuned = os.environ.get("AUTOTUNE_TUNED") or user_folder(kernel.project)
        environ = {**os.environ, "XDG_DATA_HOME": data, "AUTOTUNE_TUNED": tuned}
        return [
            json.loads(
                subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE).stdout
            )
            for _ in range(2)
        ]


def kept_by(kernel: Kernel, calls: Sequence[Mapping[str, Any]]) -> Configuration | None:
    """Return the configuration of the second process; None where another kernel served the call."""
    last = calls[-1]
    return Configuration(last["configuration"]) if last["kernel"] == kernel.name else None


def share(rows: Sequence[Mapping[str, Any]], name: str, of: str) -> str:
    """Return a time over another in words: geometric mean, lower tenth and worst; empty without any."""
    shares = np.array([row[name] / row[of] for row in rows if row.get(name) and row.get(of)])
    if not len(shares):
        return ""
    mean, tenth = geometric_mean(shares), np.quantile(shares, 0.1)
    return f"{name} / {of}: {mean:.4f}, tenth {tenth:.3f}, worst {shares.min():.3f}"


def summary(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the figures of a kernel's rows."""
    print(f"{rows[0]['kernel']}: {len(rows)} sizes")
    for of in ("answer_ms", "first_call_ms"):
        for name in ("best_ms", "tuned_ms", "vendor_ms"):
            if line := share(rows, name, of):
                print(f"  {line}")
    seconds = np.array([row["first_call_s"] for row in rows if row.get("first_call_s")])
    if len(seconds):
        (first, second), (worst, later) = np.median(seconds, axis=0), seconds.max(axis=0)
        print(f"  first calls: {first:.2f} s, at most {worst:.2f}; in a second process", end=" ")
        print(f"{second:.2f} s, at most {later:.2f}")
    expected = [row for row in rows if row["expected"] and row["expected"][1] is not None]
    if expected:
        held = np.mean(
            [row["best_ms"] / row["answer_ms"] >= row["expected"][1] for row in expected]
        )
        widths = [row["expected"][0] - row["expected"][1] for row in expected if row["expected"][0]]
        width = f"{np.median(widths):.3f}" if widths else "none"
        print(f"  the tenth holds in {held:.1%} of {len(expected)}; its median width is {width}")


if __name__ == "__main__":
    finish(main)
