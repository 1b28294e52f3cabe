"""Compiles the kernels of `checks.cu`, which compare outputs on the device, for the type of an output."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.devices import nvrtc
from autotune.devices.base import Comparison, LaunchError, with_defines
from autotune.element_types import ELEMENT_TYPES
from autotune.encoding import dtype_of


def element_type(comparison: Comparison) -> str:
    """Return the name of an output's type; LaunchError if outputs of the type cannot be compared."""
    name = comparison.bits_of or comparison.dtype.name
    if name not in ELEMENT_TYPES or comparison.dtype.kind == "c":
        raise LaunchError(f"outputs of type {name} cannot be compared")
    return name


@cache
def checks_code(arch: str, name: str, expected: str) -> bytes:
    """Return the compiled checks for a type of outputs and a type of expected values."""
    source = Path(__file__).with_name("checks.cu").read_text(encoding="utf-8")
    element = ELEMENT_TYPES[name]
    kinds = {
        "float16": "TYPE_IS_HALF",
        "bfloat16": "TYPE_IS_BFLOAT16",
        "float32": "",
        "float64": "",
    }
    # As text, because an option cannot hold a type of two words.
    defines = {
        "TYPE": {"bool": "unsigned char", "bfloat16": "bfloat16"}.get(name, element.cuda),
        "EXPECTED": expected,
        "BOUND": "double" if name == "float64" else "float",
        kinds.get(name, "TYPE_IS_INTEGER"): "1",
    }
    if element.stored and element.bits <= 8:
        values = ", ".join(f"0x{bits:08x}" for bits in _values_of_codes(name).tolist())
        defines = {**defines, "TYPE": "code", "CODE_BITS": f"{element.bits}", "VALUES": values}
        del defines["TYPE_IS_INTEGER"]
    text = with_defines(source, {key: value for key, value in defines.items() if key})
    return nvrtc.compile_cubin(text, [f"-arch={arch}", "-std=c++17"]).code


def _values_of_codes(name: str) -> NDArray[np.uint32]:
    """Return the value of every code of a type of at most 8 bits, as bits of float32."""
    codes = np.arange(1 << ELEMENT_TYPES[name].bits, dtype=np.uint8)
    return codes.view(dtype_of(name)).astype(np.float32).view(np.uint32)


@cache
def checks_module(cp: Any, arch: str, name: str, expected: str = "double") -> Any:
    """Return the checks as a module that is loaded in this process's context."""
    module = cp.cuda.function.Module()
    module.load(checks_code(arch, name, expected))
    return module
