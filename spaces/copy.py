"""copy: memory bandwidth, measured by copying, reading or writing a float32 vector, by kernels/copy.cu.

Its rate is the limit of kernels that are bound by memory.
"""

from dataclasses import replace

import numpy as np
from _device import both_cache_hints_need_cuda, cache_hints_need_cuda

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
#: Value of `out` in front of its first written element. The kernel must not change it.
GUARD_VALUE = -7.0


def vector(n, mode="copy", offset_in=0, offset_out=0):
    """Return a problem; the offsets are the floats from an aligned address to the first element."""
    return Problem(n=n, mode=mode, offset_in=offset_in, offset_out=offset_out)


def blocks_of(BLOCK, VEC, ITEMS, **others):
    """Return a configuration with a block for each tile; with WAVES, with a fixed grid."""
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
            # limits for other kernels: the same bytes, only read or only written
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
        # one load per thread in the largest blocks: a block reads 16 KB, then writes them
        blocks_of(1024, 4, 1),
        blocks_of(512, 4, 2),
        # a block for each tile: 32 KB or more in flight on each multiprocessor
        blocks_of(512, 4, 4, PEEL="shift"),
        blocks_of(512, 4, 4, PEEL="head", STORE="stream"),
        blocks_of(1024, 4, 2, LOAD="stream", STORE="stream"),
        blocks_of(256, 4, 8, LOAD="bypass", PEEL="shift"),
        # a grid that covers the device a few times over, as most libraries launch
        blocks_of(256, 4, 4, WAVES=8),
        # many narrow accesses
        blocks_of(512, 1, 8),
        # one or two blocks for each core of a CPU
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
    GRID_MODE=("oneshot", "stride", "chunk"),  # a block for each tile, or a fixed grid that loops
    WAVES=(1, 2, 4, 8, 16),  # stride, chunk: blocks per multiprocessor
    PEEL=("none", "head", "shift"),  # how to keep vector accesses if a side is unaligned
    LOAD=("plain", "stream", "bypass"),  # cache hints of loads, see kernels/vectors.h
    STORE=("plain", "stream"),  # cache hints of stores
    MIN_BLOCKS=(1, 2, 4),  # blocks that must fit on one multiprocessor
)

copy.constraint(cache_hints_need_cuda)
copy.constraint(both_cache_hints_need_cuda)


@copy.applies("WAVES")
def fixed_grid(GRID_MODE):
    return GRID_MODE != "oneshot"


@copy.applies("PEEL")
def in_vectors(VEC):
    return VEC > 1


@copy.constraint
def chunks_need_a_cpu(GRID_MODE, device):
    """chunk: only CPU prefetchers gain from blocks that loop over ranges far apart."""
    return GRID_MODE != "chunk" or device.backend != "cuda"


@copy.constraint
def enough_in_flight(BLOCK, VEC, ITEMS, GRID_MODE, WAVES, device):
    """The blocks of a multiprocessor have 16 KB of loads in flight, half of the need of an H100."""
    threads = device.max_threads_per_sm
    if GRID_MODE != "oneshot":
        threads = min(threads, BLOCK * WAVES)
    return device.backend != "cuda" or 4 * VEC * ITEMS * threads >= 16384


@copy.constraint
def loads_fit_registers(BLOCK, VEC, ITEMS, PEEL, MIN_BLOCKS, device):
    """The loads in flight of MIN_BLOCKS blocks fit in registers, with about 24 others per thread."""
    if device.backend != "cuda":
        return MIN_BLOCKS == 1  # OpenCL has no such option
    threads = BLOCK * MIN_BLOCKS
    needed = (2 if PEEL == "shift" else 1) * VEC * ITEMS + 24
    available = min(255, device.registers_per_sm // threads)
    return threads <= device.max_threads_per_sm and needed <= available


@copy.constraint
def grid_is_resident(BLOCK, GRID_MODE, WAVES, device):
    """A fixed grid has at most four times the blocks that fit on a multiprocessor at once."""
    limit = 4 * device.max_threads_per_sm // BLOCK
    return GRID_MODE == "oneshot" or limit >= WAVES


@copy.launch
def launch(c, p, device):
    tiles = ceil_div(p.n, c.BLOCK * c.VEC * c.ITEMS)
    blocks = tiles if c.GRID_MODE == "oneshot" else minimum(tiles, c.WAVES * device.sm_count)
    args = ("x", "out", "n", "offset_in", "offset_out")
    main = Launch(grid=(blocks,), block=(c.BLOCK,), args=args)
    return (Fill("out", 0), main) if p.mode == "read" else main


@copy.deterministic
def deterministic(c, p):
    """read: blocks add their sums in order of arrival, so the last bits vary."""
    return p.mode != "read"


@copy.arguments
def arguments(p, rng):
    """Return the arguments in the order of the kernel; only the reference uses `mode`, which is compiled in."""
    length = 1 if p.mode == "read" else p.n + p.offset_out
    has_guard = p.mode != "read" and p.offset_out
    return {
        "x": rng.standard_normal(1 if p.mode == "write" else p.n + p.offset_in),
        "out": InOut(np.broadcast_to(np.float32(GUARD_VALUE), length))
        if has_guard
        else Out(length),
        "n": np.int64(p.n),
        "offset_in": 0 if p.mode == "write" else p.offset_in,
        "offset_out": 0 if p.mode == "read" else p.offset_out,
        "mode": MODES.index(p.mode),
    }


@copy.reference
def reference(x, n, offset_in, offset_out, mode):
    """Return the result; the memory in front of `out` keeps its value."""
    if MODES[mode] == "read":
        return x[offset_in:].sum()
    moved = x[offset_in:] if MODES[mode] == "copy" else np.arange(n) & 0xFFFFFF
    return np.concatenate([np.full(offset_out, GUARD_VALUE), moved])


@copy.tolerance
def tolerance(p):
    """Only the sum is rounded; in the worst case 128 elements per atomic, added one after another."""
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
    """Copy an array of any shape; x and out need no alignment."""
    out = Operand.new(x.shape) if out is None else out
    if x.shape != out.shape:
        raise ValueError(f"x is {x} and out is {out}: pass arrays of equal shape")
    if not x.size:
        return NothingToDo((out,))
    (x, offset_in), (out, offset_out) = from_aligned_address(x), from_aligned_address(out)
    problem = vector(x.size - offset_in, "copy", offset_in, offset_out)
    scalars = {"n": np.int64(problem.n), "offset_in": offset_in, "offset_out": offset_out}
    return problem, {"x": x, "out": out, **scalars}


def from_aligned_address(array):
    """Return an array extended back to an aligned address, and the offset of its first element in floats.

    The kernel neither reads nor writes the added elements. An axis with gaps is copied instead.
    """
    if array.ndim == 1 and not array.is_contiguous:
        return array, 0
    flat, offset = array.reshape(array.size), array.offset
    return replace(flat, shape=(flat.size + offset,), offset=0, begin=flat.begin - offset), offset


@copy.baseline("cudaMemcpyAsync")
def memcpy(x, out, n, offset_in, offset_out, mode):
    """Copy device to device. CUDA has no call that only reads, and none that writes other than constants."""
    from cupy.cuda import get_current_stream, runtime

    if MODES[int(mode)] != "copy":
        return None
    source, target = x.data.ptr + 4 * int(offset_in), out.data.ptr + 4 * int(offset_out)
    nbytes = 4 * int(n)

    def move():
        stream = get_current_stream().ptr
        runtime.memcpyAsync(target, source, nbytes, runtime.memcpyDeviceToDevice, stream)

    return move
