"""`portable` (kernels/sgemm.cu): runs on CUDA and OpenCL; its comments explain the ideas."""

from _device import min_blocks_needs_cuda
from _sgemm import MAX_STATIC_BYTES, OTHER_REGISTERS, blocks_of_batch, launch_arguments

from autotune import Launch, Source, ceil_div

#: A configuration with 64 x 64 elements of C per block and 4 x 4 per thread.
REGISTER = {"BM": 64, "BN": 64, "BK": 16, "TM": 4, "TN": 4, "VEC": 4, "UNROLL": 4}

portable = Source(
    "sgemm.cu",
    seeds=[
        {**REGISTER, "BM": 128, "BN": 128, "TM": 8, "TN": 8, "UNROLL": 8, "DOUBLE_SHARED": True},
        {**REGISTER, "DOUBLE_SHARED": True},
    ],
    default={**REGISTER, "DOUBLE_SHARED": True},
    variants={
        "naive": {"ALG": "naive", "BLOCK_X": 16, "BLOCK_Y": 16},
        "tile": {"ALG": "tile", "BLOCK_X": 16, "BLOCK_Y": 16, "BK": 16, "UNROLL": 8},
        "register": REGISTER,
        "double": {**REGISTER, "DOUBLE_SHARED": True},
    },
    ALG=("register", "tile", "naive"),  # where values are reused: registers, shared memory, caches
    BLOCK_X=(16, 32, 64),  # naive, tile: threads along a row of C
    BLOCK_Y=(2, 4, 8, 16),  # naive, tile: threads along a column of C
    BM=(16, 32, 48, 64, 96, 128, 256),  # rows of C per block
    BN=(16, 32, 48, 64, 96, 128, 256),  # columns of C per block
    BK=(8, 16, 32),  # depth of one pair of tiles
    TM=(4, 8),  # rows of C per thread
    TN=(4, 8),  # columns of C per thread
    VEC=(1, 2, 4),  # floats per load from global memory
    PAD=(4, 0),  # floats added to each row of the tile of A, against bank conflicts
    DOUBLE_SHARED=(False, True),  # two pairs of tiles: load one while the other is in use
    # load the fragments of step k + 1 before the arithmetic of step k
    DOUBLE_FRAGMENT=(False, True),
    UNROLL=(1, 2, 4, 8),  # unrolled steps of k
    MIN_BLOCKS=(1, 2, 3, 4),  # blocks that must fit on one multiprocessor
)

portable.constraint(min_blocks_needs_cuda)


@portable.applies("BLOCK_X", "BLOCK_Y")
def one_element_per_thread(ALG):
    return ALG != "register"


@portable.applies(
    "BM", "BN", "TM", "TN", "VEC", "PAD", "DOUBLE_SHARED", "DOUBLE_FRAGMENT", "MIN_BLOCKS"
)
def many_elements_per_thread(ALG):
    return ALG == "register"


@portable.applies("BK", "UNROLL")
def tiles_in_shared_memory(ALG):
    return ALG != "naive"


@portable.constraint
def small_block_is_whole_warps(BLOCK_X, BLOCK_Y, device):
    """naive, tile: a block has whole warps, at least 64 threads and at most the limit of the device."""
    return (
        BLOCK_X * BLOCK_Y % device.warp_size == 0
        and 64 <= BLOCK_X * BLOCK_Y <= device.max_threads_per_block
    )


@portable.constraint
def register_block_is_whole_warps(BM, BN, TM, TN, device):
    """register: a block has whole warps, and 64 to 512 threads."""
    count = (BM // TM) * (BN // TN)
    return count % device.warp_size == 0 and 64 <= count <= 512


@portable.constraint
def loads_divide(ALG, BM, BN, BK, TM, TN, VEC):
    """register: all threads load the same number of vectors of each tile."""
    piece = (BM // TM) * (BN // TN) * VEC
    return ALG != "register" or (BM * BK % piece == 0 and BK * BN % piece == 0)


@portable.constraint
def unroll_divides(BK, UNROLL):
    """UNROLL divides the depth of a tile."""
    return BK % UNROLL == 0


@portable.constraint
def fits_registers(BM, BN, BK, TM, TN, DOUBLE_FRAGMENT, MIN_BLOCKS, device):
    """register: accumulators, fragments and vectors of the next tiles fit in the registers of a thread."""
    count = (BM // TM) * (BN // TN)
    needed = TM * TN + (1 + DOUBLE_FRAGMENT) * (TM + TN) + (BM + BN) * BK // count + OTHER_REGISTERS
    available = min(255, device.registers_per_sm // (count * MIN_BLOCKS))
    return device.backend != "cuda" or needed <= available


@portable.constraint
def fits_shared(BM, BN, BK, PAD, DOUBLE_SHARED, MIN_BLOCKS, device):
    """register: the tiles fit in static shared memory."""
    needed = 4 * (1 + DOUBLE_SHARED) * BK * (BM + PAD + BN)
    return needed <= min(
        MAX_STATIC_BYTES,
        device.shared_bytes_per_block,
        device.shared_bytes_per_sm // MIN_BLOCKS - 1024,
    )


@portable.requires
def requires(c, p):
    """register: rows of whole vectors begin at a vector boundary.

    The kernel itself checks the alignment of views.
    """
    if c.ALG != "register":
        return True
    a = (p.k % c.VEC == 0) * (p.offset_a % c.VEC)
    b = (p.n % c.VEC == 0) * (p.offset_b % c.VEC)
    return (1 - p.view) * (a + b + (p.n % 4 == 0) * p.offset_c) == 0


@portable.launch
def launch(c, p):
    if c.ALG == "register":
        blocks = ceil_div(p.m, c.BM) * ceil_div(p.n, c.BN)
        block = (c.BM // c.TM * (c.BN // c.TN),)
    else:
        blocks = ceil_div(p.m, c.BLOCK_Y) * ceil_div(p.n, c.BLOCK_X)
        block = (c.BLOCK_X, c.BLOCK_Y)
    return Launch(grid=(blocks_of_batch(blocks, p),), block=block, args=launch_arguments(p))
