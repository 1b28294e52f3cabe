"""transpose: the transpose (n x m) of a float32 matrix (m x n), by kernels/transpose.cu."""

import numpy as np
from _device import both_cache_hints_need_cuda, cache_hints_need_cuda

from autotune import InOut, Kernel, Launch, NothingToDo, Operand, Out, Problem, Work, ceil_div


def matrix(m, n=None):
    return Problem(m=m, n=m if n is None else n)


def view(m, n, ldx=None, ldo=None, batch=1, stride_x=None, stride_out=None, **offsets):
    """Return a problem whose matrices are parts of others; the default layout has no gaps."""
    ldx, ldo = ldx or n, ldo or m
    stride_x = m * ldx if stride_x is None else stride_x
    strides = {"stride_x": stride_x, "stride_out": stride_out or n * ldo}
    return Problem(m=m, n=n, view=1, ldx=ldx, ldo=ldo, batch=batch, **strides, **offsets)


def tiles_of(TILE_Y, TILE_X, BLOCK, VEC, **others):
    """Return a configuration that transposes tiles in shared memory."""
    tile = {"TILE_Y": TILE_Y, "TILE_X": TILE_X, "BLOCK": BLOCK, "VEC": VEC}
    return {"ALG": "shared", "LAYOUT": "xor", **tile, **others}


transpose = Kernel(
    "transpose.cu",
    problems={
        "cuda": [matrix(n) for n in (1024, 4096, 8192, 16384)]
        + [matrix(4095, 4097), matrix(65536, 1024)],
        "opencl": [matrix(512), matrix(511, 513)],
    },
    quick_problems={
        "cuda": [matrix(4096), matrix(4095, 4097)],
        "opencl": [matrix(512), matrix(511, 513)],
    },
    edge_problems=[
        matrix(1),
        matrix(1, 1000),
        matrix(1000, 1),
        matrix(33, 65),
        matrix(1000, 7),
        matrix(127, 129),
        matrix(130, 260),  # whole vectors, but incomplete tiles
        matrix(132, 259),  # vectors on one side only
        *(Problem(m=68, n=132, offset_x=i, offset_out=i % 3 + 1) for i in (1, 2, 3)),
        view(68, 132, ldx=136, ldo=100, batch=3),
        # padding that must keep its values, and no vectors
        view(67, 131, ldx=135, ldo=71, batch=3),
        # matrices next to each other in rows
        view(66, 130, ldx=260, ldo=68, batch=2, stride_x=130, stride_out=9999),
        # one matrix for the whole batch
        view(36, 64, batch=3, stride_x=0, offset_x=2, offset_out=1),
    ],
    seeds=[
        # the fastest public kernels on H100: 64 x 64 with vectors on both sides
        tiles_of(64, 64, 256, 4),
        # large matrices: few resident blocks, which together write long pieces of the rows of out
        tiles_of(64, 64, 256, 4, ORDER="column", RESIDENT=3),
        tiles_of(64, 64, 256, 4, LAYOUT="padded", STORE="bulk", RESIDENT=3),
        # 512 adjacent bytes of a row of x
        tiles_of(64, 128, 512, 2, MIN_BLOCKS=2),
        # unaligned rows: single floats, and long pieces of the rows of out
        tiles_of(256, 32, 256, 1, ORDER="column"),
        tiles_of(64, 64, 256, 1, MIN_BLOCKS=4),
        # small matrices: more blocks
        tiles_of(32, 32, 64, 4),
        # the kernel of most tutorials, and simpler kernels
        tiles_of(32, 32, 256, 1, LAYOUT="padded"),
        {"ALG": "register", "BLOCK_X": 16, "BLOCK_Y": 16, "VEC": 4},
        {"ALG": "naive", "BLOCK_X": 8, "BLOCK_Y": 32},
    ],
    default=tiles_of(64, 64, 128, 4),
    variants={
        "naive": {"ALG": "naive", "BLOCK_X": 32, "BLOCK_Y": 8},
        "narrow": {"ALG": "naive", "BLOCK_X": 8, "BLOCK_Y": 32},
        "register": {"ALG": "register", "BLOCK_X": 16, "BLOCK_Y": 16, "VEC": 4},
    },
    ALG=("naive", "register", "shared"),  # where elements are transposed
    BLOCK_X=(8, 16, 32, 64),  # naive, register: threads along a row of x
    BLOCK_Y=(4, 8, 16, 32),  # naive, register: threads along a column of x
    TILE_X=(16, 32, 64, 128, 256),  # shared: columns of x per block
    TILE_Y=(16, 32, 64, 128, 256),  # shared: rows of x per block
    BLOCK=(64, 128, 256, 512, 1024),  # shared: threads per block
    VEC=(1, 2, 4),  # floats per access
    LAYOUT=("plain", "padded", "xor"),  # shared: how to avoid bank conflicts
    ORDER=("row", "column", "diagonal", "group"),  # order in which blocks take tiles
    GROUP=(4, 8, 16),  # group: rows of tiles that run together
    LOAD=("plain", "stream", "bypass"),  # cache hints of loads, see kernels/vectors.h
    # cache hints of stores; bulk: shared, asynchronous copies of rows
    STORE=("plain", "stream", "bulk"),
    MIN_BLOCKS=(1, 2, 4),  # shared: blocks that must fit on one multiprocessor
    RESIDENT=(0, 1, 2, 3, 4),  # shared: largest number of blocks on one multiprocessor; 0: no limit
    # The kernel checks alignment at run time.
    layout={
        "view": 0,  # 1: not one contiguous matrix; the values below describe the layout
        "ldx": 0,  # floats between the rows of x
        "ldo": 0,  # floats between the rows of out
        "batch": 1,  # number of matrices
        "stride_x": 0,  # floats between the matrices of x
        "stride_out": 0,  # floats between the matrices of out
        "offset_x": 0,
        "offset_out": 0,
    },
    static=("view",),
)

