"""Describe arrays of NumPy, CuPy, torch and others: layout, device, stream; make new ones.

`Library.seen` runs at every call and is as short as possible; it returns equal values for arrays
that a call treats alike. No library is imported that the caller does not use.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import numpy as np

from autotune.errors import MissingDependencyError, UsageError
from autotune.kernel.operand import ALIGNMENT, Operand, itemsize_of

#: What is the same of all values that a call treats alike.
Seen = Hashable
#: Of a tensor that is read with the other sign.
_NEGATED = "negated"


class Library(ABC):
    """An adapter of one array library."""

    def seen(self, array: Any, pointers: list[Any]) -> Seen:
        """Return a comparable description of an array's layout; append its address to ``pointers``."""
        raise NotImplementedError

    def operand(self, array: Any, source: object) -> Operand:
        """Describe an array's layout for `call` functions."""
        raise NotImplementedError

    def device_index(self, array: Any) -> int | None:
        """Return the number of an array's CUDA device; None for host memory."""
        raise NotImplementedError

    @abstractmethod
    def maker(self, shape: tuple[int, ...], dtype: str, index: int) -> Callable[[], Any]:
        """Return a function that makes new arrays on a device, in order with the caller's stream."""

    def empty(self, shape: tuple[int, ...], dtype: str, index: int) -> Any:
        return self.maker(shape, dtype, index)()

    @abstractmethod
    def view(self, array: Any, operand: Operand) -> Any:
        """Return the view of an array that an operand describes."""

    def through(self, array: Any) -> Any:
        """Return the array as `view` needs it, on the same memory."""
        return array

    def handed_over(self, array: Any) -> Any:
        """Return a new array in the caller's type."""
        return array


class DeviceLibrary(Library):
    """An adapter of a library whose arrays lie on a device."""

    #: Whether memory that is taken while a graph is captured belongs to that graph.
    knows_graphs = False

    @abstractmethod
    def pointer(self, array: Any) -> int:
        """Return the address of the first element."""

    @abstractmethod
    def copied(self, array: Any) -> Any:
        """Return a contiguous copy."""

    @abstractmethod
    def assign(self, target: Any, array: Any) -> None:
        """Write an array's elements into a view of another."""

    @abstractmethod
    def stream_asker(self) -> Callable[[int], int]:
        """Return a function from a device index to the caller's current stream."""


class Torch(DeviceLibrary):
    """Tensors of PyTorch; tensors in host memory count as arrays of NumPy."""

    knows_graphs = True

    def __init__(self) -> None:
        import torch

        self._torch = torch
        #: Whether there are several devices.
        self.several = torch.cuda.device_count() > 1

    def seen(self, array: Any, pointers: list[Any]) -> Seen:
        pointer = array.data_ptr()
        pointers.append(pointer)
        # Asking for the number of the device takes as long as all the rest.
        place: object = array.is_cuda
        if not place:
            place = array.device.type
        elif self.several:
            place = array.get_device()
        # Strides do not tell the imaginary part of a conjugate, whose sign memory has otherwise.
        lies = array.shape, array.stride(), array.dtype, place, pointer % ALIGNMENT
        return (*lies, _NEGATED) if array.is_neg() else lies

    def operand(self, array: Any, source: object) -> Operand:
        if array.layout is not self._torch.strided or array.is_conj() or array.is_neg():
            raise UsageError("a tensor that is sparse, conjugated or negated: make it a plain one")
        return _operand(
            tuple(array.shape),
            array.stride(),
            str(array.dtype).removeprefix("torch."),
            array.data_ptr() if self.device_index(array) is not None else 0,
            source,
        )

    def device_index(self, array: Any) -> int | None:
        if array.device.type not in ("cpu", "cuda"):
            raise UsageError(f"a tensor on {array.device}: kernels run on cuda and cpu tensors")
        return array.get_device() if array.is_cuda else None

    def maker(self, shape: tuple[int, ...], dtype: str, index: int) -> Callable[[], Any]:
        torch = self._torch
        # Of another tensor: that takes half of the time of finding type and device by name.
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

    def through(self, array: Any) -> Any:
        return array if array.is_cuda else array.detach().numpy()

    def handed_over(self, array: Any) -> Any:
        return self._torch.from_numpy(array) if isinstance(array, np.ndarray) else array

    def stream_asker(self) -> Callable[[int], int]:
        # Without the object around it, which takes a microsecond; torch's own compiled code asks so.
        return getattr(self._torch._C, "_cuda_getCurrentRawStream", self._stream_of_object)

    def _stream_of_object(self, index: int) -> int:
        return int(self._torch.cuda.current_stream(index).cuda_stream)


