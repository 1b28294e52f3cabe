"""Turn the operands of a call into a problem and the arguments of the kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any

import numpy as np

from autotune.calling.libraries import Library, Numpy
from autotune.data.arguments import Argument, declared_arguments
from autotune.errors import AutotuneError, SpecError, UsageError
from autotune.kernel.operand import Instead, NothingToDo, Operand
from autotune.kernel.spec import Kernel
from autotune.values import Problem

#: Maximum number of kernels that pass a call on in a row; more is a circle.
_MAX_KERNELS = 4


@dataclass(frozen=True)
class ArrayArgument:
    """An array argument of a kernel, and whether the kernel gets a copy of it."""

    operand: Operand
    #: Whether the kernel gets a contiguous aligned copy: read from the operand, written back, or both.
    is_copied: bool = False
    #: Whether the copied memory also holds elements that the kernel does not write.
    has_gaps: bool = False


@dataclass(frozen=True)
class ResolvedCall:
    """A call with its problem and every argument of the kernel."""

    kernel: Kernel
    problem: Problem
    #: Arguments as declared for the problem, in the kernel's order.
    arguments: Mapping[str, Argument]
    #: Arrays by name, without inputs of no elements: these get no memory.
    arrays: Mapping[str, ArrayArgument]
    #: Scalars of the call function by name; other scalars have their declared values.
    scalars: Mapping[str, Any]
    #: Scalars that the call function passes on unchanged, with the position of the float in the call.
    passed_on: Mapping[str, int] = field(default_factory=dict)
    #: Whether the call holds for these values of its floats only: they decide more than scalars.
    is_by_value: bool = False

    @property
    def compiled_scalars(self) -> dict[str, Any]:
        """Integers of the call that a language may compile into the binary."""
        if self.kernel.language is None:
            return {}
        whole = int | np.integer
        return {name: value for name, value in self.scalars.items() if isinstance(value, whole)}

    def memory_of(self, name: str) -> Operand:
        """Return the operand of an argument, as a vector if the declared argument is flat."""
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


#: Kinds of arguments that a kernel writes.
OUTPUTS = ("out", "inout")
#: Floats that a `call` function may treat specially. All other floats share a prepared call.
SPECIAL_FLOATS = (0.0, 1.0)
#: Functions of `autotune.calling.load.load` by the key in programs of torch; a later function replaces an earlier.
LOADED: dict[str, Any] = {}


class CallFloat:
    """A float as a `call` function gets it; it notes whether the function reads its value.

    Two uses are no read: passing it on, and comparing it for equality with `SPECIAL_FLOATS`. For
    ``isinstance`` it is a float.
    """

    def __init__(self, value: float, position: int) -> None:
        self.value, self.position, self.is_read = value, position, False

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return float

    def __bool__(self) -> bool:
        return bool(self.value)

    def __eq__(self, other: object) -> bool:
        self.is_read |= other not in SPECIAL_FLOATS
        return self.value == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        self.is_read = True
        return np.asarray(self.value, dtype)

    def __getattr__(self, name: str) -> Any:
        self.is_read = True
        return getattr(self.value, name)


def _reading(name: str) -> Callable[..., Any]:
    def method(self: CallFloat, *args: Any) -> Any:
        self.is_read = True
        return getattr(self.value, name)(
            *(arg.value if type(arg) is CallFloat else arg for arg in args)
        )

    return method


_COMPARING = {
    "__hash__",
    "__lt__",
    "__le__",
    "__gt__",
    "__ge__",
    "__str__",
    "__repr__",
    "__format__",
}
for _name in {n for n in dir(float) if n.startswith("__")} - {
    *dir(object),
    "__bool__",
} | _COMPARING:
    setattr(CallFloat, _name, _reading(_name))


@dataclass(frozen=True)
class CallArguments:
    """The arguments of a call; arrays both as values and as operands."""

    values: tuple[Any, ...]
    #: Names of the values that were passed by name; these values come last.
    names: tuple[str, ...]
    #: Library of each value; None for a scalar.
    libraries: Sequence[Library | None]
    #: The values with operands in place of arrays.
    operands: Sequence[Any]
    #: The CUDA device of the arrays; None if all are in host memory.
    index: int | None

    @property
    def library(self) -> Library:
        """Return the library of the first array, which also makes new arrays."""
        return next((library for library in self.libraries if library), Numpy())

    def bound(
        self,
        kernel: Kernel,
        find: Callable[[str], Kernel],
        expected_ms: Callable[[ResolvedCall], float | None],
    ) -> ResolvedCall | NothingToDo:
        """Bind the call to a problem of a kernel; see `bind`."""
        operands = [
            CallFloat(operand, position)
            if type(operand) is float and operand not in SPECIAL_FLOATS
            else operand
            for position, operand in enumerate(self.operands)
        ]
        count = len(operands) - len(self.names)
        named = dict(zip(self.names, operands[count:], strict=True))
        has_addresses = self.index is not None
        call = bind(kernel, tuple(operands[:count]), named, find, has_addresses, expected_ms)
        if isinstance(call, NothingToDo):
            return call
        floats = [operand for operand in operands if isinstance(operand, CallFloat)]
        passed_on = {
            name: value.position
            for name, value in call.scalars.items()
            if isinstance(value, CallFloat)
        }
        return replace(
            call,
            scalars={**call.scalars, **{n: self.operands[at] for n, at in passed_on.items()}},
            passed_on=passed_on,
            is_by_value=any(value.is_read for value in floats),
        )


def bind(
    kernel: Kernel,
    args: tuple[Any, ...],
    named: Mapping[str, Any],
    find: Callable[[str], Kernel],
    has_addresses: bool = True,
    expected_ms: Callable[[ResolvedCall], float | None] = lambda call: None,
    kernels_left: int = _MAX_KERNELS,
) -> ResolvedCall | NothingToDo:
    """Call the kernel's ``call`` function, and check the problem and arguments that it returns.

    ``args`` and ``named`` are operands and scalars; ``find`` returns a kernel by name. Without
    ``has_addresses`` (host arrays) all arrays count as aligned. If ``call`` returns `Instead`, the other
    kernel binds the call, through at most ``kernels_left`` kernels. With `Instead.than` the faster of both
    kernels wins; ``expected_ms`` returns the time that records expect of a call.
    """
    if not kernels_left:
        raise kernel.error("call: kernels pass the call on in a circle (Instead)")
    if not has_addresses:
        args = tuple(map(_without_offset, args))
        named = {name: _without_offset(value) for name, value in named.items()}
    asked = _asked(kernel, args, named)
    if isinstance(asked, NothingToDo):
        return asked
    if not isinstance(asked, Instead):
        problem, given = asked
        return _checked_call(kernel, problem, given, has_addresses)
    own = _own_call(kernel, asked, has_addresses)
    try:
        other = find(asked.kernel)
    except AutotuneError:
        if own is None or asked.by_default:
            raise
        return own
    passed_on = bind(
        other, asked.args, asked.named, find, has_addresses, expected_ms, kernels_left - 1
    )
    if own is None or isinstance(passed_on, NothingToDo):
        return passed_on
    own_ms, passed_ms = expected_ms(own), expected_ms(passed_on)
    if own_ms is None or passed_ms is None:
        return passed_on if asked.by_default and own_ms is None else own
    return own if own_ms <= passed_ms else passed_on


def _own_call(kernel: Kernel, asked: Instead, has_addresses: bool) -> ResolvedCall | None:
    """Return the call as the kernel itself runs it; None if the kernel always passes it on."""
    if asked.own is None:
        return None
    if not asked.by_default:
        return _checked_call(kernel, *asked.own, has_addresses)
    with suppress(AutotuneError):  # the other kernel raises an error for a wrong call
        call = _checked_call(kernel, *asked.own, has_addresses)
        # The time that records expect does not include copies.
        return None if any(passed.is_copied for passed in call.arrays.values()) else call
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
        if isinstance(error.__cause__, ValueError):  # the call function refuses these arguments
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
            f"call: returned {answer!r:.80}; return (Problem, arguments by name), Instead(…) or "
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
                f"{kernel.name}: call returns unknown argument {name!r} (known: {', '.join(arguments)})"
            )
    arrays = {}
    scalar_names = {name for name, argument in arguments.items() if argument.kind == "scalar"}
    given = {n: v for n, v in given.items() if v is not None or n in scalar_names}
    for name, argument in arguments.items():
        if argument.kind == "scalar" or not (name in given or _is_needed(argument)):
            continue
        if name not in given and argument.kind != "out":
            raise UsageError(
                f"{kernel.name}: call does not return {name!r}, which the kernel reads"
            )
        operand = given.get(name)
        if operand is None:
            operand = Operand.new(*_new(argument))
        arrays[name] = _passed(kernel, problem, argument, operand)
    offsets = {
        field: passed.operand.offset * arguments[name].per_stored
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
            raise UsageError(f"{kernel.name}: {name} is {_shown(value)}; it must be a number")
    return ResolvedCall(
        kernel, kernel.normal(problem.replace(**offsets)), arguments, arrays, scalars
    )


def checked_problem(kernel: Kernel, problem: Mapping[str, Any]) -> Problem:
    """Return a problem with integers as int; raise `UsageError` if a field has another type than declared."""
    declared: Mapping[str, Any] = {**kernel.layout, **next(iter(kernel.all_problems()), {})}
    checked = dict(problem)
    for name, value in problem.items():
        if isinstance(declared.get(name), str):
            if not isinstance(value, str):
                raise UsageError(f"{kernel.name}: {name} is {_shown(value)}; it must be a string")
        elif isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
            raise UsageError(
                f"{kernel.name}: {name} is {_shown(value)}; it must be an integer, 0 or larger"
            )
        else:
            checked[name] = int(value)
    return Problem(checked)


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, Operand) else f"{value!r:.40}"


def _is_needed(argument: Argument) -> bool:
    """Return whether an argument has elements; a product over k = 0, for example, reads no matrix."""
    return argument.kind in OUTPUTS or argument.nbytes > 0


def _new(argument: Argument) -> tuple[tuple[int, ...], str]:
    """Return shape and type of an array for an argument: bytes if two elements share a byte."""
    if argument.per_stored > 1:
        return argument.stored_shape, np.dtype(argument.dtype).name
    return argument.shape, argument.type_name


def _passed(kernel: Kernel, problem: Problem, argument: Argument, operand: Any) -> ArrayArgument:
    shape, dtype = _new(argument)
    needed = f"the problem ({problem}) needs {dtype}{list(shape)}"
    if not isinstance(operand, Operand):
        raise UsageError(f"{kernel.name}: {argument.name} is {operand!r:.40}, {needed}")
    is_flat = (
        len(shape) == 1
        and operand.shape != shape
        and operand.span == shape[0]
        and not operand.runs_backwards
    )
    # Libraries without a type hold its bits.
    is_typed = operand.dtype in (dtype, np.dtype(argument.dtype).name)
    if not is_typed or not (operand.shape == shape or is_flat):
        raise UsageError(f"{kernel.name}: {argument.name} is {operand}, {needed}")
    if argument.kind in OUTPUTS and operand.overlaps_itself:
        raise UsageError(
            f"{kernel.name}: the output {argument.name} is {operand}, whose elements overlap; pass a copy"
        )
    is_aligned = not operand.offset or f"offset_{argument.name}" in kernel.layout
    if argument.kind == "constant" or (is_aligned and (is_flat or operand.is_contiguous)):
        return ArrayArgument(operand)
    if is_flat:
        return ArrayArgument(operand.memory, is_copied=True, has_gaps=operand.span != operand.size)
    return ArrayArgument(operand, is_copied=True)
