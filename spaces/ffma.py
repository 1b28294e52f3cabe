"""ffma: what float32 arithmetic can do: n points turned `steps` times on ellipses, by kernels/ffma.cu.

The measured limit of every kernel that computes more than it moves.
"""

import numpy as np

from autotune import Kernel, Launch, NothingToDo, Operand, Out, Problem, Work, ceil_div, minimum


def points(n, steps):
    return Problem(n=n, steps=steps)


def turned(BLOCK, CHAINS, DEPTH, **others):
    """A configuration with a block for every tile; with WAVES, on a fixed grid."""
    return {"BLOCK": BLOCK, "CHAINS": CHAINS, "DEPTH": DEPTH, **others}


ffma = Kernel(
    "ffma.cu",
    problems={
        # 4 ms on an H100 for the large ones; the small one is over before all warps have begun
        "cuda": [points(1 << 24, 4096), points(1 << 22, 16384), points(1 << 18, 1024)],
        "opencl": [points(1 << 16, 256), points(10**4 + 3, 100)],
    },
    quick_problems={
        "cuda": [points(1 << 24, 4096)],
        "opencl": [points(1 << 16, 256)],
    },
    # nothing is read or written but single floats, so arrays may begin anywhere
    layout={"offset_x": 0, "offset_y": 0, "offset_out": 0},
    edge_problems=[points(n, steps) for n, steps in ((1, 0), (7, 1), (1000, 31), (4097, 65))]
    + [
        points(1001, 3).replace(offset_x=x, offset_y=y, offset_out=out)
        for x, y, out in ((1, 2, 3), (2, 3, 1), (3, 1, 2))
    ],
    seeds=[
        turned(256, 4, 32),
        turned(256, 8, 16),
        turned(256, 8, 32, SHEAR="register"),
        turned(128, 4, 64),
        turned(512, 2, 64),
        turned(256, 4, 64, SHEAR="register"),
        turned(256, 8, 32, WAVES=8),
        turned(1024, 4, 32, WAVES=2),
        # blocks as wide as a SIMD register of a CPU
        turned(64, 8, 16),
    ],
    default=turned(256, 4, 32),
    BLOCK=(64, 128, 256, 512, 1024),  # threads per block
    CHAINS=(1, 2, 4, 8, 16),  # points that a thread turns at once
    DEPTH=(8, 16, 32, 64),  # turns written out
    SHEAR=("uniform", "register"),  # where a multiply-add finds its multiplier
    WAVES=(0, 1, 2, 4, 8, 16),  # blocks per multiprocessor that walk; 0: a block for every tile
)


@ffma.constraint
def blocks_are_allowed(BLOCK, device):
    """A block has as many threads as the device allows."""
    return device.max_threads_per_block >= BLOCK


@ffma.constraint
def points_fit_registers(BLOCK, CHAINS, device):
    """The points of a thread fit in registers, beside some 16 others."""
    return device.backend != "cuda" or min(255, device.registers_per_sm // BLOCK) >= 2 * CHAINS + 16


@ffma.constraint
def fits_the_instruction_cache(CHAINS, DEPTH):
    """The turns written out are at most 1024 multiply-adds, 16 KB of instructions."""
    return 2 * CHAINS * DEPTH <= 1024


@ffma.constraint
def grid_is_resident(BLOCK, WAVES, device):
    """A fixed grid is at most what a multiprocessor can hold at once, or one block."""
    return max(1, device.max_threads_per_sm // BLOCK) >= WAVES


@ffma.launch
def launch(c, p, device):
    tiles = ceil_div(p.n, c.BLOCK * c.CHAINS)
    blocks = minimum(tiles, c.WAVES * device.sm_count) if c.WAVES else tiles
    return Launch(grid=(blocks,), block=(c.BLOCK,))


@ffma.deterministic
def deterministic(c, p):
    """Every point is turned by one thread."""
    return True


@ffma.arguments
def arguments(p, rng):
    """Exact data with a shear of 1, where integers stay integers."""
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
    """All turns at once: the power of a matrix."""
    turn = np.array([[1.0, shear], [-shear, 1.0 - shear * shear]])
    (a, b), (c, d) = np.linalg.matrix_power(turn, steps)
    return (a + c) * x + (b + d) * y


@ffma.tolerance
def tolerance(p):
    """Two roundings a turn of numbers below 8, all in one direction at worst."""
    return 8 * float(np.finfo(np.float32).eps) * (2 * p.steps + 2)


@ffma.work
def work(p):
    """Two multiply-adds a turn."""
    return Work(flops=4 * p.n * p.steps, bytes_read=8 * p.n, bytes_written=4 * p.n)


@ffma.call
def call(x, y, steps, shear, out=None):
    """Element by element, of arrays of one shape."""
    out = Operand.new(x.shape) if out is None else out
    if not x.shape == y.shape == out.shape:
        raise ValueError(f"x is {x}, y is {y} and out is {out}: give them one shape")
    if not x.size:
        return NothingToDo((out,))
    arrays = {"x": x, "y": y, "out": out}
    if x.ndim != 1:
        arrays = {name: array.reshape(x.size) for name, array in arrays.items()}
    scalars = {"n": np.int64(x.size), "steps": steps, "shear": shear}
    return points(x.size, steps), {**arrays, **scalars}
