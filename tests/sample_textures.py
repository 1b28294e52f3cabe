"""A kernel that reads an image and a row of weights through textures."""

from pathlib import Path

SOURCE = """
extern "C" __global__ void filtered(cudaTextureObject_t image, cudaTextureObject_t weights, float* out,
                                    int height, int width) {
  const int x = blockIdx.x * BX + threadIdx.x, y = blockIdx.y * BY + threadIdx.y;
  if (x >= width || y >= height) return;
  float sum = 0;
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 3; ++j) {
      const float weight = tex1Dfetch<float>(weights, 3 * i + j);
      sum += weight * tex2D<float>(image, x + j - 1 + 0.5f, y + i - 1 + 0.5f);
    }
  }
  out[y * width + x] = sum;
}
"""
SPACE = '''"""filtered: a filter of 3 x 3 whose image is clamped at its edges."""

import numpy as np

from autotune import Kernel, Launch, Out, Problem, Texture, ceil_div

filtered = Kernel(
    "filtered.cu",
    backends=("cuda",),
    problems=[Problem(height=500, width=640)],
    edge_problems=[Problem(height=1, width=8), Problem(height=37, width=72)],
    default={"BX": 32, "BY": 8},
    BX=(8, 16, 32, 64),
    BY=(4, 8, 16),
)


@filtered.requires
def requires(c, p):
    """Rows of a texture begin at multiples of 32 bytes."""
    return p.width % 8 == 0


@filtered.launch
def launch(c, p):
    grid = (ceil_div(p.width, c.BX), ceil_div(p.height, c.BY))
    args = (Texture("image"), Texture("weights"), "out", "height", "width")
    return Launch(grid=grid, block=(c.BX, c.BY), args=args)


@filtered.arguments
def arguments(p, rng):
    return {
        "image": rng.standard_normal((p.height, p.width), dtype=np.float32),
        "weights": rng.standard_normal(9, dtype=np.float32),
        "out": Out((p.height, p.width)),
        "height": p.height,
        "width": p.width,
    }


@filtered.reference
def reference(image, weights, height, width):
    around = np.pad(image, 1, mode="edge")
    parts = (
        weights[3 * i + j] * around[i : i + height, j : j + width]
        for i in range(3)
        for j in range(3)
    )
    return {"out": sum(parts)}


@filtered.call
def call(image, weights, out=None):
    height, width = image.shape
    return Problem(height=height, width=width), {"image": image, "weights": weights, "out": out}
'''


def write_filtered(folder: Path) -> Path:
    """Write the kernel ``filtered`` below a folder; return the folder of its space file."""
    for name, file, text in (("kernels", "filtered.cu", SOURCE), ("spaces", "filtered.py", SPACE)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / file).write_text(text)
    return folder / "spaces"
