"""stencil: the mean of five neighbours; parameters of Kernel Tuner's example of this name."""

from autotune import Kernel, Launch, Out, Problem, ceil_div

stencil = Kernel(
    "stencil.cu",
    problems=[Problem(width=4096, height=2048)],
    static=("width", "height"),
    block_size_x=range(32, 257, 32),
    block_size_y=(1, 2, 4, 8, 16, 32),
)


@stencil.launch
def launch(c, p):
    grid = (ceil_div(p.width, c.block_size_x), ceil_div(p.height, c.block_size_y))
    return Launch(entry="stencil_kernel", grid=grid, block=(c.block_size_x, c.block_size_y))


@stencil.arguments
def arguments(p, rng):
    shape = (p.height, p.width)
    return {"x_new": Out(shape), "x_old": rng.standard_normal(shape)}


@stencil.reference
def reference(x_old):
    new, inner = x_old.copy(), x_old[1:-1, 1:-1]
    around = x_old[:-2, 1:-1] + x_old[2:, 1:-1] + x_old[1:-1, :-2] + x_old[1:-1, 2:]
    new[1:-1, 1:-1] = (inner + around) / 5
    return new
