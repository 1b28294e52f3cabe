"""reduce: the sum of a float32 vector.

Two sources take the same arguments. `portable` (kernels/reduce.cu) runs on CUDA and OpenCL and has the classic
optimization steps. `cuda` (kernels/reduce_cuda.cu) is a single launch that needs no zeroed memory.
"""

import ctypes

import numpy as np
from _device import cache_hints_need_cuda, warp_size_is_supported

from autotune import Fill, Kernel, Launch, Out, Problem, Source, Work, ceil_div, maximum, minimum


def blocks_of(BLOCK, VEC, ITEMS, FINISH, **others):
    """Return a configuration that reduces blocks by shuffles; with WAVES, with a fixed grid."""
    grid = {"GRID_MODE": "stride" if "WAVES" in others else "oneshot"}
    block = {"BLOCK": BLOCK, "VEC": VEC, "ITEMS": ITEMS, "FINISH": FINISH}
    return {**block, **grid, "BLOCK_RED": "shuffle", "WARP_TAIL": "shfl_down", **others}


def single(BLOCK, ITEMS, **others):
    """Return a configuration of the single launch; with WAVES, with a fixed grid."""
    grid = {"GRID_MODE": "stride" if "WAVES" in others else "oneshot"}
    return {"BLOCK": BLOCK, "VEC": 4, "ITEMS": ITEMS, **grid, **others}


#: Largest number of blocks with COLLECT=words: each has a 64-bit word in the module.
MAX_BLOCKS = 32768
#: Largest number of senders with COLLECT=pair: a longer chain of additions exceeds `tolerance`.
MAX_SENDERS = 1024

portable = Source(
    "reduce.cu",
    seeds=[
        blocks_of(512, 4, 4, "ticket", LOAD="stream"),
        # the simplest kernel
        blocks_of(256, 1, 1, "kernel", BLOCK_RED="interleaved", WARP_TAIL="barrier"),
        # a CPU: one or two blocks for each core
        blocks_of(256, 4, 16, "kernel", WAVES=2),
        blocks_of(128, 4, 16, "ticket", WAVES=1),
    ],
    # as in CUB: 256 threads, 16-byte loads, eight blocks per multiprocessor
    default=blocks_of(256, 4, 4, "ticket", WAVES=8),
    variants={
        "naive": blocks_of(256, 1, 1, "kernel", BLOCK_RED="interleaved", WARP_TAIL="barrier"),
        "sequential": blocks_of(256, 1, 1, "kernel", BLOCK_RED="sequential", WARP_TAIL="barrier"),
    },
    device_macros={"WARP": "warp_size"},
    BLOCK=(128, 256, 512, 768, 1024),  # threads per block
    VEC=(1, 2, 4),  # floats per load
    ITEMS=(1, 2, 4, 8, 16),  # loads in flight per thread
    LOAD=("plain", "stream"),  # cache hints
    GRID_MODE=("oneshot", "stride"),  # a block for each tile, or a fixed grid that loops over x
    WAVES=(1, 2, 3, 4, 6, 8, 16, 32),  # stride: blocks per multiprocessor
    # how to add up the sums of a block
    BLOCK_RED=("interleaved", "sequential", "unrolled", "shuffle"),
    # how to add up the sums of its last warp
    WARP_TAIL=("barrier", "syncwarp", "shfl_down", "shfl_xor"),
    FINISH=("kernel", "ticket"),  # how to add up the sums of the blocks
    MIN_BLOCKS=(1, 2, 4),  # blocks that must fit on one multiprocessor
)

cuda = Source(
    "reduce_cuda.cu",
    seeds=[
        # small vectors: loads spread over all multiprocessors, two round trips to the L2 cache
        single(128, 4, LOAD="stream"),
        single(256, 8, LOAD="bypass"),
        single(512, 8, LOAD="stream"),
        # larger than the L2 cache: no loop, or several blocks per multiprocessor
        single(768, 2, LOAD="stream"),
        single(1024, 8),
        single(256, 8, WAVES=32, MIN_BLOCKS=4),
    ],
    default=single(256, 4),
    BLOCK=(32, 64, 128, 256, 512, 768, 1024),  # threads per block
    VEC=(1, 2, 4),  # floats per load
    ITEMS=(1, 2, 4, 8, 16),  # loads in flight per thread
    LOAD=("plain", "stream", "bypass"),  # cache hints, see kernels/vectors.h
    GRID_MODE=("oneshot", "stride"),  # a block for each tile, or a fixed grid that loops over x
    WAVES=(1, 2, 3, 4, 6, 8, 16, 32),  # stride: blocks per multiprocessor
    # How to add up the sums of the blocks. The source also has "pair", which relies on more than PTX guarantees.
    # Add it here to search it.
    COLLECT=("words",),
    SENDER=("block", "warp"),  # pair: who adds its sum to the total
    MIN_BLOCKS=(1, 2, 4),  # blocks that must fit on one multiprocessor
)

