"""Makes the tuned record of a run, and computes the derived values of a record again. It writes no file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import msgspec

from autotune import __version__
from autotune.answers.category import HeldOutShares
from autotune.answers.fit import Launches, Winner, fitted_tables
from autotune.answers.table import Plan, Portfolio
from autotune.devices.device import Device
from autotune.errors import AutotuneError, UsageError
from autotune.kernel.definition import Definition
from autotune.kernel.sizes import ranges_of
from autotune.kernel.source import (
    arguments_fingerprint,
    changed_since,
    definition_of,
    source_fingerprint,
)
from autotune.kernel.spec import Kernel
from autotune.measure.measurement import (
    Energy,
    Measurement,
    with_metrics,
)
from autotune.measure.roofline import device_limit
from autotune.measure.timing import Timing
from autotune.run.plans import default_rows, plan_of, steps_of
from autotune.run.request import Request
from autotune.run.result import ProblemResult, RunResult, wrong_somewhere
from autotune.tuned.dates import timestamp
from autotune.tuned.record import (
    Checks,
    ContenderResult,
    Provenance,
    RaceResult,
    TunedProblem,
    TunedRecord,
    TuningOrigin,
)
from autotune.tuned.recorded_device import RecordedDevice
from autotune.values import Configuration, Problem


def record_of(run: RunResult) -> TunedRecord:
    """Return the tuned record of one run, with the problems that have a winner.

    Merge it into the records with `autotune.tuned.writing.update`.
    """
    kernel, device = run.request.kernel, run.request.device
    problems = tuple(_tuned(run, result) for result in run.solved)
    if problems:  # in a fleet, another card holds the finals if the first card is lost
        device = replace(device, uuid=problems[0].origin.device_uuid)
    wrong = wrong_somewhere(run.problems)
    right = [tuned for tuned in problems if Configuration(tuned.configuration) not in wrong]
    measured = run.portfolio
    portfolio = Portfolio()
    if measured:
        launches = _launches(kernel, device)
        portfolio = fitted_tables(measured, launches, run.sizes, _winners(right)).portfolio
    return TunedRecord(
        device=RecordedDevice.of(device),
        **_declared(kernel, device),
        problems=problems,
        portfolio=portfolio,
        provenance=Provenance(
            version=__version__,
            toolchain=run.toolchain,
            driver=device.driver,
            **_made_of(run.definition),
            created=timestamp(),
        ),
        objective=run.request.objective.name,
    )


def _tuned(run: RunResult, result: ProblemResult) -> TunedProblem:
    request, race, outcome = run.request, result.race, result.result
    if race is None or outcome is None:
        raise AutotuneError(f"{request.kernel.name} ({result.problem}): no winner to record")
    kernel, problem, device = request.kernel, result.problem, request.device
    winner = outcome.winner
    configuration = Configuration(winner.configuration)
    raced = {finalist.configuration: finalist for finalist in race.finalists}
    row = raced[configuration].row
    assert row is not None
    planned = [raced[c] for c in _planned(outcome)]
    verified = [size for size in planned[0].verified if all(size in f.verified for f in planned)]
    median_ms = winner.time_ms.value
    work = kernel.work_of(problem)
    limit = device_limit(work, run.limits, race.timing.caches) if work else None
    return TunedProblem(
        problem=dict(problem),
        race=outcome,
        **_of_winner(kernel, problem, outcome, device),
        limit_fraction=limit.share(median_ms) if limit else None,
        limit_name=limit.name if limit else None,
        checks=_checks(run, result, row),
        verified=ranges_of(kernel, verified, [problem]),
        metrics=_metrics(request, problem, row, winner),
        origin=TuningOrigin(
            tuned_on=timestamp(),
            source=run.definition.source,
            arguments=arguments_fingerprint(kernel, problem),
            options=kernel.compiler_options(configuration, device),
            driver=device.driver,
            toolchain=run.toolchain,
            device_uuid=race.device_uuid or device.uuid,
            effort="full" if request.effort.name == "full" else "quick",
            strategy=request.goal.searched_by,
            seed=request.seed,
            evaluations=len(result.measured),
            command=request.command.encode("ascii", "backslashreplace").decode()[:2000],
            budget=str(request.total_budget),
            who=os.environ.get("AUTOTUNE_WHO", "")[:200],
        ),
    )


def _declared(kernel: Kernel, device: Device) -> dict[str, Any]:
    """Return the fields of a record that depend on the kernel only."""
    example = kernel.first_problem(device.backend)
    return {
        "kernel": kernel.name,
        "fields": {
            name: "integer" if isinstance(example[name], int) else "categorical"
            for name in kernel.fields
        },
        "parameters": dict(kernel.parameters),
        "sources": {name: tuple(own.parameters) for name, own in kernel.sources.items() if name},
        "layout": dict(kernel.layout),
        "defaults": default_rows(kernel, device),
    }


def _of_winner(
    kernel: Kernel, problem: Problem, race: RaceResult, device: Device
) -> dict[str, Any]:
    """Return the fields of a tuned problem that depend on the result of its race."""
    configurations = _planned(race)
    work, median_ms = kernel.work_of(problem), race.winner.time_ms.value
    return {
        "plans": tuple(plan_of(kernel, c, problem, device) for c in configurations),
        "steps": steps_of(kernel, configurations[0], problem, device),
        "gb_per_s": _rate(work.bytes_read + work.bytes_written, median_ms) if work else None,
        "gflop_per_s": _rate(work.flops, median_ms) if work else None,
    }


def _planned(race: RaceResult) -> list[Configuration]:
    """Return the winner and, if it is not deterministic, the best deterministic finalist."""
    found = (race.winner, race.best_deterministic)
    return [Configuration(contender.configuration) for contender in found if contender]


def recomputed(record: TunedRecord, kernel: Kernel) -> TunedRecord:
    """Return a record with all values that follow from its kernel computed again; measurements stay."""
    device = record.device.planned_for()
    made_of = _made_of(definition_of(kernel))
    return msgspec.structs.replace(
        refitted(record, kernel, record.portfolio),
        **_declared(kernel, device),
        problems=tuple(_recomputed(entry, kernel, device) for entry in record.problems),
        provenance=msgspec.structs.replace(record.provenance, **made_of),
    )


def _made_of(definition: Definition) -> dict[str, Any]:
    """Return the fields of a provenance that identify the kernel."""
    return definition._asdict()


def _recomputed(entry: TunedProblem, kernel: Kernel, device: Device) -> TunedProblem:
    problem = Problem(dict(entry.problem))
    contenders = tuple(
        found
        if found.vendor
        else msgspec.structs.replace(
            found,
            deterministic=kernel.is_deterministic(Configuration(found.configuration), problem),
        )
        for found in entry.race.contenders
    )
    race = msgspec.structs.replace(entry.race, contenders=contenders)
    options = kernel.compiler_options(Configuration(race.winner.configuration), device)
    return msgspec.structs.replace(
        entry,
        race=race,
        **_of_winner(kernel, problem, race, device),
        origin=msgspec.structs.replace(entry.origin, options=options),
    )


def refitted(
    record: TunedRecord, kernel: Kernel, measured: Portfolio, sizes: Portfolio | None = None
) -> TunedRecord:
    """Return a record with the same winners and new answers for other problems; see `fitted_with`."""
    return fitted_with(record, kernel, measured, sizes)[0]


def fitted_with(
    record: TunedRecord, kernel: Kernel, measured: Portfolio, sizes: Portfolio | None = None
) -> tuple[TunedRecord, HeldOutShares]:
    """Return a record with new answers for other problems, and the speed of the answers on held-out sizes.

    See `fitted_tables` for ``sizes``. If the record's prediction was fitted to more sizes, it stays.
    """
    require_current(record, kernel)
    device = record.device.planned_for()
    request = request_for(record, kernel, device)
    # Timed like the matrix.
    entries = [
        entry
        for entry in record.problems
        if Timing(entry.race.timing).caches is request.caches_of(Problem(dict(entry.problem)))
    ]
    measured = msgspec.structs.replace(measured, tables=record.portfolio.tables)
    fitted = fitted_tables(measured, _launches(kernel, device), sizes, _winners(entries))
    record = msgspec.structs.replace(
        record, portfolio=fitted.portfolio, parameters=dict(kernel.parameters)
    )
    return record, fitted.held_out


def request_for(record: TunedRecord, kernel: Kernel, device: Device) -> Request:
    """Return a request that measures a record's problems in the way in which their winners were measured."""
    problems = tuple(Problem(dict(entry.problem)) for entry in record.problems)
    found = {Timing(entry.race.timing).caches for entry in record.problems}
    return Request.without_search(
        kernel, device, problems, caches=found.pop() if len(found) == 1 else None
    )


