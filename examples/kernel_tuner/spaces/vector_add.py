"""vector_add: the sum of two float32 vectors; parameters of Kernel Tuner's example of this name."""

from autotune import Kernel, Launch, Out, Problem, ceil_div

vector_add = Kernel(
    "vector_add.cu",
    problems=[Problem(n=10_000_000)],
    edge_problems=[Problem(n=1), Problem(n=1025)],
    block_size_x=range(128, 1025, 64),
)


@vector_add.launch
def launch(c, p):
    return Launch(grid=(ceil_div(p.n, c.block_size_x),), block=(c.block_size_x,))


@vector_add.arguments
def arguments(p, rng):
    a, b = rng.standard_normal((2, p.n))
    return {"c": Out(p.n), "a": a, "b": b, "n": p.n}


@vector_add.reference
def reference(a, b):
    return a + b
