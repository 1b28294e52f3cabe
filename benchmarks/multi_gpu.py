"""One GPU and two of the same model, of this machine and of a fleet: time of the same searches.

All sizes are searched as `autotune run` does, by one card and by two, in the order one, two, two, one:
what is known first, of each size as many configurations. All are compiled before, with all inputs made,
so that neither limits: inputs are kept beyond the usual 4 GB, and the fleet is started with `AUTOTUNE_CACHE_SIZE=64G`.
Compared is the time from the beginning of the first search to the last row.

    python benchmarks/multi_gpu.py                            # two GPUs
    python benchmarks/multi_gpu.py --fleet WHERE              # the cards of a fleet, too
    python benchmarks/multi_gpu.py --simulated 0.004          # no GPU: cards that sleep as long for each
    python benchmarks/multi_gpu.py --problem m=256,n=256,k=256 --problem m=512,n=512,k=512
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from harness import command_line, finish, provenance, write
from simulated import SimulatedSite, cards

from autotune import __version__, cache
from autotune.devices.choose import choose_devices
from autotune.devices.device import Device
from autotune.kernel import parsing
from autotune.kernel.catalog import find_kernel
from autotune.kernel.spec import Kernel
from autotune.run.bench import LOCAL, Site
from autotune.run.division import Division, done_at_once
from autotune.run.request import Request, Search
from autotune.run.result import ProblemResult
from autotune.run.run import Run
from autotune.run.tuner import ProblemTuner, Tuner
from autotune.search.session import Budget, Event, Measured, SearchStarted
from autotune.store import RunInfo, Store
from autotune.values import Problem

#: Asked for, of two cards over one: of all sizes, and of those under a millisecond.
ASKED = {"all": 1.9, "small": 1.8}
#: Sizes whose best time is longer, of sgemm on an H100 or H200: rows of the larger fields.
LARGE = 2500**3
#: Of inputs that stay between turns: those of all sizes.
INPUTS = "64G"
#: How many cards take each turn: a change of clocks affects both alike.
TURNS = (1, 2, 2, 1)


class Searches(Division):
    """The searches of a run without its finals."""

    @property
    def is_done(self) -> bool:
        return len(self.searched) == len(self.request.problems)

    def results(self, tuner: Tuner) -> Generator[ProblemResult]:
        self.search_all(tuner)
        yield from ()


class Marks:
    """A listener that notes when the first search begins and when each row is there."""

    def __init__(self) -> None:
        self.begun_s: list[float] = []
        self.rows_s: list[float] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, SearchStarted):
            self.begun_s.append(time.monotonic())
        elif isinstance(event, Measured):
            self.rows_s.append(time.monotonic())


def turn(
    kernel: Kernel, site: Site, devices: Sequence[Device], each: int, problems: Sequence[Problem]
) -> dict[str, Any]:
    """Search all problems by some cards."""
    request = Request(
        kernel,
        devices[0],
        tuple(problems),
        goal=Search("random"),
        budget=Budget(evaluations=each * len(problems)),
        others=tuple(devices[1:]),
    )
    marks, asked_s = Marks(), time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        Store.open(Path(folder, "s.sqlite")) as store,
        closing(Run(request, store, marks, site)) as run,
    ):
        run_id = store.begin_run(
            RunInfo(kernel.name, devices[0].name, "random", 0, __version__, "benchmark")
        )
        processes = run.processes(run_id)
        own = ProblemTuner(run, store, run_id, marks, "")
        tuners: list[Tuner] = [*processes] or [own]
        work = Searches(request, False, run.clock_s(), tuners)
        cpu_s = time.process_time()
        results = done_at_once(work, processes, site.require_running)
        list(results if processes else work.results(own))
        cpu_s = time.process_time() - cpu_s
        rows = [row.measurement for row in store.rows()]
    if len(rows) != each * len(problems):
        raise SystemExit(f"{len(rows)} rows, expected {each} of {len(problems)} sizes")
    seconds = marks.rows_s[-1] - marks.begun_s[0]
    return {
        "devices": len(devices),
        "processes": len(processes),
        "problems": len(problems),
        "configurations": len(rows),
        "startup_s": marks.begun_s[0] - asked_s,
        "seconds": seconds,
        "per_s": len(rows) / seconds,
        "device_s": sum(row.verify_s + row.measure_s for row in rows),
        "parent_cpu_s": cpu_s,
        "statuses": dict(Counter(str(row.status) for row in rows)),
        "by_device": dict(Counter(row.device_uuid for row in rows if row.device_uuid)),
        "best_ms": {
            str(problem): min(
                (row.median_ms for row in found.measured if row.median_ms), default=None
            )
            for problem, found in work.searched.items()
        },
    }


def as_line(place: str, which: str, done: dict[str, Any]) -> str:
    """One turn as a line."""
    per_row = 1000 / done["configurations"]
    return (
        f"{place}, {which}, {done['devices']}: {done['configurations']} of {done['problems']} sizes in "
        f"{done['seconds']:.2f} s, {done['per_s']:.1f}/s; of each {done['seconds'] * per_row:.2f} ms "
        f"{done['device_s'] * per_row / done['devices']:.2f} on a card, "
        f"{done['parent_cpu_s'] * per_row:.2f} of the parent's CPU; started in "
        f"{done['startup_s']:.1f} s; {done['statuses']}; {list(done['by_device'].values())} by card"
    )


def row(place: str, which: str, turns: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All turns of the same searches, by one card and by two."""
    one_s, two_s = (
        sum(turn["seconds"] for turn in turns if turn["devices"] == count) for count in (1, 2)
    )
    about = {"place": place, "sizes": which, "problems": turns[0]["problems"]}
    counted = {
        "measurements": sum(each["configurations"] for each in turns if each["devices"] == 2)
    }
    return {**about, **counted, "one_s": one_s, "two_s": two_s, "ratio": one_s / two_s}


