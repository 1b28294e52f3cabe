"""The fallback table: what to use for problems that were never measured.

From the portfolio matrix (every finalist measured on every problem) it chooses one plan for the
surroundings of each measured problem. Regret is minimised here, once, so that lookups in Python and
C++ only walk a table. Knows no devices, files or kernels.

A plan that wins at one size by a hair may lose badly at the next, so a row's plan is the one with
the best weighted geometric mean over all problems, the weight halving with every ``width`` of
distance. How far to look is not known beforehand: of several widths that is taken whose table
answers best for problems that were left out of it. Where times fitted to the same matrix
(`prediction`) answer better for problems that were left out of them, the rows name that prediction.

What is not deterministic counts as slower by `DETERMINISM` than it is, as in finals, where one is
chosen from several; shares are of true times.

With problems that are left out go the configurations that are best for no other: without those
problems nobody would have found them. What the others then give, beside the best that was ever
measured for it, is what rows promise (`promise`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import TypeAlias

import msgspec

from autotune.tuned.prediction import Predictor
from autotune.tuned.promise import ENOUGH_PROBLEMS, FAILED, expectations
from autotune.tuned.record import AnswerTable, Expectation, Plan, Portfolio, TableRow
from autotune.tuned.table import distance, place_of

#: The most speed, as a share, that is given up for a configuration whose results are the same in every run.
DETERMINISM = 0.02

#: Distances after which a problem counts half, in sixteenths of octaves. 0: only the row's own.
WIDTHS = (0, 8, 16, 32, 64, 128)
#: A prediction makes records and headers longer, for which it must answer better by this.
WORTHWHILE = 0.002

#: Says how a configuration launches for a problem: a categorical field may change that.
Planner: TypeAlias = (
    "Callable[[Mapping[str, int | bool | float | str], Mapping[str, int | str]], Plan]"
)
#: What a way of answering would answer for a problem with nothing but others known, and without
#: some configurations: the position of a configuration, None where none runs.
Way: TypeAlias = "Callable[[int, Sequence[int], Set[int]], int | None]"


def answer_tables(
    portfolio: Portfolio,
    planner: Planner,
    sm_count: int,
    winners_ms: Sequence[float | None] = (),
    plain: Mapping[str, int] = {},
    layouts: Sequence[Mapping[str, int]] = (),
) -> tuple[AnswerTable, ...]:
    """Return the answers for problems that were not measured: a table for each category.

    A table has one row per problem that some configuration runs, in the portfolio's order. Of each
    problem ``winners_ms`` may have the time of the search's winner, which need not be in the matrix:
    expectations are shares of the best of both. Rows have further plans for ``layouts`` beside
    the ``plain`` one that is tuned.
    """
    tables = []
    demands = [(layout, False) for layout in layouts]
    demands += [(layout, True) for layout in (plain, *layouts)]
    for group in _by_category(portfolio):
        plans = _plans(portfolio, group, planner)
        counted = _counted(portfolio, plans)
        matrix = _Matrix(
            portfolio,
            counted,
            group,
            [winners_ms[column] if winners_ms else None for column in group],
        )
        scores = {width: matrix.score(matrix.nearest(width)) for width in WIDTHS}
        width = max(WIDTHS, key=scores.__getitem__)
        way, prediction = matrix.nearest(width), None
        if len(group) >= ENOUGH_PROBLEMS:
            fits = Predictor(counted, group, plans, sm_count)
            fitted, predicted = fits.prediction(), matrix.predicted(fits)
            if fitted and matrix.score(predicted) > scores[width] + WORTHWHILE:
                way, prediction = predicted, fitted
        everything = range(len(group))
        rows = []
        for number, column in enumerate(group):
            problem = portfolio.problems[column]
            chosen = portfolio.configurations[matrix.choice(number, everything, width)]
            first = planner(chosen, problem)
            further = _further_plans(portfolio, column, planner, first, demands)
            rows.append(TableRow(problem=problem, plans=(first, *further)))
        expected = matrix.expected(way)
        tables.append(AnswerTable(rows=tuple(rows), prediction=prediction, expected=expected))
    return tuple(tables)


def _further_plans(
    portfolio: Portfolio,
    column: int,
    planner: Planner,
    first: Plan,
    demands: Sequence[tuple[Mapping[str, int], bool]],
) -> list[Plan]:
    """Return the fastest plan for each layout and demand for determinism that none before meets."""
    problem, plans = portfolio.problems[column], [first]
    times = [times[column] for times in portfolio.median_ms]
    fastest = sorted((ms, number) for number, ms in enumerate(times) if ms)
    for layout, deterministic in demands:
        serves = partial(_serves, {**problem, **layout}, deterministic)
        if not any(map(serves, plans)):
            able = (planner(portfolio.configurations[number], problem) for _, number in fastest)
            plans += itertools.islice(filter(serves, able), 1)
    return plans[1:]


def _serves(fields: Mapping[str, int | str], deterministic: bool, plan: Plan) -> bool:
    return plan.allows(fields) and (plan.deterministic or not deterministic)


def _plans(portfolio: Portfolio, group: Sequence[int], planner: Planner) -> list[Plan | None]:
    """Of each configuration the plan for the first problem of a group that it runs."""
    plans: list[Plan | None] = []
    for configuration, times in zip(portfolio.configurations, portfolio.median_ms, strict=True):
        runs = [portfolio.problems[column] for column in group if times[column]]
        plans.append(planner(configuration, runs[0]) if runs else None)
    return plans


def _counted(portfolio: Portfolio, plans: Sequence[Plan | None]) -> Portfolio:
    """A portfolio with times as they count when one configuration is chosen."""
    if not any(plan is not None and plan.deterministic for plan in plans):
        return portfolio
    factors = [1 + DETERMINISM * (plan is not None and not plan.deterministic) for plan in plans]
    times = (
        tuple(ms and ms * factor for ms in row)
        for row, factor in zip(portfolio.median_ms, factors, strict=True)
    )
    return msgspec.structs.replace(portfolio, median_ms=tuple(times))


def _by_category(portfolio: Portfolio) -> list[list[int]]:
    """Columns of problems that share their categorical fields, without those that nothing runs."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for column, problem in enumerate(portfolio.problems):
        category = tuple(value for value in problem.values() if isinstance(value, str))
        if any(times[column] for times in portfolio.median_ms):
            groups.setdefault(category, []).append(column)
    return list(groups.values())


