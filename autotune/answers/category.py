"""Fits the times of one category of problems: a formula for each configuration, corrected by trees.

`CategoryFit.chosen` picks the configurations that answer. `CategoryFit.held_out` measures the speed of answers on
held-out sizes. `CategoryFit.prediction` is the fit to all sizes. Types of the same width are slow at the same
sizes, so trees also learn from other categories' errors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from autotune.answers.formula import MULTIPLE, Array, Curve, Formulas
from autotune.answers.table import Expected, Plan, Portfolio, Prediction, Tree, features_of
from autotune.answers.trees import best_splits, corrections, fitted_trees, outcomes

#: Number of folds of the cross validation; each fold of the sizes is held out once.
FOLDS = 5
#: Fewest measured answers on held-out sizes for an expected speed.
MIN_ANSWERS = 10
#: Weight of an error in the trees: (best time / fitted time) to this power.
PREFERENCE = 4.0
#: Weight of an error in another category; the best of several between 0.1 and 1 on hgemm and the kernels of
#: rows (softmax and others).
OTHER_CATEGORY_WEIGHT = 0.3
#: A configuration counts as slower by this many standard deviations of its fit.
CAUTION = 0.5
#: Largest slowdown that counts in the choice of configurations, as a logarithm.
_MAX_SLOWDOWN = 3.0
#: A known configuration without a time on a size takes at least this factor times the best time: a run skips
#: unpromising ones.
_UNMEASURED = 1.3
#: If all configurations were known on at least this many sizes, only those sizes choose.
_MIN_DECIDING = 200
#: Splits of an expectation.
_EXPECTATION_SPLITS = 3
#: Shrinks the splits of an expectation towards the overall mean, as if by this many answers in each outcome.
_EXPECTATION_PRIOR = 50.0
#: Share of answers that are slower than the lower bound of an expectation.
_LOWER = 0.1


class CorrectedCurve(NamedTuple):
    """The formula of one configuration, and the trees that correct it."""

    curve: Curve
    trees: tuple[Tree, ...]
    #: Standard deviation of the logarithms of the remaining errors.
    spread: float


class _Errors(NamedTuple):
    """The errors of the formula of one configuration, on the timed sizes."""

    curve: Curve
    features: Array
    #: Logarithms of times over fitted times.
    logs: Array
    weights: Array


class HeldOutShares(NamedTuple):
    """The shares of the best speed that answers reach on held-out sizes."""

    #: A share per size; NaN if the answer was not measured.
    shares: Array

    @property
    def measured(self) -> int:
        """Number of sizes with a measured answer."""
        return int(np.isfinite(self.shares).sum())

    def __str__(self) -> str:
        shares = self.shares[np.isfinite(self.shares)]
        if not len(shares):
            return "no answer was measured"
        mean = math.exp(np.log(shares).mean())
        tenth, least = np.quantile(shares, 0.1), shares.min()
        return f"{mean:.4f} of the best, tenth {tenth:.3f}, worst {least:.3f}"


class CategoryFit:
    """Times of configurations on problems that share their categorical fields, and fits to them.

    ``plans`` has the plan of each configuration; None for a configuration without times. ``layout`` has the
    fields of the tuned layout. ``winners_ms`` has the time of each size's winner if the matrix lacks that
    configuration, else infinity.
    """

    def __init__(
        self,
        matrix: Portfolio,
        plans: Sequence[Plan | None],
        sm_count: int,
        layout: Mapping[str, int] = {},
        winners_ms: Sequence[float] = (),
    ) -> None:
        self.matrix, self.plans, self.sm_count = matrix, plans, sm_count
        self.formulas = Formulas(matrix, plans, sm_count)
        self.times = self.formulas.times
        #: Shortest known time of each size; infinite without a time.
        self.best_ms = np.where(np.isfinite(self.times), self.times, np.inf).min(axis=0)
        if winners_ms:
            self.best_ms = np.minimum(self.best_ms, winners_ms)
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
        #: True from the first size with a time of the configuration on: sizes are in measuring order. A
        #: configuration without times counts as known.
        is_timed = np.isfinite(self.times)
        self.was_known = np.logical_or.accumulate(is_timed, axis=1)
        self.was_known[~is_timed.any(axis=1)] = True
        #: Fits of other categories to the same configurations.
        self.others: Sequence[CategoryFit] = ()
        self._errors_anywhere = cache(partial(self._errors, known=np.arange(len(keys))))

    def _features(self, plan: Plan | None) -> Array:
        own = self.formulas.fillings_of(plan)
        return self.of_problem if own is None else np.hstack([self.of_problem, own])

    def fitted(self, chosen: Sequence[int], known: Array) -> list[CorrectedCurve | None]:
        """Fit configurations to their times on the known sizes; None for a failed fit."""
        found = list[CorrectedCurve | None]()
        for number in chosen:
            own = self._errors(number, known)
            if own is None:
                found.append(None)
                continue
            elsewhere = filter(None, (other._errors_anywhere(number) for other in self.others))
            pairs = [(own, 1.0), *((errors, OTHER_CATEGORY_WEIGHT) for errors in elsewhere)]
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
        curve = self.formulas.curve(number, known.tolist())
        if curve is None:
            return None
        rows = known[np.isfinite(self.times[number, known])]
        formula_ms = self.formulas.times_of(number, curve)[rows]
        logs, features = np.log(self.times[number, rows] / formula_ms), self.features[number][rows]
        return _Errors(curve, features, logs, self._weights(rows, formula_ms))

    def _weights(self, rows: Array, formula_ms: Array) -> Array:
        shares: Array = np.minimum(1.0, np.nanmin(self.times[:, rows], axis=0) / formula_ms)
        return shares**PREFERENCE

    def predicted(self, chosen: Sequence[int], fits: Sequence[CorrectedCurve | None]) -> Array:
        """Return the predicted times in ms for every size; infinite if not allowed or without a fit."""
        times = np.full((len(chosen), len(self.matrix.problems)), np.inf)
        for row, (number, fit) in enumerate(zip(chosen, fits, strict=True)):
            if fit is not None:
                factors = corrections(fit.trees, self.features[number])
                ms = self.formulas.times_of(number, fit.curve) * factors
                times[row] = np.where(self.allowed[number], ms, np.inf)
        return times

    def completed(self) -> tuple[Array, Array]:
        """Return the times, predicted if not measured, and the spreads of the fits.

        A configuration that was known but not measured on a size takes at least `_UNMEASURED` times the best time.
        """
        chosen, known = range(len(self.plans)), np.arange(len(self.matrix.problems))
        fits = self.fitted(chosen, known)
        predicted = self.predicted(chosen, fits)
        is_measured = np.isfinite(self.times)
        least = np.where(self.was_known, _UNMEASURED * self.best_ms, 0.0)
        measured: Array = np.where(is_measured, self.times, np.maximum(predicted, least))
        return measured, np.array([fit.spread if fit else np.inf for fit in fits])

    def chosen(self, count: int) -> list[int]:
        """Choose configurations greedily, by the mean logarithm of the best time among them.

        A configuration with times that are hard to predict counts as slower, because a fit might choose it on
        sizes where it is slow. The choice uses the sizes where all configurations were known; if these are
        few, all sizes.
        """
        completed, spreads = self.completed()
        deciding = self.was_known.all(axis=0)
        if deciding.sum() >= _MIN_DECIDING:
            completed = completed[:, deciding]
        logs = np.log(completed) + CAUTION * spreads[:, None]
        logs = np.minimum(logs, logs.min(axis=0) + _MAX_SLOWDOWN)
        found, best = list[int](), np.full(logs.shape[1], np.inf)
        for _ in range(min(count, len(logs))):
            means = np.minimum(logs, best).mean(axis=1)
            means[found] = np.inf
            found.append(int(np.argmin(means)))
            best = np.minimum(best, logs[found[-1]])
        return sorted(found)

    def held_out(self, chosen: Sequence[int]) -> HeldOutShares:
        """Return the shares of the best speed that answers reach.

        Each size is answered by fits that did not see it. The choice of configurations, and the errors of
        other categories, did see it.
        """
        count = len(self.matrix.problems)
        order, shares = np.random.default_rng(0).permutation(count), np.full(count, np.nan)
        for part in range(min(FOLDS, count)):
            held, known = order[part::FOLDS], np.delete(order, np.s_[part::FOLDS])
            predicted = self.predicted(chosen, self.fitted(chosen, np.sort(known)))
            answers = np.array(chosen)[predicted[:, held].argmin(axis=0)]
            shares[held] = self.best_ms[held] / self.times[answers, held]
        return HeldOutShares(shares)

    def prediction(self, chosen: Sequence[int], held_out: HeldOutShares) -> Prediction | None:
        """Return the fits of configurations to all sizes in the schema of records; None without a fit."""
        fits = self.fitted(chosen, np.arange(len(self.matrix.problems)))
        pairs = [
            (self.formulas.cost(plan, fit.curve), fit.trees)
            for number, fit in zip(chosen, fits, strict=True)
            if (plan := self.plans[number]) is not None and fit is not None
        ]
        if not pairs:
            return None
        return Prediction(
            multiple=MULTIPLE,
            costs=tuple(cost for cost, _ in pairs),
            corrections=tuple(trees for _, trees in pairs)
            if any(trees for _, trees in pairs)
            else (),
            sizes=len(self.matrix.problems),
            expected=self._expected(held_out) if held_out.measured >= MIN_ANSWERS else None,
        )

    def _expected(self, held_out: HeldOutShares) -> Expected:
        is_known, integers = np.isfinite(held_out.shares), self.of_problem.shape[1] // 2
        everything, features = held_out.shares[is_known], self.of_problem[is_known]
        logs = np.log(everything)
        splits = best_splits(
            features,
            logs - logs.mean(),
            np.ones(len(logs)),
            _EXPECTATION_SPLITS,
            _EXPECTATION_PRIOR,
        )
        kinds = outcomes(splits, features)
        shares = []
        for kind in range(1 << len(splits)):
            found = everything[kinds == kind]
            shares.append(_bounds(found if len(found) >= 1 / _LOWER else everything))
        sizes = self.of_problem[:, :integers]
        ranges = zip(sizes.min(axis=0).tolist(), sizes.max(axis=0).tolist(), strict=True)
        return Expected(ranges=tuple(ranges), splits=splits, shares=tuple(shares))


def _bounds(shares: Array) -> tuple[float, float]:
    """Return the lower tenth (a further share exceeds it in nine of ten cases), and the median."""
    place = math.floor(_LOWER * (len(shares) + 1))
    low = math.floor(1e3 * np.sort(shares)[max(place - 1, 0)]) / 1e3
    return low, math.floor(1e3 * float(np.median(shares))) / 1e3
