"""What is asked of the bundled kernels beside the vendor's libraries, and whether measured rows meet it.

Knows the sizes and the thresholds, and how one row of ``results/vendor-<device>.json`` is judged; measures
nothing. A demand that needs a row which was not measured says which.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
Size = dict[str, int | str]

#: The smallest median that still counts as equal where the interval reaches 1.
_EQUAL_MEDIAN = 0.99
#: Largest error of a compensated product, in errors of the vendor's float32 product.
_MOST_ERROR = 2.0


def _products(*sizes: tuple[int, int, int]) -> list[Size]:
    return [{"m": m, "n": n, "k": k} for m, n, k in sizes]


def _matrices(*sizes: tuple[int, int]) -> list[Size]:
    return [{"m": m, "n": n} for m, n in sizes]


def _copies(n: int, *offsets: tuple[int, int]) -> list[Size]:
    return [{"n": n, "mode": "copy", "offset_in": i, "offset_out": o} for i, o in offsets]


def _chains(warps: int) -> list[Size]:
    return [{"n": 1 << 26, "intensity": i, "warps_per_sm": warps} for i in (0, 8, 32, 64)]


#: The sizes that are asked for, by kernel.
SIZES: dict[str, list[Size]] = {
    "sgemm": _products(
        *((n, n, n) for n in (256, 512, 1024, 2048, 4096, 8192, 1000)),
        (1023, 1025, 1027),
        (4096, 4096, 64),
        (128, 4096, 4096),
        (4096, 128, 4096),
        (16384, 512, 1024),
        (127, 333, 2047),
    ),
    "sgemm_tf32x3": _products(*((n, n, n) for n in (1024, 2048, 4096, 8192, 1000))),
    "reduce": [{"n": n} for n in (*(1 << e for e in range(16, 31, 2)), 10**7 + 3)],
    "transpose": _matrices(
        (1024, 1024), (4096, 4096), (8192, 8192), (16384, 16384), (4095, 4097), (65536, 1024)
    ),
    "gemv": _matrices(
        *((n, n) for n in (1024, 4096, 8192, 16384)),
        (1 << 20, 64),
        (64, 1 << 20),
        (32768, 256),
        (100000, 16),
    ),
    "prefetch": [*_chains(4), *_chains(0)],
    "copy": [
        *(_copies(1 << e, (0, 0))[0] for e in (24, 26, 28, 30)),
        *_copies(1 << 26, (1, 0), (2, 0), (3, 0), (0, 1), (0, 2), (0, 3), (1, 1), (2, 3)),
    ],
}  # fmt: skip

#: Sizes that no space file tunes: how good the answer of `lookup` is that was tuned for another size.
UNLISTED: dict[str, list[Size]] = {
    "sgemm": _products(
        *((n, n, n) for n in (3072, 6144, 640, 384, 1280, 900, 1001, 2500)),
        (5000, 300, 700),
        (100, 2000, 3000),
        (16, 16384, 1024),
        (48, 5000, 2000),
        (5000, 48, 2000),
        (2, 8192, 8192),
        (8192, 3, 4096),
        (20000, 128, 32),
        (500, 20000, 100),
        (300, 300, 10000),
        (1024, 1024, 16384),
        (96, 96, 30000),
        (777, 1111, 333),
        (6000, 6000, 40),
    ),
    "sgemm_tf32x3": _products(
        *((n, n, n) for n in (3000, 6144, 768)),
        (512, 4096, 4096),
        (1234, 777, 555),
        (8192, 1024, 256),
        (2000, 2000, 100),
    ),
    "reduce": [{"n": n} for n in (100_000, 524_293, 1 << 21, 12_345_678, 1 << 25, 300_000_001)],
    "transpose": _matrices(
        (2048, 2048),
        (1000, 3000),
        (100_000, 64),
        (64, 100_000),
        (31, 1_000_003),
        (333, 777),
        (12288, 12288),
        (6000, 7001),
    ),
    "gemv": _matrices(
        (3000, 3000),
        (10000, 10000),
        (3333, 7777),
        (500_000, 7),
        (2_000_000, 2),
        (200_000, 33),
        (20000, 200),
        (256, 8192),
        (64, 20000),
        (8, 500_000),
        (5, 1_000_000),
        (1, 4_000_000),
    ),
}


@dataclass(frozen=True)
class Verdict:
    """Whether one demand holds; None where rows are missing."""

    kernel: str
    demand: str
    holds: bool | None
    #: What was found, and where it falls short.
    found: str
    #: Not asked, but hoped for.
    beyond: bool = False


def describe(size: Mapping[str, int | str]) -> str:
    """A size in a few characters: ``1024^3``, ``4096 x 64``, ``2^20``."""
    if set(size) == {"n"}:
        return _number(int(size["n"]))
    if set(size) == {"m", "n", "k"} and len(set(size.values())) == 1:
        return f"{size['m']}^3"
    if set(size) in ({"m", "n", "k"}, {"m", "n"}):
        return " x ".join(str(one) for one in size.values())
    count = _number(int(size["n"]))
    if "warps_per_sm" in size:
        warps = f"{size['warps_per_sm']} warps" if size["warps_per_sm"] else "full"
        return f"{count}, intensity {size['intensity']}, {warps}"
    if "offset_in" in size:
        what = [] if size["mode"] == "copy" else [str(size["mode"])]
        if size["offset_in"] or size["offset_out"]:
            what.append(f"off by {size['offset_in']}, {size['offset_out']}")
        return ", ".join([count, *what])
    return ", ".join([count, *(f"{name}={value}" for name, value in size.items() if name != "n")])


def _number(n: int) -> str:
    return f"2^{n.bit_length() - 1}" if n & (n - 1) == 0 and n > 1024 else str(n)


def at_least_as_fast(row: Row) -> bool:
    """``>= 1.00``: the interval of the ratio reaches 1 and its median is at most 1 % below."""
    return bool(row["ratio"] >= _EQUAL_MEDIAN and row["ratio_ci"][1] >= 1.0)


def geometric_mean(values: Sequence[float]) -> float:
    """Geometric mean of positive numbers.

    Raises
    ------
    ValueError
        If there are none.
    """
    if not values:
        raise ValueError("the geometric mean of nothing")
    return math.exp(sum(map(math.log, values)) / len(values))


def spreads(rows: Iterable[Row]) -> dict[str, str]:
    """By kernel, the geometric mean of the ratios and the worst; kernels without a ratio are left out."""
    by_kernel: dict[str, list[Row]] = {name: [] for name in SIZES}
    for row in rows:
        if row["kernel"] in by_kernel and row["ratio"] is not None:
            by_kernel[row["kernel"]].append(row)
    return {name: _spread(measured) for name, measured in by_kernel.items() if measured}


def _spread(rows: Sequence[Row]) -> str:
    worst = min(rows, key=lambda row: float(row["ratio"]))
    return (
        f"geometric mean {geometric_mean([row['ratio'] for row in rows]):.3f} over {len(rows)}, "
        f"worst {worst['ratio']:.3f} at {describe(worst['problem'])}"
    )


def verdicts(rows: Iterable[Row]) -> list[Verdict]:
    """Every demand with what the rows say of it, in the order of `SIZES`."""
    by_kernel: dict[str, list[Row]] = {name: [] for name in SIZES}
    for row in rows:
        if row["kernel"] in by_kernel:
            by_kernel[row["kernel"]].append(row)
    judged: list[Verdict] = []
    for kernel, judge in _JUDGES.items():
        judged += judge(_Kernel(kernel, by_kernel[kernel]))
    return judged


class _Kernel:
    """The rows of one kernel, and the three forms of demands."""

    def __init__(self, name: str, rows: Sequence[Row]) -> None:
        self.name = name
        self._rows = rows

    def each(
        self,
        demand: str,
        sizes: Iterable[Size],
        holds: Callable[[Row], bool],
        value: Callable[[Row], float | None],
        beyond: bool = False,
        worst: str = "least",
    ) -> Verdict:
        """Every one of some sizes meets a demand; says the ``least`` or ``most``, and all that do not."""
        rows, missing = self._of(sizes, value)
        if not rows:
            return Verdict(self.name, demand, None, _missing(missing), beyond)
        wrong = [f"{describe(row['problem'])} {value(row):.3f}" for row in rows if not holds(row)]
        choose = min if worst == "least" else max
        extreme = choose(rows, key=lambda row: value(row) or 0.0)
        found = f"{worst} {value(extreme):.3f} at {describe(extreme['problem'])}"
        if wrong:
            found = f"not at {'; '.join(wrong)}"
        return self._verdict(demand, not wrong, found, missing, beyond)

    def mean(
        self, least: float, sizes: Iterable[Size], where: str = "", beyond: bool = False
    ) -> Verdict:
        """The geometric mean of the ratios over some sizes."""
        demand = f"geometric mean {where}>= {least:g} x vendor"
        rows, missing = self._of(sizes, _ratio)
        if not rows:
            return Verdict(self.name, demand, None, _missing(missing), beyond)
        mean = geometric_mean([row["ratio"] for row in rows])
        holds = None if missing else mean >= least  # the other sizes may bring it up or down
        return self._verdict(demand, holds, f"{mean:.3f}", missing, beyond)

    def faster(self, least: float, sizes: Iterable[Size], beyond: bool = False) -> Verdict:
        """The median ratio at every one of some sizes."""
        chosen = list(sizes)
        demand = f">= {least:g} x vendor at {'; '.join(map(describe, chosen))}"
        return self.each(demand, chosen, lambda row: row["ratio"] >= least, _ratio, beyond)

    def limit(self, least: float, sizes: Iterable[Size], beyond: bool = False) -> Verdict:
        """The share of the limit, measured on the same bytes, at every one of some sizes."""
        chosen = list(sizes)
        demand = f">= {least:.0%} of the limit at {'; '.join(map(describe, chosen))}"
        return self.each(demand, chosen, lambda row: row["limit_fraction"] >= least, _share, beyond)

    def vendor_everywhere(self) -> Verdict:
        """``>= 1.00`` at every size of the table."""
        sizes = SIZES[self.name]
        return self.each(">= 1.00 x vendor at every size", sizes, at_least_as_fast, _ratio)

    def _of(
        self, sizes: Iterable[Size], value: Callable[[Row], float | None]
    ) -> tuple[list[Row], list[Size]]:
        """The rows of some sizes that have a value, and the sizes that have none."""
        found, missing = [], []
        for size in sizes:
            row = next((one for one in self._rows if one["problem"] == size), None)
            if row is None or value(row) is None:
                missing.append(size)
            else:
                found.append(row)
        return found, missing

    def _verdict(
        self, demand: str, holds: bool | None, found: str, missing: Sequence[Size], beyond: bool
    ) -> Verdict:
        if missing:
            found += f"; {_missing(missing)}"
        return Verdict(self.name, demand, None if missing and holds else holds, found, beyond)


def listed(sizes: Sequence[Mapping[str, int | str]]) -> str:
    """Up to three sizes by name, more by their number."""
    return "; ".join(map(describe, sizes)) if len(sizes) <= 3 else f"{len(sizes)} sizes"


def _missing(sizes: Sequence[Size]) -> str:
    return f"not measured: {listed(sizes)}"


def _ratio(row: Row) -> float | None:
    return row.get("ratio")


def _share(row: Row) -> float | None:
    return row.get("limit_fraction")


def _tflop_per_s(row: Row) -> float | None:
    p = row["problem"]
    return float(2 * p["m"] * p["n"] * p["k"] / row["ours_ms"] / 1e9)


def _sgemm(kernel: _Kernel) -> list[Verdict]:
    large = _products((4096, 4096, 4096), (8192, 8192, 8192))
    return [
        kernel.vendor_everywhere(),
        kernel.mean(1.15, SIZES["sgemm"]),
        kernel.faster(1.03, large, beyond=True),
        kernel.each(
            ">= 57 TFLOP/s at 4096^3, 8192^3",
            large,
            lambda row: (_tflop_per_s(row) or 0.0) >= 57.0,
            _tflop_per_s,
            beyond=True,
        ),
    ]


def worst_error(row: Row) -> float | None:
    """Largest of our errors over the vendor's: maximum and RMS, over all kinds of data."""
    accuracy = row.get("accuracy")
    if not accuracy:
        return None
    return max(
        float(one[f"ours_{kind}"] / one[f"vendor_{kind}"])
        for one in accuracy.values()
        for kind in ("max", "rms")
    )


