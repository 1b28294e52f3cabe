"""Evaluates a kernel's reference: the expected values of every output, in float64 or float32."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from autotune.arrays import converted, narrowed
from autotune.data.arguments import Argument
from autotune.data.dataset import Dataset, mapped
from autotune.encoding import is_held as is_held_by
from autotune.errors import SpecError, unknown
from autotune.kernel.spec import Kernel

#: Kinds of parameters of Python that take any number of arguments.
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
#: Kinds of arguments that the reference returns.
_WRITTEN = ("out", "inout")


class ArrayLibrary(Protocol):
    """Arrays on a device that NumPy's functions take in place of NumPy's own."""

    #: The device and its library, for example ``NVIDIA H200 (CuPy)``.
    name: str
    version: str

    def computing(self) -> AbstractContextManager[None]:
        """Return a context with the device's memory to itself, which is free again at its end."""
        ...

    def from_host(self, array: NDArray[Any], dtype: np.dtype[Any]) -> Any:
        """Copy an array of NumPy to the device, as another type."""
        ...

    def to_host(self, array: Any) -> NDArray[Any]:
        """Copy an array of the device, or a number, to the host."""
        ...


class ExpectedOutputs(dict[str, NDArray[Any]]):
    """Expected values by output; 0 where the reference masks an element, which may hold anything."""

    def __init__(self) -> None:
        super().__init__()
        #: True for each masked element, by output; only outputs with one.
        self.masked: dict[str, NDArray[np.bool_]] = {}


def expected_outputs(
    kernel: Kernel,
    arguments: list[Argument],
    arrays: Mapping[str, NDArray[Any]],
    is_single: bool = False,
    library: ArrayLibrary | None = None,
) -> ExpectedOutputs:
    """Call the reference with float64 or float32 arrays, and return the expected values of every output.

    The values are float64 or complex128, or integers and bools in the output's type, and may be views.
    """
    outputs = {argument.name: argument for argument in arguments if argument.kind in _WRITTEN}
    with library.computing() if library else nullcontext():
        result = _called(kernel, arguments, arrays, is_single, library)
        if library:
            result = _on_host(result, library)
    if result is None:
        raise kernel.error("reference: returned nothing; return the expected output")
    by_name = result if isinstance(result, dict) else dict.fromkeys(list(outputs)[:1], result)
    expected = ExpectedOutputs()
    for name, output in outputs.items():
        if name not in by_name:
            raise kernel.error(
                f"reference: no value for the output {name!r}; return a dict by name"
            )
        values = np.asarray(np.ma.filled(by_name[name], 0))
        mask = np.asarray(np.ma.getmask(by_name[name]))
        if values.shape != output.shape and not (values.size == 1 == np.prod(output.shape)):
            raise kernel.error(
                f"reference: {name} has shape {values.shape}, arguments declare {output.shape}; "
                "return that shape"
            )
        expected[name] = _typed(kernel, output, values.reshape(output.shape))
        if mask.any():
            expected.masked[name] = _checked_mask(kernel, output, mask)
    return expected


