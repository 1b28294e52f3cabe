"""Kernel Tuner's search strategies, run over our session: ``kt:NAME``.

Only this module and `kernel_tuner_space` use internal classes of Kernel Tuner 1.5. Its measuring
loop, cache and budget are not used. A strategy gets

* a search space: our list of valid configurations, by rank of each value (`Lattice`). Kernel Tuner
  parses no restriction, and its special parameter names have no effect;
* a runner whose ``run`` calls `Session.measure`. It answers repeated proposals from memory. After
  `PATIENCE` proposals in a row without a new configuration, it also measures the nearest open
  neighbour of the next known proposal (`Ledger.nearest_open`). A converged search thus goes on
  around its best configuration, and every search ends;
* seeded global random streams, which are swapped for the caller's whenever our code runs.

A strategy that ends before the session's budget is spent is started again, with the same streams.
A strategy that fails with its known error (`FAILURES`) is started again, too. Any other error ends the
search.
"""

from __future__ import annotations

import importlib
import math
import random
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import islice
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.errors import AutotuneError, UsageError
from autotune.kernel.space import Space
from autotune.search.base import BudgetSpent, Session
from autotune.search.lattice import Ledger, Point, Stuck
from autotune.values import Configuration, Value

if TYPE_CHECKING:
    from numpy.random import Generator

#: Strategies by name, with the description that listings show.
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

#: Maximum number of proposals in a row without a new configuration; fewer in a space with fewer
#: configurations. A repeated proposal costs about 0.1 ms, a measurement about 1 s.
PATIENCE = 100
#: Spaces with fewer configurations are measured in order: they are too small for populations and
#: tournaments (a pack needs three wolves, a crossover two parents).
SMALLEST = 8
#: Strategies whose temperature starts at 1, in units of the objective. They get a logarithm of the
#: time, so that the temperature fits every kernel.
LOGARITHMIC = ("adaptive_tabu_greywolf", "basinhopping", "hybrid_vndx")
#: A configuration that is this many percent slower is 1 worse in that logarithm.
SCALE = 2
#: Errors with which strategies of Kernel Tuner 1.5 end: bayes_opt raises its error if random draws
#: find no open configuration, greedy_ils if a neighbourhood is empty.
FAILURES: dict[str, type[Exception]] = {"bayes_opt": ValueError, "greedy_ils": TypeError}
#: Maximum number of known configurations in a first population.
_MAX_KNOWN = 32
#: Number of configurations in a hint: enough to keep compilers busy for a few compiles.
HINTED = 64


class _Finished(Exception):
    """Every configuration is measured. A strategy lets it pass through, like `BudgetSpent`."""


def option_types(name: str) -> dict[str, type[Value]]:
    """Return the types of the options of one of `STRATEGIES` that have a number or a word as default."""
    defaults = {option: default for option, (_, default) in _strategy_module(name)._options.items()}
    return {
        option: type(default)
        for option, default in defaults.items()
        if isinstance(default, bool | int | float | str)
    }


def search(
    name: str, space: Space, session: Session, rng: Generator, *, given: Mapping[str, Value]
) -> None:
    """Run one of `STRATEGIES` until the session ends it or nothing is left to measure.

    ``given`` are the user's options, with types of `option_types`.
    """
    if len(space) < SMALLEST:
        session.measure(range(len(space)))
        return
    streams = _Streams(rng)
    module = _strategy_module(name)
    searchspace = _searchspace(space)
    ledger = Ledger(searchspace.lattice, session)
    searchspace.begin(session.best(_MAX_KNOWN))
    runner = Runner(name, ledger, searchspace, streams, given)
    with streams.inside(), suppress(_Finished):
        while not ledger.is_complete:
            _run_once(name, module, runner)


def _run_once(name: str, module: Any, runner: Runner) -> None:
    """Run a strategy from its start to its end, which often comes before the budget is spent."""
    before, searchspace = runner.proposals, runner.searchspace
    searchspace.checks = 0
    cause: Exception | None = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module.tune(searchspace, runner, _options(name, runner))
    except (Stuck, FAILURES.get(name, Stuck)) as error:
        cause = error
    except (BudgetSpent, _Finished, AutotuneError, OSError):
        raise
    except Exception as error:
        if not runner.given:
            raise
        raise UsageError(f"kt:{name} fails with {Configuration(runner.given)}: {error}") from error
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
    """Return a space as a Kernel Tuner search space, shared by all problems of a run."""
    from autotune.search.kernel_tuner_space import LatticeSearchspace

    return LatticeSearchspace(space)


