"""Turns what came of a run into a tuned record: what was found, how sure, and on what.

Knows the record's schema and the run's results; writes no file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from statistics import median
from typing import Any

import msgspec

from autotune import __version__
from autotune.devices.device import Device
from autotune.errors import AutotuneError, UsageError
from autotune.kernel.expression import Json
from autotune.kernel.launches import (
    launch_sequence,
    requirement,
    traced,
    traced_grid,
    traced_numbers,
)
from autotune.kernel.membership import valid_archs
from autotune.kernel.source import arguments_fingerprint, source_commit, source_fingerprint
from autotune.kernel.spec import Fill, Kernel, Launch
from autotune.measure import limits
from autotune.measure.measurement import CheckResult, Energy
from autotune.measure.objective import Scoring
from autotune.measure.timing import Timing, median_interval
from autotune.run import selection
from autotune.run.request import Request
from autotune.run.result import ProblemResult, RunResult, wrong_somewhere
from autotune.tuned.fallback import fallback_table, with_views
from autotune.tuned.record import (
    BestDeterministic,
    Checks,
    Entry,
    FallbackRow,
    FillStep,
    Grid,
    LaunchStep,
    Plan,
    Portfolio,
    Provenance,
    RecordedDevice,
    RecordedEnergy,
    Repeated,
    RunnerUp,
    Triple,
    TunedRecord,
    Vendor,
    key_of,
    timestamp,
)
from autotune.tuned.writing import alone, keys, without
from autotune.values import Configuration, Problem

#: Finalists that an entry names beside its winner.
RUNNERS_UP = 5


def record_of(run: RunResult) -> TunedRecord:
    """The tuned record of one run, without the problems that have no winner.

    Merge it into what is known with `autotune.tuned.writing.update`.
    """
    kernel, device = run.request.kernel, run.request.device
    example = next(iter(run.request.problems))
    entries = tuple(_entry(run, result) for result in run.solved)
    wrong = wrong_somewhere(run.problems)
    right = [entry for entry in entries if Configuration(entry.configuration) not in wrong]
    portfolio, fallback = (
        _with_fallback(kernel, device, run.portfolio, right) if run.portfolio else (Portfolio(), ())
    )
    return TunedRecord(
        kernel=kernel.name,
        device=RecordedDevice.of(device),
        fields={
            name: "integer" if isinstance(value, int) else "categorical"
            for name, value in example.items()
        },
        parameters=dict(kernel.parameters),
        layout=dict(kernel.layout),
        default=default_plan(kernel, example, device),
        entries=entries,
        portfolio=portfolio,
        fallback=fallback
        or tuple(FallbackRow(problem=entry.problem, plan=entry.plan) for entry in right),
        provenance=Provenance(
            version=__version__,
            toolchain=run.toolchain,
            driver=device.driver,
            created=timestamp(),
        ),
        objective=run.request.objective.name,
    )


def _entry(run: RunResult, result: ProblemResult) -> Entry:
    request = run.request
    finals = result.finals
    if finals is None:
        raise AutotuneError(f"{request.kernel.name} ({result.problem}): no winner to record")
    winner = finals.winner
    measurement = winner.measurement
    configuration = measurement.configuration
    plan = _plan(request.kernel, configuration, result.problem, request.device)
    work = request.kernel.work_of(result.problem)
    share, limit = (
        limits.share(work, winner.median_ms, run.limits, request.device) if work else (None, None)
    )
    timing = Timing.of(request.caches_of(result.problem), finals.launched_by)
    if (
        limit != "ffma" and not timing.is_cold
    ):  # the memory's rate is no limit of what is in a cache
        share = limit = None
    function = measurement.largest_function
    return Entry(
        **msgspec.structs.asdict(plan),
        problem=dict(result.problem),
        steps=_steps(request.kernel, configuration, result.problem, request.device),
        median_ms=winner.median_ms,
        interval_ms=winner.interval_ms,
        samples=len(winner.samples_ms),
        gb_per_s=_rate(work.bytes_read + work.bytes_written, winner.median_ms) if work else None,
        gflop_per_s=_rate(work.flops, winner.median_ms) if work else None,
        limit_fraction=share,
        limit_name=limit,
        vendor=_vendor(finals),
        tied=len(finals.tied),
        checks=_checks(measurement.checks),
        registers=function.registers,
        spill_bytes=function.spill_bytes,
        static_shared_bytes=function.shared_bytes,
        source=run.source,
        timing=timing.value,
        clean_ms=winner.clean_ms,
        hot_ms=winner.hot_ms,
        energy=recorded_energy(winner.energies),
        metrics=_metrics(run, result.problem, winner),
        effort="full" if request.effort.name == "full" else "quick",
        strategy=request.strategy,
        evaluations=len(result.measured),
        seed=request.seed,
        tuned_on=timestamp(),
        arguments=arguments_fingerprint(request.kernel, request.inputs),
        inputs=tuple(sorted(request.inputs)),
        options=request.kernel.compiler_options(configuration, request.device),
        driver=request.device.driver,
        toolchain=run.toolchain,
        device_uuid=request.device.uuid,
        sm_mhz=finals.clocks.sm_mhz,
        identical_runs=winner.identical_runs,
        best_deterministic=_best_deterministic(request, result.problem, finals),
        who=os.environ.get("AUTOTUNE_WHO", "")[:200],
        commit=source_commit(request.kernel),
        runners_up=_runners_up(finals, request.seed),
        repeated=_repeated(finals),
        unsure=selection.why_unsure(finals, result.measured),
    )


def _best_deterministic(
    request: Request, problem: Problem, finals: selection.Decision
) -> BestDeterministic | None:
    """The best that is deterministic, beside a winner that is not."""
    best = finals.best_deterministic
    if best is None:
        return None
    against = finals.against_winner(best, request.seed)
    plan = _plan(request.kernel, best.measurement.configuration, problem, request.device)
    return BestDeterministic(
        **msgspec.structs.asdict(plan),
        median_ms=best.median_ms,
        interval_ms=best.interval_ms,
        ratio=against.value,
        ratio_interval=(against.low, against.high),
        identical_runs=best.identical_runs,
    )


def _runners_up(finals: selection.Decision, seed: int) -> tuple[RunnerUp, ...]:
    """Who else was in the finals, best first."""
    others = [finalist for finalist in finals.finalists if finalist is not finals.winner]
    return tuple(
        RunnerUp(
            configuration=dict(finalist.measurement.configuration),
            median_ms=finalist.median_ms,
            interval_ms=finalist.interval_ms,
            ratio=against.value,
            ratio_interval=(against.low, against.high),
            energy_mj=_median_mj(finalist.energies),
        )
        for finalist in others[:RUNNERS_UP]
        for against in (finals.against_winner(finalist, seed),)
    )


def _repeated(finals: selection.Decision) -> Repeated | None:
    """The winner on a second device, where it raced there."""
    samples = finals.repeat.samples_ms if finals.repeat else {}
    mine = samples.get(finals.winner.measurement.configuration)
    if finals.repeat is None or mine is None:
        return None
    median_ms = median(mine)
    return Repeated(
        device_uuid=finals.repeat.device_uuid,
        median_ms=median_ms,
        interval_ms=median_interval(mine),
        ratio=median_ms / finals.winner.median_ms,
        of_fastest=median_ms / min(map(median, samples.values())),
    )


def refitted(
    record: TunedRecord, kernel: Kernel, measured: selection.PortfolioTimes
) -> TunedRecord:
    """A record whose winners stay, and whose answers for other problems are made anew.

    Raises
    ------
    UsageError
        See `require_current`.
    """
    require_current(record, kernel)
    device = record.device.planned_for()
    request = request_for(record, kernel, device)
    # As the matrix was.
    entries = [
        entry
        for entry in record.entries
        if Timing(entry.timing).caches is request.caches_of(Problem(dict(entry.problem)))
    ]
    portfolio, rows = _with_fallback(kernel, device, measured, entries)
    others = alone(without(record.fallback, keys(rows)))
    return msgspec.structs.replace(record, portfolio=portfolio, fallback=(*rows, *others))


def request_for(record: TunedRecord, kernel: Kernel, device: Device) -> Request:
    """What measures a record's problems as its winners were: by the rule where not all were alike."""
    problems = tuple(Problem(dict(entry.problem)) for entry in record.entries)
    found = {Timing(entry.timing).caches for entry in record.entries}
    return Request(kernel, device, problems, caches=found.pop() if len(found) == 1 else None)


