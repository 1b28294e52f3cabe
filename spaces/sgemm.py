"""sgemm: C = alpha A B + beta C in float32, without tensor cores.

Four sources with the same arguments. `portable` (kernels/sgemm.cu) runs on CUDA and OpenCL and explains
the ideas; `cuda` (kernels/sgemm_cuda.cu) is the fast path: warp tiles, cp.async, k split within a block,
over a cluster and over the grid; `slim` (kernels/sgemm_slim.cu) is for a C of a few columns, or rows, and
`outer` (kernels/sgemm_outer.cu) for a short k; both run on both. Tuned are matrices that lie row by row
without gaps; with ``view=1`` all but `outer` take rows (or columns, with ``trans_a`` and ``trans_b``) any
distance apart, and batches.
"""

import dataclasses

import numpy as np

from autotune import (
    InOut,
    Kernel,
    Launch,
    Out,
    Problem,
    Work,
    ceil_div,
    matrix_product,
    maximum,
    minimum,
)
from autotune.kernel.products import MatrixProduct


def square(n):
    return Problem(m=n, n=n, k=n)


def product(m, n, k):
    return Problem(m=m, n=n, k=k)


def view(m, n, k, **layout):
    """Matrices that lie otherwise; what is not said lies without gaps."""
    given = {"trans_a": 0, "trans_b": 0, "batch": 1, **layout}
    rows = {
        "a": (m, k) if given["trans_a"] == 0 else (k, m),
        "b": (k, n) if given["trans_b"] == 0 else (n, k),
        "c": (m, n),
    }
    apart = {f"ld{name}": given.get(f"ld{name}", columns) for name, (_, columns) in rows.items()}
    strides = {f"stride_{name}": count * apart[f"ld{name}"] for name, (count, _) in rows.items()}
    return Problem({"m": m, "n": n, "k": k, "view": 1, **apart, **strides, **given})


def warp_tiles(BM, BN, BK, WM, WN, TM, TN, **others):
    """A configuration of the CUDA source by its tiles."""
    tiles = {"BM": BM, "BN": BN, "BK": BK, "WM": WM, "WN": WN, "TM": TM, "TN": TN}
    usual = {"REG_DB": True, "LANES": "pairs", "RASTER": 8}
    return {"VARIANT": "cuda", **tiles, **usual, **others}


def thread_tiles(BM, BN, BK, TM, TN, **others):
    """A configuration of the portable source by its tiles."""
    tiles = {"BM": BM, "BN": BN, "BK": BK, "TM": TM, "TN": TN}
    return {"VARIANT": "portable", **tiles, "VEC": 4, "DOUBLE_SHARED": True, **others}


def columns(FEW, BLOCK_THREADS, TEAM, LINES, UNROLL, **others):
    """A configuration of the slim source for a C of few columns."""
    sizes = {"FEW": FEW, "BLOCK_THREADS": BLOCK_THREADS, "TEAM": TEAM, "LINES": LINES}
    usual = {"VARIANT": "slim", "NARROW": "columns", "VEC": 4, "STAGED": 1024 if FEW > 1 else 0}
    return {**usual, **sizes, "UNROLL": UNROLL, **others}


def outer(BLOCK_THREADS, TEAM, TM, TN, VEC):
    """A configuration of the source for a short k."""
    sizes = {"BLOCK_THREADS": BLOCK_THREADS, "TEAM": TEAM, "TM": TM, "TN": TN}
    return {"VARIANT": "outer", **sizes, "VEC": VEC}


def rows(FEW, BLOCK_THREADS, TEAM, LINES, UNROLL, **others):
    """The same for a C of few rows."""
    few = columns(FEW, BLOCK_THREADS, TEAM, LINES, UNROLL, **others)
    return {**few, "NARROW": "rows", "STAGED": others.get("STAGED", 0)}


#: The best of some fifty each on an H100, in all states of the cache.
SLIM_SEEDS = [
    # a block for a row of A, or two warps for each of a few
    columns(1, 256, 256, 1, 2, LOAD="stream"),
    columns(1, 256, 64, 1, 8, LOAD="stream", MIN_BLOCKS=2),
    columns(1, 256, 4, 1, 4, LOAD="stream", MIN_BLOCKS=2),  # short rows
    columns(4, 512, 16, 1, 4, LOAD="bypass"),
    # a strip of B for each multiprocessor, 64 KB of it under way
    rows(1, 512, 8, 1, 8, LOAD="stream"),
    rows(1, 256, 8, 1, 8, LOAD="stream"),
    rows(4, 512, 8, 1, 4, LOAD="stream"),
    rows(2, 256, 16, 2, 8, VEC=2, GRIDK=15, MIN_BLOCKS=2),
]

#: Registers that a thread needs besides accumulators and fragments: addresses, counters, predicates.
#: From what NVRTC 13 reports over a few hundred configurations of either source.
REGISTERS_BESIDES = 24

#: The longest k of the source for short ones.
MOST_K = 64

#: Shares of tiles that the CUDA source can count arrivals for, where k is split over the grid.
MOST_SHARES = 1024

#: What the kernels take, in order, and of a view besides.
ARGUMENTS = ("a", "b", "c", "alpha", "beta", "m", "n", "k")
DISTANCES = ("lda", "ldb", "ldc", "stride_a", "stride_b", "stride_c")

#: Bytes of shared memory that a block may have, on architectures that have cp.async. Source: CUDA C++
#: Programming Guide, "Technical Specifications per Compute Capability".
SHARED_LIMITS = (101376, 166912, 232448)

#: How the matrices lie, and what the tuned ones have: distances in elements, which they need not be told.
LAYOUT = {
    "view": 0,
    **dict.fromkeys(("trans_a", "trans_b"), 0),
    **dict.fromkeys(("lda", "ldb", "ldc"), 0),
    "batch": 1,
    **dict.fromkeys(("stride_a", "stride_b", "stride_c"), 0),
    **dict.fromkeys(("offset_a", "offset_b", "offset_c"), 0),
}

#: Rows or columns of C up to which tiles of 16 are worth a try.
SLIM = 64

