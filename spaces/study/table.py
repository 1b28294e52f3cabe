"""table: out[i] = values[x[i]] in float32, by kernels/study/table.cu; shows where to keep a table."""

import numpy as np

from autotune import Constant, Kernel, Launch, Out, Problem, Work, ceil_div


def entries_of(n, entries, index="random", table_in="array"):
    return Problem(n=n, entries=entries, index=index, table_in=table_in)


table = Kernel(
    "table.cu",
    problems={
        "cuda": [entries_of(1 << 26, 16, index) for index in ("uniform", "warps", "random")]
        + [entries_of(1 << 26, entries) for entries in (4, 256, 4096, 65536)]
        + [entries_of(1 << 26, 16, index, "constant") for index in ("uniform", "random")],
        "opencl": [entries_of(1 << 17, 16), entries_of(10**5 + 3, 4096)],
    },
    edge_problems=[entries_of(1, 4), entries_of(1001, 16, "warps"), entries_of(4097, 256)],
    static=("entries", "table_in"),
    variants={
        where: {"TABLE": where, "ITEMS": 4}
        for where in ("global", "shared", "registers", "branches", "pointers")
    },
    deterministic=True,  # one thread computes an element
    BLOCK=(256, 64, 128, 512, 1024),  # threads per block
    ITEMS=(1, 2, 4, 8),  # elements per thread
    TABLE=("global", "shared", "registers", "branches", "pointers"),  # where the table is kept
)


@table.constraint
def function_pointers_need_cuda(TABLE, device):
    """OpenCL has no function pointers."""
    return TABLE != "pointers" or device.backend == "cuda"


@table.requires
def fits(c, p):
    """shared: the table has at most 32 KB; registers, branches, pointers: 16 entries; constant: TABLE=global."""
    if p.table_in == "constant" and c.TABLE != "global":
        return False
    return p.entries <= {"global": 1 << 30, "shared": 8192}.get(c.TABLE, 16)


@table.launch
def launch(c, p):
    return Launch(grid=(ceil_div(p.n, c.BLOCK * c.ITEMS),), block=(c.BLOCK,))


@table.arguments
def arguments(p, rng):
    drawn = rng.integers(0, p.entries, p.n)
    group = {"uniform": p.n, "warps": 32, "random": 1}[p.index]
    x, values = drawn[np.arange(p.n) // group * group], rng.standard_normal(p.entries)
    placed = Constant(values) if p.table_in == "constant" else values
    return {"x": x, "values": placed, "out": Out(p.n), "n": np.int64(p.n)}


@table.reference
def reference(x, values):
    return values[x]


@table.tolerance
def tolerance(p):
    """Return 0: copies are exact."""
    return 0.0


@table.work
def work(p):
    return Work(bytes_read=4 * p.n + 4 * p.entries, bytes_written=4 * p.n)


@table.baseline("cupy.take")
def take(x, out, n, values=None):
    """Call take for a table in global memory."""
    return None if values is None else lambda: values.take(x, out=out)