def require_current(record: TunedRecord, kernel: Kernel) -> None:
    """Make sure that a kernel is as it was when it was tuned.

    Raises
    ------
    UsageError
        If the record is of another state of the kernel, whose launches are not known any more.
    """
    source, arguments = source_fingerprint(kernel), arguments_fingerprint(kernel)
    for entry in record.entries:
        if entry.source != source or (not entry.inputs and entry.arguments != arguments):
            raise UsageError(
                f"{record.kernel} on {record.device.name}: tuned before the kernel was changed; "
                f"run: autotune retune {record.kernel}"
            )


def _with_fallback(
    kernel: Kernel,
    device: Device,
    measured: selection.PortfolioTimes,
    entries: Sequence[Entry],
) -> tuple[Portfolio, tuple[FallbackRow, ...]]:
    """The matrix with the predictions that are fitted to it, and the table made of it."""
    matrix = Portfolio(
        configurations=tuple(dict(configuration) for configuration in measured.configurations),
        problems=tuple(dict(problem) for problem in measured.problems),
        median_ms=measured.median_ms,
    )

    @cache
    def planned(configuration: Configuration, problem: Problem) -> Plan:
        return _plan(kernel, configuration, problem, device)

    def planner(values: Mapping[str, Any], problem: Mapping[str, int | str]) -> Plan:
        return planned(Configuration(dict(values)), Problem(dict(problem)))

    found = {key_of(entry.problem): (entry.configuration, entry.median_ms) for entry in entries}
    winners = [found.get(key_of(problem)) for problem in measured.problems]
    rows, predictions = fallback_table(matrix, planner, device.sm_count, winners)
    rows = with_views(rows, matrix, planner, kernel.layout, verified_layouts(kernel))
    return msgspec.structs.replace(matrix, predictions=predictions), rows


