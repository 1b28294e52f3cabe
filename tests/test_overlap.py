"""Launches at once on the CPU device; see contracts/overlap.py."""

import pytest
from contracts.overlap import OverlapContract


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
class TestLaunchesAtOnceOnOpencl(OverlapContract):
    selector = "opencl:cpu"
