"""Random numbers for a kernel's inputs: reproducible, on all cores, and small integers where asked.

Knows neither kernels nor files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from autotune.arrays import PIECE, in_pieces

#: Bumped when a key gives other numbers than before; part of every data set's name.
VERSION = 2


class Draw:
    """Random numbers for a kernel's inputs, from a counter-based generator (Philox).

    Looks like `numpy.random.Generator`. In the exact data set (``draw.exact`` is true) floating
    point numbers are ±1 and ±2. Every piece of every array has a counter range of its own (Salmon
    et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011), so pieces are drawn in parallel and
    the numbers are the same on any number of cores. The generator's key has 128 bits.
    """

    def __init__(self, exact: bool, key: int) -> None:
        self.exact = exact
        self._key = key % 2**128
        self._arrays = 0

    def standard_normal(
        self, size: int | tuple[int, ...], dtype: DTypeLike = np.float32
    ) -> NDArray[Any]:
        """Normal deviates of mean 0 and standard deviation 1."""
        if self.exact:
            return self._small_integers(size, dtype)
        wide = np.float64 if np.dtype(dtype).itemsize > 4 else np.float32

        def fill(generator: np.random.Generator, piece: NDArray[Any]) -> None:
            if piece.dtype == wide:
                generator.standard_normal(dtype=wide, out=piece)
            else:
                piece[...] = generator.standard_normal(piece.size, wide)

        return self._filled(size, dtype, fill)

    def uniform(
        self,
        low: float = 0.0,
        high: float = 1.0,
        size: int | tuple[int, ...] = (),
        dtype: DTypeLike = np.float32,
    ) -> NDArray[Any]:
        """Uniform deviates in ``[low, high)``."""
        if self.exact:
            return self._small_integers(size, dtype)

        def fill(generator: np.random.Generator, piece: NDArray[Any]) -> None:
            piece[...] = generator.random(piece.size, np.float32) * (high - low) + low

        return self._filled(size, dtype, fill)

    def integers(
        self,
        low: int,
        high: int,
        size: int | tuple[int, ...] = (),
        dtype: DTypeLike = np.int32,
    ) -> NDArray[Any]:
        """Integers in ``[low, high)``."""

        def fill(generator: np.random.Generator, piece: NDArray[Any]) -> None:
            piece[...] = generator.integers(low, high, piece.size)

        return self._filled(size, dtype, fill)

    def _small_integers(self, size: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """±1 and ±2, two random bits each: a random byte picks a row of four."""
        values = np.array([-2, -1, 1, 2], dtype)
        fours = values[np.arange(256)[:, None] >> np.arange(0, 8, 2) & 3]

        def fill(generator: np.random.Generator, piece: NDArray[Any]) -> None:
            rows = np.frombuffer(generator.bytes(-(-piece.size // 4)), np.uint8)
            whole = piece.size // 4
            np.take(fours, rows[:whole], axis=0, out=piece[: 4 * whole].reshape(-1, 4), mode="clip")
            piece[4 * whole :] = fours[rows[-1], : piece.size - 4 * whole]

        return self._filled(size, dtype, fill)

    def _filled(
        self,
        size: int | tuple[int, ...],
        dtype: DTypeLike,
        fill: Callable[[np.random.Generator, NDArray[Any]], None],
    ) -> NDArray[Any]:
        """A new array, each piece filled by a generator of its own."""
        result: NDArray[Any] = np.empty(size, dtype)
        flat, array = result.reshape(-1), self._arrays
        self._arrays += 1

        def draw(number: int, begin: int, end: int) -> None:
            counter = [0, 0, number, array]
            generator = np.random.Generator(np.random.Philox(key=self._key, counter=counter))
            fill(generator, flat[begin:end])

        in_pieces(draw, flat.size, PIECE)
        return result
