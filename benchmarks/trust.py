"""Whether finals can be believed: equals called different, and five finals that should agree.

For each kernel the seeds, the default, what the shipped record names and some of the space at
random are measured as a search measures them; the best of them, as many as a full run takes into its
finals, are what follows works on.

- *A/A*: the best binary under two names, raced and decided as in a run's finals, again and again:
  how often the two are called different.
- *Finals*: the finalists and the vendor, raced with the rounds of a full run and decided, five times,
  each in a device process of its own and with an order of its own. (What a run verifies before is
  not repeated: it does not look at the time.) The different winners, without the rest, are then
  raced for 1,000 rounds: how much slower the slowest truly is than the fastest.

    python benchmarks/trust.py                            # both kernels
    python benchmarks/trust.py --kernel reduce            # one; results merge into the same file
    python benchmarks/trust.py --device opencl:cpu --trials 5 --rounds 50    # a look
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from harness import (
    ROOT,
    bench_of,
    command_line,
    evaluator_of,
    finish,
    merge,
    problem_on,
    provenance,
    raced,
    sampled,
)

from autotune.devices.choose import choose_device
from autotune.devices.device import Device
from autotune.kernel.catalog import find_kernel
from autotune.kernel.launches import launch_sequence
from autotune.kernel.space import enumerate_space
from autotune.kernel.spec import Kernel
from autotune.measure.measurement import Measurement
from autotune.measure.tasks import Contender, Job
from autotune.measure.worker import Worker
from autotune.run.bench import Bench
from autotune.run.request import EFFORTS
from autotune.run.selection import Decision, Finalist, candidates, decide, ratio
from autotune.tuned.reading import read
from autotune.values import Configuration, Problem

#: Asked: the most A/A finals that call equals different, and the most that winners truly differ by.
ASKED_FALSE, ASKED_SPREAD = 0.05, 0.005


#: By kernel a problem, and how thorough the A/A finals are: rounds as in a run of this effort.
PROBLEMS = {
    "sgemm": (Problem(m=4096, n=4096, k=4096), EFFORTS["quick"]),
    "reduce": (Problem(n=1 << 24), EFFORTS["full"]),
}


@dataclass(frozen=True)
class Lineup:
    """Who takes part in a kernel's finals, and where they are held."""

    bench: Bench
    job: Job
    vendors: tuple[str, ...]
    finalists: tuple[Measurement, ...]
    contenders: tuple[Contender, ...]


def main() -> None:
    """Examine all kernels and write the result."""
    options = _arguments()
    device = choose_device(options.device)
    for name in [options.kernel] if options.kernel else PROBLEMS:
        row = examined(name, device, options)
        print(_line(row), flush=True)
        asked = {"declared_different": ASKED_FALSE, "true_spread": ASKED_SPREAD}
        merge(options.out / f"trust-{device.folder}.json", row, asked=asked)


def examined(name: str, device: Device, options: argparse.Namespace) -> dict[str, Any]:
    """A/A finals, five finals, and the truth about their winners."""
    begun = time.monotonic()
    kernel = find_kernel(name)
    problem, aa_effort = PROBLEMS[name]
    problem = problem_on(device, kernel, problem)
    space = enumerate_space(kernel, device)
    recorded = _recorded(kernel, device)
    entrants = sampled(kernel, space, problem, options.configurations, known=recorded)
    with bench_of(kernel, device, problem, effort=EFFORTS["full"]) as (bench, job):
        lineup = _lineup(bench, job, entrants)
        prepared = time.monotonic()
        twice = same_binary_twice(lineup, options.trials, aa_effort.rounds)
        same_s = time.monotonic() - prepared
        decisions = [final(lineup, number) for number in range(options.finals)]
        finals_s = time.monotonic() - prepared - same_s
        winners = [decision.winner.measurement.configuration for decision in decisions]
        spread = true_spread(lineup, set(winners), options.rounds)
    return {
        "kernel": kernel.name,
        "problem": dict(problem),
        **provenance(device),
        "finalists": len(lineup.finalists),
        "same_binary_twice": twice,
        "finals": {
            "rounds": EFFORTS["full"].rounds,
            "winners": list(map(dict, winners)),
            "tied": [len(decision.tied) for decision in decisions],
            "vendor_ratio": [
                min((against.value for _, against in decision.vendors.values()), default=None)
                for decision in decisions
            ],
            "true_rounds": options.rounds,
            **spread,
        },
        "seconds": {
            "prepare": prepared - begun,
            "same_binary_twice": same_s,
            "finals": finals_s,
            "all": time.monotonic() - begun,
        },
    }


