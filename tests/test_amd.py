"""The portable kernels for AMD's GPUs: compiled by clang alone as HIP and as OpenCL C, run nowhere here."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from autotune.kernel.catalog import find_kernel
from autotune.kernel.source import flattened

#: What HIP's own headers would give, which come with ROCm.
BUILTINS = Path(__file__).with_name("hip_builtins.h")
KERNELS = ("copy", "ffma", "gemv", "prefetch", "reduce", "sgemm", "transpose")
#: CDNA, whose waves have 64 lanes, and RDNA with 32.
WAVES = {"gfx90a": 64, "gfx1030": 32}
SHUFFLED = ("gemv", "reduce")
#: `make test-archs`: every kernel for both.
EVERY = os.environ.get("AUTOTUNE_TEST_ARCHS") == "all"
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
