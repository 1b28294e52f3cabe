"""sgemm: C = alpha A B + beta C in float32, without tensor cores.

Four sources take the same arguments. `cuda` is the fast path. `portable` runs on CUDA and OpenCL and explains the
ideas. `slim` is for a C with a few columns or rows, `outer` for a short k. Each has its own file (_sgemm_cuda.py).
Tuning uses contiguous row-major matrices. With ``view=1`` all sources but `outer` take transposed matrices
(``trans_a``, ``trans_b``), rows at any distance, and batches.
"""

import numpy as np
from _sgemm import DISTANCES
from _sgemm_cuda import cuda
from _sgemm_outer import outer
from _sgemm_portable import portable
from _sgemm_slim import slim

from autotune import InOut, Kernel, Problem, Work, matrix_product
from autotune.kernel.products import MatrixProduct


def square(n):
    return Problem(m=n, n=n, k=n)


def product(m, n, k):
    return Problem(m=m, n=n, k=k)


def view(m, n, k, **layout):
    """Return a problem whose matrices have another layout; the default has no gaps."""
    layout_fields = {"trans_a": 0, "trans_b": 0, "batch": 1, **layout}
    rows = {
        "a": (m, k) if layout_fields["trans_a"] == 0 else (k, m),
        "b": (k, n) if layout_fields["trans_b"] == 0 else (n, k),
        "c": (m, n),
    }
    row_strides = {
        f"ld{name}": layout_fields.get(f"ld{name}", columns) for name, (_, columns) in rows.items()
    }
    strides = {
        f"stride_{name}": count * row_strides[f"ld{name}"] for name, (count, _) in rows.items()
    }
    return Problem({"m": m, "n": n, "k": k, "view": 1, **row_strides, **strides, **layout_fields})


#: Fields of the layout, with their values for the tuned problems. Distances are in elements; 0: not used.
LAYOUT = {
    "view": 0,
    **dict.fromkeys(("trans_a", "trans_b"), 0),
    **dict.fromkeys(("lda", "ldb", "ldc"), 0),
    "batch": 1,
    **dict.fromkeys(("stride_a", "stride_b", "stride_c"), 0),
    **dict.fromkeys(("offset_a", "offset_b", "offset_c"), 0),
}

sgemm = Kernel(
    name="sgemm",
    sources={"cuda": cuda, "portable": portable, "slim": slim, "outer": outer},
    problems={
        "cuda": [
            *[square(n) for n in (256, 512, 1024, 2048, 4096, 8192, 1000)],
            product(1023, 1025, 1027),
            product(4096, 4096, 64),
            product(128, 4096, 4096),
            product(4096, 128, 4096),
            product(16384, 512, 1024),
            product(127, 333, 2047),
            # between powers of two: incomplete waves of tiles, and unaligned rows
            *[square(n) for n in (128, 768, 1536, 3000, 2049)],
            product(333, 777, 555),
            product(4000, 199, 2000),
            # odd, and far from powers of two: they help to predict similar sizes
            product(1111, 901, 703),
            product(701, 1303, 251),
            product(1555, 1777, 1333),
            *[square(n) for n in (600, 1200, 1400, 2400)],
            product(800, 1100, 350),
            # short k, slim C, or both
            product(1024, 1024, 64),
            product(8192, 8192, 128),
            product(10000, 64, 64),
            product(64, 10000, 64),
            product(16000, 192, 48),
            product(2000, 100, 3000),
            product(300, 2100, 2000),
            product(13, 128, 2000),
            product(32, 4096, 4096),
            product(4096, 32, 4096),
            product(8192, 16, 4096),
            product(1, 4096, 4096),
            product(4096, 1, 4096),
            product(4, 4096, 4096),
            product(4096, 4, 4096),
            # long k, small C
            product(128, 128, 16384),
            product(256, 256, 8192),
            product(512, 512, 32768),
            product(1024, 1024, 8192),
            product(384, 1600, 6400),
            product(64, 64, 65536),
            product(400, 400, 6000),
            product(320, 320, 12000),
            product(391, 1593, 6500),
            product(380, 1790, 8000),
        ],
        "opencl": [square(256), product(255, 257, 259)],
    },
    quick_problems={
        "cuda": [square(1024), square(4096)],
        "opencl": [square(256), product(255, 257, 259)],
    },
    edge_problems=[
        square(1),
        square(7),
        product(1, 300, 5),
        product(129, 4, 33),
        product(100, 132, 68),
        product(127, 131, 129),
        product(33, 65, 8197),
        product(33, 68, 0),
        # a few columns or rows
        product(333, 1, 4100),
        product(1, 333, 4100),
        product(260, 4, 1036),
        product(4, 260, 1036),
        product(2, 333, 501),
        product(3, 77, 0),
        view(259, 3, 1036, trans_b=1, lda=1040, ldb=1040, batch=2),
        view(260, 2, 517, trans_a=1, ldb=3, ldc=3, offset_c=1),
        view(6, 260, 1036, ldb=264, batch=2, stride_a=0),
        view(7, 131, 1036, trans_a=1, trans_b=1, lda=9, ldb=1040, ldc=133),
        # gaps with whole quads; odd rows; one B for a batch; unaligned arrays
        view(100, 132, 68, lda=72, ldb=136, ldc=140, batch=3),
        view(127, 131, 129, lda=131, ldb=131, ldc=133, offset_a=1, offset_b=2, offset_c=3),
        view(132, 68, 100, trans_a=1, ldb=72, batch=2, stride_b=0),
        view(33, 65, 8197, trans_a=1, lda=35, batch=3, offset_a=2, offset_b=3, offset_c=1),
        view(65, 132, 70, trans_b=1, lda=71, ldb=73, batch=3, stride_a=0, ldc=136),
        view(68, 100, 129, trans_b=1, offset_a=3, offset_b=1, offset_c=2),
        view(131, 60, 133, trans_a=1, trans_b=1, ldb=135, batch=2),
        view(4, 3, 2053, trans_a=1, trans_b=1, lda=8, ldc=7, batch=5, offset_b=1),
    ],
    layout=LAYOUT,
    static=("view", "trans_a", "trans_b"),
    # Slices, blocks and clusters add up in a fixed order, independent of their order of arrival.
    deterministic=True,
)


