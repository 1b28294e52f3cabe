"""Calls of decorated functions: what they pass, how configurations launch them, and their files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace as changed

from autotune.calling.binding import ArrayArgument, ResolvedCall
from autotune.calling.libraries import DeviceLibrary, Library, kind_of
from autotune.data.arguments import declared_arguments
from autotune.data.dataset import save_arrays
from autotune.errors import UsageError
from autotune.files import data_path, write_atomically
from autotune.kernel.operand import Operand
from autotune.kernel.spec import Kernel
from autotune.languages import triton
from autotune.project import Project
from autotune.values import Problem

#: Problem field that says the types of a call's arguments.
TYPES = "types"
#: What a hook may ask of an array while it is noted what the hook fills.
_READABLE = {"shape", "dtype", "device", "ndim", "size", "numel", "stride", "is_cuda"}


class PassedArray(msgspec.Struct, frozen=True):
    """An array argument of a call."""

    #: NumPy's name, or ``bfloat16``.
    dtype: str
    shape: tuple[int, ...]
    #: Least and largest of integers, which may be indices.
    low: int = 0
    high: int = 0
    #: The caller's data, as a file of NumPy; empty: others are drawn.
    file: str = ""


class ConfiguredLaunch(msgspec.Struct, frozen=True):
    """The part of a call that a configuration decides."""

    configuration: dict[str, Any]
    grid: tuple[int, ...]
    #: Constexpr arguments that follow from the configuration, as `triton.heuristics` computes them.
    constants: dict[str, Any] = {}
    #: Arrays that are filled before, by hooks.
    fills: tuple[tuple[str, float], ...] = ()


class RecordedCall(msgspec.Struct, frozen=True):
    """A call of a decorated function, as a run repeats it."""

    problem: dict[str, int | str]
    #: Arguments that are passed to the device, in the function's order.
    arguments: dict[str, PassedArray | bool | int | float]
    #: All other arguments: constexpr ones, and None.
    constants: dict[str, Any]
    #: Those that pruning left.
    launches: tuple[ConfiguredLaunch, ...] = ()
    #: Configurations that pruning removed.
    pruned: tuple[dict[str, Any], ...] = ()
    #: Name of the function's file: functions of one name share a file of calls.
    file: str = ""


class NotRecordedError(UsageError):
    """No call of a function is recorded; its records may still answer.

    Attributes
    ----------
    name : str
        Of the record.
    project : Project
        Of the file.
    """

    def __init__(self, message: str, name: str, project: Project) -> None:
        super().__init__(message)
        self.name, self.project = name, project


class Watched:
    """An array in place of the caller's, which notes what a hook fills it with."""

    def __init__(self, name: str, array: Any, fills: list[tuple[str, float]]) -> None:
        self._name, self._array, self._fills = name, array, fills

    def fill_(self, value: float) -> Watched:
        self._fills.append((self._name, float(value)))
        return self

    def zero_(self) -> Watched:
        return self.fill_(0.0)

    def __getattr__(self, what: str) -> Any:
        if what not in _READABLE:
            raise UsageError(
                f"a hook asks {self._name} for {what!r}; where it is tuned a hook may only fill arrays "
                "(zero_, fill_)"
            )
        return getattr(self._array, what)


def passed(name: str, value: Any, place: int) -> tuple[Any, str, Operand | None]:
    """Return an argument, the name of its type, and the operand of an array.

    `UsageError` where only Triton can launch it. ``place`` is its position in the call.
    """
    kind = kind_of(value)
    if not isinstance(kind, Library):
        if isinstance(value, bool):
            return value, "bool", None
        if not isinstance(value, int | float):
            raise UsageError(f"{name} is a {type(value).__name__}")
        is_wide = isinstance(value, int) and not -(2**31) <= value < 2**31
        return value, "float32" if isinstance(value, float) else f"int{64 if is_wide else 32}", None
    operand = kind.operand(value, place)
    if operand.dtype not in triton.TYPES or operand.offset or operand.runs_backwards:
        raise UsageError(f"{name} is {operand}, not aligned to 16 bytes or of another type")
    is_plain = operand.is_contiguous and operand.shape
    shape = operand.shape if is_plain else (operand.span,)
    return PassedArray(operand.dtype, shape), triton.TYPES[operand.dtype], operand


