"""Makes answers for problems that were not measured of the portfolio matrix.

`answer_tables` decides once, so that lookups in Python and C++ only walk a table. Of several ways
to answer it takes the one that answers best for problems that are left out of the matrix. With a
problem go the configurations that are best for no other: nobody would have found them without it.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import Any, TypeAlias

import msgspec

from autotune.tuned.prediction import Predictor
from autotune.tuned.record import AnswerTable, Expectation, Plan, Portfolio, Sizes, TableRow, Value
from autotune.tuned.table import distance, place_of
from autotune.values import by_category

#: The most speed, as a share, that is given up for a configuration that is deterministic.
DETERMINISM = 0.02
#: Distances after which a problem counts half, in sixteenths of octaves. 0: only the row's own.
WIDTHS = (0, 8, 16, 32, 64, 128)
#: A prediction makes records and headers longer, for which it must answer better by this.
WORTHWHILE = 0.002
#: Distances that have an expectation. Nothing is expected beyond the last.
STEPS = (16, 32, 64, 128)
#: The step after the last, which counts for the last expectation.
_BEYOND = 256
#: Fewer problems than this tell nothing about those that were not measured.
ENOUGH_PROBLEMS = 4
#: Share of problems for which a bound need not hold.
LEVEL = 0.05
#: Counts as the share of a problem where nothing runs.
FAILED = 1e-3
#: Smaller shares are not recorded as expectations.
LEAST = 0.1

#: Share of a winner's speed below which the best of a matrix was measured for other categories alone.
_MUCH_SLOWER = 0.85
#: Returns how a configuration launches for a problem: a categorical field may change that.
Planner: TypeAlias = "Callable[[Mapping[str, Value], Sizes], Plan]"
#: Returns the position of the configuration that answers for a problem, from the known problems
#: and without some configurations; None where none runs.
Way: TypeAlias = "Callable[[int, Sequence[int], Set[int]], int | None]"


def answer_tables(
    portfolio: Portfolio,
    planner: Planner,
    sm_count: int,
    winners_ms: Sequence[float | None] = (),
    plain: Mapping[str, int] = {},
    layouts: Sequence[Mapping[str, int]] = (),
    winners: Sequence[Mapping[str, Any] | None] = (),
) -> tuple[AnswerTable, ...]:
    """Return the answers for problems that were not measured: a table for each category.

    A table has one row per problem that some configuration runs, in the portfolio's order. Of each
    problem ``winners_ms`` may have the time of the search's winner, which need not be in the matrix:
    expectations are shares of the best of both. Where most of these are much faster than all of the
    matrix, which lacks them, the nearest of the ``winners`` answers, and nothing is expected. Rows
    have further plans for ``layouts`` other than the ``plain`` one that is tuned.
    """
    demands = [(layout, False) for layout in layouts]
    demands += [(layout, True) for layout in (plain, *layouts)]
    tables = []
    for columns in _timed_by_category(portfolio):
        plans = _plans(portfolio, columns, planner)
        as_counted = counted(portfolio, plans)
        times_ms = [winners_ms[column] if winners_ms else None for column in columns]
        matrix = _Matrix(portfolio, as_counted, columns, times_ms)
        scores = {width: matrix.score(partial(matrix.nearest, width)) for width in WIDTHS}
        width = max(WIDTHS, key=scores.__getitem__)
        way, prediction = partial(matrix.nearest, width), None
        if len(columns) >= ENOUGH_PROBLEMS:
            fits = Predictor(as_counted, columns, plans, sm_count)
            fitted, predicted = fits.prediction(), partial(matrix.predicted, fits)
            if fitted and matrix.score(predicted) > scores[width] + WORTHWHILE:
                way, prediction = predicted, fitted
        missing = [c for c in columns if winners and _lacks(portfolio, winners[c])]
        shares = dict(zip(columns, matrix.of_best_known, strict=True))
        much_slower = sum(shares[column] < _MUCH_SLOWER for column in missing)
        of_winners = winners if 2 * much_slower > len(columns) else ()
        rows = []
        for number, column in enumerate(columns):
            problem = portfolio.problems[column]
            chosen = matrix.choice(number, range(len(columns)), width)
            winner = of_winners[column] if of_winners else None
            first = planner(winner or portfolio.configurations[chosen], problem)
            further = _further_plans(portfolio, column, planner, first, demands)
            rows.append(TableRow(problem=problem, plans=(first, *further)))
        if of_winners:
            tables.append(AnswerTable(rows=tuple(rows)))
            continue
        expected = expectations(range(len(columns)), matrix.apart, partial(matrix.share, way))
        tables.append(AnswerTable(rows=tuple(rows), prediction=prediction, expected=expected))
    return tuple(tables)


def _lacks(portfolio: Portfolio, winner: Mapping[str, Any] | None) -> bool:
    return winner is not None and winner not in portfolio.configurations


def expectations(
    problems: Sequence[int],
    apart: Callable[[int, int], int],
    share_of: Callable[[int, Sequence[int]], float],
) -> tuple[Expectation, ...]:
    """Return the share that nine of ten problems get at least, by the distance to what was measured.

    Every problem is left out alone, and then with its neighbours, farther and farther. What it gets
    is filed under the distance to the nearest problem that is left. The expectation for a distance
    is the `lower_bound` of the problems there or in the next step, of each the worst share. It is
    empty where too little is known.

    Parameters
    ----------
    problems : sequence of int
        The measured problems.
    apart : callable
        The distance of two of them.
    share_of : callable
        The share of the best speed that a problem gets from a table of the given others.
    """
    ends = (*STEPS, _BEYOND)
    shares: list[dict[int, float]] = [{} for _ in ends]
    for problem in problems:
        distances = {other: apart(problem, other) for other in problems if other != problem}
        for emptied in (-1, *STEPS):
            known = [other for other, distance in distances.items() if distance > emptied]
            if len(known) < ENOUGH_PROBLEMS - 1:  # no table would be made of so few
                break
            step = bisect_left(ends, min(distances[other] for other in known))
            # With nothing so near, leaving out what is nearer yet leaves out the same.
            if step < len(ends) and problem not in shares[step]:
                shares[step][problem] = share_of(problem, known)
    found: list[Expectation] = []
    for place, step in enumerate(STEPS):
        worst: dict[int, float] = {}
        for problem, share in itertools.chain(shares[place].items(), shares[place + 1].items()):
            worst[problem] = min(share, worst.get(problem, share))
        if len(worst) >= ENOUGH_PROBLEMS:
            bound = min(lower_bound(tuple(worst.values())), found[-1][1] if found else 1.0)
            if bound < LEAST:
                break
            if found and found[-1][1] == bound:
                found.pop()
            found.append((step, bound))
    return tuple(found)


def lower_bound(shares: Sequence[float]) -> float:
    """Return what one more share is at least, with a probability of 95 %.

    Of 19 or more shares it is their quantile, as in the jackknife (Barber, Candès, Ramdas and
    Tibshirani, *Predictive inference with the jackknife+*, 2021). Of fewer it is the least, or the
    bound of one more loss if that is lower, as if losses, minus the logarithms of shares, were
    exponential (Lawless, *Statistical Models and Methods for Lifetime Data*, 2003). It is 95 %
    and not 90 %, since problems of one kernel are not drawn at random, as these suppose.
    """
    count = len(shares)
    logs = sorted(math.log(max(share, FAILED)) for share in shares)
    place = math.floor(LEVEL * (count + 1))
    exponential = sum(logs) * (LEVEL ** (-1 / count) - 1)
    bound = math.exp(logs[place - 1] if place else min(logs[0], exponential))
    return math.floor(1e4 * bound + 1e-9) / 1e4


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
        fields = {**problem, **layout}
        candidates = (planner(portfolio.configurations[number], problem) for _, number in fastest)
        for plan in itertools.chain(plans, candidates):
            if plan.allows(fields) and (plan.deterministic or not deterministic):
                plans += [plan] if plan not in plans else []
                break
    return plans[1:]


def _plans(portfolio: Portfolio, columns: Sequence[int], planner: Planner) -> list[Plan | None]:
    plans: list[Plan | None] = []
    for configuration, times in zip(portfolio.configurations, portfolio.median_ms, strict=True):
        runs = [portfolio.problems[column] for column in columns if times[column]]
        plans.append(planner(configuration, runs[0]) if runs else None)
    return plans


def counted(portfolio: Portfolio, plans: Sequence[Plan | None]) -> Portfolio:
    """Return a portfolio in which plans that are not deterministic count as slower, as in finals."""
    if not any(plan is not None and plan.deterministic for plan in plans):
        return portfolio
    factors = [1 + DETERMINISM * (plan is not None and not plan.deterministic) for plan in plans]
    times = (
        tuple(ms and ms * factor for ms in row)
        for row, factor in zip(portfolio.median_ms, factors, strict=True)
    )
    return msgspec.structs.replace(portfolio, median_ms=tuple(times))


def _timed_by_category(portfolio: Portfolio) -> list[list[int]]:
    """Return the columns of each category that some configuration was timed on."""
    groups = by_category(portfolio.problems).values()
    timed = ([c for c in group if any(row[c] for row in portfolio.median_ms)] for group in groups)
    return [columns for columns in timed if columns]


def _fractions(
    portfolio: Portfolio, columns: Sequence[int]
) -> tuple[list[list[float]], list[float]]:
    """Return the shares of the best speed, by configuration and problem, and the best times."""
    times = [[row[column] for column in columns] for row in portfolio.median_ms]
    best_ms = [min(ms or math.inf for ms in column) for column in zip(*times, strict=True)]
    shares = [
        [least_ms / ms if ms else 0.0 for least_ms, ms in zip(best_ms, row, strict=True)]
        for row in times
    ]
    return shares, best_ms


class _Matrix:
    """Fractions of the best speed: one row per configuration, one column per problem of a category."""

    def __init__(
        self,
        portfolio: Portfolio,
        counted: Portfolio,
        columns: Sequence[int],
        winners_ms: Sequence[float | None],
    ) -> None:
        self.places = [place_of(tuple(portfolio.problems[column].values())) for column in columns]
        self.fractions, best_ms = _fractions(portfolio, columns)
        shares, _ = _fractions(counted, columns)
        self.logs = [[math.log(max(share, FAILED)) for share in row] for row in shares]
        #: The best configuration of each problem.
        self.best = [column.index(max(column)) for column in zip(*shares, strict=True)]
        #: Share of the best known speed that the best of the matrix has.
        self.of_best_known = [
            min(1.0, winner_ms / ms) if winner_ms else 1.0
            for winner_ms, ms in zip(winners_ms, best_ms, strict=True)
        ]

    def apart(self, p: int, q: int) -> int:
        return distance(self.places[p], self.places[q]) or 0

    def choice(
        self, row: int, known: Sequence[int], width: int, without: Set[int] = frozenset()
    ) -> int:
        """Return the configuration for the surroundings of a problem, judged by the known ones.

        It has the best weighted geometric mean, the weight halving with every ``width`` of distance:
        one that wins a size by a hair may lose badly at the next.
        """
        if width == 0:
            known = [row]
        weights = {p: 2.0 ** -(self.apart(row, p) / width) if width else 1.0 for p in known}
        scores = [
            -math.inf if c in without else sum(w * logs[p] for p, w in weights.items())
            for c, logs in enumerate(self.logs)
        ]
        return scores.index(max(scores))

    def nearest(
        self, width: int, problem: int, known: Sequence[int], without: Set[int]
    ) -> int | None:
        """Answer with the choice for the surroundings of the nearest problem."""
        for row in sorted(known, key=lambda p: self.apart(problem, p)):
            chosen = self.choice(row, known, width, without)
            if self.fractions[chosen][problem]:  # else `requires` would tell a lookup
                return chosen
        return None

    def predicted(
        self, fits: Predictor, problem: int, known: Sequence[int], without: Set[int]
    ) -> int | None:
        """Answer with the least time that is fitted to the known problems."""
        able = [
            (ms, c)
            for c, ms in enumerate(fits.predicted_ms(problem, known))
            if c not in without and ms < math.inf and self.fractions[c][problem]
        ]
        return min(able)[1] if able else None

    def share(self, way: Way, problem: int, known: Sequence[int]) -> float:
        """Return the share of the best speed that a problem gets from the known ones."""
        newcomers = frozenset(self.best).difference(self.best[p] for p in known)
        chosen = way(problem, known, newcomers)
        reached = 0.0 if chosen is None else self.fractions[chosen][problem]
        return reached * self.of_best_known[problem]

    def score(self, way: Way) -> float:
        """Return the geometric mean of what problems get that are left out."""
        problems = range(len(self.places))
        if len(problems) < 2:
            return 0.0
        shares = (self.share(way, p, [q for q in problems if q != p]) for p in problems)
        return math.exp(sum(math.log(max(s, FAILED)) for s in shares) / len(problems))
