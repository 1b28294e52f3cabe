"""Calls of decorated functions: their arguments, the launches of configurations, and their files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace as changed

from autotune.calling.binding import ArrayArgument, ResolvedCall
from autotune.calling.libraries import DeviceLibrary, Library, kind_of, on_host
from autotune.data.arguments import declared_arguments
from autotune.data.dataset import save_arrays
from autotune.encoding import encoded_type
from autotune.errors import UsageError
from autotune.files import data_path, write_atomically
from autotune.kernel.operand import Operand
from autotune.kernel.spec import Kernel
from autotune.languages import triton
from autotune.project import Project
from autotune.values import Problem

#: Problem field with the types of a call's arguments.
TYPES = "types"
#: Attributes of an array that a hook may read.
_READABLE = {"shape", "dtype", "device", "ndim", "size", "numel", "stride", "is_cuda"}


class PassedArray(msgspec.Struct, frozen=True):
    """An array argument of a call."""

    #: Name of the type in NumPy or ml_dtypes.
    dtype: str
    shape: tuple[int, ...]
    #: Smallest element of an integer array; integers may be indices.
    low: int = 0
    #: Largest element of an integer array.
    high: int = 0
    #: Elements from a 16-byte boundary to the beginning.
    offset: int = 0
    #: NumPy file with the caller's data; empty: the data are random.
    file: str = ""


class ConfiguredLaunch(msgspec.Struct, frozen=True):
    """The part of a call that a configuration decides."""

    configuration: dict[str, Any]
    grid: tuple[int, ...]
    #: Constexpr arguments that `triton.heuristics` computes from the configuration.
    constants: dict[str, Any] = {}
    #: Arrays that hooks fill before the launch, with the values.
    fills: tuple[tuple[str, float], ...] = ()


class RecordedCall(msgspec.Struct, frozen=True):
    """A call of a decorated function that a run can repeat."""

    problem: dict[str, int | str]
    #: Arguments of the device function, in its order.
    arguments: dict[str, PassedArray | bool | int | float]
    #: The other arguments: constexpr arguments, and arguments that are None.
    constants: dict[str, Any]
    #: Launches of the configurations that pruning left.
    launches: tuple[ConfiguredLaunch, ...] = ()
    #: Configurations that pruning removed.
    pruned: tuple[dict[str, Any], ...] = ()
    #: Name of the function's file: functions of one name share a file of calls.
    file: str = ""


class NotRecordedError(UsageError):
    """No call of a function is recorded; its tuned records may still answer.

    Attributes
    ----------
    name : str
        Name of the function's records.
    project : Project
        Project of the function's file.
    """

    def __init__(self, message: str, name: str, project: Project) -> None:
        super().__init__(message)
        self.name, self.project = name, project


class Watched:
    """A stand-in for a caller's array; it notes the values that a hook fills it with."""

    def __init__(self, name: str, array: Any, fills: list[tuple[str, float]]) -> None:
        self._name, self._array, self._fills = name, array, fills

    def fill_(self, value: float) -> Watched:
        self._fills.append((self._name, float(value)))
        return self

    def zero_(self) -> Watched:
        return self.fill_(0.0)

    def __getattr__(self, attribute: str) -> Any:
        if attribute not in _READABLE:
            raise UsageError(
                f"a hook uses {self._name}.{attribute}; hooks of a tuned function may only fill arrays "
                "(zero_, fill_)"
            )
        return getattr(self._array, attribute)


def passed(name: str, value: Any, place: int) -> tuple[Any, str, Operand | None]:
    """Return an argument, the name of its type, and the operand if it is an array.

    ``place`` is its position in the call. Raise `UsageError` if only Triton can launch it.
    """
    try:
        kind = kind_of(value)
    except UsageError:
        raise UsageError(f"{name} is a {type(value).__name__}") from None
    if not isinstance(kind, Library):
        if isinstance(value, bool):
            return value, "bool", None
        if not isinstance(value, int | float):
            raise UsageError(f"{name} is a {type(value).__name__}")
        is_wide = isinstance(value, int) and not -(2**31) <= value < 2**31
        return value, "float32" if isinstance(value, float) else f"int{64 if is_wide else 32}", None
    operand = kind.operand(value, place)
    if operand.dtype not in triton.TYPES or operand.runs_backwards:
        raise UsageError(f"{name} is {operand}, which is of an unknown type or runs backwards")
    is_plain = operand.is_contiguous and operand.shape
    shape = operand.shape if is_plain else (operand.span,)
    type_name = triton.TYPES[operand.dtype]
    if operand.offset:  # another binary
        type_name += f"@{operand.offset}"
    return PassedArray(operand.dtype, shape, offset=operand.offset), type_name, operand


def field_of(name: str, value: Any) -> int | str:
    """Return a value as a problem field: a size unchanged, other values as JSON."""
    if type(value) is int and value >= 0:
        return value
    try:
        return json.dumps(value)
    except TypeError as error:
        raise UsageError(f"{name} is a {type(value).__name__}") from error


def with_ranges(
    call: RecordedCall, bound: Mapping[str, Any], operands: Mapping[str, Operand]
) -> RecordedCall:
    """Return a call with the value range of each integer array, because integers may be indices."""
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
    """Copy the arrays of a call into files of a folder; return the call with these files."""
    arguments = dict(call.arguments)
    for name in operands:
        declared = arguments[name]
        assert isinstance(declared, PassedArray)
        arguments[name] = changed(declared, file=str(folder / f"{name}.npy"))
    save_arrays(folder, {name: _on_host(bound[name], of) for name, of in operands.items()})
    return changed(call, arguments=arguments)


def memory_of(operand: Operand) -> Operand:
    """Return the operand to copy: a contiguous array itself, else all memory that it spans."""
    return operand if operand.is_contiguous and operand.shape else operand.memory


def copy_of(array: Any, operand: Operand) -> Any:
    """Return a copy of an array on its device."""
    library = kind_of(array)
    assert isinstance(library, DeviceLibrary)
    return library.copied(library.view(library.readable(array), memory_of(operand)))


def _on_host(array: Any, operand: Operand) -> Any:
    """Return a copy of an array in host memory, as bits if NumPy lacks its type."""
    library = kind_of(array)
    assert isinstance(library, Library)
    seen = library.view(library.readable(array), memory_of(operand))
    if element := encoded_type(operand.dtype):
        return (on_host(seen) if hasattr(seen, "cpu") else seen).view(element.stored)
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
    """Return a call for the launch code of `autotune.load`.

    Its result is the first array, since `GpuCall.shortest` needs a passed result. ``passed_on`` has the
    positions of arguments whose values may differ from call to call.
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
    """Write the calls that ``autotune run FILE:FUNCTION`` tunes: the latest call of each problem."""
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
            raise UsageError(
                f"{file}: {error}; remove the file, and record the calls again"
            ) from error
    return []


def calls_file(project: Project, name: str) -> Path:
    """Return the file with a project's recorded calls of the functions of a name."""
    return Path(data_path("calls", project.folder, f"{name}.json"))
