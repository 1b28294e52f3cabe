"""Time the contenders of small kernels in many sessions, for a replay of the regression gate's rule.

A session of a kernel is a device process of its own. It times the contenders in up to three races, as the gate does;
a row has median and 95 % interval of each contender after each race. With ``--alone`` five of six sessions have
real-time priority (Linux, root), so that other programs take no time. tests/test_slowdown.py replays the rule on pairs
of sessions.

    python benchmarks/gate.py --device opencl:cpu --alone
    python benchmarks/gate.py --device cuda:0 --sessions 8
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from statistics import median
from typing import Any

from harness import bench_of, command_line, finish, problem_on, provenance, sampled, write

from autotune.devices.choose import choose_device
from autotune.devices.device import Device
from autotune.kernel.catalog import find_kernel
from autotune.kernel.space import enumerate_space
from autotune.measure.race import Contender, Race, RaceRules, race
from autotune.measure.timing import median_interval
from autotune.retune.gate import MAX_RACES, MAX_SECONDS, ROUNDS
from autotune.run.verdict import judge
from autotune.values import Configuration

KERNELS = "reduce,transpose,sgemm,ffma"
#: Configurations of which the fastest are contenders, as in finals.
DRAWN = 14
CONTENDERS = 7


def fastest(device: Device, name: str) -> list[Configuration]:
    """The contenders of a kernel, by a short race."""
    kernel = find_kernel(name)
    problem = problem_on(device, kernel, kernel.quick_problems[device.backend][0])
    chosen = sampled(kernel, enumerate_space(kernel, device), problem, DRAWN)
    with bench_of(kernel, device, problem) as (bench, job):
        contenders = [Contender(c, bench.compiled(c, problem).binary) for c in chosen]
        result = judge(race(bench.worker, job, contenders, RaceRules(5, 0, MAX_SECONDS)))
        assert result is not None
        return [Configuration(found.configuration or {}) for found in result.finalists[:CONTENDERS]]


def session(device: Device, name: str, chosen: Sequence[Configuration]) -> list[list[list[float]]]:
    """Median and interval in ms of each contender, after one race and more."""
    kernel = find_kernel(name)
    problem = problem_on(device, kernel, kernel.quick_problems[device.backend][0])
    found: list[list[list[float]]] = []
    rounds: Race | None = None
    with bench_of(kernel, device, problem) as (bench, job):
        contenders = [Contender(c, bench.compiled(c, problem).binary) for c in chosen]
        for seed in range(MAX_RACES):
            raced = race(bench.worker, job, contenders, RaceRules(ROUNDS, seed, MAX_SECONDS))
            rounds = rounds.continued(raced) if rounds else raced
            times = [samples.times_ms for samples in rounds.samples]
            found.append([_digits([median(ms), *median_interval(ms)]) for ms in times])
    return found


def _digits(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.4g}") for value in values]


def be_alone(is_alone: bool) -> None:
    """Give this process and those it starts real-time priority, or the usual one."""
    policy, priority = (os.SCHED_FIFO, 10) if is_alone else (os.SCHED_OTHER, 0)
    os.sched_setscheduler(0, policy, os.sched_param(priority))


def main() -> None:
    options = _options()
    device = choose_device(options.device)
    rows: list[dict[str, Any]] = []
    if options.alone:
        be_alone(True)
    chosen = {name: fastest(device, name) for name in options.kernels.split(",")}
    for number in range(options.sessions):
        is_alone = options.alone and number % 6 < 5
        if options.alone:
            be_alone(is_alone)
        load = round(os.getloadavg()[0], 1)
        for name, contenders in chosen.items():
            races = session(device, name, contenders)
            rows.append(
                {"kernel": name, "session": number, "alone": is_alone, "load": load, "races": races}
            )
        print(f"session {number + 1} of {options.sessions}, load {load}", flush=True)
        write(options.out / f"gate-{device.folder}.json", {**provenance(device), "rows": rows})


def _options() -> argparse.Namespace:
    parser = command_line(__doc__, "gate-<device>.json")
    parser.add_argument("--sessions", type=int, default=24)
    parser.add_argument("--kernels", default=KERNELS, help="names, separated by commas")
    parser.add_argument(
        "--alone", action="store_true", help="real-time priority in five of six sessions"
    )
    return parser.parse_args()


if __name__ == "__main__":
    finish(main)