def _checked_mask(kernel: Kernel, output: Argument, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    if mask.all() or output.per_stored > 1:
        why = "elements of 4 bits" if output.per_stored > 1 else "every element"
        raise kernel.error(
            f"reference: {output.name} masks {why}, so they are not compared; return their values"
        )
    return np.broadcast_to(mask, output.shape)


def _called(
    kernel: Kernel,
    arguments: Sequence[Argument],
    arrays: Mapping[str, NDArray[Any]],
    is_single: bool = False,
    library: ArrayLibrary | None = None,
) -> Any:
    """Call the reference and return its result."""
    scalars = {
        argument.name: argument.scalar if argument.members else argument.scalar.item()
        for argument in arguments
        if argument.kind == "scalar"
    }
    available = {**arrays, **scalars}
    reference = kernel.hook("reference")
    parameters = inspect.signature(reference).parameters
    for name, parameter in parameters.items():
        is_needed = parameter.default is parameter.empty and parameter.kind not in _VARIABLE
        if is_needed and name not in available:
            raise kernel.error(f"reference: {unknown('argument', name, available)}")
    passed = {
        name: (library.from_host if library else converted)(value, _wide(value.dtype, is_single))
        if isinstance(value, np.ndarray) and not isinstance(value, Numbers)
        else value
        for name, value in available.items()
        if name in parameters
    }
    with np.errstate(all="ignore"):
        return kernel.guarded("reference", reference, **passed)


def _on_host(result: Any, library: ArrayLibrary) -> Any:
    if isinstance(result, Mapping):
        return {name: library.to_host(values) for name, values in result.items()}
    return None if result is None else library.to_host(result)


def _typed(kernel: Kernel, output: Argument, values: NDArray[Any]) -> NDArray[Any]:
    """Convert expected values to the type of the comparison; SpecError if more than rounding changes them."""
    name, wide = output.name, _wide(output.value_type)
    if values.dtype.kind not in ("biufc" if wide.kind == "c" else "biuf"):
        raise kernel.error(
            f"reference: {name} is {values.dtype}, arguments declare {output.type_name}; return numbers, "
            f"or {name}.real for a real output"
        )
    if wide.kind in "fc":
        return np.asarray(values, wide)
    whole = narrowed(values, wide)
    if whole is None or (output.bits_of and not is_held_by(whole, output.bits_of)):
        with np.errstate(all="ignore"):
            changed = values[(values != values.astype(wide)) | ~_is_within(values, output)]
        example = changed[0] if changed.size else values.max()
        raise kernel.error(
            f"reference: {name} holds {example}, which {output.type_name} cannot hold; declare another type, or "
            "return the value that the kernel writes"
        )
    return whole


def stored_values(expected: NDArray[Any], output: Argument) -> tuple[NDArray[Any], bool]:
    """Return the values to store, and whether the output's type holds all of them exactly."""
    dtype = output.value_type
    if dtype.kind not in "fc":
        return expected, True
    flat, info = expected, np.finfo(dtype)
    if dtype.kind == "c":
        flat = converted(expected, expected.dtype).reshape(-1).view(np.float64)
    # For a float64 output, only values that float32 holds count as computed without rounding.
    narrow = narrowed(flat, np.float32 if info.dtype == np.float64 else info.dtype)
    stored = narrow
    if stored is None or info.dtype != np.float32:
        stored = converted(flat, np.float64)
    if dtype.kind == "c":
        stored = stored.view(np.result_type(stored, np.complex64)).reshape(expected.shape)
    is_held = narrow is not None
    if is_held and output.bits_of:
        is_held = is_held_by(flat, output.bits_of)
    return stored, is_held


def reevaluated(
    kernel: Kernel,
    dataset: Dataset,
    changed: Mapping[str, NDArray[Any]],
    is_single: bool = False,
    library: ArrayLibrary | None = None,
) -> ExpectedOutputs:
    """Return the expected outputs of a data set with some inputs changed.

    NumPy computes them if ``library`` has no memory left for them.
    """
    arrays = {**_inputs(dataset, changed), **changed}
    if library:
        with suppress(SpecError, MemoryError):  # NumPy has its own message
            return expected_outputs(kernel, list(dataset.arguments), arrays, is_single, library)
    return expected_outputs(kernel, list(dataset.arguments), arrays, is_single)


def outputs_of(
    kernel: Kernel, dataset: Dataset, changed: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Return what the reference returns for a data set with some inputs changed, in its own types."""
    result = _called(kernel, dataset.arguments, {**_inputs(dataset, changed), **changed})
    if not isinstance(result, Mapping):
        first = next(argument for argument in dataset.arguments if argument.kind in _WRITTEN)
        result = {first.name: result}
    return {name: np.asarray(values) for name, values in result.items()}


class Numbers(np.ndarray[Any, Any]):
    """Numbers that stay floating-point, for a reference that computes with integers or rounds to them."""

    def astype(self, dtype: Any, *args: Any, **named: Any) -> Any:
        """Keep the type instead of a type of integers."""
        return self if np.dtype(dtype).kind in "iu" else super().astype(dtype, *args, **named)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
        """Compute in the same type instead of a type of integers."""
        if np.dtype(named.get("dtype")).kind in "iu":
            del named["dtype"]
        if "out" in named:
            named["out"] = tuple(map(_plain, named["out"]))
        if "where" in named:
            named["where"] = _plain(named["where"])
        result = getattr(ufunc, method)(*map(_plain, inputs), **named)
        return result.view(Numbers) if isinstance(result, np.ndarray) else result


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, Numbers) else value


def computes_with(kernel: Kernel, dataset: Dataset, argument: Argument) -> bool:
    """Return whether the reference computes with an array, and uses none of its elements as index or length.

    The reference gets NaN in place of the elements. NumPy and Python refuse to index and to count with NaN.
    """
    values = np.full(argument.shape, np.nan).view(Numbers)
    arrays = {**_inputs(dataset, {argument.name}), argument.name: values}
    try:
        _called(kernel, dataset.arguments, arrays)
    except SpecError:
        return False
    return True


def _inputs(dataset: Dataset, without: Collection[str]) -> dict[str, NDArray[Any]]:
    """Return the values of a data set's inputs, except some; changes of the reference stay in this process."""
    return {
        argument.name: argument.values(
            mapped(dataset.folder / f"{argument.name}.npy", "c" if argument.count else None)
        )
        for argument in dataset.inputs()
        if argument.name not in without
    }


def _is_within(values: NDArray[Any], output: Argument) -> NDArray[np.bool_]:
    within: NDArray[np.bool_] = (values >= output.info.min) & (values <= output.info.max)
    return within


def wide_bytes(dtype: np.dtype[Any]) -> int:
    """Return the bytes of a number of a type in a reference."""
    return int(_wide(dtype).itemsize)


def _wide(dtype: np.dtype[Any], is_single: bool = False) -> np.dtype[Any]:
    real, pair = (np.float32, np.complex64) if is_single else (np.float64, np.complex128)
    return np.dtype({"f": real, "c": pair}.get(dtype.kind, dtype))
