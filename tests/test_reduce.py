"""The sum of many floats keeps its digits, whoever adds up the blocks', and what is no number gets through."""

import numpy as np
import pytest

from autotune import load
from autotune.devices.choose import choose_device
from autotune.kernel.catalog import find_kernel
from autotune.kernel.space import is_member

pytestmark = [pytest.mark.opencl, pytest.mark.filterwarnings("ignore")]

#: Of several tiles for each thread of a small grid, and a tail.
N = 3 * 10**6 + 3


@pytest.fixture(params=["kernel", "ticket"])
def total(request, opencl_device, monkeypatch):
    """The sum by few blocks that walk, whose sums one of them or a second launch adds up."""
    kernel, device = find_kernel("reduce"), choose_device(opencl_device)
    chosen = {"BLOCK": 128, "VEC": 4, "ITEMS": 2, "WAVES": 4, "GRID_MODE": "stride"}
    chosen |= {"BLOCK_RED": "sequential", "WARP_TAIL": "barrier"}
    chosen |= {"FINISH": request.param, "WARP": device.warp_size}
    assert is_member(kernel, kernel.completed(chosen), device)
    monkeypatch.setattr(kernel, "default_values", chosen)
    monkeypatch.setattr("autotune.calling.choice.recorded_for_other", lambda _: "not tuned")
    return load(kernel)


@pytest.mark.parametrize("data", ["uniform", "normal", "constant"])
def test_a_sum_is_off_by_no_more_than_its_last_additions(total, data):
    """A chain of additions for each thread is off by 1e-5 where all numbers are alike."""
    rng = np.random.default_rng(5)
    x = {
        "uniform": lambda: rng.random(N, dtype=np.float32),
        "normal": lambda: rng.standard_normal(N, dtype=np.float32),
        "constant": lambda: np.full(N, 0.1, np.float32),
    }[data]()
    error = abs(total(x).item() - x.sum(dtype=np.float64))
    assert error <= 1.5e-7 * np.abs(x).sum(dtype=np.float64)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((np.inf,), np.inf),
        ((-np.inf, 5.0), -np.inf),
        ((np.inf, -np.inf), np.nan),
        ((np.nan,), np.nan),
    ],
)
def test_what_is_no_number_gets_through(total, values, expected):
    x = np.ones(N, np.float32)
    x[1000 :: N // 3][: len(values)] = values
    np.testing.assert_equal(total(x).item(), expected)
