"""Values of element types that NumPy lacks, from and to their bits. ml_dtypes has these types.

Arrays are stored and copied as bits, because files of NumPy cannot hold them. A stored byte has two elements
of 4 bits, the first in its low half.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from autotune.arrays import converted
from autotune.element_types import ENCODED_TYPES, ElementType


@dataclass(frozen=True)
class Limits:
    """The limits of a type as `numpy.finfo` names them; integers have only bits and largest values."""

    name: str
    bits: int
    max: float
    min: float
    #: Distance from 1 to the next number.
    eps: float = 0.0
    smallest_normal: float = 0.0
    smallest_subnormal: float = 0.0


def encoded_type(dtype: Any) -> ElementType | None:
    """Return the type that a name, a scalar type or a ``numpy.dtype`` means; None if NumPy has it."""
    if isinstance(dtype, str):
        return ENCODED_TYPES.get(dtype)
    with suppress(TypeError):
        return ENCODED_TYPES.get(np.dtype(dtype).name)
    return None


def dtype_of(dtype: Any) -> np.dtype[Any]:
    """Return the type of elements by a name of NumPy or ml_dtypes, or the type itself."""
    element = encoded_type(dtype)
    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, element.name) if element else dtype)
    return found


def type_name(dtype: Any) -> str:
    """Return the name of a type of elements."""
    return str(dtype_of(dtype).name)


@cache
def limits(name: str) -> Limits:
    """Return the limits of a type that NumPy lacks."""
    dtype = dtype_of(name)
    if ENCODED_TYPES[name].values != "float32":
        whole: Any = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
        return Limits(name, whole.bits, whole.max, whole.min)
    found: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    fields = ("max", "min", "eps", "smallest_normal", "smallest_subnormal")
    return Limits(name, found.bits, *(float(getattr(found, field)) for field in fields))


def encoded(values: NDArray[Any], name: str) -> NDArray[Any]:
    """Return values as stored bits of a type that NumPy lacks.

    Parameters
    ----------
    values : numpy.ndarray
        Values in the type itself, or numbers: the nearest value is stored, of two the even one. Numbers
        pass float32 on the way. Of 4-bit types the last axis has an even length.
    name : str
        Name of the type.

    Returns
    -------
    numpy.ndarray
        Bits in `ElementType.stored`; of 4-bit types half as many along the last axis.
    """
    element, dtype = ENCODED_TYPES[name], dtype_of(name)
    if values.dtype != dtype:
        values = converted(values, element.values)
        with np.errstate(all="ignore"):
            values = values.astype(dtype)
    bits = np.ascontiguousarray(values).view(element.stored)
    if element.per_stored == 1:
        return bits
    packed: NDArray[Any] = (bits[..., ::2] & 0xF) | (bits[..., 1::2] << 4)
    return packed


def decoded(bits: NDArray[Any], name: str) -> NDArray[Any]:
    """Return the values of stored bits: float32, or int8 and uint8 for 4-bit integers."""
    element = ENCODED_TYPES[name]
    if element.bits > 8:
        return bits.view(dtype_of(name)).astype(element.values)
    values: NDArray[Any] = _values_of_bytes(name)[bits]
    if element.per_stored == 1:
        return values
    shape = (*bits.shape[:-1], bits.shape[-1] * element.per_stored) if bits.ndim else (-1,)
    return values.reshape(shape)


def rounded(values: NDArray[Any], name: str) -> NDArray[Any]:
    """Return the nearest values of a type that NumPy lacks, unpacked; see `encoded`."""
    with np.errstate(all="ignore"):
        near = converted(values, ENCODED_TYPES[name].values).astype(dtype_of(name))
        return near.astype(ENCODED_TYPES[name].values)


def is_held(values: NDArray[Any], name: str) -> bool:
    """Return whether a type that NumPy lacks holds all values exactly; NaN stays NaN."""
    return np.array_equal(rounded(values, name), values, equal_nan=True)


def element_of(dtype: str, value: float) -> np.generic:
    """Return a number as a stored element of a type; a byte has two equal elements of 4 bits."""
    element = encoded_type(dtype)
    if element is None:
        scalar: np.generic = np.dtype(dtype).type(value)
        return scalar
    repeated = np.full(element.per_stored, value, element.values)
    bits: np.generic = encoded(repeated, element.name)[0]
    return bits


def strided(array: NDArray[Any], shape: tuple[int, ...], strides: tuple[int, ...]) -> NDArray[Any]:
    """Return a view with other strides in bytes; see `numpy.lib.stride_tricks.as_strided`.

    That function refuses float8_e5m2, which names itself ``<f1``.
    """
    element = encoded_type(array.dtype)
    bits = array.view(element.stored) if element else array
    return as_strided(bits, shape, strides).view(array.dtype)


@cache
def finite_values(name: str) -> NDArray[np.float64]:
    """Return the finite values of a type of at most 8 bits in ascending order."""
    every = _values_of_bytes(name).astype(np.float64)
    return np.unique(every[np.isfinite(every)])


def nearest_value(numbers: NDArray[np.float64], name: str) -> NDArray[np.float64]:
    """Return the nearest finite value of a type of at most 8 bits for each finite number.

    Numbers beyond the largest value become the largest: conversions of CUDA saturate (PTX, ``cvt.satfinite``).
    """
    values = finite_values(name)
    middles = (values[1:] + values[:-1]) / 2
    return values[np.searchsorted(middles, numbers)]


def has_value(number: float, name: str) -> bool:
    """Return whether rounding to a type keeps a number finite, infinite or NaN, as it is."""
    if not np.isfinite(number):
        return is_held(np.array([number]), name)
    return bool(np.isfinite(rounded(np.array([np.clip(number, *_ends(name))]), name)[0]))


def _ends(name: str) -> tuple[float, float]:
    return limits(name).min if limits(name).min < 0 else -limits(name).max, limits(name).max


@cache
def _values_of_bytes(name: str) -> NDArray[Any]:
    """Return the value of every byte; of 4-bit types one row of two values, the low half first."""
    element, every = ENCODED_TYPES[name], np.arange(256, dtype=np.uint8)
    codes = every if element.per_stored == 1 else np.stack([every & 0xF, every >> 4], axis=1)
    return codes.view(dtype_of(name)).astype(element.values)
