"""The arguments of a kernel on one problem: their kind, type and shape, and how a hook declares them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from autotune.data.draw import DeclaredShapes, Draw
from autotune.element_types import ELEMENT_TYPES, ENCODED_TYPES
from autotune.encoding import decoded, dtype_of, encoded, encoded_type, limits
from autotune.errors import unknown
from autotune.kernel.names import OFFSET
from autotune.kernel.spec import Constant, InOut, Kernel, Out
from autotune.syntax import parsed
from autotune.values import Problem


@dataclass(frozen=True)
class Argument:
    """One kernel argument as stored: arrays in ``<name>.npy``, scalars in place."""

    name: str
    #: ``input``, ``out``, ``inout``, ``constant`` or ``scalar``.
    kind: str
    dtype: str
    shape: tuple[int, ...] = ()
    value: float | int | bool | bytes = 0
    #: Elements from a 16-byte boundary to the beginning of the array on a device.
    offset: int = 0
    #: Name of the type, for example ``bfloat16``, if the stored elements are bits of a type that NumPy lacks; else
    #: empty.
    bits_of: str = ""
    #: Name of a constant in the module, if it differs from the argument's name; else empty.
    symbol: str = ""
    #: True for an array in Fortran order, whose elements were copied to C order.
    is_reordered: bool = False
    #: Members of a structured scalar, as `numpy.lib.format.dtype_to_descr` describes them; else empty.
    members: str = ""

    @property
    def layout_note(self) -> str:
        """Type and order of an array that a kernel may not expect: NumPy's defaults, and orders of bytes and axes."""
        dtype, notes = np.dtype(self.dtype), list[str]()
        if not self.shape:
            return ""
        if not dtype.isnative:
            notes.append(f"as {dtype.name} in the other byte order")
        elif dtype in (np.float64, np.int64, np.complex128):
            notes.append(f"as {dtype.name}")
        if self.is_reordered:
            notes.append("in C order, not in the declared Fortran order")
        return " ".join(notes)

    @property
    def variable(self) -> str:
        """Name of a constant in the module."""
        return self.symbol or self.name

    @property
    def type_name(self) -> str:
        """Name of the elements' type."""
        return self.bits_of or np.dtype(self.dtype).name

    @property
    def value_type(self) -> np.dtype[Any]:
        """Type of the values; float32, int8 or uint8 if the stored elements are bits."""
        return np.dtype(ENCODED_TYPES[self.bits_of].values if self.bits_of else self.dtype)

    @property
    def info(self) -> Any:
        """Limits of the type, as `numpy.finfo` or `numpy.iinfo` describes them."""
        if self.bits_of:
            return limits(self.bits_of)
        return (np.iinfo if np.dtype(self.dtype).kind in "iu" else np.finfo)(self.dtype)

    @property
    def per_stored(self) -> int:
        """Elements in one stored number: 2 of a 4-bit type, otherwise 1."""
        return ENCODED_TYPES[self.bits_of].per_stored if self.bits_of else 1

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of the stored array."""
        if self.per_stored == 1 or not self.shape:
            return self.shape
        return (*self.shape[:-1], self.shape[-1] // self.per_stored)

    @property
    def count(self) -> int:
        """Number of elements; only an input may be empty."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Size of the array in bytes."""
        return int(np.dtype(self.dtype).itemsize) * self.count // self.per_stored

    @property
    def offset_bytes(self) -> int:
        """Bytes from a 16-byte boundary to the beginning of the array on a device."""
        return self.offset * int(np.dtype(self.dtype).itemsize) // self.per_stored

    @property
    def scalar(self) -> np.generic:
        """Value of a scalar argument in its type."""
        if isinstance(self.value, bytes):
            members = parsed(lambda: ast.literal_eval(self.members))
            structured = np.lib.format.descr_to_dtype(members)
            return cast(np.generic, np.frombuffer(self.value, structured)[0])
        scalar: np.generic = np.dtype(self.dtype).type(self.value)
        return scalar

    def with_scalar(self, value: NDArray[Any] | np.generic) -> Argument:
        """Return a scalar argument with another value of its type."""
        return replace(self, value=value.tobytes() if self.members else value.item())

    def values(self, stored: NDArray[Any] | None) -> NDArray[Any]:
        """Return the values of a stored array in `value_type`; those of a scalar without axes."""
        if stored is None:
            return np.asarray(self.scalar)
        return decoded(stored, self.bits_of) if self.bits_of else stored


