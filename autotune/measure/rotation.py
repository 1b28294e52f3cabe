"""Times configurations on several problem sizes of one kernel, without verification.

The calls of a sample use several sets of buffers in turn, so that together they exceed the cache. The task runs
in the worker process.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from statistics import median
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from autotune.data.arguments import Argument, argument_of, with_scratch
from autotune.data.dataset import RANDOM, Dataset
from autotune.data.draw import Draw, Size
from autotune.devices.base import Binary, BoundFill, BoundLaunch, Executor, LaunchError
from autotune.encoding import dtype_of, encoded
from autotune.kernel.launches import bind_arguments, launch_sequence, workspaces_of
from autotune.kernel.spec import Kernel
from autotune.measure import worker_state
from autotune.measure.process import Turns
from autotune.values import Configuration, Problem

T = TypeVar("T")

#: Fewest sets of buffers that calls use in turn.
_MIN_SETS = 2
#: Maximum number of these sets.
MAX_SETS = 8
#: Largest share of the device's memory for all sets; if they need more, there is only one set.
_MEMORY_SHARE = 0.4
#: Samples of each configuration on a size.
_ROUNDS = 5
#: Samples if the shortest call takes `_LONG_MS` or more.
_FEW_ROUNDS = 3
_LONG_MS = 1.0
#: A configuration is timed only once if its first call takes longer than this multiple of the shortest call, and
#: longer than `_SHORT_MS`.
_SLOW_FACTOR = 3.0
_SHORT_MS = 0.1


@dataclass(frozen=True)
class CompiledEntrant:
    """A configuration with its binary."""

    configuration: Configuration
    binary: Binary


@dataclass(frozen=True)
class SizeTask:
    """A problem size, and the positions of the entrants to time there."""

    problem: Problem
    entrants: tuple[int, ...]


def time_sizes(
    job: worker_state.Job,
    entrants: Sequence[CompiledEntrant],
    sizes: Sequence[SizeTask],
    size_s: float,
    turns: Turns,
) -> list[dict[int, float]]:
    """Return for each size the median milliseconds of a call by entrant, without entrants that fail.

    Each pair of size and entrant is one turn. No round on a size begins after ``size_s`` seconds.
    """
    found, modules, done = list[dict[int, float]](), dict[int, Any](), 0
    for size in sizes:
        until_s, own_turns = time.monotonic() + size_s, dict(zip(size.entrants, count(done)))
        done += len(size.entrants)
        try:
            arrays = RotatedArrays(job, size.problem)
        except (LaunchError, MemoryError):
            found.append({})
            continue
        found.append(_timed(arrays, entrants, own_turns, until_s, modules, turns))
    return found


def _timed(
    arrays: RotatedArrays,
    entrants: Sequence[CompiledEntrant],
    own_turns: Mapping[int, int],
    until_s: float,
    modules: dict[int, Any],
    turns: Turns,
) -> dict[int, float]:
    """Time entrants on one size; ``own_turns`` maps the position of an entrant to the number of its turn."""
    runners, times, least_ms = dict[int, SizeRunner](), dict[int, float](), math.inf
    for number, turn in own_turns.items():
        turns.begin_turn(turn)
        try:
            runner = SizeRunner(arrays, entrants[number], number, modules)
            bar_ms = max(_SLOW_FACTOR * least_ms, _SHORT_MS)
            times[number] = first_time(runner.call_ms, bar_ms)
            least_ms = min(least_ms, times[number])
            if times[number] <= bar_ms:
                runners[number] = runner
        except (LaunchError, MemoryError):
            times.pop(number, None)

    def begin(number: int) -> None:
        turns.begin_turn(own_turns[number])

    return {**times, **raced(runners, least_ms, until_s, begin)}


def first_time(call_ms: Callable[[], float], bar_ms: float) -> float:
    """Return the milliseconds of a call; if it exceeds ``bar_ms``, of the faster of two: the host may pause."""
    first_ms = call_ms()
    return first_ms if first_ms <= bar_ms else min(first_ms, call_ms())


class SizeTimer(Protocol):
    """Takes samples of a configuration, or of a vendor's call, on one size."""

    def sample_ms(self) -> float:
        """Return the mean time of a call, over one call on each set of buffers."""


def raced(
    runners: Mapping[T, SizeTimer],
    least_ms: float,
    until_s: float = math.inf,
    begin: Callable[[T], object] = lambda _: None,
) -> dict[T, float]:
    """Return the median milliseconds of several rounds, each in a random order.

    After ``until_s`` (`time.monotonic`) no round but the first begins. ``begin`` is called before each sample.
    """
    samples: dict[T, list[float]] = {number: [] for number in runners}
    order, shuffle = list(runners), random.Random(0)
    for turn in range(_ROUNDS if least_ms < _LONG_MS else _FEW_ROUNDS):
        if turn and time.monotonic() > until_s:
            break
        shuffle.shuffle(order)
        for number in order:
            begin(number)
            samples[number].append(runners[number].sample_ms())
    return {number: median(times_ms) for number, times_ms in samples.items()}


