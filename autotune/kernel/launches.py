"""Computes the launch sequence of a configuration and problem, as checked numbers or traced expressions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from operator import index
from typing import Any

import numpy as np

from autotune.devices.base import (
    GLOBAL_SCRATCH,
    PLAIN,
    Binary,
    BoundFill,
    BoundLaunch,
    Convention,
    ViewedBuffer,
)
from autotune.devices.device import MAX_GRID, Device
from autotune.encoding import element_of
from autotune.errors import SpecError, unknown
from autotune.kernel.attributes import (
    attributes_of,
    check_attributes,
    check_traced,
    exceeded_attribute,
)
from autotune.kernel.expression import (
    Json,
    Symbol,
    UntraceableError,
    stored_form,
    substitute,
    value_of,
)
from autotune.kernel.matching import require_match
from autotune.kernel.spec import Fill, Kernel, Launch, Out, Step
from autotune.kernel.view_layout import TypedArray, has_tensor_maps, layout_of
from autotune.kernel.views import TensorMap, View
from autotune.values import Configuration, Problem


@dataclass(frozen=True)
class LaunchSequence:
    """The launch sequence of a configuration on a problem, as numbers."""

    steps: tuple[Step, ...]
    #: Name of the kernel.
    name: str = ""

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The kernel launches, without fills."""
        return tuple(step for step in self.steps if isinstance(step, Launch))

    @property
    def main(self) -> Launch:
        """The launch whose block and grid records contain; see `main_launch`."""
        return main_launch(self.launches, self.name)


def main_launch(launches: Sequence[Launch], name: str) -> Launch:
    """Return the launch of the function with the kernel's name, else the first launch.

    Launches before it prepare arguments, for example copy one to aligned rows. Launches after it complete
    the result.
    """
    return next((launch for launch in launches if launch.entry in (None, name)), launches[0])


def launch_sequence(
    kernel: Kernel, configuration: Configuration, problem: Problem, device: Device
) -> LaunchSequence:
    """Return the steps of the launch hook with all missing values filled in."""
    language = kernel.language
    block = language.block(kernel.values_of(configuration, problem)) if language else ()
    steps = [
        step
        if isinstance(step, Fill)
        else _with_numbers(kernel, configuration, device, step, block)
        for step in kernel.steps(configuration, problem, device)
    ]
    return LaunchSequence(tuple(steps), kernel.name)


def _with_numbers(
    kernel: Kernel,
    configuration: Configuration,
    device: Device,
    step: Launch,
    block: tuple[int, ...],
) -> Launch:
    """Return a checked launch; ``block`` is empty if the launch function decides the block."""
    if block and step.block:
        raise kernel.error("launch: the language of the source decides the block; leave block out")
    has_cluster = not isinstance(step.cluster, tuple) or step.cluster
    cluster = _three(kernel, "cluster", step.cluster) if has_cluster else ()
    launch = replace(
        step,
        grid=_three(kernel, "grid", step.grid),
        block=_three(kernel, "block", block or step.block),
        shared_bytes=kernel.guarded("launch: shared_bytes", int, step.shared_bytes),
        entry=step.entry or kernel.entry_of(configuration),
        # One block is a cluster on every device.
        cluster=() if cluster == (1, 1, 1) else cluster,
        cooperative=kernel.guarded("launch: cooperative", bool, step.cooperative),
        programmatic=kernel.guarded("launch: programmatic", bool, step.programmatic),
    )
    if attributes_of(launch) != PLAIN:
        check_attributes(kernel, launch, device, bool(block))
    return launch


def complete_launches(
    plan: LaunchSequence, binary: Binary, names: Sequence[str] | None = None
) -> LaunchSequence:
    """Return a launch sequence with the values that the compiler decided; see `Convention`.

    ``names`` are the arguments of a launch without ``args``. None: arguments are not changed.
    """

    def complete(step: Launch, found: Convention) -> Launch:
        (x, *others), given = step.grid, names if step.args is None else step.args
        passed = step.args
        if names is not None and given is not None:
            passed = tuple(_passed(place, given) for place in found.passed)
        grid = (x * found.blocks if found.blocks > 1 else x, *others)
        block = (found.block, 1, 1)
        return replace(
            step,
            grid=grid,
            block=block,
            shared_bytes=found.shared_bytes,
            args=passed,
            cooperative=step.cooperative or found.cooperative,
            programmatic=step.programmatic or found.programmatic,
        )

    conventions = {entry.name: entry.convention for entry in binary.entries if entry.convention}
    steps = (
        complete(step, conventions[str(step.entry)])
        if isinstance(step, Launch) and step.entry in conventions
        else step
        for step in plan.steps
    )
    return replace(plan, steps=tuple(steps))