class Cupy(DeviceLibrary):
    """Arrays of CuPy."""

    def __init__(self) -> None:
        self._cupy = cupy()

    def seen(self, array: Any, pointers: list[Any]) -> Seen:
        memory = array.data
        pointer = memory.ptr
        pointers.append(pointer)
        return array.shape, array.strides, array.dtype.char, memory.device_id, pointer % ALIGNMENT

    def operand(self, array: Any, source: object) -> Operand:
        return _operand_of_strided(array, array.data.ptr, source)

    def device_index(self, array: Any) -> int | None:
        return int(array.data.device_id)

    def maker(self, shape: tuple[int, ...], dtype: str, index: int) -> Callable[[], Any]:
        return partial(self._cupy.empty, shape, dtype)

    def pointer(self, array: Any) -> int:
        return int(array.data.ptr)

    def view(self, array: Any, operand: Operand) -> Any:
        size = itemsize_of(operand.dtype)
        return self._cupy.ndarray(
            operand.shape,
            operand.dtype,
            array.data + operand.begin * size,
            tuple(stride * size for stride in operand.strides),
        )

    def copied(self, array: Any) -> Any:
        return array.copy(order="C")

    def assign(self, target: Any, array: Any) -> None:
        target[...] = array

    def stream_asker(self) -> Callable[[int], int]:
        current = self._cupy.cuda.get_current_stream
        return lambda index: current(index).ptr


class Numpy(Library):
    """Arrays in host memory, copied to a device and back."""

    def seen(self, array: Any, pointers: list[Any]) -> Seen:
        pointers.append(0)
        return array.shape, array.strides, array.dtype

    def operand(self, array: Any, source: object) -> Operand:
        return _operand_of_strided(array, 0, source)

    def device_index(self, array: Any) -> int | None:
        return None

    def maker(self, shape: tuple[int, ...], dtype: str, index: int) -> Callable[[], Any]:
        return partial(np.empty, shape, dtype)

    def view(self, array: Any, operand: Operand) -> Any:
        size = itemsize_of(operand.dtype)
        strides = tuple(stride * size for stride in operand.strides)
        if operand.begin:
            array = np.lib.stride_tricks.as_strided(array, (2,), (operand.begin * size,))[1:]
        return np.lib.stride_tricks.as_strided(array, operand.shape, strides)


