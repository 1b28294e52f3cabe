"""copy: what the memory can do, copying, reading or writing a float32 vector, by kernels/copy.cu.

The measured limit of every kernel that moves more than it computes.
"""

from dataclasses import replace

import numpy as np
from _device import both_hints_are_cuda

from autotune import (
    Fill,
    InOut,
    Kernel,
    Launch,
    NothingToDo,
    Operand,
    Out,
    Problem,
    Work,
    ceil_div,
    minimum,
)

MODES = ("copy", "read", "write")
#: What `out` holds before it begins, which must stay.
BEFORE = -7.0


def vector(n, mode="copy", offset_in=0, offset_out=0):
    """A problem; offsets are the floats by which either side misses an aligned address."""
    return Problem(n=n, mode=mode, offset_in=offset_in, offset_out=offset_out)


def blocks_of(BLOCK, VEC, ITEMS, **others):
    """A configuration with a block for every tile; with WAVES, on a fixed grid."""
    grid = {"GRID_MODE": "stride" if "WAVES" in others else "oneshot"}
    return {"BLOCK": BLOCK, "VEC": VEC, "ITEMS": ITEMS, **grid, **others}


copy = Kernel(
    "copy.cu",
    problems={
        "cuda": [
            *(vector(1 << e) for e in (24, 26, 28, 30)),
            *(vector(1 << 26, "copy", k, 0) for k in (1, 2, 3)),
            *(vector(1 << 26, "copy", 0, k) for k in (1, 2, 3)),
            *(vector(1 << 26, "copy", *both) for both in ((1, 1), (2, 3))),
            # what other kernels are held against: the same bytes, read or written alone
            *(vector(1 << e, "read") for e in (24, 26, 28, 30)),
            vector(1 << 26, "write"),
        ],
        "opencl": [vector(1 << 20), vector(10**6 + 3, "copy", 1, 2), vector(1 << 20, "read")],
    },
    quick_problems={
        "cuda": [vector(1 << 26), vector(1 << 26, "copy", 1, 0)],
        "opencl": [vector(1 << 20), vector(10**6 + 3, "copy", 1, 2)],
    },
    edge_problems=[
        *(vector(n, mode) for n in (1, 7, 4097) for mode in MODES),
        *(vector(n, "copy", 3, 1) for n in (1, 2, 5, 8, 1000)),
        vector(12345, "copy", 0, 3),
        vector(4098, "copy", 2, 2),
        vector(1023, "read", 3, 0),
        vector(65537, "write", 0, 1),
    ],
    static=("mode",),
    seeds=[
        # one load for each thread, in the largest blocks: all of 16 KB is read, then all of it written
        blocks_of(1024, 4, 1),
        blocks_of(512, 4, 2),
        # a tile for every block: 32 KB and more in flight on each multiprocessor
        blocks_of(512, 4, 4, PEEL="shift"),
        blocks_of(512, 4, 4, PEEL="head", STORE="stream"),
        blocks_of(1024, 4, 2, LOAD="stream", STORE="stream"),
        blocks_of(256, 4, 8, LOAD="bypass", PEEL="shift"),
        # a grid that covers the device a few times over, as most libraries launch
        blocks_of(256, 4, 4, WAVES=8),
        # narrow accesses, many of them
        blocks_of(512, 1, 8),
        # one block or two for each core of a CPU
        blocks_of(128, 4, 16, WAVES=2, GRID_MODE="chunk"),
    ],
    default=blocks_of(256, 4, 4, PEEL="shift"),
    variants={
        "naive": blocks_of(256, 1, 1),
        "several": blocks_of(256, 1, 4),
        "vectors": blocks_of(256, 4, 1),
    },
    BLOCK=(128, 256, 512, 1024),  # threads per block
    VEC=(1, 2, 4),  # floats per access
    ITEMS=(1, 2, 4, 8, 16),  # accesses in flight per thread
    GRID_MODE=("oneshot", "stride", "chunk"),  # a block for every tile, or a fixed grid that walks
    WAVES=(1, 2, 4, 8, 16),  # stride, chunk: blocks per multiprocessor
    PEEL=("none", "head", "shift"),  # what becomes of vectors where a side is not aligned
    LOAD=("plain", "stream", "bypass"),  # hints to the caches, see kernels/vectors.h
    STORE=("plain", "stream"),
    MIN_BLOCKS=(1, 2, 4),  # blocks that must fit on one multiprocessor
)

copy.constraint(both_hints_are_cuda)


@copy.applies("WAVES")
def fixed_grid(GRID_MODE):
    return GRID_MODE != "oneshot"


@copy.applies("PEEL")
def in_vectors(VEC):
    return VEC > 1


@copy.constraint
def chunks_are_for_cpus(GRID_MODE, device):
    """chunk: only a CPU's prefetchers like blocks that walk far apart from each other."""
    return GRID_MODE != "chunk" or device.backend != "cuda"


