"""Verifies a configuration on the device: its outputs, its inputs, and the guard bands of its buffers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.data.arguments import Argument, with_scratch
from autotune.data.dataset import Dataset
from autotune.data.matching_outputs import mismatch_of
from autotune.devices.base import (
    Binary,
    BoundFill,
    BoundLaunch,
    Comparison,
    Difference,
    Executor,
    Poison,
)
from autotune.encoding import dtype_of, has_value
from autotune.errors import SpecError
from autotune.kernel import launches
from autotune.kernel.spec import Kernel, Out
from autotune.measure.measurement import CheckResult

Steps = Sequence[BoundLaunch | BoundFill]
#: Remark on an output that is wrong in the second run only.
_AGAIN = " (second run only: it relies on a fresh workspace, or on NaN in its outputs)"
#: Elements of an input among which equal ones are looked for.
_TIED = 1000
#: Workspaces by name: declaration and buffer.
Scratch = dict[str, tuple[Out, Any]]


class WrongResult(Exception):
    """An output is wrong, an input changed, or a guard band was written; ``str(error)`` names the place."""

    def __init__(self, message: str, checks: tuple[CheckResult, ...] = ()) -> None:
        super().__init__(message)
        self.checks = checks


class NotDeterministic(Exception):
    """Two runs on the same data gave different bits; ``str(error)`` names the outputs."""


@dataclass
class DeviceData:
    """The arguments of one problem on a device: working buffers, pristine copies, expected values.

    All data sets use the same working buffers. Pristine copies, expected values and bounds may be shared
    with another object.
    """

    executor: Executor
    datasets: dict[str, Dataset]
    buffers: dict[str, Any] = field(default_factory=dict)
    pristine: dict[tuple[str, str], Any] = field(default_factory=dict)
    expected: dict[tuple[str, str], Any] = field(default_factory=dict)
    #: Bounds of each element, for outputs that have them.
    bounds: dict[tuple[str, str], Any] = field(default_factory=dict)
    #: Masks of elements that may hold anything, for outputs that have such elements.
    masked: dict[tuple[str, str], NDArray[np.bool_]] = field(default_factory=dict)
    scratch: Scratch = field(default_factory=dict)
    #: True if expected values are those of a claim, which no file has.
    is_claimed: bool = False
    #: The kernel, if its own function compares outputs; None if their bounds do.
    matching: Kernel | None = None

    def __post_init__(self) -> None:
        for dataset in self.datasets.values():
            for argument in dataset.arguments:
                self._upload(dataset, argument)

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """Arguments of the kernel, in order."""
        return next(iter(self.datasets.values())).arguments

    def argument(self, name: str) -> Argument:
        """Return the argument of a name."""
        return next(argument for argument in self.arguments if argument.name == name)

    def bind(self, plan: launches.LaunchSequence, dataset: str, binary: Binary) -> Steps:
        """Return the steps of a plan on the working buffers and the scalars of a data set."""
        arrays = with_scratch(
            self.arguments, {name: out for name, (out, _) in self.scratch.items()}
        )
        null = {name: None for name, argument in arrays.items() if not argument.count}
        pointers, scalars = {**null, **self.all_buffers()}, self.scalars(dataset)
        # A launch without ``args`` gets all arguments.
        return launches.bind_arguments(plan, list(arrays), pointers, scalars, arrays, binary)

    def all_buffers(self) -> dict[str, Any]:
        """Return working buffers and workspaces by name."""
        return {**self.buffers, **{name: buffer for name, (_, buffer) in self.scratch.items()}}

    def scalars(self, dataset: str) -> dict[str, np.generic]:
        """Return the scalar arguments of a data set."""
        arguments = self.datasets[dataset].arguments
        return {
            argument.name: argument.scalar for argument in arguments if argument.kind == "scalar"
        }

    def constants(self, dataset: str) -> dict[str, Any]:
        """Return the module symbols of a data set."""
        chosen = self.datasets[dataset]
        return {
            argument.variable: chosen.array(argument.name)
            for argument in chosen.arguments
            if argument.kind == "constant"
        }

    def declare_scratch(self, wanted: Mapping[str, Out]) -> None:
        """Make the workspaces of a configuration; keep existing workspaces with an equal declaration."""
        kept = {}
        for name, out in wanted.items():
            old = self.scratch.get(name)
            same = old is not None and old[0] == out
            kept[name] = old if same and old else (out, self.executor.allocate(_nbytes(out)))
        self.scratch = kept

    @property
    def accumulates(self) -> bool:
        """True if an argument is both read and written: a launch then finds the result of the previous launch."""
        return any(argument.kind == "inout" for argument in self.arguments)

    def refresh(self, dataset: str, wholly: bool, poison: Poison = Poison.FINITE) -> None:
        """Poison outputs and restore `InOut` arguments; if ``wholly``, also restore inputs and all guard bands."""
        self.poison_outputs(poison)
        self.restore(dataset, wholly)
        if wholly:
            for buffer in self.all_buffers().values():
                self.executor.restore_guards(buffer)

    def restore(self, dataset: str, wholly: bool = True) -> None:
        """Restore `InOut` arguments; if ``wholly``, also inputs."""
        for argument in self.datasets[dataset].arguments:
            if not argument.count:
                continue
            if argument.kind == "inout" or (argument.kind == "input" and wholly):
                pristine = self.pristine[dataset, argument.name]
                self.executor.copy(self.buffers[argument.name], pristine)

    def poison_outputs(self, poison: Poison = Poison.FINITE) -> None:
        """Fill outputs with a value that kernels do not write."""
        for argument in self.arguments:
            if argument.kind == "out":
                self.executor.poison(self.buffers[argument.name], poison)

    def poison_scratch(self, poison: Poison = Poison.NAN) -> None:
        """Fill workspaces, so that a launch finds no results of an earlier launch."""
        for _, buffer in self.scratch.values():
            self.executor.poison(buffer, poison)

    def is_unchanged(self, dataset: str, argument: Argument) -> bool:
        """Return whether a launch left an `InOut` argument unchanged."""
        pristine = self.pristine.get((dataset, argument.name))
        pairs = [] if pristine is None else [(self.buffers[argument.name], pristine)]
        return any(self.executor.inspect((), (), pairs)[2])

    def _upload(self, dataset: Dataset, argument: Argument) -> None:
        key = (dataset.name, argument.name)
        if argument.kind in ("scalar", "constant") or not argument.count:
            return
        nbytes, offset_bytes = argument.nbytes, argument.offset_bytes
        if argument.name not in self.buffers:
            self.buffers[argument.name] = self.executor.allocate(nbytes, offset_bytes)
        if argument.kind in ("input", "inout") and key not in self.pristine:
            self.pristine[key] = self.executor.allocate(nbytes, offset_bytes)
            self.executor.write(self.pristine[key], dataset.array(argument.name))
        if argument.name in dataset.bounds and key not in self.expected:
            self.expected[key] = self._uploaded(dataset.expected(argument.name))
            if (mask := dataset.masked(argument.name)) is not None:
                self.masked[key] = mask
            bounds = dataset.element_bounds(argument.name)
            if bounds is not None:
                self.bounds[key] = self._uploaded(bounds)

    def _uploaded(self, array: NDArray[Any]) -> Any:
        buffer = self.executor.allocate(array.nbytes)
        self.executor.write(buffer, array)
        return buffer


def verify(
    data: DeviceData,
    dataset: str,
    run: Callable[[], None],
    repeats: int = 2,
    fresh: bool = True,
) -> tuple[CheckResult, ...]:
    """Run a launch sequence on a data set and check it; raise `WrongResult` if it is wrong.

    ``run()`` executes the sequence once on the working buffers, and waits. Outputs are poisoned before each
    run: with a finite number before the last run, with NaN before the others. If ``fresh``, workspaces are
    poisoned before the first run. Later runs and other data sets find the workspaces of the last run, so
    that the sequence can rely neither on a fresh workspace nor on its contents. Guard bands are restored
    before the first run, because another configuration may have damaged them.
    """
    checks: tuple[CheckResult, ...] = ()
    if fresh:
        data.poison_scratch()
    for repeat in range(repeats):
        is_last = repeat == repeats - 1
        poison = Poison.FINITE if is_last else Poison.NAN
        data.refresh(dataset, repeat == 0, poison)
        run()
        checks = _inspected(data, dataset, poison, is_last, _AGAIN if repeat else None)
    return checks


def verify_last(
    data: DeviceData, dataset: str, launches: int, with_harm: bool = True
) -> tuple[CheckResult, ...]:
    """Check outputs after timed launches, and if ``with_harm`` guard bands and inputs; see `verify`."""
    try:
        return _inspected(data, dataset, Poison.FINITE, with_harm, again="")
    except WrongResult as error:
        raise WrongResult(f"after {launches} timed launches: {error}", error.checks) from None


def identical_runs(
    data: DeviceData, dataset: str, run: Callable[[], object], goes_on: Callable[[int], bool]
) -> int:
    """Run on the same data while ``goes_on(runs)``, and return the number of runs.

    Raises `NotDeterministic` if bits of an output differ. Returns 0 if the device has no room for a copy of
    the outputs.
    """
    written = [argument for argument in data.arguments if argument.kind in ("out", "inout")]
    try:
        first = [data.executor.allocate(output.nbytes, output.offset_bytes) for output in written]
    except MemoryError:
        return 0
    pairs = [(copy, data.buffers[output.name]) for copy, output in zip(first, written, strict=True)]
    done = 0
    while goes_on(done):
        data.refresh(dataset, wholly=False)
        run()
        done += 1
        if done == 1:
            for copy, output in pairs:
                data.executor.copy(copy, output)
        elif not all(same := data.executor.inspect((), (), pairs)[2]):
            other = ", ".join(
                output.name for output, is_same in zip(written, same, strict=True) if not is_same
            )
            raise NotDeterministic(
                f"declared deterministic, but run {done} on the same data gave other bits in {other}"
            )
    return done


def outputs(data: DeviceData, dataset: str) -> tuple[CheckResult, ...]:
    """Compare every output with its expected values, on the device or by the kernel's own function."""
    _clear_masked(data, dataset)
    found, _, _ = data.executor.inspect(_comparisons(data, dataset))
    return _checked(data, dataset, found)[0]


