"""One GPU and two of the same model, of this machine or of a fleet: time for the same measurements.

The same configurations in the same order, a known good one first, are measured by one card and by
two, in the order one, two, two, one, through the whole pipeline: engine, store, verification, timing.
All are compiled before, so that compilers limit neither; uploads are left out, since they are made
once per run. Compared is the time from the first that is asked for to the last row, of all sizes.

    python benchmarks/multi_gpu.py                        # two GPUs, about a minute
    python benchmarks/multi_gpu.py --devices cuda:2,cuda:3 --configurations 200
    python benchmarks/multi_gpu.py --twin                 # one GPU as two: that it works, not how fast

With a fleet, ``autotune fleet`` or any Dask cluster (docs/fleet.md), its cards are measured at
all sizes of the kernel, beside the same cards of this machine where ``--devices`` names them:

    python benchmarks/multi_gpu.py --fleet WHERE --configurations 48
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import numpy as np
from harness import command_line, finish, provenance, sampled, search_timed, write

from autotune.cli import console
from autotune.devices.choose import choose_devices
from autotune.devices.device import Device
from autotune.kernel.catalog import find_kernel
from autotune.kernel.space import Space, enumerate_space
from autotune.kernel.spec import Kernel
from autotune.measure.compiler import compile_job
from autotune.measure.evaluator import DeviceEvaluator
from autotune.measure.measurement import Status
from autotune.run.bench import LOCAL, Bench, Site, stopping_rule
from autotune.run.request import Request
from autotune.search.names import in_given_order
from autotune.values import Configuration, Problem

#: Asked for, of two cards over one.
LEAST_RATIO = {"local": 1.8, "fleet": 1.9}
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


def devices_of(options: argparse.Namespace) -> list[Device]:
    """The two cards; one under two names where only the mechanism is tried."""
    found = [*choose_devices(options.devices)]
    if options.twin:
        return [found[0], replace(found[0], uuid=f"{found[0].uuid} again")]
    if len(found) < 2:
        sys.exit(f"two GPUs of one model are needed, {options.devices} is one: see --twin")
    return found[:2]


def turns_of(
    place: str,
    site: Site,
    kernel: Kernel,
    devices: Sequence[Device],
    problem: Problem,
    options: argparse.Namespace,
) -> Iterator[dict[str, Any]]:
    """Measure one size by one card and by two, in turns."""
    space = enumerate_space(kernel, devices[0])
    configurations = sampled(kernel, space, problem, options.configurations, seed=options.seed)
    alone = Request(kernel, devices[0], (problem,))
    compile_s = compiled(alone, configurations, site)
    for count in TURNS:
        request = replace(alone, others=tuple(devices[1:count]))
        turn = measured(request, space, configurations, site)
        yield {"place": place, "problem": dict(problem), "compile_s": compile_s, **turn}
        print(
            f"{problem}: {place}, {count}: {turn['seconds']:.2f} s, {turn['per_s']:.2f}/s, of "
            f"{turn['device_s']:.2f} s at work on devices; started in {turn['startup_s']:.1f} s; "
            f"{turn['statuses']}; {list(turn['by_device'].values())} by card",
            flush=True,
        )


def row(place: str, turns: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All sizes of a place together, by one card and by two."""
    own = [turn for turn in turns if turn["place"] == place]
    one_s, two_s = (
        sum(turn["seconds"] for turn in own if turn["devices"] == count) for count in (1, 2)
    )
    measurements = sum(turn["configurations"] for turn in own if turn["devices"] == 2)
    sizes = len({str(turn["problem"]) for turn in own})
    about = {"place": place, "problems": sizes, "measurements": measurements}
    return {**about, "one_s": one_s, "two_s": two_s, "ratio": one_s / two_s}


def main() -> None:
    parser = command_line(__doc__, "multi_gpu-<device>.json or fleet-<device>.json", None)
    parser.add_argument("--fleet", metavar="WHERE", help="measure the cards of a fleet")
    parser.add_argument("--devices", help="default: cuda:all; with --fleet none")
    parser.add_argument("--kernel", default="sgemm")
    parser.add_argument("--problem", action="append", help="default: one, or all with --fleet")
    parser.add_argument("--configurations", type=int, default=96, help="of each problem")
    parser.add_argument("--max-s", type=float, default=np.inf, help="begin no size after so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--twin", action="store_true", help="one GPU under two names")
    options = parser.parse_args()
    kernel, begun = find_kernel(options.kernel), time.monotonic()
    texts = options.problem or ([] if options.fleet else ["m=4096,n=4096,k=4096"])
    problems = [console.problem(kernel, text) for text in texts] or kernel.problems["cuda"]
    places: dict[str, tuple[Site, list[Device]]] = {}
    turns: list[dict[str, Any]] = []
    with ExitStack() as stack:
        if options.fleet:
            from autotune.fleet import client
            from autotune.fleet.site import FleetSite

            fleet = stack.enter_context(client.of(options.fleet))
            model, *_ = fleet.models()
            cards = [card.device for card in fleet.usable(model)][:2]
            if len(cards) < 2:
                sys.exit(f"two cards of one model are needed; there are {len(cards)} {model.name}")
            places["fleet"] = FleetSite(fleet), cards
        if options.devices or not options.fleet:
            options.devices = options.devices or "cuda:all"
            places["local"] = LOCAL, devices_of(options)
        for number, problem in enumerate(problems):
            if time.monotonic() - begun > options.max_s:
                print(f"{len(problems) - number} sizes left out: {options.max_s:g} s are over")
                break
            for place, (site, devices) in places.items():
                turns += turns_of(place, site, kernel, devices, problem, options)
    rows = [row(place, turns) for place in places]
    for found in rows:
        asked = LEAST_RATIO[found["place"]]
        print(
            f"{found['place']}: {found['measurements']} measurements of {found['problems']} sizes in "
            f"{found['one_s']:.2f} s on one card, {found['two_s']:.2f} s on two: "
            f"{found['ratio']:.3f} (asked: {asked}): {'met' if found['ratio'] >= asked else 'NOT MET'}"
        )
    if options.twin:
        return
    name, (_, (first, second)) = next(iter(places.items()))
    result = {
        **provenance(first),
        "uuids": [first.uuid, second.uuid],
        "kernel": kernel.name,
        "seed": options.seed,
        "asked": LEAST_RATIO,
        "rows": rows,
        "turns": turns,
    }
    file = "fleet" if name == "fleet" else "multi_gpu"
    write(options.out / f"{file}-{first.folder}.json", result)


if __name__ == "__main__":
    finish(main)
