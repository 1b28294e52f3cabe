"""Expected improvement of candidates under one fit of the model, and the values given to the model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from autotune.search.surrogate import Encoding, Features, Numbers, Points, Posterior, Vector

#: Quantile at which times are cut off, so that slow regions do not bend the model.
CUT_QUANTILE = 0.5
#: Minimum distance of the cut-off from the best time, as a natural logarithm.
MIN_CUT = 0.2
#: Minimum number of new results before the model is fitted again.
REFIT_MIN = 4
#: The model is fitted again after one new result for each of this many results.
REFIT_EVERY = 8
#: Density of the normal distribution at 0.
_NORMAL_PEAK = 0.39894
#: An uncompiled configuration is proposed if its expected gain is this many times that of a compiled one.
COMPILE_PRICE = 3.0


@dataclass(frozen=True)
class Observation:
    """The result of one configuration, in the form that the model learns."""

    #: Natural logarithm of the time in ms; nan if the configuration failed.
    log_ms: float
    #: Whether the time is a lower bound: the measurement was stopped early.
    is_bound: bool = False
    #: Whether it was measured because it is good on related problems, not proposed by this search.
    is_seed: bool = False

    @classmethod
    def of(cls, time_ms: float | None, is_bound: bool, is_seed: bool = False) -> Observation:
        log_ms = math.nan if time_ms is None else math.log(max(time_ms, 1e-300))
        return cls(log_ms, is_bound, is_seed)


@dataclass(frozen=True)
class Transfer:
    """Points of related problems, and their times relative to the best time of each problem."""

    points: Points
    #: Natural logarithms of relative times; nan if the configuration failed.
    log_times: Vector

    def __len__(self) -> int:
        return len(self.log_times)


@dataclass(frozen=True)
class Targets:
    """Values that the model is conditioned on: logarithms of times, standardized."""

    #: Values with mean 0 and deviation 1; nan if the result is awaited or only a bound is known.
    values: Vector
    #: Lower bounds of values that are nan.
    bounds: Vector
    #: Logarithm that corresponds to the value 0.
    centre: float
    #: Difference of logarithms that corresponds to a difference of 1.
    spread: float


def targets_of(
    own: Numbers,
    results: Mapping[int, Observation],
    transfer: Transfer,
    expected: Vector | None = None,
) -> Targets:
    """Return the values of related problems' points, followed by the values of own configurations.

    Times of a related problem are relative to its best time. Own times are divided by a reference
    time. The reference is the median of own times over the relative times that related problems
    predict (``expected``). Without predictions the reference is the best own time.
    """
    known = [results.get(int(number)) for number in own]
    log_ms = np.array([math.nan if result is None else result.log_ms for result in known])
    is_bound = np.array([result is not None and result.is_bound for result in known], bool)
    failed = np.array([result is not None and math.isnan(result.log_ms) for result in known], bool)
    is_seed = np.array([result is not None and result.is_seed for result in known], bool)
    if len(transfer):
        over = log_ms if expected is None else log_ms - expected
        here = over[~np.isnan(over) & ~is_bound]
        if len(here):
            log_ms = log_ms - (here.min() if expected is None else np.median(here))
        none = np.zeros(len(transfer), bool)
        log_ms = np.concatenate([transfer.log_times, log_ms])
        is_bound = np.concatenate([none, is_bound])
        failed = np.concatenate([np.isnan(transfer.log_times), failed])
        is_seed = np.concatenate([none, is_seed])
    timed = ~np.isnan(log_ms)
    # Seeds are good configurations: if they counted, all others would be above the quantile.
    drawn = timed & ~is_seed
    typical = np.quantile(log_ms[drawn if drawn.any() else timed], CUT_QUANTILE)
    cut = max(float(typical), float(log_ms[timed].min()) + MIN_CUT)
    values = np.minimum(log_ms, cut)
    values[failed] = cut
    is_known = ~np.isnan(values)
    centre, spread = float(values[is_known].mean()), float(values[is_known].std()) + 1e-9
    values = (values - centre) / spread
    bounds = np.full(len(values), -np.inf)
    # A bound at the cut-off counts as a value. A lower bound does so only if there are no times.
    only_bound = is_bound & (log_ms < cut) & bool((~is_bound & ~np.isnan(log_ms)).any())
    bounds[only_bound] = values[only_bound]
    values[only_bound] = np.nan
    return Targets(values, bounds, centre, spread)


class Fit:
    """One fit of the model and its candidates, used until there are enough new results."""

    def __init__(
        self,
        encoding: Encoding,
        posterior: Posterior,
        transfer: Transfer,
        own: Numbers,
        candidates: Numbers,
        compiled: NDArray[np.bool_],
        results: int,
    ) -> None:
        # Results of related problems do not change, and make a fit slower: fit half as often.
        interval = 2 if len(transfer) else 1
        self._until = results + interval * max(REFIT_MIN, results // REFIT_EVERY)
        self._transfer = transfer
        self._numbers = [int(number) for number in own]
        self._candidates = candidates
        self._compiled = compiled
        self._taken = np.zeros(len(candidates), bool)
        self._encoding = encoding
        self._rows = encoding.rows[candidates][:, encoding.varying]
        self._posterior = posterior
        #: Logarithms of relative times that related problems predict for the given points.
        self._expected: list[float] = []
        if len(transfer):
            targets = targets_of(np.zeros(0, np.int64), {}, transfer)
            at_points, at_candidates = posterior.partial_means(targets.values, len(own))
            self._expected = list(at_points * targets.spread + targets.centre)
            #: The same predictions for the candidates.
            self._expected_of: Features = at_candidates * targets.spread + targets.centre

    def is_stale(self, results: int) -> bool:
        return results >= self._until or not self._posterior.has_room or bool(self._taken.all())

    def keep_best(self, results: Mapping[int, Observation], count: int) -> None:
        """Keep compiled candidates, neighbours of the best, and ``count`` with the largest expected improvement."""
        _, own, means = self._predict(results)
        needed = self._compiled | self._neighbours_of_best(own)
        gains = np.where(needed, np.inf, self._gains(own, means))
        count += int(needed.sum())
        if count >= len(gains):
            return
        kept = np.sort(np.argpartition(-gains, count)[:count])
        self._candidates, self._compiled = self._candidates[kept], self._compiled[kept]
        self._taken, self._rows = self._taken[kept], self._rows[kept]
        self._expected_of = self._expected_of[kept]
        self._posterior.keep(kept)

    def condition(self, number: int) -> None:
        """Condition the model on a candidate whose result is awaited; ignore other configurations."""
        place = int(np.searchsorted(self._candidates, number))
        if place == len(self._candidates) or self._candidates[place] != number:
            return
        if not self._taken[place] and self._posterior.has_room:
            self._numbers.append(number)
            if len(self._transfer):
                self._expected.append(float(self._expected_of[place]))
            self._posterior.condition(place)
        self._taken[place] = True

    def choose(
        self, results: Mapping[int, Observation], is_local: bool, compiled: bool | None
    ) -> int:
        """Return the candidate with the largest expected improvement for its price.

        A local choice is the neighbour of the best with the least expected time, if there is a neighbour.
        """
        closed = self._taken
        if compiled is not None and not (closed | (self._compiled != compiled)).all():
            closed = closed | (self._compiled != compiled)
        _, own, means = self._predict(results)
        if is_local:
            neighbours = self._neighbours_of_best(own) & ~closed
            if neighbours.any():
                return int(self._candidates[np.argmin(np.where(neighbours, means, np.inf))])
        gains = self._gains(own, means)
        gains[~self._compiled] /= COMPILE_PRICE
        gains[closed] = -1
        return int(self._candidates[np.argmax(gains)])

    def gain_left(self, results: Mapping[int, Observation]) -> float:
        targets, own, means = self._predict(results)
        gains = self._gains(own, means)
        return float(-np.expm1(-gains[~self._taken].max(initial=0.0) * targets.spread))

    def chance_left(self, results: Mapping[int, Observation], share: float) -> float:
        targets, own, means = self._predict(results)
        if np.isnan(own).all():  # only bounds are known
            return 1.0
        bar = np.nanmin(own) + math.log1p(-share) / targets.spread
        deviations = np.sqrt(self._posterior.variances[~self._taken])
        chances = ndtr((bar - means[~self._taken]) / deviations)
        return float(-np.expm1(np.log1p(-np.minimum(chances, 1 - 1e-9)).sum()))

    def _neighbours_of_best(self, own: Vector) -> NDArray[np.bool_]:
        if np.isnan(own).all():
            return np.zeros(len(self._candidates), bool)
        best = self._numbers[int(np.nanargmin(own))]
        row = self._encoding.rows[best, self._encoding.varying]
        differs_in_one: NDArray[np.bool_] = (self._rows != row).sum(1) == 1
        return differs_in_one

    def _predict(self, results: Mapping[int, Observation]) -> tuple[Targets, Vector, Features]:
        """Return all targets, the values of own configurations, and expected values of candidates."""
        expected = np.array(self._expected) if len(self._transfer) else None
        targets = targets_of(np.array(self._numbers, np.int64), results, self._transfer, expected)
        means = self._posterior.means(targets.values, targets.bounds)
        return targets, targets.values[len(self._transfer) :], means

    def _gains(self, own: Vector, means: Features) -> Features:
        """Return each candidate's expected improvement over the best own value.

        Without own values the comparison is with the smallest expected value.
        """
        best = means[~self._taken].min() if np.isnan(own).all() else np.nanmin(own)
        deviations = np.sqrt(self._posterior.variances)
        steps = (best - means) / deviations
        density = np.exp(-steps * steps / 2) * _NORMAL_PEAK
        gains: Features = deviations * (steps * ndtr(steps) + density)
        return gains
