"""Checks a decoded record against itself: values against its parameters, launches against its device.

msgspec checks types and ranges; these checks compare members with each other. Each error names the place, the value
and what is allowed. Lookup imports this module, so it has no heavy imports.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from math import prod
from operator import mod
from typing import Any, TypeAlias

import msgspec

from autotune.answers.table import (
    MAX_LEVELS,
    OWN_FEATURES,
    Plan,
    PlannedLaunch,
    Portfolio,
    Prediction,
    SizeRange,
    Sizes,
    Split,
    Value,
)
from autotune.devices.device import (
    CUDA_ARCHS,
    MAX_CLUSTER,
    MAX_GRID,
    OPENCL_ARCHS,
    Device,
    arch_of_model,
    for_arch,
)
from autotune.kernel.expression import OPERATORS
from autotune.tuned.dates import moment
from autotune.tuned.record import TunedProblem, TunedRecord, key_of
from autotune.tuned.recorded_device import RecordedDevice
from autotune.values import SOURCE, category_of

#: The name of a CUDA architecture; not ``sm_90a``, which no lookup asks for.
_ARCH = re.compile(r"sm_([1-9]\d|[12]\d\d)")
#: Deepest nesting of operations in a stored expression; it bounds the recursion of functions that walk it.
MAX_DEPTH = 64

#: Names of members and positions in lists, from the record down; see `named`.
Place: TypeAlias = tuple[str | int, ...]


def check(record: TunedRecord) -> None:
    """Raise `ValueError` with the first place whose value contradicts other members of the record."""
    _check_names(record)
    _check_device(record.device)
    _check_sources(record)
    _check_dates(record)
    _check_problems(record)
    _check_ranges(record)
    _check_configurations(record)
    _check_plans(record)
    for number, tuned in enumerate(record.problems):
        _check_race(number, tuned, record.kernel)
    _check_portfolio(record.portfolio, _integers(record))


def wrong(place: Place | str, found: object, expected: str) -> str:
    """Return the message that a value is not allowed in a place."""
    return f"{named(place)} is {found!r:.120}, expected {expected:.120}"


def named(place: Place | str) -> str:
    """Return a place in words, for example ``problems[0].plans[1].grid``."""
    if isinstance(place, str):
        return place
    parts = (f".{part}" if isinstance(part, str) else f"[{part}]" for part in place)
    return "".join(parts).removeprefix(".")


# ---------------------------------------------------------------------- declarations


def _check_names(record: TunedRecord) -> None:
    names = [*record.fields, *record.parameters, *record.layout]
    for name in (record.kernel, *names):
        if not name.isidentifier() or not name.isascii():
            raise ValueError(f"{name!r:.120} is not an identifier")
    if len(set(names)) < len(names):
        raise ValueError("two of the problem fields, parameters and layout fields have one name")
    for name, values in record.parameters.items():
        if len({type(value) for value in values}) > 1:
            raise ValueError(f"parameters.{name} has values of several types")


def _check_device(device: RecordedDevice) -> None:
    if device.backend == "opencl":
        if device.arch not in OPENCL_ARCHS:
            raise ValueError(wrong("device.arch", device.arch, f"one of {OPENCL_ARCHS}"))
        return
    expected = arch_of_model(device.name)
    if expected and device.arch != expected:
        raise ValueError(wrong("device.arch", device.arch, f"{expected}, that of {device.name}"))
    if not _ARCH.fullmatch(device.arch):
        raise ValueError(wrong("device.arch", device.arch, "an architecture, for example 'sm_90'"))
    limits = for_arch(device.arch) if device.arch in CUDA_ARCHS else None
    if limits and device.shared_bytes_per_block > limits.shared_bytes_per_block:
        found, most = device.shared_bytes_per_block, limits.shared_bytes_per_block
        raise ValueError(wrong("device.shared_bytes_per_block", found, f"at most {most}"))
    for name in ("warp_size", "max_threads_per_block"):
        found, every = getattr(device, name), getattr(Device, name)
        if found != every:
            raise ValueError(wrong(("device", name), found, f"{every}, as of every CUDA device"))


def _check_sources(record: TunedRecord) -> None:
    if not record.sources:
        return
    if record.parameters.get(SOURCE) != tuple(record.sources):
        raise ValueError(f"the values of parameter {SOURCE} are not the names of the sources")
    own = {name for names in record.sources.values() for name in names}
    if own != record.parameters.keys() - {SOURCE}:
        raise ValueError("the parameters of the sources are not those of the record")


def _check_dates(record: TunedRecord) -> None:
    dates: list[tuple[Place, str]] = [(("provenance", "created"), record.provenance.created)]
    for number, tuned in enumerate(record.problems):
        dates.append((("problems", number, "origin", "tuned_on"), tuned.origin.tuned_on))
        if tuned.confirmed:
            dates.append((("problems", number, "confirmed", "on"), tuned.confirmed.on))
    for place, text in dates:
        try:
            moment(text)
        except ValueError as error:
            raise ValueError(wrong(place, text, "a time of ISO 8601")) from error


# ---------------------------------------------------------------------- problems and configurations


def _integers(record: TunedRecord) -> set[str]:
    return {name for name, kind in record.fields.items() if kind == "integer"}


def _check_ranges(record: TunedRecord) -> None:
    """Check that every range of verified sizes has all fields, in their kinds."""
    problems = enumerate(record.problems)
    found: list[tuple[Place, Sequence[SizeRange]]] = [
        (("portfolio", "verified"), record.portfolio.verified),
        *((("problems", number, "verified"), tuned.verified) for number, tuned in problems),
    ]
    kinds = {name: tuple if kind == "integer" else str for name, kind in record.fields.items()}
    for place, ranges in found:
        for number, known in enumerate(ranges):
            if {name: type(value) for name, value in known.items()} != kinds:
                raise ValueError(wrong((*place, number), dict(known), "a range of each field"))


def _check_problems(record: TunedRecord) -> None:
    """Check the fields of every problem; in each list, no problem occurs twice."""
    kinds = {name: int if kind == "integer" else str for name, kind in record.fields.items()}
    portfolio = record.portfolio
    rows: list[tuple[Place, Sizes]] = []
    for number, table in enumerate(portfolio.tables):
        place: Place = ("portfolio", "tables", number, "rows")
        rows += [((*place, at), row.problem) for at, row in enumerate(table.rows)]
        if len({category_of(row.problem) for row in table.rows}) > 1:
            raise ValueError(f"{named(place)} have problems of several categories")
    defaults: list[tuple[Place, Sizes]] = [
        (("defaults", at), row.problem) for at, row in enumerate(record.defaults)
    ]
    if len(set(map(category_of, (row.problem for row in record.defaults)))) < len(defaults):
        raise ValueError("two defaults have problems of one category")
    lists: list[list[tuple[Place, Sizes]]] = [
        defaults,
        [(("problems", at), tuned.problem) for at, tuned in enumerate(record.problems)],
        [(("portfolio", "problems", at), each) for at, each in enumerate(portfolio.problems)],
        rows,
    ]
    for found in lists:
        for at, problem in found:
            if problem.keys() != kinds.keys() or any(
                value.__class__ is not kinds[name] for name, value in problem.items()
            ):
                raise ValueError(
                    f"{named(at)}: {dict(problem)!r:.200} does not have the fields {record.fields}"
                )
        if len({key_of(problem) for _, problem in found}) < len(found):
            seen: set[object] = set()
            for at, problem in found:
                if key_of(problem) in seen:
                    raise ValueError(f"{named(at)}: a problem occurs twice: {dict(problem)}")
                seen.add(key_of(problem))


def configurations(record: TunedRecord) -> Iterator[tuple[Place, Mapping[str, Value]]]:
    """Yield every configuration of a record, with its place."""
    for place, plan, _ in plans_of(record):
        yield (*place, "configuration"), plan.configuration
    for number, configuration in enumerate(record.portfolio.configurations):
        yield ("portfolio", "configurations", number), configuration
    for number, tuned in enumerate(record.problems):
        for at, found in enumerate(tuned.race.contenders):
            if found.configuration is not None:
                place = "problems", number, "race", "contenders", at, "configuration"
                yield place, found.configuration


def _check_configurations(record: TunedRecord) -> None:
    """Check names, types and values; an entry may have a value that is no longer declared: it answers nothing."""
    kinds = {name: type(values[0]) for name, values in record.parameters.items()}
    allowed = {(name, value) for name, values in record.parameters.items() for value in values}
    known = set[bytes]()  # one record has few different configurations
    for place, configuration in configurations(record):
        encoded = msgspec.json.encode(configuration, enc_hook=dict)
        if encoded in known:
            continue
        if not record.is_declared(configuration):
            raise ValueError(
                f"{named(place)}: {dict(configuration)!r:.200} does not have the declared parameters"
            )
        for name, value in configuration.items():
            is_declared = (name, value) in allowed
            if value.__class__ is not kinds[name] or not (is_declared or place[0] == "problems"):
                declared = f"one of {record.parameters[name]}"
                raise ValueError(wrong((*place, name), value, declared))
            if not is_declared:
                break
        else:
            known.add(encoded)


# ---------------------------------------------------------------------- launches


def plans_of(record: TunedRecord) -> Iterator[tuple[Place, Plan, Sizes | None]]:
    """Yield place, plan and problem of every plan; the plan of a cost is of no single problem."""
    for number, row in enumerate(record.defaults):
        for at, plan in enumerate(row.plans):
            yield ("defaults", number, "plans", at), plan, row.problem
    for number, tuned in enumerate(record.problems):
        for at, plan in enumerate(tuned.plans):
            yield ("problems", number, "plans", at), plan, tuned.problem
    for number, table in enumerate(record.portfolio.tables):
        place = "portfolio", "tables", number
        for at, row in enumerate(table.rows):
            for which, plan in enumerate(row.plans):
                yield (*place, "rows", at, "plans", which), plan, row.problem
        for at, cost in enumerate(table.prediction.costs if table.prediction else ()):
            yield (*place, "prediction", "costs", at, "plan"), cost.plan, None


def _check_plans(record: TunedRecord) -> None:
    """Check expressions, and that launches fit the device; the default may be for other devices."""
    integers = _integers(record)
    with_layout = integers | record.layout.keys()
    known = set[bytes]()  # plans of one record have few different grids and conditions
    archs = set(OPENCL_ARCHS)
    for place, plan, problem in plans_of(record):
        for arch in set(plan.archs or ()) - archs:
            if not _ARCH.fullmatch(arch):
                raise ValueError(
                    wrong((*place, "archs"), arch, "an architecture, for example 'sm_90'")
                )
            archs.add(arch)
        for part, launch in _launches(place, plan):
            if place[0] != "defaults":
                _check_launch(part, launch, record.device)
            if launch.grid is None or (grid := _form(launch)) in known:
                continue
            for form in launch.grid:
                _check_expression((*part, "grid"), form, integers)
            if problem is not None:
                known.add(grid)
                _check_grid(part, launch, problem)
        if plan.requires is None:
            continue
        if (condition := msgspec.json.encode(plan.requires)) not in known:
            known.add(condition)
            _check_expression((*place, "requires"), plan.requires, with_layout)


def _launches(place: Place, plan: Plan) -> Iterator[tuple[Place, PlannedLaunch]]:
    """Yield the launches of a plan in order, with their places."""
    for at, launch in enumerate(plan.before):
        yield (*place, "before", at), launch
    yield place, plan
    for at, launch in enumerate(plan.after):
        yield (*place, "after", at), launch


def _form(launch: PlannedLaunch) -> bytes:
    """Return the members of a launch that decide its blocks, for a set."""
    return msgspec.json.encode((launch.grid, launch.cluster))


def _check_launch(place: Place, launch: PlannedLaunch, device: RecordedDevice) -> None:
    threads, most = prod(launch.block), device.max_threads_per_block
    if threads > most:
        allowed = f"at most {most} threads, the limit of {device.name}"
        raise ValueError(wrong((*place, "block"), launch.block, allowed))
    most = device.shared_bytes_per_block
    if launch.shared_bytes > most > 0:
        allowed = f"at most {most}, the limit of {device.name}"
        raise ValueError(wrong((*place, "shared_bytes"), launch.shared_bytes, allowed))
    if launch.cluster and prod(launch.cluster) > MAX_CLUSTER:
        raise ValueError(
            wrong((*place, "cluster"), launch.cluster, f"at most {MAX_CLUSTER} blocks")
        )
    for name in ("cluster", "cooperative", "programmatic") if device.backend != "cuda" else ():
        if found := getattr(launch, name):
            raise ValueError(wrong((*place, name), found, f"none: {device.name} has no CUDA"))


def _check_grid(place: Place, launch: PlannedLaunch, problem: Sizes) -> None:
    try:
        grid = launch.grid_for(problem)
    except ValueError as error:
        raise ValueError(f"{named((*place, 'grid'))}: {error}") from error
    if any(not 1 <= extent <= most for extent, most in zip(grid, MAX_GRID, strict=True)):
        raise ValueError(
            wrong((*place, "grid"), grid, f"for {dict(problem)} 1 to {MAX_GRID} blocks")
        )
    if launch.cluster and any(map(mod, grid, launch.cluster)):
        expected = f"for {dict(problem)} a multiple of the cluster {launch.cluster}"
        raise ValueError(wrong((*place, "grid"), grid, expected))


def _check_race(number: int, tuned: TunedProblem, kernel: str) -> None:
    """Check the contenders, and that the first plan is the winner's with its launches."""
    for at, found in enumerate(tuned.race.contenders):
        if bool(found.vendor) == (found.configuration is not None):
            place = named(("problems", number, "race", "contenders", at))
            raise ValueError(f"{place} must be either a configuration or a vendor's call")
    first, plan, steps = ("problems", number, "plans", 0), tuned.plan, tuned.launches
    if tuned.winner.configuration != plan.configuration:
        raise ValueError(f"{named(first)}: it is not the plan of the winner")
    if not steps:
        return
    if len(plan.launches) != len(steps):
        expected = f"{len(steps)} launches, as in its steps"
        raise ValueError(wrong((*first, "launches"), len(plan.launches), expected))
    for (part, launch), step in zip(_launches(first, plan), steps, strict=True):
        for name, recorded, of_step in (
            ("entry", launch.entry or kernel, step.entry),
            ("block", launch.block, step.block),
            ("shared_bytes", launch.shared_bytes, step.shared_bytes),
            ("cluster", launch.cluster, step.cluster or None),
            ("cooperative", launch.cooperative, bool(step.cooperative)),
            ("programmatic", launch.programmatic, bool(step.programmatic)),
        ):
            if recorded != of_step:
                raise ValueError(wrong((*part, name), recorded, f"{of_step}, as in its steps"))
        if launch.grid and (grid := launch.grid_for(tuned.problem)) != step.concrete_grid:
            expected = f"for its problem {step.concrete_grid}, as in its steps"
            raise ValueError(wrong((*part, "grid"), grid, expected))


