"""unroll: a tiled float32 product, by kernels/study/unroll.cu; shows unrolling and register limits."""

import numpy as np

from autotune import Kernel, Launch, Out, Problem, Work, ceil_div


def product(m, n=None, k=None):
    return Problem(m=m, n=n or m, k=k or m)


unroll = Kernel(
    "unroll.cu",
    problems={"cuda": [product(512), product(2048)], "opencl": [product(96), product(65, 33, 47)]},
    edge_problems=[product(1), product(33, 65, 17), product(129, 7, 100)],
    seeds=[
        *({"TILE": 16, "SIDE": 1, "UNROLL": by} for by in (0, 1, 4, 8)),
        *({"TILE": 16, "SIDE": 1, "UNROLL": 0, "CAP": cap} for cap in (32, 64)),
        *({"TILE": 16, "SIDE": 8, "UNROLL": 0, "CAP": cap} for cap in (0, 128, 64, 32)),
    ],
    variants={
        "naive": {},
        "rolled": {"UNROLL": 1},
        "cap_32": {"CAP": 32},
        "square": {"SIDE": 8},
        "square_cap_64": {"SIDE": 8, "CAP": 64},
    },
    deterministic=True,  # a thread adds up an element in the order of k
    TILE=(16, 8, 32),  # threads along each side of a block, and depth of a tile
    SIDE=(1, 4, 8),  # elements along each side of the square of a thread
    UNROLL=(0, 1, 2, 4, 8, 16),  # unrolled steps of k; 0: no pragma
    CAP=(0, 24, 32, 40, 64, 96, 128, 255),  # largest number of registers per thread; 0: no limit
)


@unroll.constraint
def register_limit_needs_cuda(CAP, device):
    """OpenCL cannot limit registers."""
    return CAP == 0 or device.backend == "cuda"


@unroll.constraint
def fits(TILE, SIDE, CAP, device):
    """Tiles, threads and registers of a block fit; a block of 1024 threads has 64 registers per thread."""
    threads = TILE * TILE
    shared = 8 * SIDE * threads <= min(49152, device.shared_bytes_per_block)
    registers = device.backend != "cuda" or threads * max(CAP, 24) <= device.registers_per_sm
    return shared and registers and threads <= device.max_threads_per_block


@unroll.launch
def launch(c, p):
    side = c.TILE * c.SIDE
    return Launch(grid=(ceil_div(p.m, side) * ceil_div(p.n, side),), block=(c.TILE, c.TILE))


@unroll.arguments
def arguments(p, rng):
    a, b = rng.standard_normal((p.m, p.k)), rng.standard_normal((p.k, p.n))
    return {"a": a, "b": b, "c": Out((p.m, p.n)), "m": p.m, "n": p.n, "k": p.k}


@unroll.reference
def reference(a, b):
    return a @ b


@unroll.tolerance
def tolerance(p):
    """Bound the error of one chain of k additions of products of normal numbers, at 8 standard deviations."""
    return float(np.finfo(np.float32).eps) * (8 * p.k + 8)


@unroll.work
def work(p):
    return Work(
        flops=2 * p.m * p.n * p.k,
        bytes_read=4 * (p.m + p.n) * p.k,
        bytes_written=4 * p.m * p.n,
    )


@unroll.baseline("cublas")
def cublas(a, b, c, m, n, k):
    """Call cublasSgemm, which is column-major: it computes C' = B' A'."""
    from autotune.vendor import PLAIN, cublas_call

    return cublas_call("cublasSgemm_v2", PLAIN, PLAIN, n, m, k, 1.0, b, n, a, k, 0.0, c, n)
