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
from autotune.tuned.promise import ENOUGH_PROBLEMS, FAILED, lowered, promises, rounded
from autotune.tuned.record import FallbackRow, Plan, Portfolio, Prediction
from autotune.tuned.table import CORRECTED, distance, place_of

#: The most speed, as a share, that is given up for a configuration whose results are the same in every run.
DETERMINISM = 0.02

#: Distances after which a problem counts half, in sixteenths of octaves. 0: only the row's own.
WIDTHS = (0, 8, 16, 32, 64, 128)
#: Answers that get less of the best known for a problem of the matrix itself are not given around it.
POOR = 0.8
#: A prediction makes records and headers longer, for which it must answer better by this.
WORTHWHILE = 0.002

#: Says how a configuration launches for a problem: a categorical field may change that.
Planner: TypeAlias = (
    "Callable[[Mapping[str, int | bool | float | str], Mapping[str, int | str]], Plan]"
)
#: A configuration and its time.
Winner: TypeAlias = "tuple[Mapping[str, int | bool | float | str], float]"
#: What a way of answering would answer for a problem with nothing but others known, and without
#: some configurations: the position of a configuration, None where none runs.
Way: TypeAlias = "Callable[[int, Sequence[int], Set[int]], int | None]"


def fallback_table(
    portfolio: Portfolio,
    planner: Planner,
    sm_count: int,
    winners: Sequence[Winner | None] = (),
) -> tuple[tuple[FallbackRow, ...], tuple[Prediction, ...]]:
    """Choose a plan for the surroundings of every problem of a portfolio.

    One row per problem that some configuration runs, in the portfolio's order, and the predictions
    that rows name. Of each problem ``winners`` may have the winner of its search, which need not be
    in the matrix: promises are shares of the best of either.

    Where what answers gets less than promised for a problem of the matrix itself, or less than `POOR`,
    it promises no more around it, and the best for that problem is a row that answers there, after all
    others.
    """
    rows: dict[int, FallbackRow] = {}
    corrections: dict[int, FallbackRow] = {}
    predictions: list[Prediction] = []
    for group in _by_category(portfolio):
        plans = _plans(portfolio, group, planner)
        counted = _counted(portfolio, plans)
        matrix = _Matrix(
            portfolio, counted, group, [winners[column] if winners else None for column in group]
        )
        scores = {width: matrix.score(matrix.nearest(width)) for width in WIDTHS}
        width = max(WIDTHS, key=scores.__getitem__)
        way, position = matrix.nearest(width), None
        if len(group) >= ENOUGH_PROBLEMS:
            fits = Predictor(counted, group, plans, sm_count)
            prediction, predicted = fits.prediction(), matrix.predicted(fits)
            if prediction and matrix.score(predicted) > scores[width] + WORTHWHILE:
                way, position = predicted, len(predictions)
                predictions.append(prediction)
        everything = range(len(group))
        promised = matrix.promises(way)
        for row, column in enumerate(group):
            problem = portfolio.problems[column]
            chosen = portfolio.configurations[matrix.choice(row, everything, width)]
            share = rounded(matrix.share(way, row, everything))
            rows[column] = FallbackRow(
                problem=problem,
                plan=planner(chosen, problem),
                promised=lowered(promised, 0, share),
                prediction=position,
            )
            if share < max(POOR, promised[0][1] if promised else 0.0):
                plan = planner(matrix.winners[row], problem)
                corrections[column] = FallbackRow(problem=problem, plan=plan, reach=CORRECTED)
    every = [table[column] for table in (rows, corrections) for column in sorted(table)]
    return tuple(every), tuple(predictions)


def with_views(
    rows: Sequence[FallbackRow],
    portfolio: Portfolio,
    planner: Planner,
    plain: Mapping[str, int],
    layouts: Sequence[Mapping[str, int]],
) -> tuple[FallbackRow, ...]:
    """Rows with what to use for arrays that lie in ways that their plans do not take, or deterministically.

    For each of ``layouts``, and then for the one that is tuned and each again where the answer must be
    deterministic, the configuration that takes it and is the fastest for the row's own problem, as far
    as that was measured.
    """
    completed = []
    for row in rows:
        plans = [row.plan]
        column = portfolio.problems.index(row.problem) if row.problem in portfolio.problems else -1
        times = [] if column < 0 else [times[column] for times in portfolio.median_ms]
        fastest = sorted((ms, number) for number, ms in enumerate(times) if ms)
        demands = [(layout, False) for layout in layouts]
        demands += [(layout, True) for layout in (plain, *layouts)]
        for layout, deterministic in demands:
            serves = partial(_serves, {**row.problem, **layout}, deterministic)
            if not any(map(serves, plans)):
                able = (
                    planner(portfolio.configurations[number], row.problem) for _, number in fastest
                )
                plans += itertools.islice(filter(serves, able), 1)
        completed.append(msgspec.structs.replace(row, views=tuple(plans[1:])))
    return tuple(completed)


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
        winners: Sequence[Winner | None],
    ) -> None:
        self.places = [place_of(tuple(portfolio.problems[column].values())) for column in group]
        self.fractions, best_ms = _fractions(portfolio, group)
        shares, _ = _fractions(counted, group)
        self.logs = [[math.log(max(share, FAILED)) for share in row] for row in shares]
        #: The best configuration of each problem.
        self.best = [column.index(max(column)) for column in zip(*shares, strict=True)]
        #: The best known of each problem, and its time beside the best of the matrix.
        self.winners = [portfolio.configurations[c] for c in self.best]
        self.beside = [1.0] * len(group)
        for p, winner in enumerate(winners):
            if winner and winner[1] < best_ms[p]:
                self.winners[p], self.beside[p] = winner[0], winner[1] / best_ms[p]

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
        return 0.0 if chosen is None else self.fractions[chosen][problem] * self.beside[problem]

    def score(self, way: Way) -> float:
        """Geometric mean of what problems get that are left out."""
        problems = range(len(self.places))
        if len(problems) < 2:
            return 0.0
        shares = (self.share(way, p, [q for q in problems if q != p]) for p in problems)
        return math.exp(sum(math.log(max(s, FAILED)) for s in shares) / len(problems))

    def promises(self, way: Way) -> tuple[tuple[int, float], ...]:
        """What problems get at least, by their distance to those of the group."""
        problems = range(len(self.places))
        return promises(problems, self.apart, lambda p, known: self.share(way, p, known))