def _check_expression(place: Place, form: object, names: Set[str], depth: int = 0) -> None:
    if form.__class__ is int:
        return
    if isinstance(form, str):
        if form not in names:
            raise ValueError(
                f"{named(place)}: an expression has {form!r:.120}, which is not an integer problem field"
            )
    elif isinstance(form, list) and len(form) == 3 and _is_operator(form[0]) and depth < MAX_DEPTH:
        _check_expression(place, form[1], names, depth + 1)
        _check_expression(place, form[2], names, depth + 1)
    else:
        raise ValueError(
            f"{named(place)}: not an expression, or one with more than {MAX_DEPTH} nested operations: "
            f"{form!r:.120}"
        )


def _is_operator(name: object) -> bool:
    return isinstance(name, str) and name in OPERATORS


# ---------------------------------------------------------------------- the portfolio


def _check_portfolio(portfolio: Portfolio, integers: set[str]) -> None:
    shape = [len(portfolio.problems)] * len(portfolio.configurations)
    if [len(times) for times in portfolio.median_ms] != shape:
        raise ValueError(
            "portfolio.median_ms does not have a row per configuration and a column per problem"
        )
    for number, table in enumerate(portfolio.tables):
        place: Place = ("portfolio", "tables", number, "prediction")
        for at, cost in enumerate(table.prediction.costs if table.prediction else ()):
            terms = [*cost.fixed, *(term for _, terms in cost.waves for term in terms)]
            names = {name for _, names in terms for name in names} | set(cost.misaligned)
            of_cost = (*place, "costs", at)
            if names - integers:
                raise ValueError(
                    f"{named(of_cost)}: a cost has {sorted(names - integers)!s:.120}, which are not integer "
                    "problem fields"
                )
            if cost.plan.grid is None:
                raise ValueError(f"{named(of_cost)}: a cost has no grid")
        if table.prediction:
            try:
                _check_trees(table.prediction, len(integers))
            except ValueError as error:
                raise ValueError(f"{named(place)}: {error}") from error


def _check_trees(prediction: Prediction, integers: int) -> None:
    if prediction.corrections and len(prediction.corrections) != len(prediction.costs):
        raise ValueError("the corrections do not match the costs")
    pairs = zip(prediction.costs, prediction.corrections, strict=False)
    if any(trees and not cost.waves for cost, trees in pairs):
        raise ValueError("a cost has corrections but no waves")
    trees: list[tuple[Sequence[Split], Sequence[Any], int]] = [
        (tree.splits, tree.factors, OWN_FEATURES)
        for trees in prediction.corrections
        for tree in trees
    ]
    if expected := prediction.expected:
        trees.append((expected.splits, expected.shares, 0))
        if len(expected.ranges) != integers:
            raise ValueError("the ranges of an expectation do not match the integer problem fields")
        for low, high in (*expected.ranges, *expected.shares):
            if low > high:
                raise ValueError(f"an expectation has a range from {low} to {high}")
    for splits, outcomes, further in trees:
        if len(splits) > MAX_LEVELS or len(outcomes) != 1 << len(splits):
            raise ValueError("the outcomes of a tree do not match its splits")
        if any(feature >= 2 * integers + further for feature, _ in splits):
            raise ValueError("a tree splits an unknown feature")
