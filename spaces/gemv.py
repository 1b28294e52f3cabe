"""gemv: y = alpha A x + beta y in float32, with A row-major, by kernels/gemv.cu."""

import _vectors
from _device import cache_hints_need_cuda, warp_size_is_supported

from autotune import Fill, Kernel, Launch, Out, Problem, ceil_div, minimum


def matrix(m, n):
    return Problem(m=m, n=n)


def view(m, n, lda, incx=1, incy=1, **offsets):
    """Return a problem whose arrays are parts of other arrays."""
    return Problem(m=m, n=n, view=1, lda=lda, incx=incx, incy=incy, **offsets)


def groups_of(LANES, ROWS, UNROLL, **others):
    """Return a configuration with 16-byte loads; LANES, ROWS and UNROLL describe a group of threads."""
    return {"LANES": LANES, "ROWS": ROWS, "VEC": 4, "UNROLL": UNROLL, "BLOCK": 256, **others}


gemv = Kernel(
    "gemv.cu",
    device_macros={"WARP": "warp_size"},
    problems={
        "cuda": [matrix(n, n) for n in (1024, 4096, 8192, 16384)]
        + [
            matrix(1 << 20, 64),
            matrix(64, 1 << 20),
            matrix(32768, 256),
            matrix(100000, 16),
            matrix(4097, 4095),
            matrix(1000, 1000),
            matrix(2048, 2048),
            # short rows, and few rows
            matrix(1 << 20, 3),
            matrix(1 << 18, 16),
            matrix(4096, 128),
            matrix(128, 4096),
            matrix(512, 65536),
            matrix(16, 1 << 18),
            matrix(3, 1000001),
            matrix(6, 700000),
            matrix(120000, 37),
        ],
        "opencl": [matrix(1024, 1024), matrix(40000, 16), matrix(8, 100000), matrix(511, 1023)],
    },
    quick_problems={
        "cuda": [matrix(4096, 4096), matrix(64, 1 << 20)],
        "opencl": [matrix(1024, 1024), matrix(511, 1023)],
    },
    edge_problems=[
        matrix(m, n)
        for m, n in (
            (1, 1),
            (1, 1000),
            (1000, 1),
            (7, 3),
            (33, 129),
            (257, 255),
            (5, 20000),
            (1003, 68),
        )
    ]
    + [
        Problem(m=65, n=132, offset_a=1, offset_x=2, offset_y=3),
        Problem(m=65, n=132, offset_a=2, offset_x=1, offset_y=1),
        Problem(m=65, n=132, offset_a=3, offset_x=3, offset_y=2),
        view(65, 132, lda=136, incy=3),
        view(66, 133, lda=134, incx=3, incy=2),
        view(5, 20000, lda=20004, incx=2),
        view(68, 132, lda=136, offset_x=1),
        matrix(300, 0),
    ],
    seeds=[
        # a warp, or a block, for a long row
        groups_of(32, 1, 8),
        groups_of(256, 1, 8, LOAD="stream"),
        # long rows, with x read once for four rows
        groups_of(32, 4, 2, LOAD="stream"),
        # few long rows
        groups_of(256, 1, 8, SPLIT=128, LOAD="stream"),
        # many short rows
        groups_of(16, 4, 2, LOAD="stream"),
        groups_of(4, 4, 1, LOAD="stream"),
        groups_of(2, 2, 2, VEC=1, LOAD="stream"),
        # unaligned rows: single floats, with as many bytes in flight
        groups_of(64, 2, 8, VEC=1),
        # a CPU
        groups_of(16, 2, 4, BLOCK=128),
        groups_of(64, 1, 4, BLOCK=128, SPLIT=8),
    ],
    default=groups_of(32, 2, 4),
    variants={
        "naive": {"BLOCK": 128, "LANES": 32},  # a warp per row, single floats
        "block": {"BLOCK": 256, "LANES": 256},
        "vectors": {"BLOCK": 128, "LANES": 32, "VEC": 4, "UNROLL": 4},
    },
    BLOCK=(64, 128, 256, 512, 1024),  # threads per block
    LANES=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),  # threads that share a row
    ROWS=(1, 2, 4, 8),  # rows per group: they share the loads of x
    VEC=(1, 2, 4),  # floats per load
    UNROLL=(1, 2, 4, 8),  # loads in flight per thread and row
    LOAD=("plain", "stream", "bypass"),  # cache hints for A
    X_SHARED=(0, 4096),  # floats of x in shared memory at a time; 0: read x through the caches
    # blocks per multiprocessor of a fixed grid; 0: a block for each tile of rows
    WAVES=(0, 2, 4, 8),
    SPLIT=(1, 2, 4, 8, 16, 32, 64, 128, 256),  # blocks that share a row
    FINISH=("ticket", "kernel", "atomic"),  # how to add up the sums of those blocks
    MIN_BLOCKS=(1, 2, 4),  # blocks that must fit on one multiprocessor
    # The kernel checks alignment at run time.
    layout={
        "view": 0,  # 1: the arrays are not contiguous, and the values below describe them
        "lda": 0,  # floats between the rows of A
        "incx": 1,  # floats between the elements of x
        "incy": 1,  # floats between the elements of y
        "offset_a": 0,
        "offset_x": 0,
        "offset_y": 0,
    },
    static=("view",),
)

