"""Launch attributes (clusters, cooperative grids, programmatic launches) without a GPU; see gpu/test_attributes.py."""

from __future__ import annotations

import ctypes
import json
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import sample_triton
from cuda.bindings import driver
from cuda.pathfinder import find_nvidia_header_directory
from sample_attributes import write_synced
from sample_records import entry, record, write
from sample_spaces import write_space

from autotune import lookup
from autotune.calling.binding import ResolvedCall, bind
from autotune.calling.choice import Choice, LaunchPlan
from autotune.calling.steps import Parameter, launch_step
from autotune.cli.console import launch_text
from autotune.compiling.binaries import compile_now
from autotune.compiling.job import compile_job
from autotune.devices.base import PLAIN, Binary, CompiledFunction, LaunchAttributes
from autotune.devices.device import Device, for_arch
from autotune.devices.driver_launch import DriverLaunch
from autotune.errors import RecordError, SpecError, UsageError
from autotune.export import export_records
from autotune.kernel.attributes import attributes_of
from autotune.kernel.catalog import load_file
from autotune.kernel.launches import LaunchSequence, bind_arguments, exceeded_limit, launch_sequence
from autotune.kernel.operand import Operand
from autotune.kernel.spec import Kernel, Launch
from autotune.run.plans import plan_of, steps_of
from autotune.tuned.lookup import clear_cache
from autotune.tuned.reading import decode
from autotune.tuned.record import TunedRecord
from autotune.tuned.writing import encode
from autotune.values import Configuration, Problem

SM_90 = for_arch("sm_90")
H100 = replace(SM_90, name="Test GPU A", sm_count=132)
C = Configuration(BLOCK=64)
LAUNCH = "Launch(grid=(blocks(p, c),), block=(c.BLOCK,))"


@pytest.fixture
def kernel(tmp_path: Path) -> Callable[..., Kernel]:
    """Load ``scale`` with further arguments of its launch."""

    def made(arguments: str, *edits: tuple[str, str]) -> Kernel:
        return load_file(write_space(tmp_path, (LAUNCH, f"{LAUNCH[:-1]}, {arguments})"), *edits))

    return made


# ---------------------------------------------------------------------- declarations


def declared_of(kernel: Kernel, n: int = 1000, device: Device = SM_90) -> LaunchAttributes:
    (launch,) = launch_sequence(kernel, C, Problem(n=n), device).launches
    return attributes_of(launch)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("cluster=(2,)", LaunchAttributes((2, 1, 1))),
        ("cluster=np.int64(8)", LaunchAttributes((8, 1, 1))),
        ("cluster=(1, 1)", PLAIN),
        ("cluster=(), cooperative=0, programmatic=False", PLAIN),
        ("cooperative=1, programmatic=True", LaunchAttributes((), True, True)),
    ],
)
def test_a_launch_has_the_attributes_that_are_declared(
    kernel: Callable[..., Kernel], arguments: str, expected: LaunchAttributes
) -> None:
    made = kernel(arguments)
    assert declared_of(made) == expected
    names = ["x", "out", "factor", "n"]
    sequence = launch_sequence(made, C, Problem(n=1000), SM_90)
    (bound,) = bind_arguments(sequence, names, dict.fromkeys(names), {}, {})
    assert bound.attributes == expected  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "cluster=(3,)",
            r"scale \(scale.py\): launch: cluster=\(3, 1, 1\) does not divide grid=\(16, 1, 1\); round",
        ),
        ("cluster=(1, 2)", r"cluster=\(1, 2, 1\) does not divide grid"),
        ("cluster=16", r"cluster=\(16, 1, 1\) has 16 blocks, but at most 8 are allowed"),
        ("cluster=(0,)", r"cluster=\(0,\): expected one to three positive integers"),
        ("cluster=(1.5,)", r"cluster=\(1\.5,\) is not a tuple of integers"),
        ("cluster=None", "cluster=None is not a tuple of integers"),
        ("cooperative=np.zeros(2)", "launch: cooperative: ValueError"),
    ],
)
def test_attributes_that_cannot_be_are_one_error(
    kernel: Callable[..., Kernel], arguments: str, message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        declared_of(kernel(arguments))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("cluster=2, cooperative=True", r"cluster=\(2, 1, 1\) and cooperative=True needs CUDA"),
        ("programmatic=True", "launch: programmatic=True needs CUDA, but opencl:0 is"),
    ],
)
def test_opencl_refuses_attributes(
    kernel: Callable[..., Kernel], arguments: str, words: str
) -> None:
    device = Device("opencl", "Some CPU", "opencl_cpu")
    with pytest.raises(SpecError, match=words):
        declared_of(kernel(arguments), device=device)


