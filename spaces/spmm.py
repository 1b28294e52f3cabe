"""spmm: a sparse float32 matrix in CSR format times a dense matrix, by kernels/spmm.cu."""

from functools import cache

import numpy as np

from autotune import (
    Fill,
    Kernel,
    Launch,
    NothingToDo,
    Operand,
    Out,
    Problem,
    Work,
    ceil_div,
    maximum,
)

KINDS = ("uniform", "powerlaw", "banded", "blocks", "empty")


def row_lengths(kind, m, each):
    """Return the length of each row, before scaling to the number of entries of the problem."""
    rng = np.random.default_rng(7)
    if kind == "powerlaw":  # a few rows have most of the entries, some rows are empty
        weights = rng.pareto(1.2, m)
        return np.minimum(weights * each / 5, 100 * each).astype(np.int64)
    if kind == "blocks":  # 64 full rows, then 64 empty rows, and so on
        return np.where(np.arange(m) // 64 % 2, 0, 2 * each)
    return np.full(m, 0 if kind == "empty" else each)


@cache
def row_starts(p):
    """Return the first entry of each row, and the end of the last row."""
    ends = np.cumsum(row_lengths(p.kind, p.m, p.each))
    ends = ends * p.entries // ends[-1] if ends[-1] else np.full(p.m, p.entries)
    return np.concatenate([[0], ends]).astype(np.int32)


def sparse(kind, m, n, each=16, k=None):
    """Return a problem with m rows of `each` entries on average, distributed as in a kind of matrix."""
    entries = int(row_lengths(kind, m, each).sum())
    return Problem(kind=kind, m=m, k=k or m, n=n, each=each, entries=entries)


spmm = Kernel(
    "spmm.cu",
    problems={
        "cuda": [sparse(kind, 1 << 17, n) for kind in KINDS[:4] for n in (8, 32, 128)],
        "opencl": [sparse("powerlaw", 3000, 16), sparse("banded", 2001, 7)],
    },
    edge_problems=[
        sparse("uniform", 1, 1, 1),
        sparse("uniform", 333, 40, 5, 77),
        sparse("powerlaw", 501, 3),
        sparse("powerlaw", 257, 36, 40),
        sparse("banded", 65, 129, 9),
        sparse("blocks", 130, 12),
        sparse("empty", 65, 4),
    ],
    seeds=[
        {"ALG": "row", "BLOCK": 256, "TEAM": 32},
        {"ALG": "row", "BLOCK": 128, "TEAM": 8, "VEC": 4},
        # for n = 8, 32 and 128
        {"ALG": "row", "BLOCK": 256, "TEAM": 4, "VEC": 2, "UNROLL": 2},
        {"ALG": "row", "BLOCK": 64, "TEAM": 8, "VEC": 4},
        {"ALG": "row", "BLOCK": 256, "TEAM": 32, "VEC": 4, "UNROLL": 2},
        {"ALG": "block", "BLOCK": 64, "TEAM": 2, "VEC": 4, "SHARE": 64},
        {"ALG": "split", "BLOCK": 64, "TEAM": 2, "VEC": 4, "UNROLL": 8, "SHARE": 64},
        {"ALG": "split", "BLOCK": 64, "TEAM": 8, "VEC": 4, "UNROLL": 8, "SHARE": 32},
        {"ALG": "split", "BLOCK": 64, "TEAM": 32, "VEC": 4, "UNROLL": 8, "SHARE": 64},
    ],
    variants={
        "row": {"ALG": "row", "BLOCK": 128, "TEAM": 8, "VEC": 4},
        "block": {"ALG": "block", "BLOCK": 256, "TEAM": 8, "VEC": 4, "SHARE": 64},
        "split": {"ALG": "split", "BLOCK": 128, "TEAM": 8, "VEC": 4, "SHARE": 64},
    },
    default={"ALG": "block", "BLOCK": 256, "TEAM": 32},
    ALG=("row", "block", "split"),  # how to divide the entries among teams
    BLOCK=(256, 64, 128, 512),  # threads per block
    TEAM=(32, 1, 2, 4, 8, 16),  # threads along the columns of C
    VEC=(1, 2, 4),  # columns per thread
    UNROLL=(4, 1, 2, 8),  # entries in flight per thread
    SHARE=(128, 32, 64, 256),  # split: entries per team; block: longest row that one team handles
)


@spmm.applies("SHARE")
def equal_shares(ALG):
    return ALG != "row"


@spmm.requires
def rows_are_vectors(c, p):
    """VEC divides the rows of B and C."""
    return p.n % c.VEC == 0


@spmm.launch
def launch(c, p):
    teams = ceil_div(p.entries, c.SHARE) if c.ALG == "split" else p.m
    grid = (maximum(1, ceil_div(teams, c.BLOCK // c.TEAM)), ceil_div(p.n, c.TEAM * c.VEC))
    product = Launch(grid=grid, block=(c.BLOCK,), args=NAMES)
    return (Fill("c", 0), product) if c.ALG == "split" else product


NAMES = ("row_start", "columns", "values", "b", "c", "m", "n")


@spmm.deterministic
def deterministic(c, p):
    """split: shares of a row add up in order of arrival, so the last bits vary."""
    return c.ALG != "split"


@spmm.arguments
def arguments(p, rng):
    """Return the arguments in the order of the kernel. A column may occur twice in a row: both entries count."""
    row_start, entries = row_starts(p), p.entries
    row = np.repeat(np.arange(p.m), np.diff(row_start))
    if p.kind == "banded":
        columns = (row + rng.integers(-2 * p.each, 2 * p.each + 1, entries)) % p.k
    elif p.kind == "blocks":
        columns = (row // 64 * 64 + rng.integers(0, 64, entries)) % p.k
    else:
        columns = rng.integers(0, p.k, entries)
    return {
        "row_start": row_start,
        "columns": columns.astype(np.int32),
        "values": rng.standard_normal(entries),
        "b": rng.standard_normal((p.k, p.n)),
        "c": Out((p.m, p.n)),
        "m": p.m,
        "n": p.n,
    }


@spmm.reference
def reference(row_start, columns, values, b):
    from scipy.sparse import csr_array

    # SciPy does not check indices, and `autotune check` changes some to test the reference.
    if row_start[0] or row_start[-1] > len(columns) or (row_start[1:] < row_start[:-1]).any():
        raise ValueError(
            "row_start: it must begin at 0, never decrease, and end within the entries"
        )
    if ((columns < 0) | (columns >= len(b))).any():
        raise ValueError(f"columns: values must be from 0 to {len(b) - 1}")
    return csr_array((values, columns, row_start), shape=(len(row_start) - 1, len(b))) @ b


@spmm.tolerance
def tolerance(p):
    """Bound the error of one chain of additions over the longest row, at 8 standard deviations."""
    longest = int(np.diff(row_starts(p)).max())
    return float(np.finfo(np.float32).eps) * (4 * longest + 8)


@spmm.work
def work(p):
    """Count each used row of B once."""
    read = 8 * p.entries + 4 * (p.m + 1) + 4 * min(p.k, p.entries) * p.n
    return Work(flops=2 * p.entries * p.n, bytes_read=read, bytes_written=4 * p.m * p.n)


@spmm.call
def call(row_start, columns, values, b, out=None):
    """Multiply a CSR matrix, given as the arrays `indptr`, `indices` and `data` of SciPy, by b."""
    m, (k, n) = row_start.size - 1, b.shape
    out = Operand.new((m, n)) if out is None else out
    if columns.shape != values.shape or out.shape != (m, n):
        raise ValueError(
            f"columns are {columns}, values are {values}, out is {out}: pass as many columns as "
            f"values, and out as {m} x {n}"
        )
    if not out.size:
        return NothingToDo((out,))
    problem = Problem(kind="uniform", m=m, k=k, n=n, each=1, entries=columns.size)
    arrays = {"row_start": row_start, "columns": columns, "values": values, "b": b, "c": out}
    return problem, {**arrays, "m": m, "n": n}
