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
import json
import shlex
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from autotune import __version__
from autotune.devices.choose import choose_device
from autotune.devices.device import Device
from autotune.kernel.catalog import find_kernel
from autotune.kernel.launches import launch_sequence
from autotune.kernel.membership import is_member
from autotune.kernel.space import enumerate_space
from autotune.kernel.spec import Kernel
from autotune.measure.evaluator import DeviceEvaluator
from autotune.measure.measurement import Measurement
from autotune.measure.racing import race
from autotune.measure.tasks import Contender, Job
from autotune.measure.worker import Worker
from autotune.run import selection
from autotune.run.bench import Bench, stopping_rule
from autotune.run.request import EFFORTS, Request
from autotune.tuned import record as tuned
from autotune.values import Configuration, Problem

HERE = Path(__file__).resolve().parent
MAX_SECONDS = 60.0
#: Asked: the most A/A finals that call equals different, and the most that winners truly differ by.
ASKED_FALSE, ASKED_SPREAD = 0.05, 0.005


@dataclass(frozen=True)
class Subject:
    """A kernel, its problem, and one for a device without much speed."""

    kernel: str
    problem: Problem
    small: Problem
    #: How thorough the A/A finals are: rounds as in a run of this effort.
    effort: str


SUBJECTS = (
    Subject("sgemm", Problem(m=4096, n=4096, k=4096), Problem(m=256, n=256, k=256), "quick"),
    Subject("reduce", Problem(n=1 << 24), Problem(n=1 << 20), "full"),
)


@dataclass(frozen=True)
class Setting:
    """Where a subject is raced."""

    bench: Bench
    job: Job
    vendors: tuple[str, ...]
    finalists: tuple[Measurement, ...]
    contenders: tuple[Contender, ...]


def main() -> None:
    """Examine all subjects and write the result."""
    options = _arguments()
    device = choose_device(options.device)
    out = options.out or HERE / "results" / f"trust-{device.folder}.json"
    for subject in SUBJECTS:
        if options.kernel in ("", subject.kernel):
            row = examined(subject, device, options)
            write(out, row)
            print(_line(row), flush=True)
    print(f"written to {out}")


def write(file: Path, row: dict[str, Any]) -> None:
    """Merge a row into the device's file: a kernel's new row replaces its old one."""
    old = json.loads(file.read_text())["rows"] if file.exists() else []
    rows = list({one["kernel"]: one for one in (*old, row)}.values())
    asked = {"declared_different": ASKED_FALSE, "true_spread": ASKED_SPREAD}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"asked": asked, "rows": rows}, indent=1) + "\n", encoding="utf-8")


