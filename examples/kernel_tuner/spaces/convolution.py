"""convolution: a float32 image by a filter; parameters of Kernel Tuner's example of this name."""

import numpy as np

from autotune import Kernel, Launch, Out, Problem, ceil_div

convolution = Kernel(
    "convolution.cu",
    problems={
        "cuda": [Problem(width=4096, height=4096, filter=17)],
        "opencl": [Problem(width=512, height=512, filter=17)],
    },
    static=("width", "height", "filter"),
    block_size_x=range(16, 129, 16),
    block_size_y=(1, 2, 4, 8, 16, 32),
    tile_size_x=(1, 2, 4),
    tile_size_y=(1, 2, 4),
)


@convolution.defines
def defines(c, p):
    """Return the parameters, and the sizes under the names in the source."""
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
    """Compute the convolution by Fourier transforms in float64."""
    spectrum = np.fft.rfft2(input) * np.conj(np.fft.rfft2(filter, input.shape))
    height, width = (n - m + 1 for n, m in zip(input.shape, filter.shape, strict=True))
    return np.fft.irfft2(spectrum, input.shape)[:height, :width]
