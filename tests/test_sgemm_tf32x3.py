"""sgemm_tf32x3 without a GPU: both sources compile, and exact data tell each of the three products."""

import numpy as np
import pytest

from autotune.devices.device import for_arch
from autotune.kernel.catalog import find_kernel
from autotune.kernel.launches import launch_sequence
from autotune.kernel.space import enumerate_space, is_member
from autotune.measure.compiler import compiled_for
from autotune.measure.data import Draw
from autotune.values import Problem


@pytest.fixture(scope="module")
def kernel():
    return find_kernel("sgemm_tf32x3")


def halves(x):
    """As kernels/sgemm_tf32x3.h splits them; what the tensor core ignores of the low half is 0."""
    hi = ((x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    lo = ((x - hi).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return hi, lo


def test_halves_lose_the_last_bit_at_most():
    x = np.random.default_rng(5).standard_normal(10**6).astype(np.float32)
    x *= np.float32(2.0) ** np.random.default_rng(6).integers(-30, 31, x.size).astype(np.float32)
    hi, lo = halves(x)
    lost = (x.astype(np.float64) - hi - lo) / np.abs(x)
    assert np.abs(lost).max() <= 2.0**-23
    assert abs(lost.mean()) < 1e-3 * 2.0**-23


@pytest.mark.parametrize("size", [(7, 7, 7), (129, 4, 33), (300, 310, 1027)])
def test_exact_data_need_all_three_products(kernel, size):
    problem = Problem(dict(zip("mnk", size, strict=True)))
    given = kernel.call_hook("arguments", problem, Draw(exact=True, key=3))
    a, b = given["a"], given["b"]
    (a_hi, a_lo), (b_hi, b_lo) = halves(a), halves(b)
    products = [
        x.astype(np.float64) @ y
        for x, y in ((a_hi, b_hi), (a_lo, b_hi), (a_hi, b_lo), (a_lo, b_lo))
    ]
    exact = a.astype(np.float64) @ b
    assert (exact == exact.astype(np.float32)).all()
    assert (sum(products[:3]) == exact).all()
    assert not products[3].any()
    for product in products[:3]:
        assert (exact - product != exact).mean() > 0.7


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "sm_120"])
def test_wgmma_is_offered_where_it_exists(kernel, arch):
    variants = {found["VARIANT"] for found in enumerate_space(kernel, for_arch(arch))}
    assert variants == ({"mma", "wgmma"} if arch == "sm_90" else {"mma"})


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
def test_both_sources_compile_where_they_are_offered(kernel, arch):
    pytest.importorskip("cuda.bindings.nvrtc", reason="pip install '.[nvrtc]'")
    device = for_arch(arch)
    space = enumerate_space(kernel, device)
    chosen = [space.configuration(i) for i in space.sample(np.random.default_rng(1), 4)]
    wgmma = [found for found in space if found["VARIANT"] == "wgmma"]
    chosen += {(c["BM"], c["BN"]): c for c in wgmma}.values()  # with PADDED
    plain = [found for found in wgmma if found["BM"] == 128 and not found["PADDED"]]
    chosen += {(c["SPLITK"] > 1, c["GRIDK"] > 1): c for c in plain}.values()
    for configuration in chosen:
        binary = compiled_for(kernel, configuration, kernel.first_problem("cuda"), device)
        if configuration["VARIANT"] == "wgmma":
            assert "wgmma" not in binary.log  # the compiler says so where it makes them wait
            # the producer's addresses at most, which it reads again once per step
            assert binary.entry("sgemm_tf32x3").spill_bytes <= 128


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90", "sm_100", "sm_120"])
def test_the_default_runs_wherever_something_does(kernel, arch):
    """It answers where nothing was tuned."""
    assert is_member(kernel, kernel.default(), for_arch(arch))


def test_only_rows_that_are_not_aligned_are_padded(kernel):
    """By a launch of its own, a thread for each quad, into workspaces of whole quads."""
    device = for_arch("sm_90")
    padded = kernel.completed({**kernel.seeds[0], "PADDED": True})
    odd = Problem(m=777, n=1234, k=999)
    pad, product = launch_sequence(kernel, padded, odd, device).launches
    sizes = {name: out.shape for name, out in kernel.workspaces(padded, odd, device).items()}
    assert sizes == {"padded_a": 777 * 1000, "padded_b": 999 * 1236}
    assert (pad.entry, product.entry) == ("sgemm_tf32x3_pad", "sgemm_tf32x3")
    assert 0 <= 4 * 256 * pad.grid[0] - sum(sizes.values()) < 4 * 256
    assert kernel.allows(padded, odd)
    assert kernel.allows(padded, Problem(m=8, n=8, k=8, offset_b=1))
    assert not kernel.allows(padded, Problem(m=777, n=1232, k=1000))
