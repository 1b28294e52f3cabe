"""Chooses the next configuration to measure: expected improvement under a Gaussian process.

A configuration is its number among the valid ones, so that no proposal is invalid. The proposer
knows results and awaited configurations; it neither measures nor waits.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from autotune.kernel.space import Space
from autotune.measure.measurement import Measurement, Status
from autotune.search.acquisition import Fit, Observation, Transfer, targets_of
from autotune.search.base import MIN_RESULTS, RelatedProblem
from autotune.search.surrogate import (
    Covariance,
    Encoding,
    Numbers,
    Points,
    Posterior,
    fitted,
    one_thread,
)

if TYPE_CHECKING:
    from numpy.random import Generator

#: Number of space-filling configurations before the first model.
START = 8
#: Number of random configurations from which the space-filling ones are chosen.
START_POOL = 500
#: Number of space-filling configurations that each related problem saves.
START_SAVED = 2
#: Number of random candidates; all open configurations are candidates if there are no more than this.
MAX_CANDIDATES = 4000
#: Configurations within two changed parameters of this many best ones are candidates, too.
TOP = 5
#: Number of random candidates with related problems, whose points make the model large.
MAX_CANDIDATES_RELATED = 1000
#: Number of candidates kept by expected improvement, in addition to compiled ones and neighbours of the best.
KEPT_CANDIDATES = 500
#: Number of points that the covariance is fitted to: one half are the best, the others are random.
MAX_FITTED = 150
#: Number of points that the model is conditioned on, chosen in the same way.
MAX_GIVEN = 300
#: Every eighth proposal is the neighbour of the best with the least expected time. With related
#: problems it is every fourth: they tell already which regions are good.
LOCAL_EVERY = 8
#: Maximum number of proposals by one fit.
MAX_PROPOSALS = 128
#: Minimum number of times for a model.
MIN_TIMES = 3
#: Maximum number of related problems, nearest first.
MAX_RELATED = 8
#: Number of best configurations from each related problem; as many others are drawn at random.
BEST_OF_RELATED = 24


@dataclass
class EndRule:
    """The rule that ends a search: a gain has stayed unlikely while the number of results doubled.

    The model is overconfident in regions without results. In one of five searches it sees no chance
    of a gain too early (docs/search.md).
    """

    #: The smallest gain that counts, as a share of the best time.
    share: float = 0.01
    #: A gain is unlikely if its probability is below this.
    risk: float = 0.05
    #: The search may end at this factor times the number of results at which a gain became unlikely.
    patience: float = 2.0
    #: Minimum number of results: with few of its own, the model is overconfident.
    least: int = MIN_RESULTS
    _unlikely_since: int | None = None
    _checked_at: int = 0

    def ends(self, proposer: Proposer) -> bool:
        """Return whether the search may end; check at every fourth result."""
        results = len(proposer.observations)
        if results % 4 or results == self._checked_at:
            return False
        self._checked_at = results
        if proposer.chance_left(self.share) >= self.risk:
            self._unlikely_since = None
            return False
        self._unlikely_since = self._unlikely_since or results
        return results >= max(self.least, self.patience * self._unlikely_since)


class Proposer:
    """Proposes configurations of a space, each once.

    Parameters
    ----------
    space : Space
        The valid configurations.
    rng : Generator
        The only source of chance.
    features : tuple of float, optional
        Coordinates of the problem.
    related : sequence of RelatedProblem, optional
        Problems with the same number of coordinates. Each coordinate is a feature of the model, and its
        fitted length decides how much related problems count.
    held : int
        Number of own results before the model learns the seeds. Good seeds would keep the search near
        them for too long.
    compiled : collection of int
        Numbers of configurations that need no compiling.
    start : int
        Number of space-filling configurations before the first model.
    """

    def __init__(
        self,
        space: Space,
        rng: Generator,
        features: tuple[float, ...] = (),
        related: Sequence[RelatedProblem] = (),
        held: int = 0,
        compiled: Collection[int] = (),
        start: int = START,
    ) -> None:
        self._held, self._spread_first = held, start
        self._encoding = Encoding(space)
        self._rng = rng
        self._features = features
        nearest = sorted(related, key=lambda other: math.dist(other.features, features))
        relative = ((other.features, _relative(other)) for other in nearest)
        self._related = [(at, found) for at, found in relative if found][:MAX_RELATED]
        self._compiled = np.zeros(len(space), bool)
        self._compiled[list(compiled)] = True
        #: True for configurations that are neither measured nor proposed.
        self._open = np.ones(len(space), bool)
        self._open_count = len(space)
        self._start: list[int] | None = None
        self._proposed = 0
        #: Number of times among results of own proposals.
        self._own_timed = 0
        #: Number of times among all results.
        self._timed = 0
        #: Results by number, in order.
        self.observations: dict[int, Observation] = {}
        #: Proposed configurations without a result, in order.
        self.awaited: dict[int, None] = {}
        self._covariance = Covariance.prior(self._encoding.width + len(features))
        self._fit: Fit | None = None

    @property
    def is_open(self) -> bool:
        """True if a configuration is left to propose."""
        return self._open_count > 0

    def learn(self, number: int, measurement: Measurement) -> None:
        """Learn a measurement of a configuration, proposed or not."""
        self.tell(number, measurement.cost, measurement.status is Status.STOPPED_EARLY)

    def tell(self, number: int, time_ms: float | None, is_bound: bool = False) -> None:
        """Learn the time of a configuration: None if it failed, a lower bound if it was stopped early."""
        is_seed = bool(self._open[number])
        self.claim(number)
        self.awaited.pop(number)
        self.observations[number] = Observation.of(time_ms, is_bound, is_seed)
        self._timed += time_ms is not None
        self._own_timed += time_ms is not None and not is_seed

    def claim(self, number: int) -> None:
        """Mark a configuration as proposed: its result is awaited."""
        if number not in self.observations:
            self._open_count -= int(self._open[number])
            self._open[number] = False
        self.awaited[number] = None
        if self._fit is not None:
            self._fit.condition(number)

    @property
    def has_compiled(self) -> bool:
        """True if the model can choose among compiled configurations."""
        return self._has_model and bool((self._compiled & self._open).any())

    def ask(self, compiled: bool | None = None) -> int | None:
        """Return the number of the next configuration to measure, or None if all are proposed.

        ``compiled`` restricts the choice to compiled configurations, or to uncompiled ones, if there are
        any. By default both compete, and the uncompiled pay `COMPILE_PRICE`.
        """
        if not self._open_count:
            return None
        number = None if compiled else self._next_of_start()
        if number is None:
            number = self._best_candidate(compiled) if self._has_model else self._random_number()
        self.claim(number)
        self._proposed += 1
        return number

    def chance_left(self, share: float = 0.01) -> float:
        """Return the probability that an open configuration is faster than the best by a share.

        Candidates count as independent, so that the probability is too large rather than too small. It
        is 1 before there is a model of all times, and 0 if no configuration is open.
        """
        if not self.is_open:
            return 0.0
        if not self._knows_all_timed:
            return 1.0
        with one_thread():
            return self._current_fit().chance_left(self.observations, share)

    def gain_left(self) -> float:
        """Return the expected improvement by the next proposal, as a share of the best time.

        It is infinite before there is a model of all times, and 0 if no configuration is open.
        """
        if not self.is_open:
            return 0.0
        if not self._knows_all_timed:
            return math.inf
        with one_thread():
            return self._current_fit().gain_left(self.observations)

    @property
    def _knows_all_timed(self) -> bool:
        return bool(self._timed) and self._has_model and not self._holds_seeds_back

    @property
    def _has_model(self) -> bool:
        timed = self._own_timed if self._holds_seeds_back else self._timed
        return bool(self._related) or timed >= MIN_TIMES

    @property
    def _holds_seeds_back(self) -> bool:
        """True while the model does not learn the seeds."""
        return self._own_timed < self._held

    @property
    def _learnt(self) -> dict[int, Observation]:
        """The results that the model learns: without the seeds while they are held back or if they mislead."""
        if not self._holds_seeds_back and self._are_seeds_good:
            return self.observations
        return {n: result for n, result in self.observations.items() if not result.is_seed}

    @property
    def _are_seeds_good(self) -> bool:
        """True if the best seed is faster than half of the own proposals."""
        timed = [result for result in self.observations.values() if not math.isnan(result.log_ms)]
        seeds = [result.log_ms for result in timed if result.is_seed]
        own = [result.log_ms for result in timed if not result.is_seed]
        return not (self._held and seeds and own) or min(seeds) < float(np.median(own))

    def _next_of_start(self) -> int | None:
        if self._start is None:
            self._start = self._space_filling(
                max(0, self._spread_first - START_SAVED * len(self._related))
            )
        while self._start:
            number = self._start.pop(0)
            if self._open[number]:
                return number
        return None

    def _space_filling(self, count: int) -> list[int]:
        pool = self._rng.permutation(self._random_open(START_POOL))
        features = self._encoding.features(pool)
        known = [*self._learnt, *self.awaited]
        gaps = np.full(len(pool), np.inf)
        for centre in self._encoding.features(np.array(known, np.int64)):
            gaps = np.minimum(gaps, np.abs(features - centre).sum(1))
        chosen = []
        for _ in range(min(count, len(pool))):
            place = int(np.argmax(gaps))
            chosen.append(int(pool[place]))
            gaps = np.minimum(gaps, np.abs(features - features[place]).sum(1))
        return chosen

    def _random_open(self, count: int) -> Numbers:
        return self._at_most(np.flatnonzero(self._open), count)

    def _random_number(self) -> int:
        return int(self._rng.choice(self._random_open(1)))

    def _best_candidate(self, compiled: bool | None) -> int:
        every = LOCAL_EVERY // 2 if self._related else LOCAL_EVERY
        is_local = self._timed > 0 and self._proposed % every == every - 1
        with one_thread():
            return self._current_fit().choose(self.observations, is_local, compiled)

    def _current_fit(self) -> Fit:
        if self._fit is None or self._fit.is_stale(len(self.observations)):
            self._fit = self._new_fit()
        return self._fit

    def _new_fit(self) -> Fit:
        """Fit the covariance, and choose the points to condition on and the candidates."""
        transfer = self._transfer
        own = self._best_and_others(_ranked(self._learnt), MAX_GIVEN)
        given = Points.joined(transfer.points, self._points(own, self._features))
        values = targets_of(own, self.observations, transfer).values
        known = np.flatnonzero(~np.isnan(values))
        mine, others = known[known >= len(transfer)], known[known < len(transfer)]
        share = MAX_FITTED // 2 if len(transfer) else MAX_FITTED
        if len(others) > MAX_FITTED - min(len(mine), share):
            others = np.sort(self._rng.choice(others, MAX_FITTED - share, replace=False))
        for_fit = np.concatenate([others, self._best_and_others(mine, share)])
        self._covariance = fitted(self._covariance, given[for_fit], values[for_fit])
        candidates = np.unique(
            np.concatenate([self._candidates(own[:TOP]), np.array(list(self.awaited), np.int64)])
        )
        posterior = Posterior(
            self._covariance, given, self._points(candidates, self._features), MAX_PROPOSALS
        )
        fit = Fit(
            self._encoding,
            posterior,
            transfer,
            own,
            candidates,
            self._compiled[candidates],
            len(self.observations),
        )
        for number in self.awaited:
            fit.condition(number)
        if len(transfer):
            fit.keep_best(self.observations, KEPT_CANDIDATES)
        return fit

    @cached_property
    def _transfer(self) -> Transfer:
        points, log_times = [self._points(np.zeros(0, np.int64), self._features)], [np.zeros(0)]
        for features, found in self._related:
            chosen = self._best_and_others(_ranked(found), 2 * BEST_OF_RELATED)
            points.append(self._points(chosen, features))
            log_times.append(np.array([found[int(number)].log_ms for number in chosen]))
        return Transfer(Points.joined(*points), np.concatenate(log_times))

    def _points(self, numbers: Numbers, problem: Sequence[float]) -> Points:
        features = self._encoding.features(numbers)
        repeated = np.tile(np.array(problem, np.float32), (len(numbers), 1))
        return Points(np.hstack([features, repeated]), self._encoding.indicators(numbers))

    def _candidates(self, best: Numbers) -> Numbers:
        most = MAX_CANDIDATES_RELATED if self._related else MAX_CANDIDATES
        some = self._random_open(most)
        if len(some) == self._open_count:
            return some
        neighbours, near = (self._near(best, steps) for steps in (1, 2))
        compiled = np.flatnonzero(self._compiled & self._open)
        return np.concatenate(
            [some, neighbours, self._at_most(near, most), self._at_most(compiled, most)]
        )

    def _near(self, best: Numbers, steps: int) -> Numbers:
        found = [self._encoding.near(int(number), steps) for number in best]
        near: Numbers = np.unique(np.concatenate([np.zeros(0, np.int64), *found]))
        return near[self._open[near]]

    def _at_most(self, numbers: Numbers, most: int) -> Numbers:
        return numbers if len(numbers) <= most else self._rng.choice(numbers, most, replace=False)

    def _best_and_others(self, ranked: Numbers, limit: int) -> Numbers:
        if len(ranked) <= limit:
            return ranked
        best = limit // 2
        others = self._rng.choice(ranked[best:], limit - best, replace=False)
        return np.concatenate([ranked[:best], np.sort(others)])


def _ranked(results: Mapping[int, Observation]) -> Numbers:
    """Return numbers, fastest first; bounds come after times, failures last."""
    numbers = np.array(list(results), np.int64)
    log_ms = np.array([result.log_ms for result in results.values()])
    is_bound = np.array([result.is_bound for result in results.values()])
    return numbers[np.lexsort((log_ms, is_bound, np.isnan(log_ms)))]


def _relative(related: RelatedProblem) -> dict[int, Observation]:
    found = {
        number: Observation.of(row.cost, row.status is Status.STOPPED_EARLY)
        for number, row in related.measurements.items()
    }
    times = [o.log_ms for o in found.values() if not (o.is_bound or math.isnan(o.log_ms))]
    if not times:
        return {}
    best = min(times)
    return {n: Observation(o.log_ms - best, o.is_bound) for n, o in found.items()}
