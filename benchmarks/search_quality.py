"""How many evaluations strategies need on recorded spaces: a table, and JSON.

Every strategy searches every recorded space from several seeds. For each pair: the median number of
evaluations, failing ones included, until a configuration within 5 % of the best was measured; how
many seeds got there; the median fraction of the best after some evaluations. Nothing is timed, so
every machine prints the same numbers.

    python benchmarks/search_quality.py --seeds 30 --out search_quality.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np

from autotune.measure.measurement import Measurement
from autotune.search.names import find
from autotune.search.replay import Recording, load, session
from autotune.search.session import Budget, search

RECORDED = Path(__file__).resolve().parents[2] / "shared" / "recorded"
#: Fraction of the best speed that counts as found.
FOUND = 0.95
AFTER = (25, 50, 100, 200)
STRATEGIES = "random,kt:adaptive_tabu_greywolf,kt:genetic_algorithm,kt:pso,optuna:tpe"


@dataclass(frozen=True)
class Run:
    """One search."""

    strategy: str
    space: str
    seed: int
    #: Evaluations until `FOUND`; None where the budget ended first.
    found_after: int | None
    #: Fraction of the best speed after each of `AFTER`, where the budget allows.
    fraction: tuple[float, ...]


def main() -> None:
    """Run all searches, print the table, write the JSON."""
    options = _arguments()
    jobs = [
        (strategy, path, seed, options.budget)
        for path in options.spaces
        for strategy in options.strategies.split(",")
        for seed in range(options.seeds)
    ]
    with ProcessPoolExecutor(options.jobs) as pool:
        runs = list(pool.map(_run, *zip(*jobs, strict=True), chunksize=max(1, options.seeds // 2)))
    _print_table(runs, options.budget)
    if options.out:
        options.out.write_text(json.dumps([asdict(run) for run in runs], indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "spaces", nargs="*", type=Path, help="recorded spaces (default: all shared)"
    )
    parser.add_argument("--strategies", default=STRATEGIES, help="names, separated by commas")
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--budget", type=int, default=200, help="evaluations")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--out", type=Path, help="JSON file of all runs")
    options = parser.parse_args()
    options.spaces = options.spaces or sorted(RECORDED.glob("*.json.gz"))
    if not options.spaces:
        parser.error(f"no recorded spaces in {RECORDED}; name some")
    return options


def _run(strategy: str, path: Path, seed: int, budget: int) -> Run:
    recording = _load(path)
    measured = search(session(recording, Budget(evaluations=budget)), find(strategy), seed)
    fractions = _fractions(recording, measured.values())
    found = np.flatnonzero(fractions >= FOUND)
    return Run(
        strategy=strategy,
        space=path.name.split(".")[0],
        seed=seed,
        found_after=int(found[0]) + 1 if len(found) else None,
        fraction=tuple(float(fractions[min(n, len(fractions)) - 1]) for n in AFTER if n <= budget),
    )


@cache
def _load(path: Path) -> Recording:
    return load(path)


def _fractions(recording: Recording, measured: Iterable[Measurement]) -> np.ndarray:
    """Fraction of the best speed reached after each evaluation."""
    times = [measurement.median_ms for measurement in measured]
    best_so_far = np.minimum.accumulate([np.inf if time is None else time for time in times])
    return (recording.best_ms or 0.0) / best_so_far


def _print_table(runs: list[Run], budget: int) -> None:
    spaces = list(dict.fromkeys(run.space for run in runs))
    after = [n for n in AFTER if n <= budget]
    print(f"median evaluations to {FOUND:.0%} of the best (seeds that got there/seeds);")
    print(f"median fraction of the best after {', '.join(map(str, after))} evaluations\n")
    for space in spaces:
        print(space)
        for strategy in dict.fromkeys(run.strategy for run in runs):
            mine = [run for run in runs if (run.space, run.strategy) == (space, strategy)]
            print(f"  {strategy:28s}{_summary(mine, budget)}")


def _summary(runs: list[Run], budget: int) -> str:
    found = [run.found_after for run in runs if run.found_after is not None]
    typical = median(run.found_after or budget + 1 for run in runs)
    shown = f">{budget}" if typical > budget else f"{typical:.0f}"
    fractions = [median(values) for values in zip(*(run.fraction for run in runs), strict=True)]
    share = f"({len(found)}/{len(runs)})"
    return f"{shown:>5s} {share:8s}" + "".join(f"{fraction:7.3f}" for fraction in fractions)


if __name__ == "__main__":
    main()
