"""Makes the data sets of a problem: draws inputs, evaluates the reference, and bounds the errors."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune import cache
from autotune.data import tolerance
from autotune.data.arguments import Argument, argument_of, check_array, offsets_of
from autotune.data.dataset import (
    EXACT,
    MANIFEST,
    RANDOM,
    Dataset,
    completed,
    dataset_folder,
    dataset_key,
    encoded_manifest,
    link_inputs,
    read_dataset,
    refuse_foreign_data,
    save_arrays,
)
from autotune.data.draw import Draw
from autotune.data.evaluations import Evaluations
from autotune.data.reference import reevaluated, stored_values
from autotune.errors import AutotuneError, SpecError
from autotune.kernel.names import fault
from autotune.kernel.spec import Kernel
from autotune.values import Problem, size_of

#: Seed of the data set that shows whether outputs are exact.
_PROBE_SEED = 0
#: Least size of its problem in elements.
_MIN_PROBE_SIZE = 65


def drawn_dataset(kernel: Kernel, problem: Problem, which: str, seed: int = 0) -> Dataset:
    """Read the `EXACT` or `RANDOM` data set of a problem from the cache, or draw its inputs.

    A data set that was only drawn has no expected outputs or bounds.
    """
    key = dataset_key(kernel, problem, which, seed)
    folder, failure = dataset_folder(key), "they cannot be read back"
    refuse_foreign_data(folder)
    found = read_dataset(folder, which, seed)
    if found is not None:
        return found
    is_damaged = folder.is_dir()  # a folder gets its name when it is complete
    cache.make_room(cache.DATA)
    try:
        with cache.scratch() as scratch:
            _draw_dataset(kernel, problem, which, int(key[:32], 16), Path(scratch))
            if is_damaged:
                cache.remove(folder)
            cache.publish(Path(scratch), folder)
    except OSError as error:  # another process may have made the same data set first
        failure = str(error)
    made = read_dataset(folder, which, seed)
    if made is None:
        raise _unwritten(kernel, problem, failure)
    return made


def prepare_dataset(kernel: Kernel, problem: Problem, which: str, seed: int = 0) -> Dataset:
    """Read the `EXACT` or `RANDOM` data set of a problem from the cache, or make it with its expected outputs.

    Without a reference the data set has no expected outputs or bounds until configurations agree on them.
    """
    drawn = drawn_dataset(kernel, problem, which, seed)
    if drawn.bounds or "reference" not in kernel.hooks:
        return drawn
    probe = _exactness_probe(kernel, problem, which, seed)
    key = int(dataset_key(kernel, problem, which, seed)[:32], 16)
    try:
        with cache.scratch() as scratch:
            link_inputs(drawn, Path(scratch))
            made = replace(drawn, folder=Path(scratch))
            return completed(drawn, _evaluated(kernel, problem, made, probe, key))
    except OSError as error:
        raise _unwritten(kernel, problem, str(error)) from error


def _unwritten(kernel: Kernel, problem: Problem, failure: str) -> AutotuneError:
    return AutotuneError(
        f"{kernel.name} ({problem}): inputs cannot be written to the cache: {failure}; free disk "
        "space or point AUTOTUNE_CACHE_DIR elsewhere"
    )


def _exactness_probe(kernel: Kernel, problem: Problem, which: str, seed: int) -> Dataset | None:
    """Return the exact data set that shows whether each output is computed without rounding.

    The probe of random data belongs to the same problem. The probe of exact data belongs to the smallest
    declared problem with at least `_MIN_PROBE_SIZE` elements, because smaller problems can be exact although
    the kernel rounds: dividing by 64, for a mean, is exact. Return None if the data set is its own probe, if a
    tolerance is declared, or without a reference.
    """
    if "reference" not in kernel.hooks:
        return None
    if which == RANDOM:
        is_declared = kernel.tolerance_of(problem) is not None
        return None if is_declared else prepare_dataset(kernel, problem, EXACT, _PROBE_SEED)
    large = (known for known in kernel.all_problems() if size_of(known) >= _MIN_PROBE_SIZE)
    smallest = kernel.normal(min(large, key=size_of, default=problem))
    if (smallest, seed) == (kernel.normal(problem), _PROBE_SEED):
        return None
    with suppress(SpecError):  # the kernel's functions refuse this problem
        return prepare_dataset(kernel, smallest, EXACT, _PROBE_SEED)
    return None


def _draw_dataset(kernel: Kernel, problem: Problem, which: str, key: int, folder: Path) -> None:
    """Write a data set without expected outputs to a folder."""
    kernel = kernel.of_problem(problem)
    arguments, arrays = _drawn_arguments(kernel, problem, Draw(which == EXACT, key))
    save_arrays(folder, arrays)
    (folder / MANIFEST).write_bytes(encoded_manifest(Dataset(which, folder, tuple(arguments), {})))


def _evaluated(
    kernel: Kernel, problem: Problem, made: Dataset, probe: Dataset | None, key: int
) -> Dataset:
    """Write expected outputs and bounds of a drawn data set into its folder; return it with its bounds.

    ``probe`` shows which outputs are exact.
    """
    kernel = kernel.of_problem(problem)
    expected = reevaluated(kernel, made, {})
    outputs = {argument.name: argument for argument in made.arguments}
    is_held = dict[str, bool]()
    for name in list(expected):
        wide = expected.pop(name)
        # A reference may have no finite value on exact data, for example a logarithm of negative integers.
        if made.name != EXACT and not np.isfinite(wide.flat[0]) and not np.isfinite(wide).any():
            raise kernel.error(
                f"reference: no value of {name} is finite, so nothing can be compared"
            )
        made.bounds[name] = 0.0
        stored, held = stored_values(wide, outputs[name])
        del wide
        np.save(made.folder / f"{name}.expected.npy", stored)
        if stored.dtype.kind in "fc":
            is_held[name] = held
    by_element = _set_bounds(kernel, problem, made, is_held, probe, key)
    return replace(made, by_element=tuple(by_element))


def _drawn_arguments(
    kernel: Kernel, problem: Problem, draw: Draw
) -> tuple[list[Argument], dict[str, NDArray[Any]]]:
    """Call the arguments hook; return the arguments and the arrays among them."""
    declared = kernel.call_hook("arguments", problem, draw)
    if not isinstance(declared, dict):
        raise kernel.error(f"arguments: returned {type(declared).__name__}, expected a dict")
    for name in declared:
        if wrong := fault("argument", name):
            raise kernel.error(f"arguments: {wrong}")
    offsets = offsets_of(kernel, problem, declared)
    arguments, arrays = list[Argument](), dict[str, NDArray[Any]]()
    for name, value in declared.items():
        argument, array = kernel.guarded(f"arguments: {name}", argument_of, kernel, name, value)
        arguments.append(replace(argument, offset=offsets.get(name, 0)))
        if argument.kind != "scalar":
            dtype = np.dtype(argument.dtype if array is None else array.dtype)
            check_array(kernel, argument, dtype)
        if array is not None:
            arrays[name] = array
    if not any(argument.kind in ("out", "inout") for argument in arguments):
        raise kernel.error("arguments: no Out or InOut, so the kernel computes nothing")
    return arguments, arrays


def _without_errors(exact: list[str], errors: Mapping[str, float]) -> list[str]:
    """Leave out outputs with an error in float32: the difference of two sums that it cannot hold may be exact."""
    return [name for name in exact if not errors.get(name)]


def _set_bounds(
    kernel: Kernel,
    problem: Problem,
    made: Dataset,
    is_held: Mapping[str, bool],
    probe: Dataset | None,
    key: int,
) -> list[str]:
    """Set the bounds of all outputs, and write element bounds; return the outputs that have element bounds.

    ``is_held`` tells for each output whether its type holds all expected values.
    """
    is_exact, declared, bounds = made.name == EXACT, kernel.tolerance_of(problem), made.bounds
    exact = [name for name, held in is_held.items() if held or not is_exact]
    if probe:
        exact = [name for name in exact if not probe.bounds.get(name)]
    evaluations = Evaluations(kernel, made, tuple(is_held), key)
    errors = dict[str, float]()
    if exact and (not probe if is_exact else declared is None):
        errors = {n: tolerance.largest(e) for n, e in evaluations.errors_in_single.items()}
    if is_exact:
        exact = _without_errors(exact, errors)
    others = [name for name in is_held if name not in exact]
    if declared is not None:
        bounds.update(dict.fromkeys(others if is_exact else is_held, declared))
        return []
    inputs = max((argument.count for argument in made.inputs()), default=1)
    halves = dict[str, NDArray[Any]]()
    if probe and not is_exact:
        for output in (argument for argument in made.arguments if argument.name in exact):
            name, info, values = output.name, output.info, evaluations.expected[output.name]
            bounds[name] = tolerance.common_bound(
                info,
                tolerance.largest(values),
                tolerance.largest(tolerance.parts(probe.expected(name))),
                inputs / output.count,
                errors.get(name, 0.0),
            )
            if info.bits == 16:
                halves[name] = tolerance.bounds_of_half(info, values, bounds[name])
    for name, of_elements in chain(halves.items(), evaluations.element_bounds(others)):
        bounds[name] = float(of_elements.max(initial=0))
        np.save(made.folder / f"{name}.bounds.npy", of_elements)
    return [*others, *halves]
