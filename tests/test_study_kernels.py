"""Kernels of the study notes: a sample of each compiles and is right, and one that misses an element is refused."""

from __future__ import annotations

import inspect
import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from autotune import Constant, Problem
from autotune.cli.kernels import ptx_of
from autotune.devices.choose import choose_device
from autotune.devices.device import for_arch
from autotune.kernel.catalog import find_kernel, load_file
from autotune.measure.compiler import compiled_for
from autotune.measure.data import Draw
from autotune.measure.measurement import Status
from autotune.run.bench import Bench
from autotune.run.checking import check_kernel
from autotune.run.request import Request
from autotune.values import Value

ROOT = Path(__file__).parents[1]
#: Of each kernel a piece of its source, and one that leaves an element out or doubles it.
MUTATIONS = {
    "banks": ("read < READS;", "read < READS - 1;"),
    "branch": ("if (i >= n) return;", "if (i >= n - 1) return;"),
    "chase": ("step < steps;", "step < steps - 1;"),
    "conv1d": ("j < TAPS; ++j) {", "j < TAPS - 1; ++j) {"),
    "elementwise": (
        "const i64 count = CONCAT ? n + m : n",
        "const i64 count = (CONCAT ? n + m : n) - 1",
    ),
    "gather": ("const i64 first =", "n -= 1;\n    const i64 first ="),
    "particles": ("const i64 first =", "n -= 1;\n    const i64 first ="),
    "pitch": ("const int across =", "n -= 1;\n    const int across ="),
    "reduce_op": ("if (first + tid + i * BLOCK < end)", "if (first + tid + i * BLOCK < end - 1)"),
    "spmm": ("for (; entry < end; ++entry)", "for (; entry < end - 1; ++entry)"),
    "table": ("if (i >= n) return;", "if (i >= n - 1) return;"),
    "triangles": ("const int u =", "n -= 1;\n    const int u ="),
    "unroll": ("k0 += TILE) {", "k0 += TILE + 1) {"),
}
CUDA = ("sm_80", "sm_90", "sm_120")


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device", "kept_processes")
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_sample_is_right(name: str) -> None:
    """On the CPU, at odd sizes too; and the data show each missing element."""
    report = check_kernel(find_kernel(name), (), samples=1, seed=1)
    assert report.failures == []
    assert report.unseen == []
    assert {row["result"] for row in report.samples} == {"verified"}


@pytest.mark.opencl
@pytest.mark.usefixtures("kept_processes")
@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("gather", {"STAGE": "shuffle", "ITEMS": 2}),
        ("branch", {"FORM": "sorted", "ITEMS": 2}),
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
    """What few samples have; all edge problems that it allows."""
    kernel, device = find_kernel(name), choose_device(opencl_device)
    width = {"WARP": device.warp_size} if "WARP" in kernel.parameters else {}
    configuration = kernel.completed({**chosen, **width})
    edges = [edge for edge in kernel.edges_on(device) if kernel.allows(configuration, edge)]
    assert edges
    with closing(Bench(Request(kernel, device, tuple(edges)))) as bench:
        for edge in edges:
            binary = bench.compilers.result(bench.compile_job(configuration, edge)).binary
            assert binary is not None
            found = bench.worker.check(bench.job(edge), configuration, binary)
            assert found.status is Status.OK, f"{edge}: {found.message}"


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device", "kept_processes")
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_missing_element_is_refused(name: str, tmp_path: Path) -> None:
    for folder in ("kernels", "spaces"):
        (tmp_path / folder).mkdir()
    for header in (ROOT / "kernels").glob("*.h"):
        shutil.copy(header, tmp_path / "kernels")
    shutil.copy(ROOT / "spaces" / f"{name}.py", tmp_path / "spaces")
    text, (right, wrong) = (ROOT / "kernels" / f"{name}.cu").read_text(), MUTATIONS[name]
    assert right in text
    (tmp_path / "kernels" / f"{name}.cu").write_text(text.replace(right, wrong))
    report = check_kernel(load_file(tmp_path / "spaces" / f"{name}.py"), (), samples=1, seed=1)
    assert "wrong_result" in report.samples[-1]["problem"]


@pytest.mark.parametrize("name", [*MUTATIONS, "hmma"])
def test_the_default_compiles_for_gpus(name: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="pip install '.[nvrtc]'")
    kernel = find_kernel(name)
    for arch in CUDA:
        binary = compiled_for(
            kernel, kernel.default(), kernel.first_problem("cuda"), for_arch(arch)
        )
        assert binary.entry(name).spill_bytes == 0


def test_vendor_calls_take_the_arguments_of_their_kernel() -> None:
    """An array in constant memory is none of them."""
    for kernel in map(find_kernel, MUTATIONS):
        for problem in kernel.edge_problems:
            given = kernel.call_hook("arguments", problem, Draw(True, 0))
            names = [name for name, value in given.items() if not isinstance(value, Constant)]
            for call in kernel.baselines:
                inspect.signature(call.prepare).bind(**dict.fromkeys(names))


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
