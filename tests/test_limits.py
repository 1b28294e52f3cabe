"""What a device can do at best, and times that cannot be true."""

import json
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from sample_records import change
from sample_spaces import write_space

from autotune.cli import run
from autotune.devices.choose import choose_device
from autotune.devices.device import Device
from autotune.kernel.catalog import find_kernel, load_file
from autotune.kernel.spec import Work
from autotune.measure.roofline import credible, implausible, is_memory_bound, least_ms, share
from autotune.measure.timing import Caches
from autotune.run.device_limits import known_limits, limit_problem, limit_requests
from autotune.run.request import Request
from autotune.values import Problem

pytestmark = pytest.mark.usefixtures("kept_processes")

#: 1000 GB/s, 10 TFLOP/s, 1 MB of L2: 1 ms moves 1 GB or does 10 GFLOP.
DEVICE = Device(
    "cuda", "x", "sm_90", l2_bytes=1_000_000, peak_gb_per_s=1000.0, peak_gflop_per_s=10_000.0
)


@pytest.mark.parametrize(
    ("work", "ms"),
    [
        (Work(bytes_read=1e9), 1.0),
        (Work(flops=1e10, bytes_read=2e9), 2.0),
        (Work(bytes_read=1e9, bytes_written=1e9 + 1e6), 2.0),
        (Work(bytes_written=1e6), 0.0),  # may all still be in L2
        (Work(flops=1e10, pipe="tensor"), 0.0),  # its peak is not known
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


@pytest.mark.parametrize(
    ("n", "changes", "said", "caches"),
    [
        (249_999, {}, None, Caches.MIXED),  # a million bytes, with the sum
        (250_000, {}, None, Caches.COLD),
        (250_000, {}, Caches.MIXED, Caches.MIXED),
        (249_999, {}, Caches.COLD, Caches.COLD),
        (249_999, {"backend": "opencl"}, None, Caches.COLD),
    ],
)
def test_what_fits_a_gpus_cache_is_timed_mixed_unless_something_is_said(n, changes, said, caches):
    problem, device = Problem(n=n), replace(DEVICE, **changes)
    request = Request(find_kernel("reduce"), device, (problem,), caches=said)
    assert request.caches_of(problem) is caches
    assert request.timing_of(problem).caches is caches


def test_a_kernel_that_does_not_tell_its_work_is_timed_cold(tmp_path):
    kernel, problem = load_file(write_space(tmp_path)), Problem(n=1000)
    assert Request(kernel, DEVICE, (problem,)).caches_of(problem) is Caches.COLD


def test_a_hot_time_may_beat_the_memory():
    assert implausible(0.1, Work(bytes_read=1e9), DEVICE, cold=False) == ""


MEASURED = {"read": 800.0, "copy": 500.0, "ffma": 8_000.0}


@pytest.mark.parametrize(
    ("work", "ms", "expected"),
    [
        (Work(bytes_read=8e8), 2.0, (0.5, "read")),
        (Work(bytes_read=8e8, bytes_written=7e6), 1.0, (1.00875, "read")),  # a sum's few results
        (Work(bytes_read=5e8, bytes_written=5e8), 4.0, (0.5, "copy")),
        (Work(flops=8e9, bytes_read=4e8), 2.0, (0.5, "ffma")),
        (Work(flops=8e12, bytes_read=8e8, pipe="tensor"), 1.0, (1.0, "read")),
    ],
)
def test_the_share_is_of_the_limit_that_binds(work, ms, expected):
    found, name = share(work, ms, MEASURED)
    assert (found, name) == (pytest.approx(expected[0]), expected[1])


def test_products_on_tensor_cores_have_a_limit_where_it_was_measured():
    """Elsewhere the memory alone limits them, and nothing says whether it does."""
    large = Work(flops=8e12, bytes_read=4e8, bytes_written=4e8, pipe="tensor")
    flat = replace(large, flops=8e10)
    limits = MEASURED | {"tensor": 400_000.0}
    assert share(large, 40.0, limits) == (pytest.approx(0.5), "tensor")
    assert share(flat, 3.2, limits) == (pytest.approx(0.5), "copy")
    assert share(large, 3.2, MEASURED) == (pytest.approx(0.5), "copy")
    assert [is_memory_bound(work, limits) for work in (large, flat)] == [False, True]
    assert [is_memory_bound(work, MEASURED) for work in (large, flat)] == [False, False]
    assert share(replace(large, pipe="tf32x3"), 3.2, limits) == (pytest.approx(0.5), "copy")


def test_without_measured_limits_there_is_no_share():
    assert share(Work(flops=1), 1.0, {}) == (None, None)


@pytest.mark.parametrize(
    ("rate", "why"),
    [
        (("copy", 1040.0), "copy limit is recorded at 1.04 times"),
        (("read", 490.0), "read limit is recorded at 0.49 times"),
        (("ffma", 4_900.0), "ffma limit is recorded at 0.49 times"),
    ],
)
def test_a_rate_that_cannot_be_the_limit_is_not_used(rate, why):
    kept, doubts = credible(MEASURED | dict([rate]), DEVICE)
    assert kept == {name: known for name, known in MEASURED.items() if name != rate[0]}
    assert len(doubts) == 1 and why in doubts[0]


# ---------------------------------------------------------------- known from records

H100 = Device(
    backend="cuda",
    name="NVIDIA H100 80GB HBM3",
    arch="sm_90",
    sm_count=132,
    memory_bytes=80 << 30,
    peak_gb_per_s=3352.0,
    peak_gflop_per_s=66900.0,
)
SHIPPED = Path(__file__).parents[1] / "reports" / H100.folder / "copy.json"


@pytest.fixture
def edit(tmp_path, monkeypatch):
    """Makes a record of an own layer: the shipped one with entries of one mode changed."""
    monkeypatch.setenv("AUTOTUNE_TUNED", str(tmp_path))

    def write(mode, **changes):
        document = json.loads(SHIPPED.read_text())
        for entry in document["problems"]:
            if entry["problem"]["mode"] == mode:
                change(entry, **changes)
        by_problem = {str(entry["problem"]): entry for entry in document["problems"]}
        document["problems"] = list(by_problem.values())
        file = tmp_path / H100.folder / "copy.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(document))

    return write


def test_the_limits_are_the_largest_recorded_copies():
    entries = json.loads(SHIPPED.read_text())["problems"]
    largest = {
        entry["problem"]["mode"]: entry for entry in entries if entry["problem"]["n"] == 1 << 30
    }
    limits = known_limits(H100)
    assert limits["read"] == largest["read"]["gb_per_s"]
    assert limits["copy"] == largest["copy"]["gb_per_s"]


def test_an_own_record_comes_before_what_ships(edit):
    edit("read", gb_per_s=3000.0)
    assert known_limits(H100)["read"] == 3000.0


@pytest.mark.parametrize(
    "changes",
    [
        {"timing": "hot:graph"},
        {"timing": "mixed:graph"},
        {"gb_per_s": None},
        {"problem": {"n": 1 << 28, "mode": "read", "offset_in": 0, "offset_out": 0}, "steps": []},
        {"problem": {"n": 1 << 30, "mode": "read", "offset_in": 1, "offset_out": 0}, "steps": []},
    ],
)
def test_what_tells_no_limit_is_passed_over(edit, changes):
    """Warm caches, too little data, another problem: the shipped record answers."""
    shipped = known_limits(H100)
    edit("read", **changes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the record itself is read
        assert known_limits(H100) == shipped


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_rate_of_tensor_cores_is_that_of_halves(tmp_path, monkeypatch, dtype):
    """Read from a record of hmma, of as many rows as the device's multiprocessors ask for."""
    monkeypatch.setenv("AUTOTUNE_TUNED", str(tmp_path))
    document = json.loads((SHIPPED.parent / "ffma.json").read_text())
    wanted = limit_problem("tensor", H100)
    assert wanted in find_kernel("hmma").problems["cuda"]
    for entry in document["problems"]:
        wanted = {**wanted, "dtype": dtype}
        change(entry, problem=wanted, steps=[], verified=[], gflop_per_s=8e5, gb_per_s=25.0)
    fields = {"m": "integer", "n": "integer", "steps": "integer", "dtype": "categorical"}
    document |= {"kernel": "hmma", "fields": fields, "problems": document["problems"][:1]}
    del document["portfolio"]
    file = tmp_path / H100.folder / "hmma.json"
    file.parent.mkdir()
    file.write_text(json.dumps(document))
    shipped = json.loads((SHIPPED.parent / "hmma.json").read_text())["problems"][0]["gflop_per_s"]
    assert known_limits(H100)["tensor"] == (8e5 if dtype == "float16" else shipped)


@pytest.mark.parametrize(("arch", "names"), [("sm_75", ()), ("sm_80", ("hmma",))])
def test_a_device_without_these_tensor_cores_measures_the_other_limits(arch, names):
    requests = limit_requests(replace(H100, uuid="GPU-x", arch=arch))
    assert [request.kernel.name for request in requests] == ["copy", "ffma", *names]


def test_another_device_or_a_slice_has_no_limits_yet():
    assert known_limits(replace(H100, name="NVIDIA H100 PCIe")) == {}
    assert known_limits(replace(H100, sm_count=16)) == {}


@pytest.mark.full
def test_doctor_tunes_limits_into_the_users_records(opencl_device, capsys):
    device = choose_device(opencl_device)
    assert known_limits(device) == {}
    assert run(["doctor", "--limits", "--json", "--device", opencl_device]) == 0
    shown, limits = json.loads(capsys.readouterr().out), known_limits(device)
    assert limits.keys() == {"read", "copy", "ffma"}
    assert shown == {"name": device.name, "uuid": device.uuid, "limits": limits}
