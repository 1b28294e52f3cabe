"""How accurate a float32 matrix product is: the data that is hard for it, and the error that counts.

The error of an element is |c - c64| / (|A| |B|), with c64 the product in float64 and |A| |B| the product
of the absolute values: what rounding can do to a sum is proportional to its largest terms, so this is the
error that sums of one length share, whatever cancels in them. Knows no kernels; works on NumPy and on CuPy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: Exponents of the data set ``exponents``: magnitudes from 2**-30 to 2**31.
EXPONENT = 30
#: By how much, relatively, the halves of the data set ``cancelling`` fail to cancel.
RESIDUE = 2.0**-12


def normal(m: int, n: int, k: int, rng: Any) -> tuple[Any, Any]:
    """A (m, k) and B (k, n) of normal deviates."""
    return tuple(rng.standard_normal(shape, dtype="float32") for shape in ((m, k), (k, n)))


def exponents(m: int, n: int, k: int, rng: Any) -> tuple[Any, Any]:
    """Random signs and mantissas, and exponents uniform in ±30: few terms make up a sum."""

    def wide(shape: tuple[int, int]) -> Any:
        scale = 2.0 ** rng.integers(-EXPONENT, EXPONENT + 1, shape).astype("float32")
        sign = 2.0 * rng.integers(0, 2, shape).astype("float32") - 1.0
        return (scale * sign * (1.0 + rng.random(shape, dtype="float32"))).astype("float32")

    return wide((m, k)), wide((k, n))


def cancelling(m: int, n: int, k: int, rng: Any) -> tuple[Any, Any]:
    """The second half of k takes away again, but for `RESIDUE`, what the first half sums up."""
    a, b = normal(m, n, k, rng)
    half = k // 2
    a[:, k - half :] = a[:, :half]
    residue = rng.standard_normal((half, n), dtype="float32")
    b[k - half :] = -b[:half] * (1.0 + RESIDUE * residue)
    return a, b


#: Data sets by name: ``(m, n, k, rng) -> (A, B)``, with a Generator of ``numpy.random`` or ``cupy.random``.
DATA: dict[str, Callable[[int, int, int, Any], tuple[Any, Any]]] = {
    "normal": normal,
    "exponents": exponents,
    "cancelling": cancelling,
}


@dataclass(frozen=True)
class Accuracy:
    """Largest and root mean square error of a product's elements, relative to |A| |B|."""

    max_error: float
    rms_error: float


class Exact:
    """The product of A (m, k) and B (k, n) in float64, to measure several float32 products against.

    Parameters
    ----------
    a, b : array
        NumPy or CuPy, float32.
    """

    def __init__(self, a: Any, b: Any) -> None:
        wide_a, wide_b = a.astype("float64"), b.astype("float64")
        self.product = wide_a @ wide_b
        self.scale = abs(wide_a) @ abs(wide_b)

    def accuracy(self, c: Any) -> Accuracy:
        """Errors of the product `c`; NaN if any of its elements is."""
        error = abs(c.astype("float64") - self.product)
        error /= self.scale + (self.scale == 0)
        return Accuracy(float(error.max()), float((error * error).mean()) ** 0.5)
