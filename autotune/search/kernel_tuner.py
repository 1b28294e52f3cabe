"""Kernel Tuner's search strategies, run over our session: ``kt:NAME``.

Only this module knows Kernel Tuner 1.5's internal classes. Its measuring loop, cache and budget are not
used. A strategy sees

* a search space that is our list of valid configurations, by rank of each value (`Lattice`): no
  restriction is parsed and Kernel Tuner's magic names mean nothing;
* a runner whose ``run`` is `Session.measure`. A repeated proposal is answered from memory. After
  `PATIENCE` proposals in a row without a new configuration, the next known one also has its nearest open
  neighbour measured (`Ledger.nearest_open`), so that a converged search goes on around its best, and
  every search ends;
* the global random streams that it draws on, seeded for it and put back whenever our code runs.

A strategy that ends before the session's budget is spent is started again and goes on drawing from
the same streams, and so does one that fails in a way known of it (`FAILURES`). Any other error ends
the search.
"""

from __future__ import annotations

import importlib
import math
import random
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice, zip_longest
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.errors import AutotuneError
from autotune.kernel.space import Space
from autotune.search.base import Session
from autotune.search.lattice import Lattice, Ledger, Point

if TYPE_CHECKING:
    from numpy.random import Generator

#: Strategies by name, with the one line that listings show.
STRATEGIES = {
    "adaptive_tabu_greywolf": "grey wolf pack with tabu list and annealing",
    "basinhopping": "basin hopping with L-BFGS-B (SciPy)",
    "bayes_opt": "Bayesian optimization with a Gaussian process (scikit-learn)",
    "brute_force": "every configuration in order",
    "diff_evo": "differential evolution",
    "dual_annealing": "dual annealing (SciPy)",
    "firefly_algorithm": "firefly algorithm",
    "genetic_algorithm": "genetic algorithm",
    "greedy_ils": "greedy iterative local search",
    "greedy_mls": "greedy multi-start local search",
    "hybrid_vndx": "variable neighbourhood descent with a nearest-neighbour surrogate",
    "minimize": "local minimizer L-BFGS-B (SciPy), restarted",
    "mls": "multi-start local search, best improvement",
    "nsga2": "NSGA-II (pymoo)",
    "nsga3": "NSGA-III (pymoo)",
    "ordered_greedy_mls": "greedy multi-start local search, parameters in order",
    "pso": "particle swarm optimization",
    "random_sample": "random sample",
    "simulated_annealing": "simulated annealing",
}

#: Proposals in a row without a new configuration, or one per configuration where those are fewer. A
#: repeat costs some 0.1 ms, a measurement a second.
PATIENCE = 100
#: Questions to the search space between two proposals, after which a strategy loops: a genetic algorithm
#: waits for ever for a child that differs from both of two equal parents.
CIRCLES = 10_000
#: Spaces with fewer configurations are measured in order: populations and tournaments have nothing to
#: draw from (a pack needs three wolves, a crossover two parents).
SMALLEST = 8
#: Strategies with temperatures in units of the objective, which start at 1. They get a logarithm of
#: the time, in which a configuration that is `SCALE` percent slower is 1 worse, for every kernel.
LOGARITHMIC = ("adaptive_tabu_greywolf", "basinhopping", "hybrid_vndx")
SCALE = 2
#: Errors of strategies whose passes end with them, in Kernel Tuner 1.5: bayes_opt raises one where it
#: finds no open configuration at random, greedy_ils where a neighbourhood is empty.
FAILURES: dict[str, type[Exception]] = {"bayes_opt": ValueError, "greedy_ils": TypeError}
#: Lists of neighbours kept: some 20 KB each.
NEIGHBOURHOODS = 128
#: Most configurations known beforehand that a first population is made of.
_MOST_KNOWN = 32
#: Configurations hinted at a time: as many as compilers do during a few compiles.
HINTED = 64


class _Finished(Exception):
    """Every configuration is measured; passes through a strategy like `BudgetSpent`."""


