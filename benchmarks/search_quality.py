"""How many evaluations strategies need on recorded spaces: a table, and JSON.

Every strategy searches every recorded space from several seeds, the given ones and those in
tests/data. Counted are evaluations, failing ones included, until a configuration within 5 % of the
best was measured, where the search ends, and the processor time that it took until then. Rows of a
file that is there are kept where they are not measured anew.

    OMP_NUM_THREADS=1 python benchmarks/search_quality.py --seeds 30
    OMP_NUM_THREADS=1 python benchmarks/search_quality.py --noise 0.03 --out noise
    OMP_NUM_THREADS=1 python benchmarks/search_quality.py --compilers 15 --seeds 10
    OMP_NUM_THREADS=1 python benchmarks/search_quality.py --grids --strategies random,surrogate,optuna:tpe
    python benchmarks/search_quality.py --show

With ``--compilers`` the budget is a simulated time, as in a run on a GPU. It consists of the recorded compile
times on that number of compilers, which begin with hinted configurations; of a tenth of the recorded benchmark
times, one after the other, because a run stops early; and of the strategy's own processor time.

With ``--grids`` spaces are small, as lists of `triton.Config` are: 24 to 60 configurations of a recorded
space, two or three values of three to five parameters, drawn by the seed. A fifth is measured, one at random
before the strategy begins; counted is the best time of the grid over the best that was found.
"""

from __future__ import annotations

import argparse
import json
import shlex
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from math import inf
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from harness import RECORDED, ROOT, command_line, finish, write
from recorded import Recording, load

from autotune.measure.evaluator import PER_DEVICE, nothing
from autotune.measure.measurement import Measurement
from autotune.search.base import AtHand, Outlook, RelatedProblem, Tell, fastest
from autotune.search.strategies import BudgetSpent, find

OWN = ROOT / "tests" / "data"
#: Fraction of the best speed that counts as found.
FOUND = 0.95
STRATEGIES = "random,kt:genetic_algorithm,kt:adaptive_tabu_greywolf,surrogate,optuna:tpe"


#: One search: its space, strategy and seed. Of a search ``evaluations_to_95``, until `FOUND`, None where
#: the budget ended first, and its processor time, replaying included, as ``milliseconds_per_evaluation``;
#: in simulated time ``seconds_to_95`` instead, of a grid ``best_share``.
Row = Mapping[str, Any]
#: Configurations of a small grid, and the part of them that is measured.
GRID, MEASURED = (24, 60), 5


class UntilFound:
    """A session that ends when a configuration within `FOUND` was measured, or the budget is spent.

    It keeps nothing else: what is measured here is the strategy, not the session of a run.
    """

    problem_features: tuple[float, ...] = ()
    related: Sequence[RelatedProblem] = ()
    compiled: Collection[int] = ()
    outlook: Outlook | None = None

    def __init__(self, recording: Recording, budget: int) -> None:
        self.recording, self.budget = recording, budget
        #: Numbers of the configurations measured, in order.
        self.path: list[int] = []
        self._measured: set[int] = set()
        times = [measured.median_ms or np.inf for measured in recording.measurements]
        self._good = set(np.flatnonzero((recording.best_ms or 0.0) / np.array(times) >= FOUND))

    @property
    def found_after(self) -> int | None:
        places = [place for place, index in enumerate(self.path) if index in self._good]
        return places[0] + 1 if places else None

    @property
    def evaluations_left(self) -> int | None:
        return self.budget - len(self.path)

    def measure(self, indices: Sequence[int]) -> list[Measurement]:
        for index in indices:
            if index not in self._measured:
                if len(self.path) == self.budget:
                    raise BudgetSpent
                self._measured.add(index)
                self.path.append(index)
        if not self._good.isdisjoint(indices):
            self.budget = len(self.path)
        return [self.recording.measurements[index] for index in indices]

    def stream(
        self, proposals: Iterable[int], tell: Tell, ahead: int, at_hand: AtHand = nothing
    ) -> None:
        for number in proposals:
            tell(number, *self.measure([number]))

    def best(self, count: int) -> list[int]:
        return fastest({index: self.recording.measurements[index] for index in self.path}, count)

    def hint(self, indices: Sequence[int]) -> None:
        pass