def declared_arguments(kernel: Kernel, problem: Problem, number: int = 0) -> dict[str, Argument]:
    """Return kind, type and shape of every argument of a problem, without drawing its inputs.

    ``number`` changes the scalars that the hook draws.
    """
    declared = declared_values(kernel, problem, number)
    return {name: declared_argument(kernel, name, value) for name, value in declared.items()}


def with_scratch(arguments: Iterable[Argument], scratch: Mapping[str, Out]) -> dict[str, Argument]:
    """Return arguments and scratch buffers by name, as a launch passes them; a constant is not passed."""
    passed = {argument.name: argument for argument in arguments if argument.kind != "constant"}
    return {**passed, **{name: _out(name, out) for name, out in scratch.items()}}


def declared_values(kernel: Kernel, problem: Problem, number: int = 0) -> dict[str, Any]:
    """Return what the arguments hook declares for a problem; drawn arrays have one shared element.

    If the hook fails on such arrays, it is called again with real ones. ``number`` changes the scalars
    that the hook draws.
    """
    try:
        with np.errstate(all="ignore"):
            declared = kernel.call_hook("arguments", problem, DeclaredShapes(number))
    except Exception:
        declared = kernel.call_hook("arguments", problem, Draw(exact=False, key=number))
    return dict(declared)


def declared_argument(kernel: Kernel, name: str, value: Any) -> Argument:
    """Return kind, type and shape of one value of the arguments or scratch hook."""
    if hasattr(content := _content(value), "dtype"):
        _check_type(kernel, name, content.dtype)
    if isinstance(value, Out):
        return _out(name, value)
    for kind, wrapper in (("inout", InOut), ("constant", Constant)):
        if isinstance(value, wrapper):
            array, symbol = np.asarray(content), getattr(value, "symbol", "")
            return replace(_array(name, kind, array.dtype, array.shape), symbol=symbol)
    if isinstance(value, np.ndarray) and value.shape != ():
        return _array(name, "input", value.dtype, value.shape)
    return _scalar(kernel, name, value)


def _out(name: str, out: Out) -> Argument:
    shape = tuple(int(extent) for extent in np.atleast_1d(out.shape))
    return _array(name, "out", out.dtype, shape)


def _array(name: str, kind: str, dtype: Any, shape: tuple[int, ...]) -> Argument:
    if element := encoded_type(dtype):
        return Argument(name, kind, np.dtype(element.stored).str, shape, bits_of=element.name)
    return Argument(name, kind, np.dtype(dtype).str, shape)


def _check_type(kernel: Kernel, name: str, dtype: Any) -> None:
    """Raise SpecError for an unknown type, or one of ml_dtypes that `ENCODED_TYPES` lacks."""
    try:
        found = dtype_of(dtype)
    except TypeError as error:
        known = [*ELEMENT_TYPES, *ENCODED_TYPES]
        raise kernel.error(f"arguments: {name}: {unknown('type', dtype, known)}") from error
    if found.isbuiltin == 2 and not encoded_type(found):  # registered with NumPy
        raise kernel.error(
            f"arguments: {name} is {found.name}, a type of no kernel (known: {', '.join(ENCODED_TYPES)}); "
            f"pass its bits as uint{8 * found.itemsize}"
        )