class _ReadThrough(Library):
    """An adapter of arrays that another library reads, by an array of its own on the same memory."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def seen(self, array: Any, pointers: list[Any]) -> Seen:
        return super().seen(self.through(array), pointers)

    def operand(self, array: Any, source: object) -> Operand:
        return super().operand(self.through(array), source)

    def device_index(self, array: Any) -> int | None:
        return super().device_index(self.through(array))

    def handed_over(self, array: Any) -> Any:
        return _of_library(self._name, array)


class Foreign(_ReadThrough, Cupy):
    """Device arrays of another library, by ``__cuda_array_interface__`` or DLPack.

    CuPy reads them and makes new ones, which go back by DLPack.
    """

    def through(self, array: Any) -> Any:
        try:
            if hasattr(array, "__cuda_array_interface__"):
                return self._cupy.asarray(array)
            return self._cupy.from_dlpack(array)
        except (TypeError, ValueError, RuntimeError, BufferError) as error:
            raise UsageError(f"an array of {self._name} cannot be used: {error}") from error


class ForeignOnHost(_ReadThrough, Numpy):
    """Arrays of another library in host memory, read through NumPy."""

    def through(self, array: Any) -> Any:
        return np.asarray(array)


def _of_library(name: str, array: Any) -> Any:
    """Return an array of another library on the same memory, or the array itself if that fails."""
    library = sys.modules.get(name)
    for home in (library, getattr(library, "dlpack", None), getattr(library, "numpy", None)):
        if convert := getattr(home, "from_dlpack", None):
            return convert(array)
    return array


def _operand_of_strided(array: Any, pointer: int, source: object) -> Operand:
    size = array.dtype.itemsize
    if any(stride % size for stride in array.strides):
        raise UsageError(
            f"an array of {array.dtype} with strides of {array.strides} bytes: whole elements are "
            "needed"
        )
    strides = tuple(stride // size for stride in array.strides)
    return _operand(array.shape, strides, str(array.dtype), pointer, source)


def _operand(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: str, pointer: int, source: object
) -> Operand:
    try:
        size = itemsize_of(dtype)
    except ValueError as error:
        raise UsageError(f"an array of {dtype}, which no kernel takes") from error
    if pointer % min(size, ALIGNMENT):
        raise UsageError(
            f"an array of {dtype} at address {pointer:#x}, which is not aligned to its elements: "
            "copy it"
        )
    return Operand(shape, tuple(strides), dtype, pointer % ALIGNMENT // size, source)


def cupy() -> Any:
    """Import CuPy, or raise the error with its pip line."""
    try:
        import cupy
    except ImportError as error:
        raise MissingDependencyError("cupy", "cuda13", "launching on device arrays") from error
    return cupy


# ---------------------------------------------------------------------- which library


class Scalar:
    """A value that is no array: passed as it is."""

    @staticmethod
    def seen(value: Any, pointers: list[Any]) -> Seen:
        pointers.append(value)
        return type(value), value


class Factor:
    """A float: 0 and 1 may mean something to a ``call`` function, all other values are alike."""

    @staticmethod
    def seen(value: float, pointers: list[Any]) -> Seen:
        pointers.append(value)
        return value if value in (0.0, 1.0) else float


#: How values are seen, by their types; a type is judged at its first use.
KINDS: dict[type, Library | Scalar | Factor] = {
    bool: Scalar(),
    float: Factor(),
    int: Scalar(),
    str: Scalar(),
    type(None): Scalar(),
    np.ndarray: Numpy(),
}


def kind_of(value: Any) -> Library | Scalar | Factor:
    """Return the adapter of a value; refuse what is neither an array nor a scalar."""
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
        raise UsageError("a masked array: pass its data, or what filled() gives")
    elif isinstance(value, np.ndarray | np.generic):
        KINDS[kind] = KINDS[np.ndarray if isinstance(value, np.ndarray) else int]
    else:
        return _foreign(value, kind)
    return KINDS[kind]


def _foreign(value: Any, kind: type) -> Library:
    """Return the adapter of an unknown array type; JAX's arrays share a type on host and device."""
    name = kind.__module__.partition(".")[0].removesuffix("lib")  # jaxlib's arrays are jax's
    if _is_on_gpu(value):
        return _shared(f"{name} on a GPU", lambda: Foreign(name))
    if hasattr(value, "__array__"):
        return _shared(name, lambda: ForeignOnHost(name))
    if isinstance(value, list | tuple):
        raise UsageError(f"a {kind.__name__}, {value!r:.40}: pass np.asarray of it")
    raise UsageError(f"a {kind.__name__}, {value!r:.40}: neither an array nor a real number")


def _shared(name: str, library: Callable[[], Library]) -> Library:
    return _libraries.get(name) or _libraries.setdefault(name, library())


_libraries: dict[str, Library] = {}


def _is_on_gpu(value: Any) -> bool:
    if hasattr(value, "__dlpack_device__"):
        return value.__dlpack_device__()[0] in (2, 13)  # DLDeviceType: cuda, cuda_managed
    return hasattr(value, "__cuda_array_interface__")
