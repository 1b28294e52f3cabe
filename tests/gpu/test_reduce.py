"""The single-launch reduction on a GPU: what one launch leaves in its module must not reach the next."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.backends import choose_device
from autotune.backends.cuda import CudaBackend
from autotune.binding import bound, plan
from autotune.catalog import find_kernel
from autotune.compiler import compile_job, compile_now
from autotune.values import Problem

pytestmark = pytest.mark.gpu

BLOCK, VEC, ITEMS = 128, 4, 1


@pytest.mark.parametrize("grid", [{"GRID_MODE": "oneshot"}, {"GRID_MODE": "stride", "WAVES": 2}])
def test_launches_of_one_module_do_not_mix(grid: dict[str, int | str]) -> None:
    """Grids grow and shrink, so that words of earlier launches lie where a later one looks for its own."""
    kernel = find_kernel("reduce")
    device = choose_device("cuda:0")
    executor = CudaBackend().open(device)
    chosen = {"VARIANT": "cuda", "BLOCK": BLOCK, "VEC": VEC, "ITEMS": ITEMS, **grid}
    configuration = kernel.completed(chosen)
    compiled = compile_now(compile_job(kernel, configuration, Problem(n=1), device))
    assert compiled.binary is not None, compiled.message
    module = executor.load(compiled.binary, {})
    tile = BLOCK * VEC * ITEMS
    x = np.random.default_rng(0).integers(-2, 3, 3000 * tile).astype(np.float32)
    sums = np.cumsum(x, dtype=np.float64)
    inputs, out = executor.allocate(x.nbytes), executor.allocate(4)
    executor.write(inputs, x)
    for n in (2999 * tile + 3, 1, 1000 * tile, 7, 2 * tile, 2500 * tile - 1, 3 * tile, len(x)):
        executor.poison(out)
        steps = bound(
            plan(kernel, configuration, Problem(n=n), device),
            ["x", "out", "n"],
            {"x": inputs, "out": out},
            {"n": np.int64(n)},
            {"x": "<f4", "out": "<f4"},
            compiled.binary,
        )
        executor.run(module, steps)
        assert executor.read(out, np.dtype(np.float32), (1,))[0] == sums[n - 1], f"n={n}"