sgemm = Kernel(
    sources={
        "portable": "sgemm.cu",
        "cuda": "sgemm_cuda.cu",
        "slim": "sgemm_slim.cu",
        "outer": "sgemm_outer.cu",
    },
    problems={
        "cuda": [
            *[square(n) for n in (256, 512, 1024, 2048, 4096, 8192, 1000)],
            product(1023, 1025, 1027),
            product(4096, 4096, 64),
            product(128, 4096, 4096),
            product(4096, 128, 4096),
            product(16384, 512, 1024),
            product(127, 333, 2047),
            # between powers of two: part of a wave of tiles, and rows that are not aligned
            *[square(n) for n in (128, 768, 1536, 3000, 2049)],
            product(333, 777, 555),
            product(4000, 199, 2000),
            # odd, and far from any power of two: others of the kind are foretold by them
            product(1111, 901, 703),
            product(701, 1303, 251),
            product(1555, 1777, 1333),
            *[square(n) for n in (600, 1200, 1400, 2400)],
            product(800, 1100, 350),
            # k is short, or C is slim, or both
            product(1024, 1024, 64),
            product(8192, 8192, 128),
            product(10000, 64, 64),
            product(64, 10000, 64),
            product(16000, 192, 48),
            product(2000, 100, 3000),
            product(300, 2100, 2000),
            product(13, 128, 2000),
            product(32, 4096, 4096),
            product(4096, 32, 4096),
            product(8192, 16, 4096),
            product(1, 4096, 4096),
            product(4096, 1, 4096),
            product(4, 4096, 4096),
            product(4096, 4, 4096),
            # k is all there is
            product(128, 128, 16384),
            product(256, 256, 8192),
            product(512, 512, 32768),
            product(1024, 1024, 8192),
            product(384, 1600, 6400),
            product(64, 64, 65536),
            product(400, 400, 6000),
            product(320, 320, 12000),
            product(391, 1593, 6500),
            product(380, 1790, 8000),
        ],
        "opencl": [square(256), product(255, 257, 259)],
    },
    quick_problems={
        "cuda": [square(1024), square(4096)],
        "opencl": [square(256), product(255, 257, 259)],
    },
    edge_problems=[
        square(1),
        square(7),
        product(1, 300, 5),
        product(129, 4, 33),
        product(100, 132, 68),
        product(127, 131, 129),
        product(33, 65, 8197),
        product(33, 68, 0),
        # a few columns, or rows
        product(333, 1, 4100),
        product(1, 333, 4100),
        product(260, 4, 1036),
        product(4, 260, 1036),
        product(2, 333, 501),
        product(3, 77, 0),
        view(259, 3, 1036, trans_b=1, lda=1040, ldb=1040, batch=2),
        view(260, 2, 517, trans_a=1, ldb=3, ldc=3, offset_c=1),
        view(6, 260, 1036, ldb=264, batch=2, stride_a=0),
        view(7, 131, 1036, trans_a=1, trans_b=1, lda=9, ldb=1040, ldc=133),
        # gaps, whole quads; then none, rows that touch, one B for all, three that begin anywhere
        view(100, 132, 68, lda=72, ldb=136, ldc=140, batch=3),
        view(127, 131, 129, lda=131, ldb=131, ldc=133, offset_a=1, offset_b=2, offset_c=3),
        view(132, 68, 100, trans_a=1, ldb=72, batch=2, stride_b=0),
        view(33, 65, 8197, trans_a=1, lda=35, batch=3, offset_a=2, offset_b=3, offset_c=1),
        view(65, 132, 70, trans_b=1, lda=71, ldb=73, batch=3, stride_a=0, ldc=136),
        view(68, 100, 129, trans_b=1, offset_a=3, offset_b=1, offset_c=2),
        view(131, 60, 133, trans_a=1, trans_b=1, ldb=135, batch=2),
        view(4, 3, 2053, trans_a=1, trans_b=1, lda=8, ldc=7, batch=5, offset_b=1),
    ],
    layout=LAYOUT,
    static=("view", "trans_a", "trans_b"),
    seeds=[
        # What was found to be best somewhere on an H100, so that together they are everywhere on it. 16 x 8 per
        # thread, one block of 8 warps on each multiprocessor.
        warp_tiles(128, 256, 16, 64, 64, 16, 8, STAGES=3, BURSTS=4, TAIL=True),
        warp_tiles(128, 256, 8, 128, 32, 16, 8, STAGES=3, BURSTS=4),
        # k is short: 8 x 8 per thread, and three blocks to take turns
        warp_tiles(32, 256, 8, 32, 64, 8, 8, STAGES=3, BURSTS=2, MIN_BLOCKS=3),
        # a tile or two for each multiprocessor: slices give it warps, and clusters more blocks
        warp_tiles(64, 64, 32, 32, 64, 8, 8, STAGES=3, BURSTS=4, SLICES=2, MIN_BLOCKS=3),
        warp_tiles(64, 128, 32, 32, 64, 8, 8, STAGES=4, BURSTS=4, SLICES=2, RASTER=1),
        warp_tiles(64, 128, 32, 32, 128, 8, 16, STAGES=4, BURSTS=4, SLICES=4),
        warp_tiles(64, 128, 32, 32, 64, 8, 8, STAGES=4, BURSTS=8, SLICES=2, SPLITK=2),
        warp_tiles(32, 64, 32, 32, 64, 8, 8, STAGES=3, BURSTS=4, SLICES=4, SPLITK=2),
        # sides that are no multiple of 64, or between 500 and 800
        warp_tiles(96, 96, 32, 48, 96, 12, 12, STAGES=3, BURSTS=8, SLICES=4),
        warp_tiles(48, 64, 16, 48, 32, 12, 4, STAGES=5, BURSTS=4, SLICES=2, SPLITK=2, MIN_BLOCKS=2),
        # less than a tile
        warp_tiles(32, 64, 32, 32, 32, 8, 4, STAGES=3, BURSTS=8, SLICES=2),
        warp_tiles(32, 64, 16, 32, 32, 8, 4, STAGES=3, BURSTS=4, SLICES=2),
        warp_tiles(32, 32, 16, 32, 32, 4, 8, STAGES=5, BURSTS=4, SLICES=4, MIN_BLOCKS=2),
        warp_tiles(32, 32, 32, 32, 32, 8, 4, STAGES=4, BURSTS=8, SLICES=4, SPLITK=2, MIN_BLOCKS=4),
        warp_tiles(64, 48, 32, 64, 48, 8, 12, STAGES=3, BURSTS=8, SLICES=4, SPLITK=8),
        # C is slim: B, or A, is read once and that is all
        warp_tiles(32, 128, 32, 32, 64, 8, 8, STAGES=4, BURSTS=8, SLICES=4, SPLITK=2),
        warp_tiles(32, 128, 32, 32, 64, 8, 8, STAGES=4, BURSTS=2, SLICES=4, GRIDK=4, RASTER=1),
        # k is long, and C has a tile or a few: as many blocks as there are multiprocessors
        warp_tiles(128, 256, 16, 64, 64, 16, 8, STAGES=3, BURSTS=4, SPLITK=2, GRIDK=8, RASTER=1),
        warp_tiles(64, 64, 32, 32, 64, 8, 8, STAGES=3, BURSTS=4, SLICES=4, GRIDK=5, RASTER=1),
        warp_tiles(64, 64, 32, 32, 64, 8, 8, STAGES=3, BURSTS=4, SLICES=4, GRIDK=8, RASTER=1),
        warp_tiles(
            64, 64, 32, 32, 64, 8, 8, STAGES=3, BURSTS=8, SLICES=4, SPLITK=8, GRIDK=15, RASTER=1
        ),
        warp_tiles(
            32, 64, 32, 32, 32, 8, 4, STAGES=3, BURSTS=2, SLICES=2, SPLITK=2, GRIDK=16, RASTER=1
        ),
        warp_tiles(
            32,
            64,
            16,
            32,
            32,
            8,
            4,
            STAGES=5,
            BURSTS=4,
            SLICES=2,
            SPLITK=4,
            GRIDK=15,
            RASTER=1,
            MIN_BLOCKS=4,
        ),
        # rows of B are no whole quads
        warp_tiles(64, 128, 32, 32, 64, 8, 8, STAGES=3, BURSTS=8, SLICES=2, B_ROWS="padded"),
        warp_tiles(96, 96, 32, 48, 96, 12, 12, STAGES=3, BURSTS=8, SLICES=4, B_ROWS="padded"),
        warp_tiles(
            32, 48, 32, 32, 48, 4, 12, STAGES=3, BURSTS=4, SLICES=4, SPLITK=2, B_ROWS="padded"
        ),
        warp_tiles(
            128,
            256,
            16,
            64,
            64,
            16,
            8,
            STAGES=3,
            BURSTS=4,
            SPLITK=2,
            GRIDK=2,
            RASTER=1,
            B_ROWS="padded",
        ),
        warp_tiles(64, 128, 32, 32, 64, 8, 8, STAGES=3, BURSTS=8, SLICES=2, B_ROWS="shifted"),
        warp_tiles(
            64, 64, 32, 32, 64, 8, 8, STAGES=3, BURSTS=4, SLICES=2, MIN_BLOCKS=3, B_ROWS="shifted"
        ),
        warp_tiles(
            128,
            256,
            16,
            64,
            64,
            16,
            8,
            STAGES=3,
            BURSTS=4,
            SPLITK=2,
            GRIDK=3,
            RASTER=1,
            B_ROWS="shifted",
        ),
        warp_tiles(
            32, 48, 32, 32, 48, 4, 12, STAGES=3, BURSTS=4, SLICES=4, SPLITK=2, B_ROWS="shifted"
        ),
        warp_tiles(96, 96, 32, 48, 96, 12, 12, STAGES=3, BURSTS=8, SLICES=4, B_ROWS="shifted"),
        # nor of C, and k is short
        warp_tiles(64, 128, 16, 32, 64, 8, 8, STAGES=3, BURSTS=4, MIN_BLOCKS=4, C_ROWS="lines"),
        warp_tiles(128, 256, 8, 64, 64, 16, 8, STAGES=3, BURSTS=4, C_ROWS="lines"),
        warp_tiles(96, 64, 8, 48, 32, 12, 4, STAGES=4, BURSTS=2, B_ROWS="shifted", C_ROWS="lines"),
        thread_tiles(128, 128, 16, 8, 8, UNROLL=8),
        thread_tiles(64, 64, 16, 4, 4, UNROLL=4),
        *SLIM_SEEDS,
        outer(256, 32, 8, 4, VEC=4),
        outer(256, 32, 8, 4, VEC=1),
        outer(128, 8, 4, 4, VEC=1),
    ],
    default=warp_tiles(64, 128, 16, 32, 64, 8, 8, STAGES=3, BURSTS=4, MIN_BLOCKS=2),
    variants={
        "naive": {"ALG": "naive", "BLOCK_X": 16, "BLOCK_Y": 16},
        "tile": {"ALG": "tile", "BLOCK_X": 16, "BLOCK_Y": 16, "BK": 16, "UNROLL": 8},
        "register": thread_tiles(64, 64, 16, 4, 4, UNROLL=4),
        "double": thread_tiles(64, 64, 16, 4, 4, UNROLL=4, DOUBLE_SHARED=True),
    },
    VARIANT=("portable", "cuda", "slim", "outer"),
    ALG=("register", "tile", "naive"),  # of the portable source: where reuse is found
    BLOCK_X=(16, 32, 64),  # naive, tile: threads along a row of C
    BLOCK_Y=(2, 4, 8, 16),  # naive, tile: threads along a column of C
    BM=(16, 32, 48, 64, 96, 128, 256),  # rows of C per block
    BN=(16, 32, 48, 64, 96, 128, 256),  # columns of C per block
    BK=(8, 16, 32),  # depth of one pair of tiles
    WM=(16, 32, 48, 64, 96, 128),  # rows of C per warp
    WN=(16, 32, 48, 64, 96, 128),  # columns of C per warp
    TM=(4, 8, 12, 16),  # rows of C per thread
    TN=(4, 8, 12, 16),  # columns of C per thread
    VEC=(1, 2, 4),  # floats per load from global memory
    PAD=(4, 0),  # floats added to each row of A's tile, against bank conflicts
    DOUBLE_SHARED=(False, True),  # two pairs of tiles in turn
    DOUBLE_FRAGMENT=(False, True),  # read the values of step k + 1 before the arithmetic of step k
    UNROLL=(1, 2, 4, 8),  # steps of k written out
    STAGES=(2, 3, 4, 5),  # pairs of tiles, all but one on their way
    REG_DB=(False, True),  # the same as DOUBLE_FRAGMENT, of the CUDA source
    BURSTS=(2, 4, 8),  # times per step at which copies start
    LANES=("rows", "pairs"),  # layout of a warp over its tile
    RASTER=(1, 8),  # rows of blocks that run together, for the L2 cache
    SPLITK=(1, 2, 4, 8),  # blocks, as one cluster, that share a tile of C
    GRIDK=(1, 2, 3, 4, 5, 8, 15, 16),  # such clusters, or lone blocks, that share a tile of C
    SLICES=(1, 2, 4),  # groups of warps in a block that share a tile of C
    TAIL=(False, True),  # two blocks share each tile of the last wave
    # how B gets to shared memory: as it lies; from a copy with rows of whole quads; in quads, shifted there
    B_ROWS=("direct", "padded", "shifted"),
    MIN_BLOCKS=(1, 2, 3, 4),  # blocks that must fit on one multiprocessor
    C_ROWS=("direct", "lines"),  # how rows of C are written that are no whole quads
    # of the slim source; BLOCK_THREADS and TEAM of the outer one too
    NARROW=("columns", "rows"),  # what C has few of
    FEW=(1, 2, 4, 8),  # of them at most
    BLOCK_THREADS=(128, 256, 512),
    TEAM=(4, 8, 16, 32, 64, 256),  # threads that read the large matrix, or write C, side by side
    LINES=(1, 2, 4),  # its rows, or VEC of its columns, that each of them takes at once
    LOAD=("plain", "stream", "bypass"),  # what to tell the caches about it
    STAGED=(0, 1024),  # steps of k for which the small matrix lies in shared memory; 0: in caches
    WARP=(32, 16, 64),  # threads that run in step: the device's, not a choice
)

