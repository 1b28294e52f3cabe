"""sgemm_tf32x3: C = alpha A B + beta C in float32, row-major, by three TF32 products on tensor cores.

As accurate as float32 arithmetic: every number is split into two TF32 numbers, and the tensor core's
sums, which it truncates, are moved to float32 registers before truncation adds up. Two sources with the
same arguments: `mma` (kernels/sgemm_tf32x3.cu) for every GPU since sm_80, `wgmma`
(kernels/sgemm_tf32x3_wgmma.cu) for sm_90a.
"""

import numpy as np

from autotune import InOut, Kernel, Launch, Out, Problem, Work, ceil_div, matrix_product, maximum
from autotune.kernel.products import MatrixProduct


def square(n):
    return Problem(m=n, n=n, k=n)


def product(m, n, k):
    return Problem(m=m, n=n, k=k)


def view(m, n, k, lda, ldb, ldc, **others):
    """A product of matrices that are part of others, or lie column by column."""
    return Problem(m=m, n=n, k=k, view=1, lda=lda, ldb=ldb, ldc=ldc, **others)


def mma_tiles(BM, BN, BK, WM, WN, **others):
    """A configuration of the mma source by its tiles."""
    tiles = {"BM": BM, "BN": BN, "BK": BK, "WM": WM, "WN": WN}
    return {"VARIANT": "mma", **tiles, "FLUSH": 32, "RASTER": 8, **others}


