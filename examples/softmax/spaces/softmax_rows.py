"""softmax_rows: softmax of each row of a float32 matrix, in Triton."""

import numpy as np

from autotune import Kernel, Launch, Out, Problem, Work

softmax_rows = Kernel(
    "softmax_rows.py:softmax_rows",
    language="triton",
    problems=[
        Problem(rows=rows, columns=columns)
        for rows, columns in ((4096, 256), (4096, 1024), (8192, 1000), (4096, 4096), (8192, 8192))
    ],
    quick_problems=[Problem(rows=4096, columns=1024), Problem(rows=8192, columns=1000)],
    edge_problems=[
        Problem(rows=rows, columns=n) for rows, n in ((1, 1), (3, 17), (5, 256), (2, 1000))
    ],
    seeds=[{"BLOCK": block, "num_warps": max(1, block // 512)} for block in (256, 1024, 4096)],
    default={"BLOCK": 8192, "num_warps": 16},
    BLOCK=(256, 512, 1024, 2048, 4096, 8192),
    num_warps=(1, 2, 4, 8, 16),
    num_stages=(1,),
)


@softmax_rows.requires
def row_fits(c, p):
    """A program holds one whole row."""
    return p.columns <= c.BLOCK


@softmax_rows.launch
def launch(c, p):
    return Launch(grid=(p.rows,))


@softmax_rows.arguments
def arguments(p, rng):
    shape = (p.rows, p.columns)
    return {"x": rng.standard_normal(shape), "y": Out(shape), "columns": p.columns}


@softmax_rows.reference
def reference(x, columns):
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


@softmax_rows.work
def work(p):
    count = p.rows * p.columns
    return Work(flops=5 * count, bytes_read=4 * count, bytes_written=4 * count)


@softmax_rows.call
def call(x, y=None):
    """Return problem and arguments of a call; the matrix must be contiguous."""
    rows, columns = x.shape
    given = {"x": x} if y is None else {"x": x, "y": y}
    return Problem(rows=rows, columns=columns), given
