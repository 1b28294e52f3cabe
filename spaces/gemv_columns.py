"""gemv_columns: y = alpha A x + beta y in float32, with A column-major, by kernels/gemv_columns.cu.

A is stored as n rows of m floats: ``load("gemv_columns")(a, x)`` returns ``a.T @ x`` for a row-major ``a``.
"""

import _vectors
from _device import cache_hints_need_cuda, warp_size_is_supported

from autotune import Kernel, Launch, Out, Problem, ceil_div


def matrix(m, n):
    return Problem(m=m, n=n)


def view(m, n, lda, incx=1, incy=1, **offsets):
    """Return a problem whose arrays are parts of other arrays."""
    return Problem(m=m, n=n, view=1, lda=lda, incx=incx, incy=incy, **offsets)


def strips(BLOCK_THREADS, TEAM, LINES, UNROLL, **others):
    """Return a configuration with 16-byte loads; TEAM, LINES and UNROLL describe a strip."""
    sizes = {"BLOCK_THREADS": BLOCK_THREADS, "TEAM": TEAM, "LINES": LINES, "UNROLL": UNROLL}
    return {**sizes, "VEC": 4, **others}


gemv_columns = Kernel(
    "gemv_columns.cu",
    device_macros={"WARP": "warp_size"},
    problems={
        "cuda": [matrix(n, n) for n in (1024, 4096, 8192, 16384)]
        + [
            # one row times the weights of a layer
            matrix(11008, 4096),
            matrix(4096, 11008),
            matrix(32000, 4096),
            matrix(1024, 8192),
            matrix(1000, 1000),
            matrix(2048, 2048),
            # many rows of a few floats, and few rows
            matrix(3, 1000001),
            matrix(16, 100000),
            matrix(64, 1 << 20),
            matrix(37, 120000),
            matrix(1 << 20, 64),
            matrix(1 << 18, 16),
            # odd
            matrix(4095, 4097),
            matrix(127, 5083),
            matrix(333, 7777),
        ],
        "opencl": [matrix(1024, 1024), matrix(16, 40000), matrix(100000, 8), matrix(1023, 511)],
    },
    quick_problems={
        "cuda": [matrix(4096, 4096), matrix(64, 1 << 20)],
        "opencl": [matrix(1024, 1024), matrix(1023, 511)],
    },
    edge_problems=[
        matrix(m, n)
        for m, n in (
            (1, 1),
            (1, 1000),
            (1000, 1),
            (3, 7),
            (129, 33),
            (255, 257),
            (5, 20000),
            (20000, 5),
            (68, 1003),
            (300, 0),
        )
    ]
    + [
        Problem(m=132, n=65, offset_a=1, offset_x=2, offset_y=3),
        Problem(m=132, n=65, offset_a=2, offset_x=1, offset_y=1),
        Problem(m=68, n=9000, offset_a=3, offset_x=3, offset_y=2),
        view(132, 65, lda=136, incy=3),
        view(133, 66, lda=134, incx=3, incy=2),
        view(132, 67, lda=132),
        view(5, 20000, lda=8, incx=2, incy=3),
        view(8, 20000, lda=12, incx=2),
        view(1004, 259, lda=1005, offset_a=1, offset_x=3, offset_y=2),
    ],
    seeds=[
        # a strip for each multiprocessor, with 64 KB in flight
        strips(512, 8, 1, 8, LOAD="stream"),
        strips(256, 16, 1, 8, LOAD="stream"),
        # few strips: several blocks for each
        strips(256, 8, 1, 8, GRIDK=4, LOAD="stream"),
        # one or two strips of many short rows
        strips(512, 16, 1, 8, GRIDK=128, LOAD="stream"),
        strips(256, 1, 1, 2, GRIDK=256),
        # the same for unaligned rows: single floats
        strips(256, 32, 1, 8, VEC=1, GRIDK=12),
        strips(256, 1, 4, 2, VEC=1, GRIDK=256),
        # a few long rows
        strips(128, 32, 1, 4, LOAD="stream"),
        # a CPU
        strips(128, 16, 1, 4),
        strips(128, 4, 1, 4, GRIDK=8),
    ],
    default=strips(256, 8, 1, 8),
    deterministic=True,  # the last block of a strip adds up all sums in a fixed order
    BLOCK_THREADS=(128, 256, 512),
    TEAM=(1, 2, 4, 8, 16, 32),  # threads that read adjacent parts of a row
    LINES=(1, 2, 4),  # loads per thread and row
    VEC=(1, 2, 4),  # floats per load
    UNROLL=(1, 2, 4, 8, 16),  # rows with loads in flight per thread
    LOAD=("plain", "stream", "bypass"),  # cache hints for A
    GRIDK=(1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256),  # blocks per strip
    MIN_BLOCKS=(1, 2, 4),  # blocks that must fit on one multiprocessor
    # The kernel checks alignment at run time.
    layout={
        "view": 0,  # 1: the arrays are not contiguous, and the values below describe them
        "lda": 0,  # floats between the stored rows
        "incx": 1,  # floats between the elements of x
        "incy": 1,  # floats between the elements of y
        "offset_a": 0,
        "offset_x": 0,
        "offset_y": 0,
    },
    static=("view",),
)

