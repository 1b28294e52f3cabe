"""`wgmma` (kernels/sgemm_tf32x3_wgmma.cu): warpgroup products, for sm_90a."""

from _sgemm_tf32x3 import ARGUMENTS, STRIDES, tiles

from autotune import Launch, Out, Source, ceil_div, maximum


def tiles_of(BM, BN, STAGES, **others):
    """Return a configuration with given tiles."""
    tiles = {"BM": BM, "BN": BN, "WM": max(64, BM // 2), "STAGES": STAGES}
    return {**tiles, "RASTER": 8, **others}


#: Largest number of tiles whose arrivals the source can count if the grid splits k.
MAX_SHARES = 1024

#: Elements of k in a step.
DEPTH = 32

#: Largest number of quads of A and B that a launch can pad.
MAX_QUADS = 1 << 31

wgmma = Source(
    "sgemm_tf32x3_wgmma.cu",
    seeds=[
        tiles_of(256, 128, 3),
        tiles_of(128, 64, 5),
        tiles_of(128, 64, 4, SPLITK=4, AHEAD=4),  # a part of k for each block
        tiles_of(128, 128, 3, AHEAD=4, PADDED=True),  # rows that are not aligned
        tiles_of(256, 128, 3, TAIL=True),  # several waves, the last one incomplete
        # rows of a large C that are not whole quads, a short k
        tiles_of(128, 128, 3, C_ROWS="lines"),
    ],
    default=tiles_of(128, 128, 4),
    BM=(64, 128, 256),  # rows of C per block
    BN=(64, 128),  # columns of C per block
    WM=(64, 128),  # rows of C per warpgroup
    STAGES=(2, 3, 4, 5),  # pairs of tiles in shared memory
    VECTORS=(True, False),  # load B 16 bytes at a time if its rows are aligned
    AHEAD=(1, 2, 4),  # steps of B in flight: 1 in registers, more in shared memory
    SPLITK=(1, 2, 4, 8),  # blocks of a cluster that split k of one tile of C
    GRIDK=(1, 2, 3, 4),  # clusters or single blocks that split k of one tile of C
    TAIL=(False, True),  # two blocks share each tile of the last wave
    PADDED=(False, True),  # first copy unaligned rows to aligned memory
    C_ROWS=("direct", "lines"),  # how to write rows of C that are not whole quads
    RASTER=(4, 8, 16),  # rows of blocks that run together, for reuse in the L2 cache
)


@wgmma.constraint
def device_is_supported(device):
    """wgmma needs compute capability 9.0."""
    return device.compute_capability == 90


@wgmma.constraint
def warpgroups_fill_a_block(BM, WM):
    """The two warpgroups have 64 or 128 rows each, or share 64 rows."""
    return max(BM // 2, 64) == WM


@wgmma.constraint
def stages_have_an_owner(BM, STAGES):
    """Warpgroups that share rows use alternate stages, so the number of stages is even."""
    return BM > 64 or STAGES % 2 == 0


@wgmma.constraint
def steps_ahead_have_a_stage(STAGES, AHEAD):
    """AHEAD is at most STAGES + 1: a stage waits for B, so more steps ahead gain nothing."""
    return AHEAD <= STAGES + 1


@wgmma.constraint
def grid_splits_small_clusters(SPLITK, GRIDK):
    """GRIDK splits k over single blocks or clusters of two, not over larger clusters."""
    return GRIDK == 1 or SPLITK <= 2


@wgmma.constraint
def raster_needs_many_tiles(RASTER, SPLITK, GRIDK):
    """If k is split, C has too few tiles for RASTER to matter."""
    return SPLITK * GRIDK == 1 or RASTER == 8


@wgmma.constraint
def single_floats_need_plain_loads(VECTORS, AHEAD, SPLITK, GRIDK, PADDED):
    """VECTORS=False is searched only without AHEAD, split k or PADDED."""
    return VECTORS or (AHEAD == SPLITK == GRIDK == 1 and not PADDED)


@wgmma.constraint
def tail_needs_large_tiles(BM, BN, VECTORS, SPLITK, GRIDK, TAIL):
    """TAIL pays off only for a large C: tiles of 128 x 128 or more, and no other split of k."""
    return not TAIL or (min(BM, BN) >= 128 and VECTORS and SPLITK == GRIDK == 1)


@wgmma.constraint
def split_sums_are_direct(BM, WM, SPLITK, GRIDK, C_ROWS):
    """Sums of slices, blocks and clusters are always written in lines, so C_ROWS stays direct."""
    return C_ROWS == "direct" or (BM > WM and SPLITK == GRIDK == 1)


@wgmma.constraint
def tail_fits_counters(TAIL, device):
    """A wave has at most the number of tiles whose arrivals the source can count."""
    return not TAIL or device.sm_count <= MAX_SHARES


def shared_bytes(BM, BN, WM, STAGES, AHEAD, SPLITK, GRIDK, **others):
    """Return the dynamic shared memory in bytes: stages and steps of B ahead, or sums; barriers and alignment."""
    stages = DEPTH * (STAGES * (BM + 2 * BN) + (AHEAD * BN if AHEAD > 1 else 0))
    slices = 2 * WM // BM
    sums = slices * BM * (BN + 16) if slices * SPLITK * GRIDK > 1 else 0
    return 4 * max(stages, sums) + 2048


@wgmma.constraint
def stages_fit_shared(BM, BN, WM, STAGES, AHEAD, SPLITK, GRIDK, device):
    """The stages and the steps of B ahead fit in the shared memory of a block."""
    needed = shared_bytes(BM, BN, WM, STAGES, AHEAD, SPLITK, GRIDK)
    return needed <= device.shared_bytes_per_block


def quads(rows, columns):
    """Return the number of 16-byte quads in a matrix with padded rows."""
    return rows * ceil_div(columns, 4)


@wgmma.requires
def requires(c, p):
    """A part of k has two steps or more; GRIDK needs few tiles, lines odd rows of C, PADDED unaligned rows.

    TAIL and PADDED need problems without views.
    """
    split, fits = c.SPLITK * c.GRIDK, True
    if split > 1:
        fits &= 2 * DEPTH * split <= p.k
    if c.GRIDK > 1:
        fits &= tiles(c, p) * c.SPLITK <= MAX_SHARES
    if c.TAIL:
        fits &= p.view == 0
    if c.C_ROWS == "lines":
        fits &= p.n % 4 >= 1
    if c.PADDED:
        odd = p.k % 4 + p.n % 4 + p.offset_a % 4 + p.offset_b % 4 >= 1
        fits &= odd & (p.view == 0) & (quads(p.m, p.k) + quads(p.k, p.n) <= MAX_QUADS)
    return fits


@wgmma.exclusive
def exclusive(c):
    """GRIDK above 1 and TAIL count arrivals in variables of the loaded module."""
    return c.GRIDK > 1 or c.TAIL


@wgmma.options
def options(c):
    return ["sm_90a"]


def last_wave(c, p, device):
    """Return the number of tiles in the last, incomplete wave of one block per multiprocessor."""
    return tiles(c, p) % device.sm_count


@wgmma.scratch
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


@wgmma.launch
def launch(c, p, device):
    buffers = tuple(scratch(c, p, device))
    args = (*ARGUMENTS, *STRIDES, *buffers) if p.view else None
    grid = (tiles(c, p), c.GRIDK, c.SPLITK) if c.GRIDK * c.SPLITK > 1 else (tiles(c, p),)
    if c.TAIL:
        # Launch a second block for each tile of the last wave. A multiprocessor without a tile in that wave
        # runs several of them in turn.
        shared = last_wave(c, p, device)
        turns = ceil_div(shared, device.sm_count - shared)
        grid, args = (tiles(c, p) + shared,), (*ARGUMENTS, "partial", turns, *buffers[1:])
    product = Launch(grid, (384,), shared_bytes=shared_bytes(**c), args=args)
    if not c.PADDED:
        return product
    blocks = maximum(1, ceil_div(quads(p.m, p.k) + quads(p.k, p.n), 256))
    args = ("a", "b", "m", "n", "k", "padded_a", "padded_b")
    return Launch((blocks,), (256,), entry="sgemm_tf32x3_pad", args=args), product
