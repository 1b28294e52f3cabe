"""`slim` (kernels/sgemm_slim.cu): products with a few columns or rows of C, on CUDA and OpenCL."""

from _device import cache_hints_need_cuda, min_blocks_needs_cuda, warp_size_is_supported
from _sgemm import MAX_SHARES, MAX_STATIC_BYTES, blocks_of_batch, launch_arguments

from autotune import Launch, Out, Source, ceil_div


def columns(FEW, BLOCK_THREADS, TEAM, LINES, UNROLL, **others):
    """Return a configuration for a C with few columns."""
    sizes = {"FEW": FEW, "BLOCK_THREADS": BLOCK_THREADS, "TEAM": TEAM, "LINES": LINES}
    common = {"NARROW": "columns", "VEC": 4, "STAGED": 1024 if FEW > 1 else 0}
    return {**common, **sizes, "UNROLL": UNROLL, **others}


def rows(FEW, BLOCK_THREADS, TEAM, LINES, UNROLL, **others):
    """Return a configuration for a C with few rows."""
    few = columns(FEW, BLOCK_THREADS, TEAM, LINES, UNROLL, **others)
    return {**few, "NARROW": "rows", "STAGED": others.get("STAGED", 0)}


slim = Source(
    "sgemm_slim.cu",
    seeds=[
        columns(1, 256, 64, 1, 8, LOAD="stream", MIN_BLOCKS=2),  # two warps for each of a few rows
        # a strip of B for each multiprocessor, with 64 KB in flight
        rows(1, 256, 8, 1, 8, LOAD="stream"),
    ],
    default=columns(1, 256, 64, 1, 8),
    device_macros={"WARP": "warp_size"},
    NARROW=("columns", "rows"),  # the short side of C
    FEW=(1, 2, 4, 8),  # largest number of columns or rows on that side
    BLOCK_THREADS=(128, 256, 512),
    TEAM=(4, 8, 16, 32, 64, 256),  # threads that read the large matrix together
    LINES=(1, 2, 4),  # rows, or groups of VEC columns, of the large matrix per thread
    VEC=(1, 2, 4),  # floats per load from global memory
    UNROLL=(1, 2, 4, 8),  # unrolled steps of k
    LOAD=("plain", "stream", "bypass"),  # cache hints for the large matrix
    STAGED=(0, 1024),  # steps of k of the small matrix in shared memory; 0: read through the caches
    GRIDK=(1, 3, 15),  # blocks that split k
    MIN_BLOCKS=(1, 2),  # blocks that must fit on one multiprocessor
)

slim.constraint(warp_size_is_supported)
slim.constraint(cache_hints_need_cuda)
slim.constraint(min_blocks_needs_cuda)


def tile(NARROW, BLOCK_THREADS, TEAM, LINES, VEC, trans_a=0, trans_b=0, **others):
    """Return the lines per block: rows of A if C has few columns, columns of B if it has few rows."""
    along = trans_b if NARROW == "rows" else 1 - trans_a
    return along * (BLOCK_THREADS // TEAM * LINES) + (1 - along) * (TEAM * VEC * LINES)


def shared_bytes(NARROW, FEW, BLOCK_THREADS, TEAM, LINES, VEC, STAGED, warp_size):
    """Return the static shared memory in bytes for any layout: partial tiles of the warps and staged steps."""
    copies_across = BLOCK_THREADS // max(TEAM, warp_size) * (TEAM * VEC * LINES)
    copies_along = max(1, TEAM // warp_size) * (BLOCK_THREADS // TEAM * LINES)
    return 4 * (max(copies_across, copies_along) + FEW * (STAGED + 4))


@slim.constraint
def teams_make_a_block(NARROW, BLOCK_THREADS, TEAM, device):
    """A block has whole teams; with few rows, a team is at most a warp and reads 512 bytes of a row of B."""
    return TEAM <= BLOCK_THREADS <= device.max_threads_per_block and (
        NARROW == "columns" or TEAM <= 32
    )


@slim.constraint
def enough_loads_in_flight(LINES, VEC, UNROLL):
    """A thread has 32 to 256 bytes of the large matrix in flight."""
    return 8 <= LINES * VEC * UNROLL <= 64


@slim.constraint
def fits_registers(NARROW, FEW, BLOCK_THREADS, LINES, VEC, UNROLL, MIN_BLOCKS, device):
    """A thread has at most 64 sums; sums, loads in flight and 32 other registers fit.

    Below 512 threads on a multiprocessor registers are no limit, so a larger MIN_BLOCKS changes nothing.
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
    """Sums and staged steps fit in static shared memory."""
    sizes = (NARROW, FEW, BLOCK_THREADS, TEAM, LINES, VEC, STAGED)
    needed = shared_bytes(*sizes, device.warp_size)
    return needed <= min(MAX_STATIC_BYTES, device.shared_bytes_per_block)


@slim.constraint
def several_columns_are_staged(NARROW, FEW, STAGED):
    """FEW=1 is not staged; several columns of B are staged, because vectors along k need a copy."""
    return STAGED == 0 if FEW == 1 else NARROW == "rows" or STAGED > 0


@slim.constraint
def staged_are_whole_steps(NARROW, BLOCK_THREADS, TEAM, VEC, UNROLL, STAGED):
    """The staged part of the small matrix has whole steps, along k and across."""
    along, across = TEAM * VEC * UNROLL, max(1, BLOCK_THREADS // TEAM) * UNROLL
    return STAGED % along == STAGED % across == 0


def tiles(c, p):
    """Return the number of tiles of C."""
    lines = tile(**c, trans_a=p.trans_a, trans_b=p.trans_b)
    return ceil_div(p.m if c.NARROW == "columns" else p.n, lines)


@slim.requires
def requires(c, p):
    """C has FEW columns or rows, or more than FEW / 2; GRIDK needs few tiles and 32 steps per part of k.

    The kernel itself checks the alignment of views.
    """
    few = p.n if c.NARROW == "columns" else p.m
    shares = (tiles(c, p) * p.batch <= MAX_SHARES) & (p.k >= 32 * c.GRIDK)
    return (few <= c.FEW) & (2 * few >= c.FEW + 1) & (c.GRIDK == 1 or shares)


@slim.exclusive
def exclusive(c):
    """GRIDK above 1 counts arrivals in variables of the loaded module."""
    return c.GRIDK > 1


@slim.scratch
def scratch(c, p):
    if c.GRIDK == 1:
        return {}
    lines = c.FEW * tile(**c, trans_a=p.trans_a, trans_b=p.trans_b)
    return {"partial": Out(c.GRIDK * tiles(c, p) * p.batch * lines)}


@slim.launch
def launch(c, p):
    grid = (blocks_of_batch(tiles(c, p), p), c.GRIDK)
    return Launch(grid=grid, block=(c.BLOCK_THREADS,), args=launch_arguments(p, scratch(c, p)))