def _options(name: str, runner: Runner) -> Any:
    from kernel_tuner.interface import Options
    from kernel_tuner.util import TuningBudget

    searchspace, left = runner.searchspace, runner.ledger.session.evaluations_left
    evaluations = searchspace.size if left is None else max(1, min(left, searchspace.size))
    strategy_options = _strategy_options(name, searchspace, runner.given)
    if name != "brute_force":
        strategy_options["max_fevals"] = evaluations
    return Options(
        tune_params=searchspace.tune_params,
        strategy=name,
        strategy_options=Options(strategy_options),
        max_fevals=evaluations,
        # Without limits: the session ends the search, and restarts share one session.
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


#: Default population of strategies that fail if the population is larger than the space.
_POPULATIONS = {
    "bayes_opt": 20,
    "diff_evo": 16,
    "firefly_algorithm": 20,
    "genetic_algorithm": 26,
    "nsga2": 20,
    "nsga3": 20,
}
#: Our defaults of options. The default method of bayes_opt, multi-ultrafast, reads the clock: two searches
#: with one seed would differ. Its Latin hypercube is not seeded.
_DEFAULTS = {"bayes_opt": {"method": "multi-fast", "samplingmethod": "random"}}


def _strategy_options(name: str, searchspace: Any, given: Mapping[str, Value]) -> dict[str, Any]:
    """Return the user's options, and a population that fits in the space."""
    options: dict[str, Any] = {**_DEFAULTS.get(name, {}), **given}
    if name not in _POPULATIONS:
        return options
    population = options.get("popsize", _POPULATIONS[name])
    if name == "diff_evo":
        if options.get("popsize_times_dimensions", True):
            population *= min(len(searchspace.get_true_tunable_params()), searchspace.size)
        options["popsize_times_dimensions"] = False
    return {**options, "popsize": min(population, searchspace.size // 2)}


class Runner:
    """A runner for Kernel Tuner that measures with the session."""

    #: bayes_opt reads this limit; our encoding has no block size that it applies to.
    dev = SimpleNamespace(max_threads=2**31)

    def __init__(
        self,
        name: str,
        ledger: Ledger,
        searchspace: Any,
        streams: _Streams,
        given: Mapping[str, Value],
    ) -> None:
        from kernel_tuner.util import InvalidConfig, RuntimeFailedConfig

        self.name, self.ledger, self.searchspace = name, ledger, searchspace
        self.streams, self.given = streams, given
        #: Number of proposals so far.
        self.proposals = 0
        #: Number of proposals in a row without a new configuration.
        self.stale = 0
        self.invalid = {"__error__": InvalidConfig()}
        # bayes_opt marks a failure by a number of its own and fits its model to all other numbers.
        self.failed = (
            {"time": 1e20} if name == "bayes_opt" else {"__error__": RuntimeFailedConfig()}
        )

    def add_strategy_time(self, seconds: float) -> None:
        """Ignore the time that a strategy takes."""

    def run(self, configs: Iterable[Sequence[int]], tuning_options: Any) -> list[Any]:
        points: list[Point] = [tuple(int(rank) for rank in config) for config in configs]
        self.proposals += len(points)
        self.searchspace.checks = 0
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
        """Measure a batch of proposals; return their numbers, None for an invalid proposal.

        Kernel Tuner checks most proposals itself. Its local search does not check the neighbours that
        it makes. With conditional parameters, some are invalid.
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
    """Swaps the global random streams: the strategy has its own while it runs, the caller otherwise.

    The session must not draw from the strategy's streams: a resumed search must take the same path.
    """

    def __init__(self, rng: Generator) -> None:
        self._rng = rng
        python = random.Random(self.integer(2**63))
        numpy = np.random.RandomState(self.integer(2**32))
        self._other = (python.getstate(), numpy.get_state())

    def integer(self, below: int) -> int:
        """Return a random number without drawing from a global stream."""
        return int(self._rng.integers(below))

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Install the strategy's streams for the duration of the context."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    #: Install the caller's streams: the same swap.
    outside = inside

    def _swap(self) -> None:
        current = (random.getstate(), np.random.get_state())
        random.setstate(self._other[0])
        np.random.set_state(self._other[1])
        self._other = current
