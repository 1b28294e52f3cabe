"""Faulty kernels on the CPU device; see contracts/faults.py."""

import pytest
from contracts.faults import FaultContract


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
class TestFaultsOnOpencl(FaultContract):
    selector = "opencl:cpu"
    timeout_s = 4.0  # all of which a hang takes
