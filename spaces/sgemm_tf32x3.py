"""sgemm_tf32x3: C = alpha A B + beta C in float32, row-major, by three TF32 products on tensor cores.

As accurate as float32 arithmetic: every number is split into two TF32 numbers, and the tensor core's
sums, which it truncates, are moved to float32 registers before truncation adds up. Two sources with the
same arguments: `mma` (kernels/sgemm_tf32x3.cu) for every GPU since sm_80, `wgmma`
(kernels/sgemm_tf32x3_wgmma.cu) for sm_90a.
"""

import numpy as np

from autotune import InOut, Kernel, Launch, Problem, Work, ceil_div


def square(n):
    return Problem(m=n, n=n, k=n)


def product(m, n, k):
    return Problem(m=m, n=n, k=k)


def mma_tiles(BM, BN, BK, WM, WN, **others):
    """A configuration of the mma source by its tiles."""
    tiles = {"BM": BM, "BN": BN, "BK": BK, "WM": WM, "WN": WN}
    return {"VARIANT": "mma", **tiles, "FLUSH": 32, "RASTER": 8, **others}


def wgmma_tiles(BM, BN, STAGES, **others):
    """A configuration of the wgmma source by its tiles."""
    tiles = {"BM": BM, "BN": BN, "WM": BM // 2, "STAGES": STAGES}
    return {"VARIANT": "wgmma", **tiles, "RASTER": 8, **others}


#: Registers that a thread needs besides accumulators and fragments: addresses, counters, predicates.
REGISTERS_BESIDES = 28

#: Depth up to which exact data may have low bits: beyond, sums of them could need more than 24 bits.
DEEPEST_LOW_BITS = 32768

sgemm_tf32x3 = Kernel(
    sources={"mma": "sgemm_tf32x3.cu", "wgmma": "sgemm_tf32x3_wgmma.cu"},
    backends=("cuda",),
    problems=[
        *[square(n) for n in (1024, 2048, 4096, 8192, 1000, 512, 1536)],
        product(777, 1234, 999),
        product(4096, 4096, 64),
        product(16384, 512, 1024),
        product(128, 4096, 4096),
    ],
    quick_problems=[square(1024), square(4096)],
    edge_problems=[
        square(1),
        square(7),
        product(1, 300, 5),
        product(129, 4, 33),
        product(100, 132, 68),
        product(127, 131, 129),
    ],
    seeds=[
        # tiles for whole waves on large matrices, and more of them for small ones
        wgmma_tiles(256, 128, 3),
        wgmma_tiles(256, 128, 3, VECTORS=False),
        wgmma_tiles(128, 128, 4),
        wgmma_tiles(128, 64, 5),
        mma_tiles(128, 128, 16, 32, 64, STAGES=4),
        mma_tiles(64, 128, 16, 64, 32, STAGES=4, MIN_BLOCKS=2),
        mma_tiles(64, 128, 16, 32, 32, STAGES=3),
        mma_tiles(64, 64, 32, 32, 32, STAGES=3, MIN_BLOCKS=3),
    ],
    default=wgmma_tiles(128, 128, 4),
    VARIANT=("mma", "wgmma"),
    BM=(64, 128, 256),  # rows of C per block
    BN=(64, 128, 256),  # columns of C per block
    BK=(16, 32),  # depth of one pair of tiles
    WM=(16, 32, 64, 128),  # rows of C per warp; wgmma: per warpgroup
    WN=(32, 64),  # columns of C per warp
    STAGES=(2, 3, 4, 5),  # pairs of tiles in shared memory
    FLUSH=(16, 32),  # products of an element summed up in the tensor core
    VECTORS=(True, False),  # wgmma: load B 16 bytes at a time where its rows are aligned
    RASTER=(4, 8, 16),  # rows of blocks that run together, for the L2 cache
    MIN_BLOCKS=(1, 2, 3, 4),  # blocks that must fit on one multiprocessor
)


@sgemm_tf32x3.applies("BK", "WN", "FLUSH", "MIN_BLOCKS")
def mma(VARIANT):
    """wgmma: steps of 32, which are also what it sums up, and one block per multiprocessor."""
    return VARIANT == "mma"


@sgemm_tf32x3.applies("VECTORS")
def wgmma(VARIANT):
    return VARIANT == "wgmma"


@sgemm_tf32x3.constraint
def variant_runs_here(VARIANT, device):
    """mma needs compute capability 8.0; only 9.0 has wgmma."""
    capability = device.compute_capability
    return capability >= 80 if VARIANT == "mma" else capability == 90


@sgemm_tf32x3.constraint
def warps_make_a_block(BM, BN, WM, WN):
    """mma: a block is 2 to 16 warp tiles."""
    return BM % WM == BN % WN == 0 and 2 <= (BM // WM) * (BN // WN) <= 16


@sgemm_tf32x3.constraint
def warpgroups_take_turns(VARIANT, BM, BN, WM):
    """wgmma: two warpgroups of 64 or 128 rows; 128 columns are all that their registers hold."""
    return VARIANT == "mma" or (WM >= 64 and BM == 2 * WM and BN <= 128)


@sgemm_tf32x3.constraint
def flushes_between_steps(BK, FLUSH):
    """mma: additions to the second set of accumulators within a step leave no registers for overlap."""
    return FLUSH >= BK


@sgemm_tf32x3.constraint
def fits_registers(BM, BN, WM, WN, MIN_BLOCKS, device):
    """mma: two sets of accumulators, the numbers read and their halves fit a thread's registers."""
    needed = (2 * WM * WN + 24 * (WM + WN)) // 32 + REGISTERS_BESIDES
    # Each of the four schedulers of a multiprocessor has a quarter of the registers for its own warps.
    warps = ceil_div((BM // WM) * (BN // WN) * MIN_BLOCKS, 4)
    available = device.registers_per_sm // 4 // (32 * warps) // 8 * 8 if warps else 0
    return needed <= min(255, available)


def shared_bytes(VARIANT, BM, BN, BK, STAGES):
    """mma: A's rows are padded by 8 floats. wgmma: A's tile, both halves of B's; barriers and alignment."""
    if VARIANT == "mma":
        return 4 * STAGES * (BM * (BK + 8) + BK * BN)
    return 4 * STAGES * 32 * (BM + 2 * BN) + 2048


@sgemm_tf32x3.constraint
def blocks_fit_shared(BM, BN, BK, STAGES, MIN_BLOCKS, device):
    """mma: MIN_BLOCKS blocks fit in a multiprocessor's shared memory, 1 KB of it per block reserved."""
    limit = min(device.shared_bytes_per_block, device.shared_bytes_per_sm // MIN_BLOCKS - 1024)
    return shared_bytes("mma", BM, BN, BK, STAGES) <= limit


@sgemm_tf32x3.constraint
def stages_fit_shared(VARIANT, BM, BN, STAGES, device):
    """wgmma: the stages fit in shared memory."""
    return (
        VARIANT == "mma"
        or shared_bytes("wgmma", BM, BN, 32, STAGES) <= device.shared_bytes_per_block
    )


@sgemm_tf32x3.launch
def launch(c, p):
    threads = 384 if c.VARIANT == "wgmma" else 32 * (c.BM // c.WM) * (c.BN // c.WN)
    return Launch(
        grid=(ceil_div(p.m, c.BM) * ceil_div(p.n, c.BN),),
        block=(threads,),
        shared_bytes=shared_bytes(c.VARIANT, c.BM, c.BN, c.BK, c.STAGES),
    )


@sgemm_tf32x3.options
def options(c):
    return ["sm_90a"] if c.VARIANT == "wgmma" else []


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
    """What plain float32 is given (spaces/sgemm.py), which the vendor's float32 product needs too.

    What is never moved to float32 registers fails: its error is 25 times cuBLAS's.
    """
    return float(np.finfo(np.float32).eps) * (4 * p.k + 64)


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
    from autotune.vendor import PLAIN, cublas_call

    return cublas_call("cublasSgemm_v2", PLAIN, PLAIN, n, m, k, alpha, b, n, a, k, beta, c, n)
