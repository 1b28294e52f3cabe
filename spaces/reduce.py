"""reduce: the sum of a float32 vector.

Two sources with the same arguments. `portable` (kernels/reduce.cu) runs on CUDA and OpenCL and has the
classic ladder; `cuda` (kernels/reduce_cuda.cu) is a single launch that needs nothing zeroed before.
"""

import ctypes

import numpy as np
from _device import hints_are_cuda, warps_are_known

from autotune import Fill, Kernel, Launch, Out, Problem, Source, Work, ceil_div, maximum, minimum


def blocks_of(BLOCK, VEC, ITEMS, FINISH, **others):
    """Return a configuration that reduces its blocks by shuffles; with WAVES, on a fixed grid."""
    grid = {"GRID_MODE": "stride" if "WAVES" in others else "oneshot"}
    block = {"BLOCK": BLOCK, "VEC": VEC, "ITEMS": ITEMS, "FINISH": FINISH}
    return {**block, **grid, "BLOCK_RED": "shuffle", "WARP_TAIL": "shfl_down", **others}


def single(BLOCK, ITEMS, **others):
    """Return a configuration of the single launch; with WAVES, on a fixed grid."""
    grid = {"GRID_MODE": "stride" if "WAVES" in others else "oneshot"}
    return {"BLOCK": BLOCK, "VEC": 4, "ITEMS": ITEMS, **grid, **others}


#: Blocks of the CUDA source with COLLECT=words: one 64-bit word each, in MOST_BLOCKS words of the module.
MOST_BLOCKS = 32768
#: Senders of COLLECT=pair: that many additions in one chain keep the digits that `tolerance` wants.
MOST_PAIRS = 1024

portable = Source(
    "reduce.cu",
    seeds=[
        blocks_of(512, 4, 4, "ticket", LOAD="stream"),
        # the bottom of the ladder
        blocks_of(256, 1, 1, "kernel", BLOCK_RED="interleaved", WARP_TAIL="barrier"),
        # a CPU, one block or two for each core
        blocks_of(256, 4, 16, "kernel", WAVES=2),
        blocks_of(128, 4, 16, "ticket", WAVES=1),
    ],
    # that of CUB: 256 threads, 16-byte loads, a grid that covers the device a few times over
    default=blocks_of(256, 4, 4, "ticket", WAVES=8),
    variants={
        "naive": blocks_of(256, 1, 1, "kernel", BLOCK_RED="interleaved", WARP_TAIL="barrier"),
        "sequential": blocks_of(256, 1, 1, "kernel", BLOCK_RED="sequential", WARP_TAIL="barrier"),
    },
    device_macros={"WARP": "warp_size"},
    BLOCK=(128, 256, 512, 768, 1024),  # threads per block
    VEC=(1, 2, 4),  # floats per load
    ITEMS=(1, 2, 4, 8, 16),  # loads in flight per thread
    LOAD=("plain", "stream"),  # hints to the caches
    GRID_MODE=("oneshot", "stride"),  # a block for every tile, or a fixed grid that walks over x
    WAVES=(1, 2, 3, 4, 6, 8, 16, 32),  # stride: blocks per multiprocessor
    BLOCK_RED=("interleaved", "sequential", "unrolled", "shuffle"),  # how a block's sums become one
    WARP_TAIL=("barrier", "syncwarp", "shfl_down", "shfl_xor"),  # and the last warp's
    FINISH=("kernel", "ticket"),  # and the blocks'
    MIN_BLOCKS=(1, 2, 4),  # blocks that must fit on one multiprocessor
)

