"""What the stopping rule saves, and what it costs, on the raw samples of recorded spaces.

Every configuration of a space is "timed" in random order: samples come from the recording, in the
order in which they were taken, the first launch included, whose time is spent and which is not kept. The
rule is the one of a run (`autotune.measure.timing`). Then the finals of a full run: its finalists get all
their samples, and the winner is decided as finals decide it. Reported are

- the share of the recorded kernel time that was spent, that of the finalists' last samples included;
- the regret: the winner's median over all its samples, against the best one of all that were tried.

Nothing is timed, so every machine writes the same numbers.

    python benchmarks/early_stop.py                       # whole spaces and short runs, 30 seeds, a minute
    python benchmarks/early_stop.py --seeds 3 FILE.json.gz
"""

from __future__ import annotations

import gzip
import json
import math
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from harness import command_line, finish, parsed_replay, provenance, write

from autotune.measure.measurement import Measurement, Status
from autotune.measure.race import Contender, ContenderSamples, Race
from autotune.measure.timing import StoppingRule, Timing, sample
from autotune.run.request import EFFORTS
from autotune.run.verdict import candidates, judge
from autotune.values import Configuration

#: Configurations of a short run, in which the best so far is a poor one for a good part of the time.
SHORT = 300
#: Asked: the most mean regret, and the largest share of kernel time by recorded samples.
ASKED_REGRET = 0.001
ASKED_SHARE = {32: 0.15, 10: 0.35}


@dataclass(frozen=True)
class Pass:
    """One pass over a space."""

    #: Of the recorded kernel time of what was tried.
    time_share: float
    #: Of the configurations.
    stopped_share: float
    regret: float


def main() -> None:
    """Replay all spaces, print a line for each, write the JSON."""
    options = parsed_replay(command_line(__doc__, "early_stop.json", None))
    begun = time.monotonic()
    sizes: Sequence[int | None] = (None, SHORT)
    jobs = list(product(options.spaces, sizes, range(options.seeds)))
    with ProcessPoolExecutor(options.jobs) as pool:
        replays = dict(zip(jobs, pool.map(_replayed, jobs, chunksize=5), strict=True))
    rows = []
    for path, size in product(options.spaces, sizes):
        rows.append(row(path, size, [replays[path, size, seed] for seed in range(options.seeds)]))
        print(_line(rows[-1]), flush=True)
    result = {
        **provenance(),
        "seconds": round(time.monotonic() - begun, 1),
        "rule": {name: value for name, value in vars(StoppingRule()).items() if value != math.inf},
        "asked": {"regret_mean": ASKED_REGRET, "time_share_by_samples": ASKED_SHARE},
        "rows": rows,
    }
    write(options.out / "early_stop.json", result)


def row(path: Path, size: int | None, replays: Sequence[Pass]) -> dict[str, Any]:
    """What the passes over one space come to."""
    recorded = samples_of(path)
    return {
        "space": path.name.split(".")[0],
        "configurations": min(size or len(recorded), len(recorded)),
        "samples": len(recorded[0]),
        "seeds": len(replays),
        "time_share_mean": fmean(replay.time_share for replay in replays),
        "time_share_max": max(replay.time_share for replay in replays),
        "stopped_share_mean": fmean(replay.stopped_share for replay in replays),
        "regret_mean": fmean(replay.regret for replay in replays),
        "regret_max": max(replay.regret for replay in replays),
    }


@cache
def samples_of(path: Path) -> tuple[tuple[float, ...], ...]:
    """All samples in milliseconds of every configuration that ran, the first included.

    `autotune.interop.formats` leaves the first out, whose time is spent all the same.
    """
    with gzip.open(path, "rt", encoding="utf-8") as file:
        entries = json.load(file)["cache"].values()
    times = [entry["times"] for entry in entries if isinstance(entry["time"], float | int)]
    return tuple(tuple(samples) for samples in times if len(samples) > 1)


def replay(recorded: Sequence[Sequence[float]], order: Iterable[int], rule: StoppingRule) -> Pass:
    """Time configurations in this order, then hold the finals."""
    best: tuple[float, ...] = ()
    measured: list[Measurement] = []
    spent_ms = all_ms = 0.0
    truths: list[float] = []
    for number in order:
        times = recorded[number]
        tape = iter(times)
        most = min(rule.max_samples, len(times) - 1)
        done = sample(
            lambda count, tape=tape: [next(tape) for _ in range(count)],  # type: ignore[misc]
            replace(rule, min_samples=min(rule.min_samples, most), max_samples=most),
            best,
        )
        spent_ms += sum(times) - sum(tape)
        all_ms += sum(times)
        truths.append(median(times[1:]))
        status = Status.STOPPED_EARLY if done.stopped_early else Status.OK
        measured.append(
            Measurement(Configuration(NUMBER=number), status, samples_ms=done.samples_ms)
        )
        if status is Status.OK and (not best or median(done.samples_ms) < median(best)):
            best = done.samples_ms
    contenders, samples = list[Contender](), list[ContenderSamples]()
    for measurement in candidates(measured, EFFORTS["full"].finalists):
        times = recorded[int(measurement.configuration["NUMBER"])]
        spent_ms += sum(times[1 + len(measurement.samples_ms) :])
        contenders.append(Contender(measurement.configuration, row=measurement))
        samples.append(ContenderSamples(tuple(times[1:])))
    decided = judge(Race(tuple(contenders), tuple(samples), Timing.COLD_STREAM))
    assert decided is not None
    stopped = sum(measurement.status is Status.STOPPED_EARLY for measurement in measured)
    regret = decided.winner.time_ms.value / min(truths) - 1
    return Pass(spent_ms / all_ms, stopped / len(measured), regret)


def shuffled(count: int, size: int | None, seed: int) -> list[int]:
    """Numbers of configurations in random order; all, or so many."""
    return np.random.default_rng(seed).permutation(count)[:size].tolist()


def _replayed(job: tuple[Path, int | None, int]) -> Pass:
    path, size, seed = job
    recorded = samples_of(path)
    rule = StoppingRule(max_seconds=math.inf)
    return replay(recorded, shuffled(len(recorded), size, seed), rule)


def _line(found: dict[str, Any]) -> str:
    return (
        f"{found['space']:24s}{found['configurations']:6d} configurations of {found['samples']} samples: "
        f"{found['time_share_mean']:.1%} of the kernel time, {found['stopped_share_mean']:.1%} "
        f"stopped early; regret {found['regret_mean']:.4%}, at most {found['regret_max']:.4%}"
    )


if __name__ == "__main__":
    finish(main)
