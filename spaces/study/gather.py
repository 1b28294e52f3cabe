"""gather: loads or stores of scattered elements, by kernels/study/gather.cu; shows sectors and cache lines."""

import numpy as np

from autotune import Kernel, Launch, Out, Problem, Work, ceil_div

PATTERNS = ("stride", "every", "swapped", "broadcast", "random", "reverse")


def places(n, pattern, stride=1, side="load"):
    return Problem(n=n, pattern=pattern, stride=stride, side=side)


gather = Kernel(
    "gather.cu",
    device_macros={"WARP": "warp_size"},
    problems={
        "cuda": [places(1 << 20, "stride", s) for s in (1, 17)]
        + [places(1 << 24, "every", s) for s in (1, 2, 4, 8, 16, 32)]
        + [places(1 << 26, pattern) for pattern in ("swapped", "broadcast", "random", "reverse")]
        + [places(1 << 26, "stride", 17, side) for side in ("load", "store")],
        "opencl": [places(1 << 18, "stride", 17), places(1 << 18, "every", 8)],
    },
    edge_problems=[
        places(1, "reverse"),
        places(63, "reverse"),
        places(4099, "reverse", side="store"),
        places(1009, "stride", 17, "store"),
        places(1009, "every", 3),
        *(places(1001, pattern) for pattern in ("swapped", "broadcast", "random")),
    ],
    static=("pattern", "stride", "side"),
    variants={
        "naive": {},
        **{stage: {"STAGE": stage, "ITEMS": 4} for stage in ("direct", "shared", "shuffle")},
    },
    deterministic=True,  # each element is written once
    BLOCK=(256, 64, 128, 512, 1024),  # threads per block
    ITEMS=(1, 2, 4, 8),  # elements per thread
    STAGE=("direct", "shared", "shuffle"),  # where elements are reordered
)


@gather.constraint
def warp_size_is_supported(device):
    """The source supports warps, or sub-groups, of 16, 32 or 64 threads."""
    return device.warp_size in (16, 32, 64)


@gather.requires
def staging_needs_reordering(c, p):
    """shared: needs loads whose order is swapped or reversed within tiles; shuffle: reversed loads."""
    if c.STAGE == "direct":
        return True
    if c.STAGE == "shuffle":
        return (p.side == "load") & (p.pattern == "reverse")
    return (p.side == "load") & ((p.pattern == "swapped") + (p.pattern == "reverse") == 1)


@gather.launch
def launch(c, p):
    args = ("x", "index", "out", "n")
    return Launch(grid=(ceil_div(p.n, c.BLOCK * c.ITEMS),), block=(c.BLOCK,), args=args)


@gather.arguments
def arguments(p, rng):
    """Return the arguments; only the reference uses pattern, stride and stores, which are compiled in."""
    n = p.n
    return {
        "x": rng.standard_normal(n * p.stride if p.pattern == "every" else n),
        "index": rng.integers(0, n, n if p.pattern == "random" else 1),
        "out": Out(n),
        "n": np.int64(n),
        "pattern": PATTERNS.index(p.pattern),
        "stride": p.stride,
        "stores": int(p.side == "store"),
    }


@gather.reference
def reference(x, index, n, pattern, stride, stores):
    i = np.arange(n)
    source = {
        "stride": i * stride % n,
        "every": i * stride,
        "swapped": np.where((i ^ 31) < n, i ^ 31, i),
        "broadcast": 0 * i,
        "random": index,
        "reverse": n - 1 - i,
    }[PATTERNS[pattern]]
    if not stores:
        return x[source]
    out = np.empty(n)
    out[source] = x
    return out


@gather.tolerance
def tolerance(p):
    """Return 0: copies are exact."""
    return 0.0


@gather.work
def work(p):
    """Count elements, not whole sectors."""
    return Work(bytes_read=4 * p.n, bytes_written=4 * p.n)


@gather.baseline("cupy.take")
def take(x, index, out, pattern, **others):
    """Call take for random places, which also reads the index."""
    if PATTERNS[int(pattern)] != "random":
        return None
    return lambda: x.take(index, out=out)
