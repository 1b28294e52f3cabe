"""fp8_rows: rows of bfloat16 as 8-bit floats (e4m3) with a float32 scale for each row."""

import numpy as np

from autotune import Kernel, Launch, Out, Problem, Work

fp8_rows = Kernel(
    "fp8_rows.cu",
    backends=("cuda",),
    problems=[Problem(rows=8192, columns=4096), Problem(rows=512, columns=16384)],
    edge_problems=[
        Problem(rows=1, columns=1),
        Problem(rows=3, columns=4099),
        Problem(rows=5, columns=24584),
    ],
    default={"VECTOR": 1},
    BLOCK=(64, 128, 256, 512, 1024),
    VECTOR=(1, 2, 4, 8),  # elements of one load
    KEPT=(1, 2, 4, 8),  # vectors of a row that a thread keeps between its two passes
)


@fp8_rows.requires
def requires(c, p):
    return p.columns % c.VECTOR == 0


@fp8_rows.launch
def launch(c, p):
    return Launch(grid=(p.rows,), block=(c.BLOCK,))


@fp8_rows.arguments
def arguments(p, rng):
    return {
        "x": rng.standard_normal((p.rows, p.columns), dtype="bfloat16"),
        "q": Out((p.rows, p.columns), "float8_e4m3fn"),
        "scale": Out(p.rows),
        "columns": p.columns,
    }


@fp8_rows.reference
def reference(x):
    largest = np.abs(x).max(axis=1)
    scale = np.where(largest > 0, largest / 448, 1)
    return {"q": x / scale[:, None], "scale": scale}


@fp8_rows.call
def call(x, q=None, scale=None):
    """Return q and scale of a matrix x in bfloat16, so that x is about q * scale."""
    rows, columns = x.shape
    return Problem(rows=rows, columns=columns), {"x": x, "q": q, "scale": scale}


@fp8_rows.work
def work(p):
    elements = p.rows * p.columns
    return Work(flops=2 * elements, bytes_read=2 * elements, bytes_written=elements + 4 * p.rows)
