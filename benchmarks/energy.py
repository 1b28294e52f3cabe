"""The front of time and energy of a kernel, and how well its energies repeat.

A kernel is tuned for energy for a short time, as `autotune run --objective energy` does it. Then

- the energy of everything on the front of time and energy is measured again, one window each, in rounds;
- one of them is measured with windows of several lengths, to see what the length is worth;
- the counter is read without and under load: how often it moves, and what the idle device takes.

Asked: the energies of one configuration in five rounds lie within 2 % of their median.

    python benchmarks/energy.py                                    # sgemm 4096³ on the first GPU, 100 s
    python benchmarks/energy.py --kernel gemv --problem m=4096,n=4096
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import energy_task
from harness import bench_of, command_line, evaluator_of, finish, provenance, write

from autotune.cli.parsing import problem as parsed_problem
from autotune.devices.choose import choose_device
from autotune.kernel.catalog import find_kernel
from autotune.measure.energy import Reading
from autotune.measure.measurement import Energy, Measurement, Status
from autotune.measure.objective import ENERGY, front
from autotune.measure.tasks import Contender
from autotune.run.command import execute
from autotune.run.request import Request
from autotune.run.result import RunResult
from autotune.search.session import Budget
from autotune.store import Store

#: Asked: how far energies of one configuration may lie from their median.
ASKED = 0.02
#: Lengths of windows that are compared, and how often each is taken.
LENGTHS_S, TIMES = (0.1, 0.2, 0.3, 0.4, 0.8), 5
#: Longest time of one round of windows.
_ROUND_S = 60.0


def main() -> int:
    """Tune, measure again, print the front, write the JSON."""
    parser = command_line(__doc__, "energy-DEVICE.json")
    parser.add_argument("--kernel", default="sgemm")
    parser.add_argument("--problem", default="m=4096,n=4096,k=4096")
    parser.add_argument("--budget", default="36s", help="of search and finals; default: 36s")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--most", type=int, default=8, help="so many of the front are measured again"
    )
    options = parser.parse_args()
    kernel, device = find_kernel(options.kernel), choose_device(options.device)
    problem = parsed_problem(kernel, options.problem)
    budget = Budget.parse(options.budget)
    request = Request(kernel, device, (problem,), budget=budget, objective=ENERGY)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder, "s.sqlite")) as store:
        run = execute(request, store)
    tuned_s = time.monotonic() - begun
    found = front(run.problems[0].measured)
    chosen = _spread_over(found, options.most)
    with bench_of(kernel, device, problem, objective=ENERGY) as (bench, job):
        evaluator = evaluator_of(bench, job)
        binaries = [evaluator.binary(row.configuration) for row in chosen]
        contenders = [
            Contender(row.configuration, binary)
            for row, binary in zip(chosen, binaries, strict=True)
        ]
        resting = bench.worker.run(_ROUND_S, energy_task.idle, 2.0)
        by_length = {
            str(seconds): [
                bench.worker.run(_ROUND_S, energy_task.windows, job, contenders[:1], seconds)[0]
                for _ in range(TIMES)
            ]
            for seconds in LENGTHS_S
        }
        rounds = [
            bench.worker.run(_ROUND_S, energy_task.windows, job, contenders, 0.4)
            for _ in range(options.rounds)
        ]
        looks = bench.worker.run(_ROUND_S, energy_task.trace, job, contenders[0], 0.4)
    rows = [_row(row, [taken[place] for taken in rounds]) for place, row in enumerate(chosen)]
    tried = run.problems[0].measured
    result = {
        **provenance(device),
        "kernel": kernel.name,
        "problem": dict(problem),
        "seconds_of_tuning": round(tuned_s, 1),
        "tried": len(tried),
        "right": sum(row.status is Status.OK for row in tried),
        "without_window": sum(bool(row.energy and not row.energy.calls) for row in tried),
        "on_the_front": len(found),
        "idle_w": round(_power_w(resting), 1),
        "counter_moves_every_ms": {
            "idle": _period_ms(resting),
            "under_load": _period_ms(looks),
        },
        "looks_every_ms": round(1e3 * median(b.at_s - a.at_s for a, b in pairwise(looks)), 3),
        "asked": ASKED,
        "worst_deviation": max(row["deviation"] for row in rows),
        "front": rows,
        "all": [[row.median_ms, row.energy_mj] for row in tried if row.energy_mj is not None],
        "finals": _finals(run),
        "windows_of": {
            seconds: {
                "mj": [round(each.call_mj, 3) for each in taken],
                "deviation": _deviation([each.call_mj for each in taken]),
                "window_s": round(median(each.window_s for each in taken), 3),
            }
            for seconds, taken in by_length.items()
        },
        "trace": [[round(at_s - looks[0].at_s, 6), calls, mj] for at_s, calls, mj in looks],
    }
    _print(result)
    name = "".join(letter if letter.isalnum() else "_" for letter in device.name)
    write(options.out / f"energy-{name}.json", result)
    return 0 if result["worst_deviation"] <= ASKED else 1


def _spread_over(found: Sequence[Measurement], most: int) -> list[Measurement]:
    """At most so many of a front, its ends among them."""
    if len(found) <= most:
        return list(found)
    places = [round(place * (len(found) - 1) / (most - 1)) for place in range(most)]
    return [found[place] for place in places]


def _row(row: Measurement, taken: Sequence[Energy]) -> dict[str, Any]:
    energies = [each.call_mj for each in taken]
    return {
        "configuration": dict(row.configuration),
        "median_ms": row.median_ms,
        "searched_mj": row.energy_mj,
        "median_mj": median(energies),
        "power_w": round(median(each.power_w for each in taken), 1),
        "limit_w": taken[0].limit_w,
        "sm_mhz": [each.clocks.sm_mhz for each in taken],
        "throttle_reasons": sorted({r for each in taken for r in each.clocks.throttle_reasons}),
        "temperature_c": [each.clocks.temperature_c for each in taken],
        "mj": energies,
        "deviation": _deviation(energies),
    }


def _finals(run: RunResult) -> dict[str, Any]:
    """What the run's finals say: winner, ties, the vendor's energy."""
    decided = run.problems[0].finals
    assert decided is not None

    def told(windows: Sequence[Energy]) -> list[float]:
        return [round(each.call_mj, 3) for each in windows]

    return {
        "winner": dict(decided.winner.measurement.configuration),
        "tied": len(decided.tied),
        "finalists_ms": [finalist.median_ms for finalist in decided.finalists],
        "finalists_mj": [told(finalist.energies) for finalist in decided.finalists],
        "over_winner": [vars(decided.against_winner(each)) for each in decided.finalists],
        "vendors_mj": {name: told(taken) for name, taken in decided.vendor_energies.items()},
        "vendors_ms": {name: median_ms for name, (median_ms, _) in decided.vendors.items()},
    }


def _deviation(energies: Sequence[float]) -> float:
    """The largest distance from the median, as a share of it."""
    middle = median(energies)
    return round(max(abs(each - middle) for each in energies) / middle, 5)


def _updates(readings: Sequence[Reading]) -> list[Reading]:
    return [b for a, b in pairwise(readings) if b.taken_mj > a.taken_mj]


def _period_ms(readings: Sequence[Reading]) -> float:
    return round(1e3 * median(b.at_s - a.at_s for a, b in pairwise(_updates(readings))), 2)


def _power_w(readings: Sequence[Reading]) -> float:
    first, *_, last = _updates(readings)
    return (last.taken_mj - first.taken_mj) / (last.at_s - first.at_s) / 1e3


def _print(result: dict[str, Any]) -> None:
    print(
        f"{result['kernel']} on {result['device']}: {result['tried']} tried in "
        f"{result['seconds_of_tuning']} s, {result['on_the_front']} on the front; idle "
        f"{result['idle_w']} W; the counter moves every {result['counter_moves_every_ms']} ms, "
        f"a look every {result['looks_every_ms']} ms"
    )
    for row in result["front"]:
        print(
            f"  {row['median_ms']:9.4f} ms {row['median_mj']:9.2f} mJ {row['power_w']:6.1f} W "
            f"± {row['deviation']:.2%}  {row['sm_mhz']} MHz {row['temperature_c']} °C"
        )
    for seconds, taken in result["windows_of"].items():
        print(f"  windows of {seconds} s ({taken['window_s']} s): ± {taken['deviation']:.2%}")
    finals = result["finals"]
    print(
        f"  finals: {finals['tied']} tied, mJ {[median(each) for each in finals['finalists_mj']]}"
    )
    print(f"  vendor: {finals['vendors_ms']} ms, {finals['vendors_mj']} mJ")
    verdict = "holds" if result["worst_deviation"] <= ASKED else "DOES NOT HOLD"
    print(f"within {ASKED:.0%} in all rounds: {verdict} (worst {result['worst_deviation']:.2%})")


if __name__ == "__main__":
    finish(main)
