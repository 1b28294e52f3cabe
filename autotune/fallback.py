"""The fallback table: what to use for problems that were never measured.

From the portfolio matrix (every finalist measured on every problem) it chooses one plan for the
surroundings of each measured problem. Regret is minimised here, once, so that lookups in Python and
C++ only walk a table. Knows no devices, files or kernels.

A plan that wins at one size by a hair may lose badly at the next, so a row's plan is the one with
the best weighted geometric mean over all problems, the weight halving with every ``width`` of
distance. How far to look is not known beforehand: of several widths that is taken whose table
answers best for problems that were left out of it. What it then answers for them is the expected
fraction of the best possible speed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune._table import Problem, distance, sixteenths
from autotune.errors import UsageError
from autotune.tuned import FallbackRow, Plan, Portfolio

#: Distances after which a problem counts half, in sixteenths of octaves. 0: only the row's own.
WIDTHS = (0, 8, 16, 32, 64, 128)
#: Fewer problems than this tell nothing about those that were not measured.
ENOUGH_PROBLEMS = 4
#: Fraction of a configuration that fails on a problem: worse than any that runs.
_FAILED = 1e-3


def fallback_table(portfolio: Portfolio, plans: Sequence[Plan]) -> tuple[FallbackRow, ...]:
    """Choose a plan for the surroundings of every problem of a portfolio.

    Parameters
    ----------
    portfolio : Portfolio
        Configurations × problems in milliseconds.
    plans : sequence of Plan
        Of the portfolio's configurations, in the same order.

    Returns
    -------
    tuple of FallbackRow
        One per problem that some configuration runs, in the portfolio's order.

    Raises
    ------
    UsageError
        If there is not one plan per configuration.
    """
    if [dict(one.configuration) for one in plans] != [dict(c) for c in portfolio.configurations]:
        raise UsageError("a fallback table needs one plan per configuration of its portfolio")
    rows: dict[int, FallbackRow] = {}
    for group in _by_category(portfolio):
        matrix = _Matrix(portfolio, group)
        width = max(WIDTHS, key=matrix.score)
        enough = len(group) >= ENOUGH_PROBLEMS
        expected = matrix.score(width) if enough else None
        for row, column in enumerate(group):
            plan = plans[matrix.choice(row, range(len(group)), width)]
            rows[column] = FallbackRow(
                problem=portfolio.problems[column], plan=plan, expected_fraction=expected
            )
    return tuple(rows[column] for column in sorted(rows))


def _by_category(portfolio: Portfolio) -> list[list[int]]:
    """Columns of problems that share their categorical fields, without those that nothing runs."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for column, problem in enumerate(portfolio.problems):
        category = tuple(value for value in problem.values() if isinstance(value, str))
        if any(times[column] for times in portfolio.median_ms):
            groups.setdefault(category, []).append(column)
    return list(groups.values())


class _Matrix:
    """Fractions of the best speed: one row per configuration, one column per problem of a group."""

    def __init__(self, portfolio: Portfolio, group: Sequence[int]) -> None:
        self.places = [_place(tuple(portfolio.problems[column].values())) for column in group]
        times = [[row[column] for column in group] for row in portfolio.median_ms]
        best = [min(row[p] or math.inf for row in times) for p in range(len(group))]
        self.fractions = [
            [best_ms / one if one else 0.0 for one, best_ms in zip(row, best, strict=True)]
            for row in times
        ]
        self.logs = [[math.log(max(one, _FAILED)) for one in row] for row in self.fractions]

    def apart(self, p: int, q: int) -> int:
        """Distance of two problems."""
        return distance(self.places[p], self.places[q]) or 0

    def choice(self, row: int, known: Sequence[int], width: int) -> int:
        """The configuration for the surroundings of a problem, judged by the known ones."""
        if width == 0:
            known = [row]
        weights = {p: 2.0 ** -(self.apart(row, p) / width) if width else 1.0 for p in known}
        scores = [sum(w * logs[p] for p, w in weights.items()) for logs in self.logs]
        return scores.index(max(scores))

    def score(self, width: int) -> float:
        """Geometric mean of what a table answers for each problem that it was made without."""
        if len(self.places) < 2:
            return 0.0
        logs = [math.log(max(self.left_out(p, width), _FAILED)) for p in range(len(self.places))]
        return math.exp(sum(logs) / len(logs))

    def left_out(self, problem: int, width: int) -> float:
        """Fraction that a problem gets from the table of the others."""
        others = [p for p in range(len(self.places)) if p != problem]
        for nearest in sorted(others, key=lambda p: self.apart(problem, p)):
            fraction = self.fractions[self.choice(nearest, others, width)][problem]
            if fraction:  # 0: it does not run there, as its requires would tell a lookup
                return fraction
        return 0.0


def _place(problem: Problem) -> Problem:
    return tuple(one if isinstance(one, str) else sixteenths(one) for one in problem)
