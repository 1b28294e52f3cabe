"""Several devices in one run, with one GPU in the place of two; see contracts/devices.py."""

import pytest
from contracts.devices import SeveralDevicesContract


@pytest.mark.gpu
class TestSeveralOnCuda(SeveralDevicesContract):
    selector = "cuda:0"