def _tf32x3(kernel: _Kernel) -> list[Verdict]:
    large = _products((4096, 4096, 4096), (8192, 8192, 8192))
    return [
        kernel.each(
            f"errors <= {_MOST_ERROR:g} x the vendor's float32 product's on every data set",
            SIZES["sgemm_tf32x3"],
            lambda row: (worst_error(row) or math.inf) <= _MOST_ERROR,
            worst_error,
            worst="most",
        ),
        *(kernel.faster(least, large, beyond=least > 1.25) for least in (1.25, 1.5, 2.0)),
    ]


def _reduce(kernel: _Kernel) -> list[Verdict]:
    small: list[Size] = [{"n": 1 << e} for e in (16, 18, 20, 22)]
    return [
        kernel.vendor_everywhere(),
        kernel.mean(1.25, small, "over 2^16, 2^18, 2^20, 2^22 "),
        kernel.mean(1.4, small, "over 2^16, 2^18, 2^20, 2^22 ", beyond=True),
        kernel.limit(0.98, [{"n": 1 << 28}, {"n": 1 << 30}]),
    ]


def _transpose(kernel: _Kernel) -> list[Verdict]:
    large = _matrices((8192, 8192), (16384, 16384))
    return [
        kernel.vendor_everywhere(),
        kernel.mean(1.05, SIZES["transpose"]),
        kernel.limit(0.97, large),
        kernel.limit(0.99, large, beyond=True),
    ]


