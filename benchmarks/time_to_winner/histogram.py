"""histogram: how often each byte occurs in a vector; see histogram.cu."""

import numpy as np

from autotune import Fill, Kernel, Launch, Out, Problem, Work, ceil_div, minimum

histogram = Kernel(
    "histogram.cu",
    problems={"cuda": [Problem(n=1 << 30)], "opencl": [Problem(n=1 << 20)]},
    BLOCK=(64, 128, 256, 512, 1024),  # threads per block
    VEC=(4, 8, 16),  # bytes per load
    COPIES=(1, 2, 4, 8, 16),  # histograms of a block
    PADDED=(0, 1),  # a counter between two histograms
    RUNS=(0, 1),  # equal bytes in a row at once
    WAVES=(1, 2, 4, 8),  # blocks per multiprocessor
)


@histogram.applies("PADDED")
def several(COPIES):
    return COPIES > 1


@histogram.constraint
def threads_share(BLOCK, COPIES):
    """Each histogram has at least a warp of threads."""
    return 32 * COPIES <= BLOCK


@histogram.launch
def launch(c, p, device):
    blocks = minimum(ceil_div(p.n, c.BLOCK * c.VEC), c.WAVES * device.sm_count)
    return Fill("out", 0), Launch(grid=(blocks,), block=(c.BLOCK,))


@histogram.arguments
def arguments(p, rng):
    return {"x": rng.integers(0, 256, p.n, dtype=np.uint8), "out": Out(256, "int32"), "n": p.n}


@histogram.reference
def reference(x):
    return np.bincount(x, minlength=256)


@histogram.work
def work(p):
    return Work(flops=p.n, bytes_read=p.n, bytes_written=4 * 256)
