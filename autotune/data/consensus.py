"""Expected outputs on which configurations agree, for kernels without a reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.arrays import converted, in_pieces, widened_bfloat16
from autotune.data import tolerance
from autotune.data.arguments import Argument
from autotune.data.dataset import MANIFEST, Dataset, encoded_manifest, mapped
from autotune.files import write_atomically
from autotune.kernel.spec import Kernel
from autotune.values import Problem

#: End of the names of files that hold a configuration's results.
_RESULT = ".result.npy"


def with_results(
    kernel: Kernel, problem: Problem, datasets: Sequence[Dataset], folder: Path
) -> tuple[Dataset, ...]:
    """Return data sets that expect the results of a configuration; their files are made in ``folder``.

    An `InOut` without results must stay as it is. One bound serves all elements of an output: 0 if all
    exact results are integers.
    """
    first, made, declared = datasets[0], list[Dataset](), kernel.tolerance_of(problem)
    inputs = max((o.count for o in first.arguments if o.kind != "out"), default=1)
    outputs = [o for o in first.arguments if o.kind in ("out", "inout")]
    changed = {name for dataset in datasets for name in dataset.bounds}
    changed |= {o.name for o in outputs if any(folder.glob(f"*/{o.name}{_RESULT}"))}
    for dataset in datasets:
        if dataset.bounds:
            made.append(dataset)
            continue
        here, bounds = folder / dataset.name, dict[str, float]()
        for name in (o.name for o in dataset.arguments if o.kind not in ("out", "scalar")):
            (here / f"{name}.npy").symlink_to(dataset.folder / f"{name}.npy")
        for output in (o for o in outputs if o.name in changed or not changed):
            stored, dtype = _claimed(here, output), output.number
            is_known = made and output.name in made[0].bounds
            exact = made[0].expected(output.name) if is_known else None
            if dtype.kind not in "fc" or (not made and _is_whole(stored, output.info)):
                bounds[output.name] = 0.0
            elif declared is not None:
                bounds[output.name] = declared
            else:
                exact_scale = None if exact is None else tolerance.largest(tolerance.parts(exact))
                scale, terms = tolerance.largest(tolerance.parts(stored)), inputs / output.count
                bounds[output.name] = tolerance.common_bound(output.info, scale, exact_scale, terms)
        made.append(replace(dataset, folder=here, bounds=bounds))
    return tuple(made)


def _claimed(folder: Path, output: Argument) -> NDArray[Any]:
    """Make the result file the expected output; if there is none, the input; halves become float32."""
    result, expected = (folder / f"{output.name}{end}" for end in (_RESULT, ".expected.npy"))
    if not result.exists():
        result.symlink_to(f"{output.name}.npy")
    if output.bits_of or (output.number.kind == "f" and output.number.itemsize == 2):
        values = mapped(result)
        values = widened_bfloat16(values) if output.bits_of else converted(values, np.float32)
        np.save(expected, values)
    else:
        result.rename(expected)
    return mapped(expected)


def save_result(folder: Path, name: str, values: NDArray[Any]) -> None:
    """Write the result of a configuration for one output; `with_results` reads it."""
    np.save(folder / f"{name}{_RESULT}", values)


def _is_whole(values: NDArray[Any], info: Any) -> bool:
    parts = tolerance.parts(values)

    def is_whole(_: int, begin: int, end: int) -> bool:
        return np.array_equal(parts[begin:end], np.rint(parts[begin:end]))

    return all(in_pieces(is_whole, parts.size)) and tolerance.largest(parts) * float(info.eps) < 1


def keep_expected(
    datasets: Sequence[Dataset], claimed: Sequence[Dataset], agreed: int
) -> tuple[Dataset, ...]:
    """Move the expected outputs of ``claimed`` into the data sets of the cache, and return those.

    ``agreed`` is the number of configurations that agree on them.
    """
    kept = []
    for dataset, found in zip(datasets, claimed, strict=True):
        if not dataset.bounds:
            for name in found.bounds:
                file = f"{name}.expected.npy"
                (found.folder / file).replace(dataset.folder / file)
            dataset = replace(dataset, bounds=found.bounds, agreed=agreed)
            write_atomically(dataset.folder / MANIFEST, encoded_manifest(dataset))
        kept.append(dataset)
    return tuple(kept)
