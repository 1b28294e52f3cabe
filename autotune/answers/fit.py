"""Turns a matrix of times (configurations by problems) into the answer tables of a record."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np

from autotune.answers.category import CategoryFit, HeldOutShares
from autotune.answers.table import (
    AnswerTable,
    Plan,
    Portfolio,
    Prediction,
    Sizes,
    TableRow,
    Value,
)
from autotune.values import Configuration, Problem, by_category, category_of

#: Fewest measured sizes of a category for a fit; with fewer sizes the nearest row answers.
MIN_SIZES = 3
#: Maximum number of configurations that answer in a category.
MAX_CONFIGURATIONS = 32
#: Maximum number of configurations that answer in all categories together.
MAX_IN_ALL = 288
#: Largest slowdown, as a share, to accept for a deterministic configuration.
DETERMINISM = 0.02
#: No fit for a category if on most problems a winner outside the matrix takes less than this share of the
#: matrix's best time.
_MUCH_SLOWER = 0.85

#: Categorical values of a problem.
Category: TypeAlias = tuple[str, ...]


@dataclass(frozen=True)
class Launches:
    """The launches of a kernel's configurations on a device."""

    #: Returns the plan of a configuration for the category of a problem.
    plan: Callable[[Mapping[str, Value], Sizes], Plan]
    sm_count: int
    #: Layout fields of the tuned arrays.
    layout: Mapping[str, int]
    #: Other layouts that get plans of their own in the rows.
    other_layouts: Sequence[Mapping[str, int]] = ()

    def plans(self, matrix: Portfolio) -> list[Plan | None]:
        """Return the plans of a matrix's configurations; None for a configuration without times."""
        plans = list[Plan | None]()
        for configuration, times in zip(matrix.configurations, matrix.median_ms, strict=True):
            timed = (p for p, ms in zip(matrix.problems, times, strict=True) if ms)
            first = next(timed, None)
            plans.append(None if first is None else self.plan(configuration, first))
        return plans


class Winner(NamedTuple):
    """The winner of a problem's final race, with its time in the cache state of the matrix."""

    configuration: Mapping[str, Value]
    time_ms: float


class FittedPortfolio(NamedTuple):
    """A portfolio with its answer tables, and the evaluation of the fits on held-out sizes."""

    portfolio: Portfolio
    held_out: HeldOutShares


