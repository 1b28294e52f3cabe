"""Texture objects of linear memory and of rows at a pitch, made by the driver.

Source: CUDA Driver API, ``cuTexObjectCreate``, ``CUDA_RESOURCE_DESC`` and ``CUDA_TEXTURE_DESC``.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from dataclasses import dataclass
from functools import cache
from typing import Any

from autotune.devices.cuda_stream import make_context_current
from autotune.errors import DeviceError

#: CUarray_format by type of the elements.
FORMATS = {
    "uint8": 0x01,
    "uint16": 0x02,
    "uint32": 0x03,
    "int8": 0x08,
    "int16": 0x09,
    "int32": 0x0A,
    "float16": 0x10,
    "float32": 0x20,
}
#: CUresourcetype.
_LINEAR, _PITCHED = 2, 3
#: CU_TRSF_READ_AS_INTEGER and CU_TRSF_NORMALIZED_COORDINATES.
AS_INTEGER, NORMALIZED = 1, 2


class _Linear(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_uint64),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
        ("nbytes", ctypes.c_size_t),
    )


class _Pitched(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_uint64),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("pitch_bytes", ctypes.c_size_t),
    )


class _TextureMemory(ctypes.Union):
    _fields_ = (("linear", _Linear), ("pitched", _Pitched), ("reserved", ctypes.c_int * 32))


class ResourceDescription(ctypes.Structure):
    """CUDA_RESOURCE_DESC: the memory of a texture."""

    _fields_ = (("kind", ctypes.c_int), ("memory", _TextureMemory), ("flags", ctypes.c_uint))


class TextureDescription(ctypes.Structure):
    """CUDA_TEXTURE_DESC: how a texture is read."""

    _fields_ = (
        ("address_modes", ctypes.c_int * 3),
        ("filter_mode", ctypes.c_int),
        ("flags", ctypes.c_uint),
        ("max_anisotropy", ctypes.c_uint),
        ("mipmap_filter_mode", ctypes.c_int),
        ("mipmap_levels", ctypes.c_float * 3),
        ("border_color", ctypes.c_float * 4),
        ("reserved", ctypes.c_int * 12),
    )


@dataclass(frozen=True)
class TextureLayout:
    """A texture without its address."""

    dtype: str
    channels: int
    #: Texels of a row, and rows; 0 rows for linear memory.
    width: int
    height: int
    #: Bytes between two rows; for linear memory those of the array.
    pitch_bytes: int
    #: CUaddress_mode, CUfilter_mode and flags.
    address: int = 1
    filter: int = 0
    flags: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the kernel's parameter."""
        return 8

    @property
    def has_address_first(self) -> bool:
        """False: a texture object is a handle of the driver."""
        return False

    def unplaced(self) -> bytes:
        """Return no texture object."""
        return bytes(self.nbytes)

    def encoded(self, address: int) -> bytes:
        """Return the texture object of an array at an address; `DeviceError` if the driver refuses it."""
        return struct.pack("Q", _object_at(self, address))

    def descriptions(self, address: int) -> tuple[ResourceDescription, TextureDescription]:
        """Return what the driver gets for an array at an address."""
        resource, read = ResourceDescription(), TextureDescription()
        resource.kind = _PITCHED if self.height else _LINEAR
        memory = resource.memory.pitched if self.height else resource.memory.linear
        memory.address, memory.channels = address, self.channels
        memory.format = FORMATS[self.dtype]
        if self.height:
            memory.width, memory.height = self.width, self.height
            memory.pitch_bytes = self.pitch_bytes
        else:
            memory.nbytes = self.pitch_bytes
        read.address_modes[:] = [self.address] * 3
        read.filter_mode, read.flags = self.filter, self.flags
        return resource, read


#: Texture objects by context, layout and address: to make one takes microseconds. None is destroyed, since a
#: captured graph may use it; the addresses of a process repeat.
_objects: dict[object, int] = {}
_making = threading.Lock()


def _object_at(layout: TextureLayout, address: int) -> int:
    context, driver = ctypes.c_void_p(), _driver()
    driver.cuCtxGetCurrent(ctypes.byref(context))
    if not context:
        make_context_current()
        driver.cuCtxGetCurrent(ctypes.byref(context))
    key = context.value, layout, address
    found = _objects.get(key)
    if found is None:
        with _making:
            found = _objects.get(key) or _made(driver, layout, address)
            _objects[key] = found
    return found


def _made(driver: Any, layout: TextureLayout, address: int) -> int:
    made = ctypes.c_uint64()
    resource, read = map(ctypes.byref, layout.descriptions(address))
    status = driver.cuTexObjectCreate(ctypes.byref(made), resource, read, None)
    if status:
        raise DeviceError(
            f"the driver refuses a texture (CUresult {status}) of {layout} at address {address:#x}; the "
            "address must be a multiple of 512"
        )
    return int(made.value)


@cache
def _driver() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceError(f"textures need NVIDIA's driver: {error}") from error
