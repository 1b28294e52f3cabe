"""How many evaluations strategies need on recorded spaces: a table, and JSON.

Every strategy searches every recorded space from several seeds, the given ones and those in
tests/data. Counted are evaluations, failing ones included, until a configuration within 5 % of the
best was measured, and the strategy's own processor time. Rows of a file that is there are kept
where they are not measured anew.

    OMP_NUM_THREADS=1 python benchmarks/search_quality.py --seeds 30
    OMP_NUM_THREADS=1 python benchmarks/search_quality.py --noise 0.03 --out /tmp/noise.json
    python benchmarks/search_quality.py --show
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from statistics import mean, median

import numpy as np

from autotune.measure.measurement import Measurement
from autotune.search.names import BudgetSpent, find
from autotune.search.replay import Recording, ReplaySession, load

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT.parent / "shared" / "recorded"
OWN = ROOT / "tests" / "data"
RESULTS = ROOT / "benchmarks" / "results" / "search.json"
#: Fraction of the best speed that counts as found.
FOUND = 0.95
STRATEGIES = "random,kt:genetic_algorithm,kt:adaptive_tabu_greywolf,surrogate,optuna:tpe"


@dataclass(frozen=True)
class Row:
    """One search."""

    space: str
    strategy: str
    seed: int
    #: Evaluations until `FOUND`; None where the budget ended first.
    evaluations_to_95: int | None
    #: Processor time of the search, replaying included.
    milliseconds_per_evaluation: float


class NoisySession(ReplaySession):
    """Every time is off by a normal share, the same one for a configuration and a seed."""

    def __init__(self, recording: Recording, budget: int, noise: float, seed: int) -> None:
        super().__init__(recording, budget)
        self.factors = np.exp(
            noise * np.random.default_rng(seed).standard_normal(len(recording.space))
        )

    def measure(self, indices: Sequence[int]) -> list[Measurement]:
        return [
            replace(
                measurement,
                samples_ms=tuple(ms * self.factors[index] for ms in measurement.samples_ms),
            )
            for index, measurement in zip(indices, super().measure(indices), strict=True)
        ]


def main() -> None:
    """Run all searches, print the table, write the JSON."""
    options = _arguments()
    old = json.loads(options.out.read_text()) if options.out.exists() else {"rows": []}
    rows = {(row["space"], row["strategy"], row["seed"]): Row(**row) for row in old["rows"]}
    if not options.show:
        jobs = [
            (strategy, path, seed, options.budget, options.noise)
            for path in options.spaces
            for strategy in options.strategies.split(",")
            for seed in range(options.seeds)
        ]
        with ProcessPoolExecutor(options.jobs) as pool:
            for row in pool.map(_run, *zip(*jobs, strict=True)):
                rows[row.space, row.strategy, row.seed] = row
        _write(options.out, list(rows.values()), old.get("commands", {}), options.strategies)
    _print_table(list(rows.values()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("spaces", nargs="*", type=Path, help="recorded spaces (default: all)")
    parser.add_argument("--strategies", default=STRATEGIES, help="names, separated by commas")
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--budget", type=int, default=400, help="evaluations")
    parser.add_argument("--noise", type=float, default=0.0, help="of a time, as a share of it")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--out", type=Path, default=RESULTS, help="JSON file of all runs")
    parser.add_argument("--show", action="store_true", help="run nothing, print what is there")
    options = parser.parse_args()
    own = sorted(OWN.glob("*H100*.json.gz"))
    options.spaces = options.spaces or [*sorted(RECORDED.glob("*.json.gz")), *own]
    return options


def _run(strategy: str, path: Path, seed: int, budget: int, noise: float) -> Row:
    recording = _load(path)
    session = NoisySession(recording, budget, noise, seed)
    begun = time.process_time()
    with suppress(BudgetSpent):
        find(strategy)(recording.space, session, np.random.default_rng(seed))
    spent_s = time.process_time() - begun
    times = [recording.measurements[index].median_ms or np.inf for index in session.path]
    found = np.flatnonzero((recording.best_ms or 0.0) / np.array(times) >= FOUND)
    return Row(
        space=path.name.split(".")[0],
        strategy=strategy,
        seed=seed,
        evaluations_to_95=int(found[0]) + 1 if len(found) else None,
        milliseconds_per_evaluation=round(1000 * spent_s / len(session.path), 3),
    )


@cache
def _load(path: Path) -> Recording:
    return load(path)


def _write(path: Path, rows: list[Row], commands: dict[str, str], strategies: str) -> None:
    """One row a line; by strategy, when and with which command its rows were last measured."""
    stamp = f"{datetime.now(UTC):%Y-%m-%d}: {shlex.join(['python', *sys.argv])}"
    commands = commands | dict.fromkeys(strategies.split(","), stamp)
    lines = ",\n".join(json.dumps(asdict(row)) for row in rows)
    path.write_text(f'{{"commands": {json.dumps(commands, indent=1)},\n"rows": [\n{lines}\n]}}\n')


def _print_table(rows: list[Row]) -> None:
    print(f"median evaluations to {FOUND:.0%} of the best; share of seeds within 100, 200 and 400;")
    print("milliseconds of processor time per evaluation\n")
    spaces = list(dict.fromkeys(row.space for row in rows))
    strategies = list(dict.fromkeys(row.strategy for row in rows))
    for space in spaces:
        print(space)
        for strategy in strategies:
            _print_line(strategy, [r for r in rows if (r.space, r.strategy) == (space, strategy)])
    for title, names in (
        ("spaces of others", [space for space in spaces if "NVIDIA_H100" not in space]),
        ("own spaces", [space for space in spaces if "NVIDIA_H100" in space]),
    ):
        print(title)
        for strategy in strategies:
            _print_line(strategy, [r for r in rows if r.strategy == strategy and r.space in names])


def _print_line(strategy: str, rows: list[Row]) -> None:
    if not rows:
        return
    needed = [row.evaluations_to_95 or 401 for row in rows]
    typical = median(needed)
    shares = "".join(f"{mean(n <= limit for n in needed):7.1%}" for limit in (100, 200, 400))
    spent_ms = mean(row.milliseconds_per_evaluation for row in rows)
    shown = ">400" if typical > 400 else f"{typical:.0f}"
    print(f"  {strategy:28s}{shown:>5s}{shares}{spent_ms:8.2f} ms ({len(rows)})")


if __name__ == "__main__":
    main()
