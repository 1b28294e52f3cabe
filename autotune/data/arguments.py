"""The arguments of a kernel on one problem: their kind, type and shape, and how a hook declares them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.arrays import widened_bfloat16
from autotune.data.draw import DeclaredShapes, Draw
from autotune.errors import unknown
from autotune.kernel.names import OFFSET
from autotune.kernel.spec import BFloat16, Constant, InOut, Kernel, Out
from autotune.values import Problem

_BFLOAT16 = "bfloat16"


class _BFloat16Info:
    """The limits of bfloat16; see `numpy.finfo`."""

    bits, eps = 16, 2.0**-7
    smallest_normal, smallest_subnormal = 2.0**-126, 2.0**-133


BFLOAT16_INFO = _BFloat16Info()


@dataclass(frozen=True)
class Argument:
    """One kernel argument as stored: arrays in ``<name>.npy``, scalars in place."""

    name: str
    #: ``input``, ``out``, ``inout``, ``constant`` or ``scalar``.
    kind: str
    dtype: str
    shape: tuple[int, ...] = ()
    value: float | int | bool = 0
    #: Elements from a 16-byte boundary to the beginning of the array on a device.
    offset: int = 0
    #: ``bfloat16`` if the elements are bits of that type, which NumPy lacks; else empty.
    bits_of: str = ""

    @property
    def value_type(self) -> np.dtype[Any]:
        """Type of the values; float32 if the elements are bits of bfloat16."""
        return np.dtype(np.float32 if self.bits_of else self.dtype)

    @property
    def info(self) -> Any:
        """Limits of the type, as `numpy.finfo` describes them."""
        return BFLOAT16_INFO if self.bits_of else np.finfo(self.dtype)

    @property
    def count(self) -> int:
        """Number of elements; only an input may be empty."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Size of the array in bytes."""
        return int(np.dtype(self.dtype).itemsize) * self.count

    @property
    def offset_bytes(self) -> int:
        """Bytes from a 16-byte boundary to the beginning of the array on a device."""
        return self.offset * int(np.dtype(self.dtype).itemsize)

    @property
    def scalar(self) -> np.generic:
        """Value of a scalar argument in its type."""
        scalar: np.generic = np.dtype(self.dtype).type(self.value)
        return scalar

    def values(self, stored: NDArray[Any] | None) -> NDArray[Any]:
        """Return the values of a stored array, bfloat16 as float32; those of a scalar without axes."""
        if stored is None:
            return np.asarray(self.scalar)
        return widened_bfloat16(stored) if self.bits_of else stored


def declared_arguments(kernel: Kernel, problem: Problem, number: int = 0) -> dict[str, Argument]:
    """Return kind, type and shape of every argument of a problem, without drawing its inputs.

    ``number`` changes the scalars that the hook draws.
    """
    declared = declared_values(kernel, problem, number)
    return {name: declared_argument(kernel, name, value) for name, value in declared.items()}


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
    if isinstance(value, Out):
        shape = tuple(int(extent) for extent in np.atleast_1d(value.shape))
        is_bits = isinstance(value.dtype, str) and value.dtype == _BFLOAT16
        dtype = np.dtype(np.uint16 if is_bits else value.dtype)
        return Argument(name, "out", dtype.str, shape, bits_of=_BFLOAT16 if is_bits else "")
    content = _content(value)
    if isinstance(content, BFloat16):
        kind, bits = "inout" if isinstance(value, InOut) else "input", content.bits
        return Argument(name, kind, bits.dtype.str, bits.shape, bits_of=_BFLOAT16)
    for kind, wrapper in (("inout", InOut), ("constant", Constant)):
        if isinstance(value, wrapper):
            array = np.asarray(content)
            return Argument(name, kind, array.dtype.str, array.shape)
    if isinstance(value, np.ndarray) and value.shape != ():
        return Argument(name, "input", value.dtype.str, value.shape)
    return _scalar(kernel, name, value)


def argument_of(kernel: Kernel, name: str, value: Any) -> tuple[Argument, NDArray[Any] | None]:
    """Return the argument for a value of the arguments hook, and its array or None."""
    argument, content = declared_argument(kernel, name, value), _content(value)
    if argument.kind in ("out", "scalar"):
        return argument, None
    if isinstance(content, BFloat16):
        return argument, content.bits
    array = np.ascontiguousarray(content)
    return replace(argument, shape=array.shape), array


def _content(value: Any) -> Any:
    return value.array if isinstance(value, InOut | Constant) else value


def _scalar(kernel: Kernel, name: str, value: Any) -> Argument:
    if isinstance(value, bool | int) and not isinstance(value, np.generic):
        if not -(2**31) <= value < 2**31:
            raise kernel.error(f"arguments: {name}={value} needs 64 bits; pass np.int64({name})")
        return Argument(name, "scalar", "<i4", value=int(value))
    if isinstance(value, float) and not isinstance(value, np.generic):
        return Argument(name, "scalar", "<f4", value=value)
    if isinstance(value, np.generic | np.ndarray) and value.dtype.kind in "iufb":
        return Argument(name, "scalar", value.dtype.str, value=value.item())
    raise kernel.error(
        f"arguments: {name} is {type(value).__name__}; expected an array, Out, InOut, Constant or a "
        "number"
    )


def offsets_of(kernel: Kernel, problem: Problem, declared: Mapping[str, Any]) -> dict[str, int]:
    """Return the offset of each array that a layout field names; SpecError if the array is unknown."""
    kinds = np.ndarray | Out | InOut | BFloat16
    arrays = [name for name, value in declared.items() if isinstance(value, kinds)]
    offsets = {}
    for layout_field in kernel.layout:
        name = layout_field.removeprefix(OFFSET)
        if name != layout_field:
            if name not in arrays:
                raise kernel.error(
                    f"layout field {layout_field}: {unknown('array argument', name, arrays)}"
                )
            offsets[name] = int(kernel.filled(problem)[layout_field])
    return offsets


def check_array(kernel: Kernel, argument: Argument, dtype: np.dtype[Any]) -> None:
    """Raise SpecError for outputs that backends cannot compare, and for arrays that cannot be stored."""
    name, is_output = argument.name, argument.kind in ("out", "inout")
    if (argument.nbytes == 0 and argument.kind != "input") or argument.dtype == "|O":
        raise kernel.error(f"arguments: {name} {argument.shape} is empty or holds objects")
    if is_output and (dtype.kind not in "biufc" or dtype.itemsize > {"c": 16}.get(dtype.kind, 8)):
        raise kernel.error(
            f"arguments: the output {name} is {dtype}, which cannot be compared (known: bool, "
            "integers, float16, float32, float64, complex64, complex128)"
        )
    if dtype.kind == "V" and dtype.names is None:
        raise kernel.error(
            f"arguments: {name} is {dtype}, which data sets cannot store; pass its bits, as "
            f"{name}.view(np.uint{8 * dtype.itemsize})"
        )
