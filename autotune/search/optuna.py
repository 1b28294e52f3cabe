"""Optuna's samplers as strategies: ``optuna:NAME``.

The samplers see the rank of each value among the parameter's sorted values (`Lattice`). A rank is an
integer, and an ordered distribution lets a sampler generalize. Text is categorical for samplers that
support categories.

An invalid proposal is reported to the sampler as failed, a known one with its time. Then the sampler
makes another proposal. After `PATIENCE` such proposals in a row, the nearest open configuration
(`Ledger.nearest_open`) is measured in place of the proposal, so that every search ends.
"""

from __future__ import annotations

import inspect
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.errors import UsageError
from autotune.kernel.space import Space
from autotune.search.base import Session
from autotune.search.lattice import Lattice, Ledger
from autotune.values import Configuration, Value

if TYPE_CHECKING:
    import optuna
    from numpy.random import Generator

#: Samplers by name, with the description that listings show.
SAMPLERS = {
    "cmaes": "CMA-ES over ranks",
    "gp": "Gaussian process with expected improvement over ranks",
    "nsgaii": "NSGA-II",
    "nsgaiii": "NSGA-III",
    "qmc": "scrambled Sobol sequence, rounded to ranks",
    "random": "independent uniform values, valid ones kept",
    "tpe": "tree-structured Parzen estimator, multivariate over ranks",
}
#: The package that a sampler needs in addition to Optuna.
NEEDS = {"cmaes": "cmaes", "gp": "torch", "qmc": "scipy"}

#: Maximum number of invalid or known proposals in a row.
PATIENCE = 20
#: Number of proposals that compile while one is timed, under a time budget. The sampler then decides
#: with older results. To 95 % of the best, tpe takes 60 evaluations instead of 34 on
#: convolution-RTX_3090, and no more than before on gemm-RTX_3090 (medians of 16 seeds).
WINDOW = 8
#: Samplers that learn only from their own trials, generation by generation. If another configuration
#: is measured in place of a proposal, its time is reported as the proposal's time.
GENERATIONAL = ("cmaes", "nsgaii", "nsgaiii")


@dataclass
class _Proposal:
    """A trial that waits for its measurement."""

    trial: optuna.trial.Trial
    index: int
    #: Whether `index` is measured in place of the sampler's own proposal.
    is_moved: bool


#: Types of options by the annotation of the sampler's argument.
_TYPES: dict[str, type[Value]] = {"bool": bool, "int": int, "float": float, "str": str}


def option_types(name: str) -> dict[str, type[Value]]:
    """Return the types of the arguments of one of `SAMPLERS` that are numbers or words."""
    sampler, _ = _maker(name)
    annotations = {
        option: str(parameter.annotation).removesuffix(" | None")
        for option, parameter in inspect.signature(sampler).parameters.items()
    }
    return {
        option: _TYPES[kind]
        for option, kind in annotations.items()
        if kind in _TYPES and option != "seed" and not option.startswith("warn_")
    }


def search(
    name: str,
    space: Space,
    session: Session,
    rng: Generator,
    *,
    batch: int = 1,
    window: int | None = None,
    given: Mapping[str, Value],
) -> None:
    """Run one of `SAMPLERS` until the session ends it or nothing is left to measure.

    ``batch`` configurations are measured at a time. ``window`` proposals are made ahead and hinted to
    compilers: by default 1 under a budget of evaluations and `WINDOW` under a time budget. ``given``
    are the user's options, with types of `option_types`.
    """
    if window is None:
        window = WINDOW if session.evaluations_left is None else 1
    with _quiet():
        seed = int(rng.integers(2**31))
        search = _Sampling(name, Ledger(Lattice(space), session), seed, given)
        search.run(batch, batch + window - 1)


