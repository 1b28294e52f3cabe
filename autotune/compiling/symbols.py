"""The values and types of arguments that a language compiles into a binary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from operator import index
from typing import Any

import numpy as np

from autotune.data.arguments import declared_arguments
from autotune.devices.device import Device
from autotune.encoding import type_name
from autotune.errors import SpecError
from autotune.kernel.launches import LaunchSequence
from autotune.kernel.names import OFFSET
from autotune.kernel.spec import Kernel
from autotune.languages.base import UNKNOWN, PassedValue
from autotune.values import Configuration, Problem

#: Name among the scalars of `compiled_in` for every number that a launch computes.
COMPUTED = ""
#: Maximum number of problems whose arguments are cached; all configurations need them.
_CACHED_PROBLEMS = 256


def compiled_in(
    kernel: Kernel,
    configuration: Configuration,
    problem: Problem,
    device: Device,
    plan: LaunchSequence,
    source: str,
    scalars: Mapping[str, Any],
) -> dict[str, str]:
    """Return the compiled-in symbols of a configuration, as the kernel's language writes them.

    ``scalars`` replace declared scalars, for example by those of a call, and `COMPUTED` numbers.
    """
    assert kernel.language is not None
    known = dict(_passed(kernel, kernel.hook("arguments"), problem))
    for name in scalars.keys() - {COMPUTED}:
        known[name] = PassedValue(name, known[name].dtype, scalars[name])
    for name, out in kernel.workspaces(configuration, problem, device).items():
        known[name] = PassedValue(name, type_name(out.dtype))
    launches: dict[str, list[list[PassedValue]]] = {}
    for step in plan.launches:
        given = known if step.args is None else step.args
        passed = [_passed_as(kernel, argument, known, scalars.get(COMPUTED)) for argument in given]
        launches.setdefault(str(step.entry), []).append(passed)
    values, symbols = kernel.values_of(configuration, problem), dict[str, str]()
    try:
        for function, passed_to in launches.items():
            symbols |= kernel.language.symbols(source, function, passed_to, values)
    except SpecError as error:
        raise kernel.error(str(error)) from error
    return symbols


def _passed_as(
    kernel: Kernel, given: Any, known: Mapping[str, PassedValue], computed: int | None
) -> PassedValue:
    if not isinstance(given, str):
        number = given if isinstance(given, np.generic) else np.int32(index(given))
        return PassedValue("", number.dtype.name, number.item() if computed is None else computed)
    if given not in known:
        raise kernel.error(f"launch: no argument {given!r} (known: {', '.join(known)})")
    return known[given]


@lru_cache(_CACHED_PROBLEMS)
def _passed(kernel: Kernel, hook: Callable[..., Any], problem: Problem) -> dict[str, PassedValue]:
    """Return the arguments of a problem; the values of drawn scalars are unknown."""
    first, second = (declared_arguments(kernel, problem, number) for number in (0, 1))
    fields, known = kernel.filled(problem), {}
    for name, argument in first.items():
        dtype = np.dtype(argument.dtype)
        if isinstance(argument.value, bytes):
            raise kernel.error(
                f"arguments: {name} is a struct, which {kernel.language_name} does not take"
            )
        if argument.kind == "scalar":
            is_drawn = argument.value != second[name].value
            known[name] = PassedValue(name, dtype.name, UNKNOWN if is_drawn else argument.value)
        elif argument.kind != "constant":
            offset = int(fields.get(f"{OFFSET}{name}", 0))
            nbytes = offset * dtype.itemsize // argument.per_stored
            known[name] = PassedValue(name, argument.type_name, offset_bytes=nbytes)
    return known
