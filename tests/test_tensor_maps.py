"""Tensor maps: their checks, their place among the arguments of a launch, and the example."""

import ctypes
import re
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda.pathfinder import find_nvidia_header_directory
from sample_records import entry, record

from autotune import TensorMap
from autotune.calling.steps import Parameter, launch_step
from autotune.cli import run
from autotune.devices import tensor_map
from autotune.devices.base import Binary, CompiledFunction, ViewedBuffer
from autotune.devices.cuda_executor import PackedParameters
from autotune.devices.device import for_arch
from autotune.devices.tensor_map import MAP_BYTES, TensorLayout
from autotune.errors import SpecError
from autotune.export.launcher import render
from autotune.kernel.catalog import find_kernel
from autotune.kernel.launches import (
    LaunchSequence,
    bind_arguments,
    exceeded_limit,
    launch_sequence,
)
from autotune.kernel.spec import Launch
from autotune.kernel.view_layout import layout_of
from autotune.run.plans import plan_of

EXAMPLE = Path(__file__).parents[1] / "examples" / "tensor_maps" / "spaces"


@dataclass(frozen=True)
class Array:
    stored_shape: tuple[int, ...] = (300, 64)
    type_name: str = "float32"


def test_a_layout_has_the_axes_in_the_drivers_order() -> None:
    wanted = TensorMap("a", (2, 8, 32), steps=(1, 2, 1), swizzle=128, promotion=256, nan=True)
    assert layout_of(wanted, Array((3, 20, 64))) == TensorLayout(
        dtype="float32",
        itemsize=4,
        shape=(64, 20, 3),
        strides=(64, 1280),
        box=(32, 8, 2),
        steps=(1, 2, 1),
        options=(3, 0, 3),
        nan=True,
    )


