"""Tunes a size in the caller's process: tries the most promising recorded configurations on copies of the arrays.

The trial uses its own memory, modules and stream.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any, TypeVar

import numpy as np

from autotune.arrays import usable_cores
from autotune.calling.binding import OUTPUTS
from autotune.calling.choice import (
    Choice,
    ChosenCall,
    LaunchPlan,
    choose,
    identity,
    is_valid_first_call,
)
from autotune.calling.libraries import DeviceLibrary, Numpy, cupy
from autotune.compiling.binaries import Compiled, compile_now
from autotune.compiling.job import compile_job
from autotune.data.arguments import Argument
from autotune.data.tolerance import common_bound, largest
from autotune.devices.base import Binary, Comparison, LaunchError, Poison
from autotune.devices.choose import backend
from autotune.devices.graph import everything_allowed
from autotune.errors import AutotuneError
from autotune.kernel.operand import ALIGNMENT, NewArray, itemsize_of
from autotune.kernel.source import arguments_fingerprint, source_fingerprint
from autotune.kernel.space import is_member
from autotune.languages.registry import compiler
from autotune.measure.roofline import deciding_caches
from autotune.measure.timing import Take, Timing, taking_of
from autotune.tuned.dates import timestamp
from autotune.tuned.first_calls import CalledProblem
from autotune.tuned.lookup import first_calls_of, promising, refresh, table_of
from autotune.tuned.record import (
    ContenderResult,
    Estimate,
    RaceResult,
    TunedProblem,
    TuningOrigin,
)
from autotune.values import Configuration

T = TypeVar("T")

#: Maximum number of configurations to try, including the default.
MAX_CONFIGURATIONS = 8
#: Longest wait for binaries, in seconds.
COMPILE_S = 3.0
#: Maximum number of samples of a configuration. A round takes one sample of each configuration.
ROUNDS = 5
#: Factor of the error bound for data of both signs: partial sums of data of one sign are larger. A product
#: over k = 8192 that lacks one term differs by three times the resulting bound.
_BOUND_FACTOR = 4.0
#: A configuration replaces the answer of the records if it is faster by more than this factor.
_MIN_SPEEDUP = 1.01

_log = logging.getLogger("autotune")
#: Measures the budget; in seconds.
clock = time.perf_counter


class _Copies:
    """Copies of a call's arrays in the memory of a new executor; the caller's thread makes them."""

    def __init__(self, call: ChosenCall) -> None:
        self.call, self.arguments = call, call.resolved.arguments
        arrays = {n: a for n, a in self.arguments.items() if a.kind not in ("scalar", "constant")}
        #: Contiguous copies that must outlive the asynchronous copy from them.
        self._temporary: list[Any] = []
        given = self._given()
        offsets = {n: at % ALIGNMENT for n, at in given.items() if isinstance(at, int)}
        self._pool = cupy().cuda.MemoryPool() if call.device.is_cuda else None
        self.executor: Any = None
        with self.entered():
            self.executor = backend(call.device.backend).open(call.device)
            self.executor.skip_calibration()
            #: Arguments of launches, and the caller's values of `InOut` arguments.
            self.buffers, self.pristine = (
                {
                    n: self.executor.allocate(max(1, a.nbytes), offsets.get(n, 0))
                    for n, a in arrays.items()
                    if a.kind in kinds
                }
                for kinds in (("input", "out", "inout"), ("inout",))
            )
            for buffer in self.buffers.values():
                self.executor.restore_guards(buffer)
            inputs = {n: b for n, b in self.buffers.items() if arrays[n].kind == "input"}
            self._fill({**inputs, **self.pristine}, given)

    def _given(self) -> dict[str, Any]:
        """Return the device address, or the host array, of each array that the caller passes."""
        given: dict[str, Any] = {}
        for name, passed in self.call.resolved.arrays.items():
            operand, source = passed.operand, passed.operand.source
            if isinstance(source, NewArray):
                continue  # no data to copy; new arrays are aligned
            library = self.call.libraries[source]
            assert library is not None
            array = library.readable(self.call.values[source])
            if not isinstance(library, DeviceLibrary) or self.call.index is None:
                given[name] = Numpy().view(array, self.call.resolved.memory_of(name))
            elif passed.is_copied and self.arguments[name].kind == "out":
                continue
            elif passed.is_copied:
                self._temporary.append(library.copied(library.view(array, operand)))
                given[name] = library.pointer(self._temporary[-1])
            else:
                begin = operand.begin * itemsize_of(operand.dtype)
                given[name] = library.pointer(array) + begin
        return given

    def _fill(self, targets: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        """Copy the arrays that the call reads. On a device the copies are ordered by the caller's stream."""
        on_host = {n: array for n, array in given.items() if not isinstance(array, int)}
        for name in targets.keys() & on_host.keys():
            self.executor.write(targets[name], np.ascontiguousarray(on_host[name]))
        on_device = targets.keys() & given.keys() - on_host.keys()
        if on_device:
            runtime, stream = cupy().cuda.runtime, self.call.stream
            for name in on_device:
                nbytes, kind = self.arguments[name].nbytes, runtime.memcpyDeviceToDevice
                runtime.memcpyAsync(targets[name].inner.data.ptr, given[name], nbytes, kind, stream)
            event = cupy().cuda.Event(disable_timing=True)
            runtime.eventRecord(event.ptr, stream)
            self.executor.stream.wait_event(event)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Set the device, stream and allocator of this thread within a block."""
        if self._pool is None:
            yield
            return
        cuda = cupy().cuda
        with (
            everything_allowed(),
            cuda.Device(self.call.device.index),
            cuda.using_allocator(self._pool.malloc),
        ):
            # `with stream` would restore the default stream, even if the caller set a stream by `use`.
            before = cuda.get_current_stream()
            try:
                if self.executor is not None:
                    self.executor.stream.use()
                yield
            finally:
                before.use()

    def renew(self) -> None:
        """Poison the outputs, and restore the `InOut` arguments."""
        for name, argument in self.arguments.items():
            if argument.kind == "out":
                self.executor.poison(self.buffers[name], Poison.NAN)
            elif argument.kind == "inout":
                self.executor.copy(self.buffers[name], self.pristine[name])

    def close(self) -> None:
        """Free the memory."""
        self.buffers, self.pristine, self._temporary = {}, {}, []
        # Cached functions refer to the executor, and to the memory that flushes caches.
        vars(self.executor).clear()
        if self._pool is not None:
            self._pool.free_all_blocks()


# ---------------------------------------------------------------------- trying configurations


class _Candidate:
    """A configuration that runs on the copies."""

    def __init__(self, copies: _Copies, configuration: Configuration, binary: Binary) -> None:
        call, executor = copies.call, copies.executor
        self.configuration, self._copies = configuration, copies
        kernel, problem = call.resolved.kernel, call.resolved.problem
        choice = Choice(kernel.name, problem, configuration, None)
        plan = LaunchPlan.of(call.resolved, call.device, choice, binary)
        self.scratch = {n: executor.allocate(max(1, a.nbytes)) for n, a in plan.scratch.items()}
        for buffer in self.scratch.values():
            executor.restore_guards(buffer)
        self._module = executor.load(binary, {})
        self._steps = plan.steps({**copies.buffers, **self.scratch}, call.resolved.scalars)
        self._take: Take | None = None

    def run(self) -> bool:
        """Run once on fresh outputs; return whether it wrote within its arrays."""
        executor, copies = self._copies.executor, self._copies
        copies.renew()
        for buffer in self.scratch.values():
            executor.poison(buffer)
        executor.run(self._module, self._steps)
        buffers = [*copies.buffers.values(), *self.scratch.values()]
        _, are_intact, _ = executor.inspect((), buffers)
        if not all(are_intact):
            for buffer in buffers:
                executor.restore_guards(buffer)
        return all(are_intact)

    def sample_ms(self) -> float:
        """Return the time of a call in ms, with the cache state by which records rank configurations."""
        copies, resolved = self._copies, self._copies.call.resolved
        copies.renew()
        if self._take is None:
            caches = deciding_caches(resolved.kernel.work_of(resolved.problem), copies.call.device)
            timer = copies.executor.timer(self._module, self._steps, cold=True)
            self._take = taking_of(timer, caches)
        return self._take(1)[0]


class _Agreement:
    """Candidates that agree on the outputs: the outputs of the first are the reference of the others."""

    def __init__(self, copies: _Copies, first: _Candidate) -> None:
        self.members = [first]
        self._executor = copies.executor
        outputs = [a for a in copies.arguments.values() if a.kind in OUTPUTS]
        read = sum(a.count for a in copies.arguments.values() if a.kind in ("input", "inout"))
        work = copies.call.resolved.kernel.work_of(copies.call.resolved.problem)
        terms = max(read, work.flops / 2 if work else 0)
        self._comparisons = [self._comparison(copies.buffers[a.name], a, terms) for a in outputs]

    def _comparison(self, buffer: Any, output: Argument, terms: float) -> Comparison:
        dtype, count, bound = np.dtype(output.dtype), output.count, 0.0
        if dtype.kind == "c":
            dtype, count = np.finfo(dtype).dtype, 2 * count
        elif output.bits_of or dtype.kind not in "fiub":
            dtype, count = np.dtype(np.uint8), output.nbytes
        values = self._executor.read(buffer, dtype, (count,))
        if dtype.kind == "f":
            size = largest(values)
            bound = _BOUND_FACTOR * common_bound(np.finfo(dtype), size, size, terms / output.count)
            values = values.astype(np.float64 if dtype.itemsize > 4 else np.float32, copy=False)
        expected = self._executor.allocate(values.nbytes)
        self._executor.write(expected, values)
        return Comparison(buffer, dtype, expected, count, bound)

    def matches(self) -> bool:
        """Return whether the latest outputs equal the reference."""
        differences, _, _ = self._executor.inspect(self._comparisons)
        return all(difference.first_wrong is None for difference in differences)


class _OutOfTime(Exception):
    """No time is left for another step."""


class _TimeBudget:
    """The time for measuring. A step starts only if the longest step so far would still fit."""

    def __init__(self, seconds: float, is_ending: Callable[[], bool]) -> None:
        self._end, self._is_ending, self._longest = clock() + seconds, is_ending, 0.0

    def spend(self, step: Callable[[], T]) -> T:
        """Run a step; raise `_OutOfTime` if it would not fit."""
        begun = clock()
        if self._is_ending() or begun + self._longest > self._end:
            raise _OutOfTime
        try:
            return step()
        finally:
            self._longest = max(self._longest, clock() - begun)


def is_answered(call: ChosenCall) -> bool:
    """Return whether another process has tuned the size since the call was chosen."""
    resolved = call.resolved
    refresh(resolved.kernel.name)
    return choose(resolved.kernel, resolved.problem, call.device, call.deterministic).is_known


class SizeTrial:
    """The tuning of one size: compiles candidates, compares their outputs and times them in rounds."""

    def __init__(self, call: ChosenCall, seconds: float, is_ending: Callable[[], bool]) -> None:
        self.call, self._seconds, self._is_ending = call, seconds, is_ending
        kernel = call.resolved.kernel
        table = table_of(kernel.name, kernel.project)
        assert table is not None  # the call's choice is from it
        self._table = table
        self._copies = _Copies(call)
        self._groups: list[_Agreement] = []
        #: Reasons for leaving candidates out.
        self._wrong: dict[Configuration, str] = {}

    def run(self) -> str:
        """Tune, and keep the fastest configuration; return a message for the log, or ""."""
        try:
            binaries = self._compiled(self._candidates())
            if len(binaries) < 2:
                return ""
            with self._copies.entered():
                samples = self._measured(binaries)
            message = self._agreed(samples) if samples else self._why_nothing()
        finally:
            with self._copies.entered():
                self._groups.clear()
                self._copies.close()
            refresh(self.call.resolved.kernel.name)
        return message

    def _candidates(self) -> list[Configuration]:
        """Return the recorded configurations to try, the answer of the records first, the default last."""
        call, kernel, problem = self.call, self.call.resolved.kernel, self.call.resolved.problem
        found = promising(
            kernel.name,
            call.device,
            MAX_CONFIGURATIONS - 1,
            deterministic=call.deterministic,
            project=kernel.project,
            **problem,
        )
        listed = [call.choice.configuration, *(Configuration(dict(values)) for values in found)]
        listed = [*dict.fromkeys(listed)][: MAX_CONFIGURATIONS - 1]
        fields = {**kernel.layout, **problem}
        return [
            configuration
            for configuration in dict.fromkeys([*listed, kernel.default()])
            if self._table.plan_of(configuration, fields, call.deterministic)
            and is_member(kernel, configuration, call.device)
            and kernel.allows(configuration, problem)
            and (not call.deterministic or kernel.is_deterministic(configuration, problem))
        ]

    def _compiled(self, configurations: Sequence[Configuration]) -> dict[Configuration, Binary]:
        """Return the binaries that are ready in time; later binaries go to the cache for later calls."""
        resolved, device = self.call.resolved, self.call.device
        kernel, given = resolved.kernel, resolved.compiled_scalars

        def compiled(configuration: Configuration) -> Compiled:
            return compile_now(compile_job(kernel, configuration, resolved.problem, device, given))

        # Of the compilers only NVRTC runs in several threads.
        threads = usable_cores() if device.is_cuda and not kernel.language else 1
        pool = ThreadPoolExecutor(threads, "autotune-compile")
        try:
            futures = {c: pool.submit(compiled, c) for c in configurations}
            done, _ = wait(futures.values(), COMPILE_S)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        ended = {c: future for c, future in futures.items() if future in done}
        return {
            c: binary
            for c, future in ended.items()
            if future.exception() is None and (binary := future.result().binary)
        }

    def _measured(
        self, binaries: Mapping[Configuration, Binary]
    ) -> dict[Configuration, list[float]]:
        """Return the times in ms of the candidates that agree; none without a majority or without time."""
        budget = _TimeBudget(self._seconds, self._is_ending)
        samples: dict[Configuration, list[float]] = {}
        try:
            for configuration, binary in binaries.items():
                candidate = budget.spend(partial(self._checked, configuration, binary))
                if candidate:
                    # Outside the budget's steps: reading the outputs may take longer than a check.
                    self._groups.append(_Agreement(self._copies, candidate))
        except _OutOfTime:
            pass
        agreeing = self._agreeing()
        try:
            for _ in range(ROUNDS):
                taken = [budget.spend(candidate.sample_ms) for candidate in agreeing]
                for candidate, time_ms in zip(agreeing, taken, strict=True):
                    samples.setdefault(candidate.configuration, []).append(time_ms)
        except _OutOfTime:
            pass
        return samples

    def _checked(self, configuration: Configuration, binary: Binary) -> _Candidate | None:
        """Run a configuration and add it to the group that it agrees with; return it if it agrees with none.

        Leave out a configuration that fails, or writes outside its arrays.
        """
        try:
            candidate = _Candidate(self._copies, configuration, binary)
            if not candidate.run():
                self._wrong[configuration] = "writes outside its arrays"
                return None
        except (LaunchError, MemoryError, AutotuneError):
            return None
        for group in self._groups:
            if group.matches():
                group.members.append(candidate)
                return None
        return candidate

    def _agreeing(self) -> list[_Candidate]:
        """Return the candidates of the largest group if they are a majority; note the others as wrong."""
        most = max(self._groups, key=lambda group: len(group.members), default=None)
        if most is None:
            return []
        count = sum(len(group.members) for group in self._groups)
        for candidate in (c for group in self._groups if group is not most for c in group.members):
            self._wrong[candidate.configuration] = "disagrees with the majority on these arrays"
        is_majority = len(most.members) > 1 and 2 * len(most.members) > count
        return most.members if is_majority else []

    def _agreed(self, samples: Mapping[Configuration, Sequence[float]]) -> str:
        """Keep the fastest configuration unless another process was first; return a message for the log, or ""."""
        call, kernel = self.call, self.call.resolved.kernel
        problem = call.resolved.problem
        fields = {**kernel.layout, **problem}

        def is_valid(known: TunedProblem) -> bool:
            plan = self._table.plan_of(known.configuration, fields, call.deterministic)
            asked = kernel, problem, call.device, call.deterministic
            return plan is not None and is_valid_first_call(*asked, known)

        entry = self._entry(samples)
        store = first_calls_of(kernel.name, kernel.project)
        called = CalledProblem(fields, call.deterministic)
        agreed, reason = store.agree(call.device, called, entry, is_valid)
        who = "" if agreed is entry else " by another process"
        times = agreed.race.contenders[-1].time_ms.value / agreed.median_ms
        named = Configuration(dict(agreed.configuration))
        _log.info(
            "autotune: %s (%s): %s, %.2f times as fast%s", kernel.name, problem, named, times, who
        )
        only_here = f"only this process keeps the answer: {reason}" if reason else ""
        return "; ".join(filter(None, [self._named_wrong(), only_here]))

    def _entry(self, samples: Mapping[Configuration, Sequence[float]]) -> TunedProblem:
        """Return the answer: the fastest configuration, unless that of the records is about as fast."""
        call, kernel = self.call, self.call.resolved.kernel
        problem, device, answer = call.resolved.problem, call.device, call.choice.configuration
        times_ms = {configuration: median(taken) for configuration, taken in samples.items()}
        winner = min(times_ms, key=times_ms.__getitem__)
        if answer in times_ms and times_ms[answer] <= _MIN_SPEEDUP * times_ms[winner]:
            winner = answer
        raced = [c for c in dict.fromkeys((winner, answer)) if c in times_ms]
        fields = {**kernel.layout, **problem}
        plan = self._table.plan_of(winner, fields, call.deterministic)
        assert plan is not None  # every candidate has one
        caches = deciding_caches(kernel.work_of(problem), device)
        origin = TuningOrigin(
            tuned_on=timestamp(),
            source=source_fingerprint(kernel),
            arguments=arguments_fingerprint(kernel, problem),
            driver=device.driver,
            toolchain=compiler(kernel.language_on(device.backend)).toolchain(),
            device_uuid=device.uuid,
            effort="first_call",
            strategy="records",
            seed=0,
            evaluations=len(samples),
            identity=identity(kernel, winner, problem, device),
            deterministic=call.deterministic,
        )
        race = RaceResult(
            timing=Timing.of(caches, "graph" if device.is_cuda else "stream"),
            rounds=len(samples[winner]),
            contenders=tuple(
                ContenderResult(configuration=dict(c), time_ms=Estimate(times_ms[c])) for c in raced
            ),
        )
        return TunedProblem(problem=fields, plans=(plan,), race=race, origin=origin)

    def _why_nothing(self) -> str:
        """Return the reason why no configuration was chosen; "" if time ran out."""
        if sum(len(group.members) for group in self._groups) > 1 and not self._agreeing():
            return f"no configuration is chosen: no majority agrees{self._verify()}"
        return self._named_wrong()

    def _named_wrong(self) -> str:
        named = [f"{configuration} {why}" for configuration, why in self._wrong.items()]
        return f"left out: {'; '.join(named)}{self._verify()}" if named else ""

    def _verify(self) -> str:
        return f"; verify the kernel: autotune check {self.call.resolved.kernel.name}"
