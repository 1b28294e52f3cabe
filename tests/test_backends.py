"""The backends that a machine without a GPU has: OpenCL on the CPU, and CUDA's compiler."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from contracts.backend import CompileContract, ExecutorContract, source

from autotune.devices.base import BoundLaunch, CompileError, LaunchError, ResourceError
from autotune.devices.choose import backend, choose_device
from autotune.devices.device import Device, for_arch
from autotune.errors import DeviceError, UsageError


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
class TestCompilingForOpencl(CompileContract):
    name = "opencl"

    @pytest.fixture
    def device(self):
        return choose_device("opencl:cpu")

    def test_its_own_options_are_passed_and_those_of_another_compiler_refused(self, device):
        text = source() + "\n#ifdef __FAST_RELAXED_MATH__\n#error relaxed\n#endif\n"
        assert self.compiled(device, text, "-w", "-DUNUSED=1", "-cl-std=CL1.2").code
        with pytest.raises(CompileError, match="relaxed"):
            self.compiled(device, text, "-cl-fast-relaxed-math")
        for option in ("-maxrregcount=32", "--use_fast_math", "sm_90a", "-gencode"):
            with pytest.raises(CompileError):
                self.compiled(device, text, option)

    def test_what_does_not_compile_leaves_no_file(self, device, tmp_path, monkeypatch):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        with pytest.raises(CompileError, match="nothing"):
            self.compiled(device, "#error nothing\n" + source())
        assert list(tmp_path.iterdir()) == []

    def test_the_dialect_is_really_compiled_as_opencl(self, device):
        assert self.compiled(device, "#ifndef __OPENCL_VERSION__\n#error\n#endif\n" + source()).code


@pytest.fixture(scope="module")
def _nvrtc():
    pytest.importorskip("cuda.bindings.nvrtc", reason="pip install '.[nvrtc]'")


@pytest.mark.usefixtures("_nvrtc")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
class TestCompilingForCuda(CompileContract):
    """Without a device or a driver, for any architecture."""

    name = "cuda"

    @pytest.fixture
    def device(self, arch):
        return for_arch(arch)

    @pytest.fixture(autouse=True)
    def _every_test_per_arch(self, arch):
        """A class is parametrized as a whole, also tests that need no device."""

    def test_registers_and_spills_are_reported(self, device):
        entry = self.compiled(device, source()).entry("spin")
        assert 4 <= entry.registers <= 64
        assert entry.spill_bytes == 0

    def test_too_much_static_shared_memory_is_a_lack_of_resources(self, device):
        """Not the source's fault: the evaluator counts it as pruned."""
        text = (
            'extern "C" __global__ void k(float* x) {\n'
            "  __shared__ float s[1 << 16]; s[threadIdx.x] = x[0]; __syncthreads();\n"
            "  x[0] = s[threadIdx.x + 1];\n}\n"
        )
        with pytest.raises(ResourceError, match="shared"):
            self.compiled(device, text)

    def test_warnings_are_kept_and_the_resource_report_is_not_among_them(self, device):
        text = 'extern "C" __global__ void k(float* x) { int unused; x[0] = 1; }\n'
        log = self.compiled(device, text).log
        assert "unused" in log
        assert "ptxas" not in log

    def test_the_same_source_gives_the_same_code(self, device):
        """Configurations whose code is equal share one measurement."""
        code, same = (self.compiled(device, source(), UNUSED=number).code for number in (1, 2))
        assert code == same
        assert self.compiled(device, source(), FACTOR=3).code != code

    def test_headers_of_the_toolkit_are_found(self, device):
        text = "#include <cuda_fp16.h>\n#include <cuda/std/array>\n" + source()
        assert self.compiled(device, text).code


@pytest.mark.usefixtures("_nvrtc")
def test_an_option_can_name_the_architecture_specific_target():
    text = (
        "#ifndef __CUDA_ARCH_FEAT_SM90_ALL\n#error plain\n#endif\n"
        'extern "C" __global__ void k() {}\n'
    )
    # The macro exists while device code is compiled only; NVRTC compiles nothing else.
    assert backend("cuda").compile(text, {}, ("sm_90a",), for_arch("sm_90")).code
    with pytest.raises(CompileError, match="plain"):
        backend("cuda").compile(text, {}, (), for_arch("sm_90"))


@pytest.mark.usefixtures("_nvrtc")
def test_a_standard_can_be_chosen_and_is_cpp17_otherwise():
    text = '#if __cplusplus != {}\n#error standard\n#endif\nextern "C" __global__ void k() {{}}\n'
    cuda, device = backend("cuda"), for_arch("sm_90")
    assert cuda.compile(text.format("201703L"), {}, (), device).code
    assert cuda.compile(text.format("202002L"), {}, ("-std=c++20",), device).code


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
class TestExecutingOnOpencl(ExecutorContract):
    selector = "opencl:cpu"

    def test_what_opencl_lacks_is_said(self, executor, module):
        binary = backend("opencl").compile(source(), {}, (), executor.device)
        with pytest.raises(LaunchError, match="pass constants as inputs"):
            executor.load(binary, {"taps": np.ones(3, np.float32)})
        step = BoundLaunch("poke", (1, 1, 1), (1, 1, 1), 512, (executor.allocate(4), 0, 0))
        with pytest.raises(LaunchError, match="no dynamic shared memory"):
            executor.run(module, [step])

    @pytest.mark.parametrize("count", [0, 2, 4])
    def test_a_wrong_number_of_arguments_is_a_refusal(self, executor, module, count):
        args = (executor.allocate(4), *[np.int32(0)] * 3)[:count]
        with pytest.raises(LaunchError, match="poke"):
            executor.run(module, [BoundLaunch("poke", (1, 1, 1), (1, 1, 1), 0, args)])

    def test_a_device_that_went_away_is_told(self, executor):
        gone = replace(executor.device, index=99)
        with pytest.raises(DeviceError, match="no longer there"):
            backend("opencl").open(gone)


