"""Which configuration to measure next: expected improvement over the valid ones, by a Gaussian process.

Knows what was measured and what is awaited; neither measures nor waits. Everything is a number of an
enumerated valid configuration, so that no invalid proposal exists.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from autotune.kernel.space import Space
from autotune.search.encoding import Encoding, Numbers
from autotune.search.surrogate import Covariance, Points, Posterior, fitted

if TYPE_CHECKING:
    from numpy.random import Generator

#: Space-filling configurations before the first model, and the random ones they are chosen from.
START, POOL = 8, 500
#: All unmeasured configurations are candidates up to this many; beyond, as many random ones and
#: those within two parameters of the best `TOP`.
CANDIDATES = 4000
TOP = 5
#: Values above this quantile count as it, so that bad regions do not bend the model; but nothing
#: that is less than `LEAST` (of a logarithm) above the best.
QUANTILE, LEAST = 0.5, 0.2
#: Points of a fit, and points conditioned on: the best half of what is measured, others at random.
FIT, GIVEN = 150, 300
#: One of so many proposals is the neighbour of the best of which least is expected.
LOCAL_EVERY = 8
#: A new fit when so many results, and this part of all, have come since the last.
REFIT_LEAST, REFIT_EVERY = 4, 8
#: Proposals that one fit is used for at most.
SPARE = 128
#: Density of the normal distribution at 0.
_NORMAL = 0.39894
#: Fewest values before there is a model.
FEWEST = 3


@dataclass
class EndRule:
    """When a search may end: a gain has been unlikely for as long as it took to become so.

    The model is surest of itself where it has not looked: the first time that it sees no chance is too
    early in every fifth search (docs/search.md).
    """

    #: A gain is this share of the best time, and unlikely where its probability is less than `risk`.
    share: float = 0.01
    risk: float = 0.05
    #: The search may end at so many times the evaluations after which a gain became unlikely.
    patience: float = 2.0
    _unlikely_since: int | None = None

    def ends(self, proposer: Proposer) -> bool:
        """Whether the search may end; to be asked after each result, it looks at each fourth."""
        told = len(proposer.outcomes)
        if told % 4:
            return False
        if proposer.chance_left(self.share) >= self.risk:
            self._unlikely_since = None
            return False
        self._unlikely_since = self._unlikely_since or told
        return told >= self.patience * self._unlikely_since


@dataclass(frozen=True)
class Outcome:
    """What measuring one configuration said."""

    #: Logarithm of the time; nan where it failed.
    log_ms: float
    #: Whether the time is only known to be at least that.
    is_bound: bool = False


class Proposer:
    """Proposes configurations of a space, each once.

    Parameters
    ----------
    space : Space
        The valid configurations.
    rng : Generator
        The only source of chance.
    """

    def __init__(self, space: Space, rng: Generator) -> None:
        self._encoding = Encoding(space)
        self._rng = rng
        #: Neither measured nor proposed.
        self._open = np.ones(len(space), bool)
        self._open_count = len(space)
        self._start: list[int] | None = None
        self._proposed = 0
        self._timed = 0
        #: What was told, by number, in order.
        self.outcomes: dict[int, Outcome] = {}
        #: Proposed and not told, in order.
        self.awaited: dict[int, None] = {}
        self._covariance = Covariance.prior(self._encoding.width)
        self._view: _View | None = None

    @property
    def is_open(self) -> bool:
        """Whether a configuration is left to propose."""
        return self._open_count > 0

    def tell(self, number: int, time_ms: float | None, is_bound: bool = False) -> None:
        """Say what came of a configuration, proposed or not.

        Parameters
        ----------
        number : int
            Of the configuration in the space.
        time_ms : float or None
            None where it failed.
        is_bound : bool
            Whether the time is at least that: it was stopped early.
        """
        self.claim(number)
        self.awaited.pop(number)
        log_ms = math.nan if time_ms is None else math.log(max(time_ms, 1e-300))
        self.outcomes[number] = Outcome(log_ms, is_bound)
        self._timed += time_ms is not None

    def claim(self, number: int) -> None:
        """Take a configuration as proposed: its result is awaited."""
        if number not in self.outcomes:
            self._open_count -= int(self._open[number])
            self._open[number] = False
        self.awaited[number] = None
        if self._view is not None:
            self._view.condition(number)

    def ask(self) -> int | None:
        """The number of the next configuration to measure; None where all are proposed."""
        if not self._open_count:
            return None
        number = self._next_of_start()
        if number is None:
            number = self._likeliest() if self._timed >= FEWEST else self._any()
        self.claim(number)
        self._proposed += 1
        return number

    def chance_left(self, share: float = 0.01) -> float:
        """Probability that a configuration not yet proposed is faster than the best by a share of it.

        Candidates are taken as independent, so that it is rather too large. 1 while there is no
        model, 0 where nothing is left.
        """
        if not self.is_open:
            return 0.0
        if self._timed < FEWEST:
            return 1.0
        return self._current_view().chance_left(self.outcomes, share)

    def _next_of_start(self) -> int | None:
        if self._start is None:
            self._start = self._spread(START)
        while self._start:
            number = self._start.pop(0)
            if self._open[number]:
                return number
        return None

    def _spread(self, count: int) -> list[int]:
        """Configurations far from each other and from what is known, of some random ones."""
        pool = self._rng.permutation(self._some(POOL))
        features = self._encoding.features(pool)
        known = [*self.outcomes, *self.awaited]
        gaps = np.full(len(pool), np.inf)
        for centre in self._encoding.features(np.array(known, np.int64)):
            gaps = np.minimum(gaps, np.abs(features - centre).sum(1))
        chosen = []
        for _ in range(min(count, len(pool))):
            place = int(np.argmax(gaps))
            chosen.append(int(pool[place]))
            gaps = np.minimum(gaps, np.abs(features - features[place]).sum(1))
        return chosen

    def _some(self, count: int) -> Numbers:
        """Open configurations at random, or all in order where there are no more."""
        free = np.flatnonzero(self._open)
        return free if len(free) <= count else self._rng.choice(free, count, replace=False)

    def _any(self) -> int:
        return int(self._rng.choice(self._some(1)))

    def _likeliest(self) -> int:
        local = self._proposed % LOCAL_EVERY == LOCAL_EVERY - 1
        return self._current_view().choose(self.outcomes, local)

    def _current_view(self) -> _View:
        if self._view is None or self._view.is_stale(len(self.outcomes)):
            self._view = self._new_view()
        return self._view

    def _new_view(self) -> _View:
        """Fit anew, and choose anew what is conditioned on and what is considered."""
        numbers = np.array(list(self.outcomes), np.int64)
        log_ms = np.array([outcome.log_ms for outcome in self.outcomes.values()])
        is_bound = np.array([outcome.is_bound for outcome in self.outcomes.values()])
        ranked = numbers[np.lexsort((log_ms, is_bound, np.isnan(log_ms)))]
        given = self._best_and_others(ranked, GIVEN)
        points = _points(self._encoding, given)
        values = _told(given, self.outcomes).values
        for_fit = self._best_and_others(np.flatnonzero(~np.isnan(values)), FIT)
        self._covariance = fitted(self._covariance, points[for_fit], values[for_fit])
        best = ranked[:TOP]
        candidates = [self._some(CANDIDATES)]
        if len(candidates[0]) < self._open_count:
            near = np.unique(
                np.concatenate([self._encoding.near(int(number), 2) for number in best])
            )
            near = near[self._open[near]]
            if len(near) > CANDIDATES:
                near = self._rng.choice(near, CANDIDATES, replace=False)
            candidates.append(near)
        view = _View(
            self._covariance,
            self._encoding,
            given,
            np.unique(np.concatenate([*candidates, np.array(list(self.awaited), np.int64)])),
            len(self.outcomes),
        )
        for number in self.awaited:
            view.condition(number)
        return view

    def _best_and_others(self, ranked: Numbers, limit: int) -> Numbers:
        if len(ranked) <= limit:
            return ranked
        best = limit // 2
        others = self._rng.choice(ranked[best:], limit - best, replace=False)
        return np.concatenate([ranked[:best], np.sort(others)])


def _points(encoding: Encoding, numbers: Numbers) -> Points:
    return Points(encoding.features(numbers), encoding.indicators(numbers))


@dataclass(frozen=True)
class _Told:
    """What the model is told of some configurations: logarithms, moved and scaled."""

    #: Mean 0, deviation 1; nan where awaited or only a bound is known.
    values: NDArray[np.float64]
    #: What values that are nan are at least.
    bounds: NDArray[np.float64]
    #: Of a unit in logarithms.
    spread: float


def _told(numbers: Numbers, outcomes: dict[int, Outcome]) -> _Told:
    known = [outcomes.get(int(number)) for number in numbers]
    log_ms = np.array([math.nan if o is None else o.log_ms for o in known])
    is_bound = np.array([o is not None and o.is_bound for o in known])
    failed = np.array([o is not None and math.isnan(o.log_ms) for o in known])
    timed = log_ms[~np.isnan(log_ms)]
    cut = max(float(np.quantile(timed, QUANTILE)), float(timed.min()) + LEAST)
    values = np.minimum(log_ms, cut)
    values[failed] = cut
    told = ~np.isnan(values)
    centre, spread = values[told].mean(), float(values[told].std()) + 1e-9
    values = (values - centre) / spread
    bounds = np.full(len(values), -np.inf)
    # At the cut a bound is as good as a value, and where there is nothing else it has to be.
    only = is_bound & (log_ms < cut) & bool((~is_bound & ~np.isnan(log_ms)).any())
    bounds[only] = values[only]
    values[only] = np.nan
    return _Told(values, bounds, spread)


class _View:
    """One fit's candidates, and what is believed of them until the next."""

    def __init__(
        self,
        covariance: Covariance,
        encoding: Encoding,
        given: Numbers,
        candidates: Numbers,
        told: int,
    ) -> None:
        self._until = told + max(REFIT_LEAST, told // REFIT_EVERY)
        self._numbers = [int(number) for number in given]
        self._candidates = candidates
        self._taken = np.zeros(len(candidates), bool)
        self._encoding = encoding
        self._rows = encoding.rows[candidates][:, encoding.varying]
        self._posterior = Posterior(
            covariance, _points(encoding, given), _points(encoding, candidates), SPARE
        )

    def is_stale(self, told: int) -> bool:
        return told >= self._until or not self._posterior.has_room or bool(self._taken.all())

    def condition(self, number: int) -> None:
        """Take a candidate as awaited; what is none is left to the next view."""
        place = int(np.searchsorted(self._candidates, number))
        if place == len(self._candidates) or self._candidates[place] != number:
            return
        if not self._taken[place] and self._posterior.has_room:
            self._numbers.append(number)
            self._posterior.condition(place)
        self._taken[place] = True

    def choose(self, outcomes: dict[int, Outcome], local: bool) -> int:
        """The candidate of most expected improvement, or the neighbour of the best of least time."""
        told = _told(np.array(self._numbers), outcomes)
        means = self._posterior.means(told.values, told.bounds)
        best = int(np.nanargmin(told.values))
        if local:
            row = self._encoding.rows[self._numbers[best], self._encoding.varying]
            beside = ((self._rows != row).sum(1) == 1) & ~self._taken
            if beside.any():
                return int(self._candidates[np.argmin(np.where(beside, means, np.inf))])
        deviations = np.sqrt(self._posterior.variances)
        gains = (told.values[best] - means) / deviations
        scores = deviations * (gains * ndtr(gains) + np.exp(-gains * gains / 2) * _NORMAL)
        scores[self._taken] = -1
        return int(self._candidates[np.argmax(scores)])

    def chance_left(self, outcomes: dict[int, Outcome], share: float) -> float:
        """See `Proposer.chance_left`."""
        told = _told(np.array(self._numbers), outcomes)
        means = self._posterior.means(told.values, told.bounds)[~self._taken]
        bar = np.nanmin(told.values) + math.log1p(-share) / told.spread
        chances = ndtr((bar - means) / np.sqrt(self._posterior.variances[~self._taken]))
        return float(-np.expm1(np.log1p(-np.minimum(chances, 1 - 1e-9)).sum()))
