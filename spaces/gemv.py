"""gemv: y = alpha A x + beta y in float32, A row-major, by the ladder of kernels/gemv.cu."""

import numpy as np

from autotune import (
    Fill,
    InOut,
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


def matrix(m, n):
    return Problem(m=m, n=n)


def view(m, n, lda, trans=0, incx=1, incy=1, **offsets):
    """A product with arrays that are part of others."""
    return Problem(m=m, n=n, view=1, trans=trans, lda=lda, incx=incx, incy=incy, **offsets)


def groups_of(LANES, ROWS, UNROLL, **others):
    """A configuration of 16-byte loads by how many threads, rows and loads make a group."""
    return {"LANES": LANES, "ROWS": ROWS, "VEC": 4, "UNROLL": UNROLL, "BLOCK": 256, **others}


gemv = Kernel(
    "gemv.cu",
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
            # short rows, and few
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
        view(132, 67, trans=1, lda=132),
        matrix(300, 0),
        view(5, 20000, trans=1, lda=8, incx=2, incy=3),
        view(1004, 259, trans=1, lda=1005, offset_a=1, offset_x=3, offset_y=2),
    ],
    seeds=[
        # a warp, or a block, for a long row
        groups_of(32, 1, 8),
        groups_of(256, 1, 8),
        groups_of(256, 1, 8, LOAD="stream"),
        groups_of(64, 1, 8, LOAD="bypass"),
        # long rows, and x read once for four of them
        groups_of(256, 4, 2, LOAD="stream"),
        groups_of(32, 4, 2, LOAD="stream"),
        # few long rows
        groups_of(256, 1, 8, SPLIT=64, LOAD="stream"),
        groups_of(256, 1, 8, SPLIT=128, LOAD="stream"),
        groups_of(256, 2, 4, SPLIT=128, LOAD="stream"),
        groups_of(256, 4, 2, SPLIT=64, LOAD="stream", FINISH="atomic"),
        # many short rows
        groups_of(16, 4, 2, LOAD="stream"),
        groups_of(32, 4, 1, LOAD="stream"),
        groups_of(16, 1, 8, LOAD="stream"),
        groups_of(64, 1, 2, VEC=2, BLOCK=128, LOAD="stream"),
        groups_of(16, 2, 4),
        groups_of(16, 8, 1, WAVES=8),
        groups_of(4, 4, 1, LOAD="stream"),
        groups_of(4, 2, 2, WAVES=8),
        # a thread for a row of a few floats
        groups_of(1, 1, 4, VEC=1),
        groups_of(2, 2, 2, VEC=1, LOAD="stream"),
        # rows that start anywhere: single floats, as many at once
        groups_of(64, 2, 8, VEC=1),
        groups_of(256, 1, 8, VEC=1, SPLIT=128),
        # the bottom of the ladder
        groups_of(4, 4, 1, VEC=1),
        # a CPU
        groups_of(16, 2, 4, BLOCK=128, WARP=16),
        groups_of(64, 1, 4, BLOCK=128, SPLIT=8, WARP=16),
    ],
    default=groups_of(32, 2, 4),
    variants={
        "naive": {"BLOCK": 128, "LANES": 32},  # a warp for a row, a float at a time
        "block": {"BLOCK": 256, "LANES": 256},
        "vectors": {"BLOCK": 128, "LANES": 32, "VEC": 4, "UNROLL": 4},
    },
    BLOCK=(64, 128, 256, 512, 1024),  # threads per block
    LANES=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),  # threads that share a row
    ROWS=(1, 2, 4, 8),  # rows that they walk along at once, which share what they read of x
    VEC=(1, 2, 4),  # floats per load
    UNROLL=(1, 2, 4, 8),  # loads in flight per thread and row
    LOAD=("plain", "stream", "bypass"),  # what to tell the caches about A
    X_SHARED=(0, 4096),  # floats of x in shared memory at a time; 0: through the caches
    WAVES=(0, 2, 4, 8),  # blocks per multiprocessor that walk over the rows; 0: all
    SPLIT=(1, 2, 4, 8, 16, 32, 64, 128, 256),  # blocks that share a row
    FINISH=("ticket", "kernel", "atomic"),  # how their sums become one
    MIN_BLOCKS=(1, 2, 4),  # blocks that must fit on one multiprocessor
    WARP=(32, 16, 64),  # threads that run in step: the device's, not a choice
    # What the kernel finds out about alignment, it finds out at run time.
    layout={
        "view": 0,  # 1: what follows is given, and not that of contiguous arrays
        "trans": 0,  # 1: A is stored by columns, so that these are what lies row by row
        "lda": 0,  # floats between the rows that are stored
        "incx": 1,  # floats between the elements of x
        "incy": 1,
        "offset_a": 0,
        "offset_x": 0,
        "offset_y": 0,
    },
    static=("view", "trans"),
)