class _Stuck(Exception):
    """A strategy asks its search space again and again and proposes nothing."""


def search(name: str, space: Space, session: Session, rng: Generator) -> None:
    """Run one of `STRATEGIES` until the session ends it or nothing is left to measure."""
    if len(space) < SMALLEST:
        session.measure(range(len(space)))
        return
    streams = _Streams(rng)
    module = _strategy_module(name)
    searchspace = _searchspace(space)
    ledger = Ledger(searchspace.lattice, session)
    searchspace.begin(session.best(_MOST_KNOWN))
    runner = Runner(name, ledger, searchspace, streams)
    with streams.inside(), suppress(_Finished):
        while not ledger.is_complete:
            _run_once(name, module, runner)


def _run_once(name: str, module: Any, runner: Runner) -> None:
    """Run a strategy from its start to its end, which is often before the budget is spent."""
    before, searchspace = runner.proposals, runner.searchspace
    searchspace.questions = 0
    cause: Exception | None = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module.tune(searchspace, runner, _options(name, runner))
    except (_Stuck, FAILURES.get(name, _Stuck)) as error:
        cause = error
    if runner.proposals == before:
        raise AutotuneError(
            f"kt:{name} proposes nothing in this space of {searchspace.size} configurations "
            f"({cause or 'it ends at once'}); choose another strategy"
        ) from cause


def _strategy_module(name: str) -> Any:
    from kernel_tuner.interface import _STRATEGY_IMPORTS

    importlib.import_module("scipy.spatial")  # strategies import it in the middle of a search
    return importlib.import_module(_STRATEGY_IMPORTS[name])