transpose.constraint(cache_hints_need_cuda)
transpose.constraint(both_cache_hints_need_cuda)


@transpose.applies("BLOCK_X", "BLOCK_Y")
def without_tiles(ALG):
    return ALG != "shared"


@transpose.applies("TILE_X", "TILE_Y", "BLOCK", "LAYOUT", "MIN_BLOCKS", "RESIDENT")
def in_tiles(ALG):
    return ALG == "shared"


@transpose.applies("VEC")
def in_vectors(ALG):
    return ALG != "naive"


@transpose.applies("GROUP")
def in_groups(ORDER):
    return ORDER == "group"


@transpose.constraint
def register_needs_squares(ALG, VEC):
    """register: a thread transposes 2 x 2 or 4 x 4 elements; 1 x 1 would equal naive."""
    return ALG != "register" or VEC > 1


@transpose.constraint
def small_block_is_whole_warps(ALG, BLOCK_X, BLOCK_Y, device):
    """naive, register: a block has whole warps, and 64 to 1024 threads."""
    return ALG == "shared" or (
        BLOCK_X * BLOCK_Y % device.warp_size == 0
        and 64 <= BLOCK_X * BLOCK_Y <= min(1024, device.max_threads_per_block)
    )


@transpose.constraint
def threads_divide_tile(ALG, TILE_X, TILE_Y, BLOCK, VEC):
    """shared: a thread has whole squares of VEC x VEC, a block whole rows and columns of the tile."""
    return ALG != "shared" or (
        TILE_X * TILE_Y % (BLOCK * VEC * VEC) == 0 and BLOCK % TILE_X == BLOCK % TILE_Y == 0
    )


@transpose.constraint
def enough_in_flight(ALG, TILE_X, TILE_Y, BLOCK, device):
    """shared: a full multiprocessor has 32 KB or more in flight; a thread has 4 to 64 floats."""
    floats = TILE_X * TILE_Y // BLOCK
    return ALG != "shared" or (
        4 <= floats <= 64 and 4 * floats * device.max_threads_per_sm >= 32768
    )


