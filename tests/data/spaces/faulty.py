"""A kernel that goes wrong on request: see kernels/faulty.cu."""

import numpy as np

from autotune import Kernel, Launch, Out, Problem, Work, ceil_div

faulty = Kernel(
    "faulty.cu",
    problems=[Problem(rows=300, depth=100)],
    BLOCK=(32, 64, 128, 16384),  # threads per block; no device allows the last
    FAULT=(
        "none",
        "syntax_error",
        "too_much_shared",
        "k_step_dropped",
        "element_doubled",
        "nan",
        "unwritten",
        "only_over_nan",
        "late_wrong",
        "far_out_of_bounds",
        "input_overwritten",
        "hang",
        "out_of_bounds",
        "illegal_address",
        "misaligned",
    ),
)


@faulty.constraint
def hangs_once(BLOCK, FAULT):
    """A hang costs its whole time-out: one is enough."""
    return FAULT != "hang" or BLOCK == 32


@faulty.launch
def launch(c, p):
    return Launch(grid=(ceil_div(p.rows, c.BLOCK),), block=(c.BLOCK,))


@faulty.scratch
def scratch(c, p):
    """What one fault counts launches in."""
    return {"launches": Out(1, "int32")} if c.FAULT == "late_wrong" else {}


@faulty.arguments
def arguments(p, rng):
    a = rng.standard_normal((p.rows, p.depth), dtype=np.float32)
    x = rng.standard_normal(p.depth, dtype=np.float32)
    return {"a": a, "x": x, "out": Out(p.rows), "rows": p.rows, "depth": p.depth}


@faulty.reference
def reference(a, x):
    return a @ x


@faulty.tolerance
def tolerance(p):
    return 16 * 2.0**-24 * p.depth


@faulty.work
def work(p):
    return Work(flops=2 * p.rows * p.depth, bytes_read=4 * p.rows * p.depth)
