"""What the sources of sgemm_tf32x3 share."""

from autotune import ceil_div

#: Arguments of the kernels, in order, and those that follow in views.
ARGUMENTS = ("a", "b", "c", "alpha", "beta", "m", "n", "k")
STRIDES = ("lda", "ldb", "ldc", "stride_a", "stride_b", "stride_c")


def tiles(c, p):
    """Return the blocks of C, of all products."""
    return ceil_div(p.m, c.BM) * ceil_div(p.n, c.BN) * p.batch