def wgmma_tiles(BM, BN, STAGES, **others):
    """A configuration of the wgmma source by its tiles."""
    tiles = {"BM": BM, "BN": BN, "WM": max(64, BM // 2), "STAGES": STAGES}
    return {"VARIANT": "wgmma", **tiles, "RASTER": 8, **others}


#: Registers that a thread needs besides accumulators and fragments: addresses, counters, predicates.
REGISTERS_BESIDES = 28

#: Shares of tiles that the wgmma source can count arrivals for, where k is split over the grid.
MOST_SHARES = 1024

#: Of a step of k in the wgmma source.
DEPTH = 32

#: Quads of A and B that a launch can pad.
MOST_QUADS = 1 << 31

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
        product(64, 4096, 4096),
        product(1300, 700, 500),
        square(2049),
        product(1111, 901, 703),
    ],
    quick_problems=[square(1024), square(4096)],
    edge_problems=[
        square(1),
        square(7),
        product(1, 300, 5),
        product(129, 4, 33),
        product(100, 132, 68),
        product(127, 131, 129),
        product(130, 260, 0),
        # k for eight parts, of which the last is empty
        product(19, 131, 1541),
        product(20, 132, 1028),
        *(
            Problem(m=68, n=132, k=68, offset_a=i, offset_b=i % 3 + 1, offset_c=(i + 1) % 3 + 1)
            for i in (1, 2, 3)
        ),
        view(129, 130, 71, lda=73, ldb=133, ldc=131),
        view(68, 132, 100, 104, 136, 140, batch=3, stride_a=7200, stride_b=0, stride_c=10000),
        view(
            68,
            132,
            100,
            72,
            136,
            132,
            trans_a=1,
            batch=2,
            stride_a=0,
            stride_b=13600,
            stride_c=8976,
        ),
        view(67, 131, 97, 67, 131, 133, trans_a=1, offset_a=1, offset_c=3),
        view(68, 132, 100, 100, 104, 132, trans_b=1),
        view(67, 131, 97, 99, 97, 131, trans_b=1, offset_b=2),
        view(68, 132, 100, 72, 104, 132, trans_a=1, trans_b=1),
        view(20, 132, 1028, 1032, 136, 132, batch=2, stride_a=20640, stride_b=0, stride_c=2640),
        view(19, 131, 1541, 19, 1541, 133, trans_a=1, trans_b=1, offset_b=1),
    ],
    seeds=[
        # tiles for whole waves on large matrices, and more of them for small ones
        wgmma_tiles(256, 128, 3),
        wgmma_tiles(256, 128, 3, VECTORS=False),
        wgmma_tiles(128, 128, 4),
        wgmma_tiles(128, 64, 5),
        # a part of k for each block: 512, 768 and 1024 cubed; m of 128, of 64; rows that are not aligned
        wgmma_tiles(128, 64, 4, SPLITK=4, AHEAD=4),
        wgmma_tiles(128, 128, 3, SPLITK=4, AHEAD=2),
        wgmma_tiles(128, 128, 4, SPLITK=2),
        wgmma_tiles(128, 128, 3, SPLITK=4, AHEAD=4),
        wgmma_tiles(64, 128, 4, SPLITK=4, AHEAD=4),
        wgmma_tiles(64, 64, 4, SPLITK=2, AHEAD=4),
        wgmma_tiles(256, 128, 3, GRIDK=3, PADDED=True),
        wgmma_tiles(256, 128, 3, PADDED=True),
        wgmma_tiles(128, 128, 3, AHEAD=4, PADDED=True),
        wgmma_tiles(64, 128, 4, PADDED=True),
        # several waves, the last of which leaves some without work
        wgmma_tiles(256, 128, 3, TAIL=True),
        wgmma_tiles(256, 128, 3, AHEAD=2, TAIL=True),
        # rows that are no whole quads of a large C, where k is short
        wgmma_tiles(128, 128, 3, C_ROWS="lines"),
        mma_tiles(128, 128, 16, 32, 64, STAGES=4, C_ROWS="lines"),
        mma_tiles(128, 128, 16, 32, 64, STAGES=4),
        mma_tiles(64, 128, 16, 64, 32, STAGES=4, MIN_BLOCKS=2),
        mma_tiles(64, 128, 16, 32, 32, STAGES=3),
        mma_tiles(64, 64, 32, 32, 32, STAGES=3, MIN_BLOCKS=3),
    ],
    # for GPUs that nobody tuned: wgmma is Hopper's alone
    default=mma_tiles(128, 128, 16, 32, 64, STAGES=4),
    VARIANT=("mma", "wgmma"),
    BM=(64, 128, 256),  # rows of C per block
    BN=(64, 128, 256),  # columns of C per block
    BK=(16, 32),  # depth of one pair of tiles
    WM=(16, 32, 64, 128),  # rows of C per warp; wgmma: per warpgroup
    WN=(32, 64),  # columns of C per warp
    STAGES=(2, 3, 4, 5),  # pairs of tiles in shared memory
    FLUSH=(16, 32),  # products of an element summed up in the tensor core
    VECTORS=(True, False),  # wgmma: load B 16 bytes at a time where its rows are aligned
    AHEAD=(
        1,
        2,
        4,
    ),  # wgmma: steps of B on their way, in registers or, more than one, in shared memory
    SPLITK=(1, 2, 4, 8),  # wgmma: blocks, as one cluster, that share a tile of C
    GRIDK=(1, 2, 3, 4),  # wgmma: such clusters, or lone blocks, that share a tile of C
    TAIL=(False, True),  # wgmma: two blocks share each tile of the last wave
    PADDED=(False, True),  # wgmma: rows that are not aligned are copied first to where they are
    C_ROWS=("direct", "lines"),  # how rows of C are written that are no whole quads
    RASTER=(4, 8, 16),  # rows of blocks that run together, for the L2 cache
    MIN_BLOCKS=(1, 2, 3, 4),  # blocks that must fit on one multiprocessor
    # What the kernels find out about alignment, they find out at run time.
    layout={
        "view": 0,  # 1: what follows is given, and not that of one product of contiguous matrices
        "trans_a": 0,  # 1: A lies column by column, so that these are its rows
        "trans_b": 0,
        "lda": 0,  # floats between the rows
        "ldb": 0,
        "ldc": 0,
        "batch": 1,  # products
        "stride_a": 0,  # floats between the matrices; 0: one for all
        "stride_b": 0,
        "stride_c": 0,
        "offset_a": 0,
        "offset_b": 0,
        "offset_c": 0,
    },
    static=("view", "trans_a", "trans_b"),
)


@sgemm_tf32x3.applies("BK", "WN", "FLUSH", "MIN_BLOCKS")
def mma(VARIANT):
    """wgmma: steps of 32, which are also what it sums up, and one block per multiprocessor."""
    return VARIANT == "mma"


