"""Textures: their checks, their place among the arguments of a launch, and what the driver gets."""

import struct
import subprocess
import sys
from ctypes import sizeof
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cuda.pathfinder import find_nvidia_header_directory
from sample_records import entry, record
from sample_textures import write_filtered

from autotune import Texture
from autotune.cli import run
from autotune.devices import texture
from autotune.devices.base import Binary, CompiledFunction
from autotune.devices.device import for_arch
from autotune.devices.texture import ResourceDescription, TextureDescription, TextureLayout
from autotune.errors import SpecError, UsageError
from autotune.export import export_records
from autotune.kernel.catalog import find_kernel
from autotune.kernel.launches import LaunchSequence, bind_arguments
from autotune.kernel.spec import Launch
from autotune.kernel.view_layout import layout_of
from autotune.run.plans import plan_of


@dataclass(frozen=True)
class Array:
    stored_shape: tuple[int, ...] = (300, 64)
    type_name: str = "float32"


def test_an_array_of_two_axes_has_rows_and_one_of_one_axis_has_none() -> None:
    assert layout_of(Texture("a"), Array()) == TextureLayout("float32", 1, 64, 300, 256)
    assert layout_of(Texture("a"), Array((300,))) == TextureLayout("float32", 1, 300, 0, 1200)


def test_options_are_the_drivers_numbers() -> None:
    wanted = Texture("a", channels=4, address="border", filter="linear", normalized=True, unit=True)
    assert layout_of(wanted, Array((20, 128), "uint8")) == TextureLayout(
        "uint8", 4, 32, 20, 128, address=3, filter=1, flags=2
    )
    padded = layout_of(Texture("a", shape=(10, 30), pitch=64), Array(type_name="int16"))
    assert padded == TextureLayout("int16", 1, 30, 10, 128, flags=1)


@pytest.mark.parametrize(
    ("options", "array", "message"),
    [
        ({}, Array(type_name="float64"), "an array of float64; it can be of uint8, "),
        ({}, Array((4, 4, 4)), "3 axes; it can have 1 or 2"),
        ({"channels": 3}, Array(), "channels=3; it can be 1, 2 or 4"),
        ({"filter": "linear"}, Array((64,)), "filter, which need two axes"),
        ({"filter": "linear"}, Array(type_name="int32"), "filter='linear' for int32"),
        ({"filter": "cubic"}, Array(), "unknown filter 'cubic'"),
        ({"address": "wrap"}, Array(), "address='wrap' without normalized=True"),
        ({"address": "none"}, Array(), "unknown address 'none'"),
        ({"unit": True}, Array(type_name="int32"), "unit=True for int32"),
        ({}, Array((300, 63)), "rows of 252 bytes, which must be a multiple of 32"),
        ({"pitch": 32}, Array(), "pitch=32, less than a row of 64 elements"),
        ({"shape": (70_000, 64)}, Array(), "at most 65000 rows of 131072"),
        ({"shape": (1 << 28,)}, Array(), r"sizes are 1 to 2\^27"),
        ({"shape": (2.5,)}, Array(), "expected a tuple of integers"),
    ],
)
def test_a_texture_that_the_driver_would_refuse_is_one_error(
    options: dict[str, object], array: Array, message: str
) -> None:
    with pytest.raises(SpecError, match=rf"^launch: Texture\('a'\).*{message}"):
        layout_of(Texture("a", **options), array)  # type: ignore[arg-type]


def bound(*args: object, parameter_bytes: tuple[int, ...]) -> tuple[object, ...]:
    plan = LaunchSequence((Launch((1,), (32,), entry="f", args=args),))
    function = CompiledFunction("f", parameter_bytes=parameter_bytes)
    arrays = {"a": Array(), "out": Array()}
    binary = Binary(b"", (function,), "", "")
    (step,) = bind_arguments(plan, ["a", "out"], dict.fromkeys(arrays), {}, arrays, binary)
    return step.args


def test_a_texture_is_one_parameter_of_8_bytes() -> None:
    found, _ = bound(Texture("a"), "out", parameter_bytes=(8, 8))
    assert found.layout == layout_of(Texture("a"), Array())  # type: ignore[attr-defined]
    remedy = "is a texture of 8 bytes; declare cudaTextureObject_t in the kernel"
    with pytest.raises(SpecError, match=remedy):
        bound(Texture("a"), "out", parameter_bytes=(4, 8))


