"""Optuna's samplers, asked for one valid configuration after another: ``optuna:NAME``.

Knows Optuna's ask-and-tell interface, and is the only module that does. The study lives in memory.
A parameter is its rank among the sorted values (`Lattice`): an integer distribution, because an
ordered one lets a sampler generalize; text is categorical where the sampler can use that.

Every proposal is the sampler's own. One that is not valid is told as failed and the sampler is
asked again; one that is known already is told its time and asked again. After `PATIENCE` such
answers in a row, the nearest valid configuration that is not measured (`Ledger.nearest_open`) is
measured in place of that very proposal and told to the sampler as what it is, so that every search
ends.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.kernel.space import Space
from autotune.search.base import Session
from autotune.search.lattice import Lattice, Ledger, Point

if TYPE_CHECKING:
    import optuna
    from numpy.random import Generator

#: Samplers by name, with the one line that listings show.
SAMPLERS = {
    "cmaes": "CMA-ES over ranks",
    "gp": "Gaussian process with expected improvement over ranks",
    "nsgaii": "NSGA-II",
    "nsgaiii": "NSGA-III",
    "qmc": "scrambled Sobol sequence, rounded to ranks",
    "random": "independent uniform values, valid ones kept",
    "tpe": "tree-structured Parzen estimator, multivariate over ranks",
}
#: The package that a sampler needs beside Optuna.
NEEDS = {
    "cmaes": "cmaes",
    "gp": "torch",
    "qmc": "scipy",
}

#: Proposals in a row that may be invalid or known before one is moved to its nearest neighbour.
PATIENCE = 20
#: Proposals known ahead where only time limits a search: as many compile at once while one is timed. A
#: sampler then decides with older news; tpe takes 60 evaluations instead of 34 to 95 % of the best on
#: convolution-RTX_3090, and no more than before on gemm-RTX_3090 (medians of 16 seeds).
WINDOW = 8
#: Samplers that learn only from trials they proposed themselves (by generation): what is measured in
#: place of a proposal is told as that proposal's own value, as evolution strategies repair points.
GENERATIONAL = ("cmaes", "nsgaii", "nsgaiii")


@dataclass
class _Asked:
    """One proposal that waits for its measurement."""

    trial: optuna.trial.Trial
    index: int
    #: Whether `index` stands in place of the proposal.
    moved: bool


def search(
    name: str,
    space: Space,
    session: Session,
    rng: Generator,
    *,
    batch: int = 1,
    window: int | None = None,
) -> None:
    """Run one of `SAMPLERS` until the session ends it or nothing is left to measure.

    Parameters
    ----------
    batch : int
        Configurations measured at a time.
    window : int, optional
        Proposals that are known ahead and hinted, the next one included. Default: 1 where
        evaluations are what is scarce, `WINDOW` where only time is.
    """
    if window is None:
        window = WINDOW if session.evaluations_left is None else 1
    with quiet():
        search = _Search(name, Ledger(Lattice(space), session), int(rng.integers(2**31)))
        search.run(batch, batch + window - 1)


class _Search:
    """One study and what its trials stand for."""

    def __init__(self, name: str, ledger: Ledger, seed: int) -> None:
        import optuna

        self.ledger = ledger
        self.study = optuna.create_study(sampler=_sampler(name, seed))
        self.space = _distributions(ledger.lattice, name)
        self.learns_from_others = name not in GENERATIONAL
        self.waiting: deque[_Asked] = deque()
        self.failed = optuna.trial.TrialState.FAIL
        self.create_trial = optuna.trial.create_trial
        self.worst_ms = 1.0
        self.patience = PATIENCE

    def run(self, batch: int, ahead: int) -> None:
        while True:
            while len(self.waiting) < ahead and (asked := self.ask()) is not None:
                self.waiting.append(asked)
            if not self.waiting:
                return
            self.ledger.session.hint([asked.index for asked in self.waiting])
            batched = [self.waiting.popleft() for _ in range(min(batch, len(self.waiting)))]
            self.ledger.measure(asked.index for asked in batched)
            for asked in batched:
                self.tell(asked)

    def ask(self) -> _Asked | None:
        """The sampler's next proposal that can be measured; None where nothing is left."""
        lattice = self.ledger.lattice
        reserved = {asked.index for asked in self.waiting}
        if len(self.ledger.known) + len(reserved) == len(lattice.space):
            return None
        for attempt in range(self.patience + 1):
            trial = self.study.ask(self.space)
            point = _point(trial.params, lattice)
            index = lattice.find(point)
            if index is not None and index not in self.ledger.known and index not in reserved:
                self.patience = min(2 * self.patience + 1, PATIENCE)
                return _Asked(trial, index, moved=False)
            if attempt < self.patience:
                self.tell_known(trial, index)
        self.patience //= 2
        nearest = self.ledger.nearest_open(point, reserved)
        return None if nearest is None else _Asked(trial, nearest, moved=True)

    def tell_known(self, trial: optuna.trial.Trial, index: int | None) -> None:
        """Answer a proposal that is not valid, known, or being measured."""
        if index is None or index not in self.ledger.known:
            self.study.tell(trial, state=self.failed)
        else:
            self.study.tell(trial, self.value(index))

    def tell(self, asked: _Asked) -> None:
        value = self.value(asked.index)
        if not asked.moved or not self.learns_from_others:
            self.study.tell(asked.trial, value)
            return
        self.study.tell(asked.trial, state=self.failed)
        point = self.ledger.lattice.point(asked.index)
        params = {name: point[int(name.removeprefix("p"))] for name in self.space}
        self.study.add_trial(
            self.create_trial(value=value, params=params, distributions=self.space)
        )

    def value(self, index: int) -> float:
        """What a sampler minimizes; a failure is worse than anything timed so far."""
        time_ms = self.ledger.known[index].cost
        if time_ms is None:
            return 2 * self.worst_ms
        self.worst_ms = max(self.worst_ms, time_ms)
        return time_ms


def _sampler(name: str, seed: int) -> Any:
    from optuna import samplers

    makers: dict[str, tuple[Any, dict[str, bool]]] = {
        "cmaes": (samplers.CmaEsSampler, {"warn_independent_sampling": False}),
        "gp": (samplers.GPSampler, {}),
        "nsgaii": (samplers.NSGAIISampler, {}),
        "nsgaiii": (samplers.NSGAIIISampler, {}),
        "qmc": (samplers.QMCSampler, {"scramble": True, "warn_independent_sampling": False}),
        "random": (samplers.RandomSampler, {}),
        # The liar keeps proposals that wait for their measurement apart.
        "tpe": (samplers.TPESampler, {"multivariate": True, "constant_liar": True}),
    }
    sampler, options = makers[name]
    return sampler(seed=seed, **options)


def _distributions(lattice: Lattice, name: str) -> dict[str, Any]:
    """One distribution for each parameter that has a choice."""
    from optuna.distributions import CategoricalDistribution, IntDistribution

    return {
        f"p{position}": CategoricalDistribution(list(range(size)))
        if lattice.is_text[position] and name != "cmaes"
        else IntDistribution(0, size - 1)
        for position, size in enumerate(lattice.sizes)
        if size > 1
    }


def _point(params: dict[str, Any], lattice: Lattice) -> Point:
    return tuple(int(params.get(f"p{position}", 0)) for position in range(len(lattice.sizes)))


@contextmanager
def quiet() -> Iterator[None]:
    """Optuna logs every study and warns of every experimental argument; we choose both."""
    import optuna

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(level)