# ------------------------------------------------------------------ which parameters matter


@sgemm.applies("ALG")
def portable(VARIANT):
    return VARIANT == "portable"


@sgemm.applies(
    "WM",
    "WN",
    "STAGES",
    "REG_DB",
    "BURSTS",
    "LANES",
    "RASTER",
    "SPLITK",
    "SLICES",
    "TAIL",
    "B_ROWS",
    "C_ROWS",
)
def cuda(VARIANT):
    return VARIANT == "cuda"


@sgemm.applies("BLOCK_X", "BLOCK_Y")
def one_element_per_thread(VARIANT, ALG):
    return VARIANT == "portable" and ALG != "register"


@sgemm.applies("BM", "BN")
def tiles_are_given(VARIANT, ALG):
    return VARIANT == "cuda" or (VARIANT == "portable" and ALG == "register")


@sgemm.applies("TM", "TN")
def many_elements_per_thread(VARIANT, ALG):
    return VARIANT in ("cuda", "outer") or (VARIANT == "portable" and ALG == "register")


@sgemm.applies("MIN_BLOCKS")
def registers_decide_occupancy(VARIANT, ALG):
    return VARIANT in ("cuda", "slim") or (VARIANT == "portable" and ALG == "register")


@sgemm.applies("PAD", "DOUBLE_SHARED", "DOUBLE_FRAGMENT")
def portable_register(VARIANT, ALG):
    return VARIANT == "portable" and ALG == "register"


