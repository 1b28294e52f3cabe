"""Fits the times of one category of problems: a formula for each configuration, corrected by trees.

`CategoryFit.chosen` picks the configurations that answer, `CategoryFit.held_out` measures what answers are
worth on sizes that are left out of the fit, and `CategoryFit.prediction` is the fit to all sizes. Trees also
learn from the formula's errors in other categories: types of one width, say, are slow at the same sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from autotune.answers.formula import MULTIPLE, Array, Curve, Formulas
from autotune.answers.schema import Expected, Plan, Portfolio, Prediction, Tree
from autotune.answers.table import features_of
from autotune.answers.trees import best_splits, corrections, fitted_trees, outcomes

#: Parts of the sizes, each held out of a fit once.
FOLDS = 5
#: Answers on held-out sizes that must be measured before a speed is expected.
MIN_ANSWERS = 10
#: The weight of a time in a fit is the share of the best speed that its formula predicts, to this power.
PREFERENCE = 4.0
#: Weight of an error in another category; the best of several between 0.1 and 1 on rows and hgemm.
ELSEWHERE = 0.3
#: Spreads by which a configuration counts as slower, and the most by which, in logarithms.
CAUTION, _MAX_SLOWNESS = 0.5, 3.0
#: A configuration that was left out on a size counts as slower than the best there by at least this factor:
#: promising configurations are measured.
_UNMEASURED = 1.3
#: Sizes that are enough to choose configurations by.
_DECIDING = 200
#: Splits of an expectation, and the weight of no difference.
_KINDS, _ALIKE = 3, 50.0
#: Share of answers that are slower than the lower bound of an expectation.
_LOWER = 0.1


class CorrectedCurve(NamedTuple):
    """The formula of one configuration, and the trees that correct it."""

    curve: Curve
    trees: tuple[Tree, ...]
    #: Standard deviation of the logarithms of the errors that are left.
    spread: float


class _Errors(NamedTuple):
    """The errors of the formula of one configuration, one for each size that was timed."""

    curve: Curve
    features: Array
    #: Logarithms of times over fitted times.
    logs: Array
    weights: Array


class HeldOut(NamedTuple):
    """Shares of the best speed that answers reach on sizes that are held out of the fit.

    NaN for a size whose answer was not measured.
    """

    shares: Array

    @property
    def measured(self) -> int:
        """Number of sizes whose answer was measured."""
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

    Plans are of the matrix's configurations; None for a configuration without any time. ``layout`` has the
    fields of the tuned layout. ``winners_ms`` has the times of winners that are not in the matrix, or infinity.
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
        #: Shortest known time of each size; infinite without any.
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
        #: Whether a configuration was known on a size, and so had a chance to be timed: sizes are in the order of
        #: measuring, and it is timed on the first sizes that allow it.
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
        """Return the times that fits predict for every size; infinite where a size is not allowed."""
        times = np.full((len(chosen), len(self.matrix.problems)), np.inf)
        for row, (number, fit) in enumerate(zip(chosen, fits, strict=True)):
            if fit is not None:
                factors = corrections(fit.trees, self.features[number])
                ms = self.formulas.times_of(number, fit.curve) * factors
                times[row] = np.where(self.allowed[number], ms, np.inf)
        return times

    def completed(self) -> tuple[Array, Array]:
        """Return the measured times, predicted ones where they are missing, and the spreads of the fits.

        A configuration that was known and not measured counts as slower than the best.
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

        A configuration whose times are hard to predict counts as slower: a fit would choose it where it is
        slow. Sizes decide on which all configurations were known, or all sizes if these are few.
        """
        completed, spreads = self.completed()
        deciding = self.was_known.all(axis=0)
        if deciding.sum() >= _DECIDING:
            completed = completed[:, deciding]
        logs = np.log(completed) + CAUTION * spreads[:, None]
        logs = np.minimum(logs, logs.min(axis=0) + _MAX_SLOWNESS)
        found, best = list[int](), np.full(logs.shape[1], np.inf)
        for _ in range(min(count, len(logs))):
            means = np.minimum(logs, best).mean(axis=1)
            means[found] = np.inf
            found.append(int(np.argmin(means)))
            best = np.minimum(best, logs[found[-1]])
        return sorted(found)

    def held_out(self, chosen: Sequence[int]) -> HeldOut:
        """Return the shares of the best speed that sizes get from fits to the other sizes."""
        count = len(self.matrix.problems)
        order, shares = np.random.default_rng(0).permutation(count), np.full(count, np.nan)
        for part in range(min(FOLDS, count)):
            held, known = order[part::FOLDS], np.delete(order, np.s_[part::FOLDS])
            predicted = self.predicted(chosen, self.fitted(chosen, np.sort(known)))
            answers = np.array(chosen)[predicted[:, held].argmin(axis=0)]
            shares[held] = self.best_ms[held] / self.times[answers, held]
        return HeldOut(shares)

    def prediction(self, chosen: Sequence[int], held_out: HeldOut) -> Prediction | None:
        """Return the fits of chosen configurations to all sizes, as records hold them; None without any."""
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
    """Return a lower bound that one more share exceeds in nine of ten cases, and the median."""
    place = math.floor(_LOWER * (len(shares) + 1))
    low = math.floor(1e3 * np.sort(shares)[max(place - 1, 0)]) / 1e3
    return low, math.floor(1e3 * float(np.median(shares))) / 1e3
