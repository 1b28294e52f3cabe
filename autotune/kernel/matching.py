"""Compares the arguments of a launch with the parameters of the compiled function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autotune.devices.base import CompiledFunction, ViewedBuffer
from autotune.devices.texture import TextureLayout
from autotune.errors import SpecError

#: Bytes of a pointer, which an array passes.
_POINTER_BYTES = 8
#: Type to pass for a parameter, by kind of the scalar and bytes of the parameter.
_REMEDIES = {
    ("f", 2): "float16",
    ("f", 4): "float32",
    ("f", 8): "float64",
    ("i", 1): "int8",
    ("i", 2): "int16",
    ("i", 4): "int32",
    ("i", 8): "int64",
}


def require_match(function: CompiledFunction, names: Sequence[Any], values: Sequence[Any]) -> None:
    """Raise `SpecError` if a function has another number of parameters, or a parameter has other bytes.

    ``values`` are numpy scalars, and arrays or null pointers of any type. ``names`` are their names; a
    computed value is its own name.
    """
    expected = function.parameter_bytes
    if expected is None:
        return
    given = list(map(str, names))
    if len(expected) != len(given):
        raise SpecError(
            f"launch: {function.name} takes {len(expected)} arguments and gets {len(given)}: "
            f"{', '.join(given)}; correct the arguments hook, or args of its Launch"
        )
    for place, (name, value, wanted) in enumerate(zip(given, values, expected, strict=True)):
        passed = value.nbytes if isinstance(value, np.generic | ViewedBuffer) else _POINTER_BYTES
        if wanted not in (0, passed):
            raise SpecError(
                f"launch: parameter {place + 1} of {function.name} has {_bytes(wanted)}, but argument {name} is "
                f"{_described(value, passed)}; {_remedy(name, value, wanted)}, or correct the order of "
                f"the arguments ({', '.join(given)})"
            )


def _described(value: Any, nbytes: int) -> str:
    if isinstance(value, ViewedBuffer):
        kind = "a texture" if isinstance(value.layout, TextureLayout) else "a tensor map"
    else:
        kind = value.dtype.name if isinstance(value, np.generic) else "an array, a pointer"
    return f"{kind} of {_bytes(nbytes)}"


def _remedy(name: str, value: Any, wanted: int) -> str:
    """Return what to write so that an argument has the bytes of its parameter."""
    if isinstance(value, ViewedBuffer):
        if isinstance(value.layout, TextureLayout):
            return "declare cudaTextureObject_t in the kernel"
        return "declare const __grid_constant__ CUtensorMap in the kernel"
    if not isinstance(value, np.generic):
        return f"declare a pointer in the kernel, or pass a number as {name}"
    kind = "i" if value.dtype.kind in "iub" else value.dtype.kind
    if kind == "i" and value.dtype.kind == "u" and (kind, wanted) in _REMEDIES:
        return f"pass np.u{_REMEDIES[kind, wanted]}({name})"
    if kind == "V":
        return "lay the struct out as C does: np.dtype(..., align=True)"
    if (kind, wanted) in _REMEDIES:
        return f"pass np.{_REMEDIES[kind, wanted]}({name})"
    return f"pass a value of {_bytes(wanted)}"


def _bytes(count: int) -> str:
    return f"{count} byte{'' if count == 1 else 's'}"
