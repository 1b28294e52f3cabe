"""Describe arrays of NumPy, CuPy, torch and other libraries (layout, device, stream); make new arrays.

`Library.key_part` runs in every call, so it is short. This module imports only libraries that the caller uses.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import numpy as np

from autotune.element_types import ENCODED_TYPES
from autotune.encoding import dtype_of, encoded_type, strided
from autotune.errors import MissingDependencyError, UsageError
from autotune.kernel.operand import ALIGNMENT, Operand, itemsize_of

#: The part of a call's key that a value decides: equal for values that share a prepared call.
KeyPart = Hashable
#: Types of torch with two elements in a byte, and the type of the bytes.
_PACKED = {"float4_e2m1fn_x2": "uint8"}
#: Marks a tensor whose elements have the opposite sign of its memory.
_NEGATED = "negated"


class Library(ABC):
    """An adapter of one array library."""

    def key_part(self, array: Any, pointers: list[Any]) -> KeyPart:
        """Return an array's part of the call's key, its layout; append its address to ``pointers``."""
        raise NotImplementedError

    def operand(self, array: Any, source: object) -> Operand:
        """Describe an array's layout for `call` functions."""
        raise NotImplementedError

    def device_index(self, array: Any) -> int | None:
        """Return the number of an array's CUDA device; None for host memory."""
        raise NotImplementedError

    @abstractmethod
    def maker(self, shape: tuple[int, ...], dtype: str, index: int) -> Callable[[], Any]:
        """Return a function that makes new arrays on a device, ordered by the caller's stream."""

    def empty(self, shape: tuple[int, ...], dtype: str, index: int) -> Any:
        return self.maker(shape, dtype, index)()

    @abstractmethod
    def view(self, array: Any, operand: Operand) -> Any:
        """Return the view of an array that an operand describes."""

    def readable(self, array: Any) -> Any:
        """Return the array of the type that `view` takes, on the same memory."""
        return array

    def for_caller(self, array: Any) -> Any:
        """Convert a new array to the caller's type."""
        return array


class DeviceLibrary(Library):
    """An adapter of a library whose arrays are on a device."""

    #: Whether memory that the library allocates during a capture belongs to the graph.
    knows_graphs = False

    @abstractmethod
    def pointer(self, array: Any) -> int:
        """Return the address of the first element."""

    @abstractmethod
    def copied(self, array: Any) -> Any:
        """Return a contiguous copy."""

    @abstractmethod
    def assign(self, target: Any, array: Any) -> None:
        """Write an array's elements into a view of another array."""

    @abstractmethod
    def stream_getter(self) -> Callable[[int], int]:
        """Return a function from a device index to the caller's current stream."""


class Torch(DeviceLibrary):
    """Tensors of PyTorch; NumPy reads the tensors in host memory."""

    knows_graphs = True

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self.has_several_devices = torch.cuda.device_count() > 1

    def key_part(self, array: Any, pointers: list[Any]) -> KeyPart:
        pointer = array.data_ptr()
        pointers.append(pointer)
        # get_device takes as long as everything else in this function.
        place: object = array.is_cuda
        if not place:
            place = array.device.type
        elif self.has_several_devices:
            place = array.get_device()
        layout = array.shape, array.stride(), array.dtype, place, pointer % ALIGNMENT
        # The imaginary part of a conjugate tensor has the same strides, but the opposite sign.
        return (*layout, _NEGATED) if array.is_neg() else layout

    def operand(self, array: Any, source: object) -> Operand:
        if array.layout is not self._torch.strided or array.is_conj() or array.is_neg():
            raise UsageError("a sparse, conjugated or negated tensor; pass a dense resolved copy")
        return _operand(
            tuple(array.shape),
            array.stride(),
            _PACKED.get(name := str(array.dtype).removeprefix("torch."), name),
            array.data_ptr() if self.device_index(array) is not None else 0,
            source,
        )

    def device_index(self, array: Any) -> int | None:
        if array.device.type not in ("cpu", "cuda"):
            raise UsageError(f"a tensor on {array.device}; kernels take cuda and cpu tensors")
        return array.get_device() if array.is_cuda else None

    def maker(self, shape: tuple[int, ...], dtype: str, index: int) -> Callable[[], Any]:
        torch = self._torch
        # new_empty of a tensor takes half of the time of empty with a type and a device.
        like = torch.empty(0, dtype=getattr(torch, dtype), device=torch.device("cuda", index))
        return partial(like.new_empty, shape)

    def pointer(self, array: Any) -> int:
        return int(array.data_ptr())

    def view(self, array: Any, operand: Operand) -> Any:
        begin = array.storage_offset() + operand.begin
        return array.detach().as_strided(operand.shape, operand.strides, begin)

    def copied(self, array: Any) -> Any:
        return array.clone(memory_format=self._torch.contiguous_format)

    def assign(self, target: Any, array: Any) -> None:
        target.copy_(array)

    def readable(self, array: Any) -> Any:
        return array if array.is_cuda else on_host(array.detach())

    def for_caller(self, array: Any) -> Any:
        if not isinstance(array, np.ndarray):
            return array
        if element := encoded_type(array.dtype):
            bits = self._torch.from_numpy(array.view(_signed(element.stored)))
            return bits.view(getattr(self._torch, element.name))
        return self._torch.from_numpy(array)

    def stream_getter(self) -> Callable[[int], int]:
        # The stream object takes a microsecond. torch's own compiled code calls this function, too.
        return getattr(self._torch._C, "_cuda_getCurrentRawStream", self._stream_of_object)

    def _stream_of_object(self, index: int) -> int:
        return int(self._torch.cuda.current_stream(index).cuda_stream)