@lru_cache(1)
def _searchspace(space: Space) -> Any:
    """Return our list of configurations as a Kernel Tuner search space; one for all problems of a run.

    ``from_cache`` takes a list of configurations as it is; a restriction would be called for every
    point of the cartesian product. The list is in descending order, as Kernel Tuner's own solver
    makes it. Repairs take the first neighbour in the list, so the order is part of a strategy
    (adaptive_tabu_greywolf on gemm-RTX_3090: 50 evaluations to 95 % descending, 150 ascending).
    """
    from kernel_tuner.searchspace import Searchspace

    class LatticeSearchspace(Searchspace):  # type: ignore[misc]
        """Kernel Tuner's search space where parameters may not apply, without its own index.

        Of 830,000 configurations with 36 parameters that takes 1.7 s to make, and a list of Hamming
        neighbours 40 ms instead of 0.2.

        A point is valid where its configuration is, whatever the parameters that do not apply. An
        invalid point without neighbours has the nearest configurations as neighbours: strategies
        repair by neighbours, and take a random configuration if there are none.
        """

        lattice = Lattice(space)
        questions = 0

        def begin(self, best: Sequence[int]) -> None:
            """Serve another search, before which these were the best known, best first.

            They are half of a first population: Kernel Tuner draws all of it at random, and little of
            a thin space is worth anything.
            """
            self.best = [self.size - 1 - index for index in best]

        def is_param_config_valid(self, param_config: Point) -> bool:
            self.questions += 1
            if self.questions > CIRCLES:
                raise _Stuck("it loops")
            return self.lattice.find(param_config) is not None

        def get_random_sample_indices(self, num_samples: int) -> list[int]:
            # The inherited way shuffles the whole list: 10 ms in a space of 830,000.
            sample = random.sample(range(self.size), num_samples)
            if num_samples > 1:
                kept = self.best[: num_samples // 2]
                drawn = [index for index in sample if index not in kept]
                # At the end: some strategies put a random point in the first place.
                sample = [*drawn[: num_samples - len(kept)], *kept]
            return sample

        def get_LHS_sample_indices(self, num_samples: int) -> list[int]:  # noqa: N802
            """Return the configurations nearest to a Latin hypercube; the inherited one has no seed."""
            from scipy.stats.qmc import LatinHypercube

            sizes = self.lattice.sizes
            hypercube = LatinHypercube(
                len(sizes), rng=np.random.default_rng(random.getrandbits(63))
            )
            points = hypercube.integers([0] * len(sizes), u_bounds=sizes, n=num_samples).tolist()
            nearest = (self.lattice.nearest(point)[0] for point in points)
            chosen = dict.fromkeys(self.size - 1 - number for number in nearest)
            while len(chosen) < num_samples:
                chosen[random.randrange(self.size)] = None
            return list(chosen)

        def get_neighbors_indices_no_cache(
            self, param_config: Point, neighbor_method: str, build_full_cache: bool = False
        ) -> list[int]:
            if neighbor_method == "Hamming":
                found = self.lattice.changed_in_one(param_config)
            elif neighbor_method == "closest-param-indices":
                found = self.lattice.nearest(param_config)
            else:  # every value occurs, so that the values adjacent in use are strictly adjacent
                found = self.lattice.adjacent(param_config)
            if not found and self.lattice.find(param_config) is None:
                found = self.lattice.nearest(param_config)
            return [self.size - 1 - index for index in reversed(found)]

        @lru_cache(NEIGHBOURHOODS)  # noqa: B019 - such an object lives alone
        def get_neighbors_indices(
            self, param_config: Point, neighbor_method: str, build_full_cache: bool = False
        ) -> list[int]:
            return self.get_neighbors_indices_no_cache(param_config, neighbor_method)

        def likely_next(self, proposed: int, best: Sequence[int]) -> Iterable[int]:
            """Return a proposal, and what differs in one parameter from it and from the best, by turns."""
            points = map(self.lattice.point, (proposed, *best))
            near = (reversed(self.get_neighbors_indices(point, "Hamming")) for point in points)
            mixed = chain.from_iterable(zip_longest(*near, fillvalue=self.size - 1 - proposed))
            return dict.fromkeys((proposed, *(self.size - 1 - index for index in mixed)))

    lattice = LatticeSearchspace.lattice
    names = [f"p{position}" for position in range(len(lattice.sizes))]
    return LatticeSearchspace(
        None,
        None,
        None,
        from_cache={
            "tune_params": {
                name: list(range(size)) for name, size in zip(names, lattice.sizes, strict=True)
            },
            "cache": dict(enumerate(_CachedPoint(names, point) for point in lattice.points[::-1])),
        },
    )


@dataclass(slots=True)
class _CachedPoint:
    """A configuration as Kernel Tuner's cache has it; a dict would take ten times the memory."""

    names: list[str]
    point: Any

    def items(self) -> Iterable[tuple[str, int]]:
        return zip(self.names, self.point.tolist(), strict=True)


def _options(name: str, runner: Runner) -> Any:
    from kernel_tuner.interface import Options
    from kernel_tuner.util import TuningBudget

    searchspace, left = runner.searchspace, runner.ledger.session.evaluations_left
    evaluations = searchspace.size if left is None else max(1, min(left, searchspace.size))
    strategy_options = _strategy_options(name, searchspace)
    if name != "brute_force":
        strategy_options["max_fevals"] = evaluations
    return Options(
        tune_params=searchspace.tune_params,
        strategy=name,
        strategy_options=Options(strategy_options),
        max_fevals=evaluations,
        # Never done: the session ends the search, and restarts share one session.
        budget=TuningBudget(),
        objective=["time"],
        objective_higher_is_better=[False],
        seed=runner.streams.integer(2**31),
        verbose=False,
        simulation_mode=False,
        restrictions=None,
        metrics=None,
        cache={},
        cachefile=None,
    )


#: Default population of the strategies that break where it does not fit.
_POPULATIONS = {"firefly_algorithm": 20, "genetic_algorithm": 26, "nsga2": 20, "nsga3": 20}


def _strategy_options(name: str, searchspace: Any) -> dict[str, Any]:
    """Return populations that fit in the space; Kernel Tuner's defaults where they do."""
    half = searchspace.size // 2
    if name == "bayes_opt":
        # Its default, multi-ultrafast, looks at the clock: the same seed would not be the same path.
        # Its Latin hypercube is not seeded.
        return {"popsize": min(20, half), "method": "multi-fast", "samplingmethod": "random"}
    if name == "diff_evo":
        dimensions = min(len(searchspace.get_true_tunable_params()), searchspace.size)
        return {"popsize_times_dimensions": False, "popsize": min(16 * dimensions, half)}
    return {"popsize": min(_POPULATIONS[name], half)} if name in _POPULATIONS else {}


class Runner:
    """Kernel Tuner's runner, answered by the session."""

    #: bayes_opt reads the limit of threads; nothing in our encoding is a block size.
    dev = SimpleNamespace(max_threads=2**31)

    def __init__(self, name: str, ledger: Ledger, searchspace: Any, streams: _Streams) -> None:
        from kernel_tuner.util import InvalidConfig, RuntimeFailedConfig

        self.name, self.ledger, self.searchspace = name, ledger, searchspace
        self.streams = streams
        #: Proposals so far, and how many in a row brought nothing new.
        self.proposals = self.stale = 0
        self.invalid = {"__error__": InvalidConfig()}
        # bayes_opt has its own number for a failure and fits its model to any other.
        self.failed = (
            {"time": 1e20} if name == "bayes_opt" else {"__error__": RuntimeFailedConfig()}
        )

    def add_strategy_time(self, seconds: float) -> None:
        """Ignore how long a strategy takes."""

    def run(self, configs: Iterable[Sequence[int]], tuning_options: Any) -> list[Any]:
        points: list[Point] = [tuple(int(rank) for rank in config) for config in configs]
        self.proposals += len(points)
        self.searchspace.questions = 0
        numbers = self.measured(points)
        return [
            {**dict(zip(tuning_options.tune_params, point, strict=True)), **self.answer(number)}
            for point, number in zip(points, numbers, strict=True)
        ]

    def answer(self, number: int | None) -> dict[str, Any]:
        if number is None:
            return self.invalid
        time_ms = self.ledger.known[number].cost
        if time_ms is None:
            return self.failed
        return {"time": math.log(time_ms) * 100 / SCALE if self.name in LOGARITHMIC else time_ms}

    def measured(self, points: list[Point]) -> list[int | None]:
        """Measure a batch of proposals; return their numbers, None where one is not valid.

        Kernel Tuner checks most proposals itself. Local search skips that for neighbours of its own
        making, which conditional parameters can make invalid.
        """
        ledger = self.ledger
        numbers = [ledger.lattice.find(point) for point in points]
        new = [number for number in numbers if number is not None and number not in ledger.known]
        if new:
            self.stale = 0
            with self.streams.outside():
                if len(new) == 1:  # a batch keeps compilers busy
                    likely = self.searchspace.likely_next(new[0], ledger.session.best(1))
                    unknown = (number for number in likely if number not in ledger.known)
                    ledger.session.hint(list(islice(unknown, HINTED)))
                ledger.measure(new)
            return numbers
        self.stale += len(points)
        if points and self.stale >= min(PATIENCE, len(ledger.lattice.space)):
            nearest = ledger.nearest_open(points[-1])
            if nearest is None:
                raise _Finished
            with self.streams.outside():
                ledger.measure([nearest])
        return numbers


class _Streams:
    """The global random streams, swapped: the strategy's while it runs, the caller's otherwise.

    The session's work must not move the strategy's streams: resumed from memory, the same search
    must take the same path.
    """

    def __init__(self, rng: Generator) -> None:
        self._rng = rng
        python = random.Random(self.integer(2**63))
        numpy = np.random.RandomState(self.integer(2**32))
        self._other = (python.getstate(), numpy.get_state())

    def integer(self, below: int) -> int:
        """Return a number that no global stream decides."""
        return int(self._rng.integers(below))

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Give the strategy its streams."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    #: Give the caller its streams back: the same exchange.
    outside = inside

    def _swap(self) -> None:
        current = (random.getstate(), np.random.get_state())
        random.setstate(self._other[0])
        np.random.set_state(self._other[1])
        self._other = current
