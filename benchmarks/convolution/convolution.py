"""convolution: out (height x width) = a 17 x 17 filter over a float32 image, unrolled in full; see convolution.cu.

With the parameters of Kernel Tuner's example of the same name. A binary takes 0.4 to some 10 s to compile.
"""

import numpy as np

from autotune import Kernel, Launch, Out, Problem, Work, ceil_div
from autotune.arrays import in_pieces

#: Of the filter, here and in the source.
SIDE = 17

convolution = Kernel(
    "convolution.cu",
    problems=[Problem(width=4096, height=4096)],
    backends=("cuda",),
    TILE_X=(1, 2, 3, 4, 5, 6, 7, 8),  # outputs of a thread in a row, BLOCK_X apart
    TILE_Y=(1, 2, 3, 4, 5, 6, 7, 8),  # outputs of a thread in a column, BLOCK_Y apart
    BLOCK_X=(16, 32, 48, 64, 80, 96, 112, 128),  # threads per block in a row
    BLOCK_Y=(1, 2, 4, 8, 16, 32),  # threads per block in a column
    PADDED=(0, 1),  # one float more per row of what is staged
    READ_ONLY=(0, 1),  # through the cache of what nobody writes
)


@convolution.constraint
def whole_warps(BLOCK_X, BLOCK_Y):
    """A block is whole warps, 64 to 1024 threads."""
    return BLOCK_X * BLOCK_Y % 32 == 0 and 64 <= BLOCK_X * BLOCK_Y <= 1024


@convolution.constraint
def staged_fits(TILE_X, TILE_Y, BLOCK_X, BLOCK_Y, PADDED):
    """What a block reads fits in 48 KB."""
    pitch = BLOCK_X * TILE_X + SIDE - 1 + PADDED
    return 4 * pitch * (BLOCK_Y * TILE_Y + SIDE - 1) <= 48 * 1024


@convolution.constraint
def compiles_in_seconds(TILE_X, TILE_Y):
    """A thread has at most 16 outputs: more take the compiler up to a minute."""
    return TILE_X * TILE_Y <= 16


@convolution.constraint
def padding_matters(BLOCK_X, PADDED):
    """Where a warp is one row, banks do not collide."""
    return not PADDED or BLOCK_X % 32 != 0


@convolution.launch
def launch(c, p):
    grid = ceil_div(p.width, c.BLOCK_X * c.TILE_X), ceil_div(p.height, c.BLOCK_Y * c.TILE_Y)
    return Launch(grid=grid, block=(c.BLOCK_X * c.BLOCK_Y,))


@convolution.arguments
def arguments(p, rng):
    return {
        "image": rng.standard_normal((p.height + SIDE - 1, p.width + SIDE - 1)),
        "weights": rng.standard_normal((SIDE, SIDE)),
        "out": Out((p.height, p.width)),
        "width": p.width,
        "height": p.height,
    }


@convolution.reference
def reference(image, weights):
    out = np.zeros((len(image) - SIDE + 1, image.shape[1] - SIDE + 1))

    def rows(_, begin, end):
        for i in range(SIDE):
            for j in range(SIDE):
                seen = image[begin + i : end + i, j : j + out.shape[1]]
                out[begin:end] += weights[i, j] * seen

    in_pieces(rows, len(out), 32)
    return out


@convolution.tolerance
def tolerance(p):
    return 128 * SIDE * 2.0**-24  # SIDE * SIDE roundings of sums of up to 8 * SIDE; seen: a third of it


@convolution.work
def work(p):
    pixels = p.width * p.height
    return Work(flops=2 * SIDE * SIDE * pixels, bytes_read=4 * pixels, bytes_written=4 * pixels)