def on_host(tensor: Any) -> Any:
    """Return a tensor as an array of NumPy, with types of ml_dtypes, on the same memory if that is the host's."""
    import torch

    name = str(tensor.dtype).removeprefix("torch.")
    element = encoded_type(name)
    if element is None and name not in _PACKED:
        return tensor.cpu().numpy()
    stored = element.stored if element else _PACKED[name]
    bits = tensor.view(getattr(torch, _signed(stored))).cpu().numpy()
    return bits.view(dtype_of(name) if element else stored)


def _signed(stored: str) -> str:
    """Return an integer type of a width that every version of torch has."""
    return "int16" if stored == "uint16" else stored


class Cupy(DeviceLibrary):
    """Arrays of CuPy."""

    def __init__(self) -> None:
        self._cupy = cupy()

    def key_part(self, array: Any, pointers: list[Any]) -> KeyPart:
        memory = array.data
        pointer = memory.ptr
        pointers.append(pointer)
        return array.shape, array.strides, array.dtype.char, memory.device_id, pointer % ALIGNMENT

    def operand(self, array: Any, source: object) -> Operand:
        return _operand_of_strided(array, array.data.ptr, source)

    def device_index(self, array: Any) -> int | None:
        return int(array.data.device_id)

    def maker(self, shape: tuple[int, ...], dtype: str, index: int) -> Callable[[], Any]:
        element = encoded_type(dtype)
        return partial(self._cupy.empty, shape, element.stored if element else dtype)

    def pointer(self, array: Any) -> int:
        return int(array.data.ptr)

    def view(self, array: Any, operand: Operand) -> Any:
        size = itemsize_of(operand.dtype)
        return self._cupy.ndarray(
            operand.shape,
            array.dtype,
            array.data + operand.begin * size,
            tuple(stride * size for stride in operand.strides),
        )

    def copied(self, array: Any) -> Any:
        return array.copy(order="C")

    def assign(self, target: Any, array: Any) -> None:
        target[...] = array

    def stream_getter(self) -> Callable[[int], int]:
        current = self._cupy.cuda.get_current_stream
        return lambda index: current(index).ptr


class Numpy(Library):
    """Arrays in host memory, copied to a device and back."""

    def key_part(self, array: Any, pointers: list[Any]) -> KeyPart:
        pointers.append(0)
        return array.shape, array.strides, array.dtype

    def operand(self, array: Any, source: object) -> Operand:
        return _operand_of_strided(array, 0, source)

    def device_index(self, array: Any) -> int | None:
        return None

    def maker(self, shape: tuple[int, ...], dtype: str, index: int) -> Callable[[], Any]:
        return partial(np.empty, shape, dtype_of(dtype))

    def view(self, array: Any, operand: Operand) -> Any:
        size = itemsize_of(operand.dtype)
        strides = tuple(stride * size for stride in operand.strides)
        if operand.begin:
            array = strided(array, (2,), (operand.begin * size,))[1:]
        return strided(array, operand.shape, strides)


