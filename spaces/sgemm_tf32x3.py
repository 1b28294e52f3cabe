"""sgemm_tf32x3: C = alpha A B + beta C in float32, row-major, by three TF32 products on tensor cores.

As accurate as float32 arithmetic: every number is split into two TF32 numbers, and the tensor core's
sums, which it truncates, are moved to float32 registers before truncation adds up.
"""

import numpy as np

from autotune import InOut, Kernel, Launch, Problem, Work, ceil_div


def square(n):
    return Problem(m=n, n=n, k=n)


#: Registers that a thread needs besides accumulators and fragments: addresses, counters, predicates.
REGISTERS_BESIDES = 28

#: Depth up to which exact data may have low bits: beyond, sums of them could need more than 24 bits.
DEEPEST_LOW_BITS = 32768

sgemm_tf32x3 = Kernel(
    "sgemm_tf32x3.cu",
    backends=("cuda",),
    problems=[square(n) for n in (1024, 2048, 4096, 8192, 1000)],
    quick_problems=[square(1024), square(4096)],
    edge_problems=[
        square(1),
        square(7),
        Problem(m=1, n=300, k=5),
        Problem(m=129, n=4, k=33),
        Problem(m=100, n=132, k=68),
        Problem(m=127, n=131, k=129),
    ],
    BM=(64, 128, 256),  # rows of C per block
    BN=(64, 128, 256),  # columns of C per block
    BK=(16, 32),  # depth of one pair of tiles
    WM=(16, 32, 64),  # rows of C per warp
    WN=(32, 64),  # columns of C per warp
    STAGES=(2, 3, 4, 5),  # pairs of tiles, all but one on their way
    FLUSH=(16, 32, 64),  # products summed up in the tensor core
    RASTER=(1, 8),  # rows of blocks that run together, for the L2 cache
    MIN_BLOCKS=(1, 2, 3, 4),  # blocks that must fit on one multiprocessor
)


def threads(BM, BN, WM, WN):
    return 32 * (BM // WM) * (BN // WN)


@sgemm_tf32x3.constraint
def has_tf32(FLUSH, device):
    """TF32 needs compute capability 8.0."""
    return int("".join(filter(str.isdigit, device.arch))) >= 80


@sgemm_tf32x3.constraint
def warps_make_a_block(BM, BN, WM, WN):
    """A block is 2 to 16 warp tiles."""
    return BM % WM == BN % WN == 0 and 2 <= (BM // WM) * (BN // WN) <= 16


@sgemm_tf32x3.constraint
def fits_registers(BM, BN, WM, WN, MIN_BLOCKS, device):
    """Two sets of accumulators, the numbers read and their halves fit a thread's registers."""
    needed = (2 * WM * WN + 24 * (WM + WN)) // 32 + REGISTERS_BESIDES
    # Each of the four schedulers of a multiprocessor has a quarter of the registers for its own warps.
    warps = ceil_div((BM // WM) * (BN // WN) * MIN_BLOCKS, 4)
    available = device.registers_per_sm // 4 // (32 * warps) // 8 * 8
    return needed <= min(255, available)


def shared_bytes(BM, BN, BK, STAGES):
    """A's rows are padded by 8 floats."""
    return 4 * STAGES * (BM * (BK + 8) + BK * BN)


@sgemm_tf32x3.constraint
def fits_shared(BM, BN, BK, STAGES, MIN_BLOCKS, device):
    """MIN_BLOCKS blocks fit in a multiprocessor's shared memory, 1 KB of it per block reserved."""
    limit = min(device.shared_bytes_per_block, device.shared_bytes_per_sm // MIN_BLOCKS - 1024)
    return shared_bytes(BM, BN, BK, STAGES) <= limit


@sgemm_tf32x3.launch
def launch(c, p):
    return Launch(
        grid=(ceil_div(p.m, c.BM) * ceil_div(p.n, c.BN),),
        block=(threads(c.BM, c.BN, c.WM, c.WN),),
        shared_bytes=shared_bytes(c.BM, c.BN, c.BK, c.STAGES),
    )


@sgemm_tf32x3.arguments
def arguments(p, rng):
    """In the kernel's order. Small problems add to C; elsewhere C holds NaN, which must not get through.

    Exact data are small integers, of which TF32 loses nothing. Every other column of A and, in between,
    every other row of B get a bit that only the low half of a number holds.
    """
    adds = p.m * p.n * p.k < 1 << 22
    a, b = rng.standard_normal((p.m, p.k)), rng.standard_normal((p.k, p.n))
    if rng.exact and p.k <= DEEPEST_LOW_BITS:
        a[:, ::2] *= np.float32(1 + 2.0**-12)
        b[1::2] *= np.float32(1 + 2.0**-12)
    c = rng.standard_normal((p.m, p.n)) if adds else np.full((p.m, p.n), np.nan, np.float32)
    return {
        "a": a,
        "b": b,
        "c": InOut(c),
        "alpha": 2.0 if adds else 1.0,
        "beta": 0.5 if adds else 0.0,
        "m": p.m,
        "n": p.n,
        "k": p.k,
    }


@sgemm_tf32x3.reference
def reference(a, b, c, alpha, beta):
    product = alpha * (a @ b)
    return product + beta * c if beta else product


@sgemm_tf32x3.tolerance
def tolerance(p):
    """Half of what plain float32 is given (spaces/sgemm.py): what is never moved to float32 fails."""
    return float(np.finfo(np.float32).eps) * (2 * p.k + 64)


@sgemm_tf32x3.work
def work(p):
    return Work(
        flops=2 * p.m * p.n * p.k,
        bytes_read=4 * (p.m * p.k + p.k * p.n),
        bytes_written=4 * p.m * p.n,
        pipe="tf32x3",
    )


@sgemm_tf32x3.call
def call(a, b, c=None, alpha=1.0, beta=0.0):
    (m, k), n = a.shape, b.shape[1]
    problem = Problem(m=m, n=n, k=k)
    given = {"a": a, "b": b, "alpha": np.float32(alpha), "beta": np.float32(beta), **problem}
    return problem, given if c is None else {**given, "c": c}


@sgemm_tf32x3.baseline("cublas")
def cublas(a, b, c, alpha, beta, m, n, k):
    """cublasSgemm in plain float32. It is column-major, so it is asked for C' = B' A'."""
    from cupy.cuda import get_current_stream
    from cupy_backends.cuda.libs import cublas as library

    handle = library.create()
    library.setStream(handle, get_current_stream().ptr)
    library.setMathMode(handle, library.CUBLAS_DEFAULT_MATH)  # never TF32 for cublasSgemm
    scalars = np.array([alpha, beta], np.float32)
    m, n, k = int(m), int(n), int(k)
    at = scalars.ctypes.data
    plain = library.CUBLAS_OP_N

    def multiply():
        left, right, result = b.data.ptr, a.data.ptr, c.data.ptr
        library.sgemm(handle, plain, plain, n, m, k, at, left, n, right, k, at + 4, result, n)

    multiply.scalars = scalars  # kept alive: the library reads them at every call
    return multiply
