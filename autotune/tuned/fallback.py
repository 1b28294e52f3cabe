"""The fallback table: what to use for problems that were never measured.

From the portfolio matrix (every finalist measured on every problem) it chooses one plan for the
surroundings of each measured problem. Regret is minimised here, once, so that lookups in Python and
C++ only walk a table. Knows no devices, files or kernels.

A plan that wins at one size by a hair may lose badly at the next, so a row's plan is the one with
the best weighted geometric mean over all problems, the weight halving with every ``width`` of
distance. How far to look is not known beforehand: of several widths that is taken whose table
answers best for problems that were left out of it. What it then answers for them is the expected
fraction of the best possible speed. Where times fitted to the same matrix (`prediction`) answer
better for problems that were left out of them, the rows name that prediction.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from autotune.tuned.prediction import fitted
from autotune.tuned.record import FallbackRow, Plan, Portfolio, Prediction
from autotune.tuned.table import distance, place_of

#: Distances after which a problem counts half, in sixteenths of octaves. 0: only the row's own.
WIDTHS = (0, 8, 16, 32, 64, 128)
#: Fewer problems than this tell nothing about those that were not measured.
ENOUGH_PROBLEMS = 4
#: A prediction makes records and headers longer, for which it must answer better by this.
WORTHWHILE = 0.002
#: Fraction of a configuration that fails on a problem: worse than any that runs.
_FAILED = 1e-3

#: Says how a configuration launches for a problem: a categorical field may change that.
Planner: TypeAlias = "Callable[[Mapping[str, int | bool | str], Mapping[str, int | str]], Plan]"


def fallback_table(
    portfolio: Portfolio, planner: Planner, sm_count: int
) -> tuple[tuple[FallbackRow, ...], tuple[Prediction, ...]]:
    """Choose a plan for the surroundings of every problem of a portfolio.

    One row per problem that some configuration runs, in the portfolio's order, and the predictions
    that rows name.
    """
    rows: dict[int, FallbackRow] = {}
    predictions: list[Prediction] = []
    for group in _by_category(portfolio):
        matrix = _Matrix(portfolio, group)
        width = max(WIDTHS, key=matrix.score)
        expected = position = None
        if len(group) >= ENOUGH_PROBLEMS:
            expected = matrix.score(width)
            found = fitted(portfolio, group, _plans(portfolio, group, planner), sm_count)
            if found and found[1] > expected + WORTHWHILE:
                expected, position = found[1], len(predictions)
                predictions.append(found[0])
        for row, column in enumerate(group):
            chosen = portfolio.configurations[matrix.choice(row, range(len(group)), width)]
            rows[column] = FallbackRow(
                problem=portfolio.problems[column],
                plan=planner(chosen, portfolio.problems[column]),
                expected_fraction=expected,
                prediction=position,
            )
    return tuple(rows[column] for column in sorted(rows)), tuple(predictions)


def with_views(
    rows: Sequence[FallbackRow],
    portfolio: Portfolio,
    planner: Planner,
    layouts: Sequence[Mapping[str, int]],
) -> tuple[FallbackRow, ...]:
    """Rows with what to use for arrays that lie in ways that their plans do not take.

    For each of ``layouts`` the configuration that takes it and is the fastest for the row's own
    problem, as far as that was measured.
    """
    completed = []
    for row in rows:
        plans = [row.plan]
        column = portfolio.problems.index(row.problem) if row.problem in portfolio.problems else -1
        times = [] if column < 0 else [times[column] for times in portfolio.median_ms]
        fastest = sorted((ms, number) for number, ms in enumerate(times) if ms)
        for layout in layouts:
            fields = {**row.problem, **layout}
            if any(plan.allows(fields) for plan in plans):
                continue
            able = (planner(portfolio.configurations[number], row.problem) for _, number in fastest)
            plans += itertools.islice((plan for plan in able if plan.allows(fields)), 1)
        completed.append(msgspec.structs.replace(row, views=tuple(plans[1:])))
    return tuple(completed)


def _plans(portfolio: Portfolio, group: Sequence[int], planner: Planner) -> list[Plan | None]:
    """Of each configuration the plan for the first problem of a group that it runs."""
    plans: list[Plan | None] = []
    for configuration, times in zip(portfolio.configurations, portfolio.median_ms, strict=True):
        runs = [portfolio.problems[column] for column in group if times[column]]
        plans.append(planner(configuration, runs[0]) if runs else None)
    return plans


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
        self.places = [place_of(tuple(portfolio.problems[column].values())) for column in group]
        times = [[row[column] for column in group] for row in portfolio.median_ms]
        best = [
            min(time_ms or math.inf for time_ms in column) for column in zip(*times, strict=True)
        ]
        self.fractions = [
            [best[p] / time_ms if time_ms else 0.0 for p, time_ms in enumerate(row)]
            for row in times
        ]
        self.logs = [[math.log(max(share, _FAILED)) for share in row] for row in self.fractions]

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
