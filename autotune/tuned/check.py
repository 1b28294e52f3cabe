"""The check of a record beyond the types of its fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from autotune.answers.schema import MAX_LEVELS, OWN_FEATURES, Portfolio, Prediction, Split
from autotune.kernel.expression import OPERATORS
from autotune.tuned.clock import moment
from autotune.tuned.record import TunedRecord, key_of
from autotune.values import SOURCE

#: Deepest nesting of operations in a stored expression, so that every walk over one can be recursive.
MAX_DEPTH = 64


def check(record: TunedRecord) -> None:
    """Raise `ValueError` if names, declared values, expressions or the shapes of tables are wrong."""
    names = [*record.fields, *record.parameters, *record.layout]
    for name in (record.kernel, *names):
        if not name.isidentifier() or not name.isascii():
            raise ValueError(f"{name!r} is not a name")
    if len(set(names)) < len(names):
        raise ValueError("a problem field, parameter or layout field has the name of another")
    moment(record.provenance.created)
    _check_sources(record)
    for name, values in record.parameters.items():
        if len({type(value) for value in values}) > 1:
            raise ValueError(f"parameter {name} has values of several kinds")
    if len({key_of(tuned.problem) for tuned in record.problems}) < len(record.problems):
        raise ValueError("one problem several times")
    _check_members(record)
    integers = {name for name, kind in record.fields.items() if kind == "integer"}
    layout = integers | set(record.layout)
    # Plans of one record have few different grids and conditions.
    plans = list(record.plans())
    grids = {msgspec.json.encode(form): form for plan in plans for form in plan.grid or ()}
    conditions = {msgspec.json.encode(plan.requires): plan.requires for plan in plans}
    for form in grids.values():
        _check_expression(form, integers)
    for condition in conditions.values():
        if condition is not None:
            _check_expression(condition, layout)
    _check_portfolio(record.portfolio, integers)


def _check_sources(record: TunedRecord) -> None:
    if not record.sources:
        return
    if record.parameters.get(SOURCE) != tuple(record.sources):
        raise ValueError(f"parameter {SOURCE} has other values than the sources")
    own = {name for names in record.sources.values() for name in names}
    if own != record.parameters.keys() - {SOURCE}:
        raise ValueError("the sources have other parameters than the record")


def _check_members(record: TunedRecord) -> None:
    contenders = [found for tuned in record.problems for found in tuned.race.contenders]
    if any(bool(found.vendor) == (found.configuration is not None) for found in contenders):
        raise ValueError("a contender is a configuration or a vendor's call")
    for tuned in record.problems:
        if tuned.winner.configuration != tuned.configuration:
            raise ValueError(f"problem {dict(tuned.problem)}: the first plan is not the winner's")
    problems = [tuned.problem for tuned in record.problems] + [*record.portfolio.problems]
    problems += [row.problem for table in record.portfolio.tables for row in table.rows]
    for problem in problems:
        kinds = {n: "integer" if isinstance(v, int) else "categorical" for n, v in problem.items()}
        if kinds != record.fields:
            raise ValueError(f"problem {dict(problem)} has other fields than {record.fields}")
    configurations: list[Any] = [plan.configuration for plan in record.plans()]
    configurations += record.portfolio.configurations
    configurations += [found.configuration for found in contenders if not found.vendor]
    declared = {name: type(values[0]) for name, values in record.parameters.items()}
    for configuration in configurations:
        is_declared = record.is_declared(configuration)
        if not is_declared or any(type(v) is not declared[n] for n, v in configuration.items()):
            raise ValueError(f"configuration {dict(configuration)} has other parameters, or kinds")


def _check_expression(form: object, integers: set[str], depth: int = 0) -> None:
    match form:
        case [str(operator), first, second] if operator in OPERATORS and depth < MAX_DEPTH:
            _check_expression(first, integers, depth + 1)
            _check_expression(second, integers, depth + 1)
        case str() if form not in integers:
            raise ValueError(f"expression over {form!r}, which is no integer problem field")
        case bool() | float() | list() | dict() | None:
            raise ValueError(
                f"no expression of at most {MAX_DEPTH} operations in one another: {form!r}"
            )


def _check_portfolio(portfolio: Portfolio, integers: set[str]) -> None:
    shape = [len(portfolio.problems)] * len(portfolio.configurations)
    if [len(times) for times in portfolio.median_ms] != shape:
        raise ValueError("the portfolio's times do not match its configurations and problems")
    for table in portfolio.tables:
        for cost in table.prediction.costs if table.prediction else ():
            terms = [*cost.fixed, *(term for _, terms in cost.waves for term in terms)]
            names = {name for _, names in terms for name in names} | set(cost.misaligned)
            if names - integers:
                raise ValueError(
                    f"a cost over {sorted(names - integers)}, no integer problem fields"
                )
            if cost.plan.grid is None:
                raise ValueError("a cost without grid")
        if table.prediction:
            _check_trees(table.prediction, len(integers))


def _check_trees(prediction: Prediction, integers: int) -> None:
    if prediction.corrections and len(prediction.corrections) != len(prediction.costs):
        raise ValueError("the corrections do not match the costs")
    pairs = zip(prediction.costs, prediction.corrections, strict=False)
    if any(trees and not cost.waves for cost, trees in pairs):
        raise ValueError("a corrected cost without waves")
    trees: list[tuple[Sequence[Split], Sequence[object], int]] = [
        (tree.splits, tree.factors, OWN_FEATURES)
        for trees in prediction.corrections
        for tree in trees
    ]
    if expected := prediction.expected:
        trees.append((expected.splits, expected.shares, 0))
        if len(expected.ranges) != integers:
            raise ValueError("the ranges of an expectation do not match the integer problem fields")
    for splits, outcomes, further in trees:
        if len(splits) > MAX_LEVELS or len(outcomes) != 1 << len(splits):
            raise ValueError("the outcomes of a tree do not match its splits")
        if any(feature >= 2 * integers + further for feature, _ in splits):
            raise ValueError("a tree splits a feature that there is not")
