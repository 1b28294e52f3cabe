"""How many evaluations strategies need on recorded spaces: a table, and JSON.

Every strategy searches every recorded space from several seeds. For each pair: the median number of
evaluations, failing ones included, until a configuration within 5 % of the best was measured; how
many seeds got there; the median fraction of the best after some evaluations. Nothing is timed, so
every machine prints the same numbers.

    python benchmarks/search_quality.py                          # five strategies, 30 seeds
    python benchmarks/search_quality.py --seeds 2 --budget 50 --strategies random,auto     # a look
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np
from harness import command_line, finish, parsed_replay, provenance, write

from autotune.measure.measurement import Measurement
from autotune.search.names import find
from autotune.search.replay import Recording, load, session
from autotune.search.session import Budget, search

#: Fraction of the best speed that counts as found.
FOUND = 0.95
AFTER = (25, 50, 100, 200)
STRATEGIES = "random,kt:adaptive_tabu_greywolf,kt:genetic_algorithm,kt:pso,optuna:tpe"


@dataclass(frozen=True)
class Trace:
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
    write(
        options.out / "search_quality.json",
        {**provenance(), "budget": options.budget, "rows": [asdict(run) for run in runs]},
    )


def _arguments() -> argparse.Namespace:
    parser = command_line(__doc__, "search_quality.json", None)
    parser.add_argument("--strategies", default=STRATEGIES, help="names, separated by commas")
    parser.add_argument("--budget", type=int, default=200, help="evaluations")
    return parsed_replay(parser)


def _run(strategy: str, path: Path, seed: int, budget: int) -> Trace:
    recording = _load(path)
    measured = search(session(recording, Budget(evaluations=budget)), find(strategy), seed)
    fractions = _fractions(recording, measured.values())
    found = np.flatnonzero(fractions >= FOUND)
    return Trace(
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


def _print_table(runs: list[Trace], budget: int) -> None:
    spaces = list(dict.fromkeys(run.space for run in runs))
    after = [n for n in AFTER if n <= budget]
    print(f"median evaluations to {FOUND:.0%} of the best (seeds that got there/seeds);")
    print(f"median fraction of the best after {', '.join(map(str, after))} evaluations\n")
    for space in spaces:
        print(space)
        for strategy in dict.fromkeys(run.strategy for run in runs):
            mine = [run for run in runs if (run.space, run.strategy) == (space, strategy)]
            print(f"  {strategy:28s}{_summary(mine, budget)}")


def _summary(runs: list[Trace], budget: int) -> str:
    found = [run.found_after for run in runs if run.found_after is not None]
    typical = median(run.found_after or budget + 1 for run in runs)
    shown = f">{budget}" if typical > budget else f"{typical:.0f}"
    fractions = [median(values) for values in zip(*(run.fraction for run in runs), strict=True)]
    share = f"({len(found)}/{len(runs)})"
    return f"{shown:>5s} {share:8s}" + "".join(f"{fraction:7.3f}" for fraction in fractions)


if __name__ == "__main__":
    finish(main)