class _Converted(Library):
    """An adapter of arrays that CuPy or NumPy reads, through an array on the same memory."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def key_part(self, array: Any, pointers: list[Any]) -> KeyPart:
        return super().key_part(self.readable(array), pointers)

    def operand(self, array: Any, source: object) -> Operand:
        return super().operand(self.readable(array), source)

    def device_index(self, array: Any) -> int | None:
        return super().device_index(self.readable(array))

    def for_caller(self, array: Any) -> Any:
        return _of_library(self._name, array)


class Foreign(_Converted, Cupy):
    """Device arrays of another library, through ``__cuda_array_interface__`` or DLPack.

    CuPy reads them. It also makes new arrays; the caller gets these through DLPack.
    """

    def readable(self, array: Any) -> Any:
        try:
            if hasattr(array, "__cuda_array_interface__"):
                return self._cupy.asarray(array)
            return self._cupy.from_dlpack(array)
        except (TypeError, ValueError, RuntimeError, BufferError) as error:
            raise UsageError(
                f"an array of {self._name} that CuPy cannot read: {error}; pass it as bytes if CuPy lacks its type"
            ) from error


class ForeignOnHost(_Converted, Numpy):
    """Arrays of another library in host memory, read through NumPy."""

    def readable(self, array: Any) -> Any:
        return np.asarray(array)


def _of_library(name: str, array: Any) -> Any:
    """Return an array of the named library on the same memory; the array itself without ``from_dlpack``.

    NumPy passes on no type of ml_dtypes through DLPack: libraries copy these arrays.
    """
    library = sys.modules.get(name)
    function = "asarray" if encoded_type(array.dtype) else "from_dlpack"
    for home in (library, getattr(library, "dlpack", None), getattr(library, "numpy", None)):
        if convert := getattr(home, function, None):
            return convert(array)
    return array


def _operand_of_strided(array: Any, pointer: int, source: object) -> Operand:
    size = array.dtype.itemsize
    if any(stride % size for stride in array.strides):
        raise UsageError(
            f"an array of {array.dtype} with strides of {array.strides} bytes, which are not multiples "
            "of the element size; pass a copy"
        )
    strides = tuple(stride // size for stride in array.strides)
    return _operand(array.shape, strides, str(array.dtype), pointer, source)


def _operand(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: str, pointer: int, source: object
) -> Operand:
    try:
        size = itemsize_of(dtype)
    except ValueError as error:
        if dtype in ENCODED_TYPES:
            raise UsageError(
                f"an array of {dtype} with one element in a byte; kernels take two: with b = x.view(np.uint8) "
                "pass b[..., ::2] & 15 | b[..., 1::2] << 4"
            ) from error
        raise UsageError(f"an array of {dtype}, a type that no kernel takes") from error
    if pointer % min(size, ALIGNMENT):
        raise UsageError(
            f"an array of {dtype} at address {pointer:#x}, which is not aligned to its elements; "
            "pass a copy"
        )
    return Operand(shape, tuple(strides), dtype, pointer % ALIGNMENT // size, source)


def cupy() -> Any:
    """Import CuPy, or raise `MissingDependencyError`."""
    try:
        import cupy
    except ImportError as error:
        raise MissingDependencyError("cupy", "cuda13", "launching on device arrays") from error
    return cupy


# ---------------------------------------------------------------------- which library


class Scalar:
    """A value that is not an array; the kernel gets it unchanged."""

    @staticmethod
    def key_part(value: Any, pointers: list[Any]) -> KeyPart:
        pointers.append(value)
        return type(value), value


class Struct(Scalar):
    """A structured scalar, which Python cannot hash."""

    @staticmethod
    def key_part(value: Any, pointers: list[Any]) -> KeyPart:
        pointers.append(value)
        return value.dtype, value.tobytes()


class Float:
    """A float. A ``call`` function may treat 0 and 1 specially; all other floats share a prepared call."""

    @staticmethod
    def key_part(value: float, pointers: list[Any]) -> KeyPart:
        pointers.append(value)
        return value if value in (0.0, 1.0) else float


#: Adapters by the type of a value; `kind_of` adds a type at its first use.
KINDS: dict[type, Library | Scalar | Float] = {
    bool: Scalar(),
    float: Float(),
    int: Scalar(),
    str: Scalar(),
    type(None): Scalar(),
    np.ndarray: Numpy(),
    np.void: Struct(),
}


def kind_of(value: Any) -> Library | Scalar | Float:
    """Return the adapter of a value; raise `UsageError` if it is neither an array nor a scalar."""
    kind = type(value)
    known = KINDS.get(kind)
    if known is not None:
        return known
    torch, loaded_cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and isinstance(value, torch.Tensor):
        KINDS[kind] = _shared("torch", Torch)
    elif loaded_cupy is not None and isinstance(value, loaded_cupy.ndarray):
        KINDS[kind] = _shared("cupy", Cupy)
    elif isinstance(value, np.ma.MaskedArray):
        raise UsageError("a masked array; pass its data or the result of filled()")
    elif isinstance(value, np.ndarray | np.generic):
        KINDS[kind] = KINDS[np.ndarray if isinstance(value, np.ndarray) else int]
    else:
        return _foreign(value, kind)
    return KINDS[kind]


def _foreign(value: Any, kind: type) -> Library:
    """Return the adapter of an array of another library.

    It depends on the array: JAX has one type for arrays on host and device.
    """
    name = kind.__module__.partition(".")[0].removesuffix("lib")  # jaxlib's arrays are jax's
    if _is_on_gpu(value):
        return _shared(f"{name} on a GPU", lambda: Foreign(name))
    if hasattr(value, "__array__"):
        return _shared(name, lambda: ForeignOnHost(name))
    if isinstance(value, list | tuple):
        raise UsageError(f"a {kind.__name__}, {value!r:.40}; pass np.asarray of it")
    raise UsageError(f"a {kind.__name__}, {value!r:.40}; pass an array or a real number")


def _shared(name: str, library: Callable[[], Library]) -> Library:
    return _libraries.get(name) or _libraries.setdefault(name, library())


_libraries: dict[str, Library] = {}


def _is_on_gpu(value: Any) -> bool:
    if hasattr(value, "__dlpack_device__"):
        return value.__dlpack_device__()[0] in (2, 13)  # DLDeviceType: cuda, cuda_managed
    return hasattr(value, "__cuda_array_interface__")
