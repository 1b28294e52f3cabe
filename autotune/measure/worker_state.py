"""The state of a worker process: its device context, and the kernel and device data of its last job.

It is costly to make. It is therefore kept between tasks, and made again only if a task needs another job.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

from autotune.data.dataset import Dataset
from autotune.data.prepare import drawn_dataset, prepare_dataset
from autotune.devices.base import Binary, ContextLostError, Executor
from autotune.devices.device import Clocks, Device
from autotune.devices.gpu_lock import sampling
from autotune.kernel.snapshot import Origin, load_kernel
from autotune.kernel.spec import Kernel
from autotune.languages.registry import find_backend
from autotune.measure import verify
from autotune.measure.claim import Claim, expect_outputs
from autotune.measure.launchable import Launchable
from autotune.measure.measurement import TIME, Objective
from autotune.measure.process import retire
from autotune.measure.timing import Caches
from autotune.values import Configuration, Problem

R = TypeVar("R")
#: Rests in seconds after a measurement on a throttled device, before it is measured again.
_RESTS_S = (0.1, 0.3, 1.0)
#: Longest age in seconds of a reading of the clocks that serves the next measurement, too.
_CLOCKS_S = 0.1
#: Least power of a working GPU, as a share of its limit: an idle H100 draws 70 of 700 W.
_IDLE_SHARE = 0.1


@dataclass(frozen=True)
class Job:
    """One kernel on one problem and device; the worker makes its state from it."""

    origin: Origin
    problem: Problem
    device: Device
    datasets: tuple[Dataset, ...]
    caches: Caches = Caches.COLD
    #: Fingerprint of the kernel's functions; empty if they are not compared.
    fingerprint: str = ""
    #: Objective of the run; energy is measured if it needs energy.
    objective: Objective = TIME
    #: The configuration whose outputs are expected if the data sets have no expected outputs.
    claim: Claim | None = None

    @property
    def is_flushed(self) -> bool:
        """True if caches are flushed before each call."""
        return self.caches is not Caches.HOT


@dataclass
class _State:
    executor: Executor | None = None
    job: Job | None = None
    kernel: Kernel | None = None
    data: verify.DeviceData | None = None
    #: Files of the inputs that are on the device.
    inputs: list[tuple[Any, ...]] = field(default_factory=list)
    #: Last reading of the clocks.
    clocks: Clocks | None = None
    #: Time of this reading (`time.monotonic`).
    clocks_read_s: float = 0.0
    #: Least power of the device so far, in watts.
    least_w: float = math.inf


_state = _State()


def get_ready(device: Device) -> None:
    """Import and compile the parts that every job on a device needs, without a context."""
    find_backend(device.backend).get_ready(device)


def opened(device: Device) -> Executor:
    """Return the executor of a device; the first call makes the context."""
    if _state.executor is None or _state.executor.device != device:
        executor = find_backend(device.backend).open(device)
        executor.calibrate()
        _state.executor = executor
    return _state.executor


def open_device(device: Device) -> None:
    """Make the context of a device before the first job does."""
    opened(device)


def prepare_job(job: Job) -> None:
    """Make context, kernel and device data of a job, unless it is the last job."""
    try:
        if _state.job != job:
            _prepare(job)
    except ContextLostError:
        retire()
        raise


def _prepare(job: Job) -> None:
    before, data, inputs = _state.job, _state.data, _state.inputs
    _state.job, _state.data = None, None
    executor = opened(job.device)
    is_first = before is None or before.device != job.device
    functions = job.origin, job.fingerprint
    if before is None or not job.fingerprint or (before.origin, before.fingerprint) != functions:
        _state.kernel = load_kernel(job.origin, job.fingerprint)
    assert _state.kernel is not None
    # The cache may have removed data sets to make room on the disk.
    datasets = [
        known
        if known.folder.is_dir()
        else (prepare_dataset if known.bounds else drawn_dataset)(
            _state.kernel, job.problem, known.name, known.seed
        )
        for known in job.datasets
    ]
    _state.inputs = [_files(dataset) for dataset in datasets]
    is_same = data is not None and not is_first and _state.inputs == inputs
    kept = (data.buffers, data.pristine) if data and is_same else ({}, {})
    data = None  # frees its other buffers
    matching = _state.kernel if "matches" in _state.kernel.hooks else None
    by_name = {dataset.name: dataset for dataset in datasets}
    _state.data = verify.DeviceData(executor, by_name, *kept, matching=matching)
    if job.claim is not None:
        state = executor, _state.data, _state.kernel
        claimed = job.claim.configuration, job.claim.binary
        ready = Launchable(state, job.problem, *claimed)
        expect_outputs(ready, _state.kernel.tolerance_of(job.problem))
    _state.job = job
    if (
        is_first and datasets and not matching
    ):  # loads the comparison while the first configuration is compiled
        verify.outputs(_state.data, datasets[0].name)


def _files(dataset: Dataset) -> tuple[Any, ...]:
    """Return a key of the inputs of a data set; links to the same files give equal keys."""
    arrays = (
        argument.name for argument in dataset.arguments if argument.kind in ("input", "inout")
    )
    files = [(dataset.folder / f"{name}.npy").resolve() for name in arrays]
    return dataset.name, dataset.arguments, files


def current() -> tuple[Executor, verify.DeviceData, Kernel]:
    """Return the executor of this process, and the device data and the kernel of the last job."""
    assert _state.executor and _state.data and _state.kernel
    return _state.executor, _state.data, _state.kernel


def launchable(job: Job, configuration: Configuration, binary: Binary) -> Launchable:
    """Prepare a job; return a configuration that is ready to be launched on its buffers."""
    prepare_job(job)
    return Launchable(current(), job.problem, configuration, binary)


def unthrottled(executor: Executor, measure: Callable[[], R]) -> tuple[R, Clocks]:
    """Measure; while the device is throttled, rest longer each time and repeat; return the last result."""
    for rest_s in (*_RESTS_S, None):
        before = read_clocks(executor, _CLOCKS_S)
        with sampling(executor.device.uuid) if executor.device.is_cuda else nullcontext():
            result = measure()
        clocks = before.worst(read_clocks(executor))
        if rest_s is None or not clocks.is_throttled:
            break
        time.sleep(rest_s)
    return result, clocks


def read_clocks(executor: Executor, oldest_s: float = 0.0) -> Clocks:
    """Read the clocks, or return the last reading if it is younger than ``oldest_s``."""
    if _state.clocks is None or time.monotonic() - _state.clocks_read_s >= oldest_s:
        _state.clocks, _state.clocks_read_s = executor.clocks(), time.monotonic()
    return _state.clocks


def least_power_w(executor: Executor) -> float:
    """Read the power of the device, and return the least so far: a lower bound for a working device.

    A reading is the mean of a second in which the device may have worked. The result is therefore at most
    `_IDLE_SHARE` of the power limit.
    """
    power = executor.power()
    _state.least_w = min(_state.least_w, power.draw_w or 0.0, _IDLE_SHARE * (power.limit_w or 0.0))
    return _state.least_w
