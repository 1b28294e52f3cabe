"""Compiles the kernels of `checks.cu`, which compare outputs on the device, for the type of an output."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from autotune.devices import nvrtc
from autotune.devices.base import LaunchError


def element_type(dtype: np.dtype[Any]) -> str:
    """Return the CUDA C++ name of an element type; LaunchError if it has none."""
    types = {
        "float16": "__half", "float32": "float", "float64": "double", "int8": "signed char",
        "uint8": "unsigned char", "int16": "short", "uint16": "unsigned short", "int32": "int",
        "uint32": "unsigned", "int64": "long long", "uint64": "unsigned long long",
        "bool": "unsigned char",
    }  # fmt: skip
    if dtype.name not in types:
        raise LaunchError(f"outputs of type {dtype} cannot be compared (known: {', '.join(types)})")
    return types[dtype.name]


@cache
def checks_code(arch: str, c_type: str, expected: str) -> bytes:
    """Return the compiled checks for a type of outputs and a type of expected values."""
    source = Path(__file__).with_name("checks.cu").read_text(encoding="utf-8")
    kinds = {
        "__half": ["-DTYPE_IS_HALF"],
        "bfloat16": ["-DTYPE_IS_BFLOAT16"],
        "float": [],
        "double": [],
    }
    kind = kinds.get(c_type, ["-DTYPE_IS_INTEGER"])
    # A #define, because an option cannot hold a type of two words.
    bound = "double" if c_type == "double" else "float"
    text = f"#define TYPE {c_type}\n#define EXPECTED {expected}\n#define BOUND {bound}\n{source}"
    return nvrtc.compile_cubin(text, [f"-arch={arch}", "-std=c++17", *kind]).code


@cache
def checks_module(cp: Any, arch: str, c_type: str, expected: str = "double") -> Any:
    """Return the checks as a module that is loaded in this process's context."""
    module = cp.cuda.function.Module()
    module.load(checks_code(arch, c_type, expected))
    return module
