"""sgemm_tf32x3: C = alpha A B + beta C in float32, row-major, by three TF32 products on tensor cores.

As accurate as float32 arithmetic: every number is split into two TF32 numbers, and the tensor core's
sums, which it truncates, are moved to float32 registers before truncation adds up. Two sources with the
same arguments: `mma` for every GPU since sm_80, `wgmma` for sm_90a. Each is declared in a file of its own
(_sgemm_tf32x3_mma.py).
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
    """A product of matrices that are part of others, or lie column by column."""
    return Problem(m=m, n=n, k=k, view=1, lda=lda, ldb=ldb, ldc=ldc, **others)


#: Depth up to which exact data may have low bits: beyond, sums of them could need more than 24 bits.
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
        # k for eight parts, of which the last is empty
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
    # The kernels look at alignment at run time.
    layout={
        "view": 0,  # 1: what follows is given, and not that of one product of contiguous matrices
        "trans_a": 0,  # 1: A lies column by column, so that these are its rows
        "trans_b": 0,
        "lda": 0,  # floats between the rows
        "ldb": 0,
        "ldc": 0,
        "batch": 1,  # products
        "stride_a": 0,  # floats between the matrices; 0: one for all
        "stride_b": 0,
        "stride_c": 0,
        "offset_a": 0,
        "offset_b": 0,
        "offset_c": 0,
    },
    static=("view", "trans_a", "trans_b"),
    deterministic=True,  # consumers, blocks and clusters are added up in one order
)


def memory_of(rows, cols, apart, batch, stride):
    """The shape in which matrices are declared: their own where they lie without gaps, else all memory.

    Of an operand of that shape which lies otherwise, `autotune.load` makes a copy.
    """
    if rows * cols == 0 or (apart == cols and (batch == 1 or stride in (0, rows * cols))):
        return (rows, cols) if batch == 1 or stride == 0 else (batch, rows, cols)
    return ((batch - 1) * stride + (rows - 1) * apart + cols,)


def strided(flat, *axes):
    """The array of (length, stride) axes in memory."""
    shape, strides = zip(*axes, strict=True)
    bytes_ = [stride * flat.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(flat, shape, bytes_)


@sgemm_tf32x3.arguments
def arguments(p, rng):
    """In the kernel's order. Where nothing is added to C it holds NaN, which must not get through.

    Exact data are small integers, of which TF32 loses nothing. Every other column of A and, in between,
    every other row of B get a bit that only the low half of a number holds. Of views all memory is drawn,
    from the first element to the last: what lies between must stay.
    """
    is_added = adds(p, rng)
    given = {
        "alpha": 2.0 if is_added else 1.0,
        "beta": 0.5 if is_added else 0.0,
        "m": p.m,
        "n": p.n,
        "k": p.k,
    }
    if not p.view:
        a, b = rng.standard_normal((p.m, p.k)), rng.standard_normal((p.k, p.n))
        if rng.exact and p.k <= DEEPEST_LOW_BITS:
            a[:, ::2] *= np.float32(1 + 2.0**-12)
            b[1::2] *= np.float32(1 + 2.0**-12)
        # One NaN for all of C: `load` asks for shapes, and has no use for a gigabyte of them.
        nothing = np.broadcast_to(np.float32(np.nan), (p.m, p.n))
        c = rng.standard_normal((p.m, p.n)) if is_added else nothing
        return {"a": a, "b": b, "c": InOut(c), **given}
    of_a = (p.k, p.m) if p.trans_a else (p.m, p.k)
    of_b = (p.n, p.k) if p.trans_b else (p.k, p.n)
    return {
        "a": rng.standard_normal(memory_of(*of_a, p.lda, p.batch, p.stride_a)),
        "b": rng.standard_normal(memory_of(*of_b, p.ldb, p.batch, p.stride_b)),
        "c": InOut(rng.standard_normal(memory_of(p.m, p.n, p.ldc, p.batch, p.stride_c))),
        **given,
        **{name: np.int64(p[name]) for name in STRIDES},
        "batch": p.batch,
        "trans_a": p.trans_a,
        "trans_b": p.trans_b,
    }


def adds(p, rng):
    """Return whether twice the product is added to a half of C: in views, and on exact data of small problems.

    Random data are timed, and most calls add nothing.
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
        of_a, of_b = [(m, lda), (k, 1)], [(k, ldb), (n, 1)]
        if trans_a:
            of_a = [(m, 1), (k, lda)]
        if trans_b:
            of_b = [(k, 1), (n, ldb)]
        a, b = strided(a, (batch, stride_a), *of_a), strided(b, (batch, stride_b), *of_b)
    product = alpha * (a @ b)
    product = product + beta * out if beta else product
    if not batch:
        return product
    out[...] = product
    return memory


@sgemm_tf32x3.tolerance
def tolerance(p):
    """What plain float32 is given (spaces/sgemm.py), which the vendor's float32 product needs too.

    What is never moved to float32 registers fails: its error is 25 times cuBLAS's.
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
    """cublasSgemm in plain float32. It is column-major, so it is asked for C' = B' A'."""
    from autotune.vendor import PLAIN, cublas_call

    return cublas_call("cublasSgemm_v2", PLAIN, PLAIN, n, m, k, alpha, b, n, a, k, beta, c, n)