def verified_layouts(kernel: Kernel) -> list[Problem]:
    """The ways in which arrays lie, beside the one that is tuned, that a winner is verified on."""
    others = (kernel.layout_of(edge) for edge in kernel.edge_problems)
    return [kernel.filled(layout) for layout in dict.fromkeys(others) if layout]


def default_plan(kernel: Kernel, problem: Problem, device: Device) -> Plan:
    """The plan of the default, which is deterministic if it is so for every problem."""
    configuration = kernel.default()
    always = all(kernel.is_deterministic(configuration, each) for each in kernel.all_problems())
    plan = _plan(kernel, configuration, problem, device)
    return msgspec.structs.replace(plan, deterministic=always)


def _plan(kernel: Kernel, configuration: Configuration, problem: Problem, device: Device) -> Plan:
    """How the main launch of a configuration looks, for any problem where it can be traced."""
    main = launch_sequence(kernel, configuration, problem, device).main
    steps = traced(kernel, configuration, device, problem)
    return Plan(
        configuration=dict(configuration),
        block=_three(main.block),
        shared_bytes=main.shared_bytes,
        grid=_completed(traced_grid(steps, kernel.name)),
        requires=requirement(kernel, configuration),
        archs=valid_archs(kernel, configuration) if device.compiles_for_arch else None,
        exclusive=kernel.is_exclusive(configuration),
        deterministic=kernel.is_deterministic(configuration, problem),
    )