def _clear_masked(data: DeviceData, dataset: str) -> None:
    """Write 0, the expected value, to elements that may hold anything."""
    for (which, name), mask in data.masked.items():
        if which == dataset and not data.matching:
            output, buffer = data.argument(name), data.buffers[name]
            stored = data.executor.read(buffer, np.dtype(output.dtype), output.shape)
            stored[mask] = 0
            data.executor.write(buffer, stored)


def _comparisons(data: DeviceData, dataset: str) -> list[Comparison]:
    if data.matching:
        return []
    return [
        comparison(
            data,
            data.argument(name),
            data.expected[dataset, name],
            bound,
            data.bounds.get((dataset, name)),
        )
        for name, bound in data.datasets[dataset].bounds.items()
    ]


def comparison(
    data: DeviceData, output: Argument, expected: Any, bound: float, bounds: Any = None
) -> Comparison:
    """Return the comparison of an output with a buffer of expected values; a complex one has two parts."""
    dtype, count = np.dtype(output.dtype), output.count
    if dtype.kind == "c":
        dtype, count = np.finfo(dtype).dtype, 2 * count
    buffer = data.buffers[output.name]
    return Comparison(buffer, dtype, expected, count, bound, bounds, output.bits_of)


def _checked(
    data: DeviceData, dataset: str, found: Sequence[Difference]
) -> tuple[tuple[CheckResult, ...], str]:
    """Return the checks of all outputs, and why they do not match if the kernel's own function compares them."""
    checks, bounds = [], data.datasets[dataset].bounds
    if data.matching:
        why = mismatch_of(data.matching, data.datasets[dataset], _stored_outputs(data, dataset))
        error, first = (math.inf, 0) if why else (0.0, None)
        return tuple(CheckResult(name, dataset, error, error, 0.0, first) for name in bounds), why
    for (name, bound), difference in zip(bounds.items(), found, strict=True):
        first, parts = difference.first_wrong, 1 + (np.dtype(data.argument(name).dtype).kind == "c")
        if first is not None:
            element_bounds = data.datasets[dataset].element_bounds(name)
            bound = bound if element_bounds is None else float(element_bounds[first])
            first //= parts
        checks.append(
            CheckResult(name, dataset, difference.max_error, difference.rms_error, bound, first)
        )
    return tuple(checks), ""


