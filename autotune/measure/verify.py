"""Is a configuration right? Outputs against the reference, inputs unchanged, nothing beyond bounds.

Knows nothing of time. Works through an `Executor`, so data stay on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autotune.devices.base import BoundFill, BoundLaunch, Executor
from autotune.errors import SpecError
from autotune.kernel.spec import Out
from autotune.measure.data import Argument, Dataset
from autotune.measure.measurement import CheckResult

Steps = Sequence[BoundLaunch | BoundFill]


class WrongResult(Exception):
    """The configuration computes something else; ``str(error)`` says what, where and by how much."""

    def __init__(self, message: str, checks: tuple[CheckResult, ...] = ()) -> None:
        super().__init__(message)
        self.checks = checks


@dataclass
class DeviceData:
    """The arguments of one problem on a device: working buffers, pristine copies, expected values.

    One set of working buffers serves all data sets.
    """

    executor: Executor
    datasets: dict[str, Dataset]
    buffers: dict[str, Any] = field(default_factory=dict)
    pristine: dict[tuple[str, str], Any] = field(default_factory=dict)
    expected: dict[tuple[str, str], Any] = field(default_factory=dict)
    scratch: dict[str, tuple[Out, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for dataset in self.datasets.values():
            for argument in dataset.arguments:
                self._upload(dataset, argument)

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The kernel's arguments, in order."""
        return next(iter(self.datasets.values())).arguments

    @property
    def names(self) -> list[str]:
        """What a launch without ``args`` gets: arguments, then scratch buffers; no constants."""
        return [argument.name for argument in self.arguments if argument.kind != "constant"] + list(
            self.scratch
        )

    @property
    def dtypes(self) -> dict[str, str]:
        """Element type of every buffer."""
        scratch = {name: np.dtype(out.dtype).str for name, (out, _) in self.scratch.items()}
        return {**{argument.name: argument.dtype for argument in self.arguments}, **scratch}

    def all_buffers(self) -> dict[str, Any]:
        """Working buffers and scratch by name."""
        return {**self.buffers, **{name: buffer for name, (_, buffer) in self.scratch.items()}}

    def scalars(self, dataset: str) -> dict[str, np.generic]:
        """Scalar arguments of a data set."""
        arguments = self.datasets[dataset].arguments
        return {
            argument.name: argument.scalar for argument in arguments if argument.kind == "scalar"
        }

    def constants(self, dataset: str) -> dict[str, Any]:
        """Module symbols of a data set."""
        chosen = self.datasets[dataset]
        return {o.name: chosen.array(o.name) for o in chosen.arguments if o.kind == "constant"}

    def declare_scratch(self, wanted: Mapping[str, Out]) -> None:
        """Make the workspaces of a configuration; one that fits from before is kept."""
        kept = {}
        for name, out in wanted.items():
            old = self.scratch.get(name)
            same = old is not None and old[0] == out
            kept[name] = old if same and old else (out, self.executor.allocate(_nbytes(out)))
        self.scratch = kept

    def refresh(self, dataset: str, with_scratch: bool) -> None:
        """Restore inputs and poison outputs; with scratch, poison that and mend all guard bands."""
        for argument in self.datasets[dataset].arguments:
            if argument.kind in ("input", "inout"):
                pristine = self.pristine[dataset, argument.name]
                self.executor.copy(self.buffers[argument.name], pristine)
            elif argument.kind == "out":
                self.executor.poison(self.buffers[argument.name])
        if with_scratch:
            for _, buffer in self.scratch.values():
                self.executor.poison(buffer)
            for buffer in self.all_buffers().values():
                self.executor.mend_guards(buffer)

    def _upload(self, dataset: Dataset, argument: Argument) -> None:
        key = (dataset.name, argument.name)
        if argument.kind in ("input", "out", "inout") and argument.name not in self.buffers:
            self.buffers[argument.name] = self.executor.allocate(argument.nbytes)
        if argument.kind in ("input", "inout"):
            self.pristine[key] = self.executor.allocate(argument.nbytes)
            self.executor.write(self.pristine[key], dataset.array(argument.name))
        if argument.kind in ("out", "inout"):
            expected = dataset.expected(argument.name)
            self.expected[key] = self.executor.allocate(expected.nbytes)
            self.executor.write(self.expected[key], expected)


