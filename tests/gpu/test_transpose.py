"""Rows of a tile stored as asynchronous copies: what is left of a tile at the edge is a shorter copy, or none."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.devices.choose import choose_device
from autotune.devices.cuda import CudaBackend
from autotune.kernel.catalog import find_kernel
from autotune.kernel.launches import bound, launch_sequence
from autotune.kernel.space import enumerate_space
from autotune.measure.compiler import compile_job, compile_now
from autotune.values import Problem

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("tile_y", "tile_x", "resident"), [(64, 64, 3), (128, 32, 0), (16, 128, 0)]
)
def test_bulk_stores_what_is_left_of_a_tile(tile_y: int, tile_x: int, resident: int) -> None:
    """Rows of out that are whole vectors and such that are not, on matrices with and without whole tiles."""
    kernel = find_kernel("transpose")
    device = choose_device("cuda:0")
    chosen = {"ALG": "shared", "TILE_Y": tile_y, "TILE_X": tile_x, "BLOCK": 128, "VEC": 4}
    hints = {"LAYOUT": "padded", "STORE": "bulk", "RESIDENT": resident}
    configuration = kernel.completed({**chosen, **hints})
    if configuration not in enumerate_space(kernel, device):
        pytest.skip(f"{configuration} is not for {device.arch}")
    executor = CudaBackend().open(device)
    compiled = compile_now(compile_job(kernel, configuration, Problem(m=1, n=1), device))
    assert compiled.binary is not None, compiled.message
    module = executor.load(compiled.binary, {})
    for m, n in ((4, 4), (4, 1), (132, 260), (132, 259), (127, 260), (1, 1000), (1028, 513)):
        x = np.random.default_rng(0).standard_normal((m, n), dtype=np.float32)
        inputs, out = executor.allocate(x.nbytes), executor.allocate(x.nbytes)
        executor.write(inputs, x)
        executor.poison(out)
        steps = bound(
            launch_sequence(kernel, configuration, Problem(m=m, n=n), device),
            ["x", "out", "m", "n"],
            {"x": inputs, "out": out},
            {"m": np.int32(m), "n": np.int32(n)},
            {"x": "<f4", "out": "<f4"},
            compiled.binary,
        )
        executor.run(module, steps)
        found = executor.read(out, np.dtype(np.float32), (n, m))
        assert np.array_equal(found, x.T), f"{m} x {n}"
