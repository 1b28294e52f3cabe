"""Sizes of the bundled kernels that are shown and measured, and means of rows of ``results/vendor-<device>.json``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from autotune.kernel.catalog import find_kernel

Row = Mapping[str, Any]
Size = dict[str, int | str]

#: The column of each state's ratios.
STATES = {"cold": "ratio", "clean": "ratio_clean", "hot": "ratio_hot"}
#: How many of the problems that a space file names for GPUs are in the README: the first ones.
_SHOWN = {
    "sgemm": 13,
    "sgemm_tf32x3": 5,
    "hgemm": 8,
    "reduce": 9,
    "transpose": 6,
    "gemv": 8,
    "gemv_columns": 8,
    "prefetch": 8,
    "copy": 12,
}
#: The sizes that are shown, by kernel.
SIZES: dict[str, list[Size]] = {
    name: [dict(problem) for problem in find_kernel(name).problems["cuda"][:count]]
    for name, count in _SHOWN.items()
}
#: Sizes of kernels of the study notes that have a rival or an aim; the README does not show them.
STUDY: dict[str, list[Size]] = {
    name: [dict(problem) for problem in find_kernel(name).problems["cuda"]]
    for name in ("reduce_op", "conv1d", "spmm")
}
KERNELS = (*SIZES, *STUDY)
#: And then what else the space files tune on a GPU.
TUNED: dict[str, list[Size]] = {
    name: [
        *asked,
        *(size for size in map(dict, find_kernel(name).problems["cuda"]) if size not in asked),
    ]
    for name, asked in SIZES.items()
}


def _products(*sizes: tuple[int, int, int]) -> list[Size]:
    return [{"m": m, "n": n, "k": k} for m, n, k in sizes]


def _matrices(*sizes: tuple[int, int]) -> list[Size]:
    return [{"m": m, "n": n} for m, n in sizes]


#: Sizes that no space file tunes: how good the answer of `lookup` is that was tuned for another size.
UNLISTED: dict[str, list[Size]] = {
    "sgemm": _products(
        *((n, n, n) for n in (3072, 6144, 640, 384, 1280, 900, 1001, 2500)),
        (5000, 300, 700), (100, 2000, 3000), (16, 16384, 1024), (48, 5000, 2000), (5000, 48, 2000),
        (2, 8192, 8192), (8192, 3, 4096), (20000, 128, 32), (500, 20000, 100), (300, 300, 10000),
        (1024, 1024, 16384), (96, 96, 30000), (777, 1111, 333), (6000, 6000, 40),
    ),
    "sgemm_tf32x3": _products(
        *((n, n, n) for n in (3000, 6144, 768)),
        (512, 4096, 4096), (1234, 777, 555), (8192, 1024, 256), (2000, 2000, 100),
    ),
    "reduce": [{"n": n} for n in (100_000, 524_293, 1 << 21, 12_345_678, 1 << 25, 300_000_001)],
    "transpose": _matrices(
        (2048, 2048), (1000, 3000), (100_000, 64), (64, 100_000), (31, 1_000_003), (333, 777),
        (12288, 12288), (6000, 7001),
    ),
    "gemv": _matrices(
        (3000, 3000), (10000, 10000), (3333, 7777), (500_000, 7), (2_000_000, 2), (200_000, 33),
        (20000, 200), (256, 8192), (64, 20000), (8, 500_000), (5, 1_000_000), (1, 4_000_000),
    ),
}  # fmt: skip

#: Further ones that no earlier table had, drawn once: whether what was learnt from those tables holds elsewhere.
FURTHER: dict[str, list[Size]] = {
    "sgemm": _products(
        (3517, 3517, 3517), (1800, 1800, 1800), (700, 700, 700), (200, 200, 200), (1536, 640, 2304),
        (11, 6000, 6000), (7000, 24, 3500), (24, 24, 50000), (2600, 7300, 90), (450, 30000, 60),
        (9000, 400, 1300), (350, 1750, 8750),
    ),
    "sgemm_tf32x3": _products(
        (3517, 3517, 3517), (1800, 1800, 1800), (700, 700, 700), (256, 6000, 6000), (2601, 1301, 651),
    ),
    "reduce": [{"n": n} for n in (30_000, 200_001, 1_500_000, 1 << 23, 50_000_017)],
    "transpose": _matrices((600, 600), (5001, 3001), (7, 3_000_000), (16384, 2048)),
    "gemv": _matrices(
        (1500, 1500), (6001, 6001), (150_000, 100), (40, 400_000), (900, 12345), (30_000, 1200),
    ),
}  # fmt: skip
#: All of them, in the order of tables.
GROUPS = (SIZES, UNLISTED, FURTHER)


def untuned(kernel: str) -> list[Size]:
    """The sizes of a kernel that no space file tunes."""
    return UNLISTED.get(kernel, []) + FURTHER.get(kernel, [])


def is_listed(kernel: str, size: Mapping[str, int | str]) -> bool:
    """Whether an earlier table had a size, so that somebody may have looked at it."""
    return dict(size) not in FURTHER.get(kernel, [])


def is_current(row: Row) -> bool:
    """True if a row was measured in all states; older rows compare with one vendor call, cold."""
    return "ratio_hot" in row


def describe(size: Mapping[str, int | str]) -> str:
    """A size in a few characters: ``1024^3``, ``4096 x 64``, ``2^20``."""
    if set(size) == {"n"}:
        return _number(int(size["n"]))
    if {"m", "n"} <= set(size):
        *extents, last = sides = [size[name] for name in ("m", "n", "k") if name in size]
        text = f"{last}^3" if extents == [last, last] else " x ".join(map(str, sides))
        types = dict.fromkeys(size[name] for name in ("dtype", "out_dtype") if name in size)
        kinds = [str(size["kind"])] if "kind" in size else []
        return ", ".join([text, *kinds, *([" to ".join(map(str, types))] if types else [])])
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


def listed(sizes: Sequence[Mapping[str, int | str]]) -> str:
    """Up to three sizes by name, more by their number."""
    return "; ".join(map(describe, sizes)) if len(sizes) <= 3 else f"{len(sizes)} sizes"


def spreads(rows: Iterable[Row], column: str = "ratio") -> dict[str, str]:
    """By kernel, the geometric mean of a column of ratios and the worst; kernels without any are left out."""
    by_kernel: dict[str, list[Row]] = {name: [] for name in KERNELS}
    for row in rows:
        if row["kernel"] in by_kernel and row.get(column) is not None:
            by_kernel[row["kernel"]].append(row)
    return {name: _spread(measured, column) for name, measured in by_kernel.items() if measured}


def _spread(rows: Sequence[Row], column: str) -> str:
    worst = min(rows, key=lambda row: float(row[column]))
    return (
        f"geometric mean {geometric_mean([row[column] for row in rows]):.3f} over {len(rows)}, "
        f"worst {worst[column]:.3f} at {describe(worst['problem'])}"
    )
