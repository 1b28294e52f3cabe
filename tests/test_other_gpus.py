"""Shipped kernels on GPUs that nobody tuned: what answers is valid there, and compiles for them."""

import math
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autotune.calling.choice import choose
from autotune.cli.kernels import ptx_of
from autotune.devices.base import BoundLaunch
from autotune.devices.choose import backend, choose_device
from autotune.devices.device import MODELS, Device, for_arch
from autotune.errors import NothingValidError
from autotune.kernel.catalog import find_kernel
from autotune.kernel.launches import launch_sequence
from autotune.kernel.source import flattened
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


# ---------------------------------------------------------------------- The portable kernels for


#: What HIP's own headers would give, which come with ROCm.
BUILTINS = Path(__file__).with_name("hip_builtins.h")
KERNELS = ("copy", "ffma", "gemv", "prefetch", "reduce", "sgemm", "transpose")
#: CDNA, whose waves have 64 lanes, and RDNA with 32.
WAVES = {"gfx90a": 64, "gfx1030": 32}
SHUFFLED = ("gemv", "reduce")
CASES = [
    (kernel, arch, language)
    for kernel in KERNELS
    for arch in WAVES
    for language in ("hip", "cl")
    if EVERY or (kernel == "reduce" and arch == "gfx90a")
]


@pytest.mark.parametrize(("name", "arch", "language"), CASES)
def test_portable_kernels_compile_for_amd(name: str, arch: str, language: str) -> None:
    """To assembly; lanes of a wave are read by number where the kernel shuffles."""
    if shutil.which("clang") is None:
        pytest.skip("no clang; apt-get install clang")
    kernel = find_kernel(name)
    source = flattened(kernel.find_source(kernel.sources.get("portable", f"{name}.cu")))
    targets = {
        "hip": [
            *("-x", "hip", f"--offload-arch={arch}", "--cuda-device-only", "-nogpuinc"),
            *("-nogpulib", "-include", str(BUILTINS)),
        ],
        "cl": [
            *("-x", "cl", "-cl-std=CL2.0", "-D__OPENCL_VERSION__=200", f"-mcpu={arch}"),
            *("--target=amdgcn-amd-amdhsa", "-nogpulib", "-Xclang", "-finclude-default-header"),
        ],
    }
    options = [f"-DWARP={WAVES[arch]}", "-O2", "-S", "-o", "-", "-"]
    done = subprocess.run(
        ["clang", *targets[language], *options], input=source, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert ".amdhsa_kernel" in done.stdout
    assert ("ds_bpermute_b32" in done.stdout) == (name in SHUFFLED)
    assert f".wavefront_size: {WAVES[arch]}" in done.stdout


# ---------------------------------------------------------------------- `dialect


ROOT = Path(__file__).parents[1]
SOURCE = """
#include "dialect.h"
KERNEL_3D(4, 2, 3, 0) k(GLOBAL float* out, int n) {
    const int block = (BID(2) * GRID(1) + BID(1)) * GRID(0) + BID(0);
    const int i = block * 24 + (TID(2) * 2 + TID(1)) * 4 + TID(0);
    if (i < n) out[i] = i % 5 == 0 ? -INFINITY : i % 5 == 1 ? NAN : i % 5 == 2 ? FLT_MAX : i;
    if (DBL_MAX < 1 || FLT_EPSILON > 1) out[0] = 0.0f;
}
"""


def test_every_word_is_in_the_reference():
    header = (ROOT / "kernels" / "dialect.h").read_text()
    page = (ROOT / "docs" / "spaces.md").read_text().partition("\n## Words of dialect.h\n")[2]
    words = set(re.findall(r"#define (\w+)|\btypedef .*?(\w+);|static inline \w+ (\w+)\(", header))
    names = {name for found in words for name in found if name}
    own = {name for name in names if not name.startswith("DIALECT_")}  # the others join these
    assert len(own) > 40
    assert own - set(re.findall(r"`(\w+)", page)) == set()


@pytest.fixture
def compiled(tmp_path):
    def made(device, options=(), before=""):
        file = tmp_path / "k.cu"
        file.write_text(before + SOURCE)
        return backend(device.backend).compile(flattened(file), {}, options, device, ("k",))

    return made


def test_nvrtc_knows_the_limits_also_beside_its_own_headers(compiled):
    pytest.importorskip("cuda.bindings.nvrtc")
    for headers in ("", "#include <cuda/std/cfloat>\n#include <cuda/std/limits>\n"):
        assert compiled(for_arch("sm_90"), before=headers).entry("k").registers


@pytest.mark.opencl
def test_blocks_and_grids_have_three_dimensions(compiled, opencl_device):
    device = choose_device(opencl_device)
    executor = backend("opencl").open(device)
    count = 24 * 2 * 3 * 5
    out = executor.allocate(4 * count)
    module = executor.load(compiled(device), {})
    launch = BoundLaunch("k", (2, 3, 5), (4, 2, 3), 0, (out, np.int32(count)))
    executor.run(module, [launch])
    found = executor.read(out, np.dtype(np.float32), (count,))
    expected = np.arange(count, dtype=np.float32)
    limits = (-np.inf, np.nan, np.finfo(np.float32).max)
    for first, limit in enumerate(limits):
        expected[first::5] = limit
    np.testing.assert_array_equal(found, expected)
