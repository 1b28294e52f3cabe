"""pnpoly: which points lie in a polygon; parameters of Kernel Tuner's example of this name."""

import numpy as np

from autotune import Kernel, Launch, Out, Problem, ceil_div

pnpoly = Kernel(
    "pnpoly.cu",
    problems={
        "cuda": [Problem(n=20_000_000, vertices=600)],
        "opencl": [Problem(n=200_000, vertices=600)],
    },
    edge_problems=[Problem(n=1, vertices=600), Problem(n=1001, vertices=600)],
    static=("vertices",),
    block_size_x=range(32, 993, 32),
    tile_size=(1, *range(2, 21, 2)),
    between_method=range(4),
    use_precomputed_slopes=(0, 1),
    use_method=(0, 1),
)


@pnpoly.launch
def launch(c, p):
    grid = (ceil_div(p.n, c.block_size_x * c.tile_size),)
    return Launch(entry="cn_pnpoly", grid=grid, block=(c.block_size_x,))


@pnpoly.arguments
def arguments(p, rng):
    """Return a polygon on the unit circle, and points far enough from it that rounding does not matter."""
    points = rng.standard_normal((p.n, 2))
    points[np.abs(np.hypot(*points.T) - 1) < 1e-3] *= 1.01
    angles = np.linspace(2 * np.pi, 0, p.vertices, endpoint=False)
    vertices = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    x, y = (np.roll(vertices, 1, axis=0) - vertices).T
    slopes = np.divide(x, y, out=np.zeros_like(x), where=y != 0)
    given = {"points": points, "vertices": vertices, "slopes": slopes, "n": p.n}
    return {"bitmap": Out(p.n, "int32"), **given}


@pnpoly.reference
def reference(points):
    return np.hypot(*points.T) < 1
