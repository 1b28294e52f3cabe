"""hgemm: C = A B of halves or bfloat16, with float32 sums on tensor cores; C in their type or float32, row-major.

Three sources with the same arguments: `wmma` (kernels/hgemm_wmma.cu), the tensor cores as CUDA C++ has them, to read;
`mma` (kernels/hgemm.cu) for every GPU since sm_80; `wgmma` (kernels/hgemm_wgmma.cu) for sm_90a.
"""

import numpy as np

from autotune import (
    BFloat16,
    Kernel,
    Launch,
    NothingToDo,
    Operand,
    Out,
    Problem,
    Work,
    ceil_div,
    minimum,
)

#: The largest integer up to which all are numbers of a type.
WHOLE = {"float16": 1 << 11, "bfloat16": 1 << 8, "float32": 1 << 24}
#: cudaDataType; bits of bfloat16 are integers to CuPy. cublasComputeType_t and cublasGemmAlgo_t.
VENDOR_TYPE = {"float16": 2, "uint16": 14, "float32": 0}
FLOAT32_SUMS, ANY_ALGORITHM = 68, -1
#: Halves of a step of k in the wgmma source; in 16 bytes. Bytes that describe a matrix to the memory accelerator.
DEPTH, PIECE, MAP_BYTES = 64, 8, 128
#: Pieces of A and B that a launch can pad.
MOST_PIECES = 1 << 31


def product(m, n, k, dtype="float16", out_dtype=None):
    return Problem(m=m, n=n, k=k, dtype=dtype, out_dtype=out_dtype or dtype)


def tiles(VARIANT, BM, BN, **others):
    """A configuration by its tiles."""
    return {"VARIANT": VARIANT, "BM": BM, "BN": BN, "RASTER": 8, **others}


hgemm = Kernel(
    sources={"mma": "hgemm.cu", "wgmma": "hgemm_wgmma.cu", "wmma": "hgemm_wmma.cu"},
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
            (200, 264, 136),  # whole pieces, but no whole tiles
            (333, 777, 555),
            (1000, 1000, 1000),
            (20, 136, 1544),  # k for eight parts, of which the last is empty
        )
        for dtype in ("float16", "bfloat16")
        for out_dtype in (dtype, "float32")
    ],
    static=("dtype", "out_dtype"),
    seeds=[
        # large matrices
        tiles("wgmma", 128, 256, STAGES=4),
        tiles("wgmma", 256, 128, STAGES=4),
        *(tiles("wgmma", 128, 256, STAGES=4, CLUSTER=2, PADDED=padded) for padded in (False, True)),
        *(tiles("wgmma", 128, 128, STAGES=6, PADDED=padded) for padded in (False, True)),
        *(tiles("wgmma", 128, 64, STAGES=8, SPLITK=parts) for parts in (1, 2)),
        tiles("wgmma", 128, 128, STAGES=6, SPLITK=4),
        tiles("mma", 128, 256, BK=32, WM=64, WN=64, STAGES=4),
        tiles("mma", 128, 256, BK=64, WM=64, WN=64, STAGES=3),
        tiles("mma", 128, 128, BK=32, WM=64, WN=64, STAGES=4, MIN_BLOCKS=2),
        tiles("mma", 128, 128, BK=32, WM=64, WN=32, STAGES=4),
        tiles("mma", 128, 256, BK=32, WM=64, WN=64, STAGES=4, PADDED=True),
        tiles("mma", 128, 128, BK=32, WM=64, WN=32, STAGES=4, PADDED=True),
        tiles("mma", 64, 64, BK=64, WM=32, WN=32, STAGES=4, MIN_BLOCKS=2),
        tiles("mma", 32, 64, BK=64, WM=16, WN=32, STAGES=5, MIN_BLOCKS=2),
        tiles("wmma", 128, 128, BK=32, WM=64, WN=32),
    ],
    # for GPUs that nobody tuned: wgmma is Hopper's alone
    default=tiles("mma", 128, 128, BK=32, WM=64, WN=32, STAGES=4),
    variants={
        "naive": tiles("wmma", 64, 64, BK=32, WM=32, WN=32),
        "mma": tiles("mma", 128, 256, BK=32, WM=64, WN=64, STAGES=4),
        "wgmma": tiles("wgmma", 128, 256, STAGES=4, CLUSTER=2),
    },
    deterministic=True,  # blocks that share a tile are added up in one order
    VARIANT=("mma", "wgmma", "wmma"),
    BM=(32, 64, 128, 256),  # rows of C per block
    BN=(64, 128, 256),  # columns of C per block
    BK=(32, 64),  # depth of one pair of tiles; wgmma: always 64
    WM=(16, 32, 64),  # rows of C per warp
    WN=(32, 64),  # columns of C per warp
    STAGES=(3, 4, 5, 6, 8),  # pairs of tiles in shared memory
    LAYOUT=("swizzle", "padded"),  # mma: how rows in shared memory avoid each other's banks
    CLUSTER=(1, 2),  # wgmma: blocks that share tiles of B
    SPLITK=(1, 2, 4, 8),  # wgmma: blocks, as one cluster, that share a tile of C
    PADDED=(False, True),  # rows that are not aligned are copied first to where they are
    RASTER=(4, 8, 16),  # rows of blocks that run together, for the L2 cache
    MIN_BLOCKS=(1, 2, 3, 4),  # mma: blocks that run on one multiprocessor
)


