"""elementwise: sum, product or concatenation of two float32 vectors, by kernels/study/elementwise.cu."""

import numpy as np

from autotune import Kernel, Launch, Out, Problem, Work, ceil_div

OPS = ("add", "mul", "concat")


def vectors(n, op="add", m=0, **offsets):
    return Problem(n=n, op=op, m=m or n, **offsets)


def shifted(n, by, op="add"):
    return vectors(n, op, offset_a=by, offset_b=by, offset_out=by)


elementwise = Kernel(
    "elementwise.cu",
    problems={
        "cuda": [vectors(1 << 23, op) for op in OPS]
        + [vectors(1 << 26), vectors(1 << 25, "concat", 1001)],
        "opencl": [vectors(1 << 18), vectors(10**5 + 3, "concat", 77)],
    },
    edge_problems=[
        *(vectors(n, op) for n, op in zip((1, 7, 1000), OPS, strict=True)),
        *(shifted(4099, by) for by in (1, 2, 3)),
        vectors(4097, "concat", 1, offset_b=3),
        vectors(1, "concat", 4099),
        vectors(999, "mul", offset_a=1),
    ],
    layout={"offset_a": 0, "offset_b": 0, "offset_out": 0},
    static=("op",),
    variants={"naive": {"BLOCK": 256}, "vectors": {"BLOCK": 256, "VEC": 4}},
    default={"BLOCK": 256, "VEC": 4, "ITEMS": 1},
    deterministic=True,  # one thread computes an element
    BLOCK=(32, 48, 64, 96, 100, 128, 256, 512, 1024),  # threads per block, whole warps or not
    VEC=(1, 2, 4),  # floats per access
    ITEMS=(1, 2, 4, 8),  # accesses in flight per thread and array
)


@elementwise.launch
def launch(c, p):
    count = p.n + p.m if p.op == "concat" else p.n
    args = ("a", "b", "out", "n", "m")
    return Launch(grid=(ceil_div(count, c.BLOCK * c.VEC * c.ITEMS),), block=(c.BLOCK,), args=args)


@elementwise.arguments
def arguments(p, rng):
    """Return the arguments; only the reference uses op, which is compiled in."""
    joined = p.op == "concat"
    return {
        "a": rng.standard_normal(p.n),
        "b": rng.standard_normal(p.m if joined else p.n),
        "out": Out(p.n + p.m if joined else p.n),
        "n": np.int64(p.n),
        "m": np.int64(p.m),
        "op": OPS.index(p.op),
    }


@elementwise.reference
def reference(a, b, op):
    if OPS[op] == "concat":
        return np.concatenate([a, b])
    return a + b if OPS[op] == "add" else a * b


@elementwise.work
def work(p):
    joined = p.op == "concat"
    count = p.n + p.m if joined else p.n
    return Work(
        flops=0 if joined else p.n,
        bytes_read=4 * count if joined else 8 * p.n,
        bytes_written=4 * count,
    )


@elementwise.baseline("cupy")
def cupy_function(a, b, out, op, **sizes):
    import cupy

    name = OPS[int(op)]
    if name == "concat":
        return lambda: cupy.concatenate([a, b], out=out)
    function = cupy.add if name == "add" else cupy.multiply
    return lambda: function(a, b, out)
