"""Checks of a record of others before it is merged into the user's own, and which entry stays.

Every record that is read obeys `record.check`. A record of others must also hold what a run could have
written: declared values, past dates, and configurations and times that its kernel and device allow.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from autotune.devices.device import BACKENDS, Device
from autotune.errors import RecordError, SpecError, UsageError
from autotune.kernel.membership import is_member
from autotune.kernel.spec import Kernel
from autotune.measure.limits import implausible
from autotune.measure.timing import Timing
from autotune.tuned.record import (
    EFFORTS,
    Plan,
    TunedProblem,
    TunedRecord,
    key_of,
    moment,
)
from autotune.tuned.writing import by_rule
from autotune.values import Problem

#: Clocks of two machines differ by less.
_CLOCKS_APART = timedelta(days=1)
#: A rate is written to fewer digits than this tells apart.
_RATES_APART = 0.01


def check_values(record: TunedRecord, kernel: Kernel | None) -> None:
    """Check the values of a record of others, against its kernel's space where that is known.

    Stale entries may have values and configurations of another space.
    """
    try:
        _check_device(record)
        for what, time in _times(record):
            if moment(time) > datetime.now(UTC) + _CLOCKS_APART:
                raise ValueError(f"{what}: {time} has not come yet")
        for name, values in record.parameters.items():
            if len(set(values)) < len(values):
                raise ValueError(f"parameter {name}: a value occurs twice")
        for where, plan in _current_plans(record):
            _check_plan(where, plan, record.parameters, record.device.planned_for())
        for entry in record.problems:
            _check_intervals(entry)
        if kernel is not None:
            _check_space(record, kernel)
            _check_rates(record, kernel)
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
    if (old.plan, old.median_ms, mine.tuned_on) == (new.plan, new.median_ms, theirs.tuned_on):
        return "kept", "it is the same"
    is_alike = (mine.source, mine.arguments) == (theirs.source, theirs.arguments)
    is_less = is_alike and EFFORTS.index(mine.effort) < EFFORTS.index(theirs.effort)
    if not is_less and moment(theirs.tuned_on) < moment(mine.tuned_on):
        if is_alike and mine.effort == theirs.effort:
            return "kept", f"tuned later here ({mine.tuned_on[:10]}, theirs {theirs.tuned_on[:10]})"
        if not is_alike:
            return "kept", "tuned later here, of another source or other arguments"
    return by_rule(old, new)


def _check_device(record: TunedRecord) -> None:
    device = record.device
    if device.backend not in BACKENDS:
        raise ValueError(f"device.backend {device.backend!r} is none of {', '.join(BACKENDS)}")
    form = r"sm_\d+" if device.backend == "cuda" else r"\w+"
    if not re.fullmatch(form, device.arch, re.ASCII):
        raise ValueError(f"device.arch {device.arch!r} is no architecture of {device.backend}")


def _times(record: TunedRecord) -> Iterator[tuple[str, str]]:
    yield "provenance.created", record.provenance.created
    for entry in record.problems:
        yield "tuned_on", entry.origin.tuned_on
        if entry.confirmed:
            yield "confirmed.on", entry.confirmed.on


def _current_plans(record: TunedRecord) -> Iterator[tuple[str, Plan]]:
    """Yield the default, and the plans of entries and rows that are not stale."""
    yield "the default", record.default
    stale = {key_of(entry.problem) for entry in record.problems if record.stale_reasons(entry)}
    found = [(entry.problem, entry.plans) for entry in record.problems]
    found += [(row.problem, row.plans) for table in record.portfolio.tables for row in table.rows]
    for problem, plans in found:
        if key_of(problem) not in stale:
            where = ", ".join(f"{name}={value}" for name, value in problem.items())
            yield from ((f"({where})", plan) for plan in plans)


def _check_plan(where: str, plan: Plan, declared: Mapping[str, Any], device: Device) -> None:
    for name, value in plan.configuration.items():
        if value not in declared[name]:
            raise ValueError(f"{where}: {name}={value!r} is not among its values {declared[name]}")
    threads = math.prod(plan.block)
    if device.compiles_for_arch and threads > device.max_threads_per_block:
        raise ValueError(f"{where}: a block of {threads} threads")


def _check_intervals(entry: TunedProblem) -> None:
    intervals = [
        *(found.time_ms.interval for found in entry.race.contenders),
        *(found.ratio.interval for found in entry.race.contenders if found.ratio),
        *([entry.confirmed.ratio_interval] if entry.confirmed else []),
    ]
    for low, high in intervals:
        if low > high:
            raise ValueError(f"an interval from {low:g} to {high:g}")


def _check_space(record: TunedRecord, kernel: Kernel) -> None:
    example = next(iter(kernel.all_problems()))
    kinds = {
        name: "integer" if isinstance(example[name], int) else "categorical"
        for name in kernel.fields
    }
    for what, recorded, declared in (
        ("parameters", set(record.parameters), set(kernel.parameters)),
        ("problem fields", set(record.fields.items()), set(kinds.items())),
    ):
        if recorded != declared:
            names = ", ".join(sorted(map(str, recorded ^ declared)))
            raise ValueError(f"other {what} than {kernel.file} declares ({names})")
    for name, value in record.layout.items():
        if kernel.layout.get(name) != value:
            raise ValueError(f"layout field {name}={value} is not as {kernel.file} declares it")
    device = record.device.planned_for()
    plans = iter(_current_plans(record))
    next(plans)  # a default need not be valid everywhere
    for where, plan in plans:
        _check_plan(where, plan, kernel.parameters, device)
        # What else a device that is no CUDA architecture can do, which rules may ask, is not recorded.
        if device.compiles_for_arch and not is_member(kernel, plan.configuration, device):
            raise ValueError(
                f"{where}: {dict(plan.configuration)} is not in the space that {kernel.file} "
                "declares; it was tuned with another, or changed since"
            )


def _check_rates(record: TunedRecord, kernel: Kernel) -> None:
    """Check that times of entries that are not stale are possible, and that rates follow from them."""
    device = record.device.planned_for()
    for entry in record.problems:
        work = None if record.stale_reasons(entry) else kernel.work_of(Problem(dict(entry.problem)))
        if work is None:
            continue
        where = ", ".join(f"{name}={value}" for name, value in entry.problem.items())
        if why := implausible(entry.median_ms, work, device, Timing(entry.race.timing).is_cold):
            raise ValueError(f"({where}): {why}")
        moved = work.bytes_read + work.bytes_written
        for name, amount in (("gb_per_s", moved), ("gflop_per_s", work.flops)):
            rate, possible = getattr(entry, name) or 0.0, amount / entry.median_ms / 1e6
            if abs(rate - possible) > _RATES_APART * possible and rate:
                raise ValueError(
                    f"({where}): {name} is {rate:.4g}, but {entry.median_ms:.4g} ms make {possible:.4g}"
                )
