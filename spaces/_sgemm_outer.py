"""`outer` (kernels/sgemm_outer.cu): for a short k, on CUDA and OpenCL; not for views."""

from _sgemm import MOST_STATIC_BYTES

from autotune import Launch, Source, ceil_div

#: The longest k.
MOST_K = 64

outer = Source(
    "sgemm_outer.cu",
    seeds=[{"BLOCK_THREADS": 256, "TEAM": 32, "TM": 8, "TN": 4, "VEC": 4}],
    default={"BLOCK_THREADS": 256, "TEAM": 32, "TM": 8, "TN": 4, "VEC": 1},
    BLOCK_THREADS=(128, 256, 512),
    TEAM=(4, 8, 16, 32, 64, 256),  # threads that write a row of C together
    TM=(4, 8, 12, 16),  # rows of C per thread
    TN=(4, 8, 12, 16),  # columns of C per thread
    VEC=(1, 4),  # columns of a thread that are neighbours
)


def tile(BLOCK_THREADS, TEAM, TM, TN, **others):
    """Return rows and columns of C of a block."""
    return BLOCK_THREADS // TEAM * TM, TEAM * TN


@outer.constraint
def teams_make_a_block(BLOCK_THREADS, TEAM, device):
    """A block is whole teams."""
    return TEAM <= BLOCK_THREADS <= device.max_threads_per_block


@outer.constraint
def fits_registers(TM, TN):
    """At most 64 sums a thread, together with four steps of B's columns."""
    return TM * TN <= 64


@outer.constraint
def fits_shared(BLOCK_THREADS, TEAM, TM, TN, device):
    """A block's rows of A fit in static shared memory."""
    rows, _ = tile(BLOCK_THREADS, TEAM, TM, TN)
    return 4 * rows * (MOST_K + 4) <= min(MOST_STATIC_BYTES, device.shared_bytes_per_block)


@outer.requires
def requires(c, p):
    """k is short, rows of C are whole vectors, and nothing is a view."""
    return (p.view == 0) & (p.k <= MOST_K) & (p.n % c.VEC == 0)


@outer.launch
def launch(c, p):
    rows, columns = tile(**c)
    return Launch(grid=(ceil_div(p.m, rows) * ceil_div(p.n, columns),), block=(c.BLOCK_THREADS,))
