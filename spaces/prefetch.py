"""prefetch: out = f(in), where f is a chain of `intensity` multiply-adds, on `warps_per_sm` warps.

kernels/prefetch.cu describes eight ways to load elements ahead of their use. `warps_per_sm` limits the warps of 32
threads on a multiprocessor, as if registers or shared memory were short. 0: as many as fit.
"""

import numpy as np

from autotune import (
    Kernel,
    Launch,
    NothingToDo,
    Operand,
    Out,
    Problem,
    Work,
    ceil_div,
    maximum,
    minimum,
)


def chain(n, intensity, warps_per_sm):
    return Problem(n=n, intensity=intensity, warps_per_sm=warps_per_sm)


def lookahead(MODE, PDIST, VEC=4, BLOCK=128, **others):
    """Return a configuration with a prefetch mode, distance and vector width."""
    return {"MODE": MODE, "PDIST": PDIST, "VEC": VEC, "BLOCK": BLOCK, **others}


#: Bytes of static shared memory that a kernel may declare on any CUDA device.
STATIC_SHARED_BYTES = 49152

prefetch = Kernel(
    "prefetch.cu",
    problems={
        "cuda": [chain(1 << 26, i, w) for w in (4, 0) for i in (0, 8, 32, 64)]
        + [chain(10**7 + 3, 32, 4)],
        "opencl": [chain(1 << 20, 32, 0), chain(10**6 + 3, 8, 4)],
    },
    quick_problems={
        "cuda": [chain(1 << 26, 32, 4), chain(1 << 26, 8, 0)],
        "opencl": [chain(1 << 20, 32, 0), chain(10**6 + 3, 8, 4)],
    },
    edge_problems=[
        chain(n, 3, w) for n, w in ((1, 0), (2, 4), (7, 1), (1000, 4), (4097, 1), (65537, 2))
    ]
    + [chain(2051, 0, 1)]
    + [
        chain(1027, i, 0).replace(offset_x=k, offset_out=4 - k)
        for i in (0, 8, 32, 64)  # compiled in, so each intensity needs its own edge problems
        for k in (1, 2, 3)
    ],
    layout={"offset_x": 0, "offset_out": 0},
    static=("intensity",),
    seeds=[
        # few warps: 32 KB in flight per multiprocessor need sixteen 16-byte loads per thread
        lookahead("smem_roll_async", 16),
        lookahead("reg_roll", 16),
        lookahead("reg_batch", 16),
        lookahead("smem_batch", 16),
        # many warps: one load per thread is enough
        lookahead("none", 1, ROUNDS=1),
        lookahead("reg_batch", 4, BLOCK=512),
        lookahead("smem_roll_async", 4, BLOCK=256),
        # the published form: slots of a thread are adjacent, padded to an odd number
        lookahead("smem_roll", 6, VEC=1, LAYOUT="threads", PADDING=1),
        lookahead("l2", 4),
        # the simplest kernel
        lookahead("none", 1, VEC=1),
    ],
    default=lookahead("reg_batch", 4),
    variants={
        "naive": lookahead("none", 1, VEC=1),
        "plain": lookahead("none", 1),
        "batch": lookahead("reg_batch", 16),
        "shared": lookahead("smem_roll", 16),
        "asynchronous": lookahead("smem_roll_async", 16),
    },
    # how to load elements ahead of their use
    MODE=(
        "none",
        "unroll",
        "l2",
        "reg_batch",
        "reg_roll",
        "smem_batch",
        "smem_roll",
        "smem_roll_async",
    ),
    PDIST=(1, 2, 3, 4, 6, 8, 12, 16, 24, 32),  # prefetch distance in rounds
    # what is adjacent in shared memory: slots of a round, or of a thread
    LAYOUT=("slots", "threads"),
    PADDING=(0, 1),  # unused slots per thread, against bank conflicts
    VEC=(1, 2, 4),  # floats per load
    BLOCK=(32, 64, 128, 256, 512, 1024),  # threads per block
    ROUNDS=(0, 1, 2, 4, 8, 16),  # vectors per thread; 0: the grid is resident, and threads loop
)


@prefetch.applies("PDIST")
def looks_ahead(MODE):
    return MODE != "none"


@prefetch.applies("LAYOUT")
def has_slots(MODE):
    return MODE.startswith("smem")


@prefetch.applies("PADDING")
def has_padding(LAYOUT):
    return LAYOUT == "threads"


