"""Arguments and limits of the sources of sgemm."""

#: Arguments of the kernels, in order.
ARGUMENTS = ("a", "b", "c", "alpha", "beta", "m", "n", "k")
#: Further arguments of views: distances in floats.
DISTANCES = ("lda", "ldb", "ldc", "stride_a", "stride_b", "stride_c")

#: Largest number of tiles whose arrivals the sources can count if the grid splits k.
MAX_SHARES = 1024

#: Registers of a thread in addition to accumulators and fragments: addresses, counters, predicates.
#: Measured with NVRTC 13 on a few hundred configurations of `cuda` and `portable`.
OTHER_REGISTERS = 24

#: Bytes of static shared memory that a kernel may declare.
MAX_STATIC_BYTES = 49152


def blocks_of_batch(blocks, p):
    """Return the number of blocks for all matrices of a batch."""
    return blocks if p.batch == 1 else blocks * p.batch


def launch_arguments(p, buffers=()):
    """Return the names of the launch arguments for views; None, all arguments, for other problems."""
    return (*ARGUMENTS, *DISTANCES, *buffers) if p.view else None
