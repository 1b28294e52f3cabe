"""rowsum: the sum of each row of a float32 matrix; the source is an ordinary CUDA C++ template."""

import numpy as np

from autotune import Kernel, Launch, Out, Problem, Work, ceil_div

rowsum = Kernel(
    "rowsum.cu",
    backends=("cuda",),
    problems=[Problem(rows=4096, columns=4096), Problem(rows=100003, columns=77)],
    edge_problems=[Problem(rows=1, columns=1), Problem(rows=33, columns=31)],
    WARPS=(1, 2, 4, 8, 16, 32),  # warps per block; each warp sums one row
    UNROLL=(1, 2, 4, 8),  # loads in flight per thread
)


@rowsum.launch
def launch(c, p):
    return Launch(
        entry=f"app::rowsum<{c.WARPS}, {c.UNROLL}>",
        grid=(ceil_div(p.rows, c.WARPS),),
        block=(32 * c.WARPS,),
    )


@rowsum.arguments
def arguments(p, rng):
    matrix = rng.standard_normal((p.rows, p.columns))
    return {"matrix": matrix, "sums": Out(p.rows), "rows": p.rows, "columns": p.columns}


@rowsum.reference
def reference(matrix):
    return matrix.sum(axis=1)


@rowsum.tolerance
def tolerance(p):
    return float(np.finfo(np.float32).eps) * (4 * p.columns**0.5 + 4)


@rowsum.call
def call(matrix, out=None):
    """Return problem and arguments of a call; arrays have shape and strides, but no data."""
    return Problem(rows=matrix.shape[0], columns=matrix.shape[1]), {"matrix": matrix, "sums": out}


@rowsum.work
def work(p):
    return Work(
        flops=p.rows * p.columns, bytes_read=4 * p.rows * p.columns, bytes_written=4 * p.rows
    )
