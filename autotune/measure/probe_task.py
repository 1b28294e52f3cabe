"""What runs inside the worker process to find a device's limits: many variants, the best of each.

Knows ``kernels/probe.cu`` and its parameters; not whether the numbers are needed, true or kept.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from statistics import median
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from autotune.devices.base import BoundLaunch, Executor, LaunchError
from autotune.devices.binary import Binary
from autotune.devices.choose import backend
from autotune.devices.device import Clocks, Device
from autotune.kernel.catalog import bundled_folder
from autotune.kernel.source import flattened
from autotune.measure import tasks
from autotune.measure.compiler import CompileJob
from autotune.measure.timing import StoppingRule, sample
from autotune.values import Configuration

Limit = Literal["read", "copy", "ffma"]

#: Values of the parameters that are words, in the order of their numbers in the source.
_WORDS = {
    "LOAD": ("plain", "stream"),
    "WALK": ("stride", "chunk"),
    "SHEAR": ("uniform", "register"),
}
#: Size of the buffer that is read, in multiples of L2, and at least: what stays in L2 from the
#: sample before flatters a GPU's rate by less than 2 %.
_GPU_BUFFER = (64, 1 << 30)
#: A CPU is a stand-in: its numbers are for tests and demonstrations and should not take long.
_CPU_BUFFER = (16, 64 << 20)
#: Size of the buffers on which every variant is checked.
_CHECKED_FLOATS = 1 << 20
#: An FFMA sample lasts at least so long, so that launching is lost in it.
_FFMA_MS = 4.0
#: A GPU takes some 0.1 s of work to leave its idle clock.
_WARM_UP_S = 0.3
_SHEAR = np.float32(0.1)
#: Launches in the sequence that shows what one more costs: few enough to be enqueued while the
#: device still flushes its cache.
_SEQUENCE = 9

_SEARCH = StoppingRule(min_samples=5, max_samples=9, max_seconds=0.3)
_FINAL = StoppingRule(min_samples=15, max_samples=31, precision=0.003, max_seconds=0.8)


@dataclass(frozen=True)
class Variant:
    """One way to reach one limit."""

    limit: Limit
    parameters: Configuration
    #: Blocks launched, as a share of those that are resident at once; 0 is a block for every tile.
    fill: float

    def __str__(self) -> str:
        grid = f"{self.fill:g} of the resident blocks" if self.fill else "a block per tile"
        return f"{self.parameters}, {grid}"

    @property
    def tile(self) -> int:
        """Floats that one block has under way."""
        c = self.parameters
        return int(c.BLOCK * c.VEC * c.ITEMS)

    def blocks(self, device: Device, tiles: int) -> int:
        """Blocks of a launch over so many tiles."""
        if not self.fill:
            return tiles
        resident = device.sm_count * (device.max_threads_per_sm // int(self.parameters.BLOCK))
        return max(1, round(self.fill * resident))


@dataclass(frozen=True)
class Rate:
    """The best rate of one limit: bytes or operations per millisecond, and the variant's words."""

    per_ms: float
    by: str


@dataclass(frozen=True)
class Found:
    """What the probes of one device yielded."""

    read: Rate
    copy: Rate
    ffma: Rate
    launch_us: float
    next_launch_us: float
    buffer_bytes: int
    clocks: Clocks


def variants(device: Device) -> tuple[Variant, ...]:
    """Every variant worth trying on a kind of device."""
    found = _on_cpu() if device.arch == "opencl_cpu" else _on_gpu()
    most = device.max_threads_per_block
    return tuple(one for one in found if int(one.parameters.BLOCK) <= most)