@hgemm.applies("BK", "WM", "WN")
def warps(VARIANT):
    """wgmma: a warpgroup has half of the rows."""
    return VARIANT != "wgmma"


@hgemm.applies("STAGES", "PADDED")
def pipeline(VARIANT):
    return VARIANT != "wmma"


@hgemm.applies("LAYOUT", "MIN_BLOCKS")
def mma(VARIANT):
    return VARIANT == "mma"


@hgemm.applies("CLUSTER", "SPLITK")
def wgmma(VARIANT):
    return VARIANT == "wgmma"


@hgemm.constraint
def variant_runs_here(VARIANT, device):
    """mma, and bfloat16 at all, need compute capability 8.0; only 9.0 has wgmma."""
    capability = device.compute_capability
    return capability == 90 if VARIANT == "wgmma" else capability >= 80


@hgemm.constraint
def warps_make_a_block(BM, BN, WM, WN):
    """A block is 2 to 8 warp tiles."""
    return BM % WM == BN % WN == 0 and 2 <= (BM // WM) * (BN // WN) <= 8


@hgemm.constraint
def warpgroups_make_a_block(VARIANT, BM, BN):
    """wgmma: two warpgroups have 64 or 128 rows each, and sums that fit their registers."""
    return VARIANT != "wgmma" or (BM >= 128 and BM * BN <= 128 * 256)


@hgemm.constraint
def clusters_share_panels(VARIANT, BN, CLUSTER, SPLITK):
    """wgmma: B's tile is brought in panels of 64 columns; who splits k shares nothing."""
    return CLUSTER == 1 or (BN >= 128 and SPLITK == 1)


@hgemm.constraint
def fits_registers(BM, BN, WM, WN, MIN_BLOCKS, device):
    """mma: sums, and the operands of two steps, fit a thread's registers."""
    needed = WM * WN // 32 + (WM + WN) // 2 + 40
    warps = ceil_div((BM // WM) * (BN // WN) * MIN_BLOCKS, 4) or 1
    return needed <= min(255, device.registers_per_sm // 4 // (32 * warps) // 8 * 8)


def shared_bytes(VARIANT, BM, BN, BK, STAGES, LAYOUT, SPLITK, **others):
    """Stages; wgmma: what aligns them, barriers, and the sums that blocks add up; wmma: two tiles or the sums."""
    if VARIANT == "wgmma":
        stages = 2 * DEPTH * STAGES * (BM + BN)
        return max(stages, 4 * BM * (BN + 8) if SPLITK > 1 else 0) + 2048
    if VARIANT == "wmma":
        return max(2 * (BM * (BK + 8) + BK * (BN + 8)), 4 * BM * (BN + 4))
    pad = 8 if LAYOUT == "padded" else 0
    return 2 * STAGES * (BM * (BK + pad) + BK * (BN + pad))


@hgemm.constraint
def blocks_fit_shared(VARIANT, BM, BN, BK, STAGES, LAYOUT, SPLITK, MIN_BLOCKS, device):
    """Blocks fit in a multiprocessor's shared memory, of which 1 KB per block is reserved."""
    limit = min(device.shared_bytes_per_block, device.shared_bytes_per_sm // MIN_BLOCKS - 1024)
    return shared_bytes(VARIANT, BM, BN, BK, STAGES, LAYOUT, SPLITK) <= limit


def pieces(rows, columns):
    """Of 16 bytes in a matrix whose rows are padded."""
    return rows * ceil_div(columns, PIECE)


@hgemm.requires
def requires(c, p):
    """Only rows that are not whole pieces are padded, and wgmma needs whole ones; a part of k is two steps."""
    odd, fits = p.k % PIECE + p.n % PIECE >= 1, True
    if c.PADDED:
        fits &= odd & (pieces(p.m, p.k) + pieces(p.k, p.n) <= MOST_PIECES)
    elif c.VARIANT == "wgmma":
        fits &= p.k % PIECE + p.n % PIECE == 0
    if c.VARIANT == "wgmma":
        fits &= p.k >= 1
    if c.SPLITK > 1:
        fits &= p.k >= 2 * DEPTH * c.SPLITK
    return fits


def grid(c, p, device):
    """Blocks of C; but for wmma and where k is split, whole clusters, at most what runs at once."""
    blocks = ceil_div(p.m, c.CLUSTER * c.BM) * c.CLUSTER * ceil_div(p.n, c.BN)
    if c.VARIANT == "wmma" or c.SPLITK > 1:
        return blocks
    return minimum(blocks, max(1, device.sm_count // c.CLUSTER) * c.CLUSTER * c.MIN_BLOCKS)


@hgemm.scratch
def scratch(c, p, device):
    buffers = {}
    if c.VARIANT == "wgmma":
        buffers["maps"] = Out(MAP_BYTES * (2 * grid(c, p, device) * c.SPLITK + 1), "uint8")
    if c.PADDED:
        sizes = {"padded_a": pieces(p.m, p.k), "padded_b": pieces(p.k, p.n)}
        buffers |= {name: Out(PIECE * size, "uint16") for name, size in sizes.items()}
    return buffers


@hgemm.launch
def launch(c, p, device):
    args = ("a", "b", "c", "m", "n", "k", *scratch(c, p, device))
    blocks, threads = grid(c, p, device), 32 * (c.BM // c.WM) * (c.BN // c.WN)
    dims = (blocks, 1, c.SPLITK) if c.SPLITK > 1 else (blocks,)
    if c.VARIANT == "wgmma":
        threads = 384
    multiply = Launch(dims, (threads,), shared_bytes=shared_bytes(**c), args=args)
    if not c.PADDED:
        return multiply
    blocks = ceil_div(pieces(p.m, p.k) + pieces(p.k, p.n), 256)
    args = ("a", "b", "m", "n", "k", "padded_a", "padded_b")
    return Launch((blocks,), (256,), entry="hgemm_pad", args=args), multiply


@hgemm.options
def options(c):
    return ["sm_90a"] if c.VARIANT == "wgmma" else []


@hgemm.arguments
def arguments(p, rng):
    """In the kernel's order. Exact data have few enough numbers in a row of A for sums that C's type holds."""
    a, b = rng.standard_normal((p.m, p.k)), rng.standard_normal((p.k, p.n))
    if rng.exact:
        # ±1 and ±2 have a mean square of 2.5; sums reach six times the root of theirs
        most = (WHOLE[p.out_dtype] / 6.5 / 2.5) ** 2
        every = int(max(1, np.ceil(p.k / most)))
        a[rng.integers(0, every, a.shape, np.uint16) > 0] = 0
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
    """Half a unit of the largest element, and of sums that the tensor core truncates 16 products at a time."""
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
    """Of two matrices; C is in their type unless ``out`` or ``out_dtype`` says float32."""
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"a is {a} and b is {b}: two matrices are needed, m x k and k x n")
    (m, k), n = a.shape, b.shape[1]
    out = Operand.new((m, n), out_dtype or a.dtype) if out is None else out
    if a.dtype not in ("float16", "bfloat16") or b.dtype != a.dtype:
        raise ValueError(f"a is {a} and b is {b}: both in float16 or bfloat16 are needed")
    if out.shape != (m, n) or out.dtype not in (a.dtype, "float32"):
        raise ValueError(f"out is {out}: {a.dtype}[{m}, {n}] or float32 is needed")
    for name, array in {"a": a, "b": b, "out": out}.items():
        if not array.is_contiguous or array.offset % PIECE:
            raise ValueError(f"{name} is {array}: rows without gaps from 16 bytes on; copy it")
    if not m * n:
        return NothingToDo((out,))
    problem = product(m, n, k, a.dtype, out.dtype)
    return problem, {"a": a, "b": b, "c": out, "m": m, "n": n, "k": k}


@hgemm.baseline("cublas")
def cublas(a, b, c, m, n, k):
    """cublasGemmEx with float32 sums. It is column-major, so it is asked for C' = B' A'."""
    from autotune.vendor import PLAIN, cublas_call

    given, made = VENDOR_TYPE[a.dtype.name], VENDOR_TYPE[c.dtype.name]
    operands = (1.0, b, given, n, a, given, k, 0.0, c, made, n)
    return cublas_call(
        "cublasGemmEx", PLAIN, PLAIN, n, m, k, *operands, FLOAT32_SUMS, ANY_ALGORITHM
    )