def test_triton_refuses_attributes(tmp_path: Path) -> None:
    """Its compiler decides how a function is launched."""
    (tmp_path / "scaled.py").write_text(sample_triton.SOURCE)
    space = tmp_path / "space.py"
    space.write_text(sample_triton.SPACE.replace("args=", "cooperative=True, args=", 1))
    made = load_file(space)
    with pytest.raises(SpecError, match=r"^scaled .*: launch: cooperative=True is for CUDA C\+\+"):
        launch_sequence(made, made.default(), Problem(n=1000), SM_90)


@pytest.mark.parametrize("argument", ["cluster=(p.n // 500,)", "cooperative=p.n <= 4096"])
def test_an_attribute_that_depends_on_the_problem_is_refused(
    kernel: Callable[..., Kernel], argument: str
) -> None:
    name = argument.partition("=")[0]
    with pytest.raises(SpecError, match=f"^scale .*: launch: {name} depends on the problem"):
        plan_of(kernel(argument), C, Problem(n=1000), SM_90)


# ---------------------------------------------------------------------- limits of devices


def over(launch: Launch, device: Device, binary: Binary | None = None) -> str:
    launch = replace(launch, block=(256, 1, 1), entry="k")
    return exceeded_limit(LaunchSequence((launch,)), binary, device)


@pytest.mark.parametrize("attribute", [{"cluster": (2, 1, 1)}, {"programmatic": True}])
def test_clusters_and_programmatic_launches_are_for_sm_90(attribute: dict[str, Any]) -> None:
    launch = Launch((2, 1, 1), **attribute)
    assert over(launch, SM_90) == ""
    assert "need" in over(launch, for_arch("sm_89")) and "sm_90" in over(launch, for_arch("sm_89"))


def test_a_cooperative_grid_that_does_not_fit_is_pruned() -> None:
    """Before it is compiled by threads and shared memory, and then by registers too."""
    used = CompiledFunction("k", registers=128, spill_bytes=0, shared_bytes=1024)
    binary = Binary(b"", (used,), "", "key")

    def fits(blocks: int, *given: Any, **changes: Any) -> bool:
        launch = Launch((blocks, 1, 1), cooperative=True, **changes)
        assert over(replace(launch, cooperative=False), H100, *given) == ""
        message = over(launch, H100, *given)
        assert not message or f"k: a cooperative grid of {blocks} blocks, but Test GPU A" in message
        return not message

    assert fits(8 * 132) and not fits(8 * 132 + 1)
    assert fits(132, shared_bytes=200_000) and not fits(133, shared_bytes=200_000)
    assert fits(2 * 132, binary) and not fits(2 * 132 + 1, binary)
    assert "at most 264 at once (2 on each of 132" in over(
        Launch((300, 1, 1), cooperative=True), H100, binary
    )
    # The number of multiprocessors of an architecture is not known.
    assert over(Launch((1 << 20, 1, 1), cooperative=True), SM_90) == ""


# ---------------------------------------------------------------------- compiled, recorded, looked up


