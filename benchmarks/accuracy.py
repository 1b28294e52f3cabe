"""How accurate float32 products and sums are: data that are hard for them, and the error that counts.

The error of an element of a product is |c - c64| / (|A| |B|), with c64 the product in float64 and |A| |B| the
product of the absolute values: what rounding can do to a sum is proportional to its largest terms, so this is
the error that sums of one length share, whatever cancels in them. That of a sum of x is relative to the sum of
|x|. The data and the measure work on NumPy and on CuPy and know no kernels.

    python benchmarks/accuracy.py              sgemm_tf32x3 against cublasSgemm, reduce against CUB, on a GPU
    python benchmarks/accuracy.py --kernel reduce
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

#: Exponents of the data set ``exponents``: magnitudes from 2**-30 to 2**31.
EXPONENT = 30
#: By how much, relatively, the halves of the data set ``cancelling`` fail to cancel.
RESIDUE = 2.0**-12
#: What ours may have of the vendor's error.
FACTOR = 2.0


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


def positive(m: int, n: int, k: int, rng: Any) -> tuple[Any, Any]:
    """Uniform in [0, 1): every truncation has the same sign."""
    return tuple(rng.random(shape, dtype="float32") for shape in ((m, k), (k, n)))


def constant(m: int, n: int, k: int, rng: Any) -> tuple[Any, Any]:
    """All 1 + 2**-11: what a product of halves leaves out is at its largest, and of one sign."""
    a, b = positive(m, n, k, rng)
    a[:], b[:] = 1 + 2.0**-11, 1 + 2.0**-11
    return a, b


def _scaled(m: int, n: int, k: int, rng: Any, exponent: int) -> tuple[Any, Any]:
    a, b = normal(m, n, k, rng)
    return a * a.dtype.type(2.0**exponent), b * b.dtype.type(2.0**exponent)


def large(m: int, n: int, k: int, rng: Any) -> tuple[Any, Any]:
    """Normal deviates times 2**59: sums of thousands come near the largest float32."""
    return _scaled(m, n, k, rng, 59)


def small(m: int, n: int, k: int, rng: Any) -> tuple[Any, Any]:
    """Normal deviates times 2**-62: products near the smallest normal float32."""
    return _scaled(m, n, k, rng, -62)


def subnormal(m: int, n: int, k: int, rng: Any) -> tuple[Any, Any]:
    """A of subnormal numbers, normal deviates times 2**-130; B times 2**100."""
    a, b = normal(m, n, k, rng)
    a *= a.dtype.type(2.0**-100)
    return a * a.dtype.type(2.0**-30), b * b.dtype.type(2.0**100)


def huge(m: int, n: int, k: int, rng: Any) -> tuple[Any, Any]:
    """Every 61st row of A begins with the largest float32, which rounds up to infinity in TF32; B as small."""
    a, b = normal(m, n, k, rng)
    a[::61, 0] = 3.4028235e38
    b *= b.dtype.type(2.0**-20)
    return a, b


def infinite(m: int, n: int, k: int, rng: Any) -> tuple[Any, Any]:
    """An infinity in every 61st row of A."""
    a, b = normal(m, n, k, rng)
    a[::61, k // 2] = float("inf")
    return a, b


def not_a_number(m: int, n: int, k: int, rng: Any) -> tuple[Any, Any]:
    """A NaN in every 61st column of B."""
    a, b = normal(m, n, k, rng)
    b[k // 2, ::61] = float("nan")
    return a, b


#: Further ones, at the edges of what float32 holds: those where a product of halves may be another.
EDGES: dict[str, Callable[[int, int, int, Any], tuple[Any, Any]]] = {
    "positive": positive,
    "constant": constant,
    "large": large,
    "small": small,
    "subnormal": subnormal,
    "huge": huge,
    "infinite": infinite,
    "not_a_number": not_a_number,
}


@dataclass(frozen=True)
class Accuracy:
    """Largest and root mean square error of a product's elements, relative to |A| |B|."""

    max_error: float
    rms_error: float


class Exact:
    """The product of A (m, k) and B (k, n) in float64, to measure several float32 products against."""

    def __init__(self, a: Any, b: Any) -> None:
        wide_a, wide_b = a.astype("float64"), b.astype("float64")
        self.product = wide_a @ wide_b
        self.scale = abs(wide_a) @ abs(wide_b)

    def accuracy(self, c: Any) -> Accuracy:
        """Errors of the product `c`; NaN if any of its elements is."""
        error = abs(c.astype("float64") - self.product)
        error /= self.scale + (self.scale == 0)
        return Accuracy(float(error.max()), float((error * error).mean()) ** 0.5)

    def finite_accuracy(self, c: Any) -> tuple[Accuracy, int]:
        """Errors of the elements that are finite here and in `c`, and how many others are another than here.

        An element is another where it is infinite of this sign, finite or not a number, and is not here.
        """
        expected = self.product.astype(c.dtype)
        both = abs(expected) + abs(c) < float("inf")  # false where one is not a number
        same_infinity = (expected == c) & ~both
        no_numbers = (expected != expected) & (c != c)
        error = abs(c.astype("float64") - self.product)[both]
        error /= self.scale[both] + (self.scale[both] == 0)
        rms = float((error * error).mean()) ** 0.5
        return Accuracy(float(error.max()), rms), int((~(both | same_infinity | no_numbers)).sum())


