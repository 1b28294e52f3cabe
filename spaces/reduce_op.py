"""reduce_op: sum, product, maximum or minimum of a vector of one of five types, by kernels/reduce_op.cu.

Operator and type are problem fields. `reduce` is the fast kernel for float32 sums.
"""

import numpy as np
from _device import warp_size_is_supported

from autotune import Fill, Kernel, Launch, Out, Problem, Work, ceil_div, maximum, minimum

OPS = ("sum", "max", "min", "prod")
#: Type of the result for each type of elements. NumPy has no bfloat16: its bits are the upper half of a float32.
DTYPES = {
    "float32": "float32",
    "float64": "float64",
    "int32": "int32",
    "float16": "float32",
    "bfloat16": "float32",
}
#: Bytes of an element of each type.
SIZES = {"float32": 4, "float64": 8, "int32": 4, "float16": 2, "bfloat16": 2}


def vector(n, op="sum", dtype="float32"):
    return Problem(n=n, op=op, dtype=dtype)


def configuration(BLOCK_RED, TAIL, BLOCK=256, BYTES=4, ITEMS=1, FINISH="kernel", **others):
    """Return a configuration with a block for each tile; with WAVES, with a fixed grid."""
    grid = {"GRID_MODE": "stride" if "WAVES" in others else "oneshot"}
    shape = {"BLOCK": BLOCK, "BYTES": BYTES, "ITEMS": ITEMS, "FINISH": FINISH}
    return {"BLOCK_RED": BLOCK_RED, "TAIL": TAIL, **shape, **grid, **others}


#: Optimization steps, from the simplest to the fastest.
LADDER = {
    "interleaved": configuration("interleaved", "barrier"),
    "spread": configuration("spread", "barrier"),
    "sequential": configuration("sequential", "barrier"),
    "two_loads": configuration("sequential", "barrier", ITEMS=2),
    "syncwarp": configuration("sequential", "syncwarp", ITEMS=2),
    "shuffle": configuration("shuffle", "shuffle", ITEMS=2),
    "wide": configuration("shuffle", "shuffle", ITEMS=4, BYTES=16, FINISH="ticket", WAVES=8),
}

reduce_op = Kernel(
    "reduce_op.cu",
    device_macros={"WARP": "warp_size"},
    problems={
        "cuda": [vector(1 << 26, op) for op in OPS]
        + [vector(1 << 26, "sum", dtype) for dtype in DTYPES if dtype != "float32"]
        + [vector(1 << 20, "sum", "int32"), vector(1 << 20, "max", "float16")],
        "opencl": [vector(1 << 18, "sum", "int32"), vector(10**5 + 3, "max", "float16")],
    },
    edge_problems=[
        vector(0),
        vector(1, "max", "float16"),
        vector(2, "min", "bfloat16"),
        vector(1000, "prod"),
        vector(4097, "sum", "int32"),
        vector(4097, "max", "float64"),
    ],
    static=("op", "dtype"),
    seeds=[
        *list(LADDER.values())[1:],
        configuration("shuffle", "shuffle", ITEMS=4, BYTES=16, FINISH="ticket"),
        configuration("shuffle", "shuffle", BLOCK=1024, ITEMS=8, BYTES=16, FINISH="ticket"),
        configuration("shuffle", "shuffle", BLOCK=512, ITEMS=4, BYTES=16, FINISH="atomic"),
        # a CPU: one chunk for each core
        configuration("sequential", "barrier", ITEMS=8, BYTES=16, GRID_MODE="chunk", WAVES=1),
    ],
    variants=LADDER,
    default=LADDER["wide"],
    BLOCK=(128, 256, 512, 1024),  # threads per block
    BYTES=(4, 8, 16),  # bytes per load, or one element if that is larger
    ITEMS=(1, 2, 4, 8),  # loads in flight per thread
    GRID_MODE=("oneshot", "stride", "chunk"),  # a block for each tile, or a fixed grid
    WAVES=(1, 2, 4, 8, 16),  # stride, chunk: blocks per multiprocessor
    # how to combine the values of a block
    BLOCK_RED=("interleaved", "spread", "sequential", "shuffle"),
    # sequential: how to combine the values of the last warp
    TAIL=("barrier", "syncwarp", "shuffle"),
    # how to combine the blocks; atomic: see `exact_in_any_order`
    FINISH=("kernel", "ticket", "atomic"),
)

reduce_op.constraint(warp_size_is_supported)


@reduce_op.applies("WAVES")
def fixed_grid(GRID_MODE):
    return GRID_MODE != "oneshot"


@reduce_op.constraint
def tail_matches_block_reduction(BLOCK_RED, TAIL):
    """Only the sequential tree has a choice of TAIL."""
    if BLOCK_RED == "sequential":
        return True
    return ("shuffle" if BLOCK_RED == "shuffle" else "barrier") == TAIL


