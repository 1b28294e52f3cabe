"""Asks a kernel for its arguments without drawing any data, and what of them is compiled in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from operator import index
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from autotune.devices.device import Device
from autotune.errors import SpecError
from autotune.kernel.launches import LaunchSequence
from autotune.kernel.names import OFFSET
from autotune.kernel.spec import BFloat16, Constant, InOut, Kernel
from autotune.languages.base import UNKNOWN, Passed
from autotune.measure.data import Argument, Draw, argument_of
from autotune.values import Configuration, Problem

#: Stands for every number that a launch computes, among the scalars of `compiled_in`.
COMPUTED = ""
#: Problems of which arguments are kept, so that configurations need not ask again.
_KEPT = 256


class _Shapes(Draw):
    """A generator of arrays with shape and type, all of whose elements are one, to ask what is declared.

    A hook may write into them, as into what it draws.
    """

    def __init__(self, number: int = 0) -> None:
        super().__init__(exact=False, key=0)
        self._number = number

    def _filled(self, size: Any, dtype: Any, draw: Any, least: Any = 0) -> Any:
        array = np.array(least + self._number, dtype)
        wide = np.broadcast_to(array, () if size is None else size)
        return as_strided(array, wide.shape, wide.strides)

    def integers(  # type: ignore[override]
        self, low: Any, high: Any = None, size: Any = None, dtype: Any = np.int32, **_: Any
    ) -> Any:
        return self._filled(size, dtype, None, 0 if high is None else low)


def declared_arguments(kernel: Kernel, problem: Problem, number: int = 0) -> dict[str, Argument]:
    """Return kind, type and shape of every argument of a problem, without drawing its inputs.

    A hook that fails on such arrays gets real ones. Where scalars are drawn ``number`` changes them.
    """
    try:
        with np.errstate(all="ignore"):
            declared = kernel.hook("arguments")(kernel.filled(problem), _Shapes(number))
    except Exception:  # or what it raises then too
        declared = kernel.call_hook("arguments", problem, Draw(exact=False, key=number))
    return {name: declared_argument(kernel, name, value) for name, value in declared.items()}


def declared_argument(kernel: Kernel, name: str, value: Any) -> Argument:
    """Return kind, type and shape of one value of the arguments or scratch hook."""
    if isinstance(getattr(value, "array", value), BFloat16):
        return argument_of(kernel, name, value)[0]
    for kind, wrapper in (("inout", InOut), ("constant", Constant)):
        if isinstance(value, wrapper):
            array = np.asarray(value.array)
            return Argument(name, kind, array.dtype.str, array.shape)
    if isinstance(value, np.ndarray) and value.shape != ():
        return Argument(name, "input", value.dtype.str, value.shape)
    return argument_of(kernel, name, value)[0]


def compiled_in(
    kernel: Kernel,
    configuration: Configuration,
    problem: Problem,
    device: Device,
    plan: LaunchSequence,
    source: str,
    scalars: Mapping[str, Any],
) -> dict[str, str]:
    """Return what is compiled in, as the language of a kernel says it.

    ``scalars`` replace declared ones, as those of a call do, and `COMPUTED` numbers.
    """
    assert kernel.language is not None
    known = dict(_passed(kernel, kernel.hook("arguments"), problem))
    for name in scalars.keys() - {COMPUTED}:
        known[name] = Passed(name, known[name].dtype, scalars[name])
    for name, out in kernel.workspaces(configuration, problem, device).items():
        known[name] = Passed(name, np.dtype(out.dtype).name)
    launches: dict[str, list[list[Passed]]] = {}
    for step in plan.launches:
        given = known if step.args is None else step.args
        passed = [_passed_as(kernel, each, known, scalars.get(COMPUTED)) for each in given]
        launches.setdefault(str(step.entry), []).append(passed)
    values, symbols = kernel.values_of(configuration, problem), dict[str, str]()
    try:
        for function, passed_to in launches.items():
            symbols |= kernel.language.symbols(source, function, passed_to, values)
    except SpecError as error:
        raise kernel.error(str(error)) from error
    return symbols


def _passed_as(
    kernel: Kernel, given: Any, known: Mapping[str, Passed], computed: int | None
) -> Passed:
    if not isinstance(given, str):
        number = given if isinstance(given, np.generic) else np.int32(index(given))
        return Passed("", number.dtype.name, number.item() if computed is None else computed)
    if given not in known:
        raise kernel.error(f"launch: no argument {given!r} (known: {', '.join(known)})")
    return known[given]


@lru_cache(_KEPT)
def _passed(kernel: Kernel, hook: Callable[..., Any], problem: Problem) -> dict[str, Passed]:
    """Return the arguments of a problem; of scalars that are drawn nothing is known."""
    first, second = (declared_arguments(kernel, problem, number) for number in (0, 1))
    fields, known = kernel.filled(problem), {}
    for name, argument in first.items():
        dtype = np.dtype(argument.dtype)
        if argument.kind == "scalar":
            is_drawn = argument.value != second[name].value
            known[name] = Passed(name, dtype.name, UNKNOWN if is_drawn else argument.value)
        elif argument.kind != "constant":
            offset = int(fields.get(f"{OFFSET}{name}", 0))
            type_name = argument.bits_of or dtype.name
            known[name] = Passed(name, type_name, offset_bytes=offset * dtype.itemsize)
    return known