gemv_columns.constraint(warp_size_is_supported)
gemv_columns.constraint(cache_hints_need_cuda)

#: Largest number of strips whose arrivals blocks can count; the limit of sgemm_slim.cu.
MAX_SHARES = 1024
#: Registers of a thread in addition to sums and loaded values.
OTHER_REGISTERS = 32


def tile(TEAM, LINES, VEC, **others):
    """Return the elements of y per block."""
    return TEAM * LINES * VEC


@gemv_columns.constraint
def threads_make_a_block(BLOCK_THREADS, device):
    """A block has no more threads than the device allows."""
    return device.max_threads_per_block >= BLOCK_THREADS


@gemv_columns.constraint
def enough_loads_in_flight(LINES, VEC, UNROLL):
    """A thread has 32 to 256 bytes of A in flight."""
    return 8 <= LINES * VEC * UNROLL <= 64


@gemv_columns.constraint
def loads_fit_registers(BLOCK_THREADS, LINES, VEC, UNROLL, MIN_BLOCKS, device):
    """The loads in flight of MIN_BLOCKS blocks fit in registers, with sums and 32 others.

    Below 512 threads on a multiprocessor registers are no limit, so a larger MIN_BLOCKS changes nothing.
    """
    if device.backend != "cuda":
        return MIN_BLOCKS == 1  # OpenCL has no such option
    threads, sums = BLOCK_THREADS * MIN_BLOCKS, LINES * VEC
    needed = sums * UNROLL + UNROLL + sums + OTHER_REGISTERS
    return needed <= min(255, device.registers_per_sm // threads) and (
        MIN_BLOCKS == 1 or 512 <= threads <= device.max_threads_per_sm
    )


@gemv_columns.constraint
def sums_fit_shared(BLOCK_THREADS, TEAM, LINES, VEC, device):
    """A copy of the sums of the strip for each warp fits in static shared memory, at most 48 KB."""
    copies = BLOCK_THREADS // max(TEAM, device.warp_size)
    needed = 4 * (copies * tile(TEAM, LINES, VEC) + 1)
    return needed <= min(49152, device.shared_bytes_per_block)


def tiles(c, p):
    """Return the number of strips of A."""
    return ceil_div(p.m, tile(**c))


@gemv_columns.requires
def requires(c, p):
    """GRIDK above 1 needs few strips, and 32 rows or more for each block."""
    return c.GRIDK == 1 or (tiles(c, p) <= MAX_SHARES) & (p.n >= 32 * c.GRIDK)


@gemv_columns.exclusive
def exclusive(c):
    """GRIDK above 1 counts arrivals in variables of the loaded module."""
    return c.GRIDK > 1


@gemv_columns.scratch
def scratch(c, p):
    return {"partial": Out(c.GRIDK * tiles(c, p) * tile(**c))} if c.GRIDK > 1 else {}


@gemv_columns.launch
def launch(c, p):
    # The kernel takes batches. There is one matrix here, so the distances between matrices do not matter.
    views = ("lda", "incx", "incy", "lda", "lda", "lda") if p.view else ()
    args = ("a", "x", "y", "alpha", "beta", "m", 1, "n", *views, *scratch(c, p))
    return Launch(grid=(tiles(c, p), c.GRIDK), block=(c.BLOCK_THREADS,), args=args)


@gemv_columns.arguments
def arguments(p, rng):
    return _vectors.arguments_of(p, rng, p.n, p.m)


@gemv_columns.reference
def reference(a, x, y, alpha, beta, m, n, lda=None, incx=1, incy=1):
    if lda is not None:
        a, x = _vectors.strided(a, (n, lda), (m, 1)), _vectors.strided(x, (n, incx))
    return _vectors.expected(a.T, x, y, alpha, beta, incy)


gemv_columns.tolerance(_vectors.tolerance)
gemv_columns.work(_vectors.work)


@gemv_columns.call
def call(a, x, out=None, alpha=1.0, beta=0.0):
    """Compute y = alpha a' x + beta y."""
    return _vectors.answer(a, x, out, alpha, beta, trans=True, by_columns=True)


@gemv_columns.baseline("cublas")
def cublas(a, x, y, alpha, beta, m, n):
    """Call cublasSgemv, which is column-major like A."""
    from autotune.vendor import PLAIN, cublas_call

    return cublas_call("cublasSgemv_v2", PLAIN, m, n, alpha, a, m, x, 1, beta, y, 1)