# ---------------------------------------------------------------------- on a GPU

#: Products and sums that are measured, and data sets of a sum; fewer of the largest.
PRODUCTS = ((512, 512, 64), (1024, 1024, 1024), (4096, 4096, 4096))
SUMS = (2**16, 2**18, 2**20, 2**22, 10**7 + 3, 2**24, 2**26, 2**28, 5 * 10**8, 2**30)
_DATA_SETS, _LEAST_DATA_SETS, _MOST_ELEMENTS = 64, 16, 2**30


def products(cupy: Any) -> Iterator[dict[str, Any]]:
    """Return the errors of the loaded sgemm_tf32x3 and of cublasSgemm on all data sets."""
    from autotune import load
    from autotune.kernel.catalog import find_kernel

    kernel, ours = find_kernel("sgemm_tf32x3"), load("sgemm_tf32x3")
    for m, n, k in PRODUCTS:
        for name, made in {**DATA, **EDGES}.items():
            a, b = made(m, n, k, cupy.random.default_rng(7))
            exact, theirs = Exact(a, b), cupy.full((m, n), cupy.nan, cupy.float32)
            kernel.baselines[0].prepare(a, b, theirs, 1.0, 0.0, m, n, k)()
            row: dict[str, Any] = {"kernel": kernel.name, "size": f"{m}×{n}×{k}", "data": name}
            for whose, c in (("ours", ours(a, b)), ("vendor", theirs)):
                found, others = exact.finite_accuracy(c)
                row |= {
                    f"{whose}_max": found.max_error,
                    f"{whose}_rms": found.rms_error,
                    f"{whose}_others": others,
                }
            yield row


def sums(cupy: Any) -> Iterator[dict[str, Any]]:
    """Return the errors of the loaded reduce and of CUB over many data sets: a single one may be lucky."""
    from autotune import load
    from autotune.kernel.catalog import find_kernel

    kernel, ours = find_kernel("reduce"), load("reduce")
    for n in SUMS:
        x, theirs = cupy.empty(n, cupy.float32), cupy.empty(1, cupy.float32)
        cub = kernel.baselines[0].prepare(x, theirs, n)
        sets = max(_LEAST_DATA_SETS, min(_DATA_SETS, _MOST_ELEMENTS // n))
        for name in ("uniform", "normal"):
            rng, errors = cupy.random.default_rng(7), {"ours": [], "vendor": []}  # type: ignore[var-annotated]
            for _ in range(sets):
                draw = rng.random if name == "uniform" else rng.standard_normal
                x[:] = draw(n, dtype=cupy.float32)
                exact, scale = float(x.sum(dtype="float64")), float(abs(x).sum(dtype="float64"))
                cub()
                for whose, found in (("ours", ours(x)), ("vendor", theirs)):
                    errors[whose].append(abs(float(found.ravel()[0]) - exact) / scale)
            row: dict[str, Any] = {"kernel": kernel.name, "size": str(n), "data": name}
            for whose, taken in errors.items():
                rms = (sum(error * error for error in taken) / sets) ** 0.5
                row |= {f"{whose}_max": max(taken), f"{whose}_rms": rms, f"{whose}_others": 0}
            yield row


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Rows as Markdown: errors of ours and of the vendor's, and how many elements of either are another."""
    lines = []
    for kernel, group in groupby(rows, key=lambda row: row["kernel"]):
        lines += [
            f"\n{kernel}\n",
            "| | data | ours, max / RMS | vendor's | ratio, max / RMS | other |",
        ]
        lines.append("|---|---|--:|--:|--:|--:|")
        for row in group:
            both = [
                f"{row[f'{whose}_max']:.1e} / {row[f'{whose}_rms']:.1e}"
                for whose in ("ours", "vendor")
            ]
            ratio = " / ".join(_ratio(row, of) for of in ("max", "rms"))
            others = f"{row['ours_others']} / {row['vendor_others']}"
            lines.append(
                f"| {row['size']} | {row['data']} | {both[0]} | {both[1]} | {ratio} | {others} |"
            )
    return lines


def _ratio(row: dict[str, Any], of: str) -> str:
    vendors = row[f"vendor_{of}"]
    return f"{row[f'ours_{of}'] / vendors:.2f}" if vendors else "exact there"


def main() -> int:
    from harness import command_line, provenance, write

    from autotune.devices.choose import choose_device

    parser = command_line(__doc__, "accuracy-<device>.json", device=None)
    parser.add_argument("--kernel", choices=("sgemm_tf32x3", "reduce"), action="append")
    options = parser.parse_args()
    import cupy

    warnings.filterwarnings("ignore", category=RuntimeWarning)
    kinds = {"reduce": sums, "sgemm_tf32x3": products}
    rows = [row for name in options.kernel or kinds for row in kinds[name](cupy)]
    print("\n".join(table(rows)))
    device = choose_device("cuda:0")
    write(options.out / f"accuracy-{device.folder}.json", {**provenance(device), "rows": rows})
    far = [
        f"{row['size']} {row['data']}"
        for row in rows
        if row["kernel"] == "reduce" and row["ours_rms"] > FACTOR * row["vendor_rms"]
    ]
    print(
        f"\nreduce within {FACTOR:g} times CUB's error: {'NO: ' + ', '.join(far) if far else 'yes'}"
    )
    return bool(far)


if __name__ == "__main__":
    from harness import finish

    finish(main)