def _on_gpu() -> Iterator[Variant]:
    shapes = [
        (256, 4, 1), (256, 4, 2), (256, 4, 4), (256, 4, 8),
        (512, 4, 2), (512, 4, 4), (1024, 4, 1), (1024, 4, 2), (256, 1, 8),
    ]  # fmt: skip
    for (block, vec, items), load in itertools.product(shapes, _WORDS["LOAD"]):
        parameters = Configuration(BLOCK=block, VEC=vec, ITEMS=items, LOAD=load)
        for fill in (0.5, 1.0):
            yield Variant("read", parameters, fill)
        for fill in (0.0, 0.5, 1.0):
            yield Variant("copy", parameters, fill)
    for chains, depth, shear in itertools.product((4, 8), (16, 32, 64), _WORDS["SHEAR"]):
        parameters = Configuration(BLOCK=256, CHAINS=chains, DEPTH=depth, SHEAR=shear)
        for fill in (0.5, 1.0):
            yield Variant("ffma", parameters, fill)


def _on_cpu() -> Iterator[Variant]:
    # Blocks as wide as a SIMD register, each with memory of its own: with wider ones or strides a
    # core jumps from page to page (half the bandwidth, and less, on two cores of a Xeon).
    for vec, items in ((1, 4), (1, 8), (4, 4)):
        parameters = Configuration(BLOCK=16, VEC=vec, ITEMS=items, WALK="chunk")
        yield Variant("read", parameters, 0.125)
        yield Variant("copy", parameters, 0.125)
    for block in (16, 64):
        yield Variant("ffma", Configuration(BLOCK=block, CHAINS=8, DEPTH=16), 0.125)


def compile_job(variant: Variant, device: Device) -> CompileJob:
    """What to compile for a variant; variants that differ in the grid only share it."""
    defines: dict[str, str] = {}
    for name, value in variant.parameters.items():
        for number, word in enumerate(_WORDS.get(name, ())):
            defines[f"{name}_{word}"] = str(number)
        defines[name] = f"{name}_{value}" if isinstance(value, str) else str(value)
    return CompileJob(
        source=_source(),
        defines=tuple(defines.items()),
        options=(),
        device=device,
        toolchain=backend(device.backend).toolchain(),
    )


@cache
def _source() -> str:
    return flattened(bundled_folder("kernels") / "probe.cu")


def measure(device: Device, ready: Sequence[tuple[Variant, Binary]]) -> Found:
    """Check and time every variant; the task of the worker.

    Raises
    ------
    LaunchError
        If no variant of a limit runs and computes the right thing.
    ContextLostError
    MemoryError
    """
    bench = _Bench(_executor(device), ready)
    bench.warm_up()
    ffma = bench.best("ffma")
    clocks = bench.executor.clocks()
    read, copy = bench.best("read"), bench.best("copy")
    launch_us, next_launch_us = bench.launch_us()
    return Found(read, copy, ffma, launch_us, next_launch_us, bench.buffer_bytes, clocks)


def _executor(device: Device) -> Executor:
    """The context that this process has, or a new one: two would work on different streams."""
    state = tasks._state
    if state.executor is None or state.executor.device != device:
        state.job, state.data = None, None
        state.executor = backend(device.backend).open(device)
    return state.executor


