"""Computes the launches of a configuration: the plans of a record and the launch steps of a winner."""

from __future__ import annotations

from typing import Any

import msgspec

from autotune.answers.table import Grid, Plan, PlannedLaunch, TableRow, Triple
from autotune.compiling.binaries import compile_now
from autotune.compiling.job import compile_job
from autotune.devices.device import Device, for_arch
from autotune.kernel.expression import Json
from autotune.kernel.launches import (
    LaunchSequence,
    complete_launches,
    exceeded_limit,
    launch_sequence,
    requirement,
    trace_launches,
    traced_numbers,
)
from autotune.kernel.space import valid_archs
from autotune.kernel.spec import Fill, Kernel, Launch
from autotune.kernel.views import View
from autotune.tuned.record import FillStep, LaunchStep
from autotune.values import Configuration, Problem, by_category


def default_rows(kernel: Kernel, device: Device) -> tuple[TableRow, ...]:
    """Return the plans of the default, with an example of each combination of categories.

    A plan is marked deterministic if it is deterministic on every problem of its categories.
    """
    configuration, rows = kernel.default(), list[TableRow]()
    problems = (kernel.first_problem(device.backend), *kernel.all_problems())
    for places in by_category(problems).values():
        example = Problem({name: problems[places[0]][name] for name in kernel.fields})
        plan = plan_of(kernel, configuration, example, device)
        always = all(kernel.is_deterministic(configuration, problems[at]) for at in places)
        plan = msgspec.structs.replace(plan, deterministic=always)
        rows.append(TableRow(problem=dict(example), plans=(plan,)))
    return tuple(rows)


def plan_of(kernel: Kernel, configuration: Configuration, problem: Problem, device: Device) -> Plan:
    """Return the launches of a configuration; grids that can be traced are expressions of the problem."""
    concrete = _sequence(kernel, configuration, problem, device)
    launches = [
        PlannedLaunch(
            entry="" if launch.entry == kernel.name else str(launch.entry),
            block=_three(launch.block),
            shared_bytes=launch.shared_bytes,
            grid=grid,
            cluster=_three(launch.cluster) if launch.cluster else None,
            cooperative=launch.cooperative,
            programmatic=launch.programmatic,
        )
        for launch, grid in zip(
            concrete.launches, _traced_grids(kernel, configuration, problem, device), strict=True
        )
    ]
    at = concrete.launches.index(concrete.main)
    return Plan(
        **msgspec.structs.asdict(launches[at]),
        configuration=dict(configuration),
        before=tuple(launches[:at]),
        after=tuple(launches[at + 1 :]),
        requires=requirement(kernel, configuration, problem),
        archs=_archs(kernel, configuration, concrete) if device.is_cuda else None,
        exclusive=kernel.is_exclusive(configuration),
        deterministic=kernel.is_deterministic(configuration, problem),
    )


def _archs(
    kernel: Kernel, configuration: Configuration, sequence: LaunchSequence
) -> tuple[str, ...]:
    """Return the architectures whose space has a configuration, and whose limits its launches keep."""
    valid = valid_archs(kernel, configuration)
    return tuple(arch for arch in valid if not exceeded_limit(sequence, None, for_arch(arch)))


def _traced_grids(
    kernel: Kernel, configuration: Configuration, problem: Problem, device: Device
) -> list[Grid | None]:
    """Return the grid of each launch as expressions of the problem, or None."""
    steps = trace_launches(kernel, configuration, device, problem)
    if steps is None:
        steps = kernel.steps(configuration, problem, device)
        return [None for step in steps if isinstance(step, Launch)]
    return [_completed(traced_numbers(step.grid)) for step in steps if isinstance(step, Launch)]


def _sequence(
    kernel: Kernel, configuration: Configuration, problem: Problem, device: Device
) -> LaunchSequence:
    """Return a launch sequence, completed by values that the language's compiler decides."""
    plan = launch_sequence(kernel, configuration, problem, device)
    if kernel.language is None:
        return plan
    found = compile_now(compile_job(kernel, configuration, problem, device))
    return complete_launches(plan, found.binary) if found.binary else plan


def _argument(value: Any) -> str | int:
    return str(value) if isinstance(value, str | View) else int(value)


def _completed(grid: tuple[Json, ...] | None) -> Grid | None:
    if grid is None:
        return None
    x, y, z = (*grid, 1, 1)[:3]
    return x, y, z


def _three(sizes: tuple[int, ...]) -> Triple:
    x, y, z = sizes
    return x, y, z


def steps_of(
    kernel: Kernel, configuration: Configuration, problem: Problem, device: Device
) -> tuple[LaunchStep | FillStep, ...]:
    """Return all launches and fills of a configuration on a problem, in order."""
    concrete = _sequence(kernel, configuration, problem, device).steps
    grids = iter(_traced_grids(kernel, configuration, problem, device))
    steps: list[LaunchStep | FillStep] = []
    for step in concrete:
        if isinstance(step, Fill):
            steps.append(FillStep(name=step.name, value=float(step.value)))
            continue
        names = step.args or ()
        steps.append(
            LaunchStep(
                entry=str(step.entry),
                concrete_grid=_three(step.grid),
                block=_three(step.block),
                shared_bytes=step.shared_bytes,
                grid=next(grids),
                args=tuple(map(_argument, names)),
                cluster=_three(step.cluster) if step.cluster else msgspec.UNSET,
                cooperative=step.cooperative or msgspec.UNSET,
                programmatic=step.programmatic or msgspec.UNSET,
            )
        )
    return tuple(steps)