@pytest.fixture
def synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """Load the kernel of three launches with attributes, in a project of its own."""
    file = write_synced(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUTOTUNE_PATH", str(file.parent))
    return load_file(file)


PROBLEM = Problem(n=1000)


def record_of(kernel: Kernel) -> TunedRecord:
    configuration = kernel.default()
    plan = plan_of(kernel, configuration, PROBLEM, H100)
    steps = steps_of(kernel, configuration, PROBLEM, H100)
    return record(
        [entry(dict(PROBLEM), plan, steps=steps)],
        kernel=kernel.name,
        fields={"n": "integer"},
        parameters=kernel.parameters,
        default=plan,
    )


def test_cooperative_groups_are_compiled_without_a_gpu(synced: Kernel) -> None:
    found = compile_now(compile_job(synced, synced.default(), PROBLEM, SM_90))
    assert found.binary, found.message
    assert {entry.name for entry in found.binary.entries} == {"rotated", "plus_one", "sum"}


def test_a_record_has_the_attributes_and_nothing_without_them(
    synced: Kernel, kernel: Callable[..., Kernel]
) -> None:
    made = record_of(synced)
    document = json.loads(encode(made))
    (tuned,) = document["problems"]
    main, (second, third) = tuned["plans"][0], tuned["plans"][0]["after"]
    assert main["cluster"] == [2, 1, 1] and second["programmatic"] is third["cooperative"] is True
    assert not {"cooperative", "programmatic"} & main.keys() and "cluster" not in third
    assert [step.get("cluster") for step in tuned["steps"]] == [[2, 1, 1], None, None]
    assert [step.get("cooperative") for step in tuned["steps"]] == [None, None, True]
    assert decode(encode(made), "synced") == made
    plain = kernel("shared_bytes=0")
    steps = steps_of(plain, C, PROBLEM, SM_90)
    forms = [msgspec.to_builtins(plan_of(plain, C, PROBLEM, SM_90)), *msgspec.to_builtins(steps)]
    assert not [form for form in forms if {"cluster", "cooperative", "programmatic"} & form.keys()]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("cluster", [4, 4, 1], "at most 8 blocks"),
        ("cluster", [3, 1, 1], "a multiple of the cluster"),
        ("cluster", [1, 1, 1], "as in its steps"),
        ("cooperative", True, "as in its steps"),
    ],
)
def test_a_record_whose_attributes_contradict_it_is_refused(
    synced: Kernel, name: str, value: Any, message: str
) -> None:
    document = json.loads(encode(record_of(synced)))
    document["problems"][0]["plans"][0][name] = value
    with pytest.raises(RecordError, match=message):
        decode(json.dumps(document).encode(), "synced")


def test_lookup_answers_with_attributes(
    synced: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "given", record_of(synced))
    monkeypatch.setenv("AUTOTUNE_TUNED", str(tmp_path / "given"))
    clear_cache()
    found = lookup("synced", device="Test GPU A", n=1000)
    assert [launch.cluster for launch in found.launches] == [(2, 1, 1), (), ()]
    assert [launch.programmatic for launch in found.launches] == [False, True, False]
    assert [launch.cooperative for launch in found.launches] == [False, False, True]
    texts = [launch_text(launch).rpartition("memory")[2] for launch in found.launches]
    assert texts == [", cluster (2, 1, 1)", ", programmatic", ", cooperative"]


def test_load_names_a_cooperative_grid_that_does_not_fit(synced: Kernel) -> None:
    """A configuration of a record may be for a larger GPU."""
    resolved = bind(synced, (Operand((1000,), (1,), "float32", source=0),), {}, lambda _: synced)
    assert isinstance(resolved, ResolvedCall)
    entries = tuple(CompiledFunction(name) for name in ("rotated", "plus_one", "sum"))
    binary = Binary(b"", entries, "", "key")
    for per_sm, is_allowed in ((2, True), (64, False)):
        configuration = Configuration({**synced.default(), "PER_SM": per_sm})
        choice = Choice("synced", resolved.problem, configuration, None)
        if is_allowed:
            plan = LaunchPlan.of(resolved, H100, choice, binary)
            assert attributes_of(plan.sequence.launches[2]).cooperative
            continue
        with pytest.raises(
            UsageError, match=r"synced\(n=1000\): .*sum: a cooperative grid of 8448"
        ):
            LaunchPlan.of(resolved, H100, choice, binary)


# ---------------------------------------------------------------------- the driver's structs


def test_the_drivers_configuration_holds_what_is_launched() -> None:
    """`CUlaunchConfig` and `CUlaunchAttribute` as cuda.h lays them out."""
    attributes = LaunchAttributes((2, 4, 1), cooperative=True, programmatic=True)
    launch = DriverLaunch((8, 4, 3), (64, 2, 1), 1024, attributes)
    *sizes, stream, begin, count = struct.unpack("<7I4xQQI4x", ctypes.string_at(launch.address, 56))
    assert (*sizes, stream, count) == (8, 4, 3, 64, 2, 1, 1024, 0, 3)
    found = struct.iter_unpack("<I4x3I52x", ctypes.string_at(begin, 3 * 72))
    assert list(found) == [(4, 2, 4, 1), (2, 1, 0, 0), (6, 1, 0, 0)]