def _passed(place: int | str | None, given: Sequence[Any]) -> Any:
    if place is None:
        return np.uint64(0)
    return place if isinstance(place, str) else given[place]


def workspaces_of(
    kernel: Kernel,
    configuration: Configuration,
    problem: Problem,
    device: Device,
    binary: Binary,
) -> dict[str, Out]:
    """Return the declared workspaces of a configuration, and `GLOBAL_SCRATCH` if its compiler needs it."""
    found = dict(kernel.workspaces(configuration, problem, device))
    bytes_per_block = {
        entry.name: entry.convention.scratch_bytes for entry in binary.entries if entry.convention
    }
    if any(bytes_per_block.values()):
        plan = complete_launches(launch_sequence(kernel, configuration, problem, device), binary)
        most = max(
            prod(_as_three(step.grid)) * bytes_per_block.get(str(step.entry), 0)
            for step in plan.launches
        )
        found[GLOBAL_SCRATCH] = Out((max(1, most),), np.uint8)
    return found


def exceeded_limit(plan: LaunchSequence, binary: Binary | None, device: Device) -> str:
    """Return a message with the device limit that a launch exceeds and a remedy; empty if all launches fit.

    The binary is needed to check registers and static shared memory.
    """
    for launch in (complete_launches(plan, binary) if binary else plan).launches:
        threads = int(np.prod(launch.block))
        if threads > device.max_threads_per_block:
            return (
                f"{launch.entry}: a block of {threads} threads, but {device.name} allows "
                f"{device.max_threads_per_block}; make the block smaller"
            )
        maps = [argument for argument in launch.args or () if isinstance(argument, TensorMap)]
        if maps and not has_tensor_maps(device):
            return (
                f"{launch.entry}: a tensor map of {maps[0].array}, but {device.name} has no TMA; it needs "
                "sm_90 or newer"
            )
        for size, limit, axis in zip(launch.grid, MAX_GRID, "xyz", strict=True):
            if size > limit:
                return f"{launch.entry}: grid {axis}={size}, but the limit is {limit}; make tiles larger"
        entry = binary.entry(launch.entry or "") if binary else None
        shared = launch.shared_bytes + ((entry.shared_bytes or 0) if entry else 0)
        if shared > device.shared_bytes_per_block:
            return (
                f"{launch.entry}: {shared} bytes of shared memory per block, but {device.name} "
                f"allows {device.shared_bytes_per_block}; make tiles or stages smaller"
            )
        if excess := exceeded_attribute(launch, entry, device):
            return excess
        if entry and entry.registers and entry.registers * threads > device.registers_per_sm:
            return (
                f"{launch.entry}: {entry.registers} registers × {threads} threads, but an SM has "
                f"{device.registers_per_sm} registers; use fewer threads or cap registers"
            )
    return ""


def bind_arguments(
    plan: LaunchSequence,
    names: Sequence[str],
    buffers: Mapping[str, Any],
    scalars: Mapping[str, np.generic],
    arrays: Mapping[str, TypedArray],
    binary: Binary | None = None,
) -> list[BoundLaunch | BoundFill]:
    """Replace argument names by buffers and scalars, and function names by symbols of the binary.

    ``names`` are all arguments and scratch buffers in order, for launches without ``args``. Every name is
    in ``buffers``, with its declaration in ``arrays``, or in ``scalars``. Raises `SpecError` if a name is
    unknown, or the binary's function has other parameters.
    """
    result: list[BoundLaunch | BoundFill] = []
    for step in (complete_launches(plan, binary, names) if binary else plan).steps:
        if isinstance(step, Fill):
            if step.name not in buffers:
                raise SpecError(f"Fill: no buffer {step.name!r} (known: {', '.join(buffers)})")
            value = element_of(arrays[step.name].type_name, step.value)
            result.append(BoundFill(buffers[step.name], value))
            continue
        entry = binary.symbol(str(step.entry)) if binary else str(step.entry)
        given = names if step.args is None else step.args
        args = tuple(_value(argument, buffers, scalars, arrays) for argument in given)
        if binary and (function := binary.entry(str(step.entry))):
            require_match(function, given, args)
        grid, block = _as_three(step.grid), _as_three(step.block)
        result.append(BoundLaunch(entry, grid, block, step.shared_bytes, args, attributes_of(step)))
    return result


