"""Chooses and fits the configurations that answer random sizes, from times measured on many.

The formula of `autotune.tuned.prediction` is fitted to each configuration, and trees correct it. What to
expect of an answer is measured on sizes that are held out of the fit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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

#: Configurations that answer.
MOST_CONFIGURATIONS = 32
#: Parts of the sizes, each held out of a fit once.
FOLDS = 5
#: The faster a configuration is on a size the more its time there counts: the share of the best speed,
#: to this power.
PREFERENCE = 2.0
#: Splits of an expectation, and the weight of no difference.
_KINDS, _ALIKE = 3, 50.0
#: Share of answers that are slower than the lower bound of an expectation.
_LOWER = 0.1


class HeldOut(NamedTuple):
    """The shares of the best speed that sizes get that are held out of the fit."""

    shares: Array

    def __str__(self) -> str:
        mean = math.exp(np.log(self.shares).mean())
        tenth, least = np.quantile(self.shares, 0.1), self.shares.min()
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

    def _features(self, plan: Plan | None) -> Array:
        if plan is None or plan.grid is None:
            return self.of_problem
        form = blocks_of(plan.grid)
        own = [fillings(value_of(form, p), self.sm_count) for p in self.matrix.problems]
        return np.hstack([self.of_problem, np.array(own)])

    def fitted(
        self, chosen: Sequence[int], known: Array
    ) -> list[tuple[Curve, tuple[Tree, ...]] | None]:
        """Fit configurations to their times on the known sizes; None where that fails."""
        best_ms = np.nanmin(self.times, axis=0)
        found = list[tuple[Curve, tuple[Tree, ...]] | None]()
        for number in chosen:
            curve = self.predictor.curve(number, known.tolist())
            if curve is None:
                found.append(None)
                continue
            rows = known[np.isfinite(self.times[number, known])]
            times = self.times[number, rows]
            errors = np.log(times / self.predictor.times_of(number, curve)[rows])
            weights = (best_ms[rows] / times) ** PREFERENCE
            found.append((curve, fitted_trees(self.features[number][rows], errors, weights)))
        return found

    def predicted(
        self, chosen: Sequence[int], fits: Sequence[tuple[Curve, tuple[Tree, ...]] | None]
    ) -> Array:
        """Return the times that fits predict for every size; infinite where a size is not allowed."""
        times = np.full((len(chosen), len(self.matrix.problems)), np.inf)
        for row, (number, fit) in enumerate(zip(chosen, fits, strict=True)):
            if fit is not None:
                curve, trees = fit
                factors = corrections(trees, self.features[number])
                ms = self.predictor.times_of(number, curve) * factors
                times[row] = np.where(self.allowed[number], ms, np.inf)
        return times

    def completed(self) -> Array:
        """Return the measured times; predicted ones where a pair was not measured."""
        chosen, known = range(len(self.plans)), np.arange(len(self.matrix.problems))
        predicted = self.predicted(chosen, self.fitted(chosen, known))
        measured: Array = np.where(np.isfinite(self.times), self.times, predicted)
        return measured

    def chosen(self, completed: Array, count: int = MOST_CONFIGURATIONS) -> list[int]:
        """Choose configurations greedily, by the mean logarithm of the best time among them."""
        logs = np.log(completed)
        logs = np.minimum(
            logs, logs.min(axis=0) + 3
        )  # one that is not allowed is slow, not impossible
        found, best = list[int](), np.full(logs.shape[1], np.inf)
        for _ in range(min(count, len(logs))):
            means = np.minimum(logs, best).mean(axis=1)
            means[found] = np.inf
            found.append(int(np.argmin(means)))
            best = np.minimum(best, logs[found[-1]])
        return sorted(found)

    def held_out(self, chosen: Sequence[int], completed: Array, seed: int = 0) -> HeldOut:
        """Return what sizes get from fits to the others, as shares of the best of all configurations."""
        count = len(self.matrix.problems)
        order, shares = np.random.default_rng(seed).permutation(count), np.zeros(count)
        for part in range(FOLDS):
            held, known = order[part::FOLDS], np.delete(order, np.s_[part::FOLDS])
            predicted = self.predicted(chosen, self.fitted(chosen, np.sort(known)))
            answers = np.array(chosen)[predicted[:, held].argmin(axis=0)]
            shares[held] = completed[:, held].min(axis=0) / completed[answers, held]
        return HeldOut(shares)

    def prediction(self, chosen: Sequence[int], held_out: HeldOut) -> Prediction:
        """Return fits of chosen configurations to all sizes, as records hold them."""
        fits = self.fitted(chosen, np.arange(len(self.matrix.problems)))
        pairs = [
            (self.predictor.cost(plan, fit[0]), fit[1])
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
        logs, integers = np.log(held_out.shares), self.of_problem.shape[1] // 2
        ones = np.ones(len(logs))
        splits = best_splits(self.of_problem, logs - logs.mean(), ones, _KINDS, _ALIKE)
        kinds = outcomes(splits, self.of_problem)
        everything = held_out.shares
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