@gemv.applies("FINISH")
def rows_are_split(SPLIT):
    return SPLIT > 1


@gemv.constraint
def warp_width_is_given(WARP, device):
    """WARP is what the device calls a warp or a sub-group."""
    return device.warp_size == WARP


@gemv.constraint
def groups_make_a_block(BLOCK, LANES, device):
    """A block is whole groups, and no more threads than the device allows."""
    return LANES <= BLOCK <= device.max_threads_per_block


@gemv.constraint
def rows_have_a_lane(LANES, ROWS):
    """Every row of a group has a lane that stores it."""
    return ROWS <= LANES


@gemv.constraint
def loads_saturate_the_memory(ROWS, VEC, UNROLL):
    """A thread has 16 to 256 bytes of A in flight: a full multiprocessor has 32 KB, and no register spills."""
    return 4 <= ROWS * VEC * UNROLL <= 64


@gemv.constraint
def long_rows_are_split(LANES, SPLIT, device):
    """Only rows that are worth a warp are worth several blocks."""
    return SPLIT == 1 or device.warp_size <= LANES


@gemv.constraint
def many_rows_are_walked_over(WAVES, SPLIT):
    """Where rows are split, they are too few for blocks that walk over them."""
    return WAVES == 0 or SPLIT == 1


@gemv.constraint
def grid_is_resident(BLOCK, WAVES, device):
    """A fixed grid is at most twice what a multiprocessor can hold at once."""
    return 2 * device.max_threads_per_sm >= WAVES * BLOCK


@gemv.constraint
def x_is_shared(BLOCK, LANES, VEC, UNROLL, X_SHARED):
    """x lies in shared memory where four groups or more read it, in whole tiles of theirs."""
    return X_SHARED == 0 or (BLOCK >= 4 * LANES and X_SHARED % (LANES * VEC * UNROLL) == 0)


@gemv.constraint
def one_hint_at_a_time(X_SHARED, LOAD):
    """x in shared memory need not be kept in the cache by hints on A."""
    return X_SHARED == 0 or LOAD == "plain"


@gemv.constraint
def loads_fit_registers(BLOCK, ROWS, VEC, UNROLL, MIN_BLOCKS, device):
    """The loads in flight of MIN_BLOCKS blocks fit in registers, beside sums, addresses and 24 others."""
    if device.backend != "cuda":
        return MIN_BLOCKS == 1  # OpenCL has no word for it
    threads = BLOCK * MIN_BLOCKS
    loads, sums = (ROWS + 1) * VEC * UNROLL, ROWS * (VEC if ROWS < 4 else 1)
    fit = device.registers_per_sm // threads >= loads + sums + 2 * ROWS + 24
    return fit and threads <= device.max_threads_per_sm


@gemv.constraint
def more_blocks_say_something(BLOCK, MIN_BLOCKS):
    """Below 512 threads on a multiprocessor registers are no limit, and asking for them changes nothing."""
    return MIN_BLOCKS == 1 or BLOCK * MIN_BLOCKS >= 512


@gemv.constraint
def hints_are_cuda(LOAD, device):
    """OpenCL has no cache hints; loads past L1 that fetch 256 bytes begin with compute capability 8.0."""
    if device.backend != "cuda":
        return LOAD == "plain"
    return LOAD != "bypass" or device.compute_capability >= 80