reduce = Kernel(
    name="reduce",
    sources={"portable": portable, "cuda": cuda},
    problems={
        "cuda": [Problem(n=1 << e) for e in range(16, 31, 2)] + [Problem(n=10**7 + 3)],
        "opencl": [Problem(n=1 << 20), Problem(n=10**6 + 3)],
    },
    quick_problems={
        "cuda": [Problem(n=1 << 20), Problem(n=1 << 26)],
        "opencl": [Problem(n=1 << 20), Problem(n=10**6 + 3)],
    },
    layout={"offset_x": 0, "offset_out": 0},
    edge_problems=[Problem(n=n) for n in (0, 1, 2, 3, 7, 1000, 4097, 65537)]
    + [
        Problem(n=n, offset_x=k, offset_out=4 - k)
        for n, k in ((1, 3), (1000, 2), (4097, 1), (65537, 3))
    ],
)


# ------------------------------------------------------------------ both sources


@portable.applies("WAVES")
@cuda.applies("WAVES")
def fixed_grid(GRID_MODE):
    return GRID_MODE == "stride"


@portable.constraint
@cuda.constraint
def loads_fit_registers(BLOCK, VEC, ITEMS, MIN_BLOCKS, device):
    """The loads in flight of MIN_BLOCKS blocks fit in registers, with about 20 others per thread."""
    threads = BLOCK * MIN_BLOCKS
    if device.backend != "cuda":
        return MIN_BLOCKS == 1  # OpenCL has no such option
    fits = device.registers_per_sm // threads >= VEC * ITEMS + 20
    return fits and device.max_threads_per_sm >= threads


@portable.constraint
@cuda.constraint
def grid_is_resident(BLOCK, GRID_MODE, WAVES, device):
    """A fixed grid has at most four times the blocks that fit on a multiprocessor at once."""
    limit = 4 * device.max_threads_per_sm // BLOCK
    return GRID_MODE == "oneshot" or limit >= WAVES


portable.constraint(cache_hints_need_cuda)
cuda.constraint(cache_hints_need_cuda)


def grid(c, p, device):
    """Return the number of blocks of the first launch; 1 for an empty vector, whose sum is 0."""
    tiles = maximum(1, ceil_div(p.n, c.BLOCK * c.VEC * c.ITEMS))
    return tiles if c.GRID_MODE == "oneshot" else minimum(tiles, c.WAVES * device.sm_count)


def loads_are_aligned(c, p):
    return c.VEC == 1 or p.offset_x % c.VEC == 0


# ------------------------------------------------------------------ portable

portable.constraint(warp_size_is_supported)


@portable.applies("WARP_TAIL")
def halves_a_tree(BLOCK_RED):
    return BLOCK_RED != "interleaved"


@portable.constraint
def trees_halve(BLOCK, BLOCK_RED):
    """A tree in shared memory needs a power of two as BLOCK."""
    return BLOCK_RED == "shuffle" or BLOCK & (BLOCK - 1) == 0


@portable.constraint
def tail_matches_block_reduction(BLOCK_RED, WARP_TAIL):
    """A block that reduces by shuffles also reduces its last warp by shuffles."""
    return BLOCK_RED != "shuffle" or WARP_TAIL in ("shfl_down", "shfl_xor")


@portable.requires
def requires(c, p):
    """Loads of VEC floats are aligned."""
    return loads_are_aligned(c, p)


@portable.deterministic
def deterministic(c, p):
    return True


@portable.scratch
def scratch(c, p, device):
    return {"partial": Out(grid(c, p, device)), "ticket": Out(1, "uint32")}


@portable.launch
def launch(c, p, device):
    blocks = grid(c, p, device)
    first = Launch(grid=(blocks,), block=(c.BLOCK,), args=("x", "out", "partial", "ticket", "n"))
    if c.FINISH == "ticket":
        return Fill("ticket", 0), first
    partial_args = ("partial", "out", blocks)
    return first, Launch(grid=(1,), block=(c.BLOCK,), entry="reduce_partials", args=partial_args)


# ------------------------------------------------------------------ cuda