def verify(
    data: DeviceData, dataset: str, run: Callable[[], None], repeats: int = 2
) -> tuple[CheckResult, ...]:
    """Run a launch sequence on a data set and check everything it must and must not do.

    ``run()`` executes the sequence once on the working buffers, and waits. They are refreshed before
    each run, but scratch keeps what a run left in it: the sequence must not rely on a fresh one.
    Guard bands are mended before the first: another configuration may have damaged them.

    Raises
    ------
    WrongResult
        If an output is wrong, an input changed, or a guard band was written.
    """
    checks: tuple[CheckResult, ...] = ()
    for repeat in range(repeats):
        data.refresh(dataset, with_scratch=repeat == 0)
        run()
        checks = outputs(data, dataset)
        wrong = next((check for check in checks if not check.is_right), None)
        if wrong is not None:
            raise WrongResult(_wrong_message(data, wrong, repeat), checks)
    _nothing_else_written(data, dataset, checks)
    return checks


def outputs(data: DeviceData, dataset: str) -> tuple[CheckResult, ...]:
    """Compare every output with its expected values, on the device."""
    checks = []
    for name, bound in data.datasets[dataset].bounds.items():
        argument = next(argument for argument in data.arguments if argument.name == name)
        count = int(np.prod(argument.shape, dtype=np.int64))
        wanted, dtype = data.expected[dataset, name], np.dtype(argument.dtype)
        found = data.executor.compare(data.buffers[name], dtype, wanted, count, bound)
        checks.append(
            CheckResult(name, dataset, found.max_error, found.rms_error, bound, found.first_wrong)
        )
    return tuple(checks)


def _wrong_message(data: DeviceData, check: CheckResult, repeat: int) -> str:
    """One line: which output, where first, what was got and expected, and how far off at most."""
    argument = next(argument for argument in data.arguments if argument.name == check.output)
    flat = check.first_wrong or 0
    where = ", ".join(str(i) for i in np.unravel_index(flat, argument.shape))
    got = data.executor.read(
        data.buffers[check.output], np.dtype(argument.dtype), (int(np.prod(argument.shape)),)
    )[flat]
    want = data.datasets[check.dataset].expected(check.output).reshape(-1)[flat]
    again = " (second run only: it relies on a fresh workspace)" if repeat else ""
    unwritten = " (not written)" if np.isnan(got) and not np.isnan(want) else ""
    return (
        f"{check.output}[{where}] is {got:.9g}{unwritten}, expected {want:.9g} on {check.dataset} "
        f"data; largest error {check.max_error:.3g}, bound {check.bound:.3g}{again}"
    )


def _nothing_else_written(data: DeviceData, dataset: str, checks: tuple[CheckResult, ...]) -> None:
    """Guard bands of all buffers and bytes of all inputs, looked at together: one wait."""
    buffers = data.all_buffers()
    inputs = [argument.name for argument in data.arguments if argument.kind == "input"]
    pairs = [(data.buffers[name], data.pristine[dataset, name]) for name in inputs]
    intact, unchanged = data.executor.unharmed(list(buffers.values()), pairs)
    for name, is_intact in zip(buffers, intact, strict=True):
        if not is_intact:
            raise WrongResult(f"wrote outside the bounds of {name}", checks)
    for name, is_unchanged in zip(inputs, unchanged, strict=True):
        if not is_unchanged:
            raise WrongResult(f"changed its input {name}", checks)


def _nbytes(out: Out) -> int:
    shape = np.atleast_1d(out.shape)
    count = int(np.prod(shape, dtype=np.int64))
    if count < 1:
        raise SpecError(f"scratch: shape {out.shape} is empty")
    return count * int(np.dtype(out.dtype).itemsize)
