"""Compares outputs with expected values in the host's memory."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.arrays import in_pieces
from autotune.devices.base import Comparison, Difference
from autotune.element_types import ENCODED_TYPES
from autotune.encoding import decoded


def found_type(comparison: Comparison) -> np.dtype[Any]:
    """Return the type of an output's stored elements; bytes for bools, because only the byte 1 is true."""
    return np.dtype(np.uint8) if comparison.dtype.kind == "b" else comparison.dtype


def expected_type(comparison: Comparison) -> np.dtype[Any]:
    """Return the type of the elements of the expected values."""
    if comparison.is_real:
        is_single = comparison.expected.nbytes == 4 * comparison.count
        return np.dtype(np.float32 if is_single else np.float64)
    if comparison.bits_of:
        return np.dtype(ENCODED_TYPES[comparison.bits_of].values)
    return found_type(comparison)


def found_values(comparison: Comparison, stored: NDArray[Any]) -> NDArray[Any]:
    """Return the values of an output from its stored elements."""
    return decoded(stored, comparison.bits_of) if comparison.bits_of else stored


def host_difference(
    got: NDArray[Any], want: NDArray[Any], bounds: float | NDArray[Any]
) -> Difference:
    """Return the difference of an output from its expected values; bounds are for all elements or for each."""
    parts = in_pieces(partial(_difference, got, want, bounds), got.size)
    return Difference(
        max_error=max((worst for worst, _, _ in parts), default=0.0),
        rms_error=math.sqrt(sum(squares for _, squares, _ in parts) / max(got.size, 1)),
        first_wrong=next((first for _, _, first in parts if first is not None), None),
    )


def _difference(
    got: NDArray[Any],
    want: NDArray[Any],
    bounds: float | NDArray[Any],
    _: int,
    begin: int,
    end: int,
) -> tuple[float, float, int | None]:
    """Return the largest error of a piece, the sum of its squares, and the first wrong index."""
    values, wanted = got[begin:end], want[begin:end]
    if values.dtype == wanted.dtype and np.array_equal(values, wanted):
        return 0.0, 0.0, None
    error = _errors(values, wanted)
    worst = float(error.max())
    wrong = error > (bounds[begin:end] if isinstance(bounds, np.ndarray) else bounds)
    first = begin + int(np.argmax(wrong)) if wrong.any() else None
    with np.errstate(over="ignore"):
        return worst, float(np.square(error, out=error).sum()), first


def _errors(values: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.float64]:
    """Return the error of each value, infinite if only one side is NaN."""
    if values.dtype.kind != "f":  # the larger minus the smaller is exact in 64 bits
        ours, theirs = values.astype(np.uint64), wanted.astype(np.uint64)
        return np.where(values > wanted, ours - theirs, theirs - ours).astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        error: NDArray[np.float64] = values.astype(np.float64)
        error -= wanted
        np.abs(error, out=error)
        if not math.isfinite(float(error.max())):
            error[(values == wanted) | (np.isnan(values) & np.isnan(wanted))] = 0.0
            error[np.isnan(error)] = np.inf
    return error
