"""`mma` (kernels/sgemm_tf32x3.cu): warp products, for all GPUs from sm_80 on."""

from _sgemm_tf32x3 import ARGUMENTS, STRIDES, tiles

from autotune import Launch, Source, ceil_div


def tiles_of(BM, BN, BK, WM, WN, **others):
    """Return a configuration with given tiles."""
    return {"BM": BM, "BN": BN, "BK": BK, "WM": WM, "WN": WN, "FLUSH": 32, "RASTER": 8, **others}


#: Registers of a thread in addition to accumulators and fragments: addresses, counters, predicates.
OTHER_REGISTERS = 28

mma = Source(
    "sgemm_tf32x3.cu",
    seeds=[
        tiles_of(128, 128, 16, 32, 64, STAGES=4, C_ROWS="lines"),
        tiles_of(64, 128, 16, 64, 32, STAGES=4, MIN_BLOCKS=2),
        tiles_of(64, 128, 16, 32, 32, STAGES=3),
        tiles_of(64, 64, 32, 32, 32, STAGES=3, MIN_BLOCKS=3),
    ],
    # for GPUs without a record; only Hopper has wgmma
    default=tiles_of(128, 128, 16, 32, 64, STAGES=4),
    BM=(64, 128, 256),  # rows of C per block
    BN=(64, 128, 256),  # columns of C per block
    BK=(16, 32),  # depth of one pair of tiles
    WM=(16, 32, 64, 128),  # rows of C per warp
    WN=(32, 64),  # columns of C per warp
    STAGES=(2, 3, 4, 5),  # pairs of tiles in shared memory
    # products of an element that the tensor core adds up before a flush to float32 registers
    FLUSH=(16, 32),
    C_ROWS=("direct", "lines"),  # how to write rows of C that are not whole quads
    RASTER=(4, 8, 16),  # rows of blocks that run together, for reuse in the L2 cache
    MIN_BLOCKS=(1, 2, 3, 4),  # blocks that must fit on one multiprocessor
)


@mma.constraint
def device_is_supported(device):
    """Products of TF32 need compute capability 8.0."""
    return device.compute_capability >= 80


@mma.constraint
def warps_make_a_block(BM, BN, WM, WN):
    """A block has 2 to 16 warp tiles."""
    return BM % WM == BN % WN == 0 and 2 <= (BM // WM) * (BN // WN) <= 16


@mma.constraint
def flushes_between_steps(BK, FLUSH):
    """A flush comes after whole steps: within a step it leaves no registers to overlap loads."""
    return FLUSH >= BK


@mma.constraint
def fits_registers(BM, BN, WM, WN, MIN_BLOCKS, device):
    """Two sets of accumulators, the loaded numbers and their halves fit in the registers of a thread."""
    needed = (2 * WM * WN + 24 * (WM + WN)) // 32 + OTHER_REGISTERS
    # Each of the four schedulers of a multiprocessor has a quarter of the registers.
    warps = ceil_div((BM // WM) * (BN // WN) * MIN_BLOCKS, 4)
    available = device.registers_per_sm // 4 // (32 * warps) // 8 * 8 if warps else 0
    return needed <= min(255, available)


def shared_bytes(BM, BN, BK, STAGES, **others):
    """Return the bytes of the stages; rows of A have a pad of 8 floats."""
    return 4 * STAGES * (BM * (BK + 8) + BK * BN)


@mma.constraint
def blocks_fit_shared(BM, BN, BK, STAGES, MIN_BLOCKS, device):
    """MIN_BLOCKS blocks fit in the shared memory of a multiprocessor; the device reserves 1 KB per block."""
    limit = min(device.shared_bytes_per_block, device.shared_bytes_per_sm // MIN_BLOCKS - 1024)
    return shared_bytes(BM, BN, BK, STAGES) <= limit


@mma.requires
def requires(c, p):
    """Lines are for rows of C that are not whole quads."""
    return c.C_ROWS != "lines" or p.n % 4 >= 1


@mma.launch
def launch(c, p):
    threads = 32 * (c.BM // c.WM) * (c.BN // c.WN)
    args = (*ARGUMENTS, *STRIDES) if p.view else None
    return Launch((tiles(c, p),), (threads,), shared_bytes=shared_bytes(**c), args=args)