gemv.constraint(warp_size_is_supported)
gemv.constraint(cache_hints_need_cuda)


@gemv.applies("FINISH")
def rows_are_split(SPLIT):
    return SPLIT > 1


@gemv.constraint
def groups_make_a_block(BLOCK, LANES, device):
    """A block has whole groups, and no more threads than the device allows."""
    return LANES <= BLOCK <= device.max_threads_per_block


@gemv.constraint
def rows_have_a_lane(LANES, ROWS):
    """Each row of a group has a lane that stores its result."""
    return ROWS <= LANES


@gemv.constraint
def enough_loads_in_flight(ROWS, VEC, UNROLL):
    """A thread has 16 to 256 bytes of A in flight: 32 KB per full multiprocessor, without spills."""
    return 4 <= ROWS * VEC * UNROLL <= 64


@gemv.constraint
def split_needs_a_warp_per_row(LANES, SPLIT, device):
    """SPLIT above 1 needs a warp or more per row."""
    return SPLIT == 1 or device.warp_size <= LANES


@gemv.constraint
def fixed_grid_needs_whole_rows(WAVES, SPLIT):
    """Split rows are too few for blocks that loop over rows."""
    return WAVES == 0 or SPLIT == 1


@gemv.constraint
def grid_is_resident(BLOCK, WAVES, device):
    """A fixed grid has at most twice the threads that fit on a multiprocessor at once."""
    return 2 * device.max_threads_per_sm >= WAVES * BLOCK


@gemv.constraint
def shared_x_is_reused(BLOCK, LANES, VEC, UNROLL, X_SHARED):
    """X_SHARED needs four groups or more that read x, and whole steps of a group."""
    return X_SHARED == 0 or (BLOCK >= 4 * LANES and X_SHARED % (LANES * VEC * UNROLL) == 0)


@gemv.constraint
def shared_x_needs_no_hints(X_SHARED, LOAD):
    """X_SHARED needs no cache hints for A: x does not depend on the cache."""
    return X_SHARED == 0 or LOAD == "plain"


@gemv.constraint
def loads_fit_registers(BLOCK, ROWS, VEC, UNROLL, MIN_BLOCKS, device):
    """The loads in flight of MIN_BLOCKS blocks fit in registers, with sums, addresses and 24 others."""
    if device.backend != "cuda":
        return MIN_BLOCKS == 1  # OpenCL has no such option
    threads = BLOCK * MIN_BLOCKS
    loads, sums = (ROWS + 1) * VEC * UNROLL, ROWS * (VEC if ROWS < 4 else 1)
    fit = device.registers_per_sm // threads >= loads + sums + 2 * ROWS + 24
    return fit and threads <= device.max_threads_per_sm


