"""What the search's model makes of what was measured: how well it predicts, and from which parameters.

Knows the measurements of one problem; asks for none and lays nothing out.

Everything is left out before it is predicted: configurations one by one, parameters one by one. So
no configuration is asked about that was not measured, and constraints need not be known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dtrtri
from scipy.special import log_ndtr

from autotune.kernel.space import Rows, Space
from autotune.measure.measurement import Measurement, Status
from autotune.search.encoding import Encoding
from autotune.search.proposals import FIT, GIVEN, LEAST, QUANTILE
from autotune.search.surrogate import Covariance, Points, Vector, fitted
from autotune.values import Configuration, Value

#: Fewer configurations that were timed say nothing of a model with a length for each parameter.
FEWEST = 12
#: Share of the variance below which a model is no better than chance with so few points.
LEAST_EXPLAINED = 0.1
#: Deviations of the normal distribution that hold 95 %.
_DEVIATIONS = 1.959964
#: Noise is at least what was fitted, or one of these where parameters are left out: what they did
#: is noise to a model that does not know them. Variances; the values' is 1.
_NOISES = (0.03, 0.1, 0.3, 0.6)


@dataclass(frozen=True)
class LeftOut:
    """One configuration as the model predicts it from all others."""

    measurement: Measurement
    predicted_ms: float
    #: Of a measurement, with 95 %.
    interval_ms: tuple[float, float]
    #: Deviations that it took longer than predicted; None of what has no value to compare with:
    #: what failed, and bounds.
    surprise: float | None

    @property
    def is_within(self) -> bool:
        """Whether the measured time lies in the interval."""
        return self.surprise is not None and abs(self.surprise) <= _DEVIATIONS


@dataclass(frozen=True)
class Importance:
    """What the model owes to one parameter, as shares of the variance of log time, 0 to 1.

    ``alone`` is what is explained by a model that knows this parameter only, ``total`` what is lost
    by one that knows all but this: predictiveness as a measure of importance (Williamson, Gilbert,
    Carone and Simon, "Nonparametric variable importance assessment using machine learning
    techniques", Biometrics 77(1), 2021). Where parameters are chosen independently they are Sobol's
    first-order and total effect, and interactions are in the total. Where constraints tie
    parameters together, what each of several tells is in the ``total`` of none and may be in the
    ``alone`` of all.
    """

    parameter: str
    alone: float
    total: float


@dataclass(frozen=True)
class Insight:
    """How well the times of one problem can be predicted, and from what."""

    #: In the order in which they were given, those that failed too.
    left_out: tuple[LeftOut, ...]
    #: Slower ones count as this, and what failed does.
    slow_ms: float
    #: Share of the variance of log time that is predicted, at most 1: below 0 the mean does better.
    explained: float
    #: Of predicted and measured times, by Spearman.
    rank_correlation: float
    #: Share of the measured times that lie in their intervals.
    within: float
    #: Most important first; empty where the model explains too little.
    importances: tuple[Importance, ...]


def insight(measurements: Sequence[Measurement]) -> Insight | None:
    """Fit the search's model to what was measured, and leave out one after the other.

    Outcomes count as the search counts them: what is slower than the median, though not within 20 %
    of the best, counts as that, what failed as just as bad, and what was stopped early as what is
    expected of it given that it takes at least so long. Of more than `proposals.GIVEN` it takes the
    best half and others at random, the same each time.

    Parameters
    ----------
    measurements : sequence of Measurement
        Of one problem, alike measured. Configurations with other parameters than the last's are
        left out.

    Returns
    -------
    Insight or None
        None where fewer than `FEWEST` have a time that is more than a bound, all times are equal, or
        no parameter varies.
    """
    names = set(measurements[-1].configuration) if measurements else set()
    found = {m.configuration: m for m in measurements if set(m.configuration) == names}
    chosen = _chosen(list(found.values()))
    told = _told(chosen)
    if told is None:
        return None
    parameters = _parameters([measurement.configuration for measurement in chosen])
    if not parameters:
        return None
    model = _Model.fitted_to(parameters, told)
    known = model.left_out(range(len(parameters)))
    explained = model.explained(known)
    is_timed = told.is_value & ~told.failed
    left_out = tuple(
        LeftOut(
            measurement,
            told.time_ms(mean),
            (told.time_ms(mean - off), told.time_ms(mean + off)),
            surprise=float((value - mean) / off * _DEVIATIONS) if comparable else None,
        )
        for measurement, mean, off, value, comparable in zip(
            chosen,
            known.means,
            _DEVIATIONS * known.deviations,
            model.values,
            is_timed,
            strict=True,
        )
    )
    return Insight(
        left_out,
        slow_ms=told.time_ms(told.cut),
        explained=explained,
        rank_correlation=_rank_correlation(model.values[is_timed], known.means[is_timed]),
        within=sum(each.is_within for each in left_out) / int(is_timed.sum()),
        importances=_importances(model, explained) if explained >= LEAST_EXPLAINED else (),
    )


def _importances(model: _Model, explained: float) -> tuple[Importance, ...]:
    every = range(len(model.parameters))
    found = []
    for place, parameter in enumerate(model.parameters):
        others = [other for other in every if other != place]
        alone = max(0.0, model.explained(model.left_out([place])))
        # One that does worse than the mean has lost what was explained, and no more.
        without = max(0.0, model.explained(model.left_out(others))) if others else 0.0
        found.append(Importance(parameter.name, alone, max(0.0, explained - without)))
    return tuple(sorted(found, key=lambda importance: (-importance.total, -importance.alone)))


def _chosen(found: list[Measurement]) -> list[Measurement]:
    """All, or the best half and others at random, in their order."""
    if len(found) <= GIVEN:
        return found
    ranked = sorted(range(len(found)), key=lambda place: _rank(found[place]))
    best = GIVEN // 2
    others = np.random.default_rng(0).choice(ranked[best:], GIVEN - best, replace=False)
    return [found[place] for place in sorted([*ranked[:best], *others])]


def _rank(measurement: Measurement) -> tuple[bool, bool, float]:
    """In order, the best are first."""
    time_ms = measurement.median_ms
    return time_ms is None, measurement.status is not Status.OK, time_ms or 0.0


# ---------------------------------------------------------------------- what the model is told


@dataclass(frozen=True)
class _Told:
    """Logarithms of times as the search counts them, mean 0, deviation 1."""

    #: A bound where `is_value` is not.
    values: Vector
    is_value: NDArray[np.bool_]
    failed: NDArray[np.bool_]
    #: Of what is slow.
    cut: float
    centre: float
    spread: float

    def time_ms(self, value: float) -> float:
        """The time that a value stands for, kept where numbers end."""
        return math.exp(min(700.0, max(-700.0, self.centre + self.spread * float(value))))


def _told(chosen: Sequence[Measurement]) -> _Told | None:
    """None where too little is known, or nothing differs."""
    log_ms = np.array(
        [math.nan if m.median_ms is None else math.log(max(m.median_ms, 1e-300)) for m in chosen]
    )
    failed = np.isnan(log_ms)
    timed = log_ms[~failed]
    if len(timed) < FEWEST or np.ptp(timed) < 1e-9:
        return None
    cut = max(float(np.quantile(timed, QUANTILE)), float(timed.min()) + LEAST)
    values = np.where(failed, cut, np.minimum(log_ms, cut))
    is_early = np.array([m.status is Status.STOPPED_EARLY for m in chosen])
    # At the cut a bound is as good as a value, and where there is nothing else it has to be.
    is_value = ~(is_early & (values < cut)) | bool((is_early | failed).all())
    centre, spread = float(values[is_value].mean()), float(values[is_value].std())
    if (is_value & ~failed).sum() < FEWEST or spread < 1e-9:
        return None
    scaled = (values - centre) / spread
    return _Told(scaled, is_value, failed, (cut - centre) / spread, centre, spread)


# ---------------------------------------------------------------------- parameters and their model


@dataclass(frozen=True)
class _Parameter:
    """What the model sees of one parameter, configuration by configuration."""

    name: str
    features: NDArray[np.float64]
    indicators: NDArray[np.float64]


def _parameters(configurations: Sequence[Configuration]) -> list[_Parameter]:
    """Those that have several values here, encoded as the search encodes them."""
    found = []
    for name in configurations[0]:
        values = dict.fromkeys(configuration[name] for configuration in configurations)
        if len(values) > 1:
            found.append(_encoded(name, values, [each[name] for each in configurations]))
    return found


def _encoded(name: str, values: Mapping[Value, None], column: Sequence[Value]) -> _Parameter:
    rows: Rows = np.arange(len(values), dtype=np.int32)[:, None]
    encoding = Encoding(Space({name: tuple(values)}, rows))
    number = {value: place for place, value in enumerate(values)}
    numbers = np.array([number[value] for value in column], np.int64)
    return _Parameter(
        name,
        encoding.features(numbers).astype(float),
        encoding.indicators(numbers).astype(float),
    )


@dataclass(frozen=True)
class _Predicted:
    """Every configuration, from all others."""

    means: Vector
    #: Of a measurement.
    deviations: Vector


@dataclass(frozen=True)
class _Model:
    """A Gaussian process that can be asked what it would know without some of the parameters."""

    parameters: Sequence[_Parameter]
    covariance: Covariance
    #: What was told; of what is only a bound, what is expected given the bound.
    values: Vector
    is_value: NDArray[np.bool_]

    @classmethod
    def fitted_to(cls, parameters: Sequence[_Parameter], told: _Told) -> _Model:
        """The likeliest model, on at most `proposals.FIT` of the values."""
        points = _points(parameters)
        places = np.flatnonzero(told.is_value)
        if len(places) > FIT:
            places = np.sort(np.random.default_rng(0).choice(places, FIT, replace=False))
        prior = Covariance.prior(points.features.shape[1])
        covariance = fitted(prior, points[places], told.values[places])
        values = _expected(covariance, points, told)
        return cls(parameters, covariance, values, told.is_value)

    def left_out(self, which: Sequence[int]) -> _Predicted:
        """What a model that knows these parameters predicts, by the likeliest noise.

        What the others did is noise to it: the noise is the one under which what is left out is
        likeliest (leave-one-out predictive probability; Rasmussen and Williams 2006, equation 5.11).
        """
        points = _points([self.parameters[place] for place in which])
        lengths = [self._lengths[place] for place in which]
        covariance = replace(self.covariance, log_lengths=np.concatenate([[], *lengths]))
        fit = self.covariance.noise
        between = covariance.between(points, points)
        noises = (fit, *(noise for noise in _NOISES if noise > fit))
        found = [leave_one_out(between, noise, self.values) for noise in noises]
        means, variances = max(found, key=lambda pair: self._log_probability(*pair))
        return _Predicted(means, np.sqrt(variances))

    def explained(self, predicted: _Predicted) -> float:
        """Share of the variance of what was told that is predicted; 0 for the mean of the others."""
        values = self.values[self.is_value]
        count = len(values)
        errors = values - predicted.means[self.is_value]
        from_mean = (values - values.mean()) * count / (count - 1)
        return float(1 - errors @ errors / (from_mean @ from_mean))

    @cached_property
    def _lengths(self) -> list[Vector]:
        ends = np.cumsum([parameter.features.shape[1] for parameter in self.parameters])
        return np.split(self.covariance.log_lengths, ends[:-1])

    def _log_probability(self, means: Vector, variances: Vector) -> float:
        """But for a constant."""
        errors = self.values - means
        return float(-(errors * errors / variances + np.log(variances)).sum() / 2)


def leave_one_out(
    covariances: NDArray[np.floating], noise: float, values: Vector
) -> tuple[Vector, Vector]:
    """What a Gaussian process of mean 0 predicts of each value from all others.

    In closed form, from the inverse of one Cholesky factor (Rasmussen and Williams 2006, equation 5.12).

    Parameters
    ----------
    covariances : ndarray, shape (points, points)
        Without noise.
    noise : float
        Variance of single values.
    values : ndarray, shape (points,)

    Returns
    -------
    means, variances : ndarray
        Of values, noise included.
    """
    total = np.array(covariances, float)
    total[np.diag_indices(len(total))] += noise
    factor, bad = dpotrf(total, lower=1, clean=1)
    if bad:
        raise np.linalg.LinAlgError(f"covariances of {len(total)} points are not positive definite")
    inverse, _ = dtrtri(factor, lower=1)
    variances = 1 / np.einsum("ij,ij->j", inverse, inverse)
    return values - inverse.T @ (inverse @ values) * variances, variances


def _expected(covariance: Covariance, points: Points, told: _Told) -> Vector:
    """The values; of what is a bound, what the others let expect of it given that bound."""
    values = told.values.copy()
    known, bounded = np.flatnonzero(told.is_value), np.flatnonzero(~told.is_value)
    if len(bounded):
        total = covariance.between(points[known], points[known])
        total[np.diag_indices(len(known))] += covariance.noise
        across = covariance.between(points[known], points[bounded])
        solved = np.linalg.solve(total, across)
        means = values[known] @ solved
        explained = np.einsum("ij,ij->j", across, solved)
        deviations = np.sqrt(np.maximum(covariance.variance - explained, 0) + covariance.noise)
        bounds = (values[bounded] - means) / deviations
        above = np.exp(-bounds * bounds / 2 - log_ndtr(-bounds)) / math.sqrt(2 * math.pi)
        values[bounded] = means + deviations * above
    return values


def _points(parameters: Sequence[_Parameter]) -> Points:
    """Together: the share of equal parameters is the mean over them."""
    shares = [parameter.indicators / math.sqrt(len(parameters)) for parameter in parameters]
    features = [parameter.features for parameter in parameters]
    return Points(np.concatenate(features, axis=1), np.concatenate(shares, axis=1))


def _rank_correlation(some: Vector, others: Vector) -> float:
    """Spearman's, ties sharing their mean rank; 0 where one of the two does not vary."""
    first, second = _ranks(some), _ranks(others)
    scale = float(np.sqrt((first @ first) * (second @ second)))
    return float(first @ second) / scale if scale else 0.0


def _ranks(values: Vector) -> Vector:
    """From the mean rank."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Vector = (np.cumsum(count) - (count - 1) / 2)[place] - (len(values) + 1) / 2
    return ranks