class NoisySession(UntilFound):
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


class TimedSession(UntilFound):
    """A clock of its own: compilers, one device, and what the strategy takes to think."""

    evaluations_left = None  # type: ignore[assignment]

    def __init__(self, recording: Recording, budget: int, compilers: int) -> None:
        super().__init__(recording, budget)
        self.now_s = 0.0
        #: When each was measured, in order of the path.
        self.ends_s: list[float] = []
        self._free_s = [0.0] * compilers
        self._compiled_s: dict[int, float] = {}
        self._hinted: list[tuple[int, float]] = []
        self._thought_s = time.process_time()

    def hint(self, indices: Sequence[int]) -> None:
        self._think()
        self._compile_hinted()
        self._hinted = [(index, self.now_s) for index in indices if index not in self._compiled_s]

    def measure(self, indices: Sequence[int]) -> list[Measurement]:
        self._think()
        self._compile_hinted()
        for index in indices:
            self._compile(index, self.now_s)
        for index in indices:
            if index in self._measured:
                continue
            if len(self.path) == self.budget:
                raise BudgetSpent
            measurement = self.recording.measurements[index]
            self.now_s = max(self.now_s, self._compiled_s[index]) + measurement.measure_s / 10
            self._measured.add(index)
            self.path.append(index)
            self.ends_s.append(self.now_s)
        self._compile_hinted()
        if not self._good.isdisjoint(indices):
            self.budget = len(self.path)
        self._thought_s = time.process_time()
        return [self.recording.measurements[index] for index in indices]

    def stream(
        self, proposals: Iterable[int], tell: Tell, ahead: int, at_hand: AtHand = nothing
    ) -> None:
        awaited: list[int] = []
        source = iter(proposals)
        while True:
            while len(awaited) < ahead and (number := next(source, None)) is not None:
                self._think()
                self._compile(number, self.now_s)
                awaited.append(number)
            if not awaited:
                return
            number = min(awaited, key=self._compiled_s.__getitem__)
            awaited.remove(number)
            tell(number, *self.measure([number]))

    def _think(self) -> None:
        now_s = time.process_time()
        self.now_s += now_s - self._thought_s
        self._thought_s = now_s

    def _compile_hinted(self) -> None:
        """Begin what was hinted as compilers became free until now."""
        while self._hinted and min(self._free_s) <= self.now_s:
            self._compile(*self._hinted.pop(0))

    def _compile(self, index: int, earliest_s: float) -> None:
        if index not in self._compiled_s:
            compiler = int(np.argmin(self._free_s))
            begin_s = max(earliest_s, self._free_s[compiler])
            self._free_s[compiler] = begin_s + self.recording.measurements[index].compile_s
            self._compiled_s[index] = self._free_s[compiler]


class WholeBudget(UntilFound):
    """A session that goes on when a good configuration was found."""

    def __init__(self, recording: Recording, budget: int) -> None:
        super().__init__(recording, budget)
        self._good = set()

    @property
    def best_share(self) -> float:
        """Return the best time over the best that was measured; 0 where all failed."""
        times_ms = [self.recording.measurements[index].median_ms for index in self.path]
        found_ms = min((ms for ms in times_ms if ms is not None), default=np.inf)
        return (self.recording.best_ms or 0.0) / found_ms