def fitted_tables(
    portfolio: Portfolio,
    launches: Launches,
    sizes: Portfolio | None = None,
    winners: Mapping[Problem, Winner] = {},
) -> FittedPortfolio:
    """Return a portfolio with an answer table for each category.

    A category with `MIN_SIZES` sizes or more gets a formula and trees for each of its best configurations.
    With fewer sizes the plan of the nearest row answers.

    Parameters
    ----------
    portfolio : Portfolio
        Times on the tuned problems. Each problem becomes a row of a table. New tables replace old ones. An
        old prediction stays if it was fitted to more sizes than given here, or if there is no new fit.
    launches : Launches
        The launches of the configurations.
    sizes : Portfolio, optional
        The matrix to fit: all problems with the same method of timing, tuned or random. Default:
        ``portfolio``.
    winners : mapping, optional
        Winners of tuned problems. A winner that is not in the portfolio, and is faster, becomes the first
        plan of its row.
    """
    fits = _fits(portfolio if sizes is None else sizes, launches, winners)
    most = min(MAX_CONFIGURATIONS, MAX_IN_ALL // max(1, len(fits)))
    predictions, shares = _kept(portfolio, launches), [np.zeros(0)]
    for category, fit in fits.items():
        kept = predictions.get(category)
        if kept is None or kept.sizes <= len(fit.matrix.problems):
            chosen = fit.chosen(most)
            held_out = fit.held_out(chosen)
            if prediction := fit.prediction(chosen, held_out):
                predictions[category] = prediction
                shares.append(held_out.shares)
    if sizes is not None:
        portfolio = _with_categories(portfolio, sizes)
    missing, tables = _missing(portfolio, winners), list[AnswerTable]()
    for category, columns in _timed_by_category(portfolio).items():
        part = _columns(portfolio, columns)
        part = _counted(part, launches.plans(part))
        rows = tuple(_row(part, column, launches, missing) for column in range(len(columns)))
        tables.append(AnswerTable(rows=rows, prediction=predictions.get(category)))
    portfolio = msgspec.structs.replace(portfolio, tables=tuple(tables))
    return FittedPortfolio(portfolio, HeldOutShares(np.concatenate(shares)))


def _timed_by_category(matrix: Portfolio) -> dict[Category, list[int]]:
    """Return the columns with a time, by category."""
    groups = by_category(matrix.problems).items()
    timed = {
        key: [c for c in group if any(row[c] for row in matrix.median_ms)] for key, group in groups
    }
    return {category: columns for category, columns in timed.items() if columns}


def _fits(
    matrix: Portfolio, launches: Launches, winners: Mapping[Problem, Winner]
) -> dict[Category, CategoryFit]:
    """Return the fits of the categories with enough sizes."""
    fits, missing = dict[Category, CategoryFit](), _missing(matrix, winners)
    for category, columns in _timed_by_category(matrix).items():
        part = _columns(matrix, columns)
        winners_ms = [
            missing[problem].time_ms if problem in missing else math.inf
            for problem in map(Problem, part.problems)
        ]
        if len(columns) >= MIN_SIZES and not _lacks_winners(part, winners_ms):
            plans = launches.plans(part)
            times = _counted(part, plans)
            fits[category] = CategoryFit(
                times, plans, launches.sm_count, launches.layout, winners_ms
            )
    for fit in fits.values():
        fit.others = [other for other in fits.values() if other is not fit]
    return fits


def _missing(matrix: Portfolio, winners: Mapping[Problem, Winner]) -> dict[Problem, Winner]:
    """Return the winners that are not in a matrix."""
    known = set(map(Configuration, matrix.configurations))
    return {
        problem: winner
        for problem, winner in winners.items()
        if Configuration(winner.configuration) not in known
    }


def _lacks_winners(matrix: Portfolio, winners_ms: Sequence[float]) -> bool:
    """Return whether missing winners are much faster than the matrix on most of its problems."""
    best_ms = (min(filter(None, times)) for times in zip(*matrix.median_ms, strict=True))
    is_slower = [_MUCH_SLOWER * ms > won for ms, won in zip(best_ms, winners_ms, strict=True)]
    return bool(2 * sum(is_slower) > len(is_slower))


def _counted(matrix: Portfolio, plans: Sequence[Plan | None]) -> Portfolio:
    """Slow down plans that are not deterministic by `DETERMINISM`, as a final race does."""
    if not any(plan is not None and plan.deterministic for plan in plans):
        return matrix
    factors = [1 + DETERMINISM * (plan is not None and not plan.deterministic) for plan in plans]
    times = (
        tuple(ms and ms * factor for ms in row)
        for row, factor in zip(matrix.median_ms, factors, strict=True)
    )
    return msgspec.structs.replace(matrix, median_ms=tuple(times))


def _kept(portfolio: Portfolio, launches: Launches) -> dict[Category, Prediction]:
    """Return the predictions of a portfolio's tables, with plans built again."""
    found = dict[Category, Prediction]()
    for table in portfolio.tables:
        if table.prediction:
            problem = table.rows[0].problem
            costs = tuple(
                msgspec.structs.replace(cost, plan=launches.plan(cost.plan.configuration, problem))
                for cost in table.prediction.costs
            )
            found[category_of(problem)] = msgspec.structs.replace(table.prediction, costs=costs)
    return found


def _with_categories(portfolio: Portfolio, sizes: Portfolio) -> Portfolio:
    """For each category only in ``sizes``, add its first size to the portfolio."""
    known = _timed_by_category(portfolio)
    further = _columns(
        sizes,
        [cs[0] for category, cs in _timed_by_category(sizes).items() if category not in known],
    )
    if not further.problems:
        return portfolio
    times, others = (
        dict(zip(map(Configuration, matrix.configurations), matrix.median_ms, strict=True))
        for matrix in (portfolio, further)
    )
    no_times, no_other_times = ((None,) * len(matrix.problems) for matrix in (portfolio, further))
    joined = {
        configuration: times.get(configuration, no_times)
        + others.get(configuration, no_other_times)
        for configuration in (*times, *others)
    }
    return msgspec.structs.replace(
        portfolio,
        configurations=tuple(map(dict, joined)),
        problems=portfolio.problems + further.problems,
        median_ms=tuple(joined.values()),
    )


def _row(
    matrix: Portfolio, column: int, launches: Launches, missing: Mapping[Problem, Winner]
) -> TableRow:
    """Return the row of a problem: its fastest plan, then plans for other layouts and for determinism.

    For each demand (layout, determinism) that no earlier plan meets, add the fastest plan that does.
    """
    problem = matrix.problems[column]
    times = ((row[column], number) for number, row in enumerate(matrix.median_ms))
    ranked = sorted((ms, number) for ms, number in times if ms)
    fastest = [matrix.configurations[number] for _, number in ranked]
    winner = missing.get(Problem(problem))
    if winner and winner.time_ms < ranked[0][0]:
        fastest.insert(0, winner.configuration)
    plans = [launches.plan(fastest[0], problem)]
    demands = [(layout, False) for layout in launches.other_layouts]
    demands += [(layout, True) for layout in (launches.layout, *launches.other_layouts)]
    for layout, deterministic in demands:
        fields = {**problem, **layout}
        others = (launches.plan(configuration, problem) for configuration in fastest)
        for plan in itertools.chain(plans, others):
            if plan.allows(fields) and (plan.deterministic or not deterministic):
                plans += [plan] if plan not in plans else []
                break
    return TableRow(problem=problem, plans=tuple(plans))


def _columns(matrix: Portfolio, columns: Sequence[int]) -> Portfolio:
    """Return some columns of a matrix."""
    return msgspec.structs.replace(
        matrix,
        problems=tuple(matrix.problems[column] for column in columns),
        median_ms=tuple(tuple(row[column] for column in columns) for row in matrix.median_ms),
    )
