"""Random numbers for a kernel's inputs: reproducible, on all cores, and small integers for exact data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from autotune.arrays import PIECE, in_pieces

#: Bumped when a key gives other numbers than before; part of every data set's name.
VERSION = 3

#: As NumPy takes it; None is one number.
Size: TypeAlias = int | tuple[int, ...] | None

#: How the exact data set describes numbers that are the same in both data sets.
_AS_THEY_ARE = "numbers as they are"


class Draw(np.random.Generator):
    """A random generator for a kernel's inputs, counter-based (Philox).

    `standard_normal`, `normal`, `uniform`, `random` and `integers` draw on all cores. They give float32
    and int32 where no ``dtype`` is given. Every piece of every array has a counter range of its own
    (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011), so the numbers are the same
    on any number of cores. All other methods are those of `numpy.random.Generator`, with its types.

    In the exact data set (``draw.exact`` is true) the first four methods give a few numbers other
    than 0 with as few bits as their parameters allow: ±1 and ±2 for normal deviates, ¼, ½ and ¾
    between 0 and 1.
    """

    def __init__(self, exact: bool, key: int) -> None:
        self.exact = exact
        self._key = key % 2**128
        self._arrays = 0
        #: In the exact data set: each call, and the values that it drew.
        self.drawn: dict[str, str] = {}
        # NumPy's own methods draw from a counter range that no piece of an array has.
        last = np.array([0, 0, 0, 2**64 - 1], np.uint64)
        super().__init__(np.random.Philox(key=self._key, counter=last))

    def standard_normal(self, size: Size = None, dtype: DTypeLike = np.float32) -> Any:  # type: ignore[override]
        """Draw normal deviates of mean 0 and standard deviation 1."""
        if self.exact:
            return self._few("standard_normal", _around(0.0, 1.0), size, dtype)
        wide = _wide(dtype)

        def fill(generator: np.random.Generator, piece: NDArray[Any]) -> None:
            if piece.dtype == wide:
                generator.standard_normal(dtype=wide, out=piece)
            else:
                piece[...] = generator.standard_normal(piece.size, wide)

        return self._filled(size, dtype, fill)

    def normal(  # type: ignore[override]
        self,
        loc: Any = 0.0,
        scale: Any = 1.0,
        size: Size = None,
        dtype: DTypeLike = np.float32,
    ) -> Any:
        """Draw normal deviates of a mean and a standard deviation."""
        if np.ndim(loc) or np.ndim(scale):
            self.drawn["normal of arrays"] = _AS_THEY_ARE
            return super().normal(loc, scale, size).astype(dtype)
        mean, deviation = _number(loc), _number(scale)
        if not (math.isfinite(mean) and 0 <= deviation < math.inf):
            raise ValueError(
                f"normal: no deviates of mean {mean} and standard deviation {deviation}"
            )
        if self.exact:
            asked = f"normal({mean:g}, {deviation:g})"
            return self._few(asked, _around(mean, deviation), size, dtype)
        wide = _wide(dtype)

        def fill(generator: np.random.Generator, piece: NDArray[Any]) -> None:
            piece[...] = generator.standard_normal(piece.size, wide) * deviation + mean

        return self._filled(size, dtype, fill)

    def uniform(  # type: ignore[override]
        self,
        low: Any = 0.0,
        high: Any = 1.0,
        size: Size = None,
        dtype: DTypeLike = np.float32,
    ) -> Any:
        """Draw uniform deviates in ``[low, high)``."""
        if np.ndim(low) or np.ndim(high):
            self.drawn["uniform of arrays"] = _AS_THEY_ARE
            return super().uniform(low, high, size).astype(dtype)
        least, bound = _number(low), _number(high)
        if not (least <= bound and math.isfinite(bound - least)):
            raise ValueError(f"uniform: no numbers from {least} to below {bound}")
        if self.exact:
            asked = f"uniform({least:g}, {bound:g})"
            return self._few(asked, _between(least, bound, np.dtype(dtype)), size, dtype)
        wide, (first, last) = _wide(dtype), _inside(least, bound, np.dtype(dtype))

        def fill(generator: np.random.Generator, piece: NDArray[Any]) -> None:
            piece[...] = generator.random(piece.size, wide) * (bound - least) + least
            np.clip(piece, first, last, out=piece)  # rounding may reach the bound

        return self._filled(size, dtype, fill)

    def random(self, size: Size = None, dtype: DTypeLike = np.float32) -> Any:  # type: ignore[override]
        """Draw uniform deviates in ``[0, 1)``."""
        return self.uniform(0.0, 1.0, size, dtype)

    def integers(  # type: ignore[override]
        self,
        low: Any,
        high: Any = None,
        size: Size = None,
        dtype: DTypeLike = np.int32,
        endpoint: bool = False,
    ) -> Any:
        """Draw integers in ``[low, high)``, or in ``[0, low)``; with ``endpoint`` the bound is included."""
        if np.ndim(low) or np.ndim(high):
            return super().integers(low, high, size, np.int64, endpoint).astype(dtype)
        first, end = (0, low) if high is None else (low, high)
        least, bound = int(_number(first)), int(_number(end)) + endpoint
        of = np.dtype(dtype)
        wide = np.uint64 if of == np.uint64 else np.int64
        if of.kind in "iu" and not np.iinfo(of).min <= least <= bound - 1 <= np.iinfo(of).max:
            raise ValueError(f"integers: no {of} from {least} to below {bound}; give another dtype")

        def fill(generator: np.random.Generator, piece: NDArray[Any]) -> None:
            piece[...] = generator.integers(least, bound, piece.size, wide)

        return self._filled(size, dtype, fill)

    def _few(self, asked: str, values: Sequence[float], size: Size, dtype: DTypeLike) -> Any:
        """Draw from up to four values, two random bits each: a random byte picks a row of four."""
        self.drawn[asked] = ", ".join(f"{value:.7g}" for value in values)
        four = np.resize(np.array(values, dtype), 4)
        fours = four[np.arange(256)[:, None] >> np.arange(0, 8, 2) & 3]

        def fill(generator: np.random.Generator, piece: NDArray[Any]) -> None:
            rows = np.frombuffer(generator.bytes(-(-piece.size // 4)), np.uint8)
            whole = piece.size // 4
            np.take(fours, rows[:whole], axis=0, out=piece[: 4 * whole].reshape(-1, 4), mode="clip")
            piece[4 * whole :] = fours[rows[-1], : piece.size - 4 * whole]

        return self._filled(size, dtype, fill)

    def _filled(
        self,
        size: Size,
        dtype: DTypeLike,
        fill: Callable[[np.random.Generator, NDArray[Any]], None],
    ) -> Any:
        """Fill each piece of a new array by a generator of its own; return a number if there is no size."""
        result: NDArray[Any] = np.empty(() if size is None else size, dtype)
        flat, array = result.reshape(-1), self._arrays
        self._arrays += 1

        def draw(number: int, begin: int, end: int) -> None:
            counter = [0, 0, number, array]
            generator = np.random.Generator(np.random.Philox(key=self._key, counter=counter))
            fill(generator, flat[begin:end])

        in_pieces(draw, flat.size, PIECE)
        return result[()] if size is None else result


def _number(value: Any) -> Any:
    return np.asarray(value).item()


def _wide(dtype: DTypeLike) -> type[np.float32 | np.float64]:
    """Return the type in which numbers of a type are drawn."""
    return np.float64 if np.dtype(dtype).itemsize > 4 else np.float32


def _around(mean: float, deviation: float) -> list[float]:
    """Return up to four numbers other than 0, few steps of a power of two from the mean."""
    if not deviation:
        return [mean]
    step = 2.0 ** round(math.log2(deviation))
    middle = round(mean / step)
    return [(middle + offset) * step for offset in (-2, -1, 1, 2) if middle + offset]


def _between(low: float, high: float, dtype: np.dtype[Any]) -> list[float]:
    """Return up to four multiples of a power of two in ``[low, high)``, none of them 0.

    It is the largest power with three multiples there, so that sums and products need few bits.
    """
    first, last = map(float, _inside(low, high, dtype))
    step = 2.0 ** math.ceil(math.log2(last - first)) if last > first else 0.0
    held: set[float] = set()
    for _ in range(4 if step else 0):
        begin, end = math.ceil(first / step), math.floor(last / step) + 1
        held = {float(dtype.type(i * step)) for i in range(begin, end) if i}
        if len(held) > 2:
            return sorted(held)[:: -(-len(held) // 4)]
        step /= 2
    return sorted(held) or [first]


def _inside(low: float, high: float, dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Return the first and the last number of a type in ``[low, high)``; twice the first if there is none."""
    with np.errstate(over="ignore"):
        first, last = dtype.type(low), dtype.type(high)
    if dtype.kind != "f":
        return first, max(first, dtype.type(last - (last >= high)))
    if float(first) < low:
        first = np.nextafter(first, dtype.type(math.inf))
    if float(last) >= high:
        last = np.nextafter(last, dtype.type(-math.inf))
    return first, max(first, last)
