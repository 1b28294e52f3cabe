"""The contracts of faults, launches at once and several devices on the CPU device; see contracts/."""

import pytest
from contracts.devices import SeveralDevicesContract
from contracts.faults import FaultContract
from contracts.overlap import OverlapContract

from autotune.devices.choose import backend, choose_device, choose_devices
from autotune.devices.device import Device
from autotune.errors import UsageError


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
class TestFaultsOnOpencl(FaultContract):
    selector = "opencl:cpu"
    timeout_s = 4.0  # all of which a hang takes


# ---------------------------------------------------------------------- Launches at once on the CPU device


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
class TestLaunchesAtOnceOnOpencl(OverlapContract):
    selector = "opencl:cpu"


# ---------------------------------------------------------------------- Several devices in one run


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
class TestSeveralOnOpencl(SeveralDevicesContract):
    selector = "opencl:cpu"


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
class TestChoosing:
    def test_one_and_all(self):
        cpu = choose_device("opencl:cpu")
        assert choose_devices("opencl:cpu") == (cpu,)
        assert cpu in choose_devices("opencl:all")
        assert choose_devices(None) == (choose_device(None),)

    def test_a_device_named_twice(self):
        with pytest.raises(UsageError, match="named twice"):
            choose_devices("opencl:0,opencl:0")

    def test_an_unknown_one_among_several(self):
        with pytest.raises(UsageError, match="unknown device"):
            choose_devices("opencl:0,opencl:77")


def test_devices_of_different_models_are_named(monkeypatch):
    """Two cards of this machine would be needed for a real one; only their list is made up."""
    cards = tuple(
        Device("cuda", name, arch, uuid=f"GPU-{index}", index=index)
        for index, (name, arch) in enumerate(
            [("NVIDIA H100", "sm_90"), ("NVIDIA H100", "sm_90"), ("NVIDIA L4", "sm_89")]
        )
    )
    monkeypatch.setattr(type(backend("cuda")), "devices", lambda _: list(cards))
    assert choose_devices("cuda:0, cuda:1") == cards[:2]
    with pytest.raises(UsageError, match=r"cuda:0 is NVIDIA H100.*cuda:2 is NVIDIA L4"):
        choose_devices("cuda:all")
