"""reduce: the sum of a float32 vector.

Two sources with the same arguments. `portable` (kernels/reduce.cu) runs on CUDA and OpenCL and has the
classic ladder; `cuda` (kernels/reduce_cuda.cu) is a single launch that needs nothing zeroed before.
"""

import ctypes

import numpy as np

from autotune import Fill, Kernel, Launch, Out, Problem, Work, ceil_div, maximum, minimum


def blocks_of(BLOCK, VEC, ITEMS, FINISH, **others):
    """A configuration that reduces its blocks by shuffles; with WAVES, on a fixed grid."""
    grid = {"GRID_MODE": "stride" if "WAVES" in others else "oneshot"}
    block = {"BLOCK": BLOCK, "VEC": VEC, "ITEMS": ITEMS, "FINISH": FINISH}
    return {**block, **grid, "BLOCK_RED": "shuffle", "WARP_TAIL": "shfl_down", **others}


def single(BLOCK, ITEMS, COLLECT="words", **others):
    """A configuration of the single launch; with WAVES, on a fixed grid."""
    grid = {"GRID_MODE": "stride" if "WAVES" in others else "oneshot"}
    block = {"BLOCK": BLOCK, "VEC": 4, "ITEMS": ITEMS, "COLLECT": COLLECT}
    return {"VARIANT": "cuda", **block, **grid, **others}


#: Blocks of the CUDA source with COLLECT=words: one 64-bit word each, in MOST_BLOCKS words of the module.
MOST_BLOCKS = 32768
#: Senders of COLLECT=pair: so many additions in one chain keep the digits that `tolerance` wants.
MOST_PAIRS = 1024


reduce = Kernel(
    sources={"portable": "reduce.cu", "cuda": "reduce_cuda.cu"},
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
    seeds=[
        # small vectors: one launch, loads spread over all multiprocessors, two trips to the L2 cache
        single(32, 8),
        single(64, 8, LOAD="stream"),
        single(128, 1),
        single(128, 4, LOAD="stream"),
        single(128, 16, LOAD="stream"),
        single(256, 4),
        single(256, 8, LOAD="bypass"),
        single(512, 4, LOAD="stream"),
        single(512, 8, LOAD="stream"),
        # larger than the L2 cache: no loop, or blocks enough to take turns
        single(512, 2, LOAD="stream"),
        single(768, 2, LOAD="stream"),
        single(512, 4),
        single(768, 8),
        single(1024, 8),
        single(256, 8, WAVES=32, MIN_BLOCKS=4),
        blocks_of(512, 4, 4, "ticket", LOAD="stream"),
        blocks_of(768, 4, 8, "ticket"),
        blocks_of(1024, 4, 8, "ticket"),
        blocks_of(256, 4, 8, "ticket", WAVES=32, MIN_BLOCKS=4),
        # what CUB does: 256 threads, 16-byte loads, a grid that covers the device a few times over
        blocks_of(256, 4, 4, "ticket", WAVES=8),
        # the bottom of the ladder
        blocks_of(256, 1, 1, "kernel", BLOCK_RED="interleaved", WARP_TAIL="barrier"),
        # a CPU, one block or two for each core
        blocks_of(256, 4, 16, "kernel", WAVES=2, WARP=16),
        blocks_of(128, 4, 16, "ticket", WAVES=1, WARP=16),
    ],
    default=blocks_of(256, 4, 4, "ticket", WAVES=8),
    variants={
        "naive": blocks_of(256, 1, 1, "kernel", BLOCK_RED="interleaved", WARP_TAIL="barrier"),
        "sequential": blocks_of(256, 1, 1, "kernel", BLOCK_RED="sequential", WARP_TAIL="barrier"),
    },
    VARIANT=("portable", "cuda"),
    BLOCK=(32, 64, 128, 256, 512, 768, 1024),  # threads per block; fewer than 128: cuda
    VEC=(1, 2, 4),  # floats per load
    ITEMS=(1, 2, 4, 8, 16),  # loads in flight per thread
    LOAD=("plain", "stream", "bypass"),  # hints to the caches; bypass: cuda, see kernels/vectors.h
    GRID_MODE=("oneshot", "stride"),  # a block for every tile, or a fixed grid that walks over x
    WAVES=(1, 2, 3, 4, 6, 8, 16, 32),  # stride: blocks per multiprocessor
    BLOCK_RED=("interleaved", "sequential", "unrolled", "shuffle"),  # how a block's sums become one
    WARP_TAIL=("barrier", "syncwarp", "shfl_down", "shfl_xor"),  # and the last warp's
    FINISH=("kernel", "ticket"),  # and the blocks'
    # cuda: the same. kernels/reduce_cuda.cu has "pair" too, which relies on more than PTX guarantees:
    # nothing searches it unless you add it here.
    COLLECT=("words",),
    SENDER=("block", "warp"),  # pair: who adds its sum to the others'
    MIN_BLOCKS=(1, 2, 4),  # blocks that must fit on one multiprocessor
    WARP=(32, 16, 64),  # threads that run in step: the device's, not a choice
)


@reduce.applies("WAVES")
def fixed_grid(GRID_MODE):
    return GRID_MODE == "stride"


@reduce.applies("BLOCK_RED", "FINISH", "WARP")
def portable(VARIANT):
    return VARIANT == "portable"


@reduce.applies("COLLECT")
def single_launch(VARIANT):
    return VARIANT == "cuda"


@reduce.applies("SENDER")
def in_pairs(VARIANT, COLLECT):
    return VARIANT == "cuda" and COLLECT == "pair"


