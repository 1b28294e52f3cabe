"""Turn the operands of a call into a problem and the arguments of the kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import numpy as np

from autotune.data.arguments import Argument, declared_arguments
from autotune.errors import AutotuneError, SpecError, UsageError
from autotune.kernel.operand import Instead, InsteadIfFaster, NothingToDo, Operand
from autotune.kernel.products import without_others
from autotune.kernel.spec import Kernel
from autotune.values import Problem

#: A kernel that calls another that calls another: more is a circle.
_MOST_INSTEAD = 4


@dataclass(frozen=True)
class ArrayArgument:
    """An array argument of a kernel: its memory, and whether that is a copy."""

    operand: Operand
    #: What is passed is a contiguous aligned copy, read from the operand, written back, or both.
    is_copied: bool = False
    #: The copy is of memory that holds more than the kernel writes.
    has_gaps: bool = False


@dataclass(frozen=True)
class ResolvedCall:
    """A call with its problem and every argument of the kernel."""

    kernel: Kernel
    problem: Problem
    #: Arguments as declared for the problem, in the kernel's order.
    arguments: Mapping[str, Argument]
    #: By name; an input of no elements is left out and gets no memory.
    arrays: Mapping[str, ArrayArgument]
    #: By name, as the call function gave them; what it left out is as declared.
    scalars: Mapping[str, Any]

    @property
    def compiled_scalars(self) -> dict[str, Any]:
        """Integers that the call gives and a language may compile in: they need a binary of their own."""
        if self.kernel.language is None:
            return {}
        whole = int | np.integer
        return {name: value for name, value in self.scalars.items() if isinstance(value, whole)}

    def memory_of(self, name: str) -> Operand:
        """Return the operand of an argument; where a flat one is declared, its memory as a vector."""
        operand = self.arrays[name].operand
        is_flat = operand.shape != self.arguments[name].shape
        return operand.memory if is_flat else operand

    @property
    def outputs(self) -> list[str]:
        """Names of the written arguments."""
        return [name for name, argument in self.arguments.items() if argument.kind in OUTPUTS]

    @property
    def results(self) -> tuple[Operand, ...]:
        """Operands that hold the results of the call."""
        return tuple(self.arrays[name].operand for name in self.outputs)


OUTPUTS = ("out", "inout")
#: The latest of the functions that `autotune.calling.load.load` made, by the key that torch's programs name.
LOADED: dict[str, Any] = {}


def bind(
    kernel: Kernel,
    args: tuple[Any, ...],
    named: Mapping[str, Any],
    find: Callable[[str], Kernel],
    has_addresses: bool = True,
    expected_ms: Callable[[ResolvedCall], float | None] = lambda call: None,
    steps_left: int = _MOST_INSTEAD,
) -> ResolvedCall | NothingToDo:
    """Ask the ``call`` function for problem and arguments, and check them.

    ``args`` and ``named`` are operands and scalars; ``find`` returns a kernel by name. Without
    ``has_addresses`` (host arrays) all arrays count as aligned. Where ``call`` names another kernel, for
    ``steps_left`` times in a row, that one is called, unless ``expected_ms`` knows a time of this one and
    no shorter one of the other; with `InsteadIfFaster`, only if it knows both and the other's is shorter.
    """
    if not steps_left:
        raise kernel.error("call: one kernel calls another in place of itself, in a circle")
    if not has_addresses:
        args = tuple(map(_without_offset, args))
        named = {name: _without_offset(value) for name, value in named.items()}
    asked = _asked(kernel, args, named)
    if isinstance(asked, NothingToDo):
        return asked
    if not isinstance(asked, Instead):
        problem, given = asked
        return _checked_call(kernel, problem, given, has_addresses)
    is_own_first = isinstance(asked, InsteadIfFaster)
    own = _own_call(kernel, asked, args, named, has_addresses)
    try:
        other = find(asked.kernel)
    except AutotuneError:
        if own is None or not is_own_first:
            raise
        return own
    passed_on = bind(
        other, asked.args, asked.named, find, has_addresses, expected_ms, steps_left - 1
    )
    if own is None or isinstance(passed_on, NothingToDo):
        return passed_on
    own_ms, passed_ms = expected_ms(own), expected_ms(passed_on)
    if own_ms is None or passed_ms is None:
        return own if is_own_first or own_ms is not None else passed_on
    return own if own_ms <= passed_ms else passed_on


def _own_call(
    kernel: Kernel,
    answer: Instead,
    args: tuple[Any, ...],
    named: Mapping[str, Any],
    has_addresses: bool,
) -> ResolvedCall | None:
    """Return what a kernel does itself in place of passing a call on; None where it cannot."""
    if isinstance(answer, InsteadIfFaster) and answer.own:
        return _checked_call(kernel, *answer.own, has_addresses)
    with suppress(AutotuneError), without_others():
        asked = _asked(kernel, args, named)
        if not isinstance(asked, Instead | NothingToDo):
            problem, given = asked
            call = _checked_call(kernel, problem, given, has_addresses)
            is_copied = any(passed.is_copied for passed in call.arrays.values())
            return None if is_copied and not isinstance(answer, InsteadIfFaster) else call
    return None


def _checked_call(
    kernel: Kernel, problem: Problem, given: Mapping[str, Any], has_addresses: bool
) -> ResolvedCall:
    if not has_addresses:
        given = {name: _without_offset(value) for name, value in given.items()}
    return _checked(kernel, problem, given)


def _asked(kernel: Kernel, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    function = kernel.hook("call")
    try:
        signature(function).bind(*args, **named)
    except TypeError as error:
        raise UsageError(f"{kernel.name}{signature(function)}: {error}") from error
    try:
        answer = kernel.guarded("call", function, *args, **named)
    except SpecError as error:
        if isinstance(error.__cause__, ValueError):  # it says that it cannot be called so
            raise UsageError(f"{kernel.name}: {error.__cause__}") from error
        raise
    if isinstance(answer, Instead | NothingToDo):
        return answer
    if not (
        isinstance(answer, tuple)
        and len(answer) == 2
        and isinstance(answer[0], Problem)
        and isinstance(answer[1], Mapping)
    ):
        raise kernel.error(
            f"call: returned {answer!r:.80}, expected (Problem, arguments by name), Instead(…) or "
            "NothingToDo(…)"
        )
    return answer


def _without_offset(value: Any) -> Any:
    return replace(value, offset=0) if isinstance(value, Operand) else value


def _checked(kernel: Kernel, problem: Problem, given: Mapping[str, Any]) -> ResolvedCall:
    problem = checked_problem(kernel, problem)
    arguments = declared_arguments(kernel, problem)
    known = {*arguments, *kernel.fields}
    for name in given:
        if name not in known:
            raise UsageError(
                f"{kernel.name}: call gives {name!r} (arguments: {', '.join(arguments)})"
            )
    arrays = {}
    scalar_names = {name for name, argument in arguments.items() if argument.kind == "scalar"}
    given = {n: v for n, v in given.items() if v is not None or n in scalar_names}
    for name, argument in arguments.items():
        if argument.kind == "scalar" or not (name in given or _is_needed(argument)):
            continue
        if name not in given and argument.kind != "out":
            raise UsageError(f"{kernel.name}: call gives no {name!r}, which is read")
        operand = given.get(name)
        if operand is None:
            name_of_type = argument.bits_of or np.dtype(argument.dtype).name
            operand = Operand.new(argument.shape, name_of_type)
        arrays[name] = _passed(kernel, problem, argument, operand)
    offsets = {
        field: passed.operand.offset
        for name, passed in arrays.items()
        if (field := f"offset_{name}") in kernel.layout and not passed.is_copied
    }
    scalars = {
        name: given[name]
        for name, argument in arguments.items()
        if argument.kind == "scalar" and name in given
    }
    for name, value in scalars.items():
        if not isinstance(value, int | float | np.generic):
            raise UsageError(f"{kernel.name}: {name} is {_shown(value)}: a number is needed")
    return ResolvedCall(
        kernel, kernel.normal(problem.replace(**offsets)), arguments, arrays, scalars
    )


def checked_problem(kernel: Kernel, problem: Mapping[str, Any]) -> Problem:
    """Return a problem whose fields have the declared types; refuse others."""
    declared: Mapping[str, Any] = {**kernel.layout, **next(iter(kernel.all_problems()), {})}
    checked = dict(problem)
    for name, value in problem.items():
        if isinstance(declared.get(name), str):
            if not isinstance(value, str):
                raise UsageError(f"{kernel.name}: {name} is {_shown(value)}: a string is needed")
        elif isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
            raise UsageError(
                f"{kernel.name}: {name} is {_shown(value)}: an integer is needed, 0 or larger"
            )
        else:
            checked[name] = int(value)
    return Problem(checked)


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, Operand) else f"{value!r:.40}"


def _is_needed(argument: Argument) -> bool:
    """Return whether an argument has elements: a product over k = 0 reads no matrix."""
    return argument.kind in OUTPUTS or argument.nbytes > 0


def _passed(kernel: Kernel, problem: Problem, argument: Argument, operand: Any) -> ArrayArgument:
    dtype, shape = argument.bits_of or np.dtype(argument.dtype).name, argument.shape
    needed = f"the problem ({problem}) needs {dtype}{list(shape)}"
    if not isinstance(operand, Operand):
        raise UsageError(f"{kernel.name}: {argument.name} is {operand!r:.40}, {needed}")
    is_flat = (
        len(shape) == 1
        and operand.shape != shape
        and operand.span == shape[0]
        and not operand.runs_backwards
    )
    if operand.dtype != dtype or not (operand.shape == shape or is_flat):
        raise UsageError(f"{kernel.name}: {argument.name} is {operand}, {needed}")
    if argument.kind in OUTPUTS and operand.overlaps_itself:
        raise UsageError(
            f"{kernel.name}: the output {argument.name} is {operand}: it overlaps itself"
        )
    is_aligned = not operand.offset or f"offset_{argument.name}" in kernel.layout
    if argument.kind == "constant" or (is_aligned and (is_flat or operand.is_contiguous)):
        return ArrayArgument(operand)
    if is_flat:
        return ArrayArgument(operand.memory, is_copied=True, has_gaps=operand.span != operand.size)
    return ArrayArgument(operand, is_copied=True)