class FakeDriver:
    """Notes launches in place of the driver, with the status of the next one."""

    CUstream = driver.CUstream

    def __init__(self) -> None:
        self.status, self.launched = 0, list[tuple[int, ...]]()

    def cuLaunchKernelEx(  # noqa: N802 - the driver's name
        self, config: Any, function: int, parameters: int, extra: int
    ) -> tuple[int]:
        (stream,) = struct.unpack("<32xQ16x", ctypes.string_at(config.getPtr(), 56))
        (first, second) = struct.unpack("<2Q", ctypes.string_at(parameters, 16))
        (address,) = struct.unpack("<Q", ctypes.string_at(first, 8))
        (number,) = struct.unpack("<i", ctypes.string_at(second, 4))
        self.launched.append((function, stream, extra, address, number))
        return (self.status,)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver()
    monkeypatch.setattr("autotune.calling.steps.DriverLaunch", partial(_with, fake))
    return fake


def _with(fake: FakeDriver, *geometry: Any) -> DriverLaunch:
    launch = DriverLaunch(*geometry)
    launch.driver = fake
    return launch


def test_a_call_launches_with_its_own_stream_and_parameters(fake: FakeDriver) -> None:
    launch = Launch((4, 1, 1), (64, 1, 1), cluster=(2, 1, 1))
    step = launch_step(1, launch, [Parameter(index=1), Parameter(np.int32(7))])
    for stream, address in ((5, 4096), (6, 8192), (6, 12288), (0, 4096)):
        step([0, address], stream, (70, 71))
    assert fake.launched == [
        *((71, 5, 0, 4096, 7), (71, 6, 0, 8192, 7)),
        *((71, 6, 0, 12288, 7), (71, 0, 0, 4096, 7)),
    ]


def test_a_launch_that_the_driver_refuses_is_cupys_error(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_status(status: int) -> None:
        raise RuntimeError(f"status {status}")

    cupy = SimpleNamespace(cuda=SimpleNamespace(driver=SimpleNamespace(check_status=check_status)))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    launch = Launch((4, 1, 1), (64, 1, 1), cooperative=True)
    step = launch_step(0, launch, [Parameter(index=0), Parameter(np.int32(7))])
    fake.status = 720
    with pytest.raises(RuntimeError, match="status 720"):
        step([4096], 5, (70,))


# ---------------------------------------------------------------------- C++

MAIN = """
#include "fake_driver.cpp"
#include "synced_launch.hpp"
int main() {
  using namespace autotune::synced;
  constexpr auto known = lookup(90, 1000);
  for (const auto& step : known->launches(1000))
    std::printf("%s %u %d %d\\n", step.entry, step.cluster.x, step.cooperative, step.programmatic);
  launcher tuned(".");
  tuned.launch({1000}, {256, 512, 768, 1024});
}
"""


def test_header_and_launcher_have_the_attributes(synced: Kernel, tmp_path: Path) -> None:
    for name, text in export_records("cuda", [record_of(synced)]).items():
        (tmp_path / name).write_text(str(text))
    (source,) = tmp_path.glob("*.cu")
    source.with_suffix(".cubin").write_text("code\0")
    (tmp_path / "main.cpp").write_text(MAIN)
    command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"]
    command += ["-isystem", str(find_nvidia_header_directory("cudart"))]
    command += [f"-I{Path(__file__).parent / 'launcher'}", "main.cpp", "-o", "main", "-pthread"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=300)
    ran = subprocess.run(["./main"], cwd=tmp_path, capture_output=True, text=True, check=True)
    said = [line for line in ran.stdout.splitlines() if not line.startswith(("load", "alloc"))]
    assert said[:3] == ["rotated 2 0 0", "plus_one 0 0 1", "sum 0 1 0"]
    words = [line.partition(" on ")[0] for line in said[3:9]]
    assert words == [
        *("cluster 2 1 1", "launch 1 rotated", "programmatic 1"),
        *("launch 1 plus_one", "cooperative 1", "launch 1 sum"),
    ]
