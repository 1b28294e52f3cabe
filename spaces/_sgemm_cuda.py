"""`cuda` (kernels/sgemm_cuda.cu): warp tiles, cp.async, k split within a block, over a cluster and over the grid."""

import dataclasses

from _sgemm import ARGUMENTS, MOST_SHARES, OTHER_REGISTERS, of_all_matrices, passed

from autotune import Launch, Out, Source, ceil_div, maximum, minimum


def tiles_of(BM, BN, BK, WM, WN, TM, TN, **others):
    """Return a configuration by its tiles."""
    tiles = {"BM": BM, "BN": BN, "BK": BK, "WM": WM, "WN": WN, "TM": TM, "TN": TN}
    return {**tiles, "REG_DB": True, "LANES": "pairs", "RASTER": 8, **others}


#: Floats added to rows of a tile that is transposed on the way; the source's default.
PAD = 4

#: Bytes of shared memory of a block, on architectures that have cp.async. Source: CUDA C++
#: Programming Guide, "Technical Specifications per Compute Capability".
SHARED_LIMITS = (101376, 166912, 232448)

#: Rows or columns of C up to which tiles of 16 are worth a try.
SLIM = 64

cuda = Source(
    "sgemm_cuda.cu",
    seeds=[
        # 16 x 8 per thread, one block of 8 warps on each multiprocessor
        tiles_of(128, 256, 16, 64, 64, 16, 8, STAGES=3, BURSTS=4),
        # a tile or two for each multiprocessor
        tiles_of(64, 128, 32, 32, 64, 8, 8, STAGES=4, BURSTS=4, SLICES=2, RASTER=1),
        # less than a tile
        tiles_of(32, 64, 32, 32, 32, 8, 4, STAGES=3, BURSTS=8, SLICES=2),
        # k is long
        tiles_of(64, 64, 32, 32, 64, 8, 8, STAGES=3, BURSTS=4, SLICES=4, GRIDK=8, RASTER=1),
        # rows of B are not whole quads
        tiles_of(64, 128, 32, 32, 64, 8, 8, STAGES=3, BURSTS=8, SLICES=2, B_ROWS="shifted"),
    ],
    default=tiles_of(64, 128, 16, 32, 64, 8, 8, STAGES=3, BURSTS=4, MIN_BLOCKS=2),
    BM=(16, 32, 48, 64, 96, 128, 256),  # rows of C per block
    BN=(16, 32, 48, 64, 96, 128, 256),  # columns of C per block
    BK=(8, 16, 32),  # depth of one pair of tiles
    WM=(16, 32, 48, 64, 96, 128),  # rows of C per warp
    WN=(16, 32, 48, 64, 96, 128),  # columns of C per warp
    TM=(4, 8, 12, 16),  # rows of C per thread
    TN=(4, 8, 12, 16),  # columns of C per thread
    STAGES=(2, 3, 4, 5),  # pairs of tiles, all but one on their way
    REG_DB=(False, True),  # read the fragments of step k + 1 before the arithmetic of step k
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
    C_ROWS=("direct", "lines"),  # how rows of C are written that are not whole quads
)


@cuda.constraint
def runs_here(device):
    """cp.async needs compute capability 8.0."""
    return device.compute_capability >= 80


@cuda.constraint
def clusters_exist(SPLITK, device):
    """Blocks can share k only in a cluster, from compute capability 9.0 on."""
    return SPLITK == 1 or device.compute_capability >= 90


# ------------------------------------------------------------------ tiles


