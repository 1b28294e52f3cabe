"""Views of an array that the driver makes for a kernel: `TensorMap`, `Texture`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True)
class TensorMap:
    """A tensor map of an array among the ``args`` of a `Launch`, for copies by TMA from sm_90 on.

    The kernel takes it as ``const __grid_constant__ CUtensorMap map``. Axes are in NumPy's order, the last
    is contiguous. Source of options and limits: CUDA Driver API, ``cuTensorMapEncodeTiled``.

    Parameters
    ----------
    array : str
        The argument or scratch buffer.
    box : tuple of int
        Elements of a copy along each axis, 1 to 256.
    shape : tuple of int, optional
        Elements of the array along each axis; may depend on the problem. Default: its declared shape.
    strides : tuple of int, optional
        Elements between neighbours along each axis but the last. Default: those of a contiguous array.
    steps : tuple of int, optional
        Distance of the copied elements along each axis, 1 to 8. Default: 1.
    swizzle : int
        Bytes of the pattern by which 16-byte pieces of a row are exchanged in shared memory: 0, 32, 64, 128.
    interleave : int
        Bytes of an interleaved layout: 0, 16, 32.
    promotion : int
        Bytes that the L2 cache fetches at least: 0, 64, 128, 256.
    nan : bool
        Whether elements outside of the array are NaN; else zero.
    """

    array: str
    box: tuple[int, ...]
    shape: tuple[Any, ...] | None = None
    strides: tuple[Any, ...] | None = None
    steps: tuple[int, ...] | None = None
    swizzle: int = 0
    interleave: int = 0
    promotion: int = 0
    nan: bool = False

    def __str__(self) -> str:
        return f"TensorMap({self.array!r})"


@dataclass(frozen=True)
class Texture:
    """A texture object of an array among the ``args`` of a `Launch`; the kernel takes a ``cudaTextureObject_t``.

    An array of one axis is read by ``tex1Dfetch``, and one of two axes by ``tex2D``. Source of options and
    limits: CUDA Driver API, ``cuTexObjectCreate``; CUDA C++ Programming Guide, "Texture Memory".

    Parameters
    ----------
    array : str
        The argument or scratch buffer, of 8, 16 or 32 bits.
    shape : tuple of int, optional
        Texels along each axis; may depend on the problem. Default: the declared shape of the array, with
        ``channels`` elements of its last axis in a texel.
    pitch : int, optional
        Elements between two rows; may depend on the problem. Its bytes are a multiple of 32. Default: the
        elements of a row.
    channels : int
        Elements of a texel: 1, 2, 4.
    address : str
        Value outside of a 2-D texture: ``clamp``, ``border`` (zero), and with ``normalized`` also ``wrap``,
        ``mirror``.
    filter : str
        ``point``; for a 2-D texture of floating-point values also ``linear``.
    normalized : bool
        Whether coordinates of a 2-D texture are fractions of its size.
    unit : bool
        Whether integers of 8 and 16 bits are read as fractions of their largest value.
    """

    array: str
    shape: tuple[Any, ...] | None = None
    pitch: Any = None
    channels: int = 1
    address: str = "clamp"
    filter: str = "point"
    normalized: bool = False
    unit: bool = False

    def __str__(self) -> str:
        return f"Texture({self.array!r})"


View: TypeAlias = TensorMap | Texture
