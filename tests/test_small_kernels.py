"""conv1d, reduce_op, spmm and triangles: a sample is right and compiles, and a missing element is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sample_kernels import (
    assert_default_compiles_for_gpus,
    assert_mutation_is_refused,
    assert_right_at_odd_sizes,
    assert_sample_is_right,
    assert_vendor_calls_take_the_arguments,
)
from thinned import thinned

from autotune import Problem
from autotune.cli.kernels import ptx_of
from autotune.data.draw import Draw
from autotune.devices.choose import choose_device
from autotune.devices.device import for_arch
from autotune.kernel.catalog import find_kernel
from autotune.values import Value

#: A piece of the source of each kernel, and one that leaves an element out or doubles it.
MUTATIONS = {
    "conv1d": ("j < TAPS; ++j) {", "j < TAPS - 1; ++j) {"),
    "reduce_op": ("if (first + tid + i * BLOCK < end)", "if (first + tid + i * BLOCK < end - 1)"),
    "spmm": ("for (; entry < end; ++entry)", "for (; entry < end - 1; ++entry)"),
    "triangles": ("const int u =", "n -= 1;\n    const int u ="),
}


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device", "kept_processes")
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_sample_is_right(name: str) -> None:
    assert_sample_is_right(find_kernel(name))


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device", "kept_processes")
@pytest.mark.parametrize("name", thinned(MUTATIONS, MUTATIONS.keys() - {"reduce_op"}))
def test_a_missing_element_is_refused(name: str, tmp_path: Path) -> None:
    assert_mutation_is_refused(find_kernel(name), MUTATIONS[name], tmp_path)


@pytest.mark.parametrize("name", [*MUTATIONS, "hmma"])
def test_the_default_compiles_for_gpus(name: str) -> None:
    assert_default_compiles_for_gpus(name)


@pytest.mark.opencl
@pytest.mark.usefixtures("kept_processes")
@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("spmm", {"ALG": "block", "BLOCK": 64, "TEAM": 2, "SHARE": 32}),
        ("spmm", {"ALG": "block", "BLOCK": 64, "TEAM": 8, "VEC": 4, "SHARE": 32}),
        ("spmm", {"ALG": "split", "BLOCK": 64, "TEAM": 1, "UNROLL": 8, "SHARE": 32}),
        ("spmm", {"ALG": "split", "BLOCK": 64, "TEAM": 8, "VEC": 4, "SHARE": 32}),
        ("conv1d", {"INPUT": "vectors", "OUTPUTS": 8, "MASK": "registers", "BLOCK": 64}),
        ("conv1d", {"INPUT": "vectors", "OUTPUTS": 4, "BLOCK": 64}),
    ],
    ids=str,
)
def test_a_way_of_its_own_is_right_at_odd_sizes(
    name: str, chosen: dict[str, Value], opencl_device: str
) -> None:
    """Configurations that a small sample of the space may lack."""
    assert_right_at_odd_sizes(name, chosen, choose_device(opencl_device))


def test_vendor_calls_take_the_arguments_of_their_kernel() -> None:
    for kernel in map(find_kernel, MUTATIONS):
        assert_vendor_calls_take_the_arguments(kernel)


def test_weights_in_constant_memory_are_read_there() -> None:
    """Each of 9 once, and no weight from global memory; where an index is known when it is compiled."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="pip install '.[nvrtc]'")
    kernel = find_kernel("conv1d")
    chosen = kernel.completed({"OUTPUTS": 4, "INPUT": "shared", "WINDOW": 1, "UNROLL": 0})
    problem = Problem(n=1 << 20, taps=9, mask_in="constant")
    assert kernel.allows(chosen, problem)
    ptx = ptx_of(kernel, chosen, problem, for_arch("sm_90"))
    assert ptx.count("ld.const") == 9
    assert ptx.count("fma.rn.f32 ") == 36


def test_exact_factors_have_a_product_in_whatever_order_they_are_multiplied() -> None:
    """The product of any of them is a float32, neither 0 nor infinite: 0 times infinity is no number."""
    declared = find_kernel("reduce_op").call_hook(
        "arguments", Problem(n=1 << 22, op="prod", dtype="float32"), Draw(exact=True, key=0)
    )
    powers = np.log2(np.abs(declared["x"]))
    assert set(powers) == {-1, 0, 1}
    assert powers[powers > 0].sum() < 126
    assert powers[powers < 0].sum() > -126
