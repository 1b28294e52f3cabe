"""The program under compute-sanitizer: it launches each trial once, on buffers of exactly their size.

Every buffer is an allocation of its own, without guard bands and outside CuPy's pool, whose rounded
blocks would hide an access beyond the end. Outputs and workspaces stay as allocated: poisoning would
count as a write for initcheck.
"""

from __future__ import annotations

import pickle
import signal
import sys
from pathlib import Path
from typing import Any

from autotune.devices.base import ContextLostError, LaunchError
from autotune.devices.cuda import CudaBuffer, CudaExecutor
from autotune.devices.device import Device
from autotune.kernel.launches import bound, launch_sequence
from autotune.measure.data import RANDOM, Argument, Dataset, loaded_as
from autotune.measure.sanitize import Trial
from autotune.measure.verify import DeviceData


class _BareBuffer(CudaBuffer):
    """An allocation of exactly the bytes asked for, after those of the offset."""

    def __init__(self, cupy: Any, nbytes: int, offset_bytes: int) -> None:
        self.nbytes = nbytes
        self.whole = cupy.empty(offset_bytes + nbytes, cupy.uint8)
        self.inner = self.whole[offset_bytes:]
        self.guards = (self.whole[:0], self.whole[:0])


class _BareExecutor(CudaExecutor):
    """An executor that allocates without guard bands."""

    def allocate(self, nbytes: int, offset_bytes: int = 0) -> CudaBuffer:
        return _BareBuffer(self.cupy, nbytes, offset_bytes)


class _BareData(DeviceData):
    """Device data without pristine copies and expected values: nothing is compared."""

    def _upload(self, dataset: Dataset, argument: Argument) -> None:
        if not argument.nbytes:
            return
        if argument.kind in ("input", "out", "inout"):
            self.buffers[argument.name] = self.executor.allocate(
                argument.nbytes, argument.offset_bytes
            )
        if argument.kind in ("input", "inout"):
            array = dataset.array(argument.name)
            self.executor.write(self.buffers[argument.name], array)


def launch(executor: CudaExecutor, trial: Trial) -> None:
    """Run a trial's launch sequence once."""
    job, configuration = trial.job, trial.configuration
    kernel = loaded_as(job.origin, job.known_by)
    dataset = next(dataset for dataset in job.datasets if dataset.name == RANDOM)
    data = _BareData(executor, {RANDOM: dataset})
    data.declare_scratch(kernel.workspaces(configuration, job.problem, job.device))
    steps = bound(
        launch_sequence(kernel, configuration, job.problem, job.device),
        data.names,
        data.pointers(),
        data.scalars(RANDOM),
        data.dtypes,
        trial.binary,
    )
    executor.run(executor.load(trial.binary, data.constants(RANDOM)), steps)


def main(file: str, seconds: str) -> int:
    """Launch the trials in a file; the last line of output is ``done`` or the failure."""
    signal.alarm(int(float(seconds)) + 10)  # in case the parent was killed
    trials: list[Trial] = pickle.loads(Path(file).read_bytes())
    executor = _opened(trials[0].job.device)
    for trial in trials:
        try:
            launch(executor, trial)
        except (LaunchError, ContextLostError, MemoryError) as error:
            return _end(1, f"failed on {trial.job.problem}: {' '.join(str(error).split())}")
    return _end(0, "done")


def _end(code: int, word: str) -> int:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()
    return code


def _opened(device: Device) -> CudaExecutor:
    import cupy

    cupy.cuda.set_allocator(None)
    return _BareExecutor(cupy, device)
