"""Fits the time of each configuration to its row of the portfolio matrix.

A fitted time is the sum of three parts:

- once: products of up to two problem fields
- in each round of blocks, of which a multiprocessor has ``ceil(blocks / multiprocessors)``: single
  fields
- in each wave, of which a device has ``ceil(blocks / resident blocks)``: single fields

So 144 blocks take twice as long as 120 on 132 multiprocessors. Coefficients are not negative and
relative errors count: non-negative least squares (Lawson and Hanson, *Solving Least Squares
Problems*, 1974). The number of resident blocks is fitted by trying. Then each field gets a factor:
how much longer misaligned problems took than this predicts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from autotune.kernel.expression import value_of
from autotune.tuned.record import Cost, Plan, Portfolio, Prediction, Term
from autotune.tuned.table import blocks_of

Array: TypeAlias = np.ndarray[Any, Any]

#: Blocks that may be resident on a multiprocessor.
RESIDENT = (1, 2, 4, 8)
#: Share of the shortest time of the matrix that everything takes at least: a launch costs
#: something, whatever the row of a configuration that was measured on large problems only says.
LEAST_SHARE = 0.5
#: Weight of wanting small coefficients: where a few problems leave a choice, neither all nor nothing.
RIDGE = 0.1
#: What counts as aligned: four elements, 16 bytes of float32, are the widest load.
MULTIPLE = 4
#: Problems worth of evidence that alignment does not matter.
INDIFFERENCE = 4


class Curve(NamedTuple):
    """The formula of one configuration, fitted."""

    resident: int
    #: One for each column of the design of so many resident blocks.
    coefficients: Array
    #: Logarithms of the factors of fields that are misaligned.
    misaligned: Array


class Predictor:
    """A fit of times to the problems of a portfolio that share their categorical fields.

    Problems are positions among ``columns``. The plans are of the portfolio's configurations, as
    they launch for these problems; None where one runs none of them.
    """

    def __init__(
        self,
        portfolio: Portfolio,
        columns: Sequence[int],
        plans: Sequence[Plan | None],
        sm_count: int,
    ) -> None:
        self.problems = [dict(portfolio.problems[column]) for column in columns]
        self.times = np.array(
            [[row[column] or np.nan for column in columns] for row in portfolio.median_ms]
        )
        self.least_ms = LEAST_SHARE * float(np.nanmin(self.times))
        self.sm_count = sm_count
        self.names = [name for name, value in self.problems[0].items() if isinstance(value, int)]
        self.single: list[tuple[str, ...]] = [(), *((name,) for name in self.names)]
        self.double = [*self.single, *combinations(self.names, 2)]
        values = [[problem[name] for name in self.names] for problem in self.problems]
        self.misaligned = np.array([[value % MULTIPLE != 0 for value in row] for row in values])
        self.plans = plans
        self.designs = [self._designs(plan) for plan in plans]
        self._curves_of: dict[tuple[int, ...], list[Curve | None]] = {}

    def prediction(self) -> Prediction | None:
        """Fit to all problems; None where nothing can be fitted."""
        pairs = zip(self.plans, self.curves(range(len(self.problems))), strict=True)
        costs = tuple(self.cost(plan, curve) for plan, curve in pairs if plan and curve)
        return Prediction(multiple=MULTIPLE, costs=costs) if costs else None

    def predicted_ms(self, problem: int, known: Sequence[int]) -> list[float]:
        """Return the times that the known problems predict for another, by configuration; infinite if none."""
        curves = self.curves(known)
        return [
            float(self.times_of(c, curve)[problem]) if curve else math.inf
            for c, curve in enumerate(curves)
        ]

    def _designs(self, plan: Plan | None) -> dict[int, Array]:
        """Return what the time may depend on, a row per problem, by the number of resident blocks."""
        if plan is None or plan.grid is None:
            return {}
        try:
            form = blocks_of(plan.grid)
            blocks = [value_of(form, problem) for problem in self.problems]
        except ValueError:
            return {}
        single, double = self._products(self.single), self._products(self.double)
        designs = {}
        for resident in RESIDENT:
            parts = [double]
            for slots in self._slots(resident):
                waves = [-(-count // slots) for count in blocks]
                parts.append(np.array(waves, float)[:, None] * single)
            designs[resident] = np.hstack(parts)
        return designs

    def _slots(self, resident: int) -> list[int]:
        """Return the blocks that run at a time, in a round and in a wave; they are equal if one is resident."""
        return sorted({self.sm_count, self.sm_count * resident})

    def _products(self, terms: Sequence[tuple[str, ...]]) -> Array:
        rows = [
            [np.prod([float(problem[name]) for name in term]) for term in terms]
            for problem in self.problems
        ]
        return np.array(rows)

    def curves(self, known: Sequence[int]) -> list[Curve | None]:
        """Fit every configuration to its times on the known problems; None where that fails."""
        key = tuple(known)
        if key not in self._curves_of:
            self._curves_of[key] = [self.curve(c, key) for c in range(len(self.times))]
        return self._curves_of[key]

    def curve(self, configuration: int, known: Sequence[int]) -> Curve | None:
        """Fit a configuration to its times on the known problems; None where that fails."""
        rows = [p for p in known if np.isfinite(self.times[configuration, p])]
        if not rows:
            return None
        times, misaligned = self.times[configuration, rows], self.misaligned[rows]
        designs = {r: design[rows] for r, design in self.designs[configuration].items()}
        aligned = self._fit(designs, times)
        if aligned is None:
            return None
        # Means of the logarithms with a constant, drawn towards 0 by INDIFFERENCE.
        missed = np.log(times / (self.least_ms + designs[aligned.resident] @ aligned.coefficients))
        columns = np.hstack([misaligned, np.ones((len(rows), 1))])
        drawn = np.diag([INDIFFERENCE] * len(self.names) + [1e-6])
        factors = np.linalg.solve(columns.T @ columns + drawn, columns.T @ missed)[:-1].clip(0)
        curve = self._fit(designs, times / np.exp(misaligned @ factors))
        return curve and curve._replace(misaligned=factors)

    def _fit(self, designs: dict[int, Array], times: Array) -> Curve | None:
        from scipy.optimize import nnls

        best, least_error = None, np.inf
        for resident, design in designs.items():
            relative = design / times[:, None]
            scale = np.abs(relative).max(axis=0)
            scale[scale == 0] = 1
            count = len(scale)
            wanted = np.concatenate([(1 - self.least_ms / times).clip(0), np.zeros(count)])
            try:
                found, error = nnls(np.vstack([relative / scale, RIDGE * np.eye(count)]), wanted)
            except RuntimeError:  # it did not converge
                continue
            if error < least_error:
                best, least_error = Curve(resident, found / scale, np.zeros(0)), error
        return best

    def times_of(self, configuration: int, curve: Curve) -> Array:
        """Return the times that a curve predicts, for every problem."""
        design = self.designs[configuration][curve.resident]
        aligned: Array = self.least_ms + design @ curve.coefficients
        late: Array = np.exp(self.misaligned @ curve.misaligned)
        return aligned * late

    def cost(self, plan: Plan, curve: Curve) -> Cost:
        """Return a fitted time as records hold it."""
        first, count = len(self.double), len(self.single)
        parts = np.split(curve.coefficients, range(first, len(curve.coefficients), count))
        parts[0][self.double.index(())] += self.least_ms
        factors = zip(self.names, np.exp(curve.misaligned), strict=True)
        return Cost(
            plan=plan,
            fixed=_terms(parts[0], self.double),
            waves=tuple(
                (slots, _terms(part, self.single))
                for slots, part in zip(self._slots(curve.resident), parts[1:], strict=True)
            ),
            misaligned={name: _rounded(factor) for name, factor in factors if factor > 1.005},
        )


def _terms(coefficients: Array, products: Sequence[tuple[str, ...]]) -> tuple[Term, ...]:
    pairs = zip(map(float, coefficients), products, strict=True)
    return tuple((_rounded(value), names) for value, names in pairs if value > 0)


def _rounded(value: float) -> float:
    """Round to four significant digits: more would be noise, in every header."""
    return float(f"{value:.4g}")
