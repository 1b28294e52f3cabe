"""scan: the inclusive prefix sums of a float32 vector; see scan.cu."""

import numpy as np

from autotune import Kernel, Launch, Out, Problem, Work, ceil_div

scan = Kernel(
    "scan.cu",
    problems={"cuda": [Problem(n=1 << 30)], "opencl": [Problem(n=1 << 18)]},
    BLOCK=(64, 128, 256, 512, 1024),  # threads per block
    ITEMS=(4, 8, 16, 32),  # consecutive elements of a thread
    VEC=(1, 4),  # floats per load
    STAGED=(0, 1),  # a tile through shared memory
    SCAN=(0, 1),  # of a block: every thread in every step, or a tree
)


@scan.constraint
def staged_fits(BLOCK, ITEMS, STAGED):
    """A staged tile and its padding fit in 48 KB."""
    return not STAGED or 4 * (33 * BLOCK * ITEMS // 32 + BLOCK + 1) <= 48 * 1024


@scan.scratch
def scratch(c, p):
    return {"tiles": Out(ceil_div(p.n, c.BLOCK * c.ITEMS))}


@scan.launch
def launch(c, p):
    tiles = ceil_div(p.n, c.BLOCK * c.ITEMS)
    grid = {"grid": (tiles,), "block": (c.BLOCK,)}
    return (
        Launch(entry="scan_sums", args=("x", "n", "tiles"), **grid),
        Launch(entry="scan_tiles", args=("n", "tiles"), grid=(1,), block=(256,)),
        Launch(entry="scan_within", args=("x", "out", "n", "tiles"), **grid),
    )


@scan.arguments
def arguments(p, rng):
    return {"x": rng.standard_normal(p.n, dtype=np.float32), "out": Out(p.n), "n": p.n}


@scan.reference
def reference(x):
    return np.cumsum(x)


@scan.work
def work(p):
    return Work(flops=p.n, bytes_read=4 * p.n, bytes_written=4 * p.n)
