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
import sys
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
from harness import command_line, finish, provenance, sampled, search_timed, write

from autotune.cli import parsing
from autotune.devices.choose import choose_devices
from autotune.devices.device import Device
from autotune.kernel.catalog import find_kernel
from autotune.kernel.space import Space, enumerate_space
from autotune.measure.compiler import compile_job
from autotune.measure.evaluator import DeviceEvaluator
from autotune.measure.measurement import Status
from autotune.run.bench import LOCAL, Bench, Site, stopping_rule
from autotune.run.request import Request
from autotune.search.names import in_given_order
from autotune.values import Configuration

#: Asked for.
LEAST_RATIO = 1.8
#: Order in which one and two cards take their turns: a drift favours neither.
TURNS = (1, 2, 2, 1)


def measured(
    request: Request, space: Space, configurations: list[Configuration], site: Site = LOCAL
) -> dict[str, Any]:
    """One turn: measure all on the devices of the request."""
    begun = time.monotonic()
    with closing(Bench(request, site)) as bench:
        (problem,) = request.problems
        job = bench.job(problem)
        for device, worker in zip(request.devices, bench.workers, strict=True):
            worker.prepare(replace(job, device=device))
        evaluator = DeviceEvaluator(
            request.kernel,
            job,
            bench.compilers,
            bench.worker,
            stopping_rule(request.device),
            zip(request.others, bench.workers[1:], strict=True),
        )
        startup_s = time.monotonic() - begun
        with evaluator:
            done = search_timed(
                space,
                evaluator,
                bench.scope(problem),
                in_given_order(list(map(space.index, configurations))),
                others=tuple(device.uuid for device in request.others),
            )
    rows = done.measurements
    assert done.rows == len(rows) == len(configurations)
    return {
        "startup_s": startup_s,
        "devices": len(request.devices),
        "configurations": len(rows),
        "seconds": done.seconds,
        "per_s": len(rows) / done.seconds,
        "device_s": sum(row.verify_s + row.measure_s for row in rows),
        "statuses": dict(Counter(str(row.status) for row in rows)),
        "by_device": dict(Counter(row.device_uuid for row in rows if row.device_uuid)),
        "best_ms": min(row.median_ms or np.inf for row in rows if row.status is Status.OK),
    }


def compiled(request: Request, configurations: list[Configuration], site: Site = LOCAL) -> float:
    """Compile all beforehand; returns the seconds that it took."""
    begun = time.monotonic()
    (problem,) = request.problems
    with closing(Bench(request, site)) as bench:
        jobs = [
            compile_job(request.kernel, configuration, problem, request.device)
            for configuration in configurations
        ]
        for future in [bench.compilers.submit(job) for job in jobs]:
            future.result()
    return time.monotonic() - begun


def devices_of(options: argparse.Namespace) -> tuple[Device, Device]:
    """The two cards; one under two names where only the mechanism is tried."""
    found = choose_devices(options.devices)
    if options.twin:
        return found[0], replace(found[0], uuid=f"{found[0].uuid} again")
    if len(found) < 2:
        sys.exit(f"two GPUs of one model are needed, {options.devices} is one: see --twin")
    return found[0], found[1]


def main() -> None:
    parser = command_line(__doc__, "multi_gpu-<device>.json", None)
    parser.add_argument("--devices", default="cuda:all")
    parser.add_argument("--kernel", default="sgemm")
    parser.add_argument("--problem", default="m=4096,n=4096,k=4096")
    parser.add_argument("--configurations", type=int, default=96)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--twin", action="store_true", help="one GPU under two names")
    options = parser.parse_args()

    first, second = devices_of(options)
    kernel = find_kernel(options.kernel)
    problem = parsing.problem(kernel, options.problem)
    space = enumerate_space(kernel, first)
    configurations = sampled(kernel, space, problem, options.configurations, seed=options.seed)
    alone = Request(kernel, first, (problem,))
    requests = {1: alone, 2: replace(alone, others=(second,))}
    compile_s = compiled(alone, configurations)
    print(f"{len(configurations)} configurations compiled in {compile_s:.1f} s", flush=True)
    turns = []
    for count in TURNS:
        turn = measured(requests[count], space, configurations)
        turns.append(turn)
        print(
            f"{count} GPU: {turn['per_s']:.2f} configurations/s ({turn['seconds']:.1f} s, of "
            f"{turn['device_s']:.1f} s at work on devices; {turn['statuses']}; "
            f"{list(turn['by_device'].values())} by card)",
            flush=True,
        )
    rates = {
        count: median(turn["per_s"] for turn in turns if turn["devices"] == count)
        for count in requests
    }
    ratio = rates[2] / rates[1]
    print(f"ratio {ratio:.3f} (asked: {LEAST_RATIO})")
    if options.twin:
        return
    result = {
        **provenance(first),
        "uuids": [first.uuid, second.uuid],
        "kernel": kernel.name,
        "problem": dict(problem),
        "seed": options.seed,
        "compile_s": compile_s,
        "one_per_s": rates[1],
        "two_per_s": rates[2],
        "ratio": ratio,
        "asked": LEAST_RATIO,
        "turns": turns,
    }
    write(options.out / f"multi_gpu-{first.folder}.json", result)


if __name__ == "__main__":
    finish(main)