@reduce_op.constraint
def blocks_are_allowed(BLOCK, GRID_MODE, WAVES, device):
    """A block has at most the threads that the device allows, a fixed grid at most four times what fits."""
    fits = GRID_MODE == "oneshot" or 4 * device.max_threads_per_sm // BLOCK >= WAVES
    return fits and device.max_threads_per_block >= BLOCK


def grid(c, p, device):
    """Return the number of blocks of the first launch; 1 for an empty vector."""
    elements = max(1, c.BYTES // SIZES[p.dtype])
    tiles = maximum(1, ceil_div(p.n, c.BLOCK * c.ITEMS * elements))
    return tiles if c.GRID_MODE == "oneshot" else minimum(tiles, c.WAVES * device.sm_count)


@reduce_op.requires
def exact_in_any_order(c, p):
    """atomic: only int32 results do not depend on the order of arrival. Add "float32" to see them vary."""
    if c.FINISH != "atomic":
        return True
    return (p.dtype == "int32") & (p.op != "prod")


@reduce_op.deterministic
def deterministic(c, p):
    return c.FINISH != "atomic" or p.dtype == "int32"


@reduce_op.scratch
def scratch(c, p, device):
    return {"partial": Out(grid(c, p, device), DTYPES[p.dtype]), "ticket": Out(1, "uint32")}


@reduce_op.launch
def launch(c, p, device):
    blocks = grid(c, p, device)
    args = ("x", "out", "n", "partial", "ticket")
    first = Launch(grid=(blocks,), block=(c.BLOCK,), args=args)
    if c.FINISH == "ticket":
        return Fill("ticket", 0), first
    if c.FINISH == "atomic":
        limits = np.iinfo("int32")
        start = {"sum": 0, "max": limits.min, "min": limits.max}.get(p.op, 1)
        return Fill("out", start), first
    rest = ("partial", "out", blocks)
    return first, Launch(grid=(1,), block=(c.BLOCK,), entry="reduce_op_blocks", args=rest)


@reduce_op.arguments
def arguments(p, rng):
    """Return the arguments in the order of the kernel; only the reference uses op and is_bfloat16."""
    x, stored_type = random_vector(p, rng), p.dtype
    if p.dtype == "bfloat16":
        x, stored_type = x.astype(np.float32).view(np.uint32) >> 16, "uint16"
    codes = {"op": OPS.index(p.op), "is_bfloat16": int(p.dtype == "bfloat16")}
    out = Out(1, DTYPES[p.dtype])
    return {"x": x.astype(stored_type), "out": out, "n": np.int64(p.n), **codes}


def random_vector(p, rng):
    """Return numbers whose result shows a missing element; the extreme is the last one, or at a random place."""
    if p.dtype == "int32":
        # odd numbers, so that no product is 0
        x = 2 * rng.integers(-(2**30), 2**30, p.n) + 1
    elif p.op == "prod":
        # 1 or -1, and a few pairs v and 1/v. Partial products do not overflow, and float32 rounds them up or
        # down by chance. It would round products of 67 million factors near 1 to one side.
        pairs = min(p.n // 4, 50)
        x = np.where(rng.standard_normal(p.n) < 0, -1.0, 1.0)
        factors = np.clip(np.abs(rng.standard_normal(pairs)), 0.5, 2)
        index = np.arange(2 * pairs) * (p.n // max(1, 2 * pairs))
        x[index[::2]] *= factors
        x[index[1::2]] /= factors
    else:
        x = rng.standard_normal(p.n)
    if p.n and p.op in ("max", "min"):
        index = p.n - 1 if rng.exact else int(rng.integers(p.n))
        x[index] = 2**30 if p.dtype == "int32" else 64
        x[index] *= 1 if p.op == "max" else -1
    return x


@reduce_op.reference
def reference(x, op, is_bfloat16):
    if is_bfloat16:
        x = (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    limits = (-(2**31), 2**31 - 1) if x.dtype == np.int32 else (-np.inf, np.inf)
    initial = {"sum": 0, "max": limits[0], "min": limits[1], "prod": 1}[OPS[op]]
    function = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}[OPS[op]]
    return function.reduce(x, initial=initial, dtype=x.dtype)


@reduce_op.tolerance
def tolerance(p):
    """Bound pairwise sums as in `reduce`; few products are rounded, see `random_vector`."""
    eps = float(np.finfo(np.float64 if p.dtype == "float64" else np.float32).eps)
    if p.dtype == "int32":
        return 0.0
    return {"sum": 32 * max(1, p.n) ** 0.5, "prod": 256}.get(p.op, 0) * eps


@reduce_op.work
def work(p):
    return Work(flops=p.n, bytes_read=SIZES[p.dtype] * p.n, bytes_written=4)