def _fractions(portfolio: Portfolio, group: Sequence[int]) -> tuple[list[list[float]], list[float]]:
    """Shares of the best speed, by configuration and problem of a group, and the best time of each."""
    times = [[row[column] for column in group] for row in portfolio.median_ms]
    best_ms = [min(ms or math.inf for ms in column) for column in zip(*times, strict=True)]
    shares = [
        [least_ms / ms if ms else 0.0 for least_ms, ms in zip(best_ms, row, strict=True)]
        for row in times
    ]
    return shares, best_ms


class _Matrix:
    """Fractions of the best speed: one row per configuration, one column per problem of a group."""

    def __init__(
        self,
        portfolio: Portfolio,
        counted: Portfolio,
        group: Sequence[int],
        winners_ms: Sequence[float | None],
    ) -> None:
        self.places = [place_of(tuple(portfolio.problems[column].values())) for column in group]
        self.fractions, best_ms = _fractions(portfolio, group)
        shares, _ = _fractions(counted, group)
        self.logs = [[math.log(max(share, FAILED)) for share in row] for row in shares]
        #: The best configuration of each problem.
        self.best = [column.index(max(column)) for column in zip(*shares, strict=True)]
        #: Share of the best known speed that the best of the matrix has.
        self.of_best_known = [
            min(1.0, winner_ms / ms) if winner_ms else 1.0
            for winner_ms, ms in zip(winners_ms, best_ms, strict=True)
        ]

    def apart(self, p: int, q: int) -> int:
        """Distance of two problems."""
        return distance(self.places[p], self.places[q]) or 0

    def choice(
        self, row: int, known: Sequence[int], width: int, without: Set[int] = frozenset()
    ) -> int:
        """The configuration for the surroundings of a problem, judged by the known ones."""
        if width == 0:
            known = [row]
        weights = {p: 2.0 ** -(self.apart(row, p) / width) if width else 1.0 for p in known}
        scores = [
            -math.inf if c in without else sum(w * logs[p] for p, w in weights.items())
            for c, logs in enumerate(self.logs)
        ]
        return scores.index(max(scores))

    def nearest(self, width: int) -> Way:
        """Answering with the choice for the surroundings of the nearest problem."""

        def answer(problem: int, known: Sequence[int], without: Set[int]) -> int | None:
            for row in sorted(known, key=lambda p: self.apart(problem, p)):
                chosen = self.choice(row, known, width, without)
                if self.fractions[chosen][problem]:  # else `requires` would tell a lookup
                    return chosen
            return None

        return answer

    def predicted(self, fits: Predictor) -> Way:
        """Answering with the least time that is fitted to the known problems."""

        def answer(problem: int, known: Sequence[int], without: Set[int]) -> int | None:
            times = enumerate(fits.predicted_ms(problem, known))
            able = [
                (ms, c)
                for c, ms in times
                if c not in without and ms < math.inf and self.fractions[c][problem]
            ]
            return min(able)[1] if able else None

        return answer

    def share(self, way: Way, problem: int, known: Sequence[int]) -> float:
        """Share of the best speed that a problem gets from what the known ones tell."""
        newcomers = frozenset(self.best).difference(self.best[p] for p in known)
        chosen = way(problem, known, newcomers)
        return (
            0.0 if chosen is None else self.fractions[chosen][problem] * self.of_best_known[problem]
        )

    def score(self, way: Way) -> float:
        """Geometric mean of what problems get that are left out."""
        problems = range(len(self.places))
        if len(problems) < 2:
            return 0.0
        shares = (self.share(way, p, [q for q in problems if q != p]) for p in problems)
        return math.exp(sum(math.log(max(s, FAILED)) for s in shares) / len(problems))

    def expected(self, way: Way) -> tuple[Expectation, ...]:
        """Return the shares that problems get at least, by their distance to those of the group."""
        problems = range(len(self.places))
        return expectations(problems, self.apart, lambda p, known: self.share(way, p, known))
