"""Translate launch sequences into C++ text over the fields of a problem."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import mul
from typing import Any

import numpy as np

from autotune.devices.base import Binary
from autotune.devices.device import Device
from autotune.element_types import ELEMENT_TYPES
from autotune.encoding import element_of, type_name
from autotune.errors import SpecError, UsageError
from autotune.export.cpp import expression, identifier
from autotune.export.signature import Signature, c_type, member
from autotune.kernel.expression import Json, Symbol, UntraceableError, stored_form, value_of
from autotune.kernel.launches import (
    LaunchSequence,
    complete_launches,
    trace_launches,
    traced_numbers,
)
from autotune.kernel.spec import Fill, Kernel, Launch
from autotune.kernel.view_layout import tensor_layout
from autotune.kernel.views import TensorMap, Texture
from autotune.values import Configuration, Problem


@dataclass(frozen=True)
class CppSequence:
    """The launch sequence of a configuration in C++, over the fields of the problem."""

    steps: tuple[str, ...]
    entries: tuple[str, ...]
    passed: frozenset[str]
    values: int

    @classmethod
    def of(
        cls,
        kernel: Kernel,
        configuration: Configuration,
        device: Device,
        signature: Signature,
        problem: Problem,
        binary: Binary | None = None,
    ) -> CppSequence:
        """Trace the sequence for a problem's categories; a language's ``binary`` completes the launches."""
        steps = trace_launches(kernel, configuration, device, problem)
        if steps is None:
            raise UsageError(
                f"{kernel.name}: the launch of {configuration} cannot be written as a formula of the "
                "problem; write it with ceil_div, minimum and maximum in place of branches"
            )
        scratch = _scratch(kernel, configuration, device, problem)
        names = [*signature.arguments, *scratch]
        if binary:
            if any(made.convention and made.convention.scratch_bytes for made in binary.entries):
                raise UsageError(
                    f"{kernel.name}: {configuration} needs global scratch memory, for example for a tensor "
                    "descriptor made on the device; a launcher in C++ has none"
                )
            entry = kernel.entry_of(configuration)
            named = (
                replace(step, entry=step.entry or entry) if isinstance(step, Launch) else step
                for step in steps
            )
            steps = complete_launches(LaunchSequence(tuple(named)), binary, names).steps
        known = _Names(signature, scratch)
        texts, entries, most = [], [], 1
        for step in steps:
            if isinstance(step, Fill):
                texts.append(known.fill(step))
                continue
            entry = step.entry or kernel.name
            entries.append(binary.symbol(entry) if binary else entry)
            passed = names if step.args is None else step.args
            most = max(most, len(passed))
            texts.append(known.launch(step, entries[-1], [known.slot(value) for value in passed]))
        return cls(tuple(texts), tuple(entries), frozenset(known.passed), most)


@dataclass(frozen=True)
class _Workspace:
    elements: Json
    #: Name of the elements' type.
    type_name: str


def _scratch(
    kernel: Kernel, configuration: Configuration, device: Device, problem: Problem
) -> dict[str, _Workspace]:
    symbols = Problem(
        {name: Symbol(name) if isinstance(value, int) else value for name, value in problem.items()}
    )
    found = {}
    try:
        declared = kernel.workspaces(configuration, symbols, device)
        concrete = kernel.workspaces(configuration, problem, device)
        for name, out in declared.items():
            sizes = out.shape if isinstance(out.shape, tuple | list) else (out.shape,)
            elements = stored_form(reduce(mul, sizes))
            shape = np.atleast_1d(concrete[name].shape)
            if elements is None or value_of(elements, problem) != math.prod(map(int, shape)):
                raise UntraceableError(name)
            found[name] = _Workspace(elements, type_name(out.dtype))
    except (UntraceableError, SpecError, TypeError, ValueError, KeyError) as error:
        raise UsageError(
            f"{kernel.name}: the size of its scratch cannot be written as a formula of the problem "
            f"({error}); write it with ceil_div, minimum and maximum in place of branches"
        ) from error
    return found


class _Names:
    """Translates the names in a launch sequence into C++, and collects the arguments of the caller."""

    def __init__(self, signature: Signature, scratch: Mapping[str, _Workspace]) -> None:
        self._signature, self._scratch = signature, scratch
        self._kernel = signature.kernel
        self.passed: set[str] = set()

    def launch(self, step: Launch, entry: str, slots: Sequence[str]) -> str:
        grid = _three(traced_numbers(step.grid) or (), "number{1}", expression)
        block = _three(step.block, "1", lambda size: str(int(size)))
        values = f"{int(step.shared_bytes)}, {{{', '.join(slots)}}}"
        if attributes := _attributes(step):
            values += f", {{{', '.join(attributes)}}}"
        return f'launch_(asked_, code_, "{entry}", extent_of({grid}), {{{block}}}, {values})'

    def fill(self, step: Fill) -> str:
        kernel = self._kernel.name
        if step.name in self._scratch:
            buffer = self._scratch[step.name]
            name, elements = buffer.type_name, buffer.elements
        elif step.name in self._signature.elements:
            name = self._signature.arguments[step.name].type_name
            elements = self._signature.elements[step.name]
        else:
            raise UsageError(
                f"{kernel}: launch fills {step.name}, whose size is no product of problem fields; "
                "fill it in the kernel"
            )
        raw, count = element_of(name, step.value).tobytes(), expression(elements)
        if len(raw) == 8 and raw[:4] == raw[4:]:
            raw, count = raw[:4], f"({count} * number{{2}})"
        if len(raw) not in (1, 2, 4):
            raise UsageError(
                f"{kernel}: launch fills {step.name} with {step.value!r} as {name}, which the driver "
                "cannot; fill it in the kernel"
            )
        bits = int.from_bytes(raw, "little")
        return f"fill_({self.slot(step.name)}, {count}, {bits}u, {len(raw)})"

    def slot(self, value: Any) -> str:
        """Return the C++ text of one kernel argument."""
        if isinstance(value, np.generic):
            kind = c_type(self._kernel, str(value), value.dtype)
            return f"bits_of_(static_cast<{kind}>({value.item()!r}))"
        if isinstance(value, TensorMap):
            return self._map(value)
        if isinstance(value, Texture):
            raise UsageError(
                f"{self._kernel.name}: {value} is an argument, and a launcher in C++ makes no textures"
            )
        if not isinstance(value, str):
            form = stored_form(value)
            if form is None:
                raise self._kernel.error(
                    f"launch: argument {value!r} is neither a name nor an integer"
                )
            return f"whole_<std::int32_t>({expression(form)})"
        if value in self._scratch:
            buffer = self._scratch[value]
            size = expression(["*", buffer.elements, ELEMENT_TYPES[buffer.type_name].bits // 8])
            return f"workspace_(where_, {list(self._scratch).index(value)}, {size})"
        if value not in self._signature.arguments:
            raise self._kernel.error(f"launch: no argument {value!r}")
        argument = self._signature.arguments[value]
        if value in self._signature.fields:
            kind = c_type(self._kernel, value, np.dtype(argument.dtype))
            return f"whole_<{kind}>({identifier(value)})"
        self.passed.add(value)
        return f"given_(offsetof(arguments, {member(value)}))"

    def _map(self, wanted: TensorMap) -> str:
        """Return the C++ text of a tensor map, whose sizes are those of the problem of a call."""
        known = self._signature.axes.get(wanted.array)
        if known is None:
            raise UsageError(
                f"{self._kernel.name}: {wanted} is of a scratch buffer or no array; a launcher encodes maps of "
                "arguments only"
            )
        axes = known if wanted.shape is None else traced_numbers(wanted.shape)
        if axes is None or None in axes:
            raise UsageError(
                f"{self._kernel.name}: the shape of {wanted} cannot be written as a formula of the problem; "
                "give its shape= in problem fields"
            )
        strides = traced_numbers(wanted.strides) if wanted.strides else _contiguous(axes)
        if strides is None:
            raise UsageError(
                f"{self._kernel.name}: the strides of {wanted} are no formula of the problem"
            )
        argument = self._signature.arguments[wanted.array]
        # Options are the same for all shapes.
        numbers = tuple(1 << 20 for _ in axes)
        layout = tensor_layout(replace(wanted, shape=numbers, strides=numbers[1:]), argument)
        self.passed.add(wanted.array)
        sizes = ", ".join(expression(size) for size in reversed(axes))
        apart = ", ".join(expression(["*", size, layout.itemsize]) for size in reversed(strides))
        fixed = (layout.box, layout.steps, layout.driver_numbers)
        texts = [f"{{{', '.join(map(str, values))}}}" for values in fixed]
        place = f"offsetof(arguments, {member(wanted.array)})"
        return f"mapped_({place}, {{{sizes}}}, {{{apart}}}, {', '.join(texts)})"


def _contiguous(axes: Sequence[Any]) -> tuple[Json, ...]:
    """Return expressions of the strides of a contiguous array, but for its last axis."""
    strides: list[Json] = []
    for size in axes[:0:-1]:
        strides.append(["*", strides[-1], size] if strides else size)
    return tuple(reversed(strides))


def _attributes(step: Launch) -> list[str]:
    """Return the C++ text of each attribute of a launch."""
    cluster = _three(step.cluster or (1,), "1", lambda size: str(int(size)))
    given = {
        f"cluster_({cluster})": cluster != "1, 1, 1",
        "cooperative_()": step.cooperative,
        "programmatic_()": step.programmatic,
    }
    return [text for text, is_set in given.items() if is_set]


def _three(sizes: Any, one: str, written: Callable[[Any], str]) -> str:
    several = sizes if isinstance(sizes, tuple | list) else (sizes,)
    return ", ".join([*map(written, several), one, one][:3])
