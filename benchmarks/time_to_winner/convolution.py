"""convolution: a float32 image by a filter, with SciPy's convolution as the reference.

The source and the parameters are those of Kernel Tuner's example of this name, in examples/kernel_tuner.
"""

from scipy.signal import correlate

from autotune import Kernel, Launch, Out, Problem, Work, ceil_div

convolution = Kernel(
    "../../examples/kernel_tuner/kernels/convolution.cu",
    problems={
        "cuda": [Problem(width=8192, height=8192, filter=17)],
        "opencl": [Problem(width=256, height=256, filter=17)],
    },
    static=("width", "height", "filter"),
    default={"block_size_x": 32, "block_size_y": 8},
    block_size_x=range(16, 129, 16),
    block_size_y=(1, 2, 4, 8, 16, 32),
    tile_size_x=(1, 2, 4),
    tile_size_y=(1, 2, 4),
)


@convolution.constraint
def block_size(block_size_x, block_size_y):
    """A block has 32 to 1024 threads."""
    return 32 <= block_size_x * block_size_y <= 1024


@convolution.defines
def defines(c, p):
    image = {"image_width": p.width, "image_height": p.height}
    return {**c, **image, "filter_width": p.filter, "filter_height": p.filter}


@convolution.launch
def launch(c, p):
    across = ceil_div(p.width, c.block_size_x * c.tile_size_x)
    down = ceil_div(p.height, c.block_size_y * c.tile_size_y)
    block = (c.block_size_x, c.block_size_y)
    return Launch(entry="convolution_kernel", grid=(across, down), block=block)


@convolution.arguments
def arguments(p, rng):
    image = rng.standard_normal((p.height + p.filter - 1, p.width + p.filter - 1))
    weights = rng.standard_normal((p.filter, p.filter))
    return {"output": Out((p.height, p.width)), "input": image, "filter": weights}


@convolution.reference
def reference(input, filter):
    return correlate(input, filter, mode="valid")


@convolution.work
def work(p):
    pixels = p.width * p.height
    return Work(flops=2 * p.filter**2 * pixels, bytes_read=4 * pixels, bytes_written=4 * pixels)
