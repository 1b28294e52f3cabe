"""`cuda` (kernels/sgemm_cuda.cu): warp tiles and cp.async; blocks, clusters and the grid can split k."""

import dataclasses

from _sgemm import ARGUMENTS, MAX_SHARES, OTHER_REGISTERS, blocks_of_batch, launch_arguments

from autotune import Launch, Out, Source, ceil_div, maximum, minimum


def tiles_of(BM, BN, BK, WM, WN, TM, TN, **others):
    """Return a configuration with given tiles."""
    tiles = {"BM": BM, "BN": BN, "BK": BK, "WM": WM, "WN": WN, "TM": TM, "TN": TN}
    return {**tiles, "REG_DB": True, "LANES": "pairs", "RASTER": 8, **others}


#: Floats added to each row of a tile that is transposed while it is copied; the default in the source.
PAD = 4

#: Bytes of shared memory per block on the architectures with cp.async. Source: CUDA C++
#: Programming Guide, "Technical Specifications per Compute Capability".
SHARED_LIMITS = (101376, 166912, 232448)

#: Largest number of rows or columns of C for which tiles of 16 are searched.
SLIM = 64

cuda = Source(
    "sgemm_cuda.cu",
    seeds=[
        # 16 x 8 per thread, one block of 8 warps on each multiprocessor
        tiles_of(128, 256, 16, 64, 64, 16, 8, STAGES=3, BURSTS=4),
        # one or two tiles for each multiprocessor
        tiles_of(64, 128, 32, 32, 64, 8, 8, STAGES=4, BURSTS=4, SLICES=2, RASTER=1),
        # C is smaller than a tile
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
    STAGES=(2, 3, 4, 5),  # pairs of tiles in shared memory, all but one in flight
    REG_DB=(False, True),  # load the fragments of step k + 1 before the arithmetic of step k
    BURSTS=(2, 4, 8),  # groups of copies per step
    LANES=("rows", "pairs"),  # layout of the lanes over the tile of a warp
    RASTER=(1, 8),  # rows of blocks that run together, for reuse in the L2 cache
    SPLITK=(1, 2, 4, 8),  # blocks of a cluster that split k of one tile of C
    GRIDK=(1, 2, 3, 4, 5, 8, 15, 16),  # clusters or single blocks that split k of one tile of C
    SLICES=(1, 2, 4),  # groups of warps of a block that split k of one tile of C
    TAIL=(False, True),  # two blocks share each tile of the last wave
    # how B is copied to shared memory: directly; from a copy with rows of whole quads; in quads, then shifted
    B_ROWS=("direct", "padded", "shifted"),
    MIN_BLOCKS=(1, 2, 3, 4),  # blocks that must fit on one multiprocessor
    C_ROWS=("direct", "lines"),  # how to write rows of C that are not whole quads
)


@cuda.constraint
def device_is_supported(device):
    """cp.async needs compute capability 8.0."""
    return device.compute_capability >= 80


@cuda.constraint
def clusters_exist(SPLITK, device):
    """SPLITK needs clusters, which need compute capability 9.0."""
    return SPLITK == 1 or device.compute_capability >= 90


# ------------------------------------------------------------------ tiles


def warps(BM, BN, WM, WN, SLICES):
    """Return the number of warps of a block; 0 if a warp tile is larger than the block tile."""
    return (BM // WM) * (BN // WN) * SLICES


@cuda.constraint
def thread_tile_saves_reads(TM, TN):
    """A thread tile has 32 elements or more and sides of ratio 3 or less; 12 x 16 is excluded."""
    return TM * TN >= 32 and TM <= 3 * TN and TN <= 3 * TM and {TM, TN} != {12, 16}


@cuda.constraint
def lanes_make_a_warp(WM, WN, TM, TN):
    """A warp tile is 4 x 8 or 8 x 4 thread tiles: its longest read is 128 bytes, each bank once."""
    return (WM, WN) in ((4 * TM, 8 * TN), (8 * TM, 4 * TN))


@cuda.constraint
def warps_make_a_block(BM, BN, WM, WN, SLICES):
    """A block has whole warp tiles, and 2 to 8 warps over all slices."""
    return BM % WM == BN % WN == 0 and 2 <= warps(BM, BN, WM, WN, SLICES) <= 8


@cuda.constraint
def step_fits_instruction_cache(BK, TM, TN, SLICES):
    """The unrolled step has at most 4096 multiply-adds, 64 KB of code."""
    return BK // SLICES * TM * TN <= 4096


@cuda.constraint
def fits_registers(BM, BN, WM, WN, TM, TN, REG_DB, SLICES, MIN_BLOCKS, device):
    """Accumulators, fragments and a pointer for each copied row of A fit in the registers of a thread."""
    count = warps(BM, BN, WM, WN, SLICES)
    if count == 0:
        return False
    pointers = 2 * ceil_div(BM, 4 * count)
    needed = TM * TN + (1 + REG_DB) * (TM + TN) + pointers + OTHER_REGISTERS
    # Each of the four schedulers of a multiprocessor has a quarter of the registers.
    available = device.registers_per_sm // 4 // (32 * ceil_div(count * MIN_BLOCKS, 4)) // 8 * 8
    return needed <= min(255, available) and 32 * count * MIN_BLOCKS <= device.max_threads_per_sm


@cuda.constraint
def enough_warps(BM, BN, WM, WN, SLICES, MIN_BLOCKS):
    """MIN_BLOCKS above 1 gives each of the four schedulers of a multiprocessor 2 to 4 warps."""
    count = warps(BM, BN, WM, WN, SLICES) * MIN_BLOCKS
    return MIN_BLOCKS == 1 or 8 <= count <= 16


# ------------------------------------------------------------------ copies to shared memory


@cuda.constraint
def slices_are_deep(BK, BURSTS, SLICES):
    """A slice has whole steps of k between two bursts of copies, and at least 4 steps."""
    return BK // SLICES % BURSTS == 0 and BK // SLICES >= 4


@cuda.constraint
def copies_are_even(BM, BN, BK, WM, WN, SLICES):
    """All threads make the same number of copies: the block copies whole rows of the tiles of A and B."""
    count = 32 * warps(BM, BN, WM, WN, SLICES)
    lanes = next(lanes for lanes in (32, 16, 8, 4) if BN // 4 % lanes == 0)  # along a row of B
    return count > 0 and BM % (count // 8) == 0 and BK % (count // lanes) == 0


@cuda.constraint
def bursts_are_short(BM, BN, BK, WM, WN, BURSTS, SLICES):
    """A burst has 1 to 8 copies per thread. More copies delay the loads of fragments after them."""
    count = 32 * max(1, warps(BM, BN, WM, WN, SLICES))
    copies = BK * (BM + BN // 4) // count
    return BURSTS <= copies <= 8 * BURSTS


@cuda.constraint
def copies_cover_latency(BK, STAGES):
    """16 to 96 steps of k are in flight. Fewer wait for memory, more gain nothing."""
    return 16 <= BK * (STAGES - 1) <= 96


@cuda.constraint
def indirect_copies_need_large_tiles(BM, BN, STAGES, REG_DB, LANES, RASTER, GRIDK, B_ROWS):
    """padded, shifted: the extra copies pay off only with tiles of at least 32 and fragments loaded ahead."""
    if B_ROWS == "direct":
        return True
    is_large = min(BM, BN) >= 32 and (RASTER == 8 or GRIDK > 1)
    return is_large and STAGES > 2 and REG_DB and LANES == "pairs"


@cuda.constraint
def shifted_rows_are_even(BM, BN, BK, WM, WN, SLICES, GRIDK, B_ROWS):
    """shifted: 16 or 32 lanes shift a row, a multiple of four rows at a time, in the second half of a step.

    GRIDK is at most 3: with more parts of k, B has few columns and a padded copy of it costs little.
    """
    if B_ROWS != "shifted":
        return True
    rows = 32 * warps(BM, BN, WM, WN, SLICES) // (32 if BN % 32 == 0 else 16)
    return rows > 0 and rows % 4 == 0 and BK % rows == 0 and BK // SLICES >= 4 and GRIDK <= 3


def shared_bytes(**values):
    """Return the dynamic shared memory in bytes. The final sums of slices reuse the memory of the stages."""
    return max(stages_bytes(**values), sums_bytes(**values))


def stages_bytes(BM, BN, BK, STAGES, B_ROWS, trans_a=0, trans_b=0, **others):
    """Return the bytes of all stages: tiles of A and B, a pad for transposed tiles, a quad for shifted rows."""
    pads = PAD * (1 - trans_a + trans_b) + (4 if B_ROWS == "shifted" else 0)
    return 4 * STAGES * BK * (BM + BN + pads)


def sums_bytes(BM, BN, SPLITK, GRIDK, SLICES, **others):
    """Return the bytes of the partial tiles of C, one for each slice; 0 if nothing splits k."""
    return 4 * SLICES * BM * (BN + 4) if SPLITK * GRIDK * SLICES > 1 else 0


def max_shared_bytes(MIN_BLOCKS, device):
    """Return the shared memory of a block in bytes if MIN_BLOCKS fit; the device reserves 1 KB per block."""
    return min(device.shared_bytes_per_block, device.shared_bytes_per_sm // MIN_BLOCKS - 1024)


@cuda.constraint
def stages_fit_shared(BM, BN, BK, STAGES, B_ROWS, MIN_BLOCKS, device):
    """The stages of MIN_BLOCKS blocks fit in the shared memory of a multiprocessor."""
    return stages_bytes(BM, BN, BK, STAGES, B_ROWS) <= max_shared_bytes(MIN_BLOCKS, device)


@cuda.constraint
def sums_fit_shared(BM, BN, SPLITK, GRIDK, SLICES, MIN_BLOCKS, C_ROWS, device):
    """Partial tiles of C fit in shared memory. They are always written in lines, so C_ROWS stays direct."""
    needed = sums_bytes(BM, BN, SPLITK, GRIDK, SLICES)
    fits = needed <= max_shared_bytes(MIN_BLOCKS, device)
    return fits and (needed == 0 or C_ROWS == "direct")


# ------------------------------------------------------------------ splits of k


@cuda.constraint
def raster_needs_many_tiles(RASTER, GRIDK):
    """If the grid splits k, C has too few tiles for RASTER to matter."""
    return GRIDK == 1 or RASTER == 1


@cuda.constraint
def clusters_are_pairs(SPLITK, GRIDK):
    """Clusters that the grid adds up have two blocks, which fit everywhere, or GRIDK is 15."""
    return SPLITK <= 2 or GRIDK in (1, 15)


@cuda.constraint
def long_k_needs_fragments_ahead(REG_DB, LANES, GRIDK):
    """GRIDK above 3 is for a long k, and needs fragments loaded ahead with LANES=pairs."""
    return GRIDK <= 3 or (REG_DB and LANES == "pairs")


@cuda.constraint
def tail_needs_large_tiles(BM, BN, TM, TN, REG_DB, LANES, SPLITK, GRIDK, SLICES, TAIL, C_ROWS):
    """TAIL pays off only for a large C: tiles of 128 x 128 or more, no other split of k, no lines."""
    if not TAIL:
        return True
    is_large = min(BM, BN) >= 128 and TM * TN >= 96 and C_ROWS == "direct"
    return is_large and REG_DB and LANES == "pairs" and SPLITK * GRIDK * SLICES == 1


@cuda.constraint
def tail_fits_counters(MIN_BLOCKS, TAIL, device):
    """A wave has at most the number of tiles whose arrivals the source can count."""
    return not TAIL or MIN_BLOCKS * device.sm_count <= MAX_SHARES


# ------------------------------------------------------------------ launch


def tiles(c, p):
    """Return the number of tiles of C."""
    return ceil_div(p.m, c.BM) * ceil_div(p.n, c.BN)


@cuda.requires
def requires(c, p):
    """Vector loads are aligned; GRIDK needs few tiles and a long k; tiles of 16 need a slim C, lines odd rows.

    The kernel itself checks the alignment of views.
    """
    split = c.SPLITK * c.GRIDK
    few = (tiles(c, p) * p.batch * c.SPLITK <= MAX_SHARES) & (2 * c.BK * split <= p.k)
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
    """Return whether the pad of a transposed B makes the stages too large for an architecture."""
    plain, padded = shared_bytes(**c), shared_bytes(**c, trans_b=1)
    return any(plain <= limit < padded for limit in SHARED_LIMITS)


@cuda.exclusive
def exclusive(c):
    """GRIDK above 1 and TAIL count arrivals in variables of the loaded module."""
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
    """Return the number of tiles in the last, incomplete wave."""
    return tiles(c, p) % (c.MIN_BLOCKS * device.sm_count)


@cuda.launch
def launch(c, p, device):
    product = Launch(
        grid=(blocks_of_batch(tiles(c, p), p), c.GRIDK, c.SPLITK),
        block=(32 * warps(c.BM, c.BN, c.WM, c.WN, c.SLICES),),
        shared_bytes=shared_bytes(**c, trans_a=p.trans_a, trans_b=p.trans_b),
        args=launch_arguments(p, scratch(c, p, device)),
    )
    if c.TAIL:
        product = with_tail(c, p, device, product)
    return padded_first(c, p, product) if c.B_ROWS == "padded" else product


def with_tail(c, p, device, product):
    """Return the launch with a second block for each tile of the last wave.

    A multiprocessor without a tile in that wave runs several of the second blocks in turn.
    """
    shared = last_wave(c, p, device)
    turns = ceil_div(shared, c.MIN_BLOCKS * device.sm_count - shared)
    args = (*ARGUMENTS, "partial", turns)
    return dataclasses.replace(product, grid=(tiles(c, p) + shared, 1, 1), args=args)


def padded_first(c, p, product):
    """Return a launch that pads the rows of B, and the product. A pad thread loops, so 2048 blocks are enough."""
    quads = p.k * ceil_div(p.n, 4)
    pad = Launch(
        grid=(minimum(ceil_div(quads, 256), 2048),),
        block=(256,),
        entry="pad_rows",
        args=("b", "padded", "n", "k"),
    )
    partial = ("partial",) if c.GRIDK > 1 else ()
    arguments = product.args or (*ARGUMENTS, *partial)
    return pad, dataclasses.replace(product, args=("a", "padded", *arguments[2:]))
