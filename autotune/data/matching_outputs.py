"""Outputs that have several correct values: the kernel's matches hook compares them in place of tolerances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.data.arguments import Argument
from autotune.data.dataset import Dataset
from autotune.encoding import encoded
from autotune.errors import SpecError
from autotune.kernel.spec import Kernel

#: Message for False.
_NO_MATCH = "the outputs do not match"
#: Bytes that fill outputs which no kernel wrote.
_UNWRITTEN = (0xFF, 0x7B)


def mismatch_of(kernel: Kernel, dataset: Dataset, stored: Mapping[str, NDArray[Any]]) -> str:
    """Return why outputs do not match by the matches hook; empty if they do.

    ``stored`` are the arrays that a kernel wrote. An error of the hook is a mismatch: wrong outputs may be indices
    outside of an array.
    """
    found = dict[str, Any]()
    for argument in dataset.arguments:
        if argument.kind == "scalar":
            found[argument.name] = argument.scalar if argument.members else argument.scalar.item()
        elif argument.name in stored:
            values = argument.values(stored[argument.name])
            found[argument.name] = values.reshape(argument.shape)
        elif argument.kind != "out":
            found[argument.name] = dataset.values(argument.name)
    expected = {
        argument.name: dataset.expected(argument.name).reshape(argument.shape)
        for argument in dataset.arguments
        if argument.name in dataset.bounds
    }
    try:
        with np.errstate(all="ignore"):
            answer = kernel.call_hook("matches", found, expected)
    except SpecError as error:
        return str(error)
    if isinstance(answer, str):
        return answer or _NO_MATCH
    if not isinstance(answer, bool | np.bool_):
        raise kernel.error(f"matches: returned {answer!r}, expected True or a message")
    return "" if answer else _NO_MATCH


def refused_reference(kernel: Kernel, dataset: Dataset) -> str:
    """Return why the matches hook refuses the outputs of the reference; empty if it accepts them."""
    return mismatch_of(kernel, dataset, _expected_as_stored(dataset))


def check_matches(kernel: Kernel, dataset: Dataset) -> None:
    """Raise `SpecError` if the matches hook refuses the reference's outputs, or accepts outputs that nobody wrote."""
    if why := refused_reference(kernel, dataset):
        raise kernel.error(
            f"matches: refuses the outputs of the reference on {dataset.name} data: {why}; found and "
            "expected are then equal"
        )
    unwritten = [
        mismatch_of(kernel, dataset, {o.name: _filled(o, byte) for o in _outputs(dataset)})
        for byte in _UNWRITTEN
    ]
    if not any(unwritten):
        raise kernel.error(
            f"matches: accepts outputs that no kernel wrote on {dataset.name} data; return True only if "
            "each output in found is correct"
        )


def _expected_as_stored(dataset: Dataset) -> dict[str, NDArray[Any]]:
    stored = dict[str, NDArray[Any]]()
    for output in _outputs(dataset):
        values = dataset.expected(output.name).reshape(output.shape)
        if output.bits_of:
            stored[output.name] = encoded(values.astype(output.value_type), output.bits_of)
        else:
            stored[output.name] = values.astype(output.dtype)
    return stored


def _filled(output: Argument, byte: int) -> NDArray[Any]:
    return np.full(output.nbytes, byte, np.uint8).view(output.dtype).reshape(output.stored_shape)


def _outputs(dataset: Dataset) -> list[Argument]:
    return [argument for argument in dataset.arguments if argument.name in dataset.bounds]
