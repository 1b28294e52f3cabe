"""Checks tensor maps and turns them into the numbers that the driver encodes.

Source of all limits: CUDA Driver API, ``cuTensorMapEncodeTiled``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import index, mul
from typing import Any, Protocol

from autotune.devices.device import Device
from autotune.devices.tensor_map import FLOATS, TensorLayout
from autotune.element_types import ELEMENT_TYPES
from autotune.errors import SpecError, unknown
from autotune.kernel.spec import TensorMap

#: First architecture with TMA: Hopper.
_FIRST_ARCH = 90
#: Limits of a tensor map.
_MAX_AXES, _MAX_EXTENT, _MAX_STRIDE_BYTES, _MAX_BOX, _MAX_STEP = 5, 1 << 32, 1 << 40, 256, 8
#: Values of the options in bytes; their places are the driver's numbers.
_SWIZZLES, _INTERLEAVES, _PROMOTIONS = (0, 32, 64, 128), (0, 16, 32), (0, 64, 128, 256)
#: Multiple of every stride in bytes, and of a row of the box without an interleaved layout.
_ROW_BYTES = 16
#: Multiple of every stride in bytes if the layout is interleaved by 32 bytes.
_INTERLEAVED_BYTES = 32


class TypedArray(Protocol):
    """An array that a launch may pass: an argument or a scratch buffer."""

    @property
    def type_name(self) -> str:
        """Name of the elements' type."""

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Stored elements along each axis."""


def has_tensor_maps(device: Device) -> bool:
    """Return whether a device has TMA."""
    return device.is_cuda and int(device.arch.removeprefix("sm_").rstrip("af")) >= _FIRST_ARCH


def layout_of(wanted: TensorMap, array: TypedArray) -> TensorLayout:
    """Return the layout of a tensor map of an array; raise `SpecError` if the driver would refuse it."""
    dtype = array.type_name
    itemsize = max(1, ELEMENT_TYPES[dtype].bits // 8)
    shape = _whole(wanted, "shape", array.stored_shape if wanted.shape is None else wanted.shape)
    axes = len(shape)
    contiguous = tuple(accumulate(shape[:0:-1], mul))[::-1]
    strides = _whole(wanted, "strides", wanted.strides or contiguous, axes - 1)
    box = _whole(wanted, "box", wanted.box, axes)
    steps = _whole(wanted, "steps", wanted.steps or (1,) * axes, axes)
    options = (
        _place(wanted, "swizzle", _SWIZZLES),
        _place(wanted, "interleave", _INTERLEAVES),
        _place(wanted, "promotion", _PROMOTIONS),
    )
    row = box[-1] * itemsize
    least = _INTERLEAVED_BYTES if wanted.interleave == _INTERLEAVED_BYTES else _ROW_BYTES
    uneven = [stride for stride in strides if stride * itemsize % least]
    faults = {
        f"{axes} axes; it can have 1 to {_MAX_AXES}": not 1 <= axes <= _MAX_AXES,
        f"shape={shape}; sizes are 1 to 2^32": not _are_within(shape, _MAX_EXTENT),
        f"box={box}; sizes are 1 to {_MAX_BOX}": not _are_within(box, _MAX_BOX),
        f"steps={steps}; steps are 1 to {_MAX_STEP}": not _are_within(steps, _MAX_STEP),
        f"strides={strides}; a stride is below 2^40 bytes": not _are_within(
            [stride * itemsize for stride in strides], _MAX_STRIDE_BYTES - 1
        ),
        f"a stride of {(uneven or [0])[0]} elements of {itemsize} bytes, which is no multiple of {least} "
        "bytes; pad the rows, or leave such sizes out by requires": bool(uneven),
        f"a row of the box of {row} bytes, which is no multiple of {_ROW_BYTES}; change the last size of "
        "box": not wanted.interleave and row % _ROW_BYTES != 0,
        f"a row of the box of {row} bytes, more than swizzle={wanted.swizzle}; make the last size of box "
        "smaller": not wanted.interleave and 0 < wanted.swizzle < row,
        f"interleave={wanted.interleave} with {axes} axes; it needs 3 or more": bool(
            wanted.interleave
        )
        and axes < 3,
        f"interleave=32 with swizzle={wanted.swizzle}; it needs swizzle=32": wanted.interleave == 32
        and wanted.swizzle != 32,
        f"nan=True for {dtype}; only floating-point numbers have NaN": wanted.nan
        and dtype not in FLOATS,
    }
    for fault, is_found in faults.items():
        if is_found:
            raise SpecError(f"{_title(wanted)} has {fault}")
    return TensorLayout(
        dtype, itemsize, shape[::-1], strides[::-1], box[::-1], steps[::-1], options, wanted.nan
    )


def _are_within(sizes: Sequence[int], most: int) -> bool:
    return all(1 <= size <= most for size in sizes)


def _whole(wanted: TensorMap, name: str, sizes: Any, axes: int | None = None) -> tuple[int, ...]:
    """Return integers of an option, one for each axis."""
    try:
        found = tuple(map(index, sizes if isinstance(sizes, tuple | list) else (sizes,)))
    except TypeError as error:
        text = f"{_title(wanted)} has {name}={sizes!r}; expected a tuple of integers"
        raise SpecError(text) from error
    if axes is not None and len(found) != axes:
        raise SpecError(f"{_title(wanted)} has {name}={found}; expected {axes} sizes")
    return found


def _place(wanted: TensorMap, name: str, values: Sequence[int]) -> int:
    value = getattr(wanted, name)
    if value not in values:
        raise SpecError(f"{_title(wanted)}: {unknown(name, str(value), map(str, values))}")
    return values.index(value)


def _title(wanted: TensorMap) -> str:
    return f"launch: {wanted}"