def field_of(name: str, value: Any) -> int | str:
    """Return a value as a problem field holds it: sizes as they are, all else as JSON."""
    if type(value) is int and value >= 0:
        return value
    try:
        return json.dumps(value)
    except TypeError as error:
        raise UsageError(f"{name} is a {type(value).__name__}") from error


def with_ranges(
    call: RecordedCall, bound: Mapping[str, Any], operands: Mapping[str, Operand]
) -> RecordedCall:
    """Return a call with the range of each array of integers, which may be indices."""
    arguments = dict(call.arguments)
    for name, operand in operands.items():
        if operand.dtype.lstrip("u").startswith("int") and operand.size:
            array = _on_host(bound[name], operand)
            declared = arguments[name]
            assert isinstance(declared, PassedArray)
            arguments[name] = changed(declared, low=int(array.min()), high=int(array.max()))
    return changed(call, arguments=arguments)


def with_data(
    call: RecordedCall, bound: Mapping[str, Any], operands: Mapping[str, Operand], folder: Path
) -> RecordedCall:
    """Return a call with copies of its arrays, in files."""
    arguments = dict(call.arguments)
    for name in operands:
        declared = arguments[name]
        assert isinstance(declared, PassedArray)
        arguments[name] = changed(declared, file=str(folder / f"{name}.npy"))
    save_arrays(folder, {name: _on_host(bound[name], of) for name, of in operands.items()})
    return changed(call, arguments=arguments)


def memory_of(operand: Operand) -> Operand:
    """Return what is copied of an array: itself, or all memory that it spans."""
    return operand if operand.is_contiguous and operand.shape else operand.memory


def copy_of(array: Any, operand: Operand) -> Any:
    """Return a copy of an array on its device."""
    library = kind_of(array)
    assert isinstance(library, DeviceLibrary)
    return library.copied(library.view(library.through(array), memory_of(operand)))


def _on_host(array: Any, operand: Operand) -> Any:
    """Return a copy of an array in the host's memory; bfloat16 as bits."""
    library = kind_of(array)
    assert isinstance(library, Library)
    seen = library.view(library.through(array), memory_of(operand))
    if operand.dtype == "bfloat16":  # NumPy has no such type
        import torch

        return seen.view(torch.int16).cpu().numpy().view(np.uint16)
    if hasattr(seen, "get"):
        return seen.get()
    return seen.cpu().numpy() if hasattr(seen, "cpu") else seen


def resolved_call(
    kernel: Kernel,
    problem: Problem,
    bound: Mapping[str, Any],
    operands: Mapping[str, Operand],
    passed_on: Mapping[str, int],
) -> ResolvedCall:
    """Return a call as `autotune.load` launches it: the first array is its result, for the shortest way.

    ``passed_on`` are the positions of arguments whose values may differ from call to call.
    """
    arguments, arrays = declared_arguments(kernel, problem), dict[str, ArrayArgument]()
    for name, argument in arguments.items():
        if name in operands:
            arguments[name] = replace(argument, kind="input" if arrays else "inout")
            arrays[name] = ArrayArgument(operands[name].memory)
    scalars = {name: bound[name] for name in arguments if name not in arrays}
    changing = {name: place for name, place in passed_on.items() if name in scalars}
    return ResolvedCall(kernel, problem, arguments, arrays, scalars, changing)


# ---------------------------------------------------------------------- files


def write_calls(project: Project, name: str, calls: Iterable[RecordedCall]) -> None:
    """Write the calls that ``autotune run FILE:FUNCTION`` tunes, the latest of each problem."""
    known = {json.dumps((call.file, call.problem)): call for call in calls}
    file = calls_file(project, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, msgspec.json.encode(list(known.values())))


def read_calls(project: Project, name: str) -> list[RecordedCall]:
    """Return the calls that programs of a project recorded."""
    file = calls_file(project, name)
    with suppress(FileNotFoundError):
        try:
            return msgspec.json.decode(file.read_bytes(), type=list[RecordedCall])
        except msgspec.MsgspecError as error:
            raise UsageError(f"{file}: {error}; remove it, and record again") from error
    return []


def calls_file(project: Project, name: str) -> Path:
    """Return the file of a project's recorded calls of a name."""
    return Path(data_path("calls", project.folder, f"{name}.json"))
