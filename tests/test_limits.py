"""What a device can do at best, and times that cannot be true."""

from dataclasses import replace

import pytest

from autotune.devices.device import Device
from autotune.kernel.spec import Work
from autotune.measure.limits import implausible, least_ms, share
from autotune.measure.probe import MeasuredLimits

#: 1000 GB/s, 10 TFLOP/s, 1 MB of L2: 1 ms moves 1 GB or does 10 GFLOP.
DEVICE = Device(
    "cuda", "x", "sm_90", l2_bytes=1_000_000, peak_gb_per_s=1000.0, peak_gflop_per_s=10_000.0
)


@pytest.mark.parametrize(
    ("work", "ms"),
    [
        (Work(flops=1e10), 1.0),
        (Work(bytes_read=1e9), 1.0),
        (Work(flops=1e10, bytes_read=2e9), 2.0),
        (Work(flops=3e10, bytes_read=2e9), 3.0),
        (Work(bytes_read=1e9, bytes_written=1e9 + 1e6), 2.0),
        (Work(bytes_written=1e6), 0.0),  # may all still be in L2
        (Work(bytes_written=1e6 + 1e9), 1.0),
        (Work(flops=1e10, pipe="tensor"), 0.0),  # its peak is not known
        (Work(), 0.0),
    ],
)
def test_the_bound_is_the_slower_of_arithmetic_and_memory(work, ms):
    assert least_ms(work, DEVICE) == pytest.approx(ms)


def test_a_device_that_does_not_know_its_peaks_bounds_nothing():
    blind = replace(DEVICE, peak_gb_per_s=0.0, peak_gflop_per_s=0.0)
    assert least_ms(Work(flops=1e15, bytes_read=1e15), blind) == 0.0
    assert implausible(1e-9, Work(flops=1e15), blind, cold=True) == ""


def test_a_time_is_implausible_only_below_the_bound_by_its_margin():
    work = Work(bytes_read=1e9)
    assert implausible(0.971, work, DEVICE, cold=True) == ""
    message = implausible(0.969, work, DEVICE, cold=True)
    assert "0.969 ms is below the device's bound of 0.97 ms" in message


def test_a_hot_time_may_beat_the_memory():
    assert implausible(0.1, Work(bytes_read=1e9), DEVICE, cold=False) == ""


MEASURED = MeasuredLimits(
    uuid="u",
    name="x",
    driver="d",
    read_gb_per_s=800.0,
    copy_gb_per_s=500.0,
    ffma_gflop_per_s=8_000.0,
    launch_us=2.0,
    measured_on="2026-01-01",
)


@pytest.mark.parametrize(
    ("work", "ms", "expected"),
    [
        (Work(bytes_read=8e8), 2.0, (0.5, "read")),
        (Work(bytes_read=8e8, bytes_written=7e6), 1.0, (1.00875, "read")),  # a sum's few results
        (Work(bytes_read=5e8, bytes_written=5e8), 4.0, (0.5, "copy")),
        (Work(bytes_written=1e9), 2.0, (1.0, "copy")),
        (Work(flops=8e9, bytes_read=4e8), 2.0, (0.5, "ffma")),
        (Work(flops=8e9, bytes_read=16e8), 4.0, (0.5, "read")),
        (Work(flops=8e12, bytes_read=8e8, pipe="tensor"), 1.0, (1.0, "read")),
    ],
)
def test_the_share_is_of_the_limit_that_binds(work, ms, expected):
    found, name = share(work, ms, MEASURED)
    assert (found, name) == (pytest.approx(expected[0]), expected[1])


def test_without_measured_limits_there_is_no_share():
    assert share(Work(flops=1), 1.0, None) == (None, None)
