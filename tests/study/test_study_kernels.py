"""The kernels that teach: a sample of each is right and compiles, and a missing element is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_kernels import (
    assert_default_compiles_for_gpus,
    assert_mutation_is_refused,
    assert_right_at_odd_sizes,
    assert_sample_is_right,
    assert_vendor_calls_take_the_arguments,
)
from thinned import thinned

from autotune.compiling.binaries import compiled_for
from autotune.devices.choose import choose_device
from autotune.devices.device import for_arch
from autotune.kernel.catalog import find_kernel
from autotune.values import Value

#: A piece of the source of each kernel, and one that leaves an element out or doubles it.
MUTATIONS = {
    "banks": ("read < READS;", "read < READS - 1;"),
    "branch": ("if (i >= n) return;", "if (i >= n - 1) return;"),
    "chase": ("step < steps;", "step < steps - 1;"),
    "elementwise": (
        "const i64 count = CONCAT ? n + m : n",
        "const i64 count = (CONCAT ? n + m : n) - 1",
    ),
    "gather": ("const i64 first =", "n -= 1;\n    const i64 first ="),
    "particles": ("const i64 first =", "n -= 1;\n    const i64 first ="),
    "pitch": ("const int across =", "n -= 1;\n    const int across ="),
    "table": ("if (i >= n) return;", "if (i >= n - 1) return;"),
    "unroll": ("k0 += TILE) {", "k0 += TILE + 1) {"),
}
#: `make test` has two of them, `make test-study` all.
NAMES = thinned(MUTATIONS, ("banks", "unroll"), pytest.mark.study)


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device", "kept_processes")
@pytest.mark.parametrize("name", NAMES)
def test_a_sample_is_right(name: str) -> None:
    assert_sample_is_right(find_kernel(name))


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device", "kept_processes")
@pytest.mark.parametrize("name", NAMES)
def test_a_missing_element_is_refused(name: str, tmp_path: Path) -> None:
    assert_mutation_is_refused(find_kernel(name), MUTATIONS[name], tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_the_default_compiles_for_gpus(name: str) -> None:
    assert_default_compiles_for_gpus(name)


@pytest.mark.study
@pytest.mark.opencl
@pytest.mark.usefixtures("kept_processes")
@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("gather", {"STAGE": "shuffle", "ITEMS": 2}),
        ("branch", {"FORM": "sorted", "ITEMS": 2}),
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


def test_caps_spill_the_square_of_a_thread_alone() -> None:
    """The study notes' loop fits into 32 registers; 8 x 8 accumulators do not."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="pip install '.[nvrtc]'")
    kernel, spills = find_kernel("unroll"), {}
    for side, cap in ((1, 32), (8, 128), (8, 64)):
        chosen = kernel.completed({"TILE": 16, "SIDE": side, "CAP": cap})
        binary = compiled_for(kernel, chosen, kernel.first_problem("cuda"), for_arch("sm_90"))
        assert binary.entry("unroll").registers <= cap
        spills[side, cap] = binary.entry("unroll").spill_bytes
    assert spills[1, 32] == spills[8, 128] == 0 < spills[8, 64]
