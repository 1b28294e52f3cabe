"""Tensor maps on a GPU: the driver encodes them, TMA copies by them, and calls move them; sm_90 and newer."""

import statistics
import struct
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune import load
from autotune.devices.choose import choose_device
from autotune.devices.tensor_map import ANY_ADDRESS, TensorLayout
from autotune.kernel.catalog import find_kernel
from autotune.measure.measurement import Status
from autotune.run.request import Request, Search
from autotune.run.run import Run
from autotune.search.session import Budget
from autotune.store import Store

EXAMPLE = Path(__file__).parents[2] / "examples" / "tensor_maps" / "spaces"
LAYOUT = TensorLayout("float32", 4, (64, 300), (64,), (16, 8), (1, 1), options=(0, 0, 2), nan=False)
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def _has_tma() -> None:
    if int(choose_device("cuda:0").arch.removeprefix("sm_")) < 90:
        pytest.skip("this GPU has no TMA")


def test_a_map_begins_with_its_address(cupy: Any) -> None:
    assert LAYOUT.has_address_first
    found = LAYOUT.encoded(ANY_ADDRESS)
    assert len(found) == 128 and struct.unpack_from("Q", found) == (ANY_ADDRESS,)


def test_configurations_with_maps_are_right_and_timed(cupy: Any, tmp_path: Path) -> None:
    kernel, device = find_kernel("product", EXAMPLE), choose_device("cuda:0")
    goal, problems = Search("random"), kernel.problems["cuda"][1:]
    request = Request(kernel, device, problems, goal=goal, budget=Budget(evaluations=12))
    with Store.open(tmp_path / "store.sqlite") as store, closing(Run(request, store)) as running:
        result = running.run()
    (found,) = result.problems
    assert found.winner is not None
    statuses = {row.status for row in found.trials}
    assert statuses <= {Status.OK, Status.PRUNED, Status.STOPPED_EARLY, Status.PENDING}


def test_a_call_moves_the_maps_to_its_arrays(cupy: Any) -> None:
    product = load("product", spaces=EXAMPLE)
    for m, n, k in ((65, 68, 20), (256, 512, 128), (65, 68, 20)):
        for seed in range(3):  # new arrays, new addresses
            rng = np.random.default_rng(seed)
            a, b = (rng.standard_normal(shape, dtype=np.float32) for shape in ((m, k), (k, n)))
            kept = cupy.empty(100 * seed + 4, np.float32)
            found = product(cupy.asarray(a), cupy.asarray(b))
            assert np.allclose(found.get(), a @ b, atol=1e-3)
            del kept
        big = cupy.asarray(rng.standard_normal(m * k + 1, dtype=np.float32))
        a = big[1:].reshape(m, k)  # not at a multiple of 16 bytes: copied
        assert np.allclose(product(a, cupy.asarray(b)).get(), a.get() @ b, atol=1e-3)


@pytest.mark.alone
def test_moving_two_maps_costs_at_most_two_microseconds(cupy: Any) -> None:
    product, line = load("product", spaces=EXAMPLE), load("transpose")
    a, b, c = (cupy.zeros((64, 64), np.float32) for _ in "abc")
    rounds: dict[str, list[float]] = {"maps": [], "none": []}
    calls = {"maps": lambda: product(a, b, c), "none": lambda: line(a, out=b)}
    for call in calls.values():
        call()
    for _ in range(9):
        for name, call in calls.items():
            cupy.cuda.runtime.deviceSynchronize()
            begun = time.perf_counter()
            for _ in range(300):
                call()
            rounds[name].append((time.perf_counter() - begun) / 300 * 1e6)
            cupy.cuda.runtime.deviceSynchronize()
    costs = {name: statistics.median(taken) for name, taken in rounds.items()}
    print("microseconds of a call:", costs)
    assert costs["maps"] - costs["none"] < 2
