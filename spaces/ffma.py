"""ffma: the rate of float32 arithmetic, measured by rotating n points `steps` times, by kernels/ffma.cu.

Points move on ellipses. The rate is the limit of kernels that are bound by float32 arithmetic.
"""

import numpy as np

from autotune import Kernel, Launch, NothingToDo, Operand, Out, Problem, Work, ceil_div, minimum


def points(n, steps):
    return Problem(n=n, steps=steps)


def chains_of(BLOCK, CHAINS, DEPTH, **others):
    """Return a configuration with a block for each tile; with WAVES, with a fixed grid."""
    return {"BLOCK": BLOCK, "CHAINS": CHAINS, "DEPTH": DEPTH, **others}


ffma = Kernel(
    "ffma.cu",
    problems={
        # the large problems take 4 ms on an H100; the small one ends before all warps have started
        "cuda": [points(1 << 24, 4096), points(1 << 22, 16384), points(1 << 18, 1024)],
        "opencl": [points(1 << 16, 256), points(10**4 + 3, 100)],
    },
    quick_problems={
        "cuda": [points(1 << 24, 4096)],
        "opencl": [points(1 << 16, 256)],
    },
    # all accesses are single floats, so arrays may begin at any float
    layout={"offset_x": 0, "offset_y": 0, "offset_out": 0},
    edge_problems=[points(n, steps) for n, steps in ((1, 0), (7, 1), (1000, 31), (4097, 65))]
    + [
        points(1001, 3).replace(offset_x=x, offset_y=y, offset_out=out)
        for x, y, out in ((1, 2, 3), (2, 3, 1), (3, 1, 2))
    ],
    seeds=[
        chains_of(256, 4, 32),
        chains_of(256, 8, 16),
        chains_of(256, 8, 32, SHEAR="register"),
        chains_of(128, 4, 64),
        chains_of(512, 2, 64),
        chains_of(256, 4, 64, SHEAR="register"),
        chains_of(256, 8, 32, WAVES=8),
        chains_of(1024, 4, 32, WAVES=2),
        # a CPU: blocks as wide as a SIMD register
        chains_of(64, 8, 16),
    ],
    default=chains_of(256, 4, 32),
    BLOCK=(64, 128, 256, 512, 1024),  # threads per block
    CHAINS=(1, 2, 4, 8, 16),  # points that a thread rotates at once
    DEPTH=(8, 16, 32, 64),  # unrolled rotations
    SHEAR=("uniform", "register"),  # where the multiplier of a multiply-add is kept
    # blocks per multiprocessor of a fixed grid; 0: a block for each tile
    WAVES=(0, 1, 2, 4, 8, 16),
)


@ffma.constraint
def blocks_are_allowed(BLOCK, device):
    """A block has at most the threads that the device allows."""
    return device.max_threads_per_block >= BLOCK


@ffma.constraint
def points_fit_registers(BLOCK, CHAINS, device):
    """The points of a thread fit in registers, with about 16 others."""
    return device.backend != "cuda" or min(255, device.registers_per_sm // BLOCK) >= 2 * CHAINS + 16


@ffma.constraint
def fits_the_instruction_cache(CHAINS, DEPTH):
    """The unrolled rotations have at most 1024 multiply-adds, 16 KB of instructions."""
    return 2 * CHAINS * DEPTH <= 1024


@ffma.constraint
def grid_is_resident(BLOCK, WAVES, device):
    """A fixed grid has at most the blocks that fit on a multiprocessor at once, or one block."""
    return max(1, device.max_threads_per_sm // BLOCK) >= WAVES


@ffma.launch
def launch(c, p, device):
    tiles = ceil_div(p.n, c.BLOCK * c.CHAINS)
    blocks = minimum(tiles, c.WAVES * device.sm_count) if c.WAVES else tiles
    return Launch(grid=(blocks,), block=(c.BLOCK,))


@ffma.deterministic
def deterministic(c, p):
    """One thread rotates a point, so the result never varies."""
    return True


@ffma.arguments
def arguments(p, rng):
    """Return the arguments; exact data have a shear of 1, so that integers stay integers."""
    return {
        "x": rng.standard_normal(p.n),
        "y": rng.standard_normal(p.n),
        "out": Out(p.n),
        "n": np.int64(p.n),
        "steps": p.steps,
        "shear": 1.0 if rng.exact else 0.1,
    }


@ffma.reference
def reference(x, y, steps, shear):
    """Apply all rotations at once, as the power of a matrix."""
    rotation = np.array([[1.0, shear], [-shear, 1.0 - shear * shear]])
    (a, b), (c, d) = np.linalg.matrix_power(rotation, steps)
    return (a + c) * x + (b + d) * y


@ffma.tolerance
def tolerance(p):
    """Bound two roundings per rotation of numbers below 8, all in one direction at worst."""
    return 8 * float(np.finfo(np.float32).eps) * (2 * p.steps + 2)


@ffma.work
def work(p):
    """Count two multiply-adds per rotation."""
    return Work(flops=4 * p.n * p.steps, bytes_read=8 * p.n, bytes_written=4 * p.n)


@ffma.call
def call(x, y, steps, shear, out=None):
    """Rotate the points (x, y), given as arrays of equal shape."""
    out = Operand.new(x.shape) if out is None else out
    if not x.shape == y.shape == out.shape:
        raise ValueError(f"x is {x}, y is {y} and out is {out}: pass arrays of equal shape")
    if not x.size:
        return NothingToDo((out,))
    arrays = {"x": x, "y": y, "out": out}
    if x.ndim != 1:
        arrays = {name: array.reshape(x.size) for name, array in arrays.items()}
    scalars = {"n": np.int64(x.size), "steps": steps, "shear": shear}
    return points(x.size, steps), {**arrays, **scalars}
