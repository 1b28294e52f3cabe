"""sgemm_tf32x3: C = alpha A B + beta C in float32, row-major, by three TF32 products on tensor cores.

The result is as accurate as float32 arithmetic. The kernel splits each number into two TF32 numbers. Tensor cores
truncate their sums, so the kernel moves them to float32 registers before errors accumulate. Two sources take the same
arguments: `mma` for all GPUs from sm_80 on, `wgmma` for sm_90a. Each has its own file (_sgemm_tf32x3_mma.py).
"""

import numpy as np
from _sgemm_tf32x3 import STRIDES
from _sgemm_tf32x3_mma import mma
from _sgemm_tf32x3_wgmma import wgmma

from autotune import InOut, Kernel, Problem, Work, matrix_product
from autotune.kernel.products import MatrixProduct


def square(n):
    return Problem(m=n, n=n, k=n)


def product(m, n, k):
    return Problem(m=m, n=n, k=k)


def view(m, n, k, lda, ldb, ldc, **others):
    """Return a problem whose matrices are parts of others, or column-major."""
    return Problem(m=m, n=n, k=k, view=1, lda=lda, ldb=ldb, ldc=ldc, **others)


#: Largest k for which exact data have low bits: sums over a longer k could need more than 24 bits.
DEEPEST_LOW_BITS = 32768

sgemm_tf32x3 = Kernel(
    name="sgemm_tf32x3",
    sources={"mma": mma, "wgmma": wgmma},
    backends=("cuda",),
    problems=[
        *[square(n) for n in (1024, 2048, 4096, 8192, 1000, 512, 1536)],
        product(777, 1234, 999),
        product(4096, 4096, 64),
        product(16384, 512, 1024),
        product(128, 4096, 4096),
        product(64, 4096, 4096),
        product(1300, 700, 500),
        square(2049),
        product(1111, 901, 703),
    ],
    quick_problems=[square(1024), square(4096)],
    edge_problems=[
        square(1),
        square(7),
        product(1, 300, 5),
        product(129, 4, 33),
        product(100, 132, 68),
        product(127, 131, 129),
        product(130, 260, 0),
        # k for eight parts, the last one empty
        product(19, 131, 1541),
        product(20, 132, 1028),
        *(
            Problem(m=68, n=132, k=68, offset_a=i, offset_b=i % 3 + 1, offset_c=(i + 1) % 3 + 1)
            for i in (1, 2, 3)
        ),
        view(129, 130, 71, lda=73, ldb=133, ldc=131),
        view(68, 132, 100, 104, 136, 140, batch=3, stride_a=7200, stride_b=0, stride_c=10000),
        view(
            68,
            132,
            100,
            72,
            136,
            132,
            trans_a=1,
            batch=2,
            stride_a=0,
            stride_b=13600,
            stride_c=8976,
        ),
        view(67, 131, 97, 67, 131, 133, trans_a=1, offset_a=1, offset_c=3),
        view(68, 132, 100, 100, 104, 132, trans_b=1),
        view(67, 131, 97, 99, 97, 131, trans_b=1, offset_b=2),
        view(68, 132, 100, 72, 104, 132, trans_a=1, trans_b=1),
        view(20, 132, 1028, 1032, 136, 132, batch=2, stride_a=20640, stride_b=0, stride_c=2640),
        view(19, 131, 1541, 19, 1541, 133, trans_a=1, trans_b=1, offset_b=1),
    ],
    # The kernels check alignment at run time.
    layout={
        "view": 0,  # 1: not one product of contiguous matrices; the values below describe the layout
        "trans_a": 0,  # 1: A is column-major; lda is then the distance of its columns
        "trans_b": 0,  # 1: B is column-major
        "lda": 0,  # floats between the rows of A
        "ldb": 0,
        "ldc": 0,
        "batch": 1,  # number of products
        "stride_a": 0,  # floats between the matrices of a batch; 0: one matrix for all products
        "stride_b": 0,
        "stride_c": 0,
        "offset_a": 0,
        "offset_b": 0,
        "offset_c": 0,
    },
    static=("view", "trans_a", "trans_b"),
    deterministic=True,  # consumers, blocks and clusters add up in a fixed order
)


def shape_in_memory(rows, cols, row_stride, batch, stride):
    """Return the declared shape of matrices; with gaps, the number of elements from first to last.

    `autotune.load` copies an operand of that shape if it has another layout.
    """
    if rows * cols == 0 or (row_stride == cols and (batch == 1 or stride in (0, rows * cols))):
        return (rows, cols) if batch == 1 or stride == 0 else (batch, rows, cols)
    return ((batch - 1) * stride + (rows - 1) * row_stride + cols,)


