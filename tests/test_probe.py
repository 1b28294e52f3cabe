"""Measured limits: when they are measured, kept, believed; and the probes on the CPU device."""

import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from autotune.devices.base import ContextLostError, LaunchError
from autotune.devices.binary import Binary
from autotune.devices.choose import backend, choose_device
from autotune.devices.device import Clocks, Device, for_arch
from autotune.errors import AutotuneError, DeviceError
from autotune.measure import probe, probe_task
from autotune.measure.compiler import Compiled, compile_now
from autotune.measure.probe import MeasuredLimits, known_limits, limits_file, limits_of
from autotune.measure.probe_task import Found, Rate, Variant
from autotune.measure.process import ChildDied, ChildTimeout
from autotune.measure.worker import Worker
from autotune.values import Configuration

H100 = Device(
    backend="cuda",
    name="NVIDIA H100 80GB HBM3",
    arch="sm_90",
    uuid="GPU-1",
    driver="580.1",
    sm_count=132,
    l2_bytes=50 << 20,
    memory_bytes=80 << 30,
    peak_gb_per_s=3352.0,
    peak_gflop_per_s=66900.0,
)
FOUND = Found(
    read=Rate(3200e6, "VEC=4"),
    copy=Rate(3000e6, "VEC=4"),
    ffma=Rate(63700e6, "CHAINS=8"),
    launch_us=2.0,
    next_launch_us=1.0,
    buffer_bytes=1 << 30,
    clocks=Clocks(1980),
)


class Probes:
    """Stands in for compiling and running; counts how often."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, found: Found = FOUND) -> None:
        self.found, self.runs = found, 0
        monkeypatch.setattr(probe, "_found", self.run)

    def run(self, *_: object) -> tuple[Found, str]:
        self.runs += 1
        return self.found, "nvrtc 13.4"


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> Probes:
    return Probes(monkeypatch)


def test_measured_once(probes: Probes) -> None:
    """Known limits are read back as they were measured; asking again measures nothing."""
    assert known_limits(H100) is None
    measured = limits_of(H100)
    assert measured == known_limits(H100) == limits_of(H100)
    assert probes.runs == 1
    assert (measured.read_gb_per_s, measured.copy_gb_per_s) == (3200.0, 3000.0)
    assert (measured.ffma_gflop_per_s, measured.sm_mhz) == (63700.0, 1980)
    limits_of(H100, remeasure=True)
    assert probes.runs == 2


def test_a_new_driver_measures_again(probes: Probes) -> None:
    """What one driver reached says little of the next; a driver that is not known says nothing."""
    limits_of(H100)
    updated = replace(H100, driver="590.1")
    assert known_limits(updated) is None
    assert limits_of(updated).driver == "590.1"
    assert probes.runs == 2
    assert known_limits(replace(H100, driver="")) is not None


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"[" * 100_000,
        b'{"uuid": "GPU-1"}',
        b'"read_gb_per_s": "fast"',
    ],
)
def test_a_damaged_file_is_measured_again(probes: Probes, damage: bytes) -> None:
    """With a warning that names the file, and then it is whole."""
    limits_of(H100)
    limits_file(H100.uuid).write_bytes(damage)
    with pytest.warns(RuntimeWarning, match=r"GPU-1\.json is damaged"):
        limits_of(H100)
    assert probes.runs == 2
    assert known_limits(H100) is not None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"uuid": "GPU-2"}, "another device"),
        ({"sm_count": 16}, "another device"),
        ({"schema_version": probe.SCHEMA_VERSION + 1}, "newer version"),
        ({"read_gb_per_s": -1.0}, "not positive"),
        ({"launch_us": 0.0}, "not positive"),
    ],
)
def test_a_foreign_file_is_measured_again(probes: Probes, change: dict[str, Any], why: str) -> None:
    """Another device's file, a slice's, a newer version's, or one with impossible values."""
    foreign = msgspec.structs.replace(limits_of(H100), **change)
    limits_file(H100.uuid).write_bytes(msgspec.json.encode(foreign))
    with pytest.warns(RuntimeWarning, match=why):
        assert known_limits(H100) is None
    with pytest.warns(RuntimeWarning, match=why):
        assert limits_of(H100).uuid == "GPU-1"
    assert probes.runs == 2


def test_older_probes_are_measured_again_without_a_word(probes: Probes) -> None:
    """An update of autotune is nothing to warn of."""
    old = msgspec.structs.replace(limits_of(H100), schema_version=0)
    limits_file(H100.uuid).write_bytes(msgspec.json.encode(old))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        limits_of(H100)
    assert probes.runs == 2


