"""Compares tuned records: one of others before it is merged, and two records problem by problem.

Every record that is read obeys `record.check`. A record of others must also hold what a run could have
written: declared values, past dates, and configurations and times that its kernel and device allow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeAlias

from autotune.errors import RecordError, SpecError, UsageError
from autotune.kernel.space import is_member
from autotune.kernel.spec import Kernel
from autotune.measure.limits import implausible
from autotune.measure.timing import Timing
from autotune.tuned.record import (
    EFFORTS,
    Plan,
    Sizes,
    TunedProblem,
    TunedRecord,
    Value,
    key_of,
    moment,
    other_kernel,
)
from autotune.tuned.writing import by_rule
from autotune.values import Problem

#: Clocks of two machines differ by less.
_CLOCKS_APART = timedelta(days=1)


# ---------------------------------------------------------------------- a record of others


def check_values(record: TunedRecord, kernel: Kernel | None) -> None:
    """Check the values of a record of others, against its kernel's space where that is known.

    Stale entries may have values and configurations of another space.
    """
    times = [record.provenance.created, *(entry.origin.tuned_on for entry in record.problems)]
    times += [entry.confirmed.on for entry in record.problems if entry.confirmed]
    try:
        for time in times:
            if moment(time) > datetime.now(UTC) + _CLOCKS_APART:
                raise ValueError(f"{time} has not come yet")
        if kernel and (told := other_kernel(kernel, "it", record.fields, record.parameters)):
            raise ValueError(told)
        for where, plan in _current_plans(record):
            _check_plan(record, kernel, where, plan)
        for entry in record.problems:
            if kernel and not record.stale_reasons(entry):
                _check_time(record, kernel, entry)
    except (SpecError, RecordError):
        raise
    except (ValueError, UsageError) as error:
        raise RecordError(
            f"{record.kernel} on {record.device.name}: not imported: {error}"
        ) from error


def by_effort_and_date(
    old: TunedProblem, new: TunedProblem
) -> tuple[Literal["kept", "replaced"], str]:
    """Choose the entry of more effort, then the later one; return the choice and its reason."""
    mine, theirs = old.origin, new.origin
    has_less_effort = EFFORTS.index(mine.effort) < EFFORTS.index(theirs.effort)
    if not has_less_effort and moment(theirs.tuned_on) < moment(mine.tuned_on):
        return "kept", f"tuned later here ({mine.tuned_on[:10]}, theirs {theirs.tuned_on[:10]})"
    return by_rule(old, new)


def _current_plans(record: TunedRecord) -> Iterator[tuple[Sizes | None, Plan]]:
    """Yield the default, and the plans of entries and rows that are not stale, with their problems."""
    yield None, record.default
    stale = {key_of(entry.problem) for entry in record.problems if record.stale_reasons(entry)}
    found = [(entry.problem, entry.plans) for entry in record.problems]
    found += [(row.problem, row.plans) for table in record.portfolio.tables for row in table.rows]
    for problem, plans in found:
        if key_of(problem) not in stale:
            yield from ((problem, plan) for plan in plans)


def _check_plan(
    record: TunedRecord, kernel: Kernel | None, problem: Sizes | None, plan: Plan
) -> None:
    where = "the default" if problem is None else f"({Problem(dict(problem))})"
    declared = record.parameters if kernel is None or problem is None else kernel.parameters
    for name, value in plan.configuration.items():
        if value not in declared[name]:
            raise ValueError(f"{where}: {name}={value!r} is not among its values {declared[name]}")
    device = record.device.planned_for()
    # What a device that is no CUDA architecture can do, which rules may ask, is not recorded.
    if not device.is_cuda:
        return
    if (threads := math.prod(plan.block)) > device.max_threads_per_block:
        raise ValueError(f"{where}: a block of {threads} threads")
    # A default need not be valid everywhere.
    if kernel and problem is not None and not is_member(kernel, plan.configuration, device):
        raise ValueError(
            f"{where}: {dict(plan.configuration)} is not in the space that {kernel.file} declares; "
            "it was tuned with another, or changed since"
        )


def _check_time(record: TunedRecord, kernel: Kernel, entry: TunedProblem) -> None:
    problem = Problem(dict(entry.problem))
    work, is_cold = kernel.work_of(problem), Timing(entry.race.timing).is_cold
    device = record.device.planned_for()
    if work and (why := implausible(entry.median_ms, work, device, is_cold)):
        raise ValueError(f"({problem}): {why}")


# ---------------------------------------------------------------------- two records of one kernel


#: The change of a problem from the first record to the second. ``held`` is within the threshold, or
#: equal by the intervals; times of two devices are no change of one; two ways of timing have no ratio.
Change: TypeAlias = Literal[
    "held", "faster", "slower", "other_device", "other_timing", "only_first", "only_second"
]


@dataclass(frozen=True)
class ComparedProblem:
    """A problem in two records."""

    problem: Sizes
    change: Change
    first: TunedProblem | None
    second: TunedProblem | None
    #: Parameters in which the winners differ, with both values; None where one has no such parameter.
    differing: dict[str, tuple[Value | None, Value | None]]
    #: Time of the second over the first, and the least and most that both 95 % intervals allow.
    ratio: float | None = None
    ratio_interval: tuple[float, float] | None = None


def compared(first: TunedRecord, second: TunedRecord, threshold: float) -> list[ComparedProblem]:
    """Compare two records of one kernel, the problems of the first in its order.

    A problem is slower only on one model of device, and only where even the least ratio that both
    intervals allow is above 1 by more than ``threshold``, a share.
    """
    for what in ("kernel", "objective"):
        here, there = getattr(first, what), getattr(second, what)
        if here != there:
            raise UsageError(
                f"these are records of two {what}s, {here} and {there}: compare records of one"
            )
    problems = {key_of(entry.problem): entry.problem for entry in first.problems}
    for entry in second.problems:
        problems.setdefault(key_of(entry.problem), entry.problem)
    return [_compared(first, second, problem, threshold) for problem in problems.values()]


def _compared(
    first_record: TunedRecord, second_record: TunedRecord, problem: Sizes, threshold: float
) -> ComparedProblem:
    first, second = first_record.tuned(problem), second_record.tuned(problem)
    if first is None or second is None:
        change: Change = "only_first" if second is None else "only_second"
        return ComparedProblem(problem, change, first, second, {})
    differing = _differing(first, second)
    if first.race.timing != second.race.timing:
        return ComparedProblem(problem, "other_timing", first, second, differing)
    least = second.winner.time_ms.interval[0] / first.winner.time_ms.interval[1]
    most = second.winner.time_ms.interval[1] / first.winner.time_ms.interval[0]
    change = "held"
    if first_record.device.folder != second_record.device.folder:
        change = "other_device"
    elif least > 1 + threshold:
        change = "slower"
    elif most < 1 - threshold:
        change = "faster"
    ratio = second.median_ms / first.median_ms
    return ComparedProblem(problem, change, first, second, differing, ratio, (least, most))


def _differing(
    first: TunedProblem, second: TunedProblem
) -> dict[str, tuple[Value | None, Value | None]]:
    names = dict.fromkeys([*first.configuration, *second.configuration])
    pairs = {
        name: (first.configuration.get(name), second.configuration.get(name)) for name in names
    }
    return {name: (a, b) for name, (a, b) in pairs.items() if type(a) is not type(b) or a != b}
