"""`portable` (kernels/sgemm.cu): runs on CUDA and OpenCL, and explains the ideas."""

from _device import occupancy_is_cuda
from _sgemm import MOST_STATIC_BYTES, OTHER_REGISTERS, of_all_matrices, passed

from autotune import Launch, Source, ceil_div

#: 64 x 64 per block, 4 x 4 per thread.
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
    ALG=("register", "tile", "naive"),  # where reuse is found
    BLOCK_X=(16, 32, 64),  # naive, tile: threads along a row of C
    BLOCK_Y=(2, 4, 8, 16),  # naive, tile: threads along a column of C
    BM=(16, 32, 48, 64, 96, 128, 256),  # rows of C per block
    BN=(16, 32, 48, 64, 96, 128, 256),  # columns of C per block
    BK=(8, 16, 32),  # depth of one pair of tiles
    TM=(4, 8),  # rows of C per thread
    TN=(4, 8),  # columns of C per thread
    VEC=(1, 2, 4),  # floats per load from global memory
    PAD=(4, 0),  # floats added to each row of A's tile, against bank conflicts
    DOUBLE_SHARED=(False, True),  # two pairs of tiles in turn
    DOUBLE_FRAGMENT=(False, True),  # read the values of step k + 1 before the arithmetic of step k
    UNROLL=(1, 2, 4, 8),  # steps of k written out
    MIN_BLOCKS=(1, 2, 3, 4),  # blocks that must fit on one multiprocessor
)

portable.constraint(occupancy_is_cuda)


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
    """naive, tile: a block is whole warps, 64 threads at least and at most what the device allows."""
    return (
        BLOCK_X * BLOCK_Y % device.warp_size == 0
        and 64 <= BLOCK_X * BLOCK_Y <= device.max_threads_per_block
    )


@portable.constraint
def register_block_is_whole_warps(BM, BN, TM, TN, device):
    """register: a block is whole warps, 64 to 512 threads."""
    count = (BM // TM) * (BN // TN)
    return count % device.warp_size == 0 and 64 <= count <= 512


@portable.constraint
def loads_divide(ALG, BM, BN, BK, TM, TN, VEC):
    """register: every thread loads equally many pieces of VEC floats of either tile."""
    piece = (BM // TM) * (BN // TN) * VEC
    return ALG != "register" or (BM * BK % piece == 0 and BK * BN % piece == 0)


@portable.constraint
def unroll_divides(BK, UNROLL):
    """A step of k is whole unrolled pieces."""
    return BK % UNROLL == 0


@portable.constraint
def fits_registers(BM, BN, BK, TM, TN, DOUBLE_FRAGMENT, MIN_BLOCKS, device):
    """register: accumulators, fragments and the next tiles' pieces fit the registers of a thread."""
    count = (BM // TM) * (BN // TN)
    needed = TM * TN + (1 + DOUBLE_FRAGMENT) * (TM + TN) + (BM + BN) * BK // count + OTHER_REGISTERS
    available = min(255, device.registers_per_sm // (count * MIN_BLOCKS))
    return device.backend != "cuda" or needed <= available


@portable.constraint
def fits_shared(BM, BN, BK, PAD, DOUBLE_SHARED, MIN_BLOCKS, device):
    """register: the tiles fit in static shared memory."""
    needed = 4 * (1 + DOUBLE_SHARED) * BK * (BM + PAD + BN)
    return needed <= min(
        MOST_STATIC_BYTES,
        device.shared_bytes_per_block,
        device.shared_bytes_per_sm // MIN_BLOCKS - 1024,
    )


@portable.requires
def requires(c, p):
    """register: if rows of the tuned layout are whole vectors, they begin at one.

    The kernel looks at views.
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
    return Launch(grid=(of_all_matrices(blocks, p),), block=block, args=passed(p))
