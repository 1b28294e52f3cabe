"""ticket: the sum of a vector, whose last block is told by a ticket of the caller's or of the module's."""

import numpy as np

from autotune import Fill, Kernel, Launch, Out, Problem, ceil_div

ticket = Kernel(
    "ticket.cu",
    problems=[Problem(n=1 << 19)],
    PIECE=(1 << 8, 1 << 10, 1 << 14),  # elements of a block
    TICKET=("caller", "module", "declared"),  # declared: the module's, and the space says so
)


@ticket.exclusive
def exclusive(c):
    return c.TICKET == "declared"


@ticket.arguments
def arguments(p, rng):
    return {"x": rng.standard_normal(p.n), "out": Out(1), "n": p.n}


@ticket.scratch
def scratch(c, p):
    return {"partial": Out(ceil_div(p.n, c.PIECE)), "own": Out(1, "uint32")}


@ticket.reference
def reference(x):
    return x.sum()


@ticket.tolerance
def tolerance(p):
    return float(np.finfo(np.float32).eps) * 64 * p.n**0.5


@ticket.launch
def launch(c, p):
    return Fill("own", 0), Launch(grid=(ceil_div(p.n, c.PIECE),), block=(1,))


@ticket.call
def call(x):
    return Problem(n=len(x)), {"x": x, "n": len(x)}
