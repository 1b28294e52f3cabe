"""hgemm: C = A B in float16 or bfloat16, row-major, with float32 sums on tensor cores; C may be float32.

Three sources take the same arguments. `wmma` (kernels/hgemm_wmma.cu) uses the tensor core API of CUDA C++ and is the
simplest to read. `mma` (kernels/hgemm.cu) is for all GPUs from sm_80 on, `wgmma` (kernels/hgemm_wgmma.cu) for sm_90a.
"""

import numpy as np
from _hgemm import (
    ARGUMENTS,
    PIECE,
    max_shared_bytes,
    needs_padding,
    padded_buffers,
    padded_first,
)
from _hgemm_wgmma import wgmma

from autotune import (
    BFloat16,
    Kernel,
    Launch,
    NothingToDo,
    Operand,
    Out,
    Problem,
    Source,
    Work,
    ceil_div,
    minimum,
)

#: For each type, the largest n for which it represents all integers up to n.
MAX_EXACT_INTEGER = {"float16": 1 << 11, "bfloat16": 1 << 8, "float32": 1 << 24}
#: cudaDataType of each NumPy type. CuPy has no bfloat16: its bits are uint16.
VENDOR_TYPE = {"float16": 2, "uint16": 14, "float32": 0}
#: cublasComputeType_t for float32 sums.
FLOAT32_SUMS = 68
#: cublasGemmAlgo_t: cuBLAS chooses the algorithm.
ANY_ALGORITHM = -1


def product(m, n, k, dtype="float16", out_dtype=None):
    return Problem(m=m, n=n, k=k, dtype=dtype, out_dtype=out_dtype or dtype)


mma = Source(
    "hgemm.cu",
    seeds=[
        {"BM": 128, "BN": 256, "BK": 32, "WM": 64, "WN": 64, "STAGES": 4, "RASTER": 8},
        {"BM": 128, "BN": 256, "BK": 64, "WM": 64, "WN": 64, "STAGES": 3, "RASTER": 8},
        {"BM": 128, "BN": 128, "BK": 32, "WM": 64, "WN": 64, "STAGES": 4, "MIN_BLOCKS": 2},
        {"BM": 128, "BN": 256, "BK": 32, "WM": 64, "WN": 64, "STAGES": 4, "PADDED": True},
        {"BM": 128, "BN": 128, "BK": 32, "WM": 64, "WN": 32, "STAGES": 4, "PADDED": True},
        {"BM": 64, "BN": 64, "BK": 64, "WM": 32, "WN": 32, "STAGES": 4, "MIN_BLOCKS": 2},
        {"BM": 32, "BN": 64, "BK": 64, "WM": 16, "WN": 32, "STAGES": 5, "MIN_BLOCKS": 2},
    ],
    # for GPUs without a record; only Hopper has wgmma
    default={"BM": 128, "BN": 128, "BK": 32, "WM": 64, "WN": 32, "STAGES": 4, "RASTER": 8},
    variants={
        "mma": {"BM": 128, "BN": 256, "BK": 32, "WM": 64, "WN": 64, "STAGES": 4, "RASTER": 8}
    },
    BM=(32, 64, 128, 256),  # rows of C per block
    BN=(64, 128, 256),  # columns of C per block
    BK=(32, 64),  # depth of one pair of tiles
    WM=(16, 32, 64),  # rows of C per warp
    WN=(32, 64),  # columns of C per warp
    STAGES=(3, 4, 5, 6, 8),  # pairs of tiles in shared memory
    LAYOUT=("swizzle", "padded"),  # how rows in shared memory avoid bank conflicts
    PADDED=(False, True),  # first copy unaligned rows to aligned memory
    RASTER=(4, 8, 16),  # rows of blocks that run together, for reuse in the L2 cache
    MIN_BLOCKS=(1, 2, 3, 4),  # blocks that run on one multiprocessor
)

wmma = Source(
    "hgemm_wmma.cu",
    seeds=[{"BM": 128, "BN": 128, "BK": 32, "WM": 64, "WN": 32, "RASTER": 8}],
    variants={"naive": {"BM": 64, "BN": 64, "BK": 32, "WM": 32, "WN": 32, "RASTER": 8}},
    BM=(32, 64, 128, 256),  # rows of C per block
    BN=(64, 128, 256),  # columns of C per block
    BK=(32, 64),  # depth of one pair of tiles
    WM=(16, 32, 64),  # rows of C per warp
    WN=(32, 64),  # columns of C per warp
    RASTER=(4, 8, 16),  # rows of blocks that run together, for reuse in the L2 cache
)

