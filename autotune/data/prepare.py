"""Makes the data sets of a problem: draws inputs, evaluates the reference, and bounds the errors."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune import cache
from autotune.arrays import available_bytes
from autotune.data.arguments import (
    Argument,
    argument_of,
    check_array,
    declared_arguments,
    offsets_of,
)
from autotune.data.bounds import Bounds, Prepared, Smaller, is_large
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
from autotune.data.device_reference import place_of
from autotune.data.draw import Draw
from autotune.data.evaluations import Evaluations
from autotune.data.matching_outputs import check_matches
from autotune.data.reference import stored_values, wide_bytes
from autotune.data.small import MIN_ELEMENTS, PROBE_ELEMENTS, count_of, elements_of, small_problem
from autotune.errors import AutotuneError, OutOfMemoryError, SpecError
from autotune.kernel.names import fault
from autotune.kernel.spec import Kernel
from autotune.values import Problem, size_of

#: Seed of the data set that shows whether outputs are exact.
_PROBE_SEED = 0
#: Least size of its problem in elements.
_MIN_PROBE_SIZE = 65

#: Size of a problem whose memory is checked before its inputs are drawn, too.
_EARLY_SIZE = 1 << 26


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
    cache.keep_room(cache.DATA)
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
    probe = _exactness_probe(kernel, problem, drawn)
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


def _exactness_probe(kernel: Kernel, problem: Problem, drawn: Dataset) -> Dataset | None:
    """Return the exact data set that shows whether each output is computed without rounding.

    The probe of random data belongs to the same problem. The probe of exact data belongs to the smallest
    declared problem with at least `_MIN_PROBE_SIZE` elements, because smaller problems can be exact although
    the kernel rounds: dividing by 64, for a mean, is exact.
    A large problem is made small. Return None if the data set is its own probe, if a
    tolerance is declared, or without a reference.
    """
    if "reference" not in kernel.hooks:
        return None
    if drawn.name == RANDOM:
        is_declared = kernel.tolerance_of(problem) is not None
        return None if is_declared else prepare_dataset(kernel, problem, EXACT, _PROBE_SEED)
    large = (known for known in kernel.all_problems() if size_of(known) >= _MIN_PROBE_SIZE)
    smallest = min(large, key=size_of, default=problem)
    with suppress(SpecError):  # the kernel's functions refuse this problem
        is_own = kernel.normal(smallest) == kernel.normal(problem)
        elements = count_of(drawn.arguments) if is_own else elements_of(kernel, smallest)
        if elements >= MIN_ELEMENTS:
            smallest = small_problem(kernel, smallest, PROBE_ELEMENTS) or smallest
        if (kernel.normal(smallest), drawn.seed) != (kernel.normal(problem), _PROBE_SEED):
            return prepare_dataset(kernel, smallest, EXACT, _PROBE_SEED)
    return None


def _draw_dataset(kernel: Kernel, problem: Problem, which: str, key: int, folder: Path) -> None:
    """Write a data set without expected outputs to a folder."""
    kernel = kernel.of_problem(problem)
    if "reference" in kernel.hooks and size_of(problem) > _EARLY_SIZE:
        _require_memory(kernel, problem, list(declared_arguments(kernel, problem).values()))
    with _converted_memory_errors(kernel, problem):
        arguments, arrays = _drawn_arguments(kernel, problem, Draw(which == EXACT, key))
    if "reference" in kernel.hooks:
        _require_memory(kernel, problem, arguments)
    save_arrays(folder, arrays)
    (folder / MANIFEST).write_bytes(encoded_manifest(Dataset(which, folder, tuple(arguments), {})))


def _require_memory(kernel: Kernel, problem: Problem, arguments: Sequence[Argument]) -> None:
    """Raise `OutOfMemoryError` if the arrays of a reference do not fit: inputs and outputs, mostly in float64."""
    arrays = [argument for argument in arguments if argument.kind != "scalar"]
    needed = sum(argument.count * wide_bytes(argument.value_type) for argument in arrays)
    free = available_bytes()
    if free is not None and needed > free:
        raise OutOfMemoryError(
            f"{kernel.name} ({problem}): the arrays of its reference need {needed / 1e9:.1f} GB of memory, "
            f"and {free / 1e9:.1f} GB are free; use a smaller problem or a machine with more memory"
        )


@contextmanager
def _converted_memory_errors(kernel: Kernel, problem: Problem) -> Iterator[None]:
    try:
        yield
    except OutOfMemoryError:
        raise
    except MemoryError as error:
        free = available_bytes()
        raise OutOfMemoryError(
            f"{kernel.name} ({problem}): its arguments or reference need more memory than is free"
            f"{f' ({free / 1e9:.1f} GB)' if free else ''}: {error}; use a smaller problem"
        ) from error


def _evaluated(
    kernel: Kernel, problem: Problem, made: Dataset, probe: Dataset | None, key: int
) -> Dataset:
    """Write expected outputs and bounds of a drawn data set into its folder; return it with its bounds.

    ``probe`` shows which outputs are exact.
    """
    prepared: Prepared = partial(prepare_dataset, kernel)
    place = place_of(kernel, problem, made, prepared)
    kernel = kernel.of_problem(problem)
    wall_begin_s, cpu_begin_s = time.perf_counter(), time.process_time()
    with _converted_memory_errors(kernel, problem):
        expected, place = place.expected(kernel, made)
    # The smaller time: wall time includes other programs, CPU time adds up all cores.
    seconds = min(time.perf_counter() - wall_begin_s, time.process_time() - cpu_begin_s)
    outputs = {argument.name: argument for argument in made.arguments}
    is_held = dict[str, bool]()
    for name, mask in expected.masked.items():
        np.save(made.folder / f"{name}.masked.npy", mask)
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
    evaluations = Evaluations(kernel, made, tuple(is_held), key, place.library)
    smaller = None
    if is_large(made, seconds):
        smaller = Smaller(prepared, partial(drawn_dataset, kernel, which=made.name))
    by_element = Bounds(kernel, problem, made, is_held, probe, evaluations, smaller).set()
    if "matches" in kernel.hooks:
        check_matches(kernel, made)
    return replace(
        made,
        by_element=tuple(by_element),
        reference=str(place),
        difference=place.difference,
    )


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
        raise kernel.error(
            "arguments: no Out or InOut, so the kernel computes nothing; declare an output"
        )
    return arguments, arrays