def argument_of(kernel: Kernel, name: str, value: Any) -> tuple[Argument, NDArray[Any] | None]:
    """Return the argument for a value of the arguments hook, and its array or None."""
    argument = declared_argument(kernel, name, value)
    if argument.kind in ("out", "scalar"):
        return argument, None
    content = np.asarray(_content(value))
    array = np.ascontiguousarray(content)
    is_reordered = content.flags.fnc
    argument = replace(argument, shape=array.shape, is_reordered=is_reordered)
    check_packing(kernel, argument)
    return argument, encoded(array, argument.bits_of) if argument.bits_of else array


def _content(value: Any) -> Any:
    return value.array if isinstance(value, InOut | Constant) else value


def _scalar(kernel: Kernel, name: str, value: Any) -> Argument:
    if isinstance(value, bool | int) and not isinstance(value, np.generic):
        if not -(2**31) <= value < 2**31:
            raise kernel.error(f"arguments: {name}={value} needs 64 bits; pass np.int64({name})")
        return Argument(name, "scalar", "<i4", value=int(value))
    if isinstance(value, float) and not isinstance(value, np.generic):
        return Argument(name, "scalar", "<f4", value=value)
    is_number = isinstance(value, np.generic | np.ndarray) and not encoded_type(value.dtype)
    if is_number and value.dtype.kind in "iufb":
        return Argument(name, "scalar", value.dtype.str, value=value.item())
    if isinstance(value, np.void | np.ndarray) and value.dtype.names is not None:
        members = repr(np.lib.format.dtype_to_descr(value.dtype))
        return Argument(name, "scalar", value.dtype.str, value=value.tobytes(), members=members)
    raise kernel.error(
        f"arguments: {name} is {type(value).__name__}; expected an array, Out, InOut, Constant or a "
        "number of a type of NumPy"
    )


def offsets_of(kernel: Kernel, problem: Problem, declared: Mapping[str, Any]) -> dict[str, int]:
    """Return the offset of each array that a layout field names; SpecError if the array is unknown."""
    kinds = np.ndarray | Out | InOut
    arrays = [name for name, value in declared.items() if isinstance(value, kinds)]
    offsets = {}
    for field, value in kernel.filled(problem).items():
        name = field.removeprefix(OFFSET)
        if name != field and field not in kernel.fields:
            if name not in arrays:
                raise kernel.error(
                    f"layout field {field}: {unknown('array argument', name, arrays)}"
                )
            offsets[name] = int(value)
    return offsets


def check_array(kernel: Kernel, argument: Argument, dtype: np.dtype[Any]) -> None:
    """Raise SpecError for outputs that backends cannot compare, and for arrays that cannot be stored."""
    name, is_output = argument.name, argument.kind in ("out", "inout")
    if (argument.nbytes == 0 and argument.kind != "input") or argument.dtype == "|O":
        raise kernel.error(
            f"arguments: {name} {argument.shape} is empty or holds objects; give at least one element, of a "
            "type of NumPy"
        )
    check_packing(kernel, argument)
    if is_output and dtype.newbyteorder("=").name not in ELEMENT_TYPES:
        raise kernel.error(
            f"arguments: the output {name} is {dtype}, which cannot be compared (known: "
            f"{', '.join(ELEMENT_TYPES)})"
        )
    if dtype.kind == "V" and dtype.names is None:
        raise kernel.error(
            f"arguments: {name} is {dtype}, which data sets cannot store; pass its bits, as "
            f"{name}.view(np.uint{8 * dtype.itemsize})"
        )


def check_packing(kernel: Kernel, argument: Argument) -> None:
    """Raise SpecError if two elements share a byte and the last axis has an odd length."""
    if argument.count % argument.per_stored or (
        argument.shape and argument.shape[-1] % argument.per_stored
    ):
        raise kernel.error(
            f"arguments: {argument.name} is {argument.bits_of}{list(argument.shape)}; two elements share "
            "a byte, so the last axis needs an even length: pad it"
        )
