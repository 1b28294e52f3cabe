"""One card of a fleet and two, beside the same cards of one machine without a fleet: time for the same measurements.

For each size the same configurations in the same order, a known good one first, are measured on one card
and on two, by Dask workers and by `--device cuda:all`, through the whole pipeline: engine, store,
verification, timing. As in `multi_gpu.py` all are compiled before and uploads are left out. What is
compared is the sum over the sizes.

    autotune fleet start --local                          # or any Dask cluster, see docs/fleet.md
    python benchmarks/fleet_cards.py --fleet WHERE        # two GPUs, some minutes
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from harness import command_line, finish, provenance, sampled, write
from multi_gpu import compiled, measured

from autotune.cli import parsing
from autotune.devices.choose import choose_devices
from autotune.devices.device import Device
from autotune.fleet import client
from autotune.fleet.site import FleetSite
from autotune.kernel.catalog import find_kernel
from autotune.kernel.space import Space, enumerate_space
from autotune.kernel.spec import Kernel
from autotune.run.bench import LOCAL, Site
from autotune.run.request import Request
from autotune.values import Configuration, Problem

#: Asked for, of two cards of a fleet over one.
LEAST_RATIO = 1.9


def main() -> None:
    parser = command_line(__doc__, "fleet-<device>.json", None)
    parser.add_argument("--fleet", required=True, metavar="WHERE")
    parser.add_argument("--kernel", default="sgemm")
    parser.add_argument("--problem", action="append", help="default: all of the kernel")
    parser.add_argument("--configurations", type=int, default=48, help="of each problem")
    parser.add_argument("--local", help="the same cards without a fleet, cuda:all for example")
    parser.add_argument("--local-every", type=int, default=1, help="size that is measured so too")
    parser.add_argument("--max-s", type=float, default=math.inf, help="begin no size after so long")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    turns: list[dict[str, Any]] = []
    kernel, begun = find_kernel(options.kernel), time.monotonic()
    with client.of(options.fleet) as fleet:
        model, *_ = fleet.models()
        cards = [card.device for card in fleet.usable(model)][:2]
        if len(cards) < 2:
            sys.exit(f"two cards of one model are needed; the fleet has {len(cards)} {model.name}")
        local = choose_devices(options.local)[:2] if options.local else ()
        given = [parsing.problem(kernel, text) for text in options.problem or []]
        problems = given or kernel.problems[model.backend]
        space = enumerate_space(kernel, cards[0])
        for number, problem in enumerate(problems):
            if time.monotonic() - begun > options.max_s:
                print(f"{len(problems) - number} sizes left out: {options.max_s:g} s are over")
                break
            configurations = sampled(
                kernel, space, problem, options.configurations, seed=options.seed
            )
            _turns(turns, "fleet", FleetSite(fleet), cards, problem, configurations, kernel, space)
            if local and number % options.local_every == 0:
                _turns(turns, "local", LOCAL, local, problem, configurations, kernel, space)
    rows = [row for row in (_row(name, turns) for name in ("fleet", "local")) if row]
    head = {**provenance(cards[0]), "uuids": [card.uuid for card in cards], "kernel": kernel.name}
    result = {**head, "asked": LEAST_RATIO, "seed": options.seed, "rows": rows, "turns": turns}
    write(options.out / f"fleet-{cards[0].folder}.json", result)
    fleet_row, *others = rows
    also = {str(turn["problem"]) for turn in turns if turn["place"] == "local"}
    there = [turn for turn in turns if turn["place"] == "fleet" and str(turn["problem"]) in also]
    for what, row in [("fleet", fleet_row), ("fleet, where local", _row("fleet", there))] + [
        ("local", other) for other in others
    ]:
        if row:
            print(
                f"{what}: {row['measurements']} measurements of {row['problems']} sizes in "
                f"{row['one_s']:.2f} s on one card, {row['two_s']:.2f} s on two: {row['ratio']:.3f}"
            )
    is_met = "met" if fleet_row["ratio"] >= LEAST_RATIO else "NOT MET"
    print(f"VERDICT: two cards {fleet_row['ratio']:.3f} of one (asked {LEAST_RATIO}): {is_met}")


def _turns(
    turns: list[dict[str, Any]],
    name: str,
    site: Site,
    devices: Sequence[Device],
    problem: Problem,
    configurations: list[Configuration],
    kernel: Kernel,
    space: Space,
) -> None:
    """Measure one size on one card and on two."""
    alone = Request(kernel, devices[0], (problem,))
    compiled(alone, configurations, site)
    for count in (1, 2):
        request = replace(alone, others=tuple(devices[1:count]))
        turn = measured(request, space, configurations, site)
        turns.append({"place": name, "problem": dict(problem), **turn})
        print(
            f"{problem}: {name}, {count}: {turn['seconds']:.2f} s, {turn['per_s']:.1f}/s, of "
            f"{turn['device_s']:.2f} s on devices; started in {turn['startup_s']:.1f} s",
            flush=True,
        )


def _row(name: str, turns: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All sizes together; empty where there are none."""
    own = {
        count: [t for t in turns if (t["place"], t["devices"]) == (name, count)] for count in (1, 2)
    }
    one_s, two_s = (sum(turn["seconds"] for turn in own[count]) for count in (1, 2))
    if not own[2]:
        return {}
    return {
        "place": name,
        "problems": len(own[2]),
        "measurements": sum(turn["configurations"] for turn in own[2]),
        "one_s": one_s,
        "two_s": two_s,
        "ratio": one_s / two_s,
    }


if __name__ == "__main__":
    finish(main)
