"""Fits a formula for the time of each configuration to its measured times.

A fitted time is the sum of three parts:

- once: a constant, integer problem fields, and products of two fields
- per round: a constant and fields. There are ``ceil(blocks / multiprocessors)`` rounds.
- per wave: a constant and fields. There are ``ceil(blocks / resident blocks of the device)`` waves.

So the part per round doubles from 120 to 144 blocks on 132 multiprocessors. Non-negative least squares of
relative errors fit the coefficients (Lawson and Hanson, *Solving Least Squares Problems*, 1974), for each number
of resident blocks of `RESIDENT`; the best fit counts. Then a factor for each misaligned field is fitted, and the
formula again to the times without these factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from autotune.answers.table import Cost, Plan, Portfolio, Term, blocks_of, fillings
from autotune.kernel.expression import value_of

Array: TypeAlias = np.ndarray[Any, Any]

#: Numbers of resident blocks of a multiprocessor that a fit tries.
RESIDENT = (1, 2, 4, 8)
#: Least time of any call, as a share of the shortest time of the matrix. Every launch takes some time, also of
#: a configuration that was measured on large problems only.
LEAST_SHARE = 0.5
#: Weight of small coefficients (ridge regression); it decides between fits to few problems.
RIDGE = 0.1
#: A size is aligned if it is a multiple of four elements, the widest load of float32.
MULTIPLE = 4
#: Shrinks an alignment factor towards 1, as if by this many problems without an error.
INDIFFERENCE = 4


class Curve(NamedTuple):
    """The fitted formula of one configuration."""

    #: Resident blocks of a multiprocessor.
    resident: int
    #: A coefficient for each column of the design with this number of resident blocks.
    coefficients: Array
    #: Logarithms of the factors of misaligned fields.
    misaligned: Array


class Formulas:
    """Fits of the times of a matrix whose problems share their categorical fields.

    ``plans`` has the plan of each configuration for these problems; None for a configuration without times.
    Methods take problems as column numbers.
    """

    def __init__(self, matrix: Portfolio, plans: Sequence[Plan | None], sm_count: int) -> None:
        self.problems = [dict(problem) for problem in matrix.problems]
        self.times = np.array([[ms or np.nan for ms in row] for row in matrix.median_ms])
        self.least_ms = LEAST_SHARE * float(np.nanmin(self.times))
        self.sm_count = sm_count
        self.names = [name for name, value in self.problems[0].items() if isinstance(value, int)]
        self.single: list[tuple[str, ...]] = [(), *((name,) for name in self.names)]
        self.double = [*self.single, *combinations(self.names, 2)]
        values = [[problem[name] for name in self.names] for problem in self.problems]
        self.misaligned = np.array([[value % MULTIPLE != 0 for value in row] for row in values])
        self.plans = plans
        self._of_single, self._of_double = map(self._products, (self.single, self.double))
        #: Cached by the expression of the blocks, because many plans share it.
        self._fillings: dict[str, Array | None] = {}
        self.designs = [self._designs(plan) for plan in plans]

    def fillings_of(self, plan: Plan | None) -> Array | None:
        """Return the `autotune.answers.table.fillings` of a plan, a row per problem; None if unknown.

        The first column is the number of blocks.
        """
        if plan is None or plan.grid is None:
            return None
        form = blocks_of(plan.grid)
        key = str(form)
        if key not in self._fillings:
            try:
                rows = [fillings(value_of(form, p), self.sm_count) for p in self.problems]
                self._fillings[key] = np.array(rows)
            except ValueError:
                self._fillings[key] = None
        return self._fillings[key]

    def _designs(self, plan: Plan | None) -> dict[int, Array]:
        """Return the terms of the formula, a row per problem, by the number of resident blocks."""
        found = self.fillings_of(plan)
        if found is None:
            return {}
        designs = {}
        for resident in RESIDENT:
            parts = [self._of_double]
            for slots in self._slots(resident):
                waves = -(-found[:, 0] // slots)
                parts.append(waves.astype(float)[:, None] * self._of_single)
            designs[resident] = np.hstack(parts)
        return designs

    def _slots(self, resident: int) -> list[int]:
        """Return the blocks of a round and of a wave; a single number if they are equal."""
        return sorted({self.sm_count, self.sm_count * resident})

    def _products(self, terms: Sequence[tuple[str, ...]]) -> Array:
        rows = [
            [np.prod([float(problem[name]) for name in term]) for term in terms]
            for problem in self.problems
        ]
        return np.array(rows)

    def curve(self, configuration: int, known: Sequence[int]) -> Curve | None:
        """Fit a configuration's formula to its times on the known problems; None if the fit fails."""
        rows = [p for p in known if np.isfinite(self.times[configuration, p])]
        if not rows:
            return None
        times, misaligned = self.times[configuration, rows], self.misaligned[rows]
        designs = {r: design[rows] for r, design in self.designs[configuration].items()}
        aligned = self._fit(designs, times)
        if aligned is None:
            return None
        # A ridge regression of the logarithms with a constant; INDIFFERENCE shrinks factors towards 1.
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
            except RuntimeError:  # no convergence
                continue
            if error < least_error:
                best, least_error = Curve(resident, found / scale, np.zeros(0)), error
        return best

    def times_of(self, configuration: int, curve: Curve) -> Array:
        """Return the times in ms that a curve predicts for all problems."""
        design = self.designs[configuration][curve.resident]
        aligned: Array = self.least_ms + design @ curve.coefficients
        late: Array = np.exp(self.misaligned @ curve.misaligned)
        return aligned * late

    def cost(self, plan: Plan, curve: Curve) -> Cost:
        """Return a fitted formula in the schema of records."""
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
    """Round to four significant digits; further digits would be noise, and lengthen headers."""
    return float(f"{value:.4g}")