def _stored_outputs(data: DeviceData, dataset: str) -> dict[str, NDArray[Any]]:
    return {
        output.name: data.executor.read(
            data.buffers[output.name], np.dtype(output.dtype), output.stored_shape
        )
        for output in data.arguments
        if output.name in data.datasets[dataset].bounds
    }


def _inspected(
    data: DeviceData, dataset: str, poison: Poison, with_harm: bool, again: str | None
) -> tuple[CheckResult, ...]:
    """Compare outputs and, if ``with_harm``, all guard bands and the bytes of all inputs, in one wait.

    ``again`` is a remark on a wrong output; None after the first launch on these inputs. A later launch may
    be wrong because an earlier launch changed an input; the message then names the input.
    """
    buffers = data.all_buffers() if with_harm else {}
    bounds, kinds = data.datasets[dataset].bounds, ("input", "inout") if with_harm else ()
    inputs = [
        argument.name
        for argument in data.arguments
        if argument.kind in kinds and argument.count and argument.name not in bounds
    ]
    pairs = [(data.buffers[name], data.pristine[dataset, name]) for name in inputs]
    _clear_masked(data, dataset)
    found, intact, unchanged = data.executor.inspect(
        _comparisons(data, dataset), list(buffers.values()), pairs
    )
    checks, why = _checked(data, dataset, found)
    safe, same = zip(buffers, intact, strict=True), zip(inputs, unchanged, strict=True)
    harm = [f"wrote outside the bounds of {name}" for name, is_safe in safe if not is_safe]
    harm += [f"changed its input {name}" for name, is_same in same if not is_same]
    wrong = next((check for check in checks if not check.is_correct), None)
    if wrong and (again is None or not harm):
        why = f"{why} (@matches) on {dataset} data" if why else _wrong_message(data, wrong, poison)
        ties = "" if data.matching else _ties(data, wrong)
        message = why + (again or "") + _layouts(data) + ties
        raise WrongResult(message, checks)
    if harm:
        raise WrongResult(harm[0], checks)
    return checks


