"""Checks tensor maps and textures, and turns them into the numbers that the driver takes.

Sources of all limits: CUDA Driver API, ``cuTensorMapEncodeTiled`` and ``cuTexObjectCreate``; CUDA C++
Programming Guide, "Technical Specifications per Compute Capability".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import index, mul
from typing import Any, Protocol

from autotune.devices.base import ViewLayout
from autotune.devices.device import Device
from autotune.devices.tensor_map import FLOATS, TensorLayout
from autotune.devices.texture import AS_INTEGER, FORMATS, NORMALIZED, TextureLayout
from autotune.element_types import ELEMENT_TYPES
from autotune.errors import SpecError, unknown
from autotune.kernel.views import TensorMap, Texture, View

#: First architecture with TMA: Hopper.
_FIRST_ARCH = 90
#: Limits of a tensor map.
_MAX_AXES, _MAX_EXTENT, _MAX_STRIDE_BYTES, _MAX_BOX, _MAX_STEP = 5, 1 << 32, 1 << 40, 256, 8
#: Values of the options in bytes; their places are the driver's numbers.
_SWIZZLES, _INTERLEAVES, _PROMOTIONS = (0, 32, 64, 128), (0, 16, 32), (0, 64, 128, 256)
#: Options of a texture; their places are the driver's numbers.
_ADDRESSES, _FILTERS = ("wrap", "clamp", "mirror", "border"), ("point", "linear")
#: Limits of a texture: texels of linear memory, of a row and of a column, and bytes between rows.
_MAX_TEXELS, _MAX_WIDTH, _MAX_HEIGHT, _MAX_PITCH_BYTES = 1 << 27, 131_072, 65_000, 2_097_120
#: Multiple of the bytes between two rows of a texture.
_PITCH_BYTES = 32
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


def layout_of(wanted: View, array: TypedArray) -> ViewLayout:
    """Return the layout of a view of an array; raise `SpecError` if the driver would refuse it."""
    if isinstance(wanted, Texture):
        return texture_layout(wanted, array)
    return tensor_layout(wanted, array)


def tensor_layout(wanted: TensorMap, array: TypedArray) -> TensorLayout:
    """Return the layout of a tensor map; see `layout_of`."""
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
    _refuse(wanted, faults)
    return TensorLayout(
        dtype, itemsize, shape[::-1], strides[::-1], box[::-1], steps[::-1], options, wanted.nan
    )


def texture_layout(wanted: Texture, array: TypedArray) -> TextureLayout:
    """Return the layout of a texture; see `layout_of`."""
    dtype, channels = array.type_name, wanted.channels
    itemsize = max(1, ELEMENT_TYPES[dtype].bits // 8)
    *rows, row = array.stored_shape
    shape = _whole(wanted, "shape", wanted.shape or (*rows, row // max(1, channels)))
    height, width = (*shape, 0)[:2] if len(shape) == 2 else (0, shape[0])
    pitch = _whole(wanted, "pitch", width * channels if wanted.pitch is None else wanted.pitch, 1)[
        0
    ]
    is_flat = len(shape) == 1
    options = {
        "address": wanted.address != "clamp",
        "filter": wanted.filter != "point",
        "normalized": wanted.normalized,
        "pitch": wanted.pitch is not None,
    }
    is_float = dtype.startswith("float") or wanted.unit
    faults = {
        f"{len(shape)} axes; it can have 1 or 2": len(shape) not in (1, 2),
        f"an array of {dtype}; it can be of {', '.join(FORMATS)}": dtype not in FORMATS,
        f"channels={channels}; it can be 1, 2 or 4": channels not in (1, 2, 4),
        f"{', '.join(name for name, given in options.items() if given)}, which need two axes": is_flat
        and any(options.values()),
        f"shape={shape}; sizes are 1 to 2^27": is_flat and not _are_within(shape, _MAX_TEXELS),
        f"shape={shape}; it has at most {_MAX_HEIGHT} rows of {_MAX_WIDTH}": not is_flat
        and not (_are_within((width,), _MAX_WIDTH) and _are_within((height,), _MAX_HEIGHT)),
        f"rows of {pitch * itemsize} bytes, which must be a multiple of {_PITCH_BYTES}, at most "
        f"{_MAX_PITCH_BYTES}; pad the rows and give pitch": not is_flat
        and (pitch * itemsize % _PITCH_BYTES != 0 or pitch * itemsize > _MAX_PITCH_BYTES),
        f"pitch={pitch}, less than a row of {width * channels} elements": pitch < width * channels,
        f"filter='linear' for {dtype}, which needs floating-point values": wanted.filter == "linear"
        and not is_float,
        f"unit=True for {dtype}; it is for integers of 8 and 16 bits": wanted.unit
        and (dtype not in FORMATS or dtype.startswith("float") or itemsize > 2),
        f"address={wanted.address!r} without normalized=True": wanted.address in ("wrap", "mirror")
        and not wanted.normalized,
    }
    _refuse(wanted, faults)
    flags = (0 if is_float else AS_INTEGER) | (NORMALIZED if wanted.normalized else 0)
    return TextureLayout(
        dtype,
        channels,
        width,
        height,
        pitch * itemsize,
        _place(wanted, "address", _ADDRESSES),
        _place(wanted, "filter", _FILTERS),
        flags,
    )


def _refuse(wanted: View, faults: Mapping[str, bool]) -> None:
    for fault, is_found in faults.items():
        if is_found:
            raise SpecError(f"{_title(wanted)} has {fault}")


def _are_within(sizes: Sequence[int], most: int) -> bool:
    return all(1 <= size <= most for size in sizes)


def _whole(wanted: View, name: str, sizes: Any, axes: int | None = None) -> tuple[int, ...]:
    """Return integers of an option, one for each axis."""
    try:
        found = tuple(map(index, sizes if isinstance(sizes, tuple | list) else (sizes,)))
    except TypeError as error:
        text = f"{_title(wanted)} has {name}={sizes!r}; expected a tuple of integers"
        raise SpecError(text) from error
    if axes is not None and len(found) != axes:
        raise SpecError(f"{_title(wanted)} has {name}={found}; expected {axes} sizes")
    return found


def _place(wanted: View, name: str, values: Sequence[object]) -> int:
    value = getattr(wanted, name)
    if value not in values:
        raise SpecError(f"{_title(wanted)}: {unknown(name, str(value), map(str, values))}")
    return values.index(value)


def _title(wanted: View) -> str:
    return f"launch: {wanted}"
