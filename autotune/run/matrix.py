"""Fits a record's answers for other sizes to times on random sizes."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import msgspec
import numpy as np

from autotune.devices.device import Device
from autotune.errors import UsageError
from autotune.kernel.spec import Kernel
from autotune.run.plans import plan_of
from autotune.run.recording import refitted
from autotune.tuned.dense import MOST_CONFIGURATIONS, MOST_IN_ALL, HeldOut, SizeFit
from autotune.tuned.fallback import counted
from autotune.tuned.record import AnswerTable, Plan, Portfolio, Prediction, TableRow, TunedRecord
from autotune.values import Configuration, Problem, by_category, category_of

_COMPLETE = 200
_ENOUGH, _ENOUGH_EACH, _ENOUGH_HELD_OUT = 60, 20, 10


def fitted_with(
    record: TunedRecord, kernel: Kernel, measured: Portfolio, sizes: Portfolio
) -> tuple[TunedRecord, HeldOut | None]:
    record = refitted(record, kernel, measured)
    try:
        return fitted_to_sizes(record, kernel, sizes)
    except UsageError:
        return record, None


def _plans(matrix: Portfolio, kernel: Kernel, device: Device) -> list[Plan | None]:
    """Return how configurations launch; None for one that was never timed."""
    plans = list[Plan | None]()
    for values, times in zip(matrix.configurations, matrix.median_ms, strict=True):
        timed = next((p for p, ms in zip(matrix.problems, times, strict=True) if ms), None)
        configuration = Configuration(dict(values))
        plan = plan_of(kernel, configuration, Problem(dict(timed)), device) if timed else None
        plans.append(plan)
    return plans


def fitted_to_sizes(
    record: TunedRecord,
    kernel: Kernel,
    matrix: Portfolio,
    deciding: Set[Problem] = frozenset(),
) -> tuple[TunedRecord, HeldOut]:
    """Return a record whose answers for other problems are fitted to times on random sizes.

    Second is what held-out sizes get from such fits. Configurations are chosen by their times on the sizes in
    ``deciding``, by those on all where these are few. A category on whose problems the record's portfolio has
    no time of what was chosen gets the first random size that has one in their place.

    Raises
    ------
    UsageError
        If there are too few sizes of a category.
    """
    where, device = f"{record.kernel} on {record.device.name}", record.device.planned_for()
    known = _timed(record.portfolio)
    categories, fits = by_category(matrix.problems) or {(): []}, dict[tuple[str, ...], SizeFit]()
    lacking = list[int]()
    predictions, shares, kept = (
        dict[tuple[str, ...], Prediction](),
        list[Any](),
        set[Configuration](),
    )
    needed = _ENOUGH if len(categories) == 1 else _ENOUGH_EACH
    most = min(MOST_CONFIGURATIONS, MOST_IN_ALL // len(categories))
    for category, columns in categories.items():
        count = len(columns)
        if count < needed:
            raise UsageError(
                f"{where}: {count} sizes{_of(category)} are too few to fit, {needed} are needed"
            )
        part = _columns(matrix, columns)
        plans = _plans(part, kernel, device)
        fits[category] = SizeFit(counted(part, plans), plans, device.sm_count, kernel.layout)
    for category, fit in fits.items():
        fit.others = [other for other in fits.values() if other is not fit]
        completed, spreads = fit.completed()
        decide = [n for n, each in enumerate(fit.matrix.problems) if Problem(each) in deciding]
        is_enough = len(decide) >= _COMPLETE
        chosen = fit.chosen(completed[:, decide] if is_enough else completed, spreads, most)
        held_out = fit.held_out(chosen)
        if held_out.measured < _ENOUGH_HELD_OUT:
            raise UsageError(
                f"{where}: {held_out.measured} answers on sizes{_of(category)} held out of the fit were "
                f"measured, {_ENOUGH_HELD_OUT} are needed; measure more sizes"
            )
        predictions[category] = fit.prediction(chosen, held_out)
        shares.append(held_out.shares)
        configurations = {Configuration(matrix.configurations[number]) for number in chosen}
        kept |= configurations
        if not known & {(category, each) for each in configurations}:
            # A table needs a time, which no chosen one may have at the first size.
            lacking += [
                c for c in categories[category] if any(matrix.median_ms[n][c] for n in chosen)
            ][:1]
    old = _joined(record.portfolio, _rows(_columns(matrix, lacking), kept))
    tables = [(table, category_of(table.rows[0].problem)) for table in old.tables]
    measured = _rows(old, kept)
    if not measured.configurations or any(category not in predictions for _, category in tables):
        measured = old  # categories that were not measured answer as before
    measured = msgspec.structs.replace(
        measured,
        tables=tuple(
            msgspec.structs.replace(table, prediction=predictions[category])
            for table, category in tables
            if category in predictions
        ),
    )
    record = msgspec.structs.replace(record, portfolio=measured)
    return refitted(record, kernel, measured), HeldOut(np.concatenate(shares))


def _of(category: Sequence[str]) -> str:
    return "".join(f" of {value}" for value in category)


def _timed(portfolio: Portfolio) -> set[tuple[tuple[str, ...], Configuration]]:
    """Return which configurations have a time on a problem of which category."""
    return {
        (category_of(problem), Configuration(values))
        for values, times in zip(portfolio.configurations, portfolio.median_ms, strict=True)
        for problem, ms in zip(portfolio.problems, times, strict=True)
        if ms
    }


def _joined(portfolio: Portfolio, further: Portfolio) -> Portfolio:
    """Return a portfolio with the problems of another one, each in a table of its own."""
    if not further.problems:
        return portfolio
    times, others = (
        dict(zip(map(Configuration, each.configurations), each.median_ms, strict=True))
        for each in (portfolio, further)
    )
    unknown, unknown_there = ((None,) * len(each.problems) for each in (portfolio, further))
    joined = {
        each: times.get(each, unknown) + others.get(each, unknown_there)
        for each in (*times, *others)
    }
    rows = [TableRow(problem=problem, plans=()) for problem in further.problems]
    return msgspec.structs.replace(
        portfolio,
        configurations=tuple(map(dict, joined)),
        problems=portfolio.problems + further.problems,
        median_ms=tuple(joined.values()),
        tables=(*portfolio.tables, *(AnswerTable(rows=(row,)) for row in rows)),
    )


def _rows(matrix: Portfolio, kept: Set[Configuration]) -> Portfolio:
    """Return some configurations of a matrix with their times."""
    rows = [n for n, each in enumerate(matrix.configurations) if Configuration(each) in kept]
    return msgspec.structs.replace(
        matrix,
        configurations=tuple(matrix.configurations[row] for row in rows),
        median_ms=tuple(matrix.median_ms[row] for row in rows),
    )


def _columns(matrix: Portfolio, columns: Sequence[int]) -> Portfolio:
    """Return some problems of a matrix with their times."""
    return msgspec.structs.replace(
        matrix,
        problems=tuple(matrix.problems[column] for column in columns),
        median_ms=tuple(tuple(row[column] for column in columns) for row in matrix.median_ms),
    )
