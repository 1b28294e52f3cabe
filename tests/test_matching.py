"""The arguments of a launch against the parameters of the compiled function, on both backends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autotune.devices.base import CompiledFunction
from autotune.devices.choose import backend
from autotune.devices.device import for_arch
from autotune.errors import SpecError
from autotune.kernel.matching import require_match

pytest.importorskip("cuda.bindings.nvrtc")

NAMES = ("x", "a", "out", "n")
VALUES = (None, np.float32(2.5), object(), np.int32(7))


def cuda(parameter: str) -> CompiledFunction:
    """Compile a function whose second parameter is given."""
    source = f"""
        struct pair {{ double first; char second; }};
        extern "C" __global__ void scale(const float* x, {parameter} a, float* out, int n) {{
            out[n] = x[n] * *(const float*)&a;
        }}"""
    return backend("cuda").compile(source, {}, (), for_arch("sm_90")).entries[0]


def opencl(parameter: str) -> CompiledFunction:
    source = f"""
        typedef long i64;
        kernel void scale(global const float* x, {parameter} a, global float* out, int n) {{
            out[n] = x[n];
        }}"""
    (device, *_) = backend("opencl").devices()
    return backend("opencl").compile(source, {}, (), device).entries[0]


@pytest.mark.parametrize(
    ("parameter", "value", "told"),
    [
        ("float", np.float32(2.5), ""),
        ("double", np.float32(2.5), "has 8 bytes, but argument a is float32 of 4 bytes; pass np.float64(a)"),
        ("float", np.float64(2.5), "has 4 bytes, but argument a is float64 of 8 bytes; pass np.float32(a)"),
        ("long long", np.int32(3), "pass np.int64(a)"),
        ("unsigned long long", np.uint32(3), "pass np.uint64(a)"),
        ("char", np.int32(3), "has 1 byte, but argument a is int32 of 4 bytes; pass np.int8(a)"),
        ("pair", np.int32(3), "has 16 bytes, but argument a is int32 of 4 bytes; pass a value of 16 bytes"),
        ("int", None, "argument a is an array, a pointer of 8 bytes; declare a pointer in the kernel"),
    ],
)  # fmt: skip
def test_a_parameter_of_other_bytes_is_refused_with_the_type_to_pass(
    parameter: str, value: Any, told: str
) -> None:
    values = (VALUES[0], value, *VALUES[2:])
    if not told:
        require_match(cuda(parameter), NAMES, values)
        return
    with pytest.raises(SpecError) as error:
        require_match(cuda(parameter), NAMES, values)
    assert str(error.value).startswith("launch: parameter 2 of scale has ")
    assert told in str(error.value)
    assert str(error.value).endswith("or correct the order of the arguments (x, a, out, n)")


@pytest.mark.opencl
@pytest.mark.parametrize(
    ("parameter", "nbytes"),
    [("float", 4), ("i64", 8), ("uchar", 1), ("float4", 16), ("global int*", 8)],
)
def test_opencl_reports_the_bytes_of_parameters(
    opencl_device: str, parameter: str, nbytes: int
) -> None:
    assert opencl(parameter).parameter_bytes == (8, nbytes, 8, 4)


def test_another_number_of_arguments_is_refused_and_an_unknown_size_is_not() -> None:
    with pytest.raises(SpecError, match="scale takes 4 arguments and gets 3: x, a, out;"):
        require_match(cuda("float"), NAMES[:3], VALUES[:3])
    require_match(CompiledFunction("scale", parameter_bytes=(8, 0, 8, 4)), NAMES, VALUES)
    require_match(CompiledFunction("scale"), NAMES[:1], VALUES[:1])