def _wrong_message(data: DeviceData, check: CheckResult, poison: Poison) -> str:
    """Return one line: output, first wrong index, value, expected value, and largest error."""
    argument = data.argument(check.output)
    dtype = np.dtype(argument.dtype)
    dtype = np.dtype(np.uint8) if dtype.kind == "b" else dtype  # shows bytes that are no bools
    flat, each = check.first_wrong or 0, argument.per_stored
    where = ", ".join(str(i) for i in np.unravel_index(flat, argument.shape))
    stored = data.executor.read(data.buffers[check.output], dtype, (argument.count // each,))
    read = stored[flat // each :][:1]
    got = argument.values(read)[flat % each]
    want = _expected(data, check.dataset, argument)[flat]
    unwritten = ""
    if argument.kind == "out" and set(read.tobytes()) == {poison}:
        # A wrong integer may happen to be -1, and a number of few bits any value.
        is_usual = got.dtype.kind in "iu" or (each > 1 or (argument.bits_of and np.isfinite(got)))
        unwritten = " (not written?)" if is_usual else " (not written)"
    form = ".9g" if got.dtype.kind in "fc" else "d"
    if form != "d" and format(got, form) == format(want, form):
        form = ".17g"
    lacking = ""
    if argument.bits_of and want.dtype.kind == "f" and not has_value(float(want), argument.bits_of):
        lacking = f", which {argument.bits_of} cannot hold,"
    here = " here" if check.output in data.datasets[check.dataset].by_element else ""
    return (
        f"{check.output}[{where}] is {got:{form}}{unwritten}, expected {want:{form}}{lacking} on "
        f"{check.dataset} data; largest error {check.max_error:.3g}, bound {check.bound:.3g}{here}"
    )


def _layouts(data: DeviceData) -> str:
    """Return a remark on arrays in types and orders that a kernel may not expect; empty if there are none."""
    named: dict[str, list[str]] = {}
    for argument in data.arguments:
        if note := argument.layout_note:
            named.setdefault(note, []).append(argument.name)
    listed = [f"{', '.join(names)} {note}" for note, names in named.items()]
    return f"; the kernel gets {'; '.join(listed)}" if listed else ""


def _ties(data: DeviceData, check: CheckResult) -> str:
    """Return a remark on equal elements of the data if an output may hold places of elements; else empty."""
    dataset = data.datasets[check.dataset]
    if data.argument(check.output).value_type.kind not in "iu":
        return ""
    rows = (dataset.values(a.name).reshape(-1)[:_TIED] for a in dataset.inputs("f") if a.count)
    if not any(np.unique(row).size < row.size for row in rows):
        return ""
    return (
        f"; elements of the {check.dataset} data are equal (ties): if several answers are correct, as for the "
        "place of a maximum, attach @matches"
    )


def _expected(data: DeviceData, dataset: str, output: Argument) -> NDArray[Any]:
    """Return the expected values of an output as one row."""
    if not data.is_claimed:
        return data.datasets[dataset].expected(output.name).reshape(-1)
    dtype = output.value_type
    if dtype == np.float16:
        dtype = np.dtype(np.float32)
    return data.executor.read(data.expected[dataset, output.name], dtype, (output.count,))


def _nbytes(out: Out) -> int:
    count = int(np.prod(out.shape, dtype=np.int64))
    if count < 1:
        raise SpecError(f"scratch: shape {out.shape} is empty")
    return count * int(dtype_of(out.dtype).itemsize)
