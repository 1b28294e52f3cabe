"""saxpy: out = alpha * x + y over float32 vectors."""

import numpy as np

from autotune import Kernel, Launch, Out, Problem, Work, ceil_div

saxpy = Kernel(
    "saxpy.cu",
    problems=[Problem(n=1 << 20), Problem(n=1000003)],
    BLOCK=(32, 64, 128, 256, 512, 1024),  # threads per block
    ITEMS=(1, 2, 4, 8),  # elements per thread
)


@saxpy.launch
def launch(c, p):
    return Launch(grid=(ceil_div(p.n, c.BLOCK * c.ITEMS),), block=(c.BLOCK,))


@saxpy.arguments
def arguments(p, rng):
    x, y = (rng.standard_normal(p.n, dtype=np.float32) for _ in "xy")
    return {"x": x, "y": y, "out": Out(p.n), "alpha": rng.uniform(1, 4), "n": p.n}


@saxpy.reference
def reference(x, y, alpha):
    return alpha * x + y


@saxpy.call
def call(alpha, x, y, out=None):
    """Return problem and arguments of a call; arrays have shape and strides, but no data."""
    return Problem(n=x.size), {"x": x, "y": y, "out": out, "alpha": alpha}


@saxpy.work
def work(p):
    return Work(flops=2 * p.n, bytes_read=8 * p.n, bytes_written=4 * p.n)