def trace_launches(
    kernel: Kernel, configuration: Configuration, device: Device, problem: Problem | None = None
) -> tuple[Step, ...] | None:
    """Return the launch sequence with symbols for the problem's integer fields; None if tracing fails.

    Grids are tuples; their sizes and the arguments may be `Symbol`. Layout and categorical fields keep the
    values of ``problem`` (default: the kernel's first). Tracing fails if the hook needs numbers, or if a
    traced grid differs from the grid for ``problem``.
    """
    example = problem or next(declared for group in kernel.problems.values() for declared in group)
    fields = {
        name: Symbol(name) if isinstance(value, int) and name in kernel.fields else value
        for name, value in example.items()
    }
    try:
        symbolic = tuple(
            replace(step, grid=_sizes(step.grid)) if isinstance(step, Launch) else step
            for step in kernel.steps(configuration, Problem(fields), device)
        )
        concrete = kernel.steps(configuration, example, device)
        grids = [[_grid(step, example) for step in steps] for steps in (symbolic, concrete)]
    except (UntraceableError, SpecError, TypeError, ValueError):
        return None
    for step in symbolic:
        check_traced(kernel, step)
    return symbolic if grids[0] == grids[1] else None


def _grid(step: Step, problem: Problem) -> Step | tuple[int, ...]:
    """Return the grid of a launch for a problem; return a fill unchanged."""
    if isinstance(step, Fill):
        return step
    return tuple(value_of(form, problem) for form in traced_numbers(_sizes(step.grid)) or ())


def traced_grid(steps: tuple[Step, ...] | None, name: str) -> tuple[Json, ...] | None:
    """Return the stored expressions of the main launch's grid; None if it was not traced."""
    launches = [step for step in steps or () if isinstance(step, Launch)]
    return traced_numbers(main_launch(launches, name).grid) if launches else None


def traced_numbers(values: Iterable[Any]) -> tuple[Json, ...] | None:
    """Return the stored forms of integers and symbols; None if a value is neither."""
    forms = [stored_form(value) for value in values]
    known = tuple(form for form in forms if form is not None)
    return known if len(known) == len(forms) else None


def requirement(kernel: Kernel, configuration: Configuration, problem: Problem) -> Json | None:
    """Return the stored condition of a configuration on the integer fields; None without a condition.

    Categorical fields have the values of ``problem``.
    """
    if not kernel.has_hook("requires", configuration):
        return None
    filled = kernel.filled(problem)
    fields = Problem({n: v if isinstance(v, str) else Symbol(n) for n, v in filled.items()})
    try:
        result = kernel.call_hook("requires", configuration, fields)
    except UntraceableError as error:
        raise kernel.error(f"requires: {error}; combine conditions with &") from error
    if isinstance(result, bool):
        return None if result else 0
    form = stored_form(result)
    return None if form is None else substitute(form, {})


def _sizes(sizes: Any) -> tuple[Any, ...]:
    return tuple(sizes) if isinstance(sizes, tuple | list) else (sizes,)


def _three(kernel: Kernel, label: str, sizes: Any) -> tuple[int, int, int]:
    try:
        whole = [index(size) for size in _sizes(sizes)]
    except TypeError as error:
        raise kernel.error(
            f"launch: {label}={sizes!r} is not a tuple of integers; divide with // or ceil_div"
        ) from error
    if not 1 <= len(whole) <= 3 or min(whole) < 1 or max(whole) >= 2**63:
        raise kernel.error(
            f"launch: {label}={sizes!r}: expected one to three positive integers below 2^63"
        )
    return _as_three(whole)


def _as_three(sizes: Sequence[Any]) -> tuple[int, int, int]:
    x, y, z = (*(int(size) for size in sizes), 1, 1)[:3]
    return x, y, z


def _value(
    argument: Any,
    buffers: Mapping[str, Any],
    scalars: Mapping[str, np.generic],
    arrays: Mapping[str, TypedArray],
) -> Any:
    if isinstance(argument, View):
        if argument.array not in arrays:
            text = unknown("array", argument.array, arrays)
            raise SpecError(f"launch: {argument}: {text}")
        layout = layout_of(argument, arrays[argument.array])
        return ViewedBuffer(layout, buffers[argument.array])
    if isinstance(argument, str):
        if argument in buffers:
            return buffers[argument]
        if argument in scalars:
            return scalars[argument]
        known = ", ".join([*buffers, *scalars])
        raise SpecError(f"launch: no argument {argument!r} (known: {known})")
    if isinstance(argument, np.generic):
        return argument
    try:
        return np.int32(index(argument))
    except (TypeError, OverflowError) as error:
        raise SpecError(
            f"launch: argument {argument!r} is neither a name nor a 32-bit integer; pass a larger integer "
            "as np.int64"
        ) from error