@gemv.constraint
def min_blocks_limits_registers(BLOCK, MIN_BLOCKS):
    """MIN_BLOCKS above 1 needs 512 threads on a multiprocessor: below that, registers are no limit."""
    return MIN_BLOCKS == 1 or BLOCK * MIN_BLOCKS >= 512


@gemv.requires
def requires(c, p):
    """One or two lanes need n of at most 64: longer chains of additions lose digits.

    SPLIT needs n above 0.
    """
    if c.LANES < 4:
        return p.n <= 64
    return c.SPLIT == 1 or p.n >= 1


def tiles(c, p):
    """Return the number of tiles of rows, one for each block if SPLIT is 1."""
    return ceil_div(p.m, c.BLOCK // c.LANES * c.ROWS)


def splits(c, p):
    """Return the number of blocks that share a row, so that each lane of each block has a column."""
    return minimum(c.SPLIT, ceil_div(p.n, c.LANES * c.VEC))


@gemv.deterministic
def deterministic(c, p):
    """atomic: blocks add the parts of a row in order of arrival, so the last bits vary."""
    return c.SPLIT == 1 or c.FINISH != "atomic"


@gemv.scratch
def scratch(c, p):
    if c.SPLIT == 1:
        return {"partial": Out(1), "tickets": Out(1, "uint32")}
    return {"partial": Out(p.m * splits(c, p)), "tickets": Out(tiles(c, p), "uint32")}


@gemv.launch
def launch(c, p, device):
    views, incy = (("lda", "incx", "incy"), ("incy",)) if p.view else ((), ())
    blocks = tiles(c, p) * splits(c, p) if c.SPLIT > 1 else tiles(c, p)
    if c.WAVES:
        blocks = minimum(blocks, c.WAVES * device.sm_count)
    arguments = (
        "a",
        "x",
        "y",
        "alpha",
        "beta",
        "m",
        "n",
        "partial",
        "tickets",
        splits(c, p),
        *views,
    )
    main = Launch(grid=(blocks,), block=(c.BLOCK,), args=arguments)
    if c.SPLIT == 1:
        return main
    if c.FINISH == "ticket":
        return Fill("tickets", 0), main
    if c.FINISH == "kernel":
        rest = ("partial", "y", "alpha", "beta", "m", splits(c, p), *incy)
        return main, Launch((tiles(c, p),), (c.BLOCK,), entry="gemv_finish", args=rest)
    grid, scaled = (ceil_div(p.m, c.BLOCK),), ("y", "beta", "m", *incy)
    return Launch(grid, (c.BLOCK,), entry="gemv_scale", args=scaled), main


@gemv.arguments
def arguments(p, rng):
    return _vectors.arguments_of(p, rng, p.m, p.n)


@gemv.reference
def reference(a, x, y, alpha, beta, m, n, lda=None, incx=1, incy=1):
    if lda is not None:
        a, x = _vectors.strided(a, (m, lda), (n, 1)), _vectors.strided(x, (n, incx))
    return _vectors.expected(a, x, y, alpha, beta, incy)


gemv.tolerance(_vectors.tolerance)
gemv.work(_vectors.work)


@gemv.call
def call(a, x, out=None, alpha=1.0, beta=0.0, y=None, trans=False):
    """Compute y = alpha A x + beta y, with A' for A if ``trans``; y is an older name of out."""
    if out is not None and y is not None:
        raise ValueError("out and y are two names of one argument; pass only out")
    out = y if out is None else out
    return _vectors.answer(a, x, out, alpha, beta, trans, by_columns=False)


@gemv.baseline("cublas")
def cublas(a, x, y, alpha, beta, m, n):
    """Call cublasSgemv. It is column-major, so A is its n x m matrix, transposed."""
    from autotune.vendor import TRANSPOSED, cublas_call

    return cublas_call("cublasSgemv_v2", TRANSPOSED, n, m, alpha, a, n, x, 1, beta, y, 1)