def examined(subject: Subject, device: Device, options: argparse.Namespace) -> dict[str, Any]:
    """A/A finals, five finals, and the truth about their winners."""
    begun = time.monotonic()
    kernel = find_kernel(subject.kernel)
    problem = subject.problem if device.backend == "cuda" else subject.small
    request = Request(kernel, device, (problem,), EFFORTS["full"])
    with closing(Bench(request)) as bench:
        job = bench.job(problem)
        bench.worker.prepare(job)
        setting = _setting(bench, job, entrants(kernel, problem, device, options.configurations))
        prepared = time.monotonic()
        apart = same_binary_twice(setting, options.trials, EFFORTS[subject.effort].rounds)
        same_s = time.monotonic() - prepared
        winners = [final(setting, number) for number in range(options.finals)]
        finals_s = time.monotonic() - prepared - same_s
        spread = true_spread(setting, winners, options.rounds)
    return {
        "kernel": kernel.name,
        "problem": dict(problem),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "benchmarks/trust.py", *sys.argv[1:]]),
        "version": __version__,
        "device": device.name,
        "driver": device.driver,
        "finalists": len(setting.finalists),
        "same_binary_twice": {
            "trials": options.trials,
            "rounds": EFFORTS[subject.effort].rounds,
            "declared_different": sum(one.apart for one in apart) / options.trials,
            "largest_difference": max(abs(one.ratio - 1) for one in apart),
        },
        "finals": {
            "rounds": request.effort.rounds,
            "winners": [dict(one.configuration) for one in winners],
            "tied": [one.tied for one in winners],
            "vendor_ratio": [one.vendor_ratio for one in winners],
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


def entrants(kernel: Kernel, problem: Problem, device: Device, count: int) -> list[Configuration]:
    """What is measured to find finalists: the known good first, then some of the space at random."""
    space = enumerate_space(kernel, device)
    random = np.random.default_rng(0).permutation(len(space))[: 4 * count].tolist()
    known = [kernel.default(), *map(kernel.completed, kernel.seeds), *_recorded(kernel, device)]
    everyone = dict.fromkeys([*known, *map(space.configuration, random)])
    valid = [
        one for one in everyone if is_member(kernel, one, device) and kernel.allows(one, problem)
    ]
    return valid[:count]


def _recorded(kernel: Kernel, device: Device) -> Iterable[Configuration]:
    """Winners and runners-up of the shipped record of this device, where there is one."""
    file = HERE.parent / "reports" / device.folder / f"{kernel.name}.json"
    for entry in tuned.read(file).entries if file.exists() else ():
        yield Configuration(entry.configuration)
        yield from (Configuration(one.configuration) for one in entry.runners_up)


def _setting(bench: Bench, job: Job, configurations: Sequence[Configuration]) -> Setting:
    """Measure as a search does; the best and the vendor are the contenders."""
    kernel, device = bench.kernel, bench.device
    evaluator = DeviceEvaluator(kernel, job, bench.compilers, bench.worker, stopping_rule(device))
    measured = list(evaluator.measure(configurations))
    chosen = selection.candidates(measured, bench.request.effort.finalists)
    binaries = {one: evaluator.binary(one.configuration) for one in chosen}
    # Equal binary and launch are one contender: equals are the other question.
    different = {
        (binary.code, repr(launch_sequence(kernel, one.configuration, job.problem, device))): one
        for one, binary in binaries.items()
        if binary is not None
    }
    finalists = tuple(different.values())
    vendors = tuple(one.name for one in kernel.baselines if one.backend == device.backend)
    contenders = (
        *(Contender(one.configuration, binaries[one]) for one in finalists),
        *(Contender(Configuration(), None, name) for name in vendors),
    )
    return Setting(bench, job, vendors, finalists, contenders)


@dataclass(frozen=True)
class Pair:
    """One A/A final."""

    apart: bool
    ratio: float


def same_binary_twice(setting: Setting, trials: int, rounds: int) -> list[Pair]:
    """Race the best binary with itself and decide, as the finals of a run do."""
    best, contender = setting.finalists[0], setting.contenders[0]
    found = []
    for seed in range(trials):
        samples = _race(setting.bench.worker, setting, [contender] * 2, rounds, seed)
        pair = [selection.Finalist(best, tuple(one)) for one in samples]
        decided = selection.decide(pair, {}, seed)
        ratio = selection.ratio(pair[0].samples_ms, pair[1].samples_ms, seed)
        found.append(Pair(len(decided.tied) < 2, ratio.value))
    return found


@dataclass(frozen=True)
class Final:
    """Who won one of the finals."""

    configuration: Configuration
    tied: int
    vendor_ratio: float | None


def final(setting: Setting, number: int) -> Final:
    """Hold one final in a device process of its own."""
    effort = setting.bench.request.effort
    with Worker() as worker:
        samples = _race(worker, setting, setting.contenders, effort.rounds, number)
    count = len(setting.finalists)
    finalists = [
        selection.Finalist(one, tuple(times))
        for one, times in zip(setting.finalists, samples[:count], strict=True)
    ]
    vendors: Mapping[str, Sequence[float]] = dict(
        zip(setting.vendors, samples[count:], strict=True)
    )
    result = selection.decide(finalists, vendors, number)
    ratios = [ratio.value for _, ratio in result.vendors.values()]
    return Final(
        result.winner.measurement.configuration, len(result.tied), min(ratios, default=None)
    )


def true_spread(setting: Setting, winners: Sequence[Final], rounds: int) -> dict[str, Any]:
    """How much slower the slowest of the winners is than the fastest, over many rounds."""
    names = list(dict.fromkeys(one.configuration for one in winners))
    contenders = [
        one for one in setting.contenders if not one.baseline and one.configuration in names
    ]
    if len(contenders) == 1:
        return {"different_winners": 1, "true_spread": 0.0, "true_median_ms": None}
    samples = _race(setting.bench.worker, setting, contenders, rounds, 1)
    order = sorted(range(len(samples)), key=lambda i: median(samples[i]))
    ratio = selection.ratio(samples[order[-1]], samples[order[0]])
    return {
        "different_winners": len(contenders),
        "true_spread": ratio.value - 1,
        "true_spread_interval": [ratio.low - 1, ratio.high - 1],
        "true_median_ms": [median(one) for one in samples],
    }


def _race(
    worker: Worker, setting: Setting, contenders: Sequence[Contender], rounds: int, seed: int
) -> Sequence[Sequence[float]]:
    raced = race(worker, setting.job, contenders, rounds, seed, MAX_SECONDS)
    if raced.failures:
        raise SystemExit(f"{setting.bench.kernel.name}: {raced.failures}")
    return raced.samples_ms


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
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", help="cuda:0, opencl:cpu … (default: the first usable)")
    parser.add_argument("--kernel", default="", choices=["", *(one.kernel for one in SUBJECTS)])
    parser.add_argument("--configurations", type=int, default=40, help="measured to find finalists")
    parser.add_argument("--trials", type=int, default=50, help="A/A finals")
    parser.add_argument("--finals", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=1000, help="for the truth about the winners")
    parser.add_argument("--out", type=Path, help="JSON file (default: benchmarks/results/)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
