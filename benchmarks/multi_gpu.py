"""Configurations per second of one GPU and of two of the same model, where measuring is what takes time.

The same configurations in the same order, a known good one first, are measured by one card and by
two, in the order one, two, two, one, through the whole pipeline: engine, store, verification, timing.
All are compiled before, so that compilers limit neither; uploads are left out, since they are made
once per run. The rate is configurations by the time from the first that is asked for to the last row.

    python benchmarks/multi_gpu.py                        # two GPUs, about a minute
    python benchmarks/multi_gpu.py --devices cuda:2,cuda:3 --configurations 200
    python benchmarks/multi_gpu.py --twin                 # one GPU as two: that it works, not how fast
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from autotune import __version__
from autotune.devices.choose import choose_devices
from autotune.devices.device import Device
from autotune.kernel.catalog import find_kernel
from autotune.kernel.space import Space, enumerate_space
from autotune.kernel.spec import Kernel
from autotune.measure.compiler import compile_job
from autotune.measure.evaluator import DeviceEvaluator, Evaluator
from autotune.measure.measurement import Status
from autotune.measure.several import SeveralEvaluator
from autotune.run.bench import Bench, stopping_rule
from autotune.run.request import Request
from autotune.search import simple
from autotune.search.session import Budget, SearchSession, search
from autotune.store import RunInfo, Store

RESULTS = Path(__file__).resolve().parent / "results"
#: Asked for.
LEAST_RATIO = 1.8
#: Order in which one and two cards take their turns: a drift favours neither.
TURNS = (1, 2, 2, 1)


def chosen(kernel: Kernel, space: Space, count: int, seed: int) -> list[int]:
    """Numbers of the configurations to measure: seeds first, then drawn."""
    known = [kernel.default(), *map(kernel.completed, kernel.seeds)]
    found = [space.find(space.canonical(space.row(one))) for one in known]
    drawn = np.random.default_rng(seed).permutation(len(space)).tolist()
    return list(dict.fromkeys([*(i for i in found if i is not None), *drawn]))[:count]


def measured(request: Request, space: Space, order: list[int]) -> dict[str, Any]:
    """One turn: measure all on the devices of the request."""
    begun = time.monotonic()
    bench = Bench(request)
    try:
        (problem,) = request.problems
        job = bench.job(problem)
        evaluators = []
        for device, worker in zip(request.devices, bench.workers, strict=True):
            own = replace(job, device=device)
            worker.prepare(own)
            rule = stopping_rule(device)
            evaluators.append(DeviceEvaluator(request.kernel, own, bench.compilers, worker, rule))
        startup_s = time.monotonic() - begun
        with SeveralEvaluator(evaluators) as several:
            return {"startup_s": startup_s, **_timed(bench, several, space, order)}
    finally:
        bench.close()


def _timed(bench: Bench, evaluator: Evaluator, space: Space, order: list[int]) -> dict[str, Any]:
    request = bench.request
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder, "store")) as store:
        info = RunInfo(
            request.kernel.name, request.device.name, "list", 0, __version__, "benchmark"
        )
        session = SearchSession(
            space=space,
            evaluator=evaluator,
            store=store,
            run_id=store.begin_run(info),
            scope=bench.scope(request.problems[0]),
            budget=Budget(),
            others=tuple(one.uuid for one in request.others),
        )
        begun = time.monotonic()
        rows = list(search(session, simple.in_given_order(order), 0).values())
        seconds = time.monotonic() - begun
        assert len(store.rows()) == len(rows) == len(order)
    statuses = Counter(str(one.status) for one in rows)
    return {
        "devices": len(request.devices),
        "configurations": len(rows),
        "seconds": seconds,
        "per_s": len(rows) / seconds,
        "device_s": sum(one.verify_s + one.measure_s for one in rows),
        "statuses": dict(statuses),
        "by_device": dict(Counter(one.device_uuid for one in rows if one.device_uuid)),
        "best_ms": min(one.median_ms or np.inf for one in rows if one.status is Status.OK),
    }


def compiled(request: Request, space: Space, order: list[int]) -> float:
    """Compile all beforehand; returns the seconds that it took."""
    begun = time.monotonic()
    bench = Bench(request)
    try:
        jobs = [
            compile_job(request.kernel, space.configuration(i), request.problems[0], request.device)
            for i in order
        ]
        for job in jobs:
            bench.compilers.submit(job)
        for job in jobs:
            bench.compilers.result(job)
    finally:
        bench.close()
    return time.monotonic() - begun


def devices_of(arguments: argparse.Namespace) -> tuple[Device, Device]:
    """The two cards; one under two names where only the mechanism is tried."""
    found = choose_devices(arguments.devices)
    if arguments.twin:
        return found[0], replace(found[0], uuid=f"{found[0].uuid} again")
    if len(found) < 2:
        sys.exit(f"two GPUs of one model are needed, {arguments.devices} is one: see --twin")
    return found[0], found[1]


def main() -> None:
    """Measure, print, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--devices", default="cuda:all")
    parser.add_argument("--kernel", default="sgemm")
    parser.add_argument("--problem", default="m=4096,n=4096,k=4096")
    parser.add_argument("--configurations", type=int, default=96)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--twin", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()

    from autotune.cli import parsing

    first, second = devices_of(arguments)
    kernel = find_kernel(arguments.kernel)
    problem = parsing.problem(kernel, arguments.problem)
    space = enumerate_space(kernel, first)
    order = chosen(kernel, space, arguments.configurations, arguments.seed)
    one = Request(kernel, first, (problem,))
    two = replace(one, others=(second,))
    compile_s = compiled(one, space, order)
    print(f"{len(order)} configurations compiled in {compile_s:.1f} s", flush=True)
    turns = []
    for count in TURNS:
        turn = measured(one if count == 1 else two, space, order)
        turns.append(turn)
        print(
            f"{count} GPU: {turn['per_s']:.2f} configurations/s ({turn['seconds']:.1f} s, of "
            f"{turn['device_s']:.1f} s at work on devices; {turn['statuses']}; "
            f"{list(turn['by_device'].values())} by card)",
            flush=True,
        )
    rates = {
        count: median(turn["per_s"] for turn in turns if turn["devices"] == count)
        for count in (1, 2)
    }
    ratio = rates[2] / rates[1]
    print(f"ratio {ratio:.3f} (asked: {LEAST_RATIO})")
    if arguments.twin:
        return
    result = {
        "version": __version__,
        "date": datetime.now(UTC).date().isoformat(),
        "device": first.name,
        "driver": first.driver,
        "uuids": [first.uuid, second.uuid],
        "kernel": kernel.name,
        "problem": dict(problem),
        "seed": arguments.seed,
        "compile_s": compile_s,
        "one_per_s": rates[1],
        "two_per_s": rates[2],
        "ratio": ratio,
        "asked": LEAST_RATIO,
        "turns": turns,
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / f"multi_gpu-{first.folder}.json"
    file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(file)


if __name__ == "__main__":
    main()
