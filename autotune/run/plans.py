"""Computes the launches of a configuration: the plans of a record and the launch steps of a winner."""

from __future__ import annotations

import msgspec

from autotune.answers.table import Grid, Plan, Triple
from autotune.compiling.binaries import compile_now
from autotune.compiling.job import compile_job
from autotune.devices.device import Device
from autotune.kernel.expression import Json
from autotune.kernel.launches import (
    LaunchSequence,
    complete_launches,
    launch_sequence,
    requirement,
    trace_launches,
    traced_grid,
    traced_numbers,
)
from autotune.kernel.space import valid_archs
from autotune.kernel.spec import Fill, Kernel, Launch
from autotune.tuned.record import FillStep, LaunchStep
from autotune.values import Configuration, Problem


def default_plan(kernel: Kernel, problem: Problem, device: Device) -> Plan:
    """Return the plan of the default, marked deterministic if it is deterministic on every problem."""
    configuration = kernel.default()
    always = all(kernel.is_deterministic(configuration, p) for p in kernel.all_problems())
    plan = plan_of(kernel, configuration, problem, device)
    return msgspec.structs.replace(plan, deterministic=always)


def plan_of(kernel: Kernel, configuration: Configuration, problem: Problem, device: Device) -> Plan:
    """Return the main launch of a configuration; a grid that can be traced is an expression of the problem."""
    main = _sequence(kernel, configuration, problem, device).main
    steps = trace_launches(kernel, configuration, device, problem)
    return Plan(
        configuration=dict(configuration),
        block=_three(main.block),
        shared_bytes=main.shared_bytes,
        grid=_completed(traced_grid(steps, kernel.name)),
        requires=requirement(kernel, configuration, problem),
        archs=valid_archs(kernel, configuration) if device.is_cuda else None,
        exclusive=kernel.is_exclusive(configuration),
        deterministic=kernel.is_deterministic(configuration, problem),
    )


def _sequence(
    kernel: Kernel, configuration: Configuration, problem: Problem, device: Device
) -> LaunchSequence:
    """Return a launch sequence, completed by values that the language's compiler decides."""
    plan = launch_sequence(kernel, configuration, problem, device)
    if kernel.language is None:
        return plan
    found = compile_now(compile_job(kernel, configuration, problem, device))
    return complete_launches(plan, found.binary) if found.binary else plan


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
    symbolic = trace_launches(kernel, configuration, device, problem) or (None,) * len(concrete)
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