cuda = Source(
    "reduce_cuda.cu",
    seeds=[
        # small vectors: one launch, loads spread over all multiprocessors, two trips to the L2 cache
        single(128, 4, LOAD="stream"),
        single(256, 8, LOAD="bypass"),
        single(512, 8, LOAD="stream"),
        # larger than the L2 cache: no loop, or blocks enough to take turns
        single(768, 2, LOAD="stream"),
        single(1024, 8),
        single(256, 8, WAVES=32, MIN_BLOCKS=4),
    ],
    default=single(256, 4),
    BLOCK=(32, 64, 128, 256, 512, 768, 1024),  # threads per block
    VEC=(1, 2, 4),  # floats per load
    ITEMS=(1, 2, 4, 8, 16),  # loads in flight per thread
    LOAD=("plain", "stream", "bypass"),  # hints to the caches, see kernels/vectors.h
    GRID_MODE=("oneshot", "stride"),  # a block for every tile, or a fixed grid that walks over x
    WAVES=(1, 2, 3, 4, 6, 8, 16, 32),  # stride: blocks per multiprocessor
    # How the blocks' sums become one. The source has "pair" too, which relies on more than PTX guarantees:
    # nothing searches it unless you add it here.
    COLLECT=("words",),
    SENDER=("block", "warp"),  # pair: whether a block or a warp adds its sum to the others'
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


# ------------------------------------------------------------------ both


@portable.applies("WAVES")
@cuda.applies("WAVES")
def fixed_grid(GRID_MODE):
    return GRID_MODE == "stride"


@portable.constraint
@cuda.constraint
def loads_fit_registers(BLOCK, VEC, ITEMS, MIN_BLOCKS, device):
    """The loads in flight of MIN_BLOCKS blocks fit in registers, with some 20 others per thread."""
    threads = BLOCK * MIN_BLOCKS
    if device.backend != "cuda":
        return MIN_BLOCKS == 1  # OpenCL has no word for it
    fit = device.registers_per_sm // threads >= VEC * ITEMS + 20
    return fit and device.max_threads_per_sm >= threads


@portable.constraint
@cuda.constraint
def grid_is_resident(BLOCK, GRID_MODE, WAVES, device):
    """A fixed grid is at most four times the blocks that a multiprocessor can hold at once."""
    at_most = 4 * device.max_threads_per_sm // BLOCK
    return GRID_MODE == "oneshot" or at_most >= WAVES


portable.constraint(hints_are_cuda)
cuda.constraint(hints_are_cuda)


def grid(c, p, device):
    """Return the blocks of the first launch; one if there is nothing to add up, which is 0."""
    tiles = maximum(1, ceil_div(p.n, c.BLOCK * c.VEC * c.ITEMS))
    return tiles if c.GRID_MODE == "oneshot" else minimum(tiles, c.WAVES * device.sm_count)


def loads_are_aligned(c, p):
    return c.VEC == 1 or p.offset_x % c.VEC == 0


# ------------------------------------------------------------------ portable

portable.constraint(warps_are_known)


@portable.applies("WARP_TAIL")
def halving(BLOCK_RED):
    return BLOCK_RED != "interleaved"


@portable.constraint
def trees_halve(BLOCK, BLOCK_RED):
    """A tree in shared memory needs a power of two of threads."""
    return BLOCK_RED == "shuffle" or BLOCK & (BLOCK - 1) == 0


@portable.constraint
def shuffles_end_in_shuffles(BLOCK_RED, WARP_TAIL):
    """A block reduced by shuffles ends in shuffles too."""
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
    rest = ("partial", "out", blocks)
    return first, Launch(grid=(1,), block=(c.BLOCK,), entry="reduce_partials", args=rest)


# ------------------------------------------------------------------ cuda


@cuda.applies("SENDER")
def in_pairs(COLLECT):
    return COLLECT == "pair"


@cuda.constraint
def runs_here(device):
    """CUDA's memory model needs compute capability 7.0."""
    return device.compute_capability >= 70


@cuda.constraint
def pairs_are_added_at_once(COLLECT, device):
    """pair: both floats of an atomic in one step, as compute capability 9.0 does it: PTX promises it for none."""
    return COLLECT != "pair" or device.compute_capability == 90


@cuda.constraint
def one_warp_is_the_block(BLOCK, SENDER):
    """A block of one warp is the same with either SENDER."""
    return SENDER == "block" or BLOCK > 32


@cuda.constraint
def fixed_grid_has_words(COLLECT, WAVES, device):
    """words: a fixed grid has at most a block for each word."""
    return COLLECT == "pair" or WAVES * device.sm_count <= MOST_BLOCKS


@cuda.requires
def requires_words(c, p):
    """Loads of VEC floats are aligned, and the sums of blocks have a word, or the senders a pair."""
    aligned, tile = loads_are_aligned(c, p), c.BLOCK * c.VEC * c.ITEMS
    if c.GRID_MODE == "stride":
        return aligned
    if c.COLLECT == "words":
        return aligned & (p.n <= MOST_BLOCKS * tile)
    return aligned & (p.n <= MOST_PAIRS * (32 * c.VEC * c.ITEMS if c.SENDER == "warp" else tile))


@cuda.exclusive
def exclusive(c):
    """Words, number and pair belong to the loaded module."""
    return True


@cuda.deterministic
def adds_in_one_order(c, p):
    """pair: adds in the order of arrival."""
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
    """Rounding errors of adding n normal numbers by halves: some 0.25 eps sqrt(n log2(n)).

    More than twenty times that; one chain of additions over tens of thousands of blocks is beyond it.
    """
    return float(np.finfo(np.float32).eps) * 32 * p.n**0.5


@reduce.work
def work(p):
    return Work(flops=p.n, bytes_read=4 * p.n, bytes_written=4)


@reduce.call
def call(x, out=None):
    """Of all elements of an array of any shape, in whatever order of its axes they lie."""
    if x.ndim > 1 and not x.is_dense:
        raise ValueError(f"x is {x}: copy it, so that its elements lie side by side")
    given = {"x": x if x.ndim == 1 else x.memory, "n": np.int64(x.size)}
    return Problem(n=x.size), given if out is None else {**given, "out": out}


@reduce.baseline("cub")
def cub(x, out, n):
    """cub::DeviceReduce::Sum as built into CuPy, its workspace allocated before.

    Called by its C++ name, because CuPy's own wrapper allocates, and copies the result, on every call.
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

    def add_up():
        stream = cupy.cuda.get_current_stream().ptr
        device_reduce(
            workspace.data.ptr, nbytes, x.data.ptr, out.data.ptr, int(n), stream, add, float32
        )

    return add_up