def test_a_folder_that_cannot_be_written(
    probes: Probes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Limits are measured all the same, with a warning."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    with pytest.warns(RuntimeWarning, match="cannot be"):
        assert limits_of(H100).read_gb_per_s == 3200.0


def test_no_device(probes: Probes) -> None:
    """An architecture has no measured limits."""
    assert known_limits(for_arch("sm_90")) is None
    with pytest.raises(DeviceError, match="autotune doctor"):
        limits_of(for_arch("sm_90"))
    assert probes.runs == 0


@pytest.mark.parametrize("limit", ["read", "copy", "ffma"])
def test_more_than_the_peak_is_refused(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """A probe that beats the data sheet skips work."""
    Probes(monkeypatch, replace(FOUND, **{limit: Rate(70000e6, "")}))
    with pytest.raises(AutotuneError, match=f"{limit} probe reports"):
        limits_of(H100)
    assert known_limits(H100) is None


def test_far_less_than_the_peak_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something else had the device: the next call tries again."""
    held = Clocks(600, throttle_reasons=("power cap",))
    slow = Probes(monkeypatch, replace(FOUND, copy=Rate(900e6, ""), clocks=held))
    with pytest.warns(RuntimeWarning, match=r"copy 27%, throttled: power cap.*autotune doctor"):
        assert limits_of(H100).copy_gb_per_s == 900.0
    assert known_limits(H100) is None
    slow.found = FOUND
    assert limits_of(H100) == known_limits(H100)


def test_no_peaks_no_judgement(monkeypatch: pytest.MonkeyPatch) -> None:
    """An OpenCL device knows no peaks."""
    Probes(monkeypatch, replace(FOUND, read=Rate(1e3, ""), copy=Rate(9e15, "")))
    unknown = replace(H100, peak_gb_per_s=0.0, peak_gflop_per_s=0.0)
    assert limits_of(unknown) == known_limits(unknown)


class FailingWorker:
    """Compiles, and fails at the probes."""

    def __init__(self, error: Exception) -> None:
        self.error, self.ended = error, False

    def run(self, timeout_s: float, task: Any, *args: Any) -> Any:
        if task is compile_now:
            return Compiled(Binary(b"", (), "", "key"), "", "", 0.0)
        if task is os._exit:
            self.ended = True
            raise ChildDied("exit code 1")
        raise self.error


@pytest.mark.parametrize(
    "error",
    [
        ChildDied("killed by signal 9"),
        ChildTimeout("no answer after 300 s"),
        MemoryError("no room"),
        LaunchError("no read probe runs"),
        ContextLostError("illegal address"),
    ],
)
def test_probes_that_fail(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """One error for a person; a process whose context is lost is ended."""
    monkeypatch.setattr(probe_task, "compile_job", lambda one, device: _Job("nvrtc 13.4"))
    worker = FailingWorker(error)
    with pytest.raises(AutotuneError, match=str(error)):
        limits_of(H100, worker=worker)  # type: ignore[arg-type]
    assert worker.ended == isinstance(error, ContextLostError)


class _Job(str):
    toolchain = "nvrtc 13.4"


def test_a_source_that_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler's message comes through."""
    monkeypatch.setattr(probe_task, "compile_job", lambda one, device: _Job("nvrtc 13.4"))

    class Pool:
        def submit(self, job: object) -> None: ...

        def result(self, job: object) -> Compiled:
            return Compiled(None, "probe.cu(7): error: no", "", 0.0)

    with pytest.raises(AutotuneError, match=r"probe\.cu\(7\): error: no"):
        limits_of(H100, worker=FailingWorker(LaunchError()), compilers=Pool())  # type: ignore[arg-type]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
def test_compiles_without_spills(arch: str) -> None:
    """The hungriest variants for a GPU, on every architecture: a spill would be memory traffic."""
    pytest.importorskip("cuda.bindings")
    device = for_arch(arch)
    hungry = [
        one
        for one in probe_task.variants(device)
        if one.parameters.get("ITEMS") == 8
        or (one.parameters.get("CHAINS"), one.parameters.get("DEPTH")) == (8, 64)
    ]
    jobs = {probe_task.compile_job(one, device) for one in hungry}
    assert len(jobs) == 6
    wanted = {"probe_read", "probe_copy", "probe_ffma", "probe_empty", "probe_fill"}
    for job in jobs:
        compiled = compile_now(job)
        assert compiled.binary is not None, compiled.log
        assert {one.name for one in compiled.binary.entries} == wanted
        assert all(one.spill_bytes == 0 for one in compiled.binary.entries), job.defines
        assert all((one.registers or 0) <= 64 for one in compiled.binary.entries), job.defines
        assert compiled.log == ""


def test_launches_fill_the_gpu() -> None:
    """Whole waves of resident blocks, whatever the block; or a block per tile."""
    for one in probe_task.variants(H100):
        threads = one.blocks(H100, 1000) * one.parameters.BLOCK
        if one.fill:
            assert threads == one.fill * 132 * 2048
        else:
            assert one.blocks(H100, 1000) == 1000
    assert {one.limit for one in probe_task.variants(H100)} == {"read", "copy", "ffma"}


def test_buffers_shrink_to_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may hold most of the memory."""

    class Full:
        def allocate(self, nbytes: int) -> int:
            if nbytes > 1 << 30:
                raise MemoryError
            return nbytes

    bench = object.__new__(probe_task._Bench)
    bench.device = H100
    bench.executor = Full()  # type: ignore[assignment]
    source, target, size = bench._allocated()
    assert source == target == size
    assert 1 << 29 < size <= 1 << 30
    bench.device = replace(H100, memory_bytes=4 << 30)
    assert bench._allocated()[2] == 1 << 29


@pytest.fixture(scope="module")
def cpu(opencl_device: str) -> Device:
    return choose_device(opencl_device)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers and times that serve to see that it works."""
    monkeypatch.setattr(probe_task, "_CPU_BUFFER", (1, 4 << 20))
    monkeypatch.setattr(probe_task, "_WARM_UP_S", 0.0)


def ready(device: Device, *variants: Variant) -> list[tuple[Variant, Binary]]:
    found = []
    for one in variants:
        compiled = compile_now(probe_task.compile_job(one, device))
        assert compiled.binary is not None, compiled.log
        found.append((one, compiled.binary))
    return found


@pytest.mark.opencl
def test_limits_of_the_cpu(cpu: Device) -> None:
    """The whole way on a real device, in a process of its own, and kept."""
    with Worker() as worker:
        measured = limits_of(cpu, worker=worker)
        assert worker.respawns == 0
    assert measured == known_limits(cpu) == limits_of(cpu)
    assert measured.uuid == cpu.uuid and measured.driver == cpu.driver
    # What any CPU of the last ten years does, with room for a busy machine.
    assert 0.05 < measured.read_gb_per_s < 5000
    assert 0.05 < measured.copy_gb_per_s < 5000
    assert 0.5 < measured.ffma_gflop_per_s < 50000
    assert 0 < measured.launch_us < 1e5
    assert measured.buffer_bytes >= 64 << 20
    assert "WALK=chunk" in measured.read_by and "CHAINS=8" in measured.ffma_by
    assert limits_file(cpu.uuid).read_text().count("\n") > 10


@pytest.mark.opencl
def test_variants_compute_what_they_claim(cpu: Device, small: None) -> None:
    """Every way of walking, loading and multiplying passes its check, GPU forms among them."""
    bandwidth = [
        Configuration(BLOCK=256, VEC=4, ITEMS=8, LOAD="stream"),
        Configuration(BLOCK=256, VEC=1, ITEMS=8, LOAD="plain"),
        Configuration(BLOCK=64, VEC=4, ITEMS=1, LOAD="plain", WALK="chunk"),
    ]
    variants = [Variant("read", one, 0.5) for one in bandwidth]
    variants += [Variant("copy", one, fill) for one in bandwidth for fill in (0.0, 1.0)]
    for shear in ("uniform", "register"):
        arithmetic = Configuration(BLOCK=64, CHAINS=4, DEPTH=16, SHEAR=shear)
        variants.append(Variant("ffma", arithmetic, 0.1))
    compiled = ready(cpu, *variants)
    bench = probe_task._Bench(backend("opencl").open(cpu), compiled)
    assert [bench._check(*one) for one in compiled] == [""] * len(compiled)


@pytest.mark.opencl
def test_a_probe_that_skips_work_is_not_believed(cpu: Device, small: None) -> None:
    """A binary that loads half, or turns half as often, fails its check; no rate comes of it."""
    claims = (
        Variant("read", Configuration(BLOCK=64, VEC=4, ITEMS=4), 0.5),
        Variant("copy", Configuration(BLOCK=64, VEC=4, ITEMS=4), 0.5),
        Variant("ffma", Configuration(BLOCK=64, CHAINS=4, DEPTH=16), 0.1),
    )
    does = (
        Variant("read", Configuration(BLOCK=64, VEC=4, ITEMS=2), 0.5),
        Variant("copy", Configuration(BLOCK=64, VEC=4, ITEMS=2), 0.5),
        Variant("ffma", Configuration(BLOCK=64, CHAINS=4, DEPTH=8), 0.1),
    )
    binaries = [binary for _, binary in ready(cpu, *does)]
    swapped = list(zip(claims, binaries, strict=True))
    bench = probe_task._Bench(backend("opencl").open(cpu), swapped)
    for limit in ("read", "copy", "ffma"):
        with pytest.raises(LaunchError, match=f"no {limit} probe runs"):
            bench.best(limit)


@pytest.mark.opencl
def test_data_is_random(cpu: Device, small: None) -> None:
    """What is read has many values, of both signs: not zeros."""
    compiled = ready(cpu, Variant("read", Configuration(BLOCK=64, VEC=4, ITEMS=4), 0.5))
    bench = probe_task._Bench(backend("opencl").open(cpu), compiled)
    count = bench.buffer_bytes // 4
    for buffer in (bench.source, bench.target):
        data = bench.executor.read(buffer, np.dtype(np.float32), (count,))
        assert np.abs(data).max() <= 1.0 and abs(data.mean()) < 0.01
        assert abs(data.std() - 1 / np.sqrt(3)) < 0.01
        assert len(np.unique(data[:10000])) > 9900


def test_limits_are_plain_data() -> None:
    """The fields that others fill in by hand suffice."""
    MeasuredLimits(
        uuid="GPU-1",
        name="H100",
        driver="580.1",
        read_gb_per_s=3200.0,
        copy_gb_per_s=3000.0,
        ffma_gflop_per_s=63700.0,
        launch_us=2.0,
        measured_on="2026-11-21",
    )