@copy.constraint
def enough_in_flight(BLOCK, VEC, ITEMS, GRID_MODE, WAVES, device):
    """The blocks that fit on a multiprocessor have 16 KB of loads under way, half of what an H100 wants."""
    threads = device.max_threads_per_sm
    if GRID_MODE != "oneshot":
        threads = min(threads, BLOCK * WAVES)
    return device.backend != "cuda" or 4 * VEC * ITEMS * threads >= 16384


@copy.constraint
def loads_fit_registers(BLOCK, VEC, ITEMS, PEEL, MIN_BLOCKS, device):
    """The loads in flight of MIN_BLOCKS blocks fit in registers, beside some 24 others per thread."""
    if device.backend != "cuda":
        return MIN_BLOCKS == 1  # OpenCL has no word for it
    threads = BLOCK * MIN_BLOCKS
    needed = (2 if PEEL == "shift" else 1) * VEC * ITEMS + 24
    available = min(255, device.registers_per_sm // threads)
    return threads <= device.max_threads_per_sm and needed <= available


@copy.constraint
def grid_is_resident(BLOCK, GRID_MODE, WAVES, device):
    """A fixed grid is at most four times what a multiprocessor can hold at once."""
    at_most = 4 * device.max_threads_per_sm // BLOCK
    return GRID_MODE == "oneshot" or at_most >= WAVES


@copy.launch
def launch(c, p, device):
    tiles = ceil_div(p.n, c.BLOCK * c.VEC * c.ITEMS)
    blocks = tiles if c.GRID_MODE == "oneshot" else minimum(tiles, c.WAVES * device.sm_count)
    args = ("x", "out", "n", "offset_in", "offset_out")
    step = Launch(grid=(blocks,), block=(c.BLOCK,), args=args)
    return (Fill("out", 0), step) if p.mode == "read" else step


@copy.deterministic
def deterministic(c, p):
    """read: blocks add their sums in the order of arrival."""
    return p.mode != "read"


@copy.arguments
def arguments(p, rng):
    """In the kernel's order; `mode`, which is compiled in, is there for the reference."""
    length = 1 if p.mode == "read" else p.n + p.offset_out
    keeps_some = p.mode != "read" and p.offset_out
    return {
        "x": rng.standard_normal(1 if p.mode == "write" else p.n + p.offset_in),
        "out": InOut(np.broadcast_to(np.float32(BEFORE), length)) if keeps_some else Out(length),
        "n": np.int64(p.n),
        "offset_in": 0 if p.mode == "write" else p.offset_in,
        "offset_out": 0 if p.mode == "read" else p.offset_out,
        "mode": MODES.index(p.mode),
    }


@copy.reference
def reference(x, n, offset_in, offset_out, mode):
    """What lies before `out` begins must stay as it was."""
    if MODES[mode] == "read":
        return x[offset_in:].sum()
    moved = x[offset_in:] if MODES[mode] == "copy" else np.arange(n) & 0xFFFFFF
    return np.concatenate([np.full(offset_out, BEFORE), moved])


@copy.tolerance
def tolerance(p):
    """Nothing is rounded, but for the sum: one atomic for every 128 elements at worst, one by one."""
    eps = float(np.finfo(np.float32).eps)
    return eps * (16 * p.n**0.5 + p.n / 4) if p.mode == "read" else 0.0


@copy.work
def work(p):
    reads, writes = p.mode != "write", p.mode != "read"
    return Work(
        flops=0 if writes else p.n,
        bytes_read=4 * p.n if reads else 0,
        bytes_written=4 * p.n if writes else 4,
    )


@copy.call
def call(x, out=None):
    """Of an array of any shape; either side may begin anywhere."""
    out = Operand.new(x.shape) if out is None else out
    if x.shape != out.shape:
        raise ValueError(f"x is {x} and out is {out}: give them one shape")
    if not x.size:
        return NothingToDo((out,))
    (x, offset_in), (out, offset_out) = from_boundary(x), from_boundary(out)
    problem = vector(x.size - offset_in, "copy", offset_in, offset_out)
    scalars = {"n": np.int64(problem.n), "offset_in": offset_in, "offset_out": offset_out}
    return problem, {"x": x, "out": out, **scalars}


def from_boundary(array):
    """An array from the last boundary before it on, and how far past that it begins.

    What lies before it is neither read nor written. An axis with gaps is copied instead.
    """
    if array.ndim == 1 and not array.is_contiguous:
        return array, 0
    flat, past = array.reshape(array.size), array.offset
    return replace(flat, shape=(flat.size + past,), offset=0, begin=flat.begin - past), past


@copy.baseline("cudaMemcpyAsync")
def memcpy(x, out, n, offset_in, offset_out, mode):
    """Device to device. CUDA has no call that only reads, nor one that writes anything but a constant."""
    from cupy.cuda import get_current_stream, runtime

    if MODES[int(mode)] != "copy":
        return None
    source, target = x.data.ptr + 4 * int(offset_in), out.data.ptr + 4 * int(offset_out)
    nbytes = 4 * int(n)

    def move():
        stream = get_current_stream().ptr
        runtime.memcpyAsync(target, source, nbytes, runtime.memcpyDeviceToDevice, stream)

    return move
