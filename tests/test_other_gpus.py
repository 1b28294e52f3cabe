"""Shipped kernels on GPUs that nobody tuned: what answers is valid there, and compiles for them."""

import math
import os
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.calling.choice import choose
from autotune.cli.kernels import ptx_of
from autotune.devices.device import MODELS, Device, for_arch
from autotune.errors import NothingValidError
from autotune.kernel.catalog import find_kernel
from autotune.kernel.launches import launch_sequence
from autotune.kernel.space import is_member
from autotune.measure.compiler import compiled_for
from autotune.tuned.lookup import lookup
from autotune.tuned.reading import read
from autotune.values import Configuration, Problem

REPORTS = Path(__file__).parent.parent / "reports"
RECORDS = [read(file) for file in sorted(REPORTS.glob("*H100*/*.json"))]
#: One of each architecture, by the driver's name, with a kernel that is compiled for it.
GPUS = {
    "Tesla T4": "copy",
    "NVIDIA A100-SXM4-40GB": "gemv",
    "NVIDIA GeForce RTX 3090": "sgemm",
    "NVIDIA L40S": "transpose",
    "NVIDIA B200": "reduce",
    "NVIDIA GeForce RTX 5090": "prefetch",
}
#: `make test-archs`: every kernel and problem is compiled for each, which takes two minutes.
EVERY = os.environ.get("AUTOTUNE_TEST_ARCHS") == "all"


@pytest.fixture(autouse=True)
def shipped_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine's; a constant folder, so that the tables are made once."""
    monkeypatch.setenv("AUTOTUNE_TUNED", str(REPORTS))
    monkeypatch.setenv("XDG_DATA_HOME", str(REPORTS / "none"))


def device_of(model: str) -> Device:
    """A GPU by the published limits of its architecture."""
    return replace(for_arch(MODELS[model]), name=model)


@pytest.mark.filterwarnings("ignore:.*nothing is recorded")
@pytest.mark.parametrize("model", GPUS)
def test_answers_are_valid_on_gpus_that_nobody_tuned(model: str) -> None:
    """For tuned problems; lookup says so where nothing that was tuned is."""
    device = device_of(model)
    compiled: set[tuple[str, Configuration]] = set()
    for record in RECORDS:
        kernel = find_kernel(record.kernel)
        for entry in record.problems[:: 1 if EVERY else 4]:
            problem = Problem(dict(entry.problem))
            found = lookup(kernel.name, device=model, **problem)
            if found.quality == "default":
                assert found.requires_met == is_member(kernel, found, device)
            else:
                assert (found.quality, found.expected_fraction) == ("nearest_arch", None)
                assert is_member(kernel, found, device)
            try:
                chosen = choose(kernel, problem, device).configuration
            except NothingValidError as error:
                assert (kernel.name, model) == ("sgemm_tf32x3", "Tesla T4"), error
                continue
            assert kernel.allows(chosen, problem)
            if found.requires_met:
                assert chosen == Configuration(dict(found))
            wanted = EVERY or (kernel.name == GPUS[model] and not compiled)
            if wanted and (kernel.name, chosen) not in compiled:
                compiled.add((kernel.name, chosen))
                assert_fits(kernel.name, chosen, problem, device)
    assert compiled


def assert_fits(name: str, configuration: Configuration, problem: Problem, device: Device) -> None:
    """It compiles, and every launch keeps the limits of the device."""
    kernel = find_kernel(name)
    binary = compiled_for(kernel, configuration, problem, device)
    for launch in launch_sequence(kernel, configuration, problem, device).launches:
        function = binary.entry(launch.entry)
        assert function is not None
        threads = math.prod(launch.block)
        assert threads <= device.max_threads_per_block
        # Registers are handed out to warps, eight a thread at a time.
        registers = 8 * math.ceil((function.registers or 0) / 8) * 32 * math.ceil(threads / 32)
        assert registers <= device.registers_per_sm
        shared_bytes = launch.shared_bytes + (function.shared_bytes or 0)
        assert shared_bytes <= device.shared_bytes_per_block


@pytest.mark.parametrize("name", ["ffma", "sgemm"])
@pytest.mark.parametrize(
    ("arch", "is_paired"), [("sm_90", False), ("sm_100", True), ("sm_103", True), ("sm_120", False)]
)
def test_multiply_adds_are_paired_where_an_instruction_has_two(
    name: str, arch: str, is_paired: bool
) -> None:
    """All of the inner loop, or none."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="pip install '.[nvrtc]'")
    kernel = find_kernel(name)
    configuration = kernel.completed(kernel.seeds[0])
    ptx = ptx_of(kernel, configuration, kernel.first_problem("cuda"), for_arch(arch))
    paired, single = ptx.count("fma.rn.f32x2"), ptx.count("fma.rn.f32 ")
    assert min(paired, single) < 0.2 * max(paired, single)
    assert (paired > single) == is_paired