def _gemv(kernel: _Kernel) -> list[Verdict]:
    return [
        kernel.vendor_everywhere(),
        kernel.mean(1.25, SIZES["gemv"]),
        kernel.mean(1.4, SIZES["gemv"], beyond=True),
        kernel.limit(0.95, _matrices((16384, 16384))),
    ]


def _is_alone(row: Row) -> bool:
    """Whether one of memory and arithmetic takes twice as long as the other, or is all there is."""
    return row["limits_apart"] is None or bool(row["limits_apart"] >= 2.0)


def _prefetch(kernel: _Kernel) -> list[Verdict]:
    few = [one for one in _chains(4) if int(one["intensity"]) <= 32]
    return [
        kernel.faster(1.4, few),
        kernel.each(
            ">= 95 % of max(memory, arithmetic) where they differ by 2 x, >= 85 % elsewhere, full",
            _chains(0),
            lambda row: row["limit_fraction"] >= (0.95 if _is_alone(row) else 0.85),
            _share,
        ),
    ]


def _copy(kernel: _Kernel) -> list[Verdict]:
    aligned = [one for one in SIZES["copy"] if not one["offset_in"] and not one["offset_out"]]
    misaligned = [one for one in SIZES["copy"] if one not in aligned]
    return [
        kernel.each(">= 1.00 x vendor, aligned", aligned, at_least_as_fast, _ratio),
        kernel.each(
            ">= 0.95 x aligned, off by 1, 2, 3 floats",
            misaligned,
            lambda row: row["limit_fraction"] >= 0.95,
            _share,
        ),
    ]


_JUDGES: dict[str, Callable[[_Kernel], list[Verdict]]] = {
    "sgemm": _sgemm,
    "sgemm_tf32x3": _tf32x3,
    "reduce": _reduce,
    "transpose": _transpose,
    "gemv": _gemv,
    "prefetch": _prefetch,
    "copy": _copy,
}
