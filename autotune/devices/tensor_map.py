"""Encodes tensor maps by the driver, and moves them to other addresses.

A tensor map is an opaque value of 128 bytes that a kernel takes by value. Source: CUDA Driver API,
``cuTensorMapEncodeTiled``, since CUDA 12.0.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from autotune.devices.cuda_stream import make_context_current
from autotune.errors import DeviceError

#: Size and alignment of a tensor map.
MAP_BYTES, _ALIGNMENT = 128, 64
#: CUtensorMapDataType by type of the elements, and for other types by their bytes: a copy does not read values.
FLOATS = {"float16": 6, "float32": 7, "float64": 8, "bfloat16": 9}
_CODES = {**FLOATS, "int32": 3, "int64": 5}
_CODES_BY_BYTES = {1: 0, 2: 1, 4: 2, 8: 4}
#: CUresult: this thread has no context yet.
_NO_CONTEXT = 201
#: An aligned address, for maps that will be moved.
ANY_ADDRESS = 1 << 40


@dataclass(frozen=True)
class TensorLayout:
    """A tensor map without its address; axes in the driver's order, the contiguous one first."""

    dtype: str
    itemsize: int
    shape: tuple[int, ...]
    #: Elements between neighbours along each axis but the first.
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    #: CUtensorMapSwizzle, CUtensorMapInterleave and CUtensorMapL2promotion.
    options: tuple[int, int, int]
    nan: bool

    @property
    def driver_numbers(self) -> tuple[int, int, int, int, int]:
        """The driver's numbers: type of the elements, interleave, swizzle, L2 promotion, fill."""
        swizzle, interleave, promotion = self.options
        code = _CODES.get(self.dtype, _CODES_BY_BYTES[self.itemsize])
        return code, interleave, swizzle, promotion, int(self.nan)

    @property
    def nbytes(self) -> int:
        """Bytes of the kernel's parameter."""
        return MAP_BYTES

    @property
    def has_address_first(self) -> bool:
        """True if a map begins with the address of its array, and has it nowhere else."""
        return _has_address_first(self)

    def unplaced(self) -> bytes:
        """Return a map that will be moved."""
        return self.encoded(ANY_ADDRESS)

    def encoded(self, address: int) -> bytes:
        """Return the tensor map of an array at an address; `DeviceError` if the driver refuses it."""
        memory = ctypes.create_string_buffer(MAP_BYTES + _ALIGNMENT)
        begin = -ctypes.addressof(memory) % _ALIGNMENT
        axes = len(self.shape)
        sizes = (ctypes.c_uint64 * axes)(*self.shape)
        strides = (ctypes.c_uint64 * max(1, axes - 1))(*(s * self.itemsize for s in self.strides))
        box, steps = ((ctypes.c_uint32 * axes)(*values) for values in (self.box, self.steps))
        code, *options = self.driver_numbers
        encode = partial(
            _driver().cuTensorMapEncodeTiled,
            ctypes.c_void_p(ctypes.addressof(memory) + begin),
            code,
            ctypes.c_uint32(axes),
            ctypes.c_void_p(address),
            *(sizes, strides, box, steps),
            *options,
        )
        status = encode()
        if status == _NO_CONTEXT:
            make_context_current()
            status = encode()
        if status:
            raise DeviceError(
                f"the driver refuses a tensor map (CUresult {status}) of {self} at address {address:#x}"
            )
        return memory.raw[begin : begin + MAP_BYTES]


@cache
def _has_address_first(layout: TensorLayout) -> bool:
    """See `TensorLayout`. The form of a map is not documented; two maps of one layout show it."""
    first, second = (layout.encoded(address) for address in (ANY_ADDRESS, 3 * ANY_ADDRESS))
    begins = [struct.unpack_from("Q", found)[0] for found in (first, second)]
    return begins == [ANY_ADDRESS, 3 * ANY_ADDRESS] and first[8:] == second[8:]


@cache
def _driver() -> Any:
    try:
        library = ctypes.CDLL("libcuda.so.1")
        _ = library.cuTensorMapEncodeTiled
    except (OSError, AttributeError) as error:
        raise DeviceError(f"tensor maps need a driver of CUDA 12.0 or newer: {error}") from error
    return library
