"""Devices as values: names for folders and the command line, limits of an architecture."""

import pytest

from autotune.devices.device import Device, for_arch
from autotune.errors import UsageError


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
