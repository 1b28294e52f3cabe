"""The model: features of configurations, between 0 and 1, and a Gaussian process over them.

The covariance of two configurations is a sum (Rasmussen and Williams 2006, chapters 2, 4 and 5):
s² · Matérn-3/2 of their distance, with a length per feature; a² · the share of equal parameters; and the
noise of single values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpotrf, dpotri
from scipy.optimize import minimize
from scipy.special import log_ndtr
from threadpoolctl import ThreadpoolController

from autotune.kernel.joining import Rows
from autotune.kernel.space import Space
from autotune.values import Value

Numbers: TypeAlias = NDArray[np.int64]
Features: TypeAlias = NDArray[np.float32]
Vector: TypeAlias = NDArray[np.float64]

#: Positive values that span this factor are compared by their logarithm.
_LOG_SPAN = 4
#: The power of two in a value is not a feature if it correlates with the value by more than this.
_MAX_CORRELATION = 0.99
#: Parameters with more values have no indicators: each value would need a column, and two configurations
#: seldom share a value.
_MAX_INDICATORS = 1024
#: Maximum number of single changes that are combined in pairs.
_MAX_CHANGES = 2048
#: L-BFGS steps of one fit, which continues the last one.
_STEPS = 10
#: Noise that rounding in single precision needs, as a share of the variance.
_JITTER = 2e-5


class Encoding:
    """Features of a space's configurations, computed on request.

    A parameter of numbers has one column: the mean of its scaled value and its scaled rank. The value
    is a logarithm if all values are positive and span a factor of 4. A second column counts how often 2
    divides the value, since tiles and blocks fit hardware in powers of two. Text has a column per value.
    Parameters with one value in all valid configurations are left out.

    Parameters
    ----------
    space : Space
        The valid configurations.
    """

    def __init__(self, space: Space) -> None:
        self.rows = space.rows
        self._space = space
        self._occurring = space.occurring
        #: Positions of the parameters that vary.
        self.varying = [p for p, used in enumerate(self._occurring) if len(used) > 1]
        declared = list(space.parameters.values())
        self._tables = [_table(declared[p], self._occurring[p]) for p in self.varying]
        self.width = sum(table.shape[1] for table in self._tables)
        self._sizes = np.array(space.sizes, np.int64)
        # Each value of a parameter that varies has one indicator, up to `_MAX_INDICATORS` values.
        self._counted = [p for p in self.varying if self._sizes[p] <= _MAX_INDICATORS]
        counts = self._sizes[self._counted]
        self._places = np.cumsum(counts) - counts
        self._values = int(counts.sum())

    def features(self, numbers: Numbers) -> Features:
        """Return the columns of some configurations, shape (configurations, `width`)."""
        rows = self.rows[numbers]
        columns = [table[rows[:, p]] for p, table in zip(self.varying, self._tables, strict=True)]
        return np.concatenate(columns, axis=1) if columns else np.zeros((len(rows), 0), np.float32)

    def indicators(self, numbers: Numbers) -> Features:
        """Return a row per configuration; the product of two rows is the share of equal parameters."""
        result = np.zeros((len(numbers), self._values), np.float32)
        places = self.rows[numbers][:, self._counted] + self._places
        result[np.arange(len(numbers))[:, None], places] = 1 / math.sqrt(len(self._counted) or 1)
        return result

    def near(self, number: int, apart: int) -> Numbers:
        """Return valid configurations that differ from one in up to ``apart`` (1 or 2) parameters.

        Pairs of changes are left out if there are more than `_MAX_CHANGES` single changes. A parameter
        that does not apply after a change takes its first value, as everywhere in the space.
        """
        row = self.rows[number]
        steps = [self._occurring[p][self._occurring[p] != row[p]] - row[p] for p in self.varying]
        changed = np.repeat(np.arange(len(steps)), [len(step) for step in steps])
        changes = np.concatenate([np.zeros(0, np.int64), *steps]).astype(np.int64)
        changes *= self._space.strides[self.varying][changed]
        codes = changes
        if apart > 1 and len(changes) <= _MAX_CHANGES:
            some, others = np.triu_indices(len(changes), 1)
            differ = changed[some] != changed[others]
            codes = np.r_[changes, changes[some[differ]] + changes[others[differ]]]
        found = self._space.find_all(self._space.codes[number] + codes)
        valid: Numbers = found[found != number]
        return valid


def _table(values: Sequence[Value], used: Rows) -> Features:
    if any(isinstance(value, str) for value in values):
        # Two different texts are as far apart as the ends of an ordered parameter.
        table = np.eye(len(values))[:, used] / np.sqrt(2)
        table = table[:, 1:] * np.sqrt(2) if len(used) == 2 else table
        return np.asarray(table, np.float32)
    occurring = np.array([float(values[index]) for index in used])
    is_positive = bool((occurring > 0).all())
    spans = is_positive and occurring.max() / occurring.min() >= _LOG_SPAN
    scale = np.log2(occurring) if spans else occurring
    scale = (scale - scale.min()) / np.ptp(scale)
    ranks = np.argsort(np.argsort(occurring)) / (len(occurring) - 1)
    columns = [(scale + ranks) / 2]
    if is_positive and len(occurring) > 2 and (occurring == np.floor(occurring)).all():
        whole = occurring.astype(np.int64)
        twos = np.log2(whole & -whole)
        if np.ptp(twos) > 0 and np.corrcoef(twos, scale)[0, 1] < _MAX_CORRELATION:
            columns.append(twos / twos.max())
    table = np.zeros((len(values), len(columns)), np.float32)
    table[used] = np.stack(columns, axis=1)
    return table


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()


def one_thread() -> AbstractContextManager[object]:
    """Restrict linear algebra to the calling thread.

    If compilers use the other cores, several threads wait for each other: a fit and 4,000
    candidates take 2 s instead of 0.1 s on two busy cores.
    """
    limited: AbstractContextManager[object] = _libraries().limit(limits=1, user_api="blas")
    return limited


@dataclass(frozen=True)
class Points:
    """Configurations in the form that the covariance needs."""

    features: NDArray[np.floating]
    #: The product of two rows is the share of equal parameters.
    indicators: NDArray[np.floating]

    def __len__(self) -> int:
        return len(self.features)

    @classmethod
    def joined(cls, *parts: Points) -> Points:
        """Join several sets of points in order."""
        return cls(
            np.concatenate([part.features for part in parts]),
            np.concatenate([part.indicators for part in parts]),
        )

    def __getitem__(self, which: NDArray[np.int64] | slice) -> Points:
        return Points(self.features[which], self.indicators[which])


@dataclass(frozen=True)
class Covariance:
    """The parameters of the covariance, as logarithms: all are positive."""

    log_lengths: Vector
    log_scale: float
    log_equal: float
    log_noise: float

    @classmethod
    def prior(cls, width: int) -> Covariance:
        """Return the mean of the prior, whose standard deviation is 1 for each parameter."""
        return cls(np.zeros(width), 0.0, -1.0, float(np.log(0.05)))

    @property
    def vector(self) -> Vector:
        tail = (self.log_scale, self.log_equal, self.log_noise)
        return np.concatenate([self.log_lengths, tail])

    @classmethod
    def of(cls, vector: Vector) -> Covariance:
        return cls(vector[:-3], *map(float, vector[-3:]))

    @property
    def variance(self) -> float:
        """Prior variance of a value, without noise."""
        return float(np.exp(2 * self.log_scale) + np.exp(2 * self.log_equal))

    @property
    def noise(self) -> float:
        """Variance of the noise of single values, including `_JITTER`."""
        return float(np.exp(2 * self.log_noise)) + _JITTER * self.variance

    def between(self, some: Points, others: Points) -> Features:
        """Return covariances, shape (some, others), in the precision of the features."""
        lengths = np.exp(self.log_lengths).astype(some.features.dtype)
        near, far = some.features / lengths, others.features / lengths
        squares = (near * near).sum(1)[:, None] + (far * far).sum(1) - 2 * near @ far.T
        distances = np.sqrt(3 * np.maximum(squares, 0))
        smooth = float(np.exp(2 * self.log_scale)) * (1 + distances) * np.exp(-distances)
        equal = float(np.exp(2 * self.log_equal)) * (some.indicators @ others.indicators.T)
        covariances: Features = smooth + equal
        return covariances


class FitLoss:
    """Negative logarithm of the posterior density of a covariance, up to a constant, with its gradient.

    Values have mean 0 and standard deviation 1.
    """

    def __init__(self, points: Points, values: Vector) -> None:
        count, self._width = points.features.shape
        features = points.features.astype(float)
        self._values = values
        self._squares = ((features[:, None] - features) ** 2).reshape(count * count, self._width)
        self._equal = (points.indicators @ points.indicators.T).astype(float)
        self._diagonal = np.diag_indices(count)
        self._prior = Covariance.prior(self._width).vector

    def __call__(self, vector: Vector) -> tuple[float, Vector]:
        """Return loss and gradient at the parameters of `Covariance.vector`."""
        inverse = np.exp(-2 * vector[: self._width])
        scale, share, noise = np.exp(2 * vector[self._width :])
        distances = np.sqrt(3 * (self._squares @ inverse)).reshape(self._equal.shape)
        decay = np.exp(-distances)
        smooth = (1 + distances) * decay
        total = scale * smooth + share * self._equal
        total[self._diagonal] += noise + _JITTER * (scale + share)
        factor, bad = dpotrf(total, lower=1)
        if bad:
            return 1e10, np.zeros_like(vector)
        inverted = np.tril(dpotri(factor, lower=1)[0])
        inverted += np.tril(inverted, -1).T
        weights = inverted @ self._values
        slope = (inverted - np.outer(weights, weights)) / 2
        gradient = np.r_[
            (slope * decay).ravel() @ self._squares * (3 * scale * inverse),
            2 * scale * np.vdot(slope, smooth),
            2 * share * np.vdot(slope, self._equal),
            2 * noise * slope[self._diagonal].sum(),
        ]
        off = vector - self._prior
        likely = self._values @ weights / 2 + np.log(factor[self._diagonal]).sum()
        return float(likely + off @ off / 2), gradient + off


def fitted(covariance: Covariance, points: Points, values: Vector) -> Covariance:
    """Return the maximum a posteriori covariance; start from the given one.

    The time grows with the third power of the number of points: use up to 200.
    """
    # Values have a deviation of 1: larger scales would only increase rounding errors.
    width = points.features.shape[1]
    bounds = [*[(-3.0, 3.0)] * width, (-3.0, 1.5), (-4.0, 1.0), (float(np.log(1e-3)), 0.0)]
    result = minimize(
        FitLoss(points, values),
        covariance.vector,
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": _STEPS},
    )
    return Covariance.of(result.x)


class Posterior:
    """Means and variances of candidates, given points whose values may come later.

    Variances do not depend on values. A chosen point therefore adds its row to the Cholesky factor at
    once, and its value when it is measured. An awaited value counts as its prediction (the "kriging
    believer" of Ginsbourger, Le Riche and Carraro 2010). Up to ``spare`` candidates can be added later.
    """

    def __init__(
        self, covariance: Covariance, given: Points, candidates: Points, spare: int
    ) -> None:
        self._covariance = covariance
        self._candidates = candidates
        self._count = len(given)
        size = len(given) + spare
        self._factor = np.zeros((size, size))
        #: The factor's inverse times the covariances of points and candidates.
        self._reduced = np.zeros((size, len(candidates)), np.float32)
        if len(given):
            # In double precision: rounding must not make the matrix indefinite.
            precise = Points(given.features.astype(float), given.indicators.astype(float))
            total = covariance.between(precise, precise)
            total[np.diag_indices(len(given))] += covariance.noise
            factor = np.linalg.cholesky(total)
            self._factor[: len(given), : len(given)] = factor
            self._reduced[: len(given)] = solve_triangular(
                factor.astype(np.float32),
                covariance.between(given, candidates),
                lower=True,
                check_finite=False,
            )
        explained = np.einsum("ij,ij->j", self._reduced, self._reduced)
        #: Variance of every candidate, without noise.
        self.variances = np.maximum(covariance.variance - explained, 1e-6)

    @property
    def has_room(self) -> bool:
        """True if another candidate can be conditioned on."""
        return self._count < len(self._factor)

    def condition(self, candidate: int) -> None:
        """Condition on a candidate whose value is awaited."""
        known = self._reduced[: self._count]
        deviation = float(np.sqrt(self.variances[candidate] + self._covariance.noise))
        column = known[:, candidate].copy()
        chosen = self._candidates[slice(candidate, candidate + 1)]
        row = (self._covariance.between(chosen, self._candidates)[0] - column @ known) / deviation
        # Limit correlations to 1: else rounding errors of nearly equal points grow with every row.
        most = np.sqrt(self.variances * self.variances[candidate]) / deviation
        row = np.clip(row, -most, most)
        self._factor[self._count, : self._count] = column
        self._factor[self._count, self._count] = deviation
        self._reduced[self._count] = row
        self._count += 1
        self.variances = np.maximum(self.variances - row * row, 1e-6)

    def keep(self, candidates: NDArray[np.int64]) -> None:
        """Keep the candidates at these positions and drop the others."""
        self._candidates = self._candidates[candidates]
        self._reduced = np.ascontiguousarray(self._reduced[:, candidates])
        self.variances = self.variances[candidates]

    def partial_means(self, values: Vector, count: int) -> tuple[Vector, Features]:
        """Return predictions for the next ``count`` points and for candidates, from the first points alone."""
        first = len(values)
        weights = solve_triangular(
            self._factor[:first, :first], values, lower=True, check_finite=False
        )
        at_points = self._factor[first : first + count, :first] @ weights
        at_candidates: Features = weights.astype(np.float32) @ self._reduced[:first]
        return at_points, at_candidates

    def means(self, values: Vector, bounds: Vector | None = None) -> Features:
        """Return expected values of the candidates.

        ``values`` are the values of the points in order, nan if awaited. ``bounds`` are lower bounds of
        awaited values, or -inf. An awaited value counts as its expectation above the bound.
        """
        weights = np.zeros(self._count)
        known = ~np.isnan(values)
        if bounds is None or not np.isfinite(bounds).any():
            factor = self._factor[: self._count, : self._count][np.ix_(known, known)]
            weights[known] = solve_triangular(factor, values[known], lower=True, check_finite=False)
        else:
            for place, value in enumerate(values):
                row = self._factor[place, : place + 1]
                predicted = row[:-1] @ weights[:place]
                if not known[place]:
                    value = predicted + row[-1] * _above((bounds[place] - predicted) / row[-1])
                weights[place] = (value - predicted) / row[-1]
        means: Features = weights.astype(np.float32) @ self._reduced[: self._count]
        return means


def _above(bound: float) -> float:
    """Return the expected value of a normal variable that is at least a bound."""
    if bound < -8:
        return 0.0
    return float(np.exp(-bound * bound / 2 - log_ndtr(-bound)) / np.sqrt(2 * np.pi))
