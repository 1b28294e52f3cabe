"""The random generator for the inputs of a kernel, and a generator that only declares arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from autotune.arrays import in_pieces
from autotune.encoding import dtype_of, encoded_type, finite_values, is_held, limits, strided

#: Size as NumPy defines it; None means one number.
Size: TypeAlias = int | tuple[int, ...] | None
#: A function that draws the given count of numbers from a generator.
_Source: TypeAlias = Callable[[np.random.Generator, int], NDArray[Any]]


class Draw(np.random.Generator):
    """A random generator for a kernel's inputs, counter-based (Philox).

    `standard_normal`, `normal`, `uniform` and `random` draw on all cores. Their default type is float32,
    that of `integers` is int32. Numbers of ml_dtypes' types are rounded, and positive if the type has no sign.
    Every piece of every array has a counter range of its own (Salmon et al.,
    Parallel random numbers: as easy as 1, 2, 3, SC 2011), so the numbers are the same on any number of
    cores. All other methods are those of `numpy.random.Generator`, with its types.

    In the exact data set (``draw.exact`` is true) `standard_normal`, `uniform` and `random` draw from a few
    nonzero numbers with few bits: ±1 and ±2 for normal deviates; ¼, ½ and ¾ between 0 and 1.
    """

    def __init__(self, exact: bool, key: int) -> None:
        self.exact = exact
        self._key = key % 2**128
        self._arrays = 0
        # NumPy's own methods draw from a counter range that no piece of an array uses.
        last = np.array([0, 0, 0, 2**64 - 1], np.uint64)
        super().__init__(np.random.Philox(key=self._key, counter=last))

    def standard_normal(self, size: Size = None, dtype: DTypeLike = np.float32) -> Any:  # type: ignore[override]
        """Draw normal deviates of mean 0 and standard deviation 1."""
        if dtype_of(dtype).kind == "c":
            return self._complex(size, dtype, self.standard_normal)
        if self.exact:
            return self._filled(size, dtype, _few((-2, -1, 1, 2), dtype))
        wide = _drawn_as(dtype)
        return self._filled(size, dtype, lambda source, n: source.standard_normal(n, wide))

    def normal(  # type: ignore[override]
        self, loc: Any = 0.0, scale: Any = 1.0, size: Size = None, dtype: DTypeLike = np.float32
    ) -> Any:
        """Draw normal deviates with a mean and a standard deviation, in the exact data set too."""
        if np.ndim(loc) or np.ndim(scale):
            return super().normal(loc, scale, size).astype(dtype_of(dtype))
        if dtype_of(dtype).kind == "c":
            return self._complex(size, dtype, partial(self.normal, loc, scale))
        return self._filled(size, dtype, lambda source, n: source.normal(loc, scale, n))

    def uniform(  # type: ignore[override]
        self, low: Any = 0.0, high: Any = 1.0, size: Size = None, dtype: DTypeLike = np.float32
    ) -> Any:
        """Draw uniform deviates in ``[low, high)``."""
        if np.ndim(low) or np.ndim(high):
            return super().uniform(low, high, size).astype(dtype_of(dtype))
        if dtype_of(dtype).kind == "c":
            return self._complex(size, dtype, partial(self.uniform, low, high))
        least, bound = float(low), float(high)
        if not 0 <= bound - least < math.inf:
            raise ValueError(f"uniform: no numbers are in [{least}, {bound})")
        wide, kind, few = _drawn_as(dtype), dtype_of(dtype), _few(_between(least, bound), dtype)
        last = _last_below(bound, least, dtype)

        def any_number(source: np.random.Generator, n: int) -> NDArray[Any]:
            return (source.random(n, wide) * (bound - least) + least).astype(kind)

        draw = few if self.exact else any_number
        return self._filled(size, dtype, lambda source, n: np.minimum(draw(source, n), last))

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
        if encoded_type(dtype):
            return super().integers(low, high, size, np.int32, endpoint).astype(dtype_of(dtype))
        return super().integers(low, high, size, dtype, endpoint)

    def _complex(self, size: Size, dtype: DTypeLike, draw: Callable[..., Any]) -> Any:
        """Draw real and imaginary parts alike."""
        shape = () if size is None else tuple(np.atleast_1d(size))
        pairs: NDArray[Any] = draw(size=(*shape, 2), dtype=np.finfo(dtype_of(dtype)).dtype)
        return pairs.view(dtype)[..., 0] if size is not None else pairs.view(dtype)[0]

    def _filled(self, size: Size, dtype: DTypeLike, draw: _Source) -> Any:
        """Draw each piece of a new array with its own generator; without a size return a number."""
        result: NDArray[Any] = np.empty(() if size is None else size, dtype_of(dtype))
        flat, array = result.reshape(-1), self._arrays
        has_no_sign = encoded_type(dtype) is not None and limits(result.dtype.name).min >= 0
        self._arrays += 1

        def fill(number: int, begin: int, end: int) -> None:
            counter = [0, 0, number, array]
            source = np.random.Generator(np.random.Philox(key=self._key, counter=counter))
            drawn = draw(source, end - begin)
            flat[begin:end] = np.abs(drawn) if has_no_sign else drawn

        in_pieces(fill, flat.size)
        return result[()] if size is None else result


def _drawn_as(dtype: DTypeLike) -> type[np.float32 | np.float64]:
    return np.float64 if dtype_of(dtype).itemsize > 4 else np.float32


def _few(values: Sequence[float], dtype: DTypeLike) -> _Source:
    """Return a source of up to four values; each random byte selects a row of four."""
    if element := encoded_type(dtype):
        values = [value for value in values if is_held(np.array([abs(value)]), element.name)]
        if not values:
            raise ValueError(f"no number with few bits in this range is a {element.name}")
        four: NDArray[Any] = np.resize(np.array(values, np.float32), 4)
    else:
        four = np.resize(np.array(values, dtype), 4)
    rows = four[np.arange(256)[:, None] >> np.arange(0, 8, 2) & 3]
    return lambda source, n: rows[source.integers(0, 256, -(-n // 4), np.uint8)].reshape(-1)[:n]


def _last_below(bound: float, least: float, dtype: DTypeLike) -> Any:
    """Return the largest number of a type below a bound, which rounding may reach; ``least`` is not larger."""
    element, kind = encoded_type(dtype), dtype_of(dtype)
    if not element or element.bits > 8 or bound == least:
        return np.nextafter(*np.array([bound, least], kind))
    values = finite_values(element.name)
    below = values[values < bound]
    if not below.size:
        raise ValueError(f"uniform: no {element.name} is below {bound}")
    return kind.type(below[-1])


def _between(low: float, high: float) -> list[float]:
    """Return up to four nonzero multiples of a power of two in ``[low, high)``."""
    if low == high:
        return [low]
    step = 2.0 ** math.floor(math.log2((high - low) / 4))
    multiples = range(math.ceil(low / step), math.ceil(high / step))
    values = [i * step for i in multiples if i]
    return values[:: -(-len(values) // 4)]


class DeclaredShapes(Draw):
    """A generator whose arrays have the requested shape and type, but one shared element.

    The arguments hook of a kernel then declares its arrays without the cost of drawing them. The hook
    may write into them. ``number`` is added to every value: a scalar that changes with it is drawn.
    """

    def __init__(self, number: int = 0) -> None:
        super().__init__(exact=False, key=0)
        self._number = number

    def _complex(self, size: Any, dtype: Any, draw: Any) -> Any:
        return self._filled(size, dtype, draw)

    def _filled(self, size: Any, dtype: Any, draw: Any, least: Any = 0) -> Any:
        array = np.array(least + self._number, dtype_of(dtype))
        wide = np.broadcast_to(array, () if size is None else size)
        return strided(array, wide.shape, wide.strides)

    def integers(  # type: ignore[override]
        self, low: Any, high: Any = None, size: Any = None, dtype: Any = np.int32, **_: Any
    ) -> Any:
        return self._filled(size, dtype, None, 0 if high is None else low)
