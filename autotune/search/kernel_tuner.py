"""Kernel Tuner's search strategies, run over our session: ``kt:NAME``.

Only this module and `kernel_tuner_space` know Kernel Tuner 1.5's internal classes. Its
measuring loop, cache and budget are not used. A strategy sees

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
from functools import lru_cache
from itertools import islice
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.errors import AutotuneError
from autotune.kernel.space import Space
from autotune.search.base import Session
from autotune.search.lattice import Ledger, Point, Stuck

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

#: Proposals in a row without a new configuration, or one per configuration in a smaller space. A repeat
#: costs some 0.1 ms, a measurement a second.
PATIENCE = 100
#: Spaces with fewer configurations are measured in order: populations and tournaments have nothing to
#: draw from (a pack needs three wolves, a crossover two parents).
SMALLEST = 8
#: Strategies with temperatures in units of the objective, which start at 1. They get a logarithm of
#: the time, in which a configuration that is `SCALE` percent slower is 1 worse, for every kernel.
LOGARITHMIC = ("adaptive_tabu_greywolf", "basinhopping", "hybrid_vndx")
SCALE = 2
#: Errors of strategies whose passes end with them, in Kernel Tuner 1.5: bayes_opt raises one if
#: random draws find no open configuration, greedy_ils if a neighbourhood is empty.
FAILURES: dict[str, type[Exception]] = {"bayes_opt": ValueError, "greedy_ils": TypeError}
#: Maximum number of known configurations in a first population.
_MOST_KNOWN = 32
#: Configurations hinted at a time: enough for compilers during a few compiles.
HINTED = 64


class _Finished(Exception):
    """Every configuration is measured; passes through a strategy like `BudgetSpent`."""


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
    except (Stuck, FAILURES.get(name, Stuck)) as error:
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
    """Return our list of configurations as a Kernel Tuner search space; one for all problems of a run."""
    from autotune.search.kernel_tuner_space import LatticeSearchspace

    return LatticeSearchspace(space)


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


#: Default population of the strategies that fail if it does not fit the space.
_POPULATIONS = {"firefly_algorithm": 20, "genetic_algorithm": 26, "nsga2": 20, "nsga3": 20}


def _strategy_options(name: str, searchspace: Any) -> dict[str, Any]:
    """Return populations that fit in the space; Kernel Tuner's defaults if they do."""
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
        """Measure a batch of proposals; return their numbers, None for an invalid one.

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
