"""Chooses and fits the configurations that answer random sizes, from times measured on many.

The formula of `autotune.tuned.prediction` is fitted to each configuration, and trees correct it. They also
learn from its errors in other categories: types of one width, say, are slow at the same sizes. What to expect
of an answer is measured on sizes that are held out of the fit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from autotune.kernel.expression import value_of
from autotune.tuned.correction import (
    Array,
    best_splits,
    corrections,
    fitted_trees,
    outcomes,
)
from autotune.tuned.prediction import MULTIPLE, Curve, Predictor
from autotune.tuned.record import Expected, Plan, Portfolio, Prediction, Tree
from autotune.tuned.table import blocks_of, features_of, fillings

#: Configurations that answer, of a category and of all.
MOST_CONFIGURATIONS, MOST_IN_ALL = 32, 288
#: Parts of the sizes, each held out of a fit once.
FOLDS = 5
#: A time counts the more the faster its formula expects the configuration to be there: the share of the
#: best speed, to this power.
PREFERENCE = 4.0
#: Weight of an error in another category, of several tried on rows and hgemm (0.1 to 1).
ELSEWHERE = 0.3
#: Spreads by which a configuration counts as slower; and the most by which, in logarithms.
CAUTION, _SLOW = 0.5, 3.0
#: Where a configuration was not measured it is taken to be slower than the best by this factor at least: what
#: fits promised for a size was measured there.
_UNMEASURED = 1.3
#: Splits of an expectation, and the weight of no difference.
_KINDS, _ALIKE = 3, 50.0
#: Share of answers that are slower than the lower bound of an expectation.
_LOWER = 0.1


class CorrectedCurve(NamedTuple):
    """The formula of one configuration, and the trees that correct it."""

    curve: Curve
    trees: tuple[Tree, ...]
    #: Standard deviation of the logarithms of errors that are left.
    spread: float


class _Errors(NamedTuple):
    """The errors of the formula of one configuration, of each size that was timed."""

    curve: Curve
    features: Array
    #: Of times over fitted times.
    logs: Array
    weights: Array


class HeldOut(NamedTuple):
    """The shares of the best speed that sizes get that are held out of the fit.

    NaN for a size where its answer was not measured.
    """

    shares: Array

    @property
    def measured(self) -> int:
        """Sizes whose answer was measured."""
        return int(np.isfinite(self.shares).sum())

    def __str__(self) -> str:
        shares = self.shares[np.isfinite(self.shares)]
        mean = math.exp(np.log(shares).mean())
        tenth, least = np.quantile(shares, 0.1), shares.min()
        return f"{mean:.4f} of the best, tenth {tenth:.3f}, worst {least:.3f}"


class SizeFit:
    """Times of configurations on many sizes that share their categorical fields, and fits to them.

    Plans are of the matrix's configurations; None for one that runs nowhere. ``layout`` has the fields of
    the tuned layout.
    """

    def __init__(
        self,
        matrix: Portfolio,
        plans: Sequence[Plan | None],
        sm_count: int,
        layout: Mapping[str, int],
    ) -> None:
        self.matrix, self.plans, self.sm_count = matrix, plans, sm_count
        columns = range(len(matrix.problems))
        self.predictor = Predictor(matrix, columns, plans, sm_count)
        self.times = self.predictor.times
        #: Of each size; infinite where none was timed.
        self.best_ms = np.where(np.isfinite(self.times), self.times, np.inf).min(axis=0)
        self.allowed = np.array(
            [
                [
                    plan is not None and plan.allows({**layout, **problem})
                    for problem in matrix.problems
                ]
                for plan in plans
            ]
        )
        keys = [tuple(problem.values()) for problem in matrix.problems]
        self.of_problem = np.array([features_of(key) for key in keys])
        self.features = [self._features(plan) for plan in plans]
        #: Fits of other categories to the same configurations.
        self.others: Sequence[SizeFit] = ()
        self._errors_anywhere = cache(partial(self._errors, known=np.arange(len(keys))))

    def _features(self, plan: Plan | None) -> Array:
        if plan is None or plan.grid is None:
            return self.of_problem
        form = blocks_of(plan.grid)
        own = [fillings(value_of(form, p), self.sm_count) for p in self.matrix.problems]
        return np.hstack([self.of_problem, np.array(own)])

    def fitted(self, chosen: Sequence[int], known: Array) -> list[CorrectedCurve | None]:
        """Fit configurations to their times on the known sizes; None where that fails."""
        found = list[CorrectedCurve | None]()
        for number in chosen:
            own = self._errors(number, known)
            if own is None:
                found.append(None)
                continue
            elsewhere = filter(None, (other._errors_anywhere(number) for other in self.others))
            pairs = [(own, 1.0), *((errors, ELSEWHERE) for errors in elsewhere)]
            trees = fitted_trees(
                np.vstack([errors.features for errors, _ in pairs]),
                np.concatenate([errors.logs for errors, _ in pairs]),
                np.concatenate([weight * errors.weights for errors, weight in pairs]),
            )
            left = own.logs - np.log(corrections(trees, own.features))
            spread = float(np.sqrt((own.weights * left**2).sum() / own.weights.sum()))
            found.append(CorrectedCurve(own.curve, trees, spread))
        return found

    def _errors(self, number: int, known: Array) -> _Errors | None:
        curve = self.predictor.curve(number, known.tolist())
        if curve is None:
            return None
        rows = known[np.isfinite(self.times[number, known])]
        formula_ms = self.predictor.times_of(number, curve)[rows]
        logs, features = np.log(self.times[number, rows] / formula_ms), self.features[number][rows]
        return _Errors(curve, features, logs, self._weights(rows, formula_ms))

    def _weights(self, rows: Array, formula_ms: Array) -> Array:
        shares: Array = np.minimum(1.0, np.nanmin(self.times[:, rows], axis=0) / formula_ms)
        return shares**PREFERENCE

    def predicted(self, chosen: Sequence[int], fits: Sequence[CorrectedCurve | None]) -> Array:
        """Return the times that fits predict for every size; infinite where a size is not allowed."""
        times = np.full((len(chosen), len(self.matrix.problems)), np.inf)
        for row, (number, fit) in enumerate(zip(chosen, fits, strict=True)):
            if fit is not None:
                factors = corrections(fit.trees, self.features[number])
                ms = self.predictor.times_of(number, fit.curve) * factors
                times[row] = np.where(self.allowed[number], ms, np.inf)
        return times

    def completed(self) -> tuple[Array, Array]:
        """Return the measured times, or else predicted ones, with `_UNMEASURED`; and the fits' spreads."""
        chosen, known = range(len(self.plans)), np.arange(len(self.matrix.problems))
        fits = self.fitted(chosen, known)
        predicted = self.predicted(chosen, fits)
        least = np.where(np.isfinite(self.best_ms), _UNMEASURED * self.best_ms, 0.0)
        is_measured = np.isfinite(self.times)
        measured: Array = np.where(is_measured, self.times, np.maximum(predicted, least))
        return measured, np.array([fit.spread if fit else np.inf for fit in fits])

    def chosen(
        self, completed: Array, spreads: Array, count: int = MOST_CONFIGURATIONS
    ) -> list[int]:
        """Choose configurations greedily, by the mean logarithm of the best time among them.

        One whose times are hard to foretell counts as slower: it would be chosen where it is slow.
        """
        logs = np.log(completed) + CAUTION * spreads[:, None]
        logs = np.minimum(logs, logs.min(axis=0) + _SLOW)
        found, best = list[int](), np.full(logs.shape[1], np.inf)
        for _ in range(min(count, len(logs))):
            means = np.minimum(logs, best).mean(axis=1)
            means[found] = np.inf
            found.append(int(np.argmin(means)))
            best = np.minimum(best, logs[found[-1]])
        return sorted(found)

    def held_out(self, chosen: Sequence[int]) -> HeldOut:
        """Return what sizes get from fits to the others, as shares of the best of all configurations."""
        count = len(self.matrix.problems)
        order, shares = np.random.default_rng(0).permutation(count), np.zeros(count)
        for part in range(FOLDS):
            held, known = order[part::FOLDS], np.delete(order, np.s_[part::FOLDS])
            predicted = self.predicted(chosen, self.fitted(chosen, np.sort(known)))
            answers = np.array(chosen)[predicted[:, held].argmin(axis=0)]
            shares[held] = self.best_ms[held] / self.times[answers, held]
        return HeldOut(shares)

    def prediction(self, chosen: Sequence[int], held_out: HeldOut) -> Prediction:
        """Return fits of chosen configurations to all sizes, as records hold them."""
        fits = self.fitted(chosen, np.arange(len(self.matrix.problems)))
        pairs = [
            (self.predictor.cost(plan, fit.curve), fit.trees)
            for number, fit in zip(chosen, fits, strict=True)
            if (plan := self.plans[number]) is not None and fit is not None
        ]
        return Prediction(
            multiple=MULTIPLE,
            costs=tuple(cost for cost, _ in pairs),
            corrections=tuple(trees for _, trees in pairs),
            sizes=len(self.matrix.problems),
            expected=self._expected(held_out),
        )

    def _expected(self, held_out: HeldOut) -> Expected:
        is_known, integers = np.isfinite(held_out.shares), self.of_problem.shape[1] // 2
        everything, features = held_out.shares[is_known], self.of_problem[is_known]
        logs = np.log(everything)
        splits = best_splits(features, logs - logs.mean(), np.ones(len(logs)), _KINDS, _ALIKE)
        kinds = outcomes(splits, features)
        shares = []
        for kind in range(1 << len(splits)):
            found = everything[kinds == kind]
            shares.append(_bounds(found if len(found) >= 1 / _LOWER else everything))
        sizes = self.of_problem[:, :integers]
        ranges = zip(sizes.min(axis=0).tolist(), sizes.max(axis=0).tolist(), strict=True)
        return Expected(ranges=tuple(ranges), splits=splits, shares=tuple(shares))


def _bounds(shares: Array) -> tuple[float, float]:
    """Return the lower tenth of shares, for one more of them, and their median."""
    place = math.floor(_LOWER * (len(shares) + 1))
    low = math.floor(1e3 * np.sort(shares)[max(place - 1, 0)]) / 1e3
    return low, math.floor(1e3 * float(np.median(shares))) / 1e3
