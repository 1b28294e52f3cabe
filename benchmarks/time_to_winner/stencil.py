"""stencil: seven points of a three-dimensional float32 grid, zero outside; see stencil.cu."""

import numpy as np

from autotune import Kernel, Launch, Out, Problem, Work, ceil_div

stencil = Kernel(
    "stencil.cu",
    problems={
        "cuda": [Problem(nx=512, ny=512, nz=512)],
        "opencl": [Problem(nx=64, ny=64, nz=64)],
    },
    default={"BLOCK_X": 32, "BLOCK_Y": 8},
    BLOCK_X=(16, 32, 64, 128, 256),  # threads per block in a row
    BLOCK_Y=(1, 2, 4, 8, 16),  # threads per block in a column
    TILE_X=(1, 2, 4),  # outputs of a thread in a row, BLOCK_X apart
    TILE_Z=(2, 4, 8, 16, 32, 64),  # planes that a block marches through
    STAGED=(0, 1),  # the plane in shared memory
)


@stencil.constraint
def block_size(BLOCK_X, BLOCK_Y):
    """A block has 64 to 1024 threads."""
    return 64 <= BLOCK_X * BLOCK_Y <= 1024


@stencil.launch
def launch(c, p):
    grid = ceil_div(p.nx, c.BLOCK_X * c.TILE_X), ceil_div(p.ny, c.BLOCK_Y), ceil_div(p.nz, c.TILE_Z)
    return Launch(grid=grid, block=(c.BLOCK_X, c.BLOCK_Y))


@stencil.arguments
def arguments(p, rng):
    return {
        "u": rng.standard_normal((p.nz, p.ny, p.nx), dtype=np.float32),
        "out": Out((p.nz, p.ny, p.nx)),
        "centre": rng.uniform(0.2, 0.4),
        "side": rng.uniform(0.05, 0.1),
        "nx": p.nx,
        "ny": p.ny,
        "nz": p.nz,
    }


@stencil.reference
def reference(u, centre, side):
    v = np.pad(u, 1)
    return centre * u + side * (
        v[2:, 1:-1, 1:-1] + v[:-2, 1:-1, 1:-1]
        + v[1:-1, 2:, 1:-1] + v[1:-1, :-2, 1:-1]
        + v[1:-1, 1:-1, 2:] + v[1:-1, 1:-1, :-2]
    )  # fmt: skip


@stencil.work
def work(p):
    points = p.nx * p.ny * p.nz
    return Work(flops=8 * points, bytes_read=4 * points, bytes_written=4 * points)