@transpose.constraint
def fits_registers(ALG, TILE_X, TILE_Y, BLOCK, MIN_BLOCKS, device):
    """shared: the floats in flight of MIN_BLOCKS blocks fit in registers, with about 24 others per thread."""
    if device.backend != "cuda":
        return MIN_BLOCKS == 1  # OpenCL has no such option
    threads = BLOCK * MIN_BLOCKS
    needed = TILE_X * TILE_Y // BLOCK + 24
    available = min(255, device.registers_per_sm // threads)
    return ALG != "shared" or (threads <= device.max_threads_per_sm and needed <= available)


def tile_bytes(TILE_X, TILE_Y, VEC, LAYOUT):
    """Return the shared memory of a tile in bytes."""
    return 4 * TILE_X * (TILE_Y + (VEC if LAYOUT == "padded" else 0))


@transpose.constraint
def fits_shared(ALG, TILE_X, TILE_Y, VEC, LAYOUT, MIN_BLOCKS, device):
    """shared: MIN_BLOCKS tiles fit in the shared memory of a multiprocessor."""
    limit = min(device.shared_bytes_per_block, device.shared_bytes_per_sm // MIN_BLOCKS - 1024)
    return ALG != "shared" or tile_bytes(TILE_X, TILE_Y, VEC, LAYOUT) <= limit


@transpose.constraint
def resident_limits_blocks(ALG, TILE_X, TILE_Y, BLOCK, MIN_BLOCKS, RESIDENT, device):
    """shared: RESIDENT is below the number that fits, with 32 KB of tiles or more. OpenCL has no such limit."""
    if RESIDENT == 0 or ALG != "shared":
        return True
    fewer = MIN_BLOCKS <= RESIDENT and device.max_threads_per_sm > RESIDENT * BLOCK
    return device.backend == "cuda" and fewer and RESIDENT * 4 * TILE_X * TILE_Y >= 32768


@transpose.constraint
def bulk_copies_rows(ALG, VEC, LAYOUT, STORE, device):
    """bulk: copies rows of a padded tile, aligned to 16 bytes; needs compute capability 9.0."""
    if STORE != "bulk":
        return True
    return (ALG, VEC, LAYOUT) == ("shared", 4, "padded") and device.compute_capability >= 90


def shared_bytes(c, device):
    """Return the dynamic shared memory of a block in bytes: its tile, or enough to limit blocks to RESIDENT."""
    if device.backend != "cuda":
        return 0  # declared in the kernel
    tile = tile_bytes(c.TILE_X, c.TILE_Y, c.VEC, c.LAYOUT)
    # One more block would need 128 bytes too many. The device reserves 1 KB per block.
    limiting = device.shared_bytes_per_sm // (c.RESIDENT + 1) - 1024 + 128
    return max(tile, limiting) if c.RESIDENT else tile


#: Further arguments of views: distances in floats.
STRIDES = ("ldx", "ldo", "stride_x", "stride_out")


@transpose.launch
def launch(c, p, device):
    views = {"args": ("x", "out", "m", "n", *STRIDES)} if p.view else {}
    if c.ALG == "shared":
        tiles = ceil_div(p.m, c.TILE_Y) * ceil_div(p.n, c.TILE_X) * p.batch
        shared = shared_bytes(c, device)
        return Launch(grid=(tiles,), block=(c.BLOCK,), shared_bytes=shared, **views)
    tiles = ceil_div(p.m, c.BLOCK_Y * c.VEC) * ceil_div(p.n, c.BLOCK_X * c.VEC) * p.batch
    return Launch(grid=(tiles,), block=(c.BLOCK_X, c.BLOCK_Y), **views)


def strided(flat, *axes):
    """Return a strided array of flat memory; each axis is (length, stride)."""
    shape, strides = zip(*axes, strict=True)
    bytes_ = [stride * flat.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(flat, shape, bytes_)


@transpose.deterministic
def deterministic(c, p):
    """One thread writes an element, so the result never varies."""
    return True


@transpose.arguments
def arguments(p, rng):
    """Return the arguments in the order of the kernel; gaps in the memory of views must keep their values."""
    if not p.view:
        return {"x": rng.standard_normal((p.m, p.n)), "out": Out((p.n, p.m)), "m": p.m, "n": p.n}
    last = p.batch - 1
    x = last * p.stride_x + (p.m - 1) * p.ldx + p.n
    if p.ldx == p.n and (p.batch == 1 or p.stride_x == p.m * p.n):
        # `load` copies an x with another layout
        x = (p.batch, p.m, p.n) if p.batch > 1 else (p.m, p.n)
    return {
        "x": rng.standard_normal(x),
        "out": InOut(rng.standard_normal(last * p.stride_out + (p.n - 1) * p.ldo + p.m)),
        "m": p.m,
        "n": p.n,
        **{name: np.int64(p[name]) for name in STRIDES},
        "batch": p.batch,
    }


@transpose.reference
def reference(x, m, n, out=None, ldx=0, ldo=0, stride_x=0, stride_out=0, batch=1):
    if out is None:
        return x.T
    out = out.copy()
    transposed = strided(x, (batch, stride_x), (n, 1), (m, ldx))
    strided(out, (batch, stride_out), (n, ldo), (m, 1))[...] = transposed
    return out


@transpose.tolerance
def tolerance(p):
    """Return 0: copies are exact."""
    return 0.0


@transpose.work
def work(p):
    nbytes = 4 * p.m * p.n * p.batch
    return Work(bytes_read=nbytes, bytes_written=nbytes)


@transpose.call
def call(x, out=None):
    """Transpose a matrix, or each matrix of a batch along the first axis."""
    if x.ndim not in (2, 3) or x.dtype != "float32":
        raise ValueError(f"x is {x}: it must be float32, with two axes or, for a batch, three")
    transposed = x.T
    if out is None:
        out = Operand.new(transposed.shape)
    if (out.shape, out.dtype) != (transposed.shape, "float32"):
        raise ValueError(
            f"out is {out}: it must be float32{list(transposed.shape)}, the transpose of {x}"
        )
    if x.size == 0:
        return NothingToDo((out,))
    if x.ndim == 3 and len(x) == 1:
        x, out = x.select(0, 0), out.select(0, 0)
    *_, m, n = x.shape
    if any(length > 1 > stride for length, stride in zip(out.shape, out.strides, strict=True)):
        raise ValueError(f"out is {out}: its elements overlap or run backwards; pass another array")
    if m > 1 and out.strides[-1] != 1:
        raise ValueError(
            f"out is {out}: elements of a row must be adjacent in memory; pass another array"
        )
    # `load` copies an x that is not stored row by row.
    in_rows = (n == 1 or x.strides[-1] == 1) and min(x.strides) >= 0
    stride_x, ldx = (0, *x.strides)[-3:-1] if in_rows else (m * n, n)
    strides = {"ldx": ldx if m > 1 else n, "ldo": out.strides[-2] if n > 1 else m}
    if x.ndim == 3:
        strides |= {"batch": len(x), "stride_x": stride_x, "stride_out": out.strides[0]}
    elif strides == {"ldx": n, "ldo": m}:
        return Problem(m=m, n=n), {"x": x, "out": out}
    return Problem(m=m, n=n, view=1, **strides), {"x": x, "out": out}


@transpose.baseline("cublas")
def cublas(x, out, m, n):
    """Call cublasSgeam: C = 1 A' + 0 B. It is column-major: x is n x m and out m x n."""
    from autotune.vendor import PLAIN, TRANSPOSED, cublas_call

    return cublas_call("cublasSgeam", TRANSPOSED, PLAIN, m, n, 1.0, x, n, 0.0, out, m, out, m)
