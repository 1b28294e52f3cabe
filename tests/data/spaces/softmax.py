"""softmax: of each row of a matrix, in the words of dialect_math.h."""

import numpy as np

from autotune import Kernel, Launch, Out, Problem

softmax = Kernel(
    "softmax.cu",
    problems=[Problem(rows=64, columns=1000)],
    edge_problems=[Problem(rows=1, columns=1), Problem(rows=3, columns=257)],
    BLOCK=(64, 256),
    WARP=(32, 16, 64),
)


@softmax.constraint
def warp_width_is_given(WARP, device):
    """WARP is what the device calls a warp or a sub-group."""
    return device.warp_size == WARP


@softmax.launch
def launch(c, p):
    return Launch(grid=(p.rows,), block=(c.BLOCK,))


@softmax.arguments
def arguments(p, rng):
    x = rng.standard_normal((p.rows, p.columns))
    return {"x": x, "out": Out((p.rows, p.columns)), "columns": p.columns}


@softmax.reference
def reference(x):
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)