def is_current(record: TunedRecord, kernel: Kernel) -> bool:
    """Return whether a kernel is unchanged since the entries of a record were tuned."""
    return len(_current_entries(record, kernel)) == len(record.problems)


def _current_entries(record: TunedRecord, kernel: Kernel) -> tuple[TunedProblem, ...]:
    source = source_fingerprint(kernel)
    return tuple(
        entry
        for entry in record.problems
        if (entry.origin.source, entry.origin.arguments)
        == (source, arguments_fingerprint(kernel, Problem(dict(entry.problem))))
    )


def current_part(record: TunedRecord, kernel: Kernel) -> TunedRecord:
    """Return a record without the entries that were tuned before the kernel changed.

    Raise `UsageError` if no entry is left, or if the kernel changed since the newest run, which timed the
    portfolio.
    """
    entries, made = _current_entries(record, kernel), record.provenance
    if not entries or changed_since(kernel, made.source, made.arguments):
        require_current(record, kernel)
    return msgspec.structs.replace(record, problems=entries)


def require_current(record: TunedRecord, kernel: Kernel) -> None:
    """Raise `UsageError` if a kernel changed after a record was tuned: its launches may differ now."""
    if not is_current(record, kernel):
        raise UsageError(
            f"{record.kernel} on {record.device.name}: the kernel changed after it was tuned; "
            f"run: autotune retune {record.kernel}"
        )