def places_of(
    options: argparse.Namespace, stack: ExitStack
) -> dict[str, tuple[Site, list[Device]]]:
    """Return the sites with two cards of each."""
    if options.simulated:
        return {"local": (SimulatedSite(options.simulated), cards(2))}
    found: dict[str, tuple[Site, list[Device]]] = {}
    if options.devices:
        found["local"] = LOCAL, [*choose_devices(options.devices)][:2]
    if options.fleet:
        from autotune.fleet import client
        from autotune.fleet.site import FleetSite

        fleet = stack.enter_context(client.of(options.fleet))
        model, *_ = fleet.models()
        found["fleet"] = FleetSite(fleet), [card.device for card in fleet.usable(model)][:2]
    for place, (_, devices) in found.items():
        if len(devices) < 2:
            sys.exit(f"{place}: two cards of one model are needed, there is {devices[0].name}")
    return found


def main() -> None:
    parser = command_line(__doc__, "multi_gpu-<device>.json or fleet-<device>.json", None)
    parser.add_argument("--fleet", metavar="WHERE", help="measure the cards of a fleet, too")
    parser.add_argument("--devices", default="cuda:all", help="default: cuda:all; empty: none")
    parser.add_argument("--simulated", type=float, metavar="SECONDS", help="cards that sleep")
    parser.add_argument("--kernel", default="sgemm")
    parser.add_argument("--problem", action="append", help="default: all of the kernel")
    parser.add_argument("--configurations", type=int, default=36, help="of each problem")
    parser.add_argument("--max-s", type=float, default=1e9, help="begin no turn after so long")
    options = parser.parse_args()
    os.environ.setdefault(cache.SETTING, INPUTS)
    kernel, begun_s = find_kernel(options.kernel), time.monotonic()
    texts = options.problem or []
    problems = [parsing.problem(kernel, text) for text in texts] or list(kernel.problems["cuda"])
    # The longest first, so that no card ends long before the other.
    problems.sort(key=lambda problem: -(work.flops if (work := kernel.work_of(problem)) else 0.0))
    groups = {"all": problems}
    small = [p for p in problems if (work := kernel.work_of(p)) and work.flops < 2 * LARGE]
    if len(small) < len(problems):
        groups["small"] = small
    turns: dict[tuple[str, str], list[dict[str, Any]]] = {}
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        places = places_of(options, stack)
        for place, (site, devices) in places.items():  # compiles, and makes all inputs
            print(
                "warm up:",
                as_line(
                    place, "all", turn(kernel, site, devices, options.configurations, problems)
                ),
                flush=True,
            )
        for place, which in (("local", "all"), ("local", "small"), ("fleet", "all")):
            done = turns.setdefault((place, which), [])
            if place not in places or which not in groups:
                continue
            site, devices = places[place]
            for count in TURNS:
                if time.monotonic() - begun_s < options.max_s:
                    done.append(
                        turn(kernel, site, devices[:count], options.configurations, groups[which])
                    )
                    print(as_line(place, which, done[-1]), flush=True)
            if {each["devices"] for each in done} == {1, 2}:
                rows.append(row(place, which, done[:2] if len(done) < len(TURNS) else done))
                found, asked = rows[-1], ASKED[which]
                print(
                    f"{place}, {which}: {found['one_s']:.2f} s on one card, {found['two_s']:.2f} s on "
                    f"two: {found['ratio']:.3f} (asked: {asked}): "
                    f"{'met' if found['ratio'] >= asked else 'NOT MET'}",
                    flush=True,
                )
    if options.simulated:
        return
    first, second = next(iter(places.values()))[1]
    result = {
        **provenance(first),
        "uuids": [first.uuid, second.uuid],
        "kernel": kernel.name,
        "asked": ASKED,
        "rows": rows,
        "turns": [
            {"place": place, "sizes": which, **each}
            for (place, which), done in turns.items()
            for each in done
        ],
    }
    file = "fleet" if options.fleet else "multi_gpu"
    write(options.out / f"{file}-{first.folder}.json", result)


if __name__ == "__main__":
    finish(main)