def warps(BM, BN, WM, WN, SLICES):
    """Return the warps of a block, 0 if a warp's tile is larger than the block's."""
    return (BM // WM) * (BN // WN) * SLICES


@cuda.constraint
def thread_tile_saves_reads(TM, TN):
    """A thread tile is at least 4 x 8 and at most three times as long as wide; 12 and 16 do not go together."""
    return TM * TN >= 32 and TM <= 3 * TN and TN <= 3 * TM and {TM, TN} != {12, 16}


@cuda.constraint
def lanes_make_a_warp(WM, WN, TM, TN):
    """4 x 8 or 8 x 4 thread tiles make a warp tile, whose longest read is then 128 bytes, all banks once."""
    return (WM, WN) in ((4 * TM, 8 * TN), (8 * TM, 4 * TN))


@cuda.constraint
def warps_make_a_block(BM, BN, WM, WN, SLICES):
    """A block is whole warp tiles, 2 to 8 warps with all slices."""
    return BM % WM == BN % WN == 0 and 2 <= warps(BM, BN, WM, WN, SLICES) <= 8


@cuda.constraint
def step_fits_instruction_cache(BK, TM, TN, SLICES):
    """The unrolled step is at most 4096 multiply-adds, 64 KB of code."""
    return BK // SLICES * TM * TN <= 4096


@cuda.constraint
def fits_registers(BM, BN, WM, WN, TM, TN, REG_DB, SLICES, MIN_BLOCKS, device):
    """Accumulators, fragments and a pointer for each row of A that it copies fit a thread's registers."""
    count = warps(BM, BN, WM, WN, SLICES)
    if count == 0:
        return False
    pointers = 2 * ceil_div(BM, 4 * count)
    needed = TM * TN + (1 + REG_DB) * (TM + TN) + pointers + OTHER_REGISTERS
    # Each of the four schedulers of a multiprocessor has a quarter of the registers for its own warps.
    available = device.registers_per_sm // 4 // (32 * ceil_div(count * MIN_BLOCKS, 4)) // 8 * 8
    return needed <= min(255, available) and 32 * count * MIN_BLOCKS <= device.max_threads_per_sm


@cuda.constraint
def enough_warps(BM, BN, WM, WN, SLICES, MIN_BLOCKS):
    """MIN_BLOCKS demands nothing, or 2 to 4 warps for each of a multiprocessor's schedulers."""
    count = warps(BM, BN, WM, WN, SLICES) * MIN_BLOCKS
    return MIN_BLOCKS == 1 or 8 <= count <= 16


# ------------------------------------------------------------------ copies to shared memory


@cuda.constraint
def slices_are_deep(BK, BURSTS, SLICES):
    """Between two bursts of copies every slice has whole steps of k, and 4 in all at least."""
    return BK // SLICES % BURSTS == 0 and BK // SLICES >= 4


@cuda.constraint
def copies_are_even(BM, BN, BK, WM, WN, SLICES):
    """All threads copy equally often: the block takes whole rows of A's and B's tiles at a time."""
    count = 32 * warps(BM, BN, WM, WN, SLICES)
    lanes = next(lanes for lanes in (32, 16, 8, 4) if BN // 4 % lanes == 0)  # along a row of B
    return count > 0 and BM % (count // 8) == 0 and BK % (count // lanes) == 0


@cuda.constraint
def bursts_are_short(BM, BN, BK, WM, WN, BURSTS, SLICES):
    """A thread starts 1 to 8 copies at a time: more hold up the reads of fragments behind them."""
    count = 32 * max(1, warps(BM, BN, WM, WN, SLICES))
    copies = BK * (BM + BN // 4) // count
    return BURSTS <= copies <= 8 * BURSTS


@cuda.constraint
def copies_cover_latency(BK, STAGES):
    """16 to 96 steps of k are on their way: fewer wait for memory, more gain nothing."""
    return 16 <= BK * (STAGES - 1) <= 96


@cuda.constraint
def tiles_are_large_where_rows_are_not_copied_directly(
    BM, BN, STAGES, REG_DB, LANES, RASTER, GRIDK, B_ROWS
):
    """Another way of copying B costs time that tiles of 32 at least, with fragments read ahead, win back."""
    if B_ROWS == "direct":
        return True
    is_large = min(BM, BN) >= 32 and (RASTER == 8 or GRIDK > 1)
    return is_large and STAGES > 2 and REG_DB and LANES == "pairs"


@cuda.constraint
def rows_are_shifted_alike(BM, BN, BK, WM, WN, SLICES, GRIDK, B_ROWS):
    """A row is shifted by 16 lanes or a warp, a multiple of four at a time, in the second half of a step.

    Not if the grid has more than three parts of k: then B has few columns, and a copy of it costs little.
    """
    if B_ROWS != "shifted":
        return True
    rows = 32 * warps(BM, BN, WM, WN, SLICES) // (32 if BN % 32 == 0 else 16)
    return rows > 0 and rows % 4 == 0 and BK % rows == 0 and BK // SLICES >= 4 and GRIDK <= 3


def shared_bytes(**values):
    """Return dynamic shared memory: the stages, and in their place in the end the sums of slices."""
    return max(stages_bytes(**values), sums_bytes(**values))


def stages_bytes(BM, BN, BK, STAGES, B_ROWS, trans_a=0, trans_b=0, **others):
    """Return the bytes of the tiles of A and B, with a pad if they are transposed, and a quad if shifted."""
    pads = PAD * (1 - trans_a + trans_b) + (4 if B_ROWS == "shifted" else 0)
    return 4 * STAGES * BK * (BM + BN + pads)


def sums_bytes(BM, BN, SPLITK, GRIDK, SLICES, **others):
    """Return the bytes of a tile of C from each slice, to be added up."""
    return 4 * SLICES * BM * (BN + 4) if SPLITK * GRIDK * SLICES > 1 else 0


def most_shared_bytes(MIN_BLOCKS, device):
    """Return the shared memory of one of MIN_BLOCKS blocks of a multiprocessor, 1 KB per block reserved."""
    return min(device.shared_bytes_per_block, device.shared_bytes_per_sm // MIN_BLOCKS - 1024)


@cuda.constraint
def stages_fit_shared(BM, BN, BK, STAGES, B_ROWS, MIN_BLOCKS, device):
    """The stages of MIN_BLOCKS blocks fit in a multiprocessor's shared memory."""
    return stages_bytes(BM, BN, BK, STAGES, B_ROWS) <= most_shared_bytes(MIN_BLOCKS, device)


@cuda.constraint
def sums_fit_shared(BM, BN, SPLITK, GRIDK, SLICES, MIN_BLOCKS, C_ROWS, device):
    """So do the tiles of C that slices, blocks and clusters add up, which write them in lines anyway."""
    needed = sums_bytes(BM, BN, SPLITK, GRIDK, SLICES)
    fits = needed <= most_shared_bytes(MIN_BLOCKS, device)
    return fits and (needed == 0 or C_ROWS == "direct")


# ------------------------------------------------------------------ shares of k


@cuda.constraint
def few_tiles_have_no_order(RASTER, GRIDK):
    """If k is split over the grid, tiles are too few for their order to matter."""
    return GRIDK == 1 or RASTER == 1


@cuda.constraint
def clusters_are_pairs(SPLITK, GRIDK):
    """Clusters that share a tile are pairs, for which there is room anywhere, or fifteen of any size."""
    return SPLITK <= 2 or GRIDK in (1, 15)


@cuda.constraint
def long_k_has_fragments_read_ahead(REG_DB, LANES, GRIDK):
    """More than three parts of k over the grid are for a long k: fragments are read ahead, by pairs."""
    return GRIDK <= 3 or (REG_DB and LANES == "pairs")


@cuda.constraint
def tail_is_of_large_tiles(BM, BN, TM, TN, REG_DB, LANES, SPLITK, GRIDK, SLICES, TAIL, C_ROWS):
    """A tail is worth it if C is large: tiles of 128 x 128 at least, k split for nothing else, no lines."""
    if not TAIL:
        return True
    is_large = min(BM, BN) >= 128 and TM * TN >= 96 and C_ROWS == "direct"
    return is_large and REG_DB and LANES == "pairs" and SPLITK * GRIDK * SLICES == 1


@cuda.constraint
def tails_are_counted(MIN_BLOCKS, TAIL, device):
    """A wave has at most the number of tiles for which the source can count arrivals."""
    return not TAIL or MIN_BLOCKS * device.sm_count <= MOST_SHARES


# ------------------------------------------------------------------ running it


def tiles(c, p):
    """Return the blocks of C."""
    return ceil_div(p.m, c.BM) * ceil_div(p.n, c.BN)


@cuda.requires
def requires(c, p):
    """Reads of many bytes are aligned; a long k with few tiles is split over the grid; tiles of 16 are for a
    slim C, lines for odd rows.

    The kernel looks at views.
    """
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


def pad_outgrows_shared(c):
    """Return whether a pad for B's tile makes the stages too large for an architecture."""
    plain, padded = shared_bytes(**c), shared_bytes(**c, trans_b=1)
    return any(plain <= limit < padded for limit in SHARED_LIMITS)


@cuda.exclusive
def exclusive(c):
    """If k is split over the grid, or the last wave shared, arrivals are counted in the loaded module."""
    return c.GRIDK > 1 or c.TAIL


@cuda.scratch
def scratch(c, p, device):
    buffers = {}
    if c.TAIL:
        buffers["partial"] = Out(maximum(1, 2 * last_wave(c, p, device) * c.BM * c.BN))
    if c.GRIDK > 1:
        buffers["partial"] = Out(c.GRIDK * tiles(c, p) * p.batch * c.BM * c.BN)
    if c.B_ROWS == "padded":
        buffers["padded"] = Out(p.k * 4 * ceil_div(p.n, 4))
    return buffers


def last_wave(c, p, device):
    """Return the tiles that are left when all multiprocessors have had equally many."""
    return tiles(c, p) % (c.MIN_BLOCKS * device.sm_count)


@cuda.launch
def launch(c, p, device):
    product = Launch(
        grid=(of_all_matrices(tiles(c, p), p), c.GRIDK, c.SPLITK),
        block=(32 * warps(c.BM, c.BN, c.WM, c.WN, c.SLICES),),
        shared_bytes=shared_bytes(**c, trans_a=p.trans_a, trans_b=p.trans_b),
        args=passed(p, scratch(c, p, device)),
    )
    if c.TAIL:
        product = with_tail(c, p, device, product)
    return padded_first(c, p, product) if c.B_ROWS == "padded" else product


def with_tail(c, p, device, product):
    """Return the launch with a second block for each tile of the last wave.

    Multiprocessors without a first one take several of these in turn.
    """
    shared = last_wave(c, p, device)
    turns = ceil_div(shared, c.MIN_BLOCKS * device.sm_count - shared)
    args = (*ARGUMENTS, "partial", turns)
    return dataclasses.replace(product, grid=(tiles(c, p) + shared, 1, 1), args=args)


def padded_first(c, p, product):
    """Return the launches that copy B first: a thread of 256 has some quads, so that 2048 blocks are plenty."""
    quads = p.k * ceil_div(p.n, 4)
    pad = Launch(
        grid=(minimum(ceil_div(quads, 256), 2048),),
        block=(256,),
        entry="pad_rows",
        args=("b", "padded", "n", "k"),
    )
    partial = ("partial",) if c.GRIDK > 1 else ()
    given = product.args or (*ARGUMENTS, *partial)
    return pad, dataclasses.replace(product, args=("a", "padded", *given[2:]))