# ---------------------------------------------------------------- choosing


def test_the_first_usable_device_is_chosen_among_the_kernels_backends(opencl_device):
    assert choose_device(None, ("opencl",)) == backend("opencl").devices()[0]
    assert choose_device("opencl") == backend("opencl").devices()[0]
    assert choose_device(opencl_device).arch == "opencl_cpu"


@pytest.mark.parametrize(
    ("selector", "backends", "message"),
    [
        ("cdua:0", ("cuda", "opencl"), "unknown device 'cdua:0'; did you mean 'cuda:0'"),
        ("", ("cuda", "opencl"), "unknown device ''"),
        ("opencl:cpu", ("cuda",), "this kernel runs on cuda only; .*with dialect.h"),
        ("opencl:99", ("opencl",), "unknown device 'opencl:99'.*known: .*opencl:0"),
        ("opencl:fpga", ("opencl",), "unknown device 'opencl:fpga'"),
    ],
)
def test_a_selector_that_names_no_device_is_refused(opencl_device, selector, backends, message):
    with pytest.raises(UsageError, match=message):
        choose_device(selector, backends)


def test_without_a_usable_device_the_reason_of_each_backend_is_given():
    """In a process of its own that sees no GPU, also where there is one."""
    code = (
        "from autotune.devices.choose import choose_device\n"
        "from autotune.errors import DeviceError\n"
        "for selector, backends in (('cuda:0', ('cuda', 'opencl')), (None, ('cuda',))):\n"
        "    try:\n"
        "        choose_device(selector, backends)\n"
        "    except DeviceError as error:\n"
        "        print(error)\n"
    )
    blind = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], env=blind, capture_output=True, text=True, check=True
    )
    asked, none = done.stdout.splitlines()
    assert asked.startswith("device cuda:0: ")
    assert none.startswith("no usable device. cuda: ")
    assert "run: " in asked
    assert "run: " in none
    assert "autotune check" in none


@pytest.mark.parametrize("error", [ImportError("cuda.bindings"), RuntimeError("cuInit failed")])
def test_without_a_driver_cuda_has_no_devices(monkeypatch, error):
    def fails():
        raise error

    monkeypatch.setattr("autotune.devices.cuda_backend._devices", fails)
    assert backend("cuda").devices() == []


def test_an_unknown_backend_is_refused():
    with pytest.raises(UsageError, match="unknown backend 'metal'"):
        backend("metal")


# ---------------------------------------------------------------------- Devices as


@pytest.mark.parametrize(
    ("device", "folder"),
    [
        (Device("cuda", "NVIDIA H100 80GB HBM3", "sm_90"), "NVIDIA_H100_80GB_HBM3"),
        (
            Device("opencl", "Intel(R) Xeon(R) CPU @ 2.0", "opencl_cpu"),
            "opencl_Intel_R_Xeon_R_CPU_2_0",
        ),
        (Device("cuda", "../../etc/passwd", "sm_90"), "etc_passwd"),
        (Device("cuda", "显卡", "sm_90"), "sm_90"),
        (Device("cuda", "..", "../../etc"), "etc"),
        (Device("cuda", "", ""), "device"),
    ],
)
def test_a_device_name_becomes_a_folder_of_letters_digits_and_underscores(device, folder):
    """A driver's name is not ours: it must neither leave the folder nor be empty."""
    assert device.folder == folder


def test_the_selector_names_backend_and_index():
    assert Device("cuda", "x", "sm_90", index=3).selector == "cuda:3"


@pytest.mark.parametrize(
    ("arch", "capability"), [("sm_75", 75), ("sm_90a", 90), ("sm_120", 120), ("opencl_cpu", 0)]
)
def test_the_compute_capability_is_one_number(arch, capability):
    assert Device("cuda", "x", arch).compute_capability == capability


@pytest.mark.parametrize(
    ("arch", "block", "threads"),
    [("sm_80", 163 * 1024, 2048), ("sm_86", 99 * 1024, 1536), ("sm_90", 227 * 1024, 2048)],
)
def test_published_limits(arch, block, threads):
    """Shared memory per block is the SM's less 1 KiB that the driver keeps (CUDA guide)."""
    device = for_arch(arch)
    assert device.shared_bytes_per_block == block
    assert device.max_threads_per_sm == threads
    assert (device.backend, device.arch, device.uuid) == ("cuda", arch, "")


def test_the_architecture_specific_target_has_the_same_limits():
    assert for_arch("sm_90a").shared_bytes_per_block == for_arch("sm_90").shared_bytes_per_block
    assert for_arch("sm_90a").arch == "sm_90a"


@pytest.mark.parametrize("arch", ["sm_70", "sm_900", "sm_90b", "90", "", "sm_90 "])
def test_an_unknown_architecture_lists_the_known(arch):
    with pytest.raises(UsageError, match=r"unknown architecture .*sm_80, .*sm_120"):
        for_arch(arch)


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_87", "sm_89", "sm_90", "sm_100", "sm_120"])
def test_a_block_never_gets_more_shared_memory_than_the_multiprocessor_has(arch):
    device = for_arch(arch)
    assert 48 * 1024 <= device.shared_bytes_per_block <= device.shared_bytes_per_sm