hgemm = Kernel(
    name="hgemm",
    sources={"mma": mma, "wgmma": wgmma, "wmma": wmma},
    backends=("cuda",),
    problems=[
        *(product(size, size, size) for size in (4096, 8192, 1024)),
        *(product(m, 4096, 4096) for m in (1, 16, 128)),
        product(8192, 28672, 8192),
        product(1111, 901, 703),
        product(4096, 4096, 4096, "bfloat16"),
        product(4096, 4096, 4096, "float16", "float32"),
    ],
    quick_problems=[product(4096, 4096, 4096), product(128, 4096, 4096)],
    edge_problems=[
        product(*size, dtype, out_dtype)
        for size in (
            (1, 1, 1),
            (7, 7, 7),
            (130, 264, 0),
            (129, 8, 40),
            (200, 264, 136),  # whole pieces of 16 bytes, but incomplete tiles
            (333, 777, 555),
            (1000, 1000, 1000),
            (20, 136, 1544),  # k for eight parts, the last one empty
        )
        for dtype in ("float16", "bfloat16")
        for out_dtype in (dtype, "float32")
    ],
    static=("dtype", "out_dtype"),
    deterministic=True,  # blocks that share a tile add up in a fixed order
)


# ------------------------------------------------------------------ mma and wmma


@mma.constraint
@wmma.constraint
def device_is_supported(device):
    """bfloat16 on tensor cores needs compute capability 8.0."""
    return device.compute_capability >= 80