def test_a_part_of_an_array_has_its_own_shape_and_strides() -> None:
    layout = layout_of(TensorMap("a", (8, 16), shape=(10, 20), strides=(64,)), Array())
    assert (layout.shape, layout.strides) == ((20, 10), (64,))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"box": (8,)}, r"box=\(8,\); expected 2 sizes"),
        ({"box": (8, 300)}, r"box=\(8, 300\); sizes are 1 to 256"),
        ({"box": (8, 2.5)}, "expected a tuple of integers"),
        ({"box": (8, 2)}, "row of the box of 8 bytes, which is no multiple of 16"),
        ({"box": (8, 32), "swizzle": 64}, "row of the box of 128 bytes, more than swizzle=64"),
        ({"box": (8, 16), "swizzle": 48}, "swizzle '48'"),
        ({"box": (8, 16), "promotion": 512}, "promotion '512'"),
        ({"box": (8, 16), "interleave": 16}, "interleave=16 with 2 axes; it needs 3 or more"),
        (
            {"box": (8, 16, 8), "shape": (4, 8, 8), "interleave": 32},
            "interleave=32 with swizzle=0; it needs swizzle=32",
        ),
        ({"box": (8, 16), "steps": (1, 9)}, r"steps=\(1, 9\); steps are 1 to 8"),
        ({"box": (8, 16), "shape": (0, 16)}, r"shape=\(0, 16\); sizes are 1 to 2\^32"),
        ({"box": (8,) * 6, "shape": (8,) * 6}, "6 axes; it can have 1 to 5"),
        ({"box": (8, 16), "shape": (8, 30)}, "stride of 30 elements of 4 bytes.* multiple of 16"),
        ({"box": (8, 16), "shape": (8, 16), "strides": (1 << 38,)}, r"below 2\^40 bytes"),
    ],
)
def test_a_map_that_the_driver_would_refuse_is_one_error(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(SpecError, match=rf"^launch: TensorMap\('a'\).*{message}"):
        layout_of(TensorMap("a", **options), Array())


def test_integers_have_no_nan() -> None:
    with pytest.raises(SpecError, match="nan=True for int32; only floating-point numbers"):
        layout_of(TensorMap("a", (8, 16), nan=True), Array(type_name="int32"))


def bound(*args: object, parameter_bytes: tuple[int, ...]) -> tuple[object, ...]:
    plan = LaunchSequence((Launch((1,), (32,), entry="f", args=args),))
    function = CompiledFunction("f", parameter_bytes=parameter_bytes)
    arrays = {"a": Array(), "out": Array()}
    binary = Binary(b"", (function,), "", "")
    (step,) = bind_arguments(plan, ["a", "out"], dict.fromkeys(arrays), {}, arrays, binary)
    return step.args


def test_a_map_is_one_parameter_of_128_bytes() -> None:
    found, _ = bound(TensorMap("a", (8, 16)), "out", parameter_bytes=(MAP_BYTES, 8))
    assert found == ViewedBuffer(layout_of(TensorMap("a", (8, 16)), Array()), None)
    for args, sizes, message in (
        (
            (TensorMap("a", (8, 16)), "out"),
            (8, 8),
            r"argument TensorMap\('a'\) is a tensor map of 128 bytes; "
            "declare const __grid_constant__ CUtensorMap in the kernel",
        ),
        (("a", "out"), (MAP_BYTES, 8), "has 128 bytes, but argument a is .* of 8 bytes"),
        ((TensorMap("b", (8, 16)), "out"), (MAP_BYTES, 8), "array 'b' .*known: a, out"),
    ):
        with pytest.raises(SpecError, match=message):
            bound(*args, parameter_bytes=sizes)


def test_a_device_without_tma_prunes_maps() -> None:
    kernel = find_kernel("product", EXAMPLE)
    (problem, *_) = kernel.problems["cuda"]
    for arch, why in (("sm_90", ""), ("sm_100", ""), ("sm_80", "no TMA; it needs sm_90 or newer")):
        plan = launch_sequence(kernel, kernel.default(), problem, for_arch(arch))
        assert re.search(f"{why}$", exceeded_limit(plan, None, for_arch(arch)))


def test_the_example_compiles_and_its_arguments_match(capsys: pytest.CaptureFixture[str]) -> None:
    command = ("check", "product", "--spaces", str(EXAMPLE), "--arch", "sm_90", "--samples", "2")
    assert run(command) == 0, capsys.readouterr()
    assert "compiled" in capsys.readouterr().out


# ---------------------------------------------------------------------- the driver

#: Stores its arguments, with the types of cuda.h, in the map, after the address with all bits of `FLIP` flipped.
#: Refuses the first call, as for a thread without a context.
DRIVER = """
#include <cuda.h>
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t axes, void* address,
    const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* steps,
    CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
    CUtensorMapFloatOOBfill fill) {
  static int calls;
  if (calls++ == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if ((cuuint64_t)map % 64 || axes != 3) return CUDA_ERROR_INVALID_VALUE;
  cuuint64_t* to = map->opaque;
  *to++ = (cuuint64_t)address ^ FLIP;
  for (cuuint32_t i = 0; i < axes; ++i) *to++ = sizes[i];
  for (cuuint32_t i = 0; i < axes - 1; ++i) *to++ = strides[i];
  for (cuuint32_t i = 0; i < axes; ++i) *to++ = box[i] << 8 | steps[i];
  const int options[] = {type, interleave, swizzle, promotion, fill};
  for (int i = 0; i < 5; ++i) *to++ = options[i];
  return CUDA_SUCCESS;
}
"""
LAYOUT = layout_of(
    TensorMap("a", (2, 8, 32), steps=(1, 2, 1), swizzle=128, promotion=256, nan=True),
    Array((3, 20, 64)),
)
#: What the driver gets for this layout after the address.
GIVEN = (64, 20, 3, 256, 5120, 32 << 8 | 1, 8 << 8 | 2, 2 << 8 | 1, 7, 0, 3, 3, 1)


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any) -> list[int]:
    """Replace the driver; return the devices whose contexts are made current."""
    (tmp_path / "driver.c").write_text(DRIVER)
    command = ["gcc", "-shared", "-fPIC", f"-DFLIP={request.param}"]
    command += ["-isystem", str(find_nvidia_header_directory("cudart")), "driver.c"]
    subprocess.run([*command, "-o", "driver.so"], cwd=tmp_path, check=True)
    driver, made = ctypes.CDLL(str(tmp_path / "driver.so")), list[int]()
    monkeypatch.setattr(tensor_map, "_driver", lambda: driver)
    runtime = SimpleNamespace(getDevice=lambda: 1, setDevice=made.append)
    driver_of_cupy = SimpleNamespace(launchKernel=noted)
    cuda = SimpleNamespace(runtime=runtime, driver=driver_of_cupy)
    for name, module in (("cupy", SimpleNamespace(cuda=cuda)), ("cupy.cuda", cuda)):
        monkeypatch.setitem(sys.modules, name, module)
    noted.launched.clear()
    tensor_map._has_address_first.cache_clear()
    return made