def small_grid(recording: Recording, rng: np.random.Generator) -> Recording:
    """Return neighbouring values of a few parameters around a random configuration of a space."""
    space = recording.space
    free = [name for name, values in space.parameters.items() if len(values) > 1]
    while True:
        centre = space.configuration(int(rng.integers(len(space))))
        allowed = {name: [value] for name, value in centre.items()}
        for name in rng.permutation(free)[: rng.integers(3, 6)]:
            values, width = space.parameters[name], int(rng.integers(2, 4))
            first = values.index(centre[name]) - int(rng.integers(width))
            allowed[name] = list(values[max(0, min(first, len(values) - width)) :][:width])
        grid = space.restricted(allowed)
        if GRID[0] <= len(grid) <= GRID[1]:
            found = tuple(recording.measurements[space.index(each) or 0] for each in grid)
            if any(measured.median_ms is not None for measured in found):
                return Recording(recording.kernel, grid, found)


def main() -> None:
    options = _arguments()
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    kind, run, extra = ("rows", _run, options.noise)
    if options.compilers:
        kind, run, extra = ("timed", _run_timed, options.compilers)
    if options.grids:
        kind, run = "grids", _run_grid
    if not options.show:
        jobs = [
            (strategy, path, seed, options.budget, extra)
            for path in options.spaces
            for strategy in options.strategies.split(",")
            for seed in range(options.seeds)
        ]
        with ProcessPoolExecutor(options.jobs) as pool:
            measured = pool.map(run, *zip(*jobs, strict=True))
            rows = {_key(row): row for row in [*results.get(kind, []), *measured]}
        results[kind] = sorted(rows.values(), key=_key)
        for strategy in options.strategies.split(","):
            commands = results.setdefault("commands", {})
            commands[f"{kind} {strategy}"] = _command(strategy, options)
        write(options.out, results)
    _print_table(results.get("rows", []))
    _print_timed(results.get("timed", []))
    _print_grids(results.get("grids", []))


def _command(strategy: str, options: argparse.Namespace) -> str:
    """The date, and what measures the rows of one strategy again."""
    words = ["python", "benchmarks/search_quality.py"]
    for name in ("seeds", "budget", "noise", "compilers"):
        if getattr(options, name):
            words += [f"--{name}", str(getattr(options, name))]
    words += ["--grids"] * options.grids
    return f"{datetime.now(UTC):%Y-%m-%d}: {shlex.join([*words, '--strategies', strategy])}"


def _key(row: Row) -> tuple[str, str, int]:
    return row["space"], row["strategy"], row["seed"]


def _arguments() -> argparse.Namespace:
    parser = command_line(__doc__, "search.json", None)
    parser.add_argument("spaces", nargs="*", type=Path, help="recorded spaces (default: all)")
    parser.add_argument("--strategies", default=STRATEGIES, help="names, separated by commas")
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--budget", type=int, default=400, help="evaluations")
    parser.add_argument("--noise", type=float, default=0.0, help="of a time, as a share of it")
    parser.add_argument(
        "--compilers", type=int, default=0, help="simulate time with this number of compilers"
    )
    parser.add_argument("--grids", action="store_true", help="a fifth of small grids")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--show", action="store_true", help="run nothing, print what is there")
    options = parser.parse_args()
    options.out /= "search.json"
    own = sorted(OWN.glob("*H100*.json.gz"))
    options.spaces = options.spaces or [*sorted(RECORDED.glob("*.json.gz")), *own]
    return options


def _run(strategy: str, path: Path, seed: int, budget: int, noise: float) -> Row:
    recording = _load(path)
    _import(strategy)
    session = NoisySession(recording, budget, noise, seed)
    begun = time.process_time()
    with suppress(BudgetSpent):
        find(strategy)(recording.space, session, np.random.default_rng(seed))
    spent_s = time.process_time() - begun
    return {
        "space": path.name.split(".")[0],
        "strategy": strategy,
        "seed": seed,
        "evaluations_to_95": session.found_after,
        "milliseconds_per_evaluation": round(1000 * spent_s / len(session.path), 3),
    }