def test_the_driver_gets_its_own_structures(tmp_path: Path) -> None:
    """The sizes and places of NVIDIA's header."""
    program = """
    #include <cuda.h>
    #include <cstddef>
    #include <cstdio>
    int main() {
      printf("%zu %zu ", sizeof(CUDA_RESOURCE_DESC), sizeof(CUDA_TEXTURE_DESC));
      printf("%zu ", offsetof(CUDA_RESOURCE_DESC, res.pitch2D.pitchInBytes));
      printf("%zu ", offsetof(CUDA_RESOURCE_DESC, res.linear.sizeInBytes));
      printf("%zu %zu ", offsetof(CUDA_RESOURCE_DESC, flags), offsetof(CUDA_TEXTURE_DESC, flags));
      printf("%zu %zu ", offsetof(CUDA_TEXTURE_DESC, filterMode), offsetof(CUDA_TEXTURE_DESC, borderColor));
      printf("%d %d ", CU_RESOURCE_TYPE_LINEAR, CU_RESOURCE_TYPE_PITCH2D);
      printf("%d %d %d %d ", CU_TR_ADDRESS_MODE_WRAP, CU_TR_ADDRESS_MODE_CLAMP, CU_TR_ADDRESS_MODE_MIRROR,
             CU_TR_ADDRESS_MODE_BORDER);
      printf("%d %d %d %d", CU_AD_FORMAT_UNSIGNED_INT8, CU_AD_FORMAT_SIGNED_INT32, CU_AD_FORMAT_HALF,
             CU_AD_FORMAT_FLOAT);
    }
    """
    (tmp_path / "sizes.cpp").write_text(program)
    include = find_nvidia_header_directory("cudart")
    command = ["g++", "-isystem", str(include), "sizes.cpp", "-o", "sizes"]
    subprocess.run(command, check=True, cwd=tmp_path, timeout=300)
    said = subprocess.run([tmp_path / "sizes"], check=True, capture_output=True, text=True).stdout
    memory = ResourceDescription.memory.offset
    kinds = ResourceDescription.memory.size, TextureDescription
    assert kinds[0] == 128
    pitched = type(ResourceDescription().memory.pitched)
    linear = type(ResourceDescription().memory.linear)
    numbers = [
        *(sizeof(ResourceDescription), sizeof(TextureDescription)),
        memory + pitched.pitch_bytes.offset,
        memory + linear.nbytes.offset,
        *(ResourceDescription.flags.offset, TextureDescription.flags.offset),
        *(TextureDescription.filter_mode.offset, TextureDescription.border_color.offset),
        *(2, 3),
        *(0, 1, 2, 3),
        *(0x01, 0x0A, 0x10, 0x20),
    ]
    assert list(map(int, said.split())) == numbers


class OtherThread:
    """The driver in a thread that has no context until the runtime sets its device."""

    context = 0

    def cuCtxGetCurrent(self, found: Any) -> int:  # noqa: N802 - the driver's name
        found._obj.value = self.context
        return 0

    def cuTexObjectCreate(self, made: Any, *_: Any) -> int:  # noqa: N802
        made._obj.value = 70 + self.context
        return 0 if self.context else 201

    def getDevice(self) -> int:  # noqa: N802
        return 2

    def setDevice(self, index: int) -> None:  # noqa: N802
        self.context = index


def test_a_thread_without_a_context_makes_textures_in_that_of_its_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = OtherThread()
    monkeypatch.setattr(texture, "_driver", lambda: driver)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "cupy.cuda", SimpleNamespace(runtime=driver))
    assert layout_of(Texture("a"), Array()).encoded(4096) == struct.pack("Q", 72)


def test_the_driver_gets_the_memory_of_a_call() -> None:
    resource, read = layout_of(Texture("a", address="border"), Array()).descriptions(4096)  # type: ignore[attr-defined]
    pitched = resource.memory.pitched
    assert (resource.kind, pitched.address, pitched.format, pitched.channels) == (3, 4096, 0x20, 1)
    assert (pitched.width, pitched.height, pitched.pitch_bytes) == (64, 300, 256)
    assert (*read.address_modes, read.filter_mode, read.flags) == (3, 3, 3, 0, 0)
    resource, _ = layout_of(Texture("a"), Array((300,))).descriptions(512)  # type: ignore[attr-defined]
    linear = resource.memory.linear
    assert (resource.kind, linear.address, linear.nbytes) == (2, 512, 1200)


@pytest.mark.slow
def test_a_kernel_with_textures_is_checked_and_has_no_launcher(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spaces = write_filtered(tmp_path)
    assert run(["check", "filtered", "--spaces", str(spaces), "--arch", "sm_90"]) == 0
    said = "".join(capsys.readouterr())
    assert "12 valid of 12" in said and "compiled" in said and "failed" not in said
    kernel = find_kernel("filtered", spaces)
    (problem,), device = kernel.problems["cuda"], for_arch("sm_90")
    plan = plan_of(kernel, kernel.default(), problem, device)
    written = record(
        [entry(dict(problem), plan)],
        kernel="filtered",
        fields=dict.fromkeys(problem, "integer"),
        parameters=kernel.parameters,
        default=plan,
    )
    monkeypatch.setenv("AUTOTUNE_PATH", str(spaces))
    with pytest.raises(
        UsageError, match=r"Texture\('image'\).*a launcher in C\+\+ makes no textures"
    ):
        export_records("cuda", [written])