def noted(function: int, *sizes_to_stream: int) -> None:
    """Note the parameters of a launch: a map, a pointer and a number."""
    *_, parameters, _ = sizes_to_stream
    at_map, at_pointer, at_number = struct.unpack("3Q", ctypes.string_at(parameters, 24))
    words = struct.unpack("16Q", ctypes.string_at(at_map, MAP_BYTES))
    (pointer,) = struct.unpack("Q", ctypes.string_at(at_pointer, 8))
    (number,) = struct.unpack("i", ctypes.string_at(at_number, 4))
    noted.launched.append((words[0], words[1:14], pointer, number))


noted.launched = []


@pytest.mark.parametrize("devices", [0], indirect=True)
def test_the_driver_gets_the_layout_in_its_types(devices: list[int]) -> None:
    words = struct.unpack("16Q", LAYOUT.encoded(4096))
    assert (words[0], words[1:14]) == (4096, GIVEN)
    assert devices == [1]  # this thread's device, once


@pytest.mark.parametrize("devices", [0], indirect=True)
def test_a_measured_launch_has_its_parameters_in_memory(devices: list[int]) -> None:
    buffer = SimpleNamespace(inner=SimpleNamespace(data=SimpleNamespace(ptr=8192)))
    parameters = PackedParameters((ViewedBuffer(LAYOUT, buffer), buffer, np.int32(-7)))
    noted(1, parameters.address, 0)
    parameters = PackedParameters((ViewedBuffer(LAYOUT, buffer), None, np.float32(1)))
    noted(1, parameters.address, 0)
    assert noted.launched == [(8192, GIVEN, 8192, -7), (8192, GIVEN, 0, 0x3F800000)]


@pytest.mark.parametrize(
    ("devices", "is_moved"), [(0, True), (1 << 20, False)], indirect=["devices"]
)
def test_a_call_has_maps_of_its_own_arrays(devices: list[int], is_moved: bool) -> None:
    """A map of another form than expected is encoded again."""
    launch = Launch((4, 1, 1), (64, 1, 1))
    given = [Parameter(index=1, layout=LAYOUT), Parameter(index=0), Parameter(np.int32(7))]
    step = launch_step(0, launch, given)
    assert LAYOUT.has_address_first == is_moved
    for address in (4096, 1 << 44):
        step([256, address], 0, (1,))
    flipped = 0 if is_moved else 1 << 20
    assert noted.launched == [(at ^ flipped, GIVEN, 256, 7) for at in (4096, 1 << 44)]


# ---------------------------------------------------------------------- exported


PROGRAM = """
#include "fake_driver.cpp"
#include "product_launch.hpp"

int main() {
  autotune::product::launcher tuned(".");
  tuned.launch({65, 68, 20}, {4096, 8192, 12288});
  tuned.launch({65, 68, 20}, {16384, 8192, 12288});
}
"""


def test_an_exported_launcher_encodes_maps_for_its_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("kernels", "spaces"):
        shutil.copytree(EXAMPLE.parent / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    kernel, device = find_kernel("product"), for_arch("sm_90")
    problem = kernel.edge_problems[1]
    chosen = plan_of(kernel, kernel.default(), problem, device)
    known = record(
        [entry(dict(problem), chosen)],
        kernel="product",
        fields=dict.fromkeys(problem, "integer"),
        parameters=kernel.parameters,
        default=chosen,
    )
    for name, content in render([known]).items():
        (tmp_path / name).write_text(str(content))
    (tmp_path / "product_00.cubin").write_text("product_00\0")
    (tmp_path / "main.cpp").write_text(PROGRAM)
    include = find_nvidia_header_directory("cudart")
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread"]
    folders = ["-isystem", str(include), f"-I{Path(__file__).parent / 'launcher'}"]
    subprocess.run(["g++", *flags, *folders, "main.cpp", "-o", "main"], check=True, timeout=300)
    said = subprocess.run(["./main"], check=True, capture_output=True, text=True).stdout
    maps = [line for line in said.splitlines() if line.startswith("map")]
    options = "7 0 0 2 0"
    of_b = f"map 8192: 68 0 64 1 20 272 16 1 {options}"
    assert maps == [
        f"map 4096: 20 0 16 1 65 80 64 1 {options}",
        of_b,
        f"map 16384: 20 0 16 1 65 80 64 1 {options}",
        of_b,
    ]