@prefetch.constraint
def async_copies_are_supported(MODE, device):
    """smem_roll_async: asynchronous copies need compute capability 8.0."""
    if MODE != "smem_roll_async":
        return True
    return device.compute_capability >= 80


@prefetch.constraint
def blocks_are_allowed(BLOCK, device):
    """A block has at most the threads that the device allows."""
    return device.max_threads_per_block >= BLOCK


@prefetch.constraint
def batches_have_several_rounds(MODE, PDIST):
    """unroll, batch: a distance of one round would equal MODE=none."""
    return PDIST > 1 or MODE not in ("unroll", "reg_batch", "smem_batch")


@prefetch.constraint
def items_fit_registers(MODE, PDIST, VEC, BLOCK, device):
    """unroll, reg: the items in flight and their addresses fit in registers, with 40 others."""
    if MODE not in ("unroll", "reg_batch", "reg_roll"):
        return True
    needed = PDIST * (VEC + (3 if MODE == "reg_roll" else 1)) + 40
    return min(255, device.registers_per_sm // BLOCK) >= needed


@prefetch.constraint
def items_fit_shared(MODE, PDIST, PADDING, VEC, BLOCK, device):
    """smem: the items in flight fit in static shared memory, at most 48 KB."""
    if not MODE.startswith("smem"):
        return True
    limit = min(STATIC_SHARED_BYTES, device.shared_bytes_per_block)
    return limit >= 4 * VEC * BLOCK * (PDIST + PADDING)


@prefetch.constraint
def rounds_cover_distance(MODE, PDIST, ROUNDS):
    """ROUNDS is 0 or covers the prefetch distance; with MODE=none it is at most 2."""
    return ROUNDS == 0 or (ROUNDS >= PDIST if MODE != "none" else ROUNDS <= 2)


@prefetch.requires
def requires(c, p):
    """Vectors are aligned; warps_per_sm needs a resident grid, so ROUNDS=0."""
    aligned = (p.offset_x % c.VEC == 0) & (p.offset_out % c.VEC == 0) if c.VEC > 1 else True
    return aligned if c.ROUNDS == 0 else aligned & (p.warps_per_sm == 0)


@prefetch.launch
def launch(c, p, device):
    full = device.max_threads_per_sm // 32
    warps = p.warps_per_sm + (p.warps_per_sm == 0) * full
    blocks = maximum(1, warps * 32 * device.sm_count // c.BLOCK)
    at_most = ceil_div(p.n, c.VEC * c.BLOCK * maximum(1, c.ROUNDS))
    return Launch(
        grid=(at_most if c.ROUNDS else minimum(blocks, at_most),),
        block=(c.BLOCK,),
        entry="prefetch_map",
        args=("x", "out", "scale", "shift", "n"),  # intensity is a macro
    )


@prefetch.deterministic
def deterministic(c, p):
    """One thread computes an element, so the result never varies."""
    return True


@prefetch.arguments
def arguments(p, rng):
    """Return the arguments, with the step v -> 1 v + 1: integers stay exact, and a missing step shows."""
    return {
        "x": rng.standard_normal(p.n),
        "out": Out(p.n),
        "scale": 1.0,
        "shift": 1.0,
        "n": np.int64(p.n),
        "intensity": p.intensity,
    }


@prefetch.reference
def reference(x, scale, shift, intensity):
    """Combine the chain into one multiplication and one addition."""
    slope, offset = 1.0, 0.0
    for _ in range(intensity):
        slope, offset = scale * slope, scale * offset + shift
    return slope * x + offset


@prefetch.tolerance
def tolerance(p):
    """Bound half a unit in the last place whenever the value passes a power of two: one unit in total."""
    return float(np.finfo(np.float32).eps) * (p.intensity + 8)


@prefetch.work
def work(p):
    return Work(flops=2 * p.n * p.intensity, bytes_read=4 * p.n, bytes_written=4 * p.n)


@prefetch.call
def call(x, scale, shift, intensity, warps_per_sm=0, out=None):
    """Apply the chain to each element of an array of any shape."""
    out = Operand.new(x.shape) if out is None else out
    if x.shape != out.shape:
        raise ValueError(f"x is {x} and out is {out}: pass arrays of equal shape")
    if not x.size:
        return NothingToDo((out,))
    arrays = {"x": x, "out": out}
    if x.ndim != 1:
        arrays = {name: array.reshape(x.size) for name, array in arrays.items()}
    scalars = {"scale": scale, "shift": shift, "n": np.int64(x.size)}
    problem = chain(x.size, intensity, warps_per_sm)
    return problem, {**arrays, **scalars, "intensity": intensity}