def _launches(kernel: Kernel, device: Device) -> Launches:
    @cache
    def planned(configuration: Configuration, problem: Problem) -> Plan:
        return plan_of(kernel, configuration, problem, device)

    def plan(values: Mapping[str, Any], problem: Mapping[str, int | str]) -> Plan:
        return planned(Configuration(dict(values)), Problem(dict(problem)))

    # The layouts on which a winner is verified.
    others = dict.fromkeys(kernel.layout_of(edge) for edge in kernel.edge_problems)
    layouts = [kernel.filled(layout) for layout in others]
    return Launches(plan, device.sm_count, kernel.layout, layouts)


def _winners(entries: Iterable[TunedProblem]) -> dict[Problem, Winner]:
    return {
        Problem(dict(entry.problem)): Winner(entry.configuration, entry.median_ms)
        for entry in entries
    }


def _rate(amount: float, median_ms: float) -> float:
    return amount / median_ms / 1e6


def _metrics(
    request: Request, problem: Problem, row: Measurement, winner: ContenderResult
) -> Mapping[str, float]:
    measured = replace(row, samples_ms=(winner.time_ms.value,))
    if winner.energy and winner.energy.power_w is not None:
        energy = Energy(winner.energy.call_mj.value, winner.energy.power_w, calls=1)
        measured = replace(measured, energy=energy)
    return with_metrics(measured, request.kernel, problem, request.device).metrics


def _checks(run: RunResult, result: ProblemResult, row: Measurement) -> Checks | None:
    """Return the check on random data with the largest error; on exact data there is no error."""
    random = [check for check in row.checks if check.dataset == "random"]
    if not random:
        return None
    worst = max(random, key=lambda check: check.max_error)
    return Checks(
        max_error=worst.max_error,
        rms_error=worst.rms_error,
        bound=worst.bound,
        unseen=run.unseen,
        agreed=result.agreed,
        drawn=result.drawn,
        reference=result.reference,
        differs=run.differs.get(row.configuration, ()),
    )