@gemv.requires
def requires(c, p):
    """A thread or two for a row are for short rows: longer ones make chains of additions that lose digits.

    Nothing, where n is 0, is not split.
    """
    if c.LANES < 4:
        return p.n <= 64
    return c.SPLIT == 1 or p.n >= 1


def tiles(c, p):
    """Tiles of rows, one for each block of an unsplit launch."""
    return ceil_div(p.m, c.BLOCK // c.LANES * c.ROWS)


def splits(c, p):
    """Blocks that share a row: not more than find a column for each of their lanes."""
    return minimum(c.SPLIT, ceil_div(p.n, c.LANES * c.VEC))


#: Threads side by side at most where A is stored by columns: with VEC=4, 512 bytes of a row.
WIDEST = 32
#: And where the sums of parts are added up: a sector of memory.
NARROWEST = 8


def across(c, p):
    """trans: threads side by side, and no more than there are columns for; the others are below them."""
    pieces = ceil_div(p.m, c.VEC)
    return min(WIDEST, c.BLOCK // 4, 1 << (pieces - 1).bit_length())


def parts(c, p, device):
    """trans: blocks that share the rows, as many as run at once, if each thread has loads for all of them."""
    strips = ceil_div(p.m, across(c, p) * c.VEC)
    resident = device.sm_count * max(1, device.max_threads_per_sm // c.BLOCK)
    rows = c.BLOCK // across(c, p) * c.ROWS * c.UNROLL
    return max(1, min(resident // strips, p.n // rows))


@gemv.deterministic
def deterministic(c, p):
    """atomic: parts of a row are added in the order of arrival."""
    return c.SPLIT == 1 or c.FINISH != "atomic" or p.trans == 1


@gemv.scratch
def scratch(c, p, device):
    if p.trans:
        split = parts(c, p, device)
        return {"partial": Out(p.m * split if split > 1 else 1)}
    if c.SPLIT == 1:
        return {"partial": Out(1), "tickets": Out(1, "uint32")}
    return {"partial": Out(p.m * splits(c, p)), "tickets": Out(tiles(c, p), "uint32")}


@gemv.launch
def launch(c, p, device):
    if p.trans:
        return by_columns(c, p, device)
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


def by_columns(c, p, device):
    """trans: a block for each strip of columns, or several, whose sums a second launch adds up."""
    wide, split, views = across(c, p), parts(c, p, device), ("lda", "incx", "incy")
    arguments = ("a", "x", "y", "alpha", "beta", "m", "n", "partial", split, wide, *views)
    strips = ceil_div(p.m, wide * c.VEC)
    main = Launch(grid=(strips * split,), block=(c.BLOCK,), args=arguments)
    if split == 1:
        return main
    wide = min(wide, NARROWEST)
    rest = ("partial", "y", "alpha", "beta", "m", split, wide, "incy")
    return main, Launch((ceil_div(p.m, wide),), (c.BLOCK,), entry="gemv_finish", args=rest)


def adds(p):
    """Small problems add to y; elsewhere y holds NaN, which must not get through."""
    return p.m * p.n < 1 << 22


def strided(flat, *axes):
    """The array of (length, stride) axes in flat memory."""
    shape, strides = zip(*axes, strict=True)
    bytes_ = [stride * flat.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(flat, shape, bytes_)


@gemv.arguments
def arguments(p, rng):
    """In the kernel's order. Of views all memory from first to last element: what lies between must stay."""
    given = {"alpha": 2.0 if adds(p) else 1.0, "beta": 0.5 if adds(p) else 0.0, "m": p.m, "n": p.n}
    if not p.view:
        y = rng.standard_normal(p.m) if adds(p) else np.full(p.m, np.nan, np.float32)
        a, x = rng.standard_normal((p.m, p.n)), rng.standard_normal(p.n)
        return {"a": a, "x": x, "y": InOut(y), **given}
    rows, cols = (p.n, p.m) if p.trans else (p.m, p.n)
    stored = (rows, cols) if p.lda == cols else (rows - 1) * p.lda + cols
    return {
        "a": rng.standard_normal(stored),
        "x": rng.standard_normal((p.n - 1) * p.incx + 1 if p.n else 0),
        "y": InOut(rng.standard_normal((p.m - 1) * p.incy + 1)),
        **given,
        **{name: np.int64(p[name]) for name in ("lda", "incx", "incy")},
        "trans": p.trans,
    }


@gemv.reference
def reference(a, x, y, alpha, beta, m, n, lda=None, incx=1, incy=1, trans=0):
    if lda is not None:
        a = strided(a, (n, lda), (m, 1)).T if trans else strided(a, (m, lda), (n, 1))
        x = strided(x, (n, incx))
    y = y.copy()
    rows = strided(y, (m, incy))
    product = alpha * (a @ x)
    rows[...] = product + beta * rows if beta else product
    return y


@gemv.tolerance
def tolerance(p):
    """Rounding errors of n additions of normal products, in chains of n / 4 at most.

    Their standard deviation is some 0.1 eps n; the largest of a million is six times that, twice with alpha.
    """
    return float(np.finfo(np.float32).eps) * (2 * p.n + 64)


@gemv.work
def work(p):
    return Work(
        flops=2 * p.m * p.n,
        bytes_read=4 * (p.m * p.n + p.n + (p.m if adds(p) else 0)),
        bytes_written=4 * p.m,
    )


@gemv.call
def call(a, x, out=None, alpha=1.0, beta=0.0, y=None, trans=False):
    """y = alpha A x + beta y, with A' for A where ``trans``; y is an older name of out."""
    if out is not None and y is not None:
        raise ValueError("out and y are the same: give one of them")
    out = y if out is None else out
    for name, array in {"a": a, "x": x, "out": out}.items():
        if array is not None and array.dtype != "float32":
            raise ValueError(f"{name} is {array}; float32 is needed")
    matrix = a.T if trans else a
    if a.ndim != 2 or x.ndim != 1 or matrix.shape[1] != len(x):
        raise ValueError(f"a is {a} and x is {x}: {'a.T' if trans else 'a'} @ x is not possible")
    m, n = matrix.shape
    if out is None:
        if beta != 0:
            raise ValueError(f"beta is {beta}, so out is needed: y = alpha A x + beta y")
        out = Operand.new((m,))
    if out.shape != (m,):
        raise ValueError(f"out is {out}; the product of {matrix} and {x} has {m} elements")
    if m == 0:
        return NothingToDo((out,))
    incx, incy = (array.strides[0] if len(array) > 1 else 1 for array in (x, out))
    if incy < 1:
        raise ValueError(f"out is {out}; two elements are one, or run backwards: pass another")
    given = {"y": out, "alpha": alpha, "beta": beta}
    layout = {"trans": 0, "lda": n, "incx": 1, "incy": incy}
    if alpha == 0 or n == 0:  # neither is read
        n, layout["lda"], given["alpha"] = 0, 0, 0.0
    else:
        layout["trans"] = int(rows_apart(matrix) is None and rows_apart(matrix.T) is not None)
        stored = matrix.T if layout["trans"] else matrix
        apart = rows_apart(stored)
        # What lies neither way, or backwards, becomes a copy that does.
        layout["lda"] = stored.shape[1] if apart is None else apart
        layout["incx"] = incx if incx >= 0 else 1
        given |= {"a": stored, "x": x}
    is_plain = layout == {"trans": 0, "lda": n, "incx": 1, "incy": 1}
    return Problem(m=m, n=n, **({} if is_plain else {"view": 1, **layout})), given


def rows_apart(matrix):
    """Floats between the rows of a matrix that lie row by row; None where they do not."""
    (rows, cols), (apart, step) = matrix.shape, matrix.strides
    if (cols > 1 and step != 1) or (rows > 1 and apart < 0):
        return None
    return apart if rows > 1 else cols


@gemv.baseline("cublas")
def cublas(a, x, y, alpha, beta, m, n):
    """cublasSgemv. It is column-major, so A is its n x m matrix, transposed."""
    from autotune.vendor import TRANSPOSED, cublas_call

    return cublas_call("cublasSgemv_v2", TRANSPOSED, n, m, alpha, a, n, x, 1, beta, y, 1)