@sgemm.arguments
def arguments(p, rng):
    """Return the arguments in the order of the kernel.

    If beta is 0, C holds NaN, which must not reach the result. Arrays of views cover all memory from the first
    element to the last: gaps must keep their values.
    """
    c_shape = shape_in_memory(p, "c", p.m, p.n)
    # Broadcast one NaN: `load` needs only shapes, not a gigabyte of values.
    nan = np.broadcast_to(np.float32(np.nan), c_shape)
    adds = adds_to_c(p, rng)
    c = rng.standard_normal(c_shape) if adds else nan
    return {
        "a": rng.standard_normal(
            shape_in_memory(p, "a", *((p.k, p.m) if p.trans_a else (p.m, p.k)))
        ),
        "b": rng.standard_normal(
            shape_in_memory(p, "b", *((p.n, p.k) if p.trans_b else (p.k, p.n)))
        ),
        "c": InOut(c),
        "alpha": 2.0 if adds else 1.0,
        "beta": 0.5 if adds else 0.0,
        "m": p.m,
        "n": p.n,
        "k": p.k,
        **({name: np.int64(p[name]) for name in DISTANCES} if p.view else {}),
        **({name: p[name] for name in ("trans_a", "trans_b", "batch")} if p.view else {}),
    }


def adds_to_c(p, rng):
    """Return whether alpha is 2 and beta 0.5: for views, and for exact data of small problems.

    Random data are timed with beta = 0, as in most calls.
    """
    return p.view or (rng.exact and p.m * p.n * p.k < 1 << 22)


def shape_in_memory(p, name, rows, columns):
    """Return the shape of a matrix or batch in memory; with gaps, the number of elements from first to last."""
    if not p.view:
        return rows, columns
    row_stride, stride = p[f"ld{name}"], p[f"stride_{name}"]
    if row_stride == columns and (p.batch == 1 or stride == 0):
        return rows, columns
    if row_stride == columns and stride == rows * columns:
        return p.batch, rows, columns
    return ((p.batch - 1) * stride + (rows - 1) * row_stride + columns,)


@sgemm.reference
def reference(
    a,
    b,
    c,
    alpha,
    beta,
    m,
    n,
    k,
    lda=0,
    ldb=0,
    ldc=0,
    stride_a=0,
    stride_b=0,
    stride_c=0,
    trans_a=0,
    trans_b=0,
    batch=0,
):
    if not batch:
        product = alpha * (a @ b)
        return product + beta * c if beta else product
    expected = c.copy()
    a_batch = matrix_batch(a, batch, m, k, lda, stride_a, trans_a)
    b_batch = matrix_batch(b, batch, k, n, ldb, stride_b, trans_b)
    c_batch = matrix_batch(expected, batch, m, n, ldc, stride_c)
    c_batch[...] = alpha * (a_batch @ b_batch) + (beta * c_batch if beta else 0)
    return expected


def matrix_batch(memory, batch, rows, columns, row_stride, stride, transposed=False):
    """Return a batch of matrices as a view of flat memory."""
    steps = (stride, 1, row_stride) if transposed else (stride, row_stride, 1)
    return np.lib.stride_tricks.as_strided(
        memory, (batch, rows, columns), [step * memory.itemsize for step in steps]
    )


@sgemm.tolerance
def tolerance(p):
    """Bound the rounding errors of k additions of normal products, whose partial sums grow like sqrt(k).

    Their standard deviation is about 0.2 eps k. The largest of a few million is six times that, doubled by
    alpha = 2 of views. TF32 exceeds the bound even for small k: its error is 4e-4 sqrt(k).
    """
    alpha = 2 if p.view else 1
    return alpha * float(np.finfo(np.float32).eps) * (4 * p.k + 64)


@sgemm.work
def work(p):
    return Work(
        flops=2 * p.batch * p.m * p.n * p.k,
        bytes_read=4 * p.batch * (p.m * p.k + p.k * p.n),
        bytes_written=4 * p.batch * p.m * p.n,
    )


# ------------------------------------------------------------------ calls


@sgemm.call
def call(a, b, out=None, alpha=1.0, beta=0.0):
    product = matrix_product(a, b, out, alpha, beta)
    if not isinstance(product, MatrixProduct):
        return product
    problem = Problem(m=product.m, n=product.n, k=product.k)
    reads_vectors = product.n % 4 == 0 and product.b.offset + product.c.offset > 0
    if not product.is_plain or reads_vectors:
        problem = problem.replace(view=1, **product.layout)
    return product.answer(problem)


@sgemm.baseline("cublas")
def cublas(a, b, c, alpha, beta, m, n, k, **view):
    """Call cublasSgemm in plain float32. It is column-major, so it computes C' = B' A'."""
    from autotune.vendor import PLAIN, cublas_call

    if view or k == 0:
        return None  # the comparison needs a tuned layout
    return cublas_call("cublasSgemm_v2", PLAIN, PLAIN, n, m, k, alpha, b, n, a, k, beta, c, n)
