"""`slim` (kernels/sgemm_slim.cu): for a C of a few columns, or rows, on CUDA and OpenCL."""

from _device import hints_are_cuda, occupancy_is_cuda, warps_are_known
from _sgemm import MOST_SHARES, MOST_STATIC_BYTES, of_all_matrices, passed

from autotune import Launch, Out, Source, ceil_div


def columns(FEW, BLOCK_THREADS, TEAM, LINES, UNROLL, **others):
    """Return a configuration for a C of few columns."""
    sizes = {"FEW": FEW, "BLOCK_THREADS": BLOCK_THREADS, "TEAM": TEAM, "LINES": LINES}
    usual = {"NARROW": "columns", "VEC": 4, "STAGED": 1024 if FEW > 1 else 0}
    return {**usual, **sizes, "UNROLL": UNROLL, **others}


def rows(FEW, BLOCK_THREADS, TEAM, LINES, UNROLL, **others):
    """Return a configuration for a C of few rows."""
    few = columns(FEW, BLOCK_THREADS, TEAM, LINES, UNROLL, **others)
    return {**few, "NARROW": "rows", "STAGED": others.get("STAGED", 0)}


slim = Source(
    "sgemm_slim.cu",
    seeds=[
        columns(1, 256, 64, 1, 8, LOAD="stream", MIN_BLOCKS=2),  # two warps for each of a few rows
        # a strip of B for each multiprocessor, 64 KB of it under way
        rows(1, 256, 8, 1, 8, LOAD="stream"),
    ],
    default=columns(1, 256, 64, 1, 8),
    device_macros={"WARP": "warp_size"},
    NARROW=("columns", "rows"),  # what C has few of
    FEW=(1, 2, 4, 8),  # of them at most
    BLOCK_THREADS=(128, 256, 512),
    TEAM=(4, 8, 16, 32, 64, 256),  # threads that read the large matrix together
    LINES=(1, 2, 4),  # its rows, or VEC of its columns, that each of them takes at once
    VEC=(1, 2, 4),  # floats per load from global memory
    UNROLL=(1, 2, 4, 8),  # steps of k written out
    LOAD=("plain", "stream", "bypass"),  # hints to the caches for the large matrix
    STAGED=(0, 1024),  # steps of k of the small matrix in shared memory; 0: in caches
    GRIDK=(1, 3, 15),  # blocks that share k
    MIN_BLOCKS=(1, 2),  # blocks that must fit on one multiprocessor
)

slim.constraint(warps_are_known)
slim.constraint(hints_are_cuda)
slim.constraint(occupancy_is_cuda)


def tile(NARROW, BLOCK_THREADS, TEAM, LINES, VEC, trans_a=0, trans_b=0, **others):
    """Return the lines of a block: rows of A if C has few columns, columns of B if it has few rows."""
    along = trans_b if NARROW == "rows" else 1 - trans_a
    return along * (BLOCK_THREADS // TEAM * LINES) + (1 - along) * (TEAM * VEC * LINES)


def shared_bytes(NARROW, FEW, BLOCK_THREADS, TEAM, LINES, VEC, STAGED, warp_size):
    """Return static shared memory for any layout: a copy of a tile from every warp that has one."""
    copies_across = BLOCK_THREADS // max(TEAM, warp_size) * (TEAM * VEC * LINES)
    copies_along = max(1, TEAM // warp_size) * (BLOCK_THREADS // TEAM * LINES)
    return 4 * (max(copies_across, copies_along) + FEW * (STAGED + 4))


@slim.constraint
def teams_make_a_block(NARROW, BLOCK_THREADS, TEAM, device):
    """A block is whole teams; a team across columns of B is a warp at most, 512 bytes of a row."""
    return TEAM <= BLOCK_THREADS <= device.max_threads_per_block and (
        NARROW == "columns" or TEAM <= 32
    )


@slim.constraint
def loads_saturate_the_memory(LINES, VEC, UNROLL):
    """A thread has 32 to 256 bytes of the large matrix in flight."""
    return 8 <= LINES * VEC * UNROLL <= 64


@slim.constraint
def fits_registers(NARROW, FEW, BLOCK_THREADS, LINES, VEC, UNROLL, MIN_BLOCKS, device):
    """At most 64 sums a thread; they, the loads in flight and 32 others fit its registers.

    Below 512 threads on a multiprocessor registers are no limit, and asking for more blocks changes nothing.
    """
    threads = BLOCK_THREADS * MIN_BLOCKS
    sums = LINES * FEW * (VEC if NARROW == "rows" else 1)
    needed = LINES * VEC * UNROLL + sums + FEW * VEC + 32
    fits = needed <= min(255, device.registers_per_sm // threads)
    return (
        sums <= 64
        and (fits or device.backend != "cuda")
        and (MIN_BLOCKS == 1 or 512 <= threads <= device.max_threads_per_sm)
    )


@slim.constraint
def fits_shared(NARROW, FEW, BLOCK_THREADS, TEAM, LINES, VEC, STAGED, device):
    """Sums and the staged steps fit in static shared memory."""
    sizes = (NARROW, FEW, BLOCK_THREADS, TEAM, LINES, VEC, STAGED)
    needed = shared_bytes(*sizes, device.warp_size)
    return needed <= min(MOST_STATIC_BYTES, device.shared_bytes_per_block)


@slim.constraint
def several_columns_are_staged(NARROW, FEW, STAGED):
    """One column or row is read from memory; several columns of B in vectors along k only from a copy."""
    return STAGED == 0 if FEW == 1 else NARROW == "rows" or STAGED > 0


@slim.constraint
def staged_are_whole_steps(NARROW, BLOCK_THREADS, TEAM, VEC, UNROLL, STAGED):
    """The staged part of the small matrix is whole steps, along k and across."""
    along, across = TEAM * VEC * UNROLL, max(1, BLOCK_THREADS // TEAM) * UNROLL
    return STAGED % along == STAGED % across == 0


def tiles(c, p):
    """Return the blocks of C."""
    lines = tile(**c, trans_a=p.trans_a, trans_b=p.trans_b)
    return ceil_div(p.m if c.NARROW == "columns" else p.n, lines)


@slim.requires
def requires(c, p):
    """C has at most FEW columns or rows, and over half of that; a long k is split over the grid.

    The kernel looks at views.
    """
    few = p.n if c.NARROW == "columns" else p.m
    shares = (tiles(c, p) * p.batch <= MOST_SHARES) & (p.k >= 32 * c.GRIDK)
    return (few <= c.FEW) & (2 * few >= c.FEW + 1) & (c.GRIDK == 1 or shares)


@slim.exclusive
def exclusive(c):
    """If k is split over the grid, arrivals are counted in the loaded module."""
    return c.GRIDK > 1


@slim.scratch
def scratch(c, p):
    if c.GRIDK == 1:
        return {}
    lines = c.FEW * tile(**c, trans_a=p.trans_a, trans_b=p.trans_b)
    return {"partial": Out(c.GRIDK * tiles(c, p) * p.batch * lines)}


@slim.launch
def launch(c, p):
    grid = (of_all_matrices(tiles(c, p), p), c.GRIDK)
    return Launch(grid=grid, block=(c.BLOCK_THREADS,), args=passed(p, scratch(c, p)))
