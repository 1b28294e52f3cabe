"""`wgmma` (kernels/sgemm_tf32x3_wgmma.cu): warpgroups of an H100, for sm_90a."""

from _sgemm_tf32x3 import ARGUMENTS, STRIDES, tiles

from autotune import Launch, Out, Source, ceil_div, maximum


def tiles_of(BM, BN, STAGES, **others):
    """Return a configuration by its tiles."""
    tiles = {"BM": BM, "BN": BN, "WM": max(64, BM // 2), "STAGES": STAGES}
    return {**tiles, "RASTER": 8, **others}


#: Shares of tiles for which the source can count arrivals where k is split over the grid.
MOST_SHARES = 1024

#: Depth of a step of k.
DEPTH = 32

#: Quads of A and B that a launch can pad.
MOST_QUADS = 1 << 31

wgmma = Source(
    "sgemm_tf32x3_wgmma.cu",
    seeds=[
        tiles_of(256, 128, 3),
        tiles_of(128, 64, 5),
        tiles_of(128, 64, 4, SPLITK=4, AHEAD=4),  # a part of k for each block
        tiles_of(128, 128, 3, AHEAD=4, PADDED=True),  # rows that are not aligned
        tiles_of(256, 128, 3, TAIL=True),  # several waves, the last of which is not full
        tiles_of(
            128, 128, 3, C_ROWS="lines"
        ),  # rows of a large C that are not whole quads, a short k
    ],
    default=tiles_of(128, 128, 4),
    BM=(64, 128, 256),  # rows of C per block
    BN=(64, 128),  # columns of C per block
    WM=(64, 128),  # rows of C per warpgroup
    STAGES=(2, 3, 4, 5),  # pairs of tiles in shared memory
    VECTORS=(True, False),  # load B 16 bytes at a time where its rows are aligned
    AHEAD=(1, 2, 4),  # steps of B on their way, in registers or, more than one, in shared memory
    SPLITK=(1, 2, 4, 8),  # blocks, as one cluster, that share a tile of C
    GRIDK=(1, 2, 3, 4),  # such clusters, or lone blocks, that share a tile of C
    TAIL=(False, True),  # two blocks share each tile of the last wave
    PADDED=(False, True),  # rows that are not aligned are copied first to where they are
    C_ROWS=("direct", "lines"),  # how rows of C are written that are not whole quads
    RASTER=(4, 8, 16),  # rows of blocks that run together, for the L2 cache
)


@wgmma.constraint
def runs_here(device):
    """Only compute capability 9.0 has wgmma."""
    return device.compute_capability == 90


@wgmma.constraint
def warpgroups_take_turns(BM, WM):
    """Two warpgroups have 64 or 128 rows, or the same 64."""
    return max(BM // 2, 64) == WM


@wgmma.constraint
def stages_have_an_owner(BM, STAGES):
    """Warpgroups of the same rows take stages in turn, each its own."""
    return BM > 64 or STAGES % 2 == 0


@wgmma.constraint
def copies_have_a_stage(STAGES, AHEAD):
    """A stage is full only when B is there for the steps ahead: many more than stages gain nothing."""
    return AHEAD <= STAGES + 1


@wgmma.constraint
def parts_are_few(SPLITK, GRIDK):
    """If blocks make no whole clusters, the grid takes two or three times as many at most."""
    return GRIDK == 1 or SPLITK <= 2


@wgmma.constraint
def few_tiles_have_no_order(RASTER, SPLITK, GRIDK):
    """If k is split, tiles are too few for their order to matter."""
    return SPLITK * GRIDK == 1 or RASTER == 8


@wgmma.constraint
def single_floats_are_plain(VECTORS, AHEAD, SPLITK, GRIDK, PADDED):
    """Loads of single floats of aligned rows are tried alone."""
    return VECTORS or (AHEAD == SPLITK == GRIDK == 1 and not PADDED)


@wgmma.constraint
def tail_is_of_large_tiles(BM, BN, VECTORS, SPLITK, GRIDK, TAIL):
    """A tail is worth it if C is large: tiles of 128 x 128 at least, k split for nothing else."""
    return not TAIL or (min(BM, BN) >= 128 and VECTORS and SPLITK == GRIDK == 1)


@wgmma.constraint
def sums_of_several_are_in_lines_anyway(BM, WM, SPLITK, GRIDK, C_ROWS):
    """Sums of slices, blocks and clusters are written in lines whatever C_ROWS says."""
    return C_ROWS == "direct" or (BM > WM and SPLITK == GRIDK == 1)


@wgmma.constraint
def tails_are_counted(TAIL, device):
    """A wave has at most the number of tiles for which the source can count arrivals."""
    return not TAIL or device.sm_count <= MOST_SHARES


def shared_bytes(BM, BN, WM, STAGES, AHEAD, SPLITK, GRIDK, **others):
    """Return the bytes of A's tile, both halves of B's, B's ahead; or of sums; of barriers and alignment."""
    stages = DEPTH * (STAGES * (BM + 2 * BN) + (AHEAD * BN if AHEAD > 1 else 0))
    slices = 2 * WM // BM
    sums = slices * BM * (BN + 16) if slices * SPLITK * GRIDK > 1 else 0
    return 4 * max(stages, sums) + 2048


@wgmma.constraint
def stages_fit_shared(BM, BN, WM, STAGES, AHEAD, SPLITK, GRIDK, device):
    """The stages, and the steps that are copied ahead, fit in shared memory."""
    needed = shared_bytes(BM, BN, WM, STAGES, AHEAD, SPLITK, GRIDK)
    return needed <= device.shared_bytes_per_block


def quads(rows, columns):
    """Return the pieces of 16 bytes in a matrix whose rows are padded."""
    return rows * ceil_div(columns, 4)


@wgmma.requires
def requires(c, p):
    """A part of k is two steps at least, and clusters that the grid adds up can be counted; tails are for the tuned
    layout, lines for rows of C that are not whole quads; only rows of the tuned layout that are not aligned are padded.
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


@wgmma.exclusive
def exclusive(c):
    """If k is split over the grid, or the last wave shared, arrivals are counted in the loaded module."""
    return c.GRIDK > 1 or c.TAIL


@wgmma.options
def options(c):
    return ["sm_90a"]


def last_wave(c, p, device):
    """Return the tiles that are left when all multiprocessors, with one at a time, have had equally many."""
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
        # A second block for each tile of the last wave; multiprocessors without a first take several in turn.
        shared = last_wave(c, p, device)
        turns = ceil_div(shared, device.sm_count - shared)
        grid, args = (tiles(c, p) + shared,), (*ARGUMENTS, "partial", turns, *buffers[1:])
    product = Launch(grid, (384,), shared_bytes=shared_bytes(**c), args=args)
    if not c.PADDED:
        return product
    blocks = maximum(1, ceil_div(quads(p.m, p.k) + quads(p.k, p.n), 256))
    args = ("a", "b", "m", "n", "k", "padded_a", "padded_b")
    return Launch((blocks,), (256,), entry="sgemm_tf32x3_pad", args=args), product
