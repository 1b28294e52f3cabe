"""Checks a foreign tuned record before it is merged into the user's record.

Values that follow from the kernel's files and from the record's times are computed again and must
agree. Measurements cannot be computed again: they must be plausible. A fit to random sizes is dropped,
since the record does not contain the times of random sizes.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from autotune.answers.table import AnswerTable, Cost, TableRow, predicted_ms
from autotune.devices.device import CUDA_ARCHS, Device
from autotune.errors import RecordError, UsageError
from autotune.kernel.source import comparison_of
from autotune.kernel.space import broken_constraints, is_member
from autotune.kernel.spec import Kernel
from autotune.measure.roofline import LIMITS, implausible
from autotune.measure.timing import Timing
from autotune.run.recording import recomputed
from autotune.run.verdict import PORTFOLIO_SIZE
from autotune.tuned.dates import is_future
from autotune.tuned.record import TIME, Estimate, TunedProblem, TunedRecord, key_of
from autotune.tuned.validity import wrong
from autotune.tuned.writing import other_kernel
from autotune.values import Configuration, Problem

#: Maximum relative difference between the predictions of two fits to the same times. If two formulas fit
#: equally well, rounding decides which one is chosen.
_MAX_FIT_DIFFERENCE = 0.05
#: Maximum share of a limit that a winner reaches. It is above 1 because another program may have slowed
#: the measurement of the limit.
_MAX_LIMIT_SHARE = 3.0


def checked(record: TunedRecord, kernel: Kernel) -> TunedRecord:
    """Return a foreign record in the form that a run of its kernel would have written.

    Raise `RecordError` with the first value that no run writes. Fitted numbers and the values of
    parameters come from this machine, where they may have changed. First calls are left out.
    """
    if not record.is_tuned:
        raise RecordError(
            f"{record.kernel} on {record.device.name}: not imported: it holds no result of a run"
        )
    record = msgspec.structs.replace(record, first_calls=())
    try:
        _refuse_first(_impossible(record, kernel))
        times = msgspec.structs.replace(record.portfolio, tables=())
        again = recomputed(msgspec.structs.replace(record, portfolio=times), kernel)
        ours, theirs = again.portfolio.tables, record.portfolio.tables
        alike = (*map(_with_prediction, ours, theirs), *ours[len(theirs) :])
        expected = msgspec.structs.replace(
            again,
            parameters=record.parameters,
            portfolio=msgspec.structs.replace(again.portfolio, tables=alike),
        )
        _refuse_first(_differences("", _document(record), _document(expected)))
    except (ValueError, UsageError) as error:
        raise RecordError(
            f"{record.kernel} on {record.device.name}: not imported: {error}"
        ) from error
    if record.portfolio.sizes > again.portfolio.sizes:
        warnings.warn(
            "not imported: the fit to random sizes, since the record does not contain their times; "
            f"to measure them here, run: autotune sizes {record.kernel}",
            stacklevel=2,
        )
    return again


def _refuse_first(faults: Iterator[str]) -> None:
    for fault in faults:
        raise ValueError(fault)


# ---------------------------------------------------------------------- measurements


def _impossible(record: TunedRecord, kernel: Kernel) -> Iterator[str]:
    """Yield the faults of values that cannot be computed again."""
    if record.objective != TIME:
        yield wrong("objective", record.objective, f"{TIME!r}: lookup answers by time")
    if difference := other_kernel(kernel, "it", record.fields, record.parameters):
        yield difference
    if record.device.backend == "cuda" and record.device.arch not in CUDA_ARCHS:
        yield wrong("device.arch", record.device.arch, f"one of {CUDA_ARCHS}")
    changes = comparison_of(kernel)
    for number, entry in enumerate(record.problems):
        if why := changes(entry.origin.source, entry.origin.arguments):
            yield (
                f"problems[{number}].origin: tuned before the kernel was changed ({', '.join(why)}); "
                f"import it next to the files it was tuned with, or run: autotune run {kernel.name}"
            )
    device = record.device.planned_for()
    yield from _configuration_faults(record, kernel, device)
    yield from _date_faults("provenance.created", record.provenance.created)
    for number, entry in enumerate(record.problems):
        yield from _entry_faults(f"problems[{number}]", entry, kernel, device)
    yield from _portfolio_faults(record, kernel, device)


def _date_faults(path: str, text: str) -> Iterator[str]:
    if is_future(text):
        yield wrong(path, text, "a past time")


def _configuration_faults(record: TunedRecord, kernel: Kernel, device: Device) -> Iterator[str]:
    """Yield the configurations that are outside the space of the kernel; the default may be outside."""
    members = set()
    for path, values in _places("", _document(record)):
        is_configuration = path.endswith(".configuration") or path.startswith(
            "portfolio.configurations["
        )
        if not is_configuration or not isinstance(values, dict) or path.startswith("default."):
            continue
        if (configuration := Configuration(values)) in members:
            continue
        declared = kernel.parameters_of(values)
        for name, value in values.items():
            if value not in declared.get(name, ()):
                yield wrong(f"{path}.{name}", value, f"one of {declared.get(name, ())}")
        if not is_member(kernel, values, device):
            rules = ", ".join(rule.name for rule in broken_constraints(kernel, values, device))
            yield wrong(
                path, values, f"a configuration of the space (it breaks {rules or 'a rule'})"
            )
        members.add(configuration)


def _entry_faults(path: str, entry: TunedProblem, kernel: Kernel, device: Device) -> Iterator[str]:
    race, problem = entry.race, Problem(dict(entry.problem))
    yield from _date_faults(f"{path}.origin.tuned_on", entry.origin.tuned_on)
    if entry.confirmed:
        yield from _date_faults(f"{path}.confirmed.on", entry.confirmed.on)
    timing = Timing(race.timing)
    if timing is Timing.OTHER:
        yield wrong(f"{path}.race.timing", race.timing, f"one of {', '.join(Timing)}")
    for number, found in enumerate(race.contenders):
        place = f"{path}.race.contenders[{number}]"
        for name in ("time_ms", "ratio", "time_ratio"):
            estimate: Estimate | None = getattr(found, name)
            low, high = estimate.interval if estimate else (1.0, 1.0)
            if estimate and not low <= estimate.value <= high:
                yield wrong(f"{place}.{name}", estimate.value, f"between {low} and {high}")
        if not found.vendor:
            values = Configuration(found.configuration)
            yield from _time_faults(
                f"{place}.time_ms", found.time_ms.value, values, problem, timing, kernel, device
            )
    if checks := entry.checks:
        if not checks.rms_error <= checks.max_error <= checks.bound:
            yield wrong(f"{path}.checks.max_error", checks.max_error, "at most the bound")
        declared = kernel.tolerance_of(problem)
        if declared is not None and checks.bound > declared:
            yield wrong(f"{path}.checks.bound", checks.bound, f"at most {declared}")
    if entry.limit_name not in (None, *LIMITS) or (entry.limit_fraction or 0) > _MAX_LIMIT_SHARE:
        found_limit = (entry.limit_name, entry.limit_fraction)
        yield wrong(
            f"{path}.limit_name", found_limit, f"null or one of {LIMITS}, up to {_MAX_LIMIT_SHARE}"
        )
    if unknown := [name for name in entry.metrics if name not in kernel.metrics]:
        yield wrong(f"{path}.metrics", unknown[0], f"one of {tuple(kernel.metrics)}")


def _portfolio_faults(record: TunedRecord, kernel: Kernel, device: Device) -> Iterator[str]:
    portfolio = record.portfolio
    if len(portfolio.configurations) > PORTFOLIO_SIZE:
        found = len(portfolio.configurations)
        yield wrong("len(portfolio.configurations)", found, f"at most {PORTFOLIO_SIZE}")
    tuned = {key_of(entry.problem): entry for entry in record.problems}
    for row, times_ms in enumerate(portfolio.median_ms):
        values = Configuration(portfolio.configurations[row])
        for column, time_ms in enumerate(times_ms):
            if time_ms is not None:
                problem = portfolio.problems[column]
                entry = tuned.get(key_of(problem))
                timing = Timing(entry.race.timing) if entry else Timing.OTHER
                path = f"portfolio.median_ms[{row}][{column}]"
                yield from _time_faults(
                    path, time_ms, values, Problem(dict(problem)), timing, kernel, device
                )


def _time_faults(
    path: str,
    time_ms: float,
    values: Configuration,
    problem: Problem,
    timing: Timing,
    kernel: Kernel,
    device: Device,
) -> Iterator[str]:
    """Yield reasons why a configuration cannot have taken this time on a problem."""
    if not kernel.allows(values, problem):
        yield wrong(path, time_ms, f"no time: {values} does not allow the problem ({problem})")
    work, is_cold = kernel.work_of(problem), timing.is_cold and timing is not Timing.OTHER
    if work and (why := implausible(time_ms, work, device, is_cold)):
        yield f"{path}: {why}"


# ---------------------------------------------------------------------- computed values


def _with_prediction(ours: AnswerTable, theirs: AnswerTable) -> AnswerTable:
    """Return our table with those parts of the foreign prediction that are not compared.

    These parts are a fit to random sizes, trees, expected times, and costs that predict the same times
    as ours.
    """
    mine, other = ours.prediction, theirs.prediction
    if other and other.sizes > len(ours.rows):
        mine = other
    elif mine and other:
        pairs = itertools.zip_longest(mine.costs, other.costs[: len(mine.costs)])
        costs = tuple(
            msgspec.structs.replace(there, plan=here.plan)
            if there and _predict_alike(here, there, mine.multiple, ours.rows)
            else here
            for here, there in pairs
        )
        mine = msgspec.structs.replace(
            mine, costs=costs, corrections=other.corrections, expected=other.expected
        )
    return msgspec.structs.replace(ours, prediction=mine)


def _predict_alike(ours: Cost, theirs: Cost, multiple: int, rows: Iterable[TableRow]) -> bool:
    times = ([predicted_ms(cost, multiple, row.problem) for cost in (ours, theirs)] for row in rows)
    return all(math.isclose(here, there, rel_tol=_MAX_FIT_DIFFERENCE) for here, there in times)


def _document(record: TunedRecord) -> Any:
    return msgspec.to_builtins(record, enc_hook=dict)


def _places(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every value in a document, with its path."""
    yield path, value
    for name, inner in _parts(path, value):
        yield from _places(name, inner)


def _parts(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"{path}.{name}" if path else str(name), value[name]) for name in value)
    elif isinstance(value, list | tuple):
        yield from ((f"{path}[{number}]", inner) for number, inner in enumerate(value))


def _differences(path: str, found: Any, expected: Any) -> Iterator[str]:
    """Yield the places in which two documents differ; ignore rounding errors of floats."""
    theirs, ours = dict(_parts(path, found)), dict(_parts(path, expected))
    if theirs and ours:
        for name in dict.fromkeys([*theirs, *ours]):
            yield from _differences(name, theirs.get(name), ours.get(name))
    elif isinstance(found, float) and isinstance(expected, float):
        if not math.isclose(found, expected, rel_tol=1e-9):
            yield wrong(path, found, repr(expected))
    elif type(found) is not type(expected) or found != expected:
        yield wrong(path, found, repr(expected))