def strided(flat, *axes):
    """Return a strided array of flat memory; each axis is (length, stride)."""
    shape, strides = zip(*axes, strict=True)
    bytes_ = [stride * flat.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(flat, shape, bytes_)


@sgemm_tf32x3.arguments
def arguments(p, rng):
    """Return the arguments in the order of the kernel.

    If beta is 0, C holds NaN, which must not reach the result. Exact data are small integers, which TF32
    represents exactly. Even columns of A and odd rows of B get a bit that only the low half of a number holds.
    Arrays of views cover all memory from the first element to the last: gaps must keep their values.
    """
    adds = adds_to_c(p, rng)
    scalars = {
        "alpha": 2.0 if adds else 1.0,
        "beta": 0.5 if adds else 0.0,
        "m": p.m,
        "n": p.n,
        "k": p.k,
    }
    if not p.view:
        a, b = rng.standard_normal((p.m, p.k)), rng.standard_normal((p.k, p.n))
        if rng.exact and p.k <= DEEPEST_LOW_BITS:
            a[:, ::2] *= np.float32(1 + 2.0**-12)
            b[1::2] *= np.float32(1 + 2.0**-12)
        # Broadcast one NaN: `load` needs only shapes, not a gigabyte of values.
        nan = np.broadcast_to(np.float32(np.nan), (p.m, p.n))
        c = rng.standard_normal((p.m, p.n)) if adds else nan
        return {"a": a, "b": b, "c": InOut(c), **scalars}
    a_shape = (p.k, p.m) if p.trans_a else (p.m, p.k)
    b_shape = (p.n, p.k) if p.trans_b else (p.k, p.n)
    return {
        "a": rng.standard_normal(shape_in_memory(*a_shape, p.lda, p.batch, p.stride_a)),
        "b": rng.standard_normal(shape_in_memory(*b_shape, p.ldb, p.batch, p.stride_b)),
        "c": InOut(rng.standard_normal(shape_in_memory(p.m, p.n, p.ldc, p.batch, p.stride_c))),
        **scalars,
        **{name: np.int64(p[name]) for name in STRIDES},
        "batch": p.batch,
        "trans_a": p.trans_a,
        "trans_b": p.trans_b,
    }


def adds_to_c(p, rng):
    """Return whether alpha is 2 and beta 0.5: for views, and for exact data of small problems.

    Random data are timed with beta = 0, as in most calls.
    """
    return p.view or (rng.exact and p.m * p.n * p.k < 1 << 22)


@sgemm_tf32x3.reference
def reference(
    a,
    b,
    c,
    alpha,
    beta,
    m,
    n,
    k,
    batch=0,
    lda=0,
    ldb=0,
    ldc=0,
    stride_a=0,
    stride_b=0,
    stride_c=0,
    trans_a=0,
    trans_b=0,
):
    memory, out = c, c
    if batch:
        memory = c.copy()
        out = strided(memory, (batch, stride_c), (m, ldc), (n, 1))
        a_axes, b_axes = [(m, lda), (k, 1)], [(k, ldb), (n, 1)]
        if trans_a:
            a_axes = [(m, 1), (k, lda)]
        if trans_b:
            b_axes = [(k, 1), (n, ldb)]
        a, b = strided(a, (batch, stride_a), *a_axes), strided(b, (batch, stride_b), *b_axes)
    product = alpha * (a @ b)
    product = product + beta * out if beta else product
    if not batch:
        return product
    out[...] = product
    return memory


@sgemm_tf32x3.tolerance
def tolerance(p):
    """Return the tolerance of plain float32 (spaces/sgemm.py); the float32 product of cuBLAS needs it too.

    Sums that never move to float32 registers exceed it: their error is 25 times that of cuBLAS.
    """
    alpha = 2 if p.view else 1
    return alpha * float(np.finfo(np.float32).eps) * (4 * p.k + 64)


@sgemm_tf32x3.work
def work(p):
    return Work(
        flops=2 * p.m * p.n * p.k * p.batch,
        bytes_read=4 * (p.m * p.k + p.k * p.n) * p.batch,
        bytes_written=4 * p.m * p.n * p.batch,
        pipe="tf32x3",
    )


@sgemm_tf32x3.call
def call(a, b, out=None, alpha=1.0, beta=0.0):
    product = matrix_product(a, b, out, alpha, beta, also_by="sgemm")
    if not isinstance(product, MatrixProduct):
        return product
    layout = {} if product.is_plain else {"view": 1, **product.layout}
    return product.answer(Problem(m=product.m, n=product.n, k=product.k, **layout))


@sgemm_tf32x3.baseline("cublas")
def cublas(a, b, c, alpha, beta, m, n, k):
    """Call cublasSgemm in plain float32. It is column-major, so it computes C' = B' A'."""
    from autotune.vendor import PLAIN, cublas_call

    return cublas_call("cublasSgemm_v2", PLAIN, PLAIN, n, m, k, alpha, b, n, a, k, beta, c, n)
