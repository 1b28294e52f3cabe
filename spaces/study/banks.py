"""banks: reads of shared memory at a stride, by kernels/study/banks.cu; shows bank conflicts."""

import numpy as np

from autotune import Kernel, Launch, Out, Problem, Work, ceil_div

#: Words of shared memory that the threads read.
WORDS = 2048


def strided(n, stride, reads=256):
    """Return a problem with n threads of `reads` words each; adjacent threads are `stride` words apart."""
    return Problem(n=n, stride=stride, reads=reads)


banks = Kernel(
    "banks.cu",
    problems={
        "cuda": [strided(1 << 18, stride, 1024) for stride in (0, 1, 2, 3, 4, 8, 16, 32, 33)],
        "opencl": [strided(1 << 13, 1), strided(1 << 13, 32)],
    },
    edge_problems=[strided(1, 1, 1), strided(1001, 32, 7), strided(333, 33, 100)],
    static=("stride", "reads"),
    variants={layout: {"LAYOUT": layout} for layout in ("plain", "padded", "xor")},
    deterministic=True,  # a thread adds up its own words in a fixed order
    BLOCK=(256, 32, 64, 128, 512, 1024),  # threads per block
    LAYOUT=("plain", "padded", "xor"),  # how to avoid bank conflicts
    UNROLL=(8, 1, 32),  # unrolled reads
)


@banks.launch
def launch(c, p):
    return Launch(grid=(ceil_div(p.n, c.BLOCK),), block=(c.BLOCK,), args=("x", "out", "n"))


@banks.arguments
def arguments(p, rng):
    words = {"x": rng.standard_normal(WORDS), "out": Out(p.n), "n": p.n}
    return {**words, "stride": p.stride, "reads": p.reads}


@banks.reference
def reference(x, n, stride, reads):
    """Return the sum of `reads` words for each thread, computed by lane."""
    first = np.arange(32)[:, None] * stride
    sums = x[(first + np.arange(reads)) % WORDS].sum(1)
    return sums[np.arange(n) % 32]


@banks.tolerance
def tolerance(p):
    """Bound the error of one chain of additions of normal numbers."""
    return float(np.finfo(np.float32).eps) * (4 * p.reads + 4)


@banks.work
def work(p):
    """Count global memory only; the kernel is bound by shared memory, whose limit is not measured."""
    return Work(flops=p.n * p.reads, bytes_read=4 * WORDS, bytes_written=4 * p.n)
