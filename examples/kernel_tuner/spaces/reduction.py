"""reduction: the sum of a float32 vector; parameters of Kernel Tuner's example of this name."""

from autotune import Kernel, Launch, Out, Problem

reduction = Kernel(
    "reduction.cu",
    problems={"cuda": [Problem(n=80_000_000)], "opencl": [Problem(n=8_000_000)]},
    edge_problems=[Problem(n=1), Problem(n=1027)],
    block_size_x=(32, 64, 128, 256, 512, 1024),
    use_shuffle=(0, 1),
    vector=(1, 2, 4),
    num_blocks=(32, 64, 128, 256, 512, 1024),
)


@reduction.constraint
def warps_of_32(use_shuffle, device):
    """Shuffles need warps of 32 threads; OpenCL's sub-groups may have other widths."""
    return device.backend == "cuda" or not use_shuffle


@reduction.scratch
def scratch(c, p):
    return {"partial": Out(c.num_blocks)}


@reduction.launch
def launch(c, p):
    """Return both launches: they are tuned together, because the second needs the sums of the first."""
    shared = {"entry": "sum_floats", "block": (c.block_size_x,)}
    first = Launch(grid=(c.num_blocks,), args=("partial", "x", "n"), **shared)
    return first, Launch(grid=(1,), args=("sum", "partial", c.num_blocks), **shared)


@reduction.arguments
def arguments(p, rng):
    return {"sum": Out(1), "x": rng.standard_normal(p.n), "n": p.n}


@reduction.reference
def reference(x):
    return x.sum(keepdims=True)


@reduction.tolerance
def tolerance(p):
    """Bound the error: at least 1024 threads add n / 1024 numbers each, then their sums are added."""
    return 1.2e-7 * (p.n / 32 + 8 * p.n**0.5)