@mma.constraint
@wmma.constraint
def warps_make_a_block(BM, BN, WM, WN):
    """A block has 2 to 8 warp tiles."""
    return BM % WM == BN % WN == 0 and 2 <= (BM // WM) * (BN // WN) <= 8


def needed_registers(WM, WN):
    """Return the registers of a thread: sums, operands of two steps, and 40 others."""
    return WM * WN // 32 + (WM + WN) // 2 + 40


@mma.constraint
def fits_registers(BM, BN, WM, WN, MIN_BLOCKS, device):
    """Sums and operands of two steps fit in the registers of a thread."""
    warps = ceil_div((BM // WM) * (BN // WN) * MIN_BLOCKS, 4) or 1
    available = device.registers_per_sm // 4 // (32 * warps) // 8 * 8
    return needed_registers(WM, WN) <= min(255, available)


@wmma.constraint
def fits_registers_of_one_block(BM, BN, WM, WN, device):
    """Sums and operands of two steps fit in the registers of a thread."""
    return fits_registers(BM, BN, WM, WN, 1, device)


def mma_shared_bytes(BM, BN, BK, STAGES, LAYOUT, **others):
    """Return the shared memory of the stages in bytes."""
    pad = 8 if LAYOUT == "padded" else 0
    return 2 * STAGES * (BM * (BK + pad) + BK * (BN + pad))


def wmma_shared_bytes(BM, BN, BK, **others):
    """Return the shared memory in bytes: two tiles, later reused for the sums."""
    return max(2 * (BM * (BK + 8) + BK * (BN + 8)), 4 * BM * (BN + 4))


@mma.constraint
def blocks_fit_shared(BM, BN, BK, STAGES, LAYOUT, MIN_BLOCKS, device):
    """MIN_BLOCKS blocks fit in the shared memory of a multiprocessor."""
    needed = mma_shared_bytes(BM, BN, BK, STAGES, LAYOUT)
    return needed <= max_shared_bytes(MIN_BLOCKS, device)


@wmma.constraint
def tiles_fit_shared(BM, BN, BK, device):
    """The tiles of a block fit in the shared memory of a multiprocessor."""
    return wmma_shared_bytes(BM, BN, BK) <= max_shared_bytes(1, device)


def warp_tiles(c, p):
    """Return the number of blocks of C, and the threads per block."""
    return ceil_div(p.m, c.BM) * ceil_div(p.n, c.BN), 32 * (c.BM // c.WM) * (c.BN // c.WN)


@mma.launch
def launch_mma(c, p, device):
    blocks, threads = warp_tiles(c, p)
    # at most the blocks that run at once
    blocks = minimum(blocks, max(1, device.sm_count) * c.MIN_BLOCKS)
    args = (*ARGUMENTS, *scratch(c, p, device))
    multiply = Launch((blocks,), (threads,), shared_bytes=mma_shared_bytes(**c), args=args)
    return padded_first(c, p, multiply)


@wmma.launch
def launch_wmma(c, p):
    blocks, threads = warp_tiles(c, p)
    return Launch((blocks,), (threads,), shared_bytes=wmma_shared_bytes(**c), args=ARGUMENTS)


# ------------------------------------------------------------------ padded rows


@mma.requires
def requires(c, p):
    """PADDED needs rows that are not whole pieces of 16 bytes."""
    return needs_padding(p) if c.PADDED else True


@mma.scratch
def scratch(c, p, device):
    return padded_buffers(c, p)


# ------------------------------------------------------------------ arguments


@hgemm.arguments
def arguments(p, rng):
    """Return the arguments in the order of the kernel. Exact data have zeros in A, so that C holds all sums exactly."""
    a, b = rng.standard_normal((p.m, p.k)), rng.standard_normal((p.k, p.n))
    if rng.exact:
        # ±1 and ±2 have a mean square of 2.5. Sums reach about six times their standard deviation.
        nonzeros = (MAX_EXACT_INTEGER[p.out_dtype] / 6.5 / 2.5) ** 2
        period = int(max(1, np.ceil(p.k / nonzeros)))
        a[rng.integers(0, period, a.shape, np.uint16) > 0] = 0
    if p.dtype == "bfloat16":
        a, b = BFloat16(a), BFloat16(b)
    else:
        a, b = a.astype(np.float16), b.astype(np.float16)
    return {"a": a, "b": b, "c": Out((p.m, p.n), p.out_dtype), "m": p.m, "n": p.n, "k": p.k}


@hgemm.reference
def reference(a, b):
    return a @ b


@hgemm.tolerance
def tolerance(p):
    """Bound the rounding of the largest element, and of sums that the tensor core truncates every 16 products."""
    eps = float(np.finfo(np.float32).eps)
    rounding = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": eps}[p.out_dtype]
    return rounding * (4 * p.k**0.5 + 16) + eps * (0.5 * p.k**1.5 + 64)


@hgemm.work
def work(p):
    out_bytes = 4 if p.out_dtype == "float32" else 2
    return Work(
        flops=2 * p.m * p.n * p.k,
        bytes_read=2 * (p.m * p.k + p.k * p.n),
        bytes_written=out_bytes * p.m * p.n,
        pipe="tensor",
    )


@hgemm.call
def call(a, b, out=None, *, out_dtype=None):
    """Multiply two matrices; the result has their type, or float32 with ``out`` or ``out_dtype``."""
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"a is {a} and b is {b}: pass two matrices, m x k and k x n")
    (m, k), n = a.shape, b.shape[1]
    out = Operand.new((m, n), out_dtype or a.dtype) if out is None else out
    if a.dtype not in ("float16", "bfloat16") or b.dtype != a.dtype:
        raise ValueError(f"a is {a} and b is {b}: pass both in float16 or both in bfloat16")
    if out.shape != (m, n) or out.dtype not in (a.dtype, "float32"):
        raise ValueError(f"out is {out}: it must be {m} x {n}, in {a.dtype} or float32")
    for name, array in {"a": a, "b": b, "out": out}.items():
        if not array.is_contiguous or array.offset % PIECE:
            raise ValueError(
                f"{name} is {array}: it must be contiguous and aligned to 16 bytes; copy it"
            )
    if not m * n:
        return NothingToDo((out,))
    problem = product(m, n, k, a.dtype, out.dtype)
    return problem, {"a": a, "b": b, "c": out, "m": m, "n": n, "k": k}


@hgemm.baseline("cublas")
def cublas(a, b, c, m, n, k):
    """Call cublasGemmEx with float32 sums. It is column-major, so it computes C' = B' A'."""
    from autotune.vendor import PLAIN, cublas_call

    input_type, output_type = VENDOR_TYPE[a.dtype.name], VENDOR_TYPE[c.dtype.name]
    operands = (1.0, b, input_type, n, a, input_type, k, 0.0, c, output_type, n)
    return cublas_call(
        "cublasGemmEx", PLAIN, PLAIN, n, m, k, *operands, FLOAT32_SUMS, ANY_ALGORITHM
    )