class _Sampling:
    """One study of Optuna and the configurations of its trials."""

    def __init__(self, name: str, ledger: Ledger, seed: int, given: Mapping[str, Value]) -> None:
        import optuna

        self.ledger = ledger
        self.study = optuna.create_study(sampler=_sampler(name, seed, given))
        self.space = _distributions(ledger.lattice, name)
        self.learns_from_others = name not in GENERATIONAL
        self.waiting: deque[_Proposal] = deque()
        self.failed = optuna.trial.TrialState.FAIL
        self.create_trial = optuna.trial.create_trial
        self.worst_ms = 1.0
        self.patience = PATIENCE

    def run(self, batch: int, ahead: int) -> None:
        while True:
            while len(self.waiting) < ahead and (proposal := self.ask()) is not None:
                self.waiting.append(proposal)
            if not self.waiting:
                return
            self.ledger.session.hint([proposal.index for proposal in self.waiting])
            batched = [self.waiting.popleft() for _ in range(min(batch, len(self.waiting)))]
            self.ledger.measure(proposal.index for proposal in batched)
            for proposal in batched:
                self.tell(proposal)

    def ask(self) -> _Proposal | None:
        """Return the sampler's next proposal that can be measured; None if nothing is left."""
        lattice, known = self.ledger.lattice, self.ledger.known
        reserved = {proposal.index for proposal in self.waiting}
        if len(known) + len(reserved) == len(lattice.space):
            return None
        for attempt in range(self.patience + 1):
            trial = self.study.ask(self.space)
            point = [int(trial.params.get(f"p{p}", 0)) for p in range(len(lattice.sizes))]
            index = lattice.find(point)
            if index is not None and index not in known and index not in reserved:
                self.patience = min(2 * self.patience + 1, PATIENCE)
                return _Proposal(trial, index, is_moved=False)
            if attempt < self.patience:
                if index is not None and index in known:
                    self.study.tell(trial, self.value(index))
                else:
                    self.study.tell(trial, state=self.failed)
        self.patience //= 2
        nearest = self.ledger.nearest_open(point, reserved)
        return None if nearest is None else _Proposal(trial, nearest, is_moved=True)

    def tell(self, proposal: _Proposal) -> None:
        value = self.value(proposal.index)
        if not proposal.is_moved or not self.learns_from_others:
            self.study.tell(proposal.trial, value)
            return
        self.study.tell(proposal.trial, state=self.failed)
        point = self.ledger.lattice.point(proposal.index)
        params = {name: point[int(name.removeprefix("p"))] for name in self.space}
        self.study.add_trial(
            self.create_trial(value=value, params=params, distributions=self.space)
        )

    def value(self, index: int) -> float:
        """Return the value that a sampler minimizes; a failure is worse than every time so far."""
        time_ms = self.ledger.known[index].cost
        if time_ms is None:
            return 2 * self.worst_ms
        self.worst_ms = max(self.worst_ms, time_ms)
        return time_ms


def _sampler(name: str, seed: int, given: Mapping[str, Value]) -> Any:
    sampler, options = _maker(name)
    try:
        return sampler(seed=seed, **{**options, **given})
    except Exception as error:
        raise UsageError(f"optuna:{name} fails with {Configuration(given)}: {error}") from error


def _maker(name: str) -> tuple[Any, dict[str, bool]]:
    """Return the class of a sampler, and our defaults of its arguments."""
    from optuna import samplers

    makers: dict[str, tuple[Any, dict[str, bool]]] = {
        "cmaes": (samplers.CmaEsSampler, {"warn_independent_sampling": False}),
        "gp": (samplers.GPSampler, {}),
        "nsgaii": (samplers.NSGAIISampler, {}),
        "nsgaiii": (samplers.NSGAIIISampler, {}),
        "qmc": (samplers.QMCSampler, {"scramble": True, "warn_independent_sampling": False}),
        "random": (samplers.RandomSampler, {}),
        # The constant liar keeps a new proposal away from proposals that wait for their result.
        "tpe": (samplers.TPESampler, {"multivariate": True, "constant_liar": True}),
    }
    return makers[name]


def _distributions(lattice: Lattice, name: str) -> dict[str, Any]:
    from optuna.distributions import CategoricalDistribution, IntDistribution

    return {
        f"p{position}": CategoricalDistribution(list(range(size)))
        if lattice.is_text[position] and name != "cmaes"
        else IntDistribution(0, size - 1)
        for position, size in enumerate(lattice.sizes)
        if size > 1
    }


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Optuna, which logs every study and warns of every experimental argument."""
    import optuna

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(level)
