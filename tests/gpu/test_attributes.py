"""Clusters, cooperative grids and programmatic launches on a GPU; tests/test_attributes.py needs none."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_attributes import SOURCE, write_synced

from autotune import load, tune
from autotune.api import Tuned
from autotune.devices import nvrtc
from autotune.devices.base import BoundLaunch, LaunchAttributes, LaunchError
from autotune.devices.choose import backend, choose_device
from autotune.devices.device import Device
from autotune.export import export_records
from autotune.measure.measurement import Status
from autotune.tuned.lookup import clear_cache

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:no tuned record")]

N, BLOCK = 100003, 256
TILES = 4 * -(-N // (4 * BLOCK))
#: The second launch notes when it began, and the first when it ended, in nanoseconds.
OVERLAP = """
__device__ unsigned long long now() {
  unsigned long long ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}
extern "C" __global__ void first(unsigned long long* times) {
  asm volatile("griddepcontrol.launch_dependents;");
  const unsigned long long start = now();
  while (now() - start < 5000000) {}
  times[0] = now();
}
extern "C" __global__ void second(unsigned long long* times) {
  const unsigned long long start = now();
  asm volatile("griddepcontrol.wait;" ::: "memory");
  times[1] = start;
  times[2] = times[0];
}
"""


@pytest.fixture(scope="module")
def device() -> Device:
    """The GPU, if it has clusters."""
    found = choose_device("cuda:0")
    if found.compute_capability < 90:
        pytest.skip(f"{found.arch} has no clusters")
    return found


class Loaded:
    """A source on the device, with buffers by name."""

    def __init__(self, device: Device, source: str, entries: tuple[str, ...]) -> None:
        self.executor = backend("cuda").open(device)
        binary = backend("cuda").compile(source, {}, (), device, entries)
        self.module = self.executor.load(binary, {})
        self.buffers: dict[str, Any] = {}

    def buffer(self, name: str, array: Any) -> Any:
        made = self.buffers[name] = self.executor.allocate(array.nbytes)
        self.executor.write(made, array)
        return made

    def read(self, name: str, dtype: str, count: int) -> Any:
        return self.executor.read(self.buffers[name], np.dtype(dtype), (count,))


@pytest.fixture(scope="module")
def synced(device: Device) -> Loaded:
    """The kernel of three launches, and x."""
    loaded = Loaded(device, SOURCE, ("rotated", "plus_one", "sum"))
    loaded.buffer("x", np.arange(N, dtype=np.float32) % 16)
    for name, count in (("y", N), ("z", N), ("partial", 1 << 20), ("total", 1)):
        loaded.buffer(name, np.full(count, np.nan, np.float32))
    return loaded


def steps_of(loaded: Loaded, blocks: int, cooperative: bool) -> list[BoundLaunch]:
    x, y, z, partial, total = (loaded.buffers[n] for n in ("x", "y", "z", "partial", "total"))
    n, block = np.int64(N), (BLOCK, 1, 1)
    clusters, early = LaunchAttributes((4, 1, 1)), LaunchAttributes(programmatic=True)
    grids = LaunchAttributes(cooperative=cooperative)
    return [
        BoundLaunch("rotated", (TILES, 1, 1), block, 0, (x, y, n), clusters),
        BoundLaunch("plus_one", (TILES, 1, 1), block, 0, (y, z, n), early),
        BoundLaunch("sum", (blocks, 1, 1), block, 0, (z, partial, total, n), grids),
    ]


def check(x: Any, y: Any, z: Any, total: Any) -> None:
    """Compare with the exact results: small integers."""
    np.testing.assert_array_equal(y, 2 * x)
    np.testing.assert_array_equal(z, 2 * x + 1)
    assert float(total[0]) == (2 * x.astype(np.float64) + 1).sum()


def results(loaded: Loaded) -> tuple[Any, ...]:
    sizes = {"x": N, "y": N, "z": N, "total": 1}
    return tuple(loaded.read(name, "f4", count) for name, count in sizes.items())


def spoil(loaded: Loaded) -> None:
    for name in ("y", "z", "partial", "total"):
        loaded.executor.poison(loaded.buffers[name])


def launched(loaded: Loaded, blocks_per_sm: int, cooperative: bool = True) -> tuple[Any, ...]:
    """Return x and the outputs of one sequence."""
    blocks = blocks_per_sm * loaded.executor.device.sm_count
    spoil(loaded)
    loaded.executor.run(loaded.module, steps_of(loaded, blocks, cooperative))
    return results(loaded)


def test_launches_with_attributes_on_a_stream(synced: Loaded) -> None:
    """A cluster reads its neighbour's shared memory, and a cooperative grid waits for itself."""
    check(*launched(synced, 2))
    total = launched(synced, 2, cooperative=False)[3]
    assert np.isnan(total[0]), "without cooperative the sum must miss blocks"


def test_they_are_timed_as_a_graph(synced: Loaded) -> None:
    steps = steps_of(synced, 2 * synced.executor.device.sm_count, cooperative=True)
    synced.executor.run(synced.module, steps)
    timer = synced.executor.timer(synced.module, steps, True)
    spoil(synced)
    assert timer.launched_by == "graph"
    assert all(0 < sample < 5 for sample in timer(3))
    check(*results(synced))


def test_too_many_cooperative_blocks_are_refused(synced: Loaded) -> None:
    """The context stays usable."""
    with pytest.raises(LaunchError, match="COOPERATIVE_LAUNCH_TOO_LARGE"):
        launched(synced, 64)
    check(*launched(synced, 2))