@sgemm.applies("VEC")
def width_of_loads_is_free(VARIANT, ALG):
    return VARIANT in ("slim", "outer") or (VARIANT == "portable" and ALG == "register")


@sgemm.applies("BK")
def tiles_in_shared_memory(VARIANT, ALG):
    return VARIANT == "cuda" or (VARIANT == "portable" and ALG != "naive")


@sgemm.applies("UNROLL")
def inner_loop_is_unrolled(VARIANT, ALG):
    return VARIANT == "slim" or (VARIANT == "portable" and ALG != "naive")


@sgemm.applies("GRIDK")
def k_may_be_split_over_the_grid(VARIANT):
    return VARIANT in ("cuda", "slim")


@sgemm.applies("NARROW", "FEW", "LINES", "LOAD", "STAGED", "WARP")
def slim(VARIANT):
    return VARIANT == "slim"


@sgemm.applies("BLOCK_THREADS", "TEAM")
def teams(VARIANT):
    return VARIANT in ("slim", "outer")


# ------------------------------------------------------------------ what both sources need


def warps(BM, BN, WM, WN, SLICES):
    """Warps of a block of the CUDA source, 0 where a warp's tile is larger than the block's."""
    return (BM // WM) * (BN // WN) * SLICES


def compute_capability(device):
    """90 for sm_90; 0 where the device is no CUDA device."""
    return int("".join(filter(str.isdigit, device.arch)) or 0) if device.backend == "cuda" else 0


@sgemm.constraint
def variant_runs_here(VARIANT, device):
    """The CUDA source needs cp.async: compute capability 8.0."""
    return VARIANT != "cuda" or compute_capability(device) >= 80


@sgemm.constraint
def occupancy_is_cuda(MIN_BLOCKS, device):
    """OpenCL has no word for blocks per multiprocessor."""
    return device.backend == "cuda" or MIN_BLOCKS == 1


# ------------------------------------------------------------------ portable


@sgemm.constraint
def small_block_is_whole_warps(BLOCK_X, BLOCK_Y, device):
    """naive, tile: a block is whole warps, 64 threads at least and as many as the device allows."""
    return (
        BLOCK_X * BLOCK_Y % device.warp_size == 0
        and 64 <= BLOCK_X * BLOCK_Y <= device.max_threads_per_block
    )


@sgemm.constraint
def register_block_is_whole_warps(VARIANT, BM, BN, TM, TN, device):
    """register: a block is whole warps, 64 to 512 threads of at most 8 x 8 elements."""
    count = (BM // TM) * (BN // TN)
    return VARIANT != "portable" or (
        TM <= 8 and TN <= 8 and count % device.warp_size == 0 and 64 <= count <= 512
    )


@sgemm.constraint
def loads_divide(VARIANT, BM, BN, BK, TM, TN, VEC):
    """register: every thread loads equally many pieces of VEC floats of either tile."""
    piece = (BM // TM) * (BN // TN) * VEC
    return VARIANT != "portable" or (BM * BK % piece == 0 and BK * BN % piece == 0)


@sgemm.constraint
def unroll_divides(BK, UNROLL):
    """A step of k is whole unrolled pieces."""
    return BK % UNROLL == 0


@sgemm.constraint
def portable_fits_registers(VARIANT, BM, BN, BK, TM, TN, DOUBLE_FRAGMENT, MIN_BLOCKS, device):
    """register: accumulators, fragments and the next tiles' pieces fit the registers of a thread."""
    count = (BM // TM) * (BN // TN)
    needed = (
        TM * TN + (1 + DOUBLE_FRAGMENT) * (TM + TN) + (BM + BN) * BK // count + REGISTERS_BESIDES
    )
    available = min(255, device.registers_per_sm // (count * MIN_BLOCKS))
    return VARIANT != "portable" or device.backend != "cuda" or needed <= available


@sgemm.constraint
def portable_fits_shared(VARIANT, BM, BN, BK, PAD, DOUBLE_SHARED, MIN_BLOCKS, device):
    """register: the tiles fit in shared memory, of which a kernel may declare 48 KB."""
    needed = 4 * (1 + DOUBLE_SHARED) * BK * (BM + PAD + BN)
    return VARIANT != "portable" or needed <= min(
        49152, device.shared_bytes_per_block, device.shared_bytes_per_sm // MIN_BLOCKS - 1024
    )


# ------------------------------------------------------------------ CUDA


@sgemm.constraint
def thread_tile_saves_reads(VARIANT, TM, TN):
    """cuda: a thread tile is at least 4 x 8 and at most three times as long as wide, and no 12 goes with 16."""
    return VARIANT != "cuda" or (
        TM * TN >= 32 and TM <= 3 * TN and TN <= 3 * TM and {TM, TN} != {12, 16}
    )


@sgemm.constraint
def lanes_make_a_warp(VARIANT, WM, WN, TM, TN):
    """cuda: 4 x 8 or 8 x 4 thread tiles make a warp tile, whose longest read is then 128 bytes, all banks once."""
    return VARIANT != "cuda" or (WM, WN) in ((4 * TM, 8 * TN), (8 * TM, 4 * TN))


@sgemm.constraint
def warps_make_a_block(VARIANT, BM, BN, WM, WN, SLICES):
    """cuda: a block is whole warp tiles, 2 to 8 warps with all slices."""
    return VARIANT != "cuda" or (
        BM % WM == BN % WN == 0 and 2 <= warps(BM, BN, WM, WN, SLICES) <= 8
    )


@sgemm.constraint
def slices_are_deep(VARIANT, BK, BURSTS, SLICES):
    """cuda: between two bursts of copies every slice has whole steps of k, and 4 in all at least."""
    return VARIANT != "cuda" or (BK // SLICES % BURSTS == 0 and BK // SLICES >= 4)


@sgemm.constraint
def copies_are_even(VARIANT, BM, BN, BK, WM, WN, SLICES):
    """cuda: all threads copy equally often: the block takes whole rows of A's and B's tiles at a time."""
    count = 32 * warps(BM, BN, WM, WN, SLICES)
    lanes = next(lanes for lanes in (32, 16, 8, 4) if BN // 4 % lanes == 0)  # along a row of B
    return VARIANT != "cuda" or (
        count > 0 and BM % (count // 8) == 0 and BK % (count // lanes) == 0
    )


@sgemm.constraint
def bursts_are_short(VARIANT, BM, BN, BK, WM, WN, BURSTS, SLICES):
    """cuda: a thread starts 1 to 8 copies at a time: more hold up the reads of fragments behind them."""
    count = 32 * max(1, warps(BM, BN, WM, WN, SLICES))
    copies = BK * (BM + BN // 4) // count
    return VARIANT != "cuda" or BURSTS <= copies <= 8 * BURSTS


@sgemm.constraint
def step_fits_instruction_cache(VARIANT, BK, TM, TN, SLICES):
    """cuda: the unrolled step is at most 4096 multiply-adds, 64 KB of code."""
    return VARIANT != "cuda" or BK // SLICES * TM * TN <= 4096


@sgemm.constraint
def copies_cover_latency(VARIANT, BK, STAGES):
    """cuda: 16 to 96 steps of k are on their way: fewer wait for memory, more gain nothing."""
    return VARIANT != "cuda" or 16 <= BK * (STAGES - 1) <= 96


@sgemm.constraint
def cuda_fits_registers(VARIANT, BM, BN, WM, WN, TM, TN, REG_DB, SLICES, MIN_BLOCKS, device):
    """cuda: accumulators, fragments and a pointer for each row of A that it copies fit a thread's registers."""
    if VARIANT != "cuda":
        return True
    count = warps(BM, BN, WM, WN, SLICES)
    if count == 0:
        return False
    pointers = 2 * ceil_div(BM, 4 * count)
    needed = TM * TN + (1 + REG_DB) * (TM + TN) + pointers + REGISTERS_BESIDES
    # Each of the four schedulers of a multiprocessor has a quarter of the registers for its own warps.
    available = device.registers_per_sm // 4 // (32 * ceil_div(count * MIN_BLOCKS, 4)) // 8 * 8
    return needed <= min(255, available) and 32 * count * MIN_BLOCKS <= device.max_threads_per_sm


@sgemm.constraint
def enough_warps(VARIANT, BM, BN, WM, WN, SLICES, MIN_BLOCKS):
    """cuda: MIN_BLOCKS is no demand, or one for 2 to 4 warps for each of a multiprocessor's schedulers."""
    count = warps(BM, BN, WM, WN, SLICES) * MIN_BLOCKS
    return VARIANT != "cuda" or MIN_BLOCKS == 1 or 8 <= count <= 16


def cuda_shared_bytes(**values):
    """Dynamic shared memory of the CUDA source: the stages, and in their place in the end the sums of slices."""
    return max(stages_bytes(**values), sums_bytes(**values))


def stages_bytes(BM, BN, BK, PAD, STAGES, B_ROWS, trans_a=0, trans_b=0, **others):
    """Of the tiles of A and B, with a pad where they are transposed on the way, and a quad where they are shifted."""
    pads = PAD * (1 - trans_a + trans_b) + (4 if B_ROWS == "shifted" else 0)
    return 4 * STAGES * BK * (BM + BN + pads)


def sums_bytes(BM, BN, SPLITK, GRIDK, SLICES, **others):
    """Of a tile of C from each slice, to be added up."""
    return 4 * SLICES * BM * (BN + 4) if SPLITK * GRIDK * SLICES > 1 else 0


def most_shared_bytes(MIN_BLOCKS, device):
    """What each of so many blocks may have of a multiprocessor's, 1 KB of it per block reserved."""
    return min(device.shared_bytes_per_block, device.shared_bytes_per_sm // MIN_BLOCKS - 1024)


@sgemm.constraint
def cuda_stages_fit_shared(VARIANT, BM, BN, BK, PAD, STAGES, B_ROWS, MIN_BLOCKS, device):
    """cuda: the stages of MIN_BLOCKS blocks fit in a multiprocessor's shared memory."""
    needed = stages_bytes(BM, BN, BK, PAD, STAGES, B_ROWS)
    return VARIANT != "cuda" or needed <= most_shared_bytes(MIN_BLOCKS, device)


@sgemm.constraint
def cuda_sums_fit_shared(VARIANT, BM, BN, SPLITK, GRIDK, SLICES, MIN_BLOCKS, C_ROWS, device):
    """cuda: so do the tiles of C that slices, blocks and clusters add up, which write them in lines anyway."""
    needed = sums_bytes(BM, BN, SPLITK, GRIDK, SLICES)
    fits = needed <= most_shared_bytes(MIN_BLOCKS, device)
    return VARIANT != "cuda" or (fits and (needed == 0 or C_ROWS == "direct"))


@sgemm.constraint
def few_tiles_have_no_order(RASTER, GRIDK):
    """cuda: where k is split over the grid, tiles are too few for their order to matter."""
    return GRIDK == 1 or RASTER == 1


@sgemm.constraint
def clusters_are_pairs(SPLITK, GRIDK):
    """cuda: clusters that share a tile are pairs, for which there is room anywhere, or fifteen of any size."""
    return SPLITK <= 2 or GRIDK in (1, 15)


@sgemm.constraint
def long_k_has_fragments_read_ahead(VARIANT, REG_DB, LANES, GRIDK):
    """cuda: where k is split over the grid in more than three parts it is long: fragments are read ahead, by pairs."""
    return VARIANT != "cuda" or GRIDK <= 3 or (REG_DB and LANES == "pairs")


@sgemm.constraint
def tail_is_of_large_tiles(BM, BN, TM, TN, REG_DB, LANES, SPLITK, GRIDK, SLICES, TAIL, C_ROWS):
    """cuda: a tail is worth it where C is large: tiles of 128 x 128 at least, k split for nothing else, no lines."""
    if not TAIL:
        return True
    is_large = min(BM, BN) >= 128 and TM * TN >= 96 and C_ROWS == "direct"
    return is_large and REG_DB and LANES == "pairs" and SPLITK * GRIDK * SLICES == 1


@sgemm.constraint
def tails_are_counted(MIN_BLOCKS, TAIL, device):
    """cuda: a wave has no more tiles than the source can count arrivals for."""
    return not TAIL or MIN_BLOCKS * device.sm_count <= MOST_SHARES


@sgemm.constraint
def tiles_are_large_where_rows_are_not_copied_directly(
    BM, BN, STAGES, REG_DB, LANES, RASTER, GRIDK, B_ROWS
):
    """cuda: what it costs to copy B otherwise is won back by tiles of 32 at least, with fragments read ahead."""
    if B_ROWS == "direct":
        return True
    is_large = min(BM, BN) >= 32 and (RASTER == 8 or GRIDK > 1)
    return is_large and STAGES > 2 and REG_DB and LANES == "pairs"


@sgemm.constraint
def rows_are_shifted_alike(BM, BN, BK, WM, WN, SLICES, GRIDK, B_ROWS):
    """cuda: a row is shifted by 16 lanes or a warp, a multiple of four at a time, in the second half of a step.

    Not where the grid has more than three parts of k: then B has few columns, and a copy of it costs little.
    """
    if B_ROWS != "shifted":
        return True
    rows = 32 * warps(BM, BN, WM, WN, SLICES) // (32 if BN % 32 == 0 else 16)
    return rows > 0 and rows % 4 == 0 and BK % rows == 0 and BK // SLICES >= 4 and GRIDK <= 3


@sgemm.constraint
def clusters_exist(SPLITK, device):
    """cuda: blocks can share k only in a cluster, from compute capability 9.0 on."""
    return SPLITK == 1 or compute_capability(device) >= 90


# ------------------------------------------------------------------ slim


def slim_tile(NARROW, BLOCK_THREADS, TEAM, LINES, VEC, trans_a=0, trans_b=0, **others):
    """Lines of a block: rows of A where C has few columns, columns of B where it has few rows."""
    along = trans_b if NARROW == "rows" else 1 - trans_a
    return along * (BLOCK_THREADS // TEAM * LINES) + (1 - along) * (TEAM * VEC * LINES)


def slim_shared_bytes(NARROW, FEW, BLOCK_THREADS, TEAM, LINES, VEC, STAGED, WARP, **others):
    """Static shared memory of the slim source, whatever the layout: a copy of a tile from every warp that has one."""
    copies_across = BLOCK_THREADS // max(TEAM, WARP) * (TEAM * VEC * LINES)
    copies_along = max(1, TEAM // WARP) * (BLOCK_THREADS // TEAM * LINES)
    return 4 * (max(copies_across, copies_along) + FEW * (STAGED + 4))


@sgemm.constraint
def slim_parts_are_few_or_many(VARIANT, GRIDK):
    """slim: three or fifteen blocks share k, or none do."""
    return VARIANT != "slim" or GRIDK in (1, 3, 15)


@sgemm.constraint
def warp_width_is_given(WARP, device):
    """slim: WARP is what the device calls a warp or a sub-group."""
    return device.warp_size == WARP


@sgemm.constraint
def teams_make_a_block(NARROW, BLOCK_THREADS, TEAM, device):
    """slim: a block is whole teams; a team across columns of B is a warp at most, which is 512 bytes of a row."""
    return TEAM <= BLOCK_THREADS <= device.max_threads_per_block and (
        NARROW == "columns" or TEAM <= 32
    )


@sgemm.constraint
def loads_saturate_the_memory(LINES, VEC, UNROLL, VARIANT):
    """slim: a thread has 32 to 256 bytes of the large matrix in flight."""
    return VARIANT != "slim" or 8 <= LINES * VEC * UNROLL <= 64


@sgemm.constraint
def slim_fits_registers(
    VARIANT, NARROW, FEW, BLOCK_THREADS, LINES, VEC, UNROLL, MIN_BLOCKS, device
):
    """slim: at most 64 sums a thread; they, the loads in flight and 32 others fit its registers.

    Below 512 threads on a multiprocessor registers are no limit, and asking for more blocks changes nothing.
    """
    if VARIANT != "slim":
        return True
    threads = BLOCK_THREADS * MIN_BLOCKS
    sums = LINES * FEW * (VEC if NARROW == "rows" else 1)
    needed = LINES * VEC * UNROLL + sums + FEW * VEC + 32
    fits = needed <= min(255, device.registers_per_sm // threads)
    return (
        sums <= 64
        and (fits or device.backend != "cuda")
        and (MIN_BLOCKS == 1 or (MIN_BLOCKS == 2 and 512 <= threads <= device.max_threads_per_sm))
    )


@sgemm.constraint
def slim_fits_shared(NARROW, FEW, BLOCK_THREADS, TEAM, LINES, VEC, STAGED, WARP, device):
    """slim: sums and what is staged fit in shared memory, of which a kernel may declare 48 KB."""
    needed = slim_shared_bytes(NARROW, FEW, BLOCK_THREADS, TEAM, LINES, VEC, STAGED, WARP)
    return needed <= min(49152, device.shared_bytes_per_block)


@sgemm.constraint
def several_columns_are_staged(NARROW, FEW, STAGED):
    """slim: one column or row is read as it lies; several columns of B in vectors along k only from a copy."""
    return STAGED == 0 if FEW == 1 else NARROW == "rows" or STAGED > 0


@sgemm.constraint
def staged_are_whole_steps(NARROW, BLOCK_THREADS, TEAM, VEC, UNROLL, STAGED):
    """slim: what is staged of the small matrix is whole steps, whether a step is along k or across."""
    along, across = TEAM * VEC * UNROLL, max(1, BLOCK_THREADS // TEAM) * UNROLL
    return STAGED % along == STAGED % across == 0


@sgemm.constraint
def hints_are_cuda(LOAD, device):
    """slim: OpenCL has no cache hints; loads past L1 that fetch 256 bytes begin with compute capability 8.0."""
    if device.backend != "cuda":
        return LOAD == "plain"
    return LOAD != "bypass" or compute_capability(device) >= 80


# ------------------------------------------------------------------ outer


def outer_tile(BLOCK_THREADS, TEAM, TM, TN, **others):
    """Rows and columns of C of a block of the outer source."""
    return BLOCK_THREADS // TEAM * TM, TEAM * TN


@sgemm.constraint
def outer_fits_registers(VARIANT, TM, TN):
    """outer: at most 64 sums a thread, with four steps of B's columns beside them."""
    return VARIANT != "outer" or TM * TN <= 64


@sgemm.constraint
def outer_fits_shared(VARIANT, BLOCK_THREADS, TEAM, TM, TN, device):
    """outer: a block's rows of A fit in shared memory, of which a kernel may declare 48 KB."""
    rows, _ = outer_tile(BLOCK_THREADS, TEAM, TM, TN)
    needed = 4 * rows * (MOST_K + 4)
    return VARIANT != "outer" or needed <= min(49152, device.shared_bytes_per_block)


@sgemm.constraint
def outer_columns_are_quads_or_single(VARIANT, VEC):
    """outer: columns of a thread are neighbours by four, or not at all."""
    return VARIANT != "outer" or VEC != 2


# ------------------------------------------------------------------ running it


def tiles(c, p):
    """Blocks of C."""
    if c.VARIANT == "slim":
        tile = slim_tile(**c, trans_a=p.trans_a, trans_b=p.trans_b)
        return ceil_div(p.m if c.NARROW == "columns" else p.n, tile)
    if c.VARIANT == "outer":
        rows, columns = outer_tile(**c)
        return ceil_div(p.m, rows) * ceil_div(p.n, columns)
    return ceil_div(p.m, c.BM) * ceil_div(p.n, c.BN)


@sgemm.requires
def requires(c, p):
    """Reads of many bytes are aligned; split over the grid is a long k that has few tiles; cuda: tiles
    16 wide are for slim C, lines for odd rows; slim: C has as few columns or rows as it is made for, and over half
    of that; outer: k is short, and nothing is a view.

    Views are looked at in the kernels.
    """
    if c.VARIANT == "portable":
        return c.ALG != "register" or vectors_are_aligned(c, p)
    if c.VARIANT == "slim":
        few = p.n if c.NARROW == "columns" else p.m
        shares = (tiles(c, p) * p.batch <= MOST_SHARES) & (p.k >= 32 * c.GRIDK)
        return (few <= c.FEW) & (2 * few >= c.FEW + 1) & (c.GRIDK == 1 or shares)
    if c.VARIANT == "outer":
        return (p.view == 0) & (p.k <= MOST_K) & (p.n % c.VEC == 0)
    split = c.SPLITK * c.GRIDK
    few = (tiles(c, p) * p.batch * c.SPLITK <= MOST_SHARES) & (2 * c.BK * split <= p.k)
    return (
        (c.GRIDK == 1 or few)
        & (c.BM > 16 or p.m <= SLIM)
        & (c.BN > 16 or p.n <= SLIM)
        & ((1 - p.view) * (p.n % 4 == 0) * (p.offset_b + p.offset_c) == 0)
        & (not pad_outgrows_shared(c) or p.trans_b == 0)
        & (c.B_ROWS != "padded" or (p.n % 4 >= 1) & (p.k >= 1) & (p.view == 0))
        & (c.B_ROWS != "shifted" or (p.n >= 4) & (p.view == 0))
        & (c.C_ROWS != "lines" or p.n % 4 >= 1)
        & (not c.TAIL or p.view == 0)
    )


def vectors_are_aligned(c, p):
    """Where rows of the tuned layout are whole vectors of the portable source, they begin at one."""
    a = (p.k % c.VEC == 0) * (p.offset_a % c.VEC)
    b = (p.n % c.VEC == 0) * (p.offset_b % c.VEC)
    return (1 - p.view) * (a + b + (p.n % 4 == 0) * p.offset_c) == 0


def pad_outgrows_shared(c):
    """Whether a pad for B's tile makes the stages too large for an architecture that they fit without."""
    plain, padded = cuda_shared_bytes(**c), cuda_shared_bytes(**c, trans_b=1)
    return any(plain <= limit < padded for limit in SHARED_LIMITS)


@sgemm.exclusive
def exclusive(c):
    """Where k is split over the grid, or the last wave shared, arrivals are counted in the loaded module."""
    return c.GRIDK > 1 or c.TAIL


@sgemm.deterministic
def deterministic(c, p):
    """Whoever arrives last, slices, blocks and clusters are added up in one order."""
    return True


@sgemm.scratch
def scratch(c, p, device):
    buffers = {}
    if c.TAIL:
        buffers["partial"] = Out(maximum(1, 2 * last_wave(c, p, device) * c.BM * c.BN))
    if c.GRIDK > 1:
        is_slim = c.VARIANT == "slim"
        tile = (
            c.FEW * slim_tile(**c, trans_a=p.trans_a, trans_b=p.trans_b) if is_slim else c.BM * c.BN
        )
        buffers["partial"] = Out(c.GRIDK * tiles(c, p) * p.batch * tile)
    if c.B_ROWS == "padded":
        buffers["padded"] = Out(p.k * 4 * ceil_div(p.n, 4))
    return buffers


def last_wave(c, p, device):
    """Tiles that are left when all multiprocessors have had equally many."""
    return tiles(c, p) % (c.MIN_BLOCKS * device.sm_count)


@sgemm.launch
def launch(c, p, device):
    passed = (*ARGUMENTS, *DISTANCES, *scratch(c, p, device)) if p.view else None
    if c.VARIANT == "cuda":
        product = Launch(
            grid=(of_all_matrices(tiles(c, p), p), c.GRIDK, c.SPLITK),
            block=(32 * warps(c.BM, c.BN, c.WM, c.WN, c.SLICES),),
            shared_bytes=cuda_shared_bytes(**c, trans_a=p.trans_a, trans_b=p.trans_b),
            args=passed,
        )
        if c.TAIL:
            product = with_tail(c, p, device, product)
        return padded_first(c, p, product) if c.B_ROWS == "padded" else product
    if c.VARIANT == "slim":
        grid = (of_all_matrices(tiles(c, p), p), c.GRIDK)
        return Launch(grid=grid, block=(c.BLOCK_THREADS,), args=passed)
    if c.VARIANT == "outer":
        return Launch(grid=(tiles(c, p),), block=(c.BLOCK_THREADS,))
    if c.ALG == "register":
        blocks, block = tiles(c, p), (c.BM // c.TM * (c.BN // c.TN),)
    else:
        blocks = ceil_div(p.m, c.BLOCK_Y) * ceil_div(p.n, c.BLOCK_X)
        block = (c.BLOCK_X, c.BLOCK_Y)
    return Launch(grid=(of_all_matrices(blocks, p),), block=block, args=passed)


def with_tail(c, p, device, product):
    """The launch with a second block for each tile of the last wave.

    Multiprocessors that have no first one take so many of these in turn.
    """
    shared = last_wave(c, p, device)
    turns = ceil_div(shared, c.MIN_BLOCKS * device.sm_count - shared)
    args = (*ARGUMENTS, "partial", turns)
    return dataclasses.replace(product, grid=(tiles(c, p) + shared, 1, 1), args=args)


def padded_first(c, p, product):
    """The launches where B is copied first: a thread of 256 has some quads, so that 2048 blocks are plenty."""
    quads = p.k * ceil_div(p.n, 4)
    pad = Launch(
        grid=(minimum(ceil_div(quads, 256), 2048),),
        block=(256,),
        entry="pad_rows",
        args=("b", "padded", "n", "k"),
    )
    partial = ("partial",) if c.GRIDK > 1 else ()
    passed = product.args or (*ARGUMENTS, *partial)
    return pad, dataclasses.replace(product, args=("a", "padded", *passed[2:]))


def of_all_matrices(blocks, p):
    """Blocks of a batch from those of one C."""
    return blocks if p.batch == 1 else blocks * p.batch


@sgemm.arguments
def arguments(p, rng):
    """In the kernel's order. Where nothing is added to C it holds NaN, which must not get through.

    Of views all memory is drawn, from the first element to the last: what lies between must stay.
    """
    shape_of_c = shape(p, "c", p.m, p.n)
    # One NaN for all of C: `load` asks for shapes, and has no use for a gigabyte of them.
    nothing = np.broadcast_to(np.float32(np.nan), shape_of_c)
    is_added = adds(p, rng)
    c = rng.standard_normal(shape_of_c) if is_added else nothing
    return {
        "a": rng.standard_normal(shape(p, "a", *((p.k, p.m) if p.trans_a else (p.m, p.k)))),
        "b": rng.standard_normal(shape(p, "b", *((p.n, p.k) if p.trans_b else (p.k, p.n)))),
        "c": InOut(c),
        "alpha": 2.0 if is_added else 1.0,
        "beta": 0.5 if is_added else 0.0,
        "m": p.m,
        "n": p.n,
        "k": p.k,
        **({name: np.int64(p[name]) for name in DISTANCES} if p.view else {}),
        **({name: p[name] for name in ("trans_a", "trans_b", "batch")} if p.view else {}),
    }


def adds(p, rng):
    """Return whether twice the product is added to a half of C: in views, and on exact data of small problems.

    Random data are timed, and most calls add nothing.
    """
    return p.view or (rng.exact and p.m * p.n * p.k < 1 << 22)


def shape(p, name, rows, columns):
    """Of a matrix, or a batch, as it lies: that itself where it has no gaps, else the elements it spans."""
    if not p.view:
        return rows, columns
    apart, stride = p[f"ld{name}"], p[f"stride_{name}"]
    if apart == columns and (p.batch == 1 or stride == 0):
        return rows, columns
    if apart == columns and stride == rows * columns:
        return p.batch, rows, columns
    return ((p.batch - 1) * stride + (rows - 1) * apart + columns,)


@sgemm.reference
def reference(
    a,
    b,
    c,
    alpha,
    beta,
    m,
    n,
    k,
    lda=0,
    ldb=0,
    ldc=0,
    stride_a=0,
    stride_b=0,
    stride_c=0,
    trans_a=0,
    trans_b=0,
    batch=0,
):
    if not batch:
        product = alpha * (a @ b)
        return product + beta * c if beta else product
    expected = c.copy()
    of_a = matrices(a, batch, m, k, lda, stride_a, trans_a)
    of_b = matrices(b, batch, k, n, ldb, stride_b, trans_b)
    of_c = matrices(expected, batch, m, n, ldc, stride_c)
    of_c[...] = alpha * (of_a @ of_b) + (beta * of_c if beta else 0)
    return expected


def matrices(memory, batch, rows, columns, apart, stride, transposed=False):
    """A batch of matrices in a piece of memory."""
    steps = (stride, 1, apart) if transposed else (stride, apart, 1)
    return np.lib.stride_tricks.as_strided(
        memory, (batch, rows, columns), [step * memory.itemsize for step in steps]
    )


@sgemm.tolerance
def tolerance(p):
    """Rounding errors of k additions of normal products, whose partial sums grow like sqrt(k).

    Their standard deviation is some 0.2 eps k; the largest of a few million is six times that, twice with
    a view's alpha. TF32 is beyond the bound from small k on, its error being 4e-4 sqrt(k).
    """
    alpha = 2 if p.view else 1
    return alpha * float(np.finfo(np.float32).eps) * (4 * p.k + 64)


@sgemm.work
def work(p):
    return Work(
        flops=2 * p.batch * p.m * p.n * p.k,
        bytes_read=4 * p.batch * (p.m * p.k + p.k * p.n),
        bytes_written=4 * p.batch * p.m * p.n,
    )


# ------------------------------------------------------------------ calling it


@sgemm.call
def call(a, b, out=None, alpha=1.0, beta=0.0):
    product = matrix_product(a, b, out, alpha, beta)
    if not isinstance(product, MatrixProduct):
        return product
    problem = Problem(m=product.m, n=product.n, k=product.k)
    reads_vectors = product.n % 4 == 0 and product.b.offset + product.c.offset > 0
    if not product.is_plain or reads_vectors:
        problem = problem.replace(view=1, **product.layout)
    return product.answer(problem)


@sgemm.baseline("cublas")
def cublas(a, b, c, alpha, beta, m, n, k, **view):
    """cublasSgemm in plain float32. It is column-major, so it is asked for C' = B' A'."""
    from autotune.vendor import PLAIN, cublas_call

    if view or k == 0:
        return None  # compared is what is tuned
    return cublas_call("cublasSgemm_v2", PLAIN, PLAIN, n, m, k, alpha, b, n, a, k, beta, c, n)