class _Bench:
    """Buffers and modules for the probes of one device."""

    def __init__(self, executor: Executor, ready: Sequence[tuple[Variant, Binary]]) -> None:
        self.executor = executor
        self.device = executor.device
        self.ready = ready
        self._modules: dict[str, Any] = {}
        self.source, self.target, self.buffer_bytes = self._allocated()
        most = max(
            one.blocks(self.device, 1) * one.parameters.BLOCK for one, _ in ready if one.fill
        )
        self.sums = executor.allocate(4 * most)
        self.checked = _Checked(executor)
        variant, binary = ready[0]
        block = variant.parameters.BLOCK
        blocks = 8 * self.device.sm_count
        count = np.int64(self.buffer_bytes // 4)
        fill = _launch("probe_fill", blocks, block, self.source, count)
        executor.run(self._module(binary), [fill])
        executor.copy(self.target, self.source)

    def _allocated(self) -> tuple[Any, Any, int]:
        """Two buffers, as large as wanted or as there is room for."""
        multiple, least = _CPU_BUFFER if self.device.arch == "opencl_cpu" else _GPU_BUFFER
        size = max(multiple * self.device.l2_bytes, least)
        if self.device.memory_bytes:
            size = min(size, self.device.memory_bytes // 8)
        size = size // 256 * 256
        while True:
            try:
                return self.executor.allocate(size), self.executor.allocate(size), size
            except MemoryError:
                if size < 4 * max(self.device.l2_bytes, 4 * _CHECKED_FLOATS):
                    raise
                size = size // 512 * 256

    def warm_up(self) -> None:
        """Work until the clock has risen."""
        variant, binary = next(one for one in self.ready if one[0].limit == "ffma")
        module, start = self._module(binary), time.perf_counter()
        while time.perf_counter() - start < _WARM_UP_S:
            self.executor.run(module, [self._ffma(variant, 100)])

    def best(self, limit: Limit) -> Rate:
        """The fastest variant of a limit, timed once more: the best of many is partly luck."""
        reasons: list[str] = []
        found: dict[float, tuple[Variant, Binary, BoundLaunch, float]] = {}
        #: Of the fastest so far: milliseconds per byte or operation, since variants move different amounts.
        bar: list[float] = []
        for variant, binary in self.ready:
            if variant.limit != limit:
                continue
            try:
                wrong = self._check(variant, binary)
                if wrong:
                    raise LaunchError(wrong)
                launch, amount = self._sized(variant, binary)
                times = self._samples_ms(binary, launch, _SEARCH, [amount * one for one in bar])
                rate = amount / median(times)
            except LaunchError as error:
                reasons.append(f"{variant}: {error}")
                continue
            if rate >= max(found, default=0.0):
                bar = [one / amount for one in times]
            found[rate] = (variant, binary, launch, amount)
        if not found:
            raise LaunchError(f"no {limit} probe runs; {(*reasons, 'none compiled')[0]}")
        variant, binary, launch, amount = found[max(found)]
        return Rate(amount / median(self._samples_ms(binary, launch, _FINAL)), str(variant))

    def launch_us(self) -> tuple[float, float]:
        """Time of an empty launch, and what each further one in the sequence adds."""
        module = self._module(self.ready[0][1])
        empty = _launch("probe_empty", 1, 1)

        def median_us(count: int) -> float:
            steps = [empty] * count
            take = partial(self.executor.time, module, steps, cold=True)
            return 1e3 * median(sample(take, _FINAL).samples_ms)

        one = median_us(1)
        return one, max(0.0, (median_us(_SEQUENCE) - one) / (_SEQUENCE - 1))

    def _samples_ms(
        self,
        binary: Binary,
        launch: BoundLaunch,
        rule: StoppingRule,
        best_samples_ms: Sequence[float] | None = None,
    ) -> tuple[float, ...]:
        """Samples without a flush: the buffers leave nothing of themselves in L2."""
        take: Callable[[int], list[float]] = partial(
            self.executor.time, self._module(binary), [launch], cold=False
        )
        return sample(take, rule, best_samples_ms).samples_ms

    def _sized(self, variant: Variant, binary: Binary) -> tuple[BoundLaunch, float]:
        """The launch to time, and the bytes or operations of it."""
        if variant.limit == "ffma":
            turns = self._turns(variant, binary)
            threads = variant.blocks(self.device, 0) * variant.parameters.BLOCK
            return self._ffma(variant, turns), float(threads * turns * _operations(variant))
        tiles = self.buffer_bytes // (4 * variant.tile)
        moved = 4 * tiles * variant.tile
        if variant.limit == "read":
            return self._read(variant, self.source, tiles), float(moved)
        return self._copy(variant, self.target, self.source, tiles), float(2 * moved)

    def _turns(self, variant: Variant, binary: Binary) -> int:
        """Turns of the FFMA loop that last long enough to time."""
        module, turns = self._module(binary), 16
        while True:
            launch = self._ffma(variant, turns)
            taken_ms = min(self.executor.time(module, [launch], 2, cold=False))
            if taken_ms >= _FFMA_MS:
                return turns
            turns = math.ceil(turns * min(16.0, 1.2 * _FFMA_MS / max(taken_ms, 1e-6)))

    def _check(self, variant: Variant, binary: Binary) -> str:
        """What is wrong with a variant's result on a small buffer; empty where nothing is.

        A probe that skips work would set a limit that nothing can reach.
        """
        module, small = self._module(binary), self.checked
        if variant.limit == "ffma":
            self.executor.run(module, [self._ffma(variant, 2)])
            want = orbit_sums(variant, 2)
            got = self.executor.read(self.sums, np.dtype(np.float32), (self.sums.nbytes // 4,))
            return "" if np.allclose(got[: want.size], want, atol=1e-3) else "sums are wrong"
        tiles = _CHECKED_FLOATS // variant.tile
        count = tiles * variant.tile
        if variant.limit == "read":
            self.executor.run(module, [self._read(variant, small.source, tiles)])
            threads = variant.blocks(self.device, tiles) * variant.parameters.BLOCK
            sums = self.executor.read(self.sums, np.dtype(np.float32), (self.sums.nbytes // 4,))
            is_right = sums[:threads].sum(dtype=np.float64) == small.floats[:count].sum()
        else:
            self.executor.poison(small.target)
            self.executor.run(module, [self._copy(variant, small.target, small.source, tiles)])
            got = self.executor.read(small.target, np.dtype(np.float32), (_CHECKED_FLOATS,))
            is_right = np.array_equal(got[:count], small.floats[:count])
        return "" if is_right else f"the {variant.limit} probe computes something else"

    def _read(self, variant: Variant, source: Any, tiles: int) -> BoundLaunch:
        blocks = variant.blocks(self.device, tiles)
        block = variant.parameters.BLOCK
        return _launch("probe_read", blocks, block, source, self.sums, np.int64(tiles))

    def _copy(self, variant: Variant, target: Any, source: Any, tiles: int) -> BoundLaunch:
        blocks = variant.blocks(self.device, tiles)
        return _launch(
            "probe_copy", blocks, variant.parameters.BLOCK, target, source, np.int64(tiles)
        )

    def _ffma(self, variant: Variant, turns: int) -> BoundLaunch:
        blocks = variant.blocks(self.device, 0)
        block = variant.parameters.BLOCK
        return _launch("probe_ffma", blocks, block, self.sums, _SHEAR, np.int32(turns))

    def _module(self, binary: Binary) -> Any:
        if binary.key not in self._modules:
            self._modules[binary.key] = self.executor.load(binary, {})
        return self._modules[binary.key]


class _Checked:
    """Small buffers of small integers: their sums are exact in any order."""

    def __init__(self, executor: Executor) -> None:
        rng = np.random.default_rng(20261121)
        self.floats = rng.integers(-8, 9, _CHECKED_FLOATS).astype(np.float64)
        self.source = executor.allocate(4 * _CHECKED_FLOATS)
        self.target = executor.allocate(4 * _CHECKED_FLOATS)
        executor.write(self.source, self.floats.astype(np.float32))


def orbit_sums(variant: Variant, turns: int) -> NDArray[np.float64]:
    """What the FFMA probe stores, for each thread of a block, in float64."""
    c = variant.parameters
    thread, chain = np.ogrid[: c.BLOCK, : c.CHAINS]
    x = 0.01 * (thread + chain + 1.0)
    y = 1.0 - x
    for _ in range(turns * c.DEPTH):
        x = x + float(_SHEAR) * y
        y = y - float(_SHEAR) * x
    sums: NDArray[np.float64] = (x + y).sum(axis=1)
    return sums


def _operations(variant: Variant) -> int:
    """Operations of a thread per turn: two multiply-adds per pair and step, two operations each."""
    return 4 * int(variant.parameters.CHAINS) * int(variant.parameters.DEPTH)


def _launch(entry: str, blocks: int, block: int, *args: Any) -> BoundLaunch:
    return BoundLaunch(entry, (blocks, 1, 1), (block, 1, 1), 0, args)