@pytest.mark.alone
@pytest.mark.parametrize("programmatic", [True, False])
def test_a_programmatic_launch_begins_early_and_waits(device: Device, programmatic: bool) -> None:
    loaded = Loaded(device, OVERLAP, ("first", "second"))
    times = loaded.buffer("times", np.zeros(3, np.uint64))
    attributes = LaunchAttributes(programmatic=programmatic)
    one = (1, 1, 1)
    steps = [
        BoundLaunch("first", one, one, 0, (times,)),
        BoundLaunch("second", one, one, 0, (times,), attributes),
    ]
    loaded.executor.run(loaded.module, steps)  # the first launch loads the code
    loaded.executor.run(loaded.module, steps)
    ended, began, seen = map(int, loaded.read("times", "u8", 3))
    assert seen == ended, "it reads before the first launch has written"
    assert (began < ended) == programmatic


# ---------------------------------------------------------------------- tuned, called, exported


@pytest.fixture(scope="module")
def tuned(device: Device, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tuned]:
    folder = tmp_path_factory.mktemp("synced")
    file = write_synced(folder)
    with pytest.MonkeyPatch.context() as patch:  # other sizes are not what is tested
        patch.setattr("autotune.run.other_sizes.MAX_NEAR", 2)
        patch.setattr("autotune.run.other_sizes.extreme_sizes", lambda *_: [])
        made = tune(
            str(file),
            device=device.selector,
            strategy="exhaustive",
            out=folder / "reports",
            quiet=True,
        )
    return folder, made


def test_a_run_prunes_refuses_and_times(tuned: tuple[Path, Tuned], device: Device) -> None:
    _, made = tuned
    (problem,) = made.run.problems
    assert len(problem.measured) == 8
    for found in problem.measured:
        is_cooperative, per_sm = found.configuration["COOPERATIVE"], found.configuration["PER_SM"]
        if not is_cooperative:
            assert found.status is Status.WRONG_RESULT, found
        elif per_sm == 64:
            assert found.status is Status.PRUNED, found
            assert f"runs at most {8 * device.sm_count} at once" in found.message
        else:
            assert found.status in (Status.OK, Status.STOPPED_EARLY), found
    timed = [found for found in problem.measured if found.status is Status.OK]
    assert {found.launched_by for found in timed} == {"graph"}
    assert made.record is not None
    plan = made.record.problems[0].plans[0]
    assert plan.cluster and plan.after[0].programmatic and plan.after[1].cooperative


def test_load_launches_with_attributes(
    tuned: tuple[Path, Tuned], cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = tuned
    monkeypatch.setenv("AUTOTUNE_PATH", str(folder / "spaces"))
    monkeypatch.setenv("AUTOTUNE_TUNED", str(folder / "reports"))
    clear_cache()
    synced = load("synced")
    x = cupy.arange(N, dtype=cupy.float32) % 16
    check(x.get(), *(array.get() for array in synced(x)))
    stream = cupy.cuda.Stream(non_blocking=True)
    y, z, total = cupy.empty_like(x), cupy.empty_like(x), cupy.empty(1, cupy.float32)
    cupy.cuda.Device().synchronize()
    with stream:
        synced(x, y, z, total)
        stream.begin_capture()
        synced(x, y, z, total)
        graph = stream.end_capture()
        for array in (y, z, total):
            array.fill(np.nan)
        graph.launch(stream)
    stream.synchronize()
    check(*(array.get() for array in (x, y, z, total)))


LAUNCH = """
#include "synced_launch.hpp"
extern "C" const char* launch_synced(const char* folder, long long n, CUdeviceptr x, CUdeviceptr y, CUdeviceptr z,
                                     CUdeviceptr total) {
  static std::string said;
  try {
    static auto& tuned = *new autotune::synced::launcher(folder);  // outlives the driver
    tuned.launch({n}, {x, y, z, total});
    said.clear();
  } catch (const std::exception& error) {
    said = error.what();
  }
  return said.c_str();
}
"""


def test_the_exported_launcher_launches_with_attributes(
    tuned: tuple[Path, Tuned], device: Device, cupy: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """Compiled as a library for this process, whose driver and arrays it uses."""
    pathfinder = pytest.importorskip("cuda.pathfinder")
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    folder, made = tuned
    monkeypatch.setenv("AUTOTUNE_PATH", str(folder / "spaces"))
    assert made.record is not None
    for name, text in export_records("cuda", [made.record]).items():
        (tmp_path / name).write_text(str(text))
    for source in tmp_path.glob("*.cu"):
        options = [f"-arch={device.arch}", "-std=c++17"]
        compiled = nvrtc.compile_cubin(source.read_text(), options)
        source.with_suffix(".cubin").write_bytes(compiled.code)
    (tmp_path / "library.cpp").write_text(LAUNCH)
    include = str(pathfinder.find_nvidia_header_directory("cudart"))
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-isystem", include]
    command += ["library.cpp", "-o", "library.so", "-pthread"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=300)
    ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
    call = ctypes.CDLL(str(tmp_path / "library.so")).launch_synced
    call.restype = ctypes.c_char_p
    call.argtypes = [ctypes.c_char_p, ctypes.c_longlong, *[ctypes.c_uint64] * 4]
    x = cupy.arange(N, dtype=cupy.float32) % 16
    y, z, total = cupy.empty_like(x), cupy.empty_like(x), cupy.empty(1, cupy.float32)
    arrays = (x, y, z, total)
    cupy.cuda.Device().synchronize()
    said = call(str(tmp_path).encode(), N, *(array.data.ptr for array in arrays))
    assert said == b""
    cupy.cuda.Device().synchronize()
    check(*(array.get() for array in arrays))