def _completed(grid: tuple[Json, ...] | None) -> Grid | None:
    """Three dimensions: missing ones are 1."""
    if grid is None:
        return None
    x, y, z = (*grid, 1, 1)[:3]
    return x, y, z


def _three(sizes: tuple[int, ...]) -> Triple:
    x, y, z = sizes
    return x, y, z


def _steps(
    kernel: Kernel, configuration: Configuration, problem: Problem, device: Device
) -> tuple[LaunchStep | FillStep, ...]:
    concrete = launch_sequence(kernel, configuration, problem, device).steps
    symbolic = traced(kernel, configuration, device, problem) or (None,) * len(concrete)
    steps: list[LaunchStep | FillStep] = []
    for step, trace in zip(concrete, symbolic, strict=True):
        if isinstance(step, Fill):
            steps.append(FillStep(name=step.name, value=float(step.value)))
            continue
        grid = traced_numbers(trace.grid) if isinstance(trace, Launch) else None
        names = step.args or ()
        steps.append(
            LaunchStep(
                entry=str(step.entry),
                concrete_grid=_three(step.grid),
                block=_three(step.block),
                shared_bytes=step.shared_bytes,
                grid=_completed(grid),
                args=tuple(name if isinstance(name, str) else int(name) for name in names),
            )
        )
    return tuple(steps)


def _rate(amount: float, median_ms: float) -> float:
    """Amount per nanosecond: GB/s of bytes, GFLOP/s of operations."""
    return amount / median_ms / 1e6


def _vendor(finals: selection.Decision) -> Vendor | None:
    name = finals.vendor
    if name is None:
        return None
    median_ms, ratio = finals.vendors[name]
    return Vendor(
        name=name,
        median_ms=median_ms,
        ratio=ratio.value,
        ratio_interval=(ratio.low, ratio.high),
        clean_ms=finals.vendor_clean_ms.get(name),
        hot_ms=finals.vendor_hot_ms.get(name),
        energy_mj=_median_mj(finals.vendor_energies.get(name, ())),
    )


def recorded_energy(windows: Sequence[Energy]) -> RecordedEnergy | None:
    """What a record keeps of windows of one configuration; None where there are none."""
    if not windows:
        return None
    taken = [window.call_mj for window in windows]
    limits_w = [window.limit_w for window in windows if window.limit_w is not None]
    clocks = [window.clocks.sm_mhz for window in windows if window.clocks.sm_mhz is not None]
    return RecordedEnergy(
        median_mj=median(taken),
        interval_mj=median_interval(taken),
        power_w=median(window.power_w for window in windows),
        limit_w=min(limits_w, default=None),
        sm_mhz=int(median(clocks)) if clocks else None,
        windows=len(windows),
    )


def _median_mj(windows: Sequence[Energy]) -> float | None:
    return median(window.call_mj for window in windows) if windows else None


def _metrics(run: RunResult, problem: Problem, winner: selection.Finalist) -> Mapping[str, float]:
    """What the kernel's metrics say of a winner: of its median in the finals, not of its search."""
    request = run.request
    scoring = Scoring(request.objective, request.kernel, problem, request.device)
    measured = replace(winner.measurement, samples_ms=winner.samples_ms)
    if winner.energies:
        median_mj = median(window.call_mj for window in winner.energies)
        power_w = median(window.power_w for window in winner.energies)
        measured = replace(
            measured, energy=replace(winner.energies[0], call_mj=median_mj, power_w=power_w)
        )
    return scoring.with_metrics(measured).metrics


def _checks(checks: tuple[CheckResult, ...]) -> Checks | None:
    """The check on random data with the largest error: exact data has none."""
    random = [check for check in checks if check.dataset == "random"]
    if not random:
        return None
    worst = max(random, key=lambda check: check.max_error)
    return Checks(max_error=worst.max_error, rms_error=worst.rms_error, bound=worst.bound)