def _recorded(kernel: Kernel, device: Device) -> Iterable[Configuration]:
    """Winners and runners-up of the shipped record of this device, where there is one."""
    file = ROOT / "reports" / device.folder / f"{kernel.name}.json"
    for entry in read(file).entries if file.exists() else ():
        yield Configuration(entry.configuration)
        yield from (Configuration(runner_up.configuration) for runner_up in entry.runners_up)


def _lineup(bench: Bench, job: Job, configurations: Sequence[Configuration]) -> Lineup:
    """Measure as a search does; the best and the vendor are the contenders."""
    kernel, device = bench.kernel, bench.device
    evaluator = evaluator_of(bench, job)
    best = candidates(list(evaluator.measure(configurations)), bench.request.effort.finalists)
    # Equal binary and launch are one contender: equals are the other question.
    different: dict[tuple[bytes, str], tuple[Measurement, Contender]] = {}
    for measurement in best:
        configuration = measurement.configuration
        binary = evaluator.binary(configuration)
        if binary is not None:
            steps = launch_sequence(kernel, configuration, job.problem, device)
            entrant = measurement, Contender(configuration, binary)
            different[binary.code, repr(steps)] = entrant
    finalists, contenders = zip(*different.values(), strict=True)
    vendors = tuple(
        baseline.name for baseline in kernel.baselines if baseline.backend == device.backend
    )
    calls = (Contender(Configuration(), None, name) for name in vendors)
    return Lineup(bench, job, vendors, finalists, (*contenders, *calls))


def same_binary_twice(lineup: Lineup, trials: int, rounds: int) -> dict[str, Any]:
    """Race the best binary with itself and decide, as the finals of a run do; again and again."""
    best, contender = lineup.finalists[0], lineup.contenders[0]
    apart, differences = 0, []
    for seed in range(trials):
        samples = raced(lineup.bench.worker, lineup.job, [contender] * 2, rounds, seed)
        first, second = (Finalist(best, tuple(times)) for times in samples)
        apart += len(decide([first, second], {}, seed).tied) < 2
        differences.append(abs(ratio(first.samples_ms, second.samples_ms, seed).value - 1))
    return {
        "trials": trials,
        "rounds": rounds,
        "declared_different": apart / trials,
        "largest_difference": max(differences),
    }


def final(lineup: Lineup, number: int) -> Decision:
    """Hold one final in a device process of its own."""
    effort = lineup.bench.request.effort
    with Worker() as worker:
        samples = raced(worker, lineup.job, lineup.contenders, effort.rounds, number)
    count = len(lineup.finalists)
    finalists = [
        Finalist(measurement, tuple(times))
        for measurement, times in zip(lineup.finalists, samples[:count], strict=True)
    ]
    return decide(finalists, dict(zip(lineup.vendors, samples[count:], strict=True)), number)


def true_spread(lineup: Lineup, winners: set[Configuration], rounds: int) -> dict[str, Any]:
    """How much slower the slowest of the winners is than the fastest, over many rounds."""
    contenders = [
        contender
        for contender in lineup.contenders
        if not contender.baseline and contender.configuration in winners
    ]
    if len(contenders) == 1:
        return {"different_winners": 1, "true_spread": 0.0, "true_median_ms": None}
    samples = raced(lineup.bench.worker, lineup.job, contenders, rounds, 1)
    order = sorted(range(len(samples)), key=lambda i: median(samples[i]))
    spread = ratio(samples[order[-1]], samples[order[0]])
    return {
        "different_winners": len(contenders),
        "true_spread": spread.value - 1,
        "true_spread_interval": [spread.low - 1, spread.high - 1],
        "true_median_ms": [median(times) for times in samples],
    }


def _line(row: Mapping[str, Any]) -> str:
    twice, finals = row["same_binary_twice"], row["finals"]
    return (
        f"{row['kernel']} {row['problem']}: equals called different in "
        f"{twice['declared_different']:.1%} of {twice['trials']} (asked {ASKED_FALSE:.0%}), by at most "
        f"{twice['largest_difference']:.2%}; {len(finals['winners'])} finals named "
        f"{finals['different_winners']} winners, truly {finals['true_spread']:.2%} apart (asked "
        f"{ASKED_SPREAD:.1%}); seconds { ({k: round(v, 1) for k, v in row['seconds'].items()}) }"
    )


def _arguments() -> argparse.Namespace:
    parser = command_line(__doc__, "trust-<device>.json")
    parser.add_argument("--kernel", choices=PROBLEMS, help="default: both")
    parser.add_argument("--configurations", type=int, default=40, help="measured to find finalists")
    parser.add_argument("--trials", type=int, default=50, help="A/A finals")
    parser.add_argument("--finals", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=1000, help="for the truth about the winners")
    return parser.parse_args()


if __name__ == "__main__":
    finish(main)
