"""product: c = a b over float32 matrices, whose tiles TMA copies (sm_90 and newer)."""

import numpy as np

from autotune import Kernel, Launch, Out, Problem, TensorMap, Work, ceil_div, minimum

product = Kernel(
    "product.cu",
    backends=("cuda",),
    problems=[Problem(m=2048, n=2048, k=2048), Problem(m=4000, n=1000, k=516)],
    edge_problems=[Problem(m=1, n=4, k=4), Problem(m=65, n=68, k=20), Problem(m=127, n=260, k=100)],
    default={"BM": 64, "BN": 64, "BK": 16},
    BM=(32, 64, 128),  # rows of a tile of c
    BN=(32, 64, 128),  # columns of a tile of c
    BK=(8, 16, 32),  # columns of a tile of a
    TM=(4, 8),  # rows per thread
    TN=(4, 8),  # columns per thread
    STAGES=(3, 2, 4),  # pairs of tiles in shared memory
    BLOCKS=(132, 264, 528),  # persistent blocks
)


@product.constraint
def fits(BM, BN, BK, STAGES):
    return STAGES * (BM * BK + BK * BN) * 4 + 8 * STAGES <= 48 * 1024


@product.constraint
def has_full_warps(BM, BN, TM, TN):
    return 32 <= BM // TM * (BN // TN) <= 1024


@product.requires
def requires(c, p):
    """Rows of a and b begin at multiples of 16 bytes, as TMA demands."""
    return (p.n % 4 == 0) & (p.k % 4 == 0)


@product.launch
def launch(c, p):
    tiles = ceil_div(p.m, c.BM) * ceil_div(p.n, c.BN)
    return Launch(
        grid=(minimum(tiles, c.BLOCKS),),
        block=(c.BM // c.TM * (c.BN // c.TN),),
        args=(
            TensorMap("a", box=(c.BM, c.BK), promotion=128),
            TensorMap("b", box=(c.BK, c.BN), promotion=128),
            *("c", "m", "n", "k"),
        ),
    )


@product.arguments
def arguments(p, rng):
    a, b = (rng.standard_normal(shape, dtype=np.float32) for shape in ((p.m, p.k), (p.k, p.n)))
    return {"a": a, "b": b, "c": Out((p.m, p.n)), "m": p.m, "n": p.n, "k": p.k}


@product.reference
def reference(a, b):
    return a @ b


@product.call
def call(a, b, c=None):
    """Return problem and arguments of a product of two matrices."""
    (m, k), n = a.shape, b.shape[1]
    return Problem(m=m, n=n, k=k), {"a": a, "b": b, "c": c}


@product.work
def work(p):
    return Work(
        flops=2 * p.m * p.n * p.k,
        bytes_read=4 * (p.m * p.k + p.k * p.n),
        bytes_written=4 * p.m * p.n,
    )
