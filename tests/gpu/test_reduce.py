"""The single-launch reduction on a GPU: what one launch leaves in its module must not reach the next."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from accuracy import FACTOR, sums

from autotune.compiling.binaries import compile_now
from autotune.compiling.job import compile_job
from autotune.data.arguments import declared_arguments
from autotune.devices.choose import choose_device
from autotune.devices.cuda_backend import CudaBackend
from autotune.kernel.catalog import find_kernel
from autotune.kernel.launches import bind_arguments, launch_sequence
from autotune.kernel.space import enumerate_space
from autotune.values import Problem

pytestmark = pytest.mark.gpu

VEC = 4


class Sums:
    """One configuration of the CUDA source, loaded once, and the vector that it adds up: small integers."""

    def __init__(self, count: int, **chosen: int | str) -> None:
        self._kernel = find_kernel("reduce")
        for parameters in (self._kernel.parameters, self._kernel.sources["cuda"].parameters):
            parameters["COLLECT"] = ("words", "pair")
        self._device = choose_device("cuda:0")
        self._configuration = self._kernel.completed({"SOURCE": "cuda", "VEC": VEC, **chosen})
        if self._configuration not in enumerate_space(self._kernel, self._device):
            pytest.skip(f"COLLECT={chosen['COLLECT']} is not for {self._device.arch}")
        self._executor = CudaBackend().open(self._device)
        job = compile_job(self._kernel, self._configuration, Problem(n=1), self._device)
        self._compiled = compile_now(job)
        assert self._compiled.binary is not None, self._compiled.message
        self._module = self._executor.load(self._compiled.binary, {})
        x = np.random.default_rng(0).integers(-2, 3, count).astype(np.float32)
        self.expected = np.cumsum(x, dtype=np.float64)
        self._x, self._out = self._executor.allocate(x.nbytes), self._executor.allocate(4)
        self._executor.write(self._x, x)

    def steps(self, n: int) -> list[Any]:
        assert self._compiled.binary is not None
        return bind_arguments(
            launch_sequence(self._kernel, self._configuration, Problem(n=n), self._device),
            ["x", "out", "n"],
            {"x": self._x, "out": self._out},
            {"n": np.int64(n)},
            declared_arguments(self._kernel, Problem(n=n)),
            self._compiled.binary,
        )

    def run(self, steps: list[Any]) -> float:
        self._executor.poison(self._out)
        self._executor.run(self._module, steps)
        return float(self._executor.read(self._out, np.dtype(np.float32), (1,))[0])


@pytest.mark.parametrize("grid", [{"GRID_MODE": "oneshot"}, {"GRID_MODE": "stride", "WAVES": 2}])
@pytest.mark.parametrize(
    "collect",
    [{"COLLECT": "words"}, {"COLLECT": "pair"}, {"COLLECT": "pair", "SENDER": "warp"}],
    ids=["words", "pair", "pair of warps"],
)
def test_launches_of_one_module_do_not_mix(
    grid: dict[str, int | str], collect: dict[str, int | str]
) -> None:
    """Grids grow and shrink, so that words of earlier launches lie where a later one looks for its own."""
    tile = 128 * VEC
    sums = Sums(3000 * tile, BLOCK=128, ITEMS=1, **grid, **collect)
    for n in (2999 * tile + 3, 1, 1000 * tile, 7, 2 * tile, 2500 * tile - 1, 3 * tile, 3000 * tile):
        assert sums.run(sums.steps(n)) == sums.expected[n - 1], f"n={n}"


def test_sums_are_as_accurate_as_cubs(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = pytest.importorskip("cupy")
    monkeypatch.setattr("accuracy.SUMS", (1 << 16, 10**7 + 3, 1 << 26))
    for row in sums(cupy):
        assert row["ours_rms"] <= FACTOR * row["vendor_rms"], row


@pytest.mark.parametrize(("block", "sender"), [(32, "block"), (256, "warp")])
def test_who_counts_last_has_all_sums(block: int, sender: str) -> None:
    """Both floats of a pair are added in one step, which PTX does not promise: 8 million times."""
    n = 4096 * 32 * VEC
    sums = Sums(n, BLOCK=block, ITEMS=1, GRID_MODE="oneshot", COLLECT="pair", SENDER=sender)
    steps = sums.steps(n)
    assert {sums.run(steps) for _ in range(2000)} == {sums.expected[n - 1]}