class SizeRunner:
    """Runs an entrant on one size: first calls, and samples of calls on all sets of buffers."""

    def __init__(
        self, arrays: RotatedArrays, entrant: CompiledEntrant, number: int, modules: dict[int, Any]
    ) -> None:
        executor, self._calls = arrays.executor, len(arrays.sets)
        constants = arrays.constants
        module = modules.get(number)
        if module is None or constants:
            module = modules[number] = executor.load(entrant.binary, constants)
        sets = arrays.steps(entrant)
        executor.run(module, sets[0])  # the first launch pays for loading
        self.call_ms = partial(executor.run, module, sets[-1])
        self._timer = executor.timer(module, [step for steps in sets for step in steps], cold=False)

    def sample_ms(self) -> float:
        """Return the mean time of a call, over one call on each set."""
        return self._timer.singly(1)[0] / self._calls


@dataclass
class RotatedArrays:
    """Several sets of the arguments of one size, with the job's data for this size, or else random data."""

    job: worker_state.Job
    problem: Problem
    executor: Executor = field(init=False)
    #: Buffers of each set, by the name of the argument.
    sets: list[dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        self.executor, data, self._kernel = worker_state.current()
        device = self.executor.device
        dataset = data.datasets.get(RANDOM) if self.job.problem == self.problem else None
        self._has_data = dataset is not None
        self._arguments = _stored(dataset) if dataset else _drawn(self._kernel, self.problem)
        self.arguments = [argument for argument, _ in self._arguments]
        arrays = {
            argument.name: (argument, array)
            for argument, array in self._arguments
            if argument.kind not in ("scalar", "constant") and argument.count
        }
        self.constants = {
            argument.variable: array
            for argument, array in self._arguments
            if argument.kind == "constant" and array is not None
        }
        total = sum(argument.nbytes for argument, _ in arrays.values())
        sets = min(MAX_SETS, max(_MIN_SETS, -(-2 * device.l2_bytes // max(total, 1))))
        if sets * total > _MEMORY_SHARE * (device.memory_bytes or math.inf):
            sets = 1
        self.sets = [
            {name: self._filled(*entry) for name, entry in arrays.items()} for _ in range(sets)
        ]

    def _filled(self, argument: Argument, array: NDArray[Any] | None) -> Any:
        """Return a buffer of the job's data; without them, of random numbers or of the given integers."""
        buffer, dtype = self.executor.allocate(argument.nbytes), np.dtype(argument.dtype)
        if argument.kind == "out":
            return buffer
        if self._has_data and array is not None:
            self.executor.write(buffer, array)
        elif argument.bits_of and argument.value_type.kind == "f":
            numbers = _random(np.dtype(np.float32), argument.count)
            self.executor.write(buffer, encoded(numbers, argument.bits_of))
        elif dtype.kind == "f":
            self.executor.write(buffer, _random(dtype, argument.count))
        elif array is not None:
            self.executor.write(buffer, array)
        return buffer

    def steps(self, entrant: CompiledEntrant) -> list[list[BoundLaunch | BoundFill]]:
        """Return the steps of a configuration on each set; all sets share its workspaces."""
        kernel, device, problem = self._kernel, self.executor.device, self.problem
        plan = launch_sequence(kernel, entrant.configuration, problem, device)
        scratch = workspaces_of(kernel, entrant.configuration, problem, device, entrant.binary)
        passed = with_scratch((argument for argument, _ in self._arguments), scratch)
        own: dict[str, Any] = {name: None for name, value in passed.items() if not value.count}
        own |= {name: self.executor.allocate(passed[name].nbytes) for name in scratch}
        scalars = {name: value.scalar for name, value in passed.items() if value.kind == "scalar"}
        names, binary = list(passed), entrant.binary
        return [
            bind_arguments(plan, names, {**own, **arrays}, scalars, passed, binary)
            for arrays in self.sets
        ]


class _Blank(Draw):
    """A generator whose floating-point arrays are zeros, to save time."""

    def _filled(self, size: Size, dtype: DTypeLike, draw: Any) -> Any:
        kind = dtype_of(dtype)
        return kind.type(1) if size is None else np.zeros(size, kind)


def _stored(dataset: Dataset) -> list[tuple[Argument, NDArray[Any] | None]]:
    return [
        (argument, None if argument.kind in ("out", "scalar") else dataset.array(argument.name))
        for argument in dataset.arguments
    ]


def _drawn(kernel: Kernel, problem: Problem) -> list[tuple[Argument, NDArray[Any] | None]]:
    with np.errstate(all="ignore"):
        declared = kernel.call_hook("arguments", problem, _Blank(exact=False, key=1))
    return [argument_of(kernel, name, value) for name, value in declared.items()]


#: Random numbers by type, as long as the largest array so far.
_numbers: dict[np.dtype[Any], NDArray[Any]] = {}


def _random(dtype: np.dtype[Any], count: int) -> NDArray[Any]:
    known = _numbers.get(dtype)
    if known is None or known.size < count:
        drawn = Draw(exact=False, key=count).standard_normal(2 * count, np.float32)
        known = _numbers[dtype] = drawn.astype(dtype)
    return known[:count]