@reduce.applies("WARP_TAIL")
def halving(VARIANT, BLOCK_RED):
    return VARIANT == "portable" and BLOCK_RED != "interleaved"


def compute_capability(device):
    """90 for sm_90; 0 where the device is no CUDA device."""
    return int("".join(filter(str.isdigit, device.arch)) or 0) if device.backend == "cuda" else 0


@reduce.constraint
def variant_runs_here(VARIANT, device):
    """cuda: needs its memory model, compute capability 7.0."""
    return VARIANT == "portable" or compute_capability(device) >= 70


@reduce.constraint
def pairs_are_added_at_once(COLLECT, device):
    """pair: both floats of an atomic in one step, as compute capability 9.0 does it: PTX promises it for none."""
    return COLLECT != "pair" or compute_capability(device) == 90


@reduce.constraint
def small_blocks_are_launched_once(VARIANT, BLOCK):
    """Blocks of fewer than 128 threads are for small vectors, where a single launch is the fastest."""
    return BLOCK >= 128 or VARIANT == "cuda"


@reduce.constraint
def one_warp_is_the_block(BLOCK, SENDER):
    """A block of one warp is the same with either SENDER."""
    return SENDER == "block" or BLOCK > 32


@reduce.constraint
def warp_width_is_given(WARP, device):
    """WARP is what the device calls a warp or a sub-group."""
    return device.warp_size == WARP


@reduce.constraint
def trees_halve(BLOCK, BLOCK_RED):
    """A tree in shared memory needs a power of two of threads."""
    return BLOCK_RED == "shuffle" or BLOCK & (BLOCK - 1) == 0


@reduce.constraint
def shuffles_end_in_shuffles(BLOCK_RED, WARP_TAIL):
    """A block reduced by shuffles ends in shuffles too."""
    return BLOCK_RED != "shuffle" or WARP_TAIL in ("shfl_down", "shfl_xor")


@reduce.constraint
def loads_fit_registers(BLOCK, VEC, ITEMS, MIN_BLOCKS, device):
    """The loads in flight of MIN_BLOCKS blocks fit in registers, beside some 20 others per thread."""
    threads = BLOCK * MIN_BLOCKS
    if device.backend != "cuda":
        return MIN_BLOCKS == 1  # OpenCL has no word for it
    fit = device.registers_per_sm // threads >= VEC * ITEMS + 20
    return fit and device.max_threads_per_sm >= threads


@reduce.constraint
def grid_is_resident(BLOCK, GRID_MODE, WAVES, device):
    """A fixed grid is at most four times what a multiprocessor can hold at once."""
    at_most = 4 * device.max_threads_per_sm // BLOCK
    return GRID_MODE == "oneshot" or at_most >= WAVES


@reduce.constraint
def hints_are_cuda(VARIANT, LOAD, device):
    """OpenCL has no cache hints; bypass is the CUDA source's, from compute capability 8.0 on."""
    if LOAD == "bypass":
        return VARIANT == "cuda" and compute_capability(device) >= 80
    return LOAD == "plain" or device.backend == "cuda"


def grid(c, p, device):
    """Blocks of the first launch; one where there is nothing to add up, which is 0."""
    tiles = maximum(1, ceil_div(p.n, c.BLOCK * c.VEC * c.ITEMS))
    return tiles if c.GRID_MODE == "oneshot" else minimum(tiles, c.WAVES * device.sm_count)


@reduce.requires
def requires(c, p):
    """Loads of VEC floats are aligned, and sums of blocks have room."""
    return have_room(c, p) if c.VEC == 1 else (p.offset_x % c.VEC == 0) & have_room(c, p)


def have_room(c, p):
    """cuda: not more blocks than there are words, nor more senders than pairs may have."""
    if c.VARIANT == "portable" or c.GRID_MODE == "stride":
        return True
    tile = c.BLOCK * c.VEC * c.ITEMS
    if c.COLLECT == "words":
        return p.n <= MOST_BLOCKS * tile
    return p.n <= MOST_PAIRS * (32 * c.VEC * c.ITEMS if c.SENDER == "warp" else tile)


@reduce.constraint
def fixed_grid_has_words(VARIANT, COLLECT, WAVES, device):
    """words: a fixed grid has not more blocks than there are words for their sums."""
    return VARIANT == "portable" or COLLECT == "pair" or WAVES * device.sm_count <= MOST_BLOCKS


@reduce.exclusive
def exclusive(c):
    """cuda: words, number and pair belong to the loaded module."""
    return c.VARIANT == "cuda"


@reduce.deterministic
def deterministic(c, p):
    """pair: adds in the order of arrival."""
    return c.VARIANT == "portable" or c.COLLECT == "words"


@reduce.scratch
def scratch(c, p, device):
    if c.VARIANT == "cuda":
        return {}
    return {"partial": Out(grid(c, p, device)), "ticket": Out(1, "uint32")}


@reduce.launch
def launch(c, p, device):
    blocks = grid(c, p, device)
    if c.VARIANT == "cuda":
        return Launch(grid=(blocks,), block=(c.BLOCK,), args=("x", "out", "n"))
    first = Launch(grid=(blocks,), block=(c.BLOCK,), args=("x", "out", "partial", "ticket", "n"))
    if c.FINISH == "ticket":
        return Fill("ticket", 0), first
    rest = ("partial", "out", blocks)
    return first, Launch(grid=(1,), block=(c.BLOCK,), entry="reduce_partials", args=rest)


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
