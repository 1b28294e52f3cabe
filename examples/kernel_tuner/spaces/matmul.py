"""matmul: C = A B, float32; parameters of Kernel Tuner's example of this name."""

from autotune import Kernel, Launch, Out, Problem

matmul = Kernel(
    "matmul.cu",
    problems=[Problem(width=512)],
    static=("width",),
    block_size_x=(16, 32, 64),
    block_size_y=(1, 2, 4, 8, 16, 32),
    tile_size_x=(1, 2, 4, 8),
    tile_size_y=(1, 2, 4, 8),
)


@matmul.constraint
def square(block_size_x, block_size_y, tile_size_y):
    """Tiles of A are square."""
    return block_size_x == block_size_y * tile_size_y


@matmul.requires
def whole_tiles(c, p):
    return p.width % (c.block_size_x * c.tile_size_x) == 0


@matmul.launch
def launch(c, p):
    grid = (p.width // (c.block_size_x * c.tile_size_x), p.width // c.block_size_x)
    return Launch(entry="matmul_kernel", grid=grid, block=(c.block_size_x, c.block_size_y))


@matmul.arguments
def arguments(p, rng):
    A, B = rng.standard_normal((2, p.width, p.width))
    return {"C": Out((p.width, p.width)), "A": A, "B": B}


@matmul.reference
def reference(A, B):
    return A @ B
