"""What the sources of sgemm share."""

#: Arguments of the kernels, in order, and those that follow in views.
ARGUMENTS = ("a", "b", "c", "alpha", "beta", "m", "n", "k")
DISTANCES = ("lda", "ldb", "ldc", "stride_a", "stride_b", "stride_c")

#: Shares of tiles for which the sources can count arrivals where k is split over the grid.
MOST_SHARES = 1024

#: Registers of a thread in addition to accumulators and fragments: addresses, counters, predicates.
#: From what NVRTC 13 reports over a few hundred configurations of `cuda` and `portable`.
OTHER_REGISTERS = 24

#: Bytes of static shared memory that a kernel may declare.
MOST_STATIC_BYTES = 49152


def of_all_matrices(blocks, p):
    """Return the blocks of a batch from those of one C."""
    return blocks if p.batch == 1 else blocks * p.batch


def passed(p, buffers=()):
    """Return the arguments of a launch on views; None for all arguments."""
    return (*ARGUMENTS, *DISTANCES, *buffers) if p.view else None