@sgemm_tf32x3.applies("VECTORS", "AHEAD", "SPLITK", "GRIDK", "TAIL", "PADDED")
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
    """wgmma: two warpgroups of 64 or 128 rows, or of the same 64; their registers hold 128 columns."""
    return VARIANT == "mma" or (max(BM // 2, 64) == WM and BN <= 128)


@sgemm_tf32x3.constraint
def stages_have_an_owner(VARIANT, BM, STAGES):
    """wgmma: warpgroups of the same rows take stages in turn, each its own."""
    return VARIANT == "mma" or BM > 64 or STAGES % 2 == 0


@sgemm_tf32x3.constraint
def copies_have_a_stage(VARIANT, STAGES, AHEAD):
    """wgmma: a stage is full only when B is there for the steps ahead: many more than stages gain nothing."""
    return VARIANT == "mma" or AHEAD <= STAGES + 1


@sgemm_tf32x3.constraint
def parts_are_few(SPLITK, GRIDK):
    """wgmma: where blocks make no whole clusters, the grid takes two or three times as many at most."""
    return GRIDK == 1 or SPLITK <= 2


@sgemm_tf32x3.constraint
def few_tiles_have_no_order(RASTER, SPLITK, GRIDK):
    """wgmma: where k is split, tiles are too few for their order to matter."""
    return SPLITK * GRIDK == 1 or RASTER == 8


@sgemm_tf32x3.constraint
def single_floats_are_plain(VECTORS, AHEAD, SPLITK, GRIDK, PADDED):
    """wgmma: loading single floats of aligned rows is tried where nothing else is."""
    return VECTORS or (AHEAD == SPLITK == GRIDK == 1 and not PADDED)


@sgemm_tf32x3.constraint
def tail_is_of_large_tiles(BM, BN, VECTORS, SPLITK, GRIDK, TAIL):
    """wgmma: a tail is worth it where C is large: tiles of 128 x 128 at least, k split for nothing else."""
    return not TAIL or (min(BM, BN) >= 128 and VECTORS and SPLITK == GRIDK == 1)


@sgemm_tf32x3.constraint
def sums_of_several_are_in_lines_anyway(VARIANT, BM, WM, SPLITK, GRIDK, C_ROWS):
    """wgmma: what slices, blocks and clusters add up is written so whatever C_ROWS says."""
    return VARIANT == "mma" or C_ROWS == "direct" or (BM > WM and SPLITK == GRIDK == 1)


@sgemm_tf32x3.constraint
def tails_are_counted(TAIL, device):
    """wgmma: a wave has no more tiles than the source can count arrivals for."""
    return not TAIL or device.sm_count <= MOST_SHARES


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


def mma_shared_bytes(BM, BN, BK, STAGES, **others):
    """A's rows are padded by 8 floats."""
    return 4 * STAGES * (BM * (BK + 8) + BK * BN)


def wgmma_shared_bytes(BM, BN, WM, STAGES, AHEAD, SPLITK, GRIDK, **others):
    """A's tile, both halves of B's, B's ahead; or the tiles of sums that are added; barriers and alignment."""
    stages = DEPTH * (STAGES * (BM + 2 * BN) + (AHEAD * BN if AHEAD > 1 else 0))
    slices = 2 * WM // BM if BM else 1
    sums = slices * BM * (BN + 16) if slices * SPLITK * GRIDK > 1 else 0
    return 4 * max(stages, sums) + 2048


@sgemm_tf32x3.constraint
def blocks_fit_shared(BM, BN, BK, STAGES, MIN_BLOCKS, device):
    """mma: MIN_BLOCKS blocks fit in a multiprocessor's shared memory, 1 KB of it per block reserved."""
    limit = min(device.shared_bytes_per_block, device.shared_bytes_per_sm // MIN_BLOCKS - 1024)
    return mma_shared_bytes(BM, BN, BK, STAGES) <= limit


@sgemm_tf32x3.constraint
def stages_fit_shared(VARIANT, BM, BN, WM, STAGES, AHEAD, SPLITK, GRIDK, device):
    """wgmma: the stages, and what is copied ahead, fit in shared memory."""
    needed = wgmma_shared_bytes(BM, BN, WM, STAGES, AHEAD, SPLITK, GRIDK)
    return VARIANT == "mma" or needed <= device.shared_bytes_per_block


#: Arguments of views.
STRIDES = ("lda", "ldb", "ldc", "stride_a", "stride_b", "stride_c")


def tiles(c, p):
    """Blocks of C, of all products."""
    return ceil_div(p.m, c.BM) * ceil_div(p.n, c.BN) * p.batch


def quads(rows, columns):
    """Of 16 bytes in a matrix whose rows are padded."""
    return rows * ceil_div(columns, 4)


@sgemm_tf32x3.requires
def requires(c, p):
    """A part of k is two steps at least, and clusters that the grid adds up can be counted; tails are for the tuned
    layout, lines for rows of C that are no whole quads; padded is what is not aligned and lies as tuned matrices do.
    """
    split, fits = c.SPLITK * c.GRIDK, True
    if split > 1:
        fits &= 2 * DEPTH * split <= p.k
    if c.GRIDK > 1:
        fits &= tiles(c, p) * c.SPLITK <= MOST_SHARES
    if c.TAIL:
        fits &= p.view == 0
    if c.C_ROWS == "lines":
        fits &= p.n % 4 >= 1
    if c.PADDED:
        odd = p.k % 4 + p.n % 4 + p.offset_a % 4 + p.offset_b % 4 >= 1
        fits &= odd & (p.view == 0) & (quads(p.m, p.k) + quads(p.k, p.n) <= MOST_QUADS)
    return fits


def last_wave(c, p, device):
    """Tiles that are left when all multiprocessors, which have one at a time, have had equally many."""
    return tiles(c, p) % device.sm_count


@sgemm_tf32x3.scratch
def scratch(c, p, device):
    partial = {}
    if c.GRIDK > 1:
        partial["partial"] = Out(c.GRIDK * tiles(c, p) * c.BM * c.BN)
    if c.TAIL:
        partial["partial"] = Out(maximum(1, 2 * last_wave(c, p, device) * c.BM * c.BN))
    if not c.PADDED:
        return partial
    sizes = {"padded_a": quads(p.m, p.k), "padded_b": quads(p.k, p.n)}
    return {**partial, **{name: Out(4 * maximum(1, size)) for name, size in sizes.items()}}


@sgemm_tf32x3.launch
def launch(c, p, device):
    arguments, buffers = (
        ("a", "b", "c", "alpha", "beta", "m", "n", "k"),
        tuple(scratch(c, p, device)),
    )
    args = (*arguments, *STRIDES, *buffers) if p.view else None
    if c.VARIANT == "mma":
        threads = 32 * (c.BM // c.WM) * (c.BN // c.WN)
        return Launch((tiles(c, p),), (threads,), shared_bytes=mma_shared_bytes(**c), args=args)
    grid = (tiles(c, p), c.GRIDK, c.SPLITK) if c.GRIDK * c.SPLITK > 1 else (tiles(c, p),)
    if c.TAIL:
        # A second block for each tile of the last wave; who has no first one takes so many in turn.
        shared = last_wave(c, p, device)
        turns = ceil_div(shared, device.sm_count - shared)
        grid, args = (tiles(c, p) + shared,), (*arguments, "partial", turns, *buffers[1:])
    product = Launch(grid, (384,), shared_bytes=wgmma_shared_bytes(**c), args=args)
    if not c.PADDED:
        return product
    blocks = maximum(1, ceil_div(quads(p.m, p.k) + quads(p.k, p.n), 256))
    args = ("a", "b", "m", "n", "k", "padded_a", "padded_b")
    return Launch((blocks,), (256,), entry="sgemm_tf32x3_pad", args=args), product


@sgemm_tf32x3.exclusive
def exclusive(c):
    """Where k is split over the grid, or the last wave shared, arrivals are counted in the loaded module."""
    return c.GRIDK > 1 or c.TAIL


@sgemm_tf32x3.deterministic
def deterministic(c, p):
    """Whoever arrives last, consumers, blocks and clusters are added up in one order."""
    return True


@sgemm_tf32x3.options
def options(c):
    return ["sm_90a"] if c.VARIANT == "wgmma" else []


def memory_of(rows, cols, apart, batch, stride):
    """The shape in which matrices are declared: their own where they lie without gaps, else all memory.

    Of an operand of that shape which lies otherwise, `autotune.load` makes a copy.
    """
    if rows * cols == 0 or (apart == cols and (batch == 1 or stride in (0, rows * cols))):
        return (rows, cols) if batch == 1 or stride == 0 else (batch, rows, cols)
    return ((batch - 1) * stride + (rows - 1) * apart + cols,)


def strided(flat, *axes):
    """The array of (length, stride) axes in memory."""
    shape, strides = zip(*axes, strict=True)
    bytes_ = [stride * flat.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(flat, shape, bytes_)


@sgemm_tf32x3.arguments
def arguments(p, rng):
    """In the kernel's order. Where nothing is added to C it holds NaN, which must not get through.

    Exact data are small integers, of which TF32 loses nothing. Every other column of A and, in between,
    every other row of B get a bit that only the low half of a number holds. Of views all memory is drawn,
    from the first element to the last: what lies between must stay.
    """
    is_added = adds(p, rng)
    given = {
        "alpha": 2.0 if is_added else 1.0,
        "beta": 0.5 if is_added else 0.0,
        "m": p.m,
        "n": p.n,
        "k": p.k,
    }
    if not p.view:
        a, b = rng.standard_normal((p.m, p.k)), rng.standard_normal((p.k, p.n))
        if rng.exact and p.k <= DEEPEST_LOW_BITS:
            a[:, ::2] *= np.float32(1 + 2.0**-12)
            b[1::2] *= np.float32(1 + 2.0**-12)
        # One NaN for all of C: `load` asks for shapes, and has no use for a gigabyte of them.
        nothing = np.broadcast_to(np.float32(np.nan), (p.m, p.n))
        c = rng.standard_normal((p.m, p.n)) if is_added else nothing
        return {"a": a, "b": b, "c": InOut(c), **given}
    of_a = (p.k, p.m) if p.trans_a else (p.m, p.k)
    of_b = (p.n, p.k) if p.trans_b else (p.k, p.n)
    return {
        "a": rng.standard_normal(memory_of(*of_a, p.lda, p.batch, p.stride_a)),
        "b": rng.standard_normal(memory_of(*of_b, p.ldb, p.batch, p.stride_b)),
        "c": InOut(rng.standard_normal(memory_of(p.m, p.n, p.ldc, p.batch, p.stride_c))),
        **given,
        **{name: np.int64(p[name]) for name in STRIDES},
        "batch": p.batch,
        "trans_a": p.trans_a,
        "trans_b": p.trans_b,
    }


def adds(p, rng):
    """Return whether twice the product is added to a half of C: in views, and on exact data of small problems.

    Random data are timed, and most calls add nothing.
    """
    return p.view or (rng.exact and p.m * p.n * p.k < 1 << 22)


@sgemm_tf32x3.reference
def reference(
    a,
    b,
    c,
    alpha,
    beta,
    m,
    n,
    k,
    batch=0,
    lda=0,
    ldb=0,
    ldc=0,
    stride_a=0,
    stride_b=0,
    stride_c=0,
    trans_a=0,
    trans_b=0,
):
    memory, out = c, c
    if batch:
        memory = c.copy()
        out = strided(memory, (batch, stride_c), (m, ldc), (n, 1))
        of_a, of_b = [(m, lda), (k, 1)], [(k, ldb), (n, 1)]
        if trans_a:
            of_a = [(m, 1), (k, lda)]
        if trans_b:
            of_b = [(k, 1), (n, ldb)]
        a, b = strided(a, (batch, stride_a), *of_a), strided(b, (batch, stride_b), *of_b)
    product = alpha * (a @ b)
    product = product + beta * out if beta else product
    if not batch:
        return product
    out[...] = product
    return memory


@sgemm_tf32x3.tolerance
def tolerance(p):
    """What plain float32 is given (spaces/sgemm.py), which the vendor's float32 product needs too.

    What is never moved to float32 registers fails: its error is 25 times cuBLAS's.
    """
    alpha = 2 if p.view else 1
    return alpha * float(np.finfo(np.float32).eps) * (4 * p.k + 64)


@sgemm_tf32x3.work
def work(p):
    return Work(
        flops=2 * p.m * p.n * p.k * p.batch,
        bytes_read=4 * (p.m * p.k + p.k * p.n) * p.batch,
        bytes_written=4 * p.m * p.n * p.batch,
        pipe="tf32x3",
    )


@sgemm_tf32x3.call
def call(a, b, out=None, alpha=1.0, beta=0.0):
    product = matrix_product(a, b, out, alpha, beta, also_by="sgemm")
    if not isinstance(product, MatrixProduct):
        return product
    layout = {} if product.is_plain else {"view": 1, **product.layout}
    return product.answer(Problem(m=product.m, n=product.n, k=product.k, **layout))


@sgemm_tf32x3.baseline("cublas")
def cublas(a, b, c, alpha, beta, m, n, k):
    """cublasSgemm in plain float32. It is column-major, so it is asked for C' = B' A'."""
    from autotune.vendor import PLAIN, cublas_call

    return cublas_call("cublasSgemm_v2", PLAIN, PLAIN, n, m, k, alpha, b, n, a, k, beta, c, n)
