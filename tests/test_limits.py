"""What a device can do at best, and times that cannot be true."""

import json
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from sample_records import change
from sample_spaces import write_space

from autotune.cli import run
from autotune.devices.device import Device
from autotune.kernel.catalog import find_kernel, load_file
from autotune.kernel.spec import Work
from autotune.measure.roofline import (
    DeviceLimit,
    credible,
    device_limit,
    implausible,
    is_memory_bound,
    least_ms,
    memory_limit,
)
from autotune.measure.timing import Caches, Timing
from autotune.run.device_limits import known_limits, limit_problem, limit_requests
from autotune.run.request import Request
from autotune.tuned.reading import read_all
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


MEASURED = {"read": 800.0, "copy": 500.0, "ffma": 8_000.0}


@pytest.mark.parametrize(
    ("work", "ms", "expected"),
    [
        (Work(bytes_read=8e8), 2.0, (0.5, "read")),
        (Work(bytes_read=8e8, bytes_written=7e6), 1.0, (1.00875, "read")),  # a sum's few results
        (Work(bytes_read=5e8, bytes_written=5e8), 4.0, (0.5, "copy")),
        (Work(bytes_read=2e8, bytes_written=8e8), 4.0, (0.5, "copy")),
        # 0.5 GB are copied in 1 ms; 0.4 GB are only read, in 0.5 ms
        (Work(bytes_read=6.5e8, bytes_written=2.5e8), 3.0, (0.5, "read+copy")),
        (Work(flops=8e9, bytes_read=4e8), 2.0, (0.5, "ffma")),
    ],
)
def test_the_share_is_of_the_limit_that_binds(work, ms, expected):
    limit = device_limit(work, MEASURED, Caches.COLD)
    assert (limit.share(ms), limit.name) == (pytest.approx(expected[0]), expected[1])


@pytest.mark.parametrize("written", [0.0, 5e6, 2e7, 1e8, 3e8, 5e8])
def test_a_mix_of_reads_and_writes_has_a_limit_between_that_of_reads_and_of_a_copy(written):
    limit = memory_limit(Work(bytes_read=1e9 - written, bytes_written=written), MEASURED)
    assert MEASURED["copy"] <= 1e3 / limit.least_ms <= MEASURED["read"]


def test_work_that_only_writes_or_is_in_a_cache_has_no_limit_of_memory():
    assert device_limit(Work(bytes_written=1e9), MEASURED, Caches.COLD) is None
    assert device_limit(Work(bytes_read=1e9), MEASURED, Caches.MIXED) is None
    work = Work(flops=8e10, bytes_read=1e6)
    assert device_limit(work, MEASURED, Caches.MIXED) == DeviceLimit("ffma", 10.0)


def test_products_on_tensor_cores_have_a_limit_where_it_was_measured():
    """Elsewhere nothing says whether arithmetic or memory limits them."""
    large = Work(flops=8e12, bytes_read=4e8, bytes_written=4e8, pipe="tensor")
    flat = replace(large, flops=8e10)
    limits = MEASURED | {"tensor": 400_000.0}
    found = [device_limit(work, limits, Caches.COLD) for work in (large, flat)]
    assert [(limit.name, limit.least_ms) for limit in found] == [
        ("tensor", pytest.approx(20.0)),
        ("copy", pytest.approx(1.6)),
    ]
    assert device_limit(large, MEASURED, Caches.COLD) is None
    assert device_limit(replace(large, pipe="tf32x3"), limits, Caches.COLD) is None
    assert [is_memory_bound(work, limits) for work in (large, flat)] == [False, True]
    assert [is_memory_bound(work, MEASURED) for work in (large, flat)] == [False, False]


def test_without_measured_limits_there_is_no_limit():
    assert device_limit(Work(flops=1), {}, Caches.COLD) is None


@pytest.mark.parametrize("folder", sorted(SHIPPED.parents[1].iterdir()), ids=lambda path: path.name)
def test_shipped_shares_are_of_the_shipped_limits(folder):
    """Each table, figure and page then names the same limits of a device."""
    for record in read_all(folder):
        kernel = find_kernel(record.kernel)
        limits = known_limits(record.device.planned_for(), shipped=True)
        for entry in record.problems:
            work = kernel.work_of(Problem(dict(entry.problem)))
            limit = work and device_limit(work, limits, Timing(entry.race.timing).caches)
            expected = (limit.name, limit.share(entry.median_ms)) if limit else (None, None)
            assert (entry.limit_name, entry.limit_fraction) == pytest.approx(expected), (
                entry.problem
            )


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
    document["defaults"] = [{**document["defaults"][0], "problem": wanted}]
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
    assert known_limits(replace(H100, name="NVIDIA H100 PCIe", sm_count=114)) == {}
    assert known_limits(replace(H100, sm_count=16)) == {}


def test_a_cpu_has_no_limits(opencl_device, capsys):
    """Not even recorded ones: the rate of its memory depends on what its caches hold."""
    assert known_limits(replace(H100, backend="opencl")) == {}
    assert run(["doctor", "--limits", "--device", opencl_device]) == 4
    assert "limits are measured on CUDA devices only" in capsys.readouterr().err
