"""Arguments and tiles of the sources of sgemm_tf32x3."""

from autotune import ceil_div

#: Arguments of the kernels, in order.
ARGUMENTS = ("a", "b", "c", "alpha", "beta", "m", "n", "k")
#: Further arguments of views: distances in floats.
STRIDES = ("lda", "ldb", "ldc", "stride_a", "stride_b", "stride_c")


def tiles(c, p):
    """Return the number of tiles of C in all products of a batch."""
    return ceil_div(p.m, c.BM) * ceil_div(p.n, c.BN) * p.batch
