"""half_product: c = a b over float16 matrices by CUTLASS; needs pip install --no-deps nvidia-cutlass."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from autotune import Kernel, Launch, Out, Problem, Work, ceil_div

half_product = Kernel(
    "half_product.cu",
    backends=("cuda",),
    problems=[Problem(m=4096, n=4096, k=4096), Problem(m=1000, n=2048, k=512)],
    edge_problems=[
        Problem(m=1, n=8, k=8),
        Problem(m=129, n=136, k=40),
        Problem(m=77, n=264, k=104),
    ],
    default={"BM": 128, "BN": 128, "BK": 32, "WM": 64, "WN": 64, "STAGES": 3},
    BM=(64, 128, 256),  # rows of a tile of c
    BN=(64, 128, 256),  # columns of a tile of c
    BK=(32, 64),  # columns of a tile of a
    WM=(32, 64),  # rows of a warp's tile
    WN=(32, 64),  # columns of a warp's tile
    STAGES=(3, 4, 5),  # pairs of tiles in shared memory
)


def warps(c):
    return c.BM // c.WM * (c.BN // c.WN)


def shared_bytes(c):
    return c.STAGES * (c.BM + c.BN) * c.BK * 2


@half_product.constraint
def has_few_warps(BM, BN, WM, WN):
    return 4 <= BM // WM * (BN // WN) <= 8


@half_product.constraint
def fits(BM, BN, BK, STAGES, device):
    return device.shared_bytes_per_block >= STAGES * (BM + BN) * BK * 2


@half_product.requires
def requires(c, p):
    """Rows of all matrices begin at multiples of 16 bytes."""
    return (p.n % 8 == 0) & (p.k % 8 == 0)


@half_product.options
def options(c):
    package = find_spec("cutlass_library")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError(
            "CUTLASS is not installed; run: pip install --no-deps nvidia-cutlass"
        )
    include = Path(package.submodule_search_locations[0], "source", "include")
    return [f"-I{include}", "-default-device", "-std=c++17"]


@half_product.defines
def defines(c, p):
    return {**c, "SHARED_BYTES": shared_bytes(c)}


@half_product.launch
def launch(c, p):
    grid = (ceil_div(p.m, c.BM), ceil_div(p.n, c.BN))
    return Launch(grid=grid, block=(32 * warps(c),), shared_bytes=shared_bytes(c))


@half_product.arguments
def arguments(p, rng):
    return {
        "a": rng.standard_normal((p.m, p.k), dtype=np.float16),
        "b": rng.standard_normal((p.k, p.n), dtype=np.float16),
        "c": Out((p.m, p.n), "float16"),
        "m": p.m,
        "n": p.n,
        "k": p.k,
    }


@half_product.reference
def reference(a, b):
    return {"c": a @ b}


@half_product.work
def work(p):
    return Work(
        flops=2 * p.m * p.n * p.k,
        bytes_read=2 * (p.m * p.k + p.k * p.n),
        bytes_written=2 * p.m * p.n,
        pipe="tensor",
    )


@half_product.baseline("cublas")
def cublas(a, b, c, m, n, k):
    import cupy

    return lambda: cupy.matmul(a, b, out=c)


@half_product.call
def call(a, b, out=None):
    (m, k), (_, n) = a.shape, b.shape
    return Problem(m=m, n=n, k=k), {"a": a, "b": b, "c": out}
