"""The range of values that the data of a kernel hold."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.arrays import in_pieces
from autotune.data import tolerance
from autotune.data.arguments import Argument
from autotune.data.dataset import Dataset


def drawn_ranges(dataset: Dataset) -> dict[str, tuple[float, float]]:
    """Return the smallest and the largest finite number of each input array, to six digits."""
    found = {}
    for argument in _arrays(dataset, "fiuc"):
        row = tolerance.parts(dataset.values(argument.name))

        def ends(_: int, begin: int, end: int, row: NDArray[Any] = row) -> tuple[float, float]:
            finite = row[begin:end][np.isfinite(row[begin:end])].astype(np.float64)
            return float(finite.min(initial=math.inf)), float(finite.max(initial=-math.inf))

        least, most = zip(*in_pieces(ends, row.size), strict=True)
        if min(least) <= max(most):
            found[argument.name] = (float(f"{min(least):.6g}"), float(f"{max(most):.6g}"))
    return found


def _arrays(dataset: Dataset, kinds: str) -> list[Argument]:
    """Return the arguments that are input arrays of these kinds."""
    return [
        argument
        for argument in dataset.arguments
        if argument.kind not in ("out", "scalar")
        and argument.count
        and argument.value_type.kind in kinds
    ]
