"""Expected outputs on which configurations agree, for kernels without a reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.arrays import converted, in_pieces
from autotune.data import tolerance
from autotune.data.arguments import Argument
from autotune.data.dataset import Dataset, completed, link_inputs, mapped
from autotune.kernel.spec import Kernel
from autotune.values import Problem

#: Suffix of the files that hold a configuration's results.
RESULT = ".result.npy"


def with_results(
    kernel: Kernel, problem: Problem, datasets: Sequence[Dataset], folder: Path
) -> tuple[Dataset, ...]:
    """Return data sets whose expected outputs are a configuration's results; write them to ``folder``.

    An `InOut` argument without a result must not change. All elements of an output have the same bound:
    0 if its results on the exact data are integers.
    """
    arguments, claimed = datasets[0].arguments, list[Dataset]()
    tolerance_of_kernel = kernel.tolerance_of(problem)
    inputs = max((argument.count for argument in arguments if argument.kind != "out"), default=1)
    outputs = [argument for argument in arguments if argument.kind in ("out", "inout")]
    changed = {name for dataset in datasets for name in dataset.bounds}
    changed |= {output.name for output in outputs if any(folder.glob(f"*/{output.name}{RESULT}"))}
    for dataset in datasets:
        if dataset.bounds:
            claimed.append(dataset)
            continue
        here, bounds = folder / dataset.name, dict[str, float]()
        link_inputs(dataset, here)
        for output in outputs:
            if changed and output.name not in changed:
                continue
            stored, dtype = _stored_as_expected(here, output), output.value_type
            if dtype.kind not in "fc" or (not claimed and _is_whole(stored, output.info)):
                bounds[output.name] = 0.0
            elif tolerance_of_kernel is not None:
                bounds[output.name] = tolerance_of_kernel
            else:
                scale, exact_scale = tolerance.largest(tolerance.parts(stored)), 0.0
                if claimed and output.name in claimed[0].bounds:
                    exact = claimed[0].expected(output.name)
                    exact_scale = tolerance.largest(tolerance.parts(exact))
                terms = inputs / output.count
                bounds[output.name] = tolerance.common_bound(output.info, scale, exact_scale, terms)
        claimed.append(replace(dataset, folder=here, bounds=bounds))
    return tuple(claimed)


def _stored_as_expected(folder: Path, output: Argument) -> NDArray[Any]:
    """Store the result of an output as its expected values, or its input if there is no result.

    Values of half precision are stored as float32.
    """
    result, expected = (folder / f"{output.name}{end}" for end in (RESULT, ".expected.npy"))
    if not result.exists():
        result.symlink_to(f"{output.name}.npy")
    if output.bits_of or (output.value_type.kind == "f" and output.value_type.itemsize == 2):
        values = output.values(mapped(result))
        np.save(expected, converted(values, output.value_type if output.bits_of else np.float32))
    else:
        result.rename(expected)
    return mapped(expected)


def save_result(folder: Path, name: str, values: NDArray[Any]) -> None:
    """Write the result of a configuration for one output; `with_results` reads it."""
    np.save(folder / f"{name}{RESULT}", values)


def _is_whole(values: NDArray[Any], info: Any) -> bool:
    parts = tolerance.parts(values)

    def is_whole(_: int, begin: int, end: int) -> bool:
        return np.array_equal(parts[begin:end], np.rint(parts[begin:end]))

    return all(in_pieces(is_whole, parts.size)) and tolerance.largest(parts) * float(info.eps) < 1


def keep_expected(
    datasets: Sequence[Dataset], claimed: Sequence[Dataset], agreed: int
) -> tuple[Dataset, ...]:
    """Move the expected outputs of ``claimed`` into the data sets of the cache; return these data sets.

    ``agreed`` is the number of configurations that agree on them.
    """
    return tuple(
        dataset if dataset.bounds else completed(dataset, found, agreed)
        for dataset, found in zip(datasets, claimed, strict=True)
    )
