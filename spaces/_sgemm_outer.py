"""`outer` (kernels/sgemm_outer.cu): products with a short k, on CUDA and OpenCL, without views."""

from _sgemm import MAX_STATIC_BYTES

from autotune import Launch, Source, ceil_div

#: Largest k.
MAX_K = 64

outer = Source(
    "sgemm_outer.cu",
    seeds=[{"BLOCK_THREADS": 256, "TEAM": 32, "TM": 8, "TN": 4, "VEC": 4}],
    default={"BLOCK_THREADS": 256, "TEAM": 32, "TM": 8, "TN": 4, "VEC": 1},
    BLOCK_THREADS=(128, 256, 512),
    TEAM=(4, 8, 16, 32, 64, 256),  # threads that write a row of C together
    TM=(4, 8, 12, 16),  # rows of C per thread
    TN=(4, 8, 12, 16),  # columns of C per thread
    VEC=(1, 4),  # adjacent columns per thread
)


def tile(BLOCK_THREADS, TEAM, TM, TN, **others):
    """Return the rows and columns of C per block."""
    return BLOCK_THREADS // TEAM * TM, TEAM * TN


@outer.constraint
def teams_make_a_block(BLOCK_THREADS, TEAM, device):
    """A block has whole teams, and no more threads than the device allows."""
    return TEAM <= BLOCK_THREADS <= device.max_threads_per_block


@outer.constraint
def fits_registers(TM, TN):
    """A thread has at most 64 sums, to leave registers for four steps of B."""
    return TM * TN <= 64


@outer.constraint
def fits_shared(BLOCK_THREADS, TEAM, TM, TN, device):
    """The rows of A of a block fit in static shared memory."""
    rows, _ = tile(BLOCK_THREADS, TEAM, TM, TN)
    return 4 * rows * (MAX_K + 4) <= min(MAX_STATIC_BYTES, device.shared_bytes_per_block)


@outer.requires
def requires(c, p):
    """k is at most 64, rows of C are whole vectors, and the problem has no views."""
    return (p.view == 0) & (p.k <= MAX_K) & (p.n % c.VEC == 0)


@outer.launch
def launch(c, p):
    rows, columns = tile(**c)
    return Launch(grid=(ceil_div(p.m, rows) * ceil_div(p.n, columns),), block=(c.BLOCK_THREADS,))