def _run_timed(strategy: str, path: Path, seed: int, budget: int, compilers: int) -> Row:
    recording = _load(path)
    _import(strategy)
    session = TimedSession(recording, budget, compilers)
    with suppress(BudgetSpent):
        search = find(strategy, ahead=compilers + PER_DEVICE)
        search(recording.space, session, np.random.default_rng(seed))
    found = session.found_after
    seconds = None if found is None else round(session.ends_s[found - 1], 3)
    about = {"space": path.name.split(".")[0], "strategy": strategy, "seed": seed}
    return {**about, "seconds_to_95": seconds}


def _run_grid(strategy: str, path: Path, seed: int, budget: int, noise: float) -> Row:
    _import(strategy)
    rng = np.random.default_rng(seed)
    grid = small_grid(_load(path), rng)
    session = WholeBudget(grid, max(2, len(grid.space) // MEASURED))
    session.measure([int(rng.integers(len(grid.space)))])
    with suppress(BudgetSpent):
        find(strategy)(grid.space, session, rng)
    about = {"space": path.name.split(".")[0], "strategy": strategy, "seed": seed}
    return {**about, "best_share": round(session.best_share, 4)}


@cache
def _import(strategy: str) -> None:
    """Once per process, so that no search pays for it: libraries are imported when they are used."""
    recording = load(OWN / "synthetic.json.gz")
    with suppress(BudgetSpent):
        find(strategy)(recording.space, UntilFound(recording, 12), np.random.default_rng(0))


@cache
def _load(path: Path) -> Recording:
    return load(path)


def _print_table(rows: Sequence[Row]) -> None:
    print(f"median evaluations to {FOUND:.0%} of the best; share of seeds within 100, 200 and 400;")
    print("milliseconds of processor time per evaluation\n")
    spaces = list(dict.fromkeys(row["space"] for row in rows))
    own = [space for space in spaces if "NVIDIA_H100" in space]
    groups = {space: [space] for space in spaces}
    groups |= {"spaces of others": [s for s in spaces if s not in own], "own spaces": own}
    for title, named in groups.items():
        print(title)
        for strategy in dict.fromkeys(row["strategy"] for row in rows):
            mine = [row for row in rows if row["strategy"] == strategy and row["space"] in named]
            needed = [row["evaluations_to_95"] or 401 for row in mine]
            if not needed:
                continue
            typical = median(needed)
            shares = "".join(f"{mean(n <= most for n in needed):7.1%}" for most in (100, 200, 400))
            spent_ms = mean(row["milliseconds_per_evaluation"] for row in mine)
            shown = ">400" if typical > 400 else f"{typical:.0f}"
            print(f"  {strategy:28s}{shown:>5s}{shares}{spent_ms:8.2f} ms ({len(mine)})")


def _print_timed(rows: Sequence[Row]) -> None:
    for space in dict.fromkeys(row["space"] for row in rows):
        print(f"{space}: median seconds to {FOUND:.0%} in simulated time")
        for strategy in dict.fromkeys(row["strategy"] for row in rows):
            mine = [row for row in rows if (row["space"], row["strategy"]) == (space, strategy)]
            needed_s = [inf if (s := row["seconds_to_95"]) is None else s for row in mine]
            if needed_s:
                print(f"  {strategy:28s}{median(needed_s):8.1f} ({len(needed_s)})")


def _print_grids(rows: Sequence[Row]) -> None:
    if rows:
        print(
            "best of a small grid over the best of a fifth of it: mean, lower tenth, share from 0.99 on"
        )
    for strategy in dict.fromkeys(row["strategy"] for row in rows):
        shares = [row["best_share"] for row in rows if row["strategy"] == strategy]
        good = mean(share >= 0.99 for share in shares)
        print(
            f"  {strategy:28s}{mean(shares):8.3f}{np.quantile(shares, 0.1):8.3f}{good:8.1%} ({len(shares)})"
        )


if __name__ == "__main__":
    finish(main)