@cuda.applies("SENDER")
def collects_pairs(COLLECT):
    return COLLECT == "pair"


@cuda.constraint
def device_is_supported(device):
    """CUDA's memory model needs compute capability 7.0."""
    return device.compute_capability >= 70


@cuda.constraint
def pairs_need_one_step_atomics(COLLECT, device):
    """pair: compute capability 9.0 adds both floats of an atomic in one step. PTX does not guarantee it."""
    return COLLECT != "pair" or device.compute_capability == 90


@cuda.constraint
def one_warp_needs_one_sender(BLOCK, SENDER):
    """A block of one warp needs one SENDER: both do the same."""
    return SENDER == "block" or BLOCK > 32


@cuda.constraint
def fixed_grid_fits_words(COLLECT, WAVES, device):
    """words: a fixed grid has at most one block for each word."""
    return COLLECT == "pair" or WAVES * device.sm_count <= MAX_BLOCKS


@cuda.requires
def requires_words(c, p):
    """Loads are aligned; with one block per tile, there are words for all blocks, or few enough senders."""
    aligned, tile = loads_are_aligned(c, p), c.BLOCK * c.VEC * c.ITEMS
    if c.GRID_MODE == "stride":
        return aligned
    if c.COLLECT == "words":
        return aligned & (p.n <= MAX_BLOCKS * tile)
    return aligned & (p.n <= MAX_SENDERS * (32 * c.VEC * c.ITEMS if c.SENDER == "warp" else tile))


@cuda.exclusive
def exclusive(c):
    """The words, the launch number and the pair are variables of the loaded module."""
    return True


@cuda.deterministic
def adds_in_one_order(c, p):
    """pair: senders add in order of arrival, so the last bits vary."""
    return c.COLLECT == "words"


@cuda.launch
def launch_once(c, p, device):
    return Launch(grid=(grid(c, p, device),), block=(c.BLOCK,), args=("x", "out", "n"))


# ------------------------------------------------------------------ arguments


@reduce.arguments
def arguments(p, rng):
    return {"x": rng.standard_normal(p.n), "out": Out(1), "n": np.int64(p.n)}


@reduce.reference
def reference(x):
    return x.sum()


@reduce.tolerance
def tolerance(p):
    """Bound the error of a pairwise sum of n normal numbers, about 0.25 eps sqrt(n log2(n)), with a factor of 20.

    One chain of additions over tens of thousands of blocks exceeds the bound.
    """
    return float(np.finfo(np.float32).eps) * 32 * p.n**0.5


@reduce.work
def work(p):
    return Work(flops=p.n, bytes_read=4 * p.n, bytes_written=4)


@reduce.call
def call(x, out=None):
    """Add up all elements of an array of any shape without gaps, with axes in any order."""
    if x.ndim > 1 and not x.is_dense:
        raise ValueError(f"x is {x}: its elements must be adjacent in memory; copy it")
    given = {"x": x if x.ndim == 1 else x.memory, "n": np.int64(x.size)}
    return Problem(n=x.size), given if out is None else {**given, "out": out}


@reduce.baseline("cub")
def cub(x, out, n):
    """Call cub::DeviceReduce::Sum as built into CuPy, with a workspace allocated in advance.

    The call uses the C++ symbol: the wrapper of CuPy allocates memory and copies the result in each call.
    """
    import cupy

    library = ctypes.CDLL(cupy.cuda.cub.__file__)
    pointer, size, whole = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    workspace_size = library._Z36cub_device_reduce_get_workspace_sizePvS_iP11CUstream_stii
    workspace_size.argtypes = [pointer, pointer, whole, pointer, whole, whole]
    workspace_size.restype = size
    device_reduce = library._Z17cub_device_reducePvRmS_S_iP11CUstream_stii
    by_reference = ctypes.POINTER(size)
    device_reduce.argtypes = [pointer, by_reference, pointer, pointer, whole, pointer, whole, whole]
    device_reduce.restype = None
    add, float32 = 0, 9  # CUPY_CUB_SUM and CUPY_TYPE_FLOAT32

    stream = cupy.cuda.get_current_stream().ptr
    nbytes = size(workspace_size(x.data.ptr, out.data.ptr, int(n), stream, add, float32))
    workspace = cupy.empty(max(1, nbytes.value), cupy.uint8)

    def launch_sum():
        stream = cupy.cuda.get_current_stream().ptr
        device_reduce(
            workspace.data.ptr, nbytes, x.data.ptr, out.data.ptr, int(n), stream, add, float32
        )

    return launch_sum
