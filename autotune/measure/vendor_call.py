"""Prepares the call of a baseline on the working buffers of a job, and verifies it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from autotune.data.dataset import RANDOM
from autotune.devices.base import ContextLostError, LaunchError
from autotune.kernel.declaration import pins_of
from autotune.measure import verify, worker_state
from autotune.measure.worker_state import Job


@dataclass(frozen=True)
class VendorCall:
    """A prepared call for each data set: a call has the scalars of its data set."""

    calls: Mapping[str, Callable[[], object]]

    @property
    def pins(self) -> str:
        """Return what decides the results; see `autotune.kernel.declaration.Baseline`."""
        return pins_of(self.calls[RANDOM])

    def run(self, dataset: str) -> None:
        """Call once on the working buffers; raise `LaunchError` if the library refuses."""
        try:
            self.calls[dataset]()
        except Exception as error:
            raise _refusal(error) from error


def prepared(job: Job, name: str, answers: bool) -> VendorCall | None:
    """Prepare the call of a baseline and verify it; None if it does not support the problem or the device.

    A call that ``answers`` is verified on every data set like a configuration, others on random data once.
    Raises `verify.WrongResult` if it is wrong.
    """
    worker_state.prepare_job(job)
    executor, data, kernel = worker_state.current()
    baselines = {(known.name, known.backend): known for known in kernel.baselines}
    baseline = baselines.get((name, job.device.backend))
    if baseline is None:
        return None
    data.scratch = {}
    data.refresh(RANDOM, wholly=True)
    calls = {}
    for dataset in data.datasets if answers else (RANDOM,):
        try:
            call = executor.time_calls(baseline.prepare, vendor_arguments(data, dataset))
        except Exception as error:
            raise _refusal(error) from error
        if call is None:
            return None
        calls[dataset] = call
    found = VendorCall(calls)
    if answers:
        for dataset in calls:
            verify.verify(data, dataset, partial(found.run, dataset))
    else:
        found.run(RANDOM)
        wrong = [result for result in verify.outputs(data, RANDOM) if not result.is_correct]
        if wrong:
            raise verify.WrongResult(f"the baseline {name} computes something else: {wrong[0]}")
    data.refresh(RANDOM, wholly=True)
    return found


def vendor_arguments(data: verify.DeviceData, dataset: str = RANDOM) -> Mapping[str, Any]:
    """Return the arguments of a baseline: buffers with type and shape, and the scalars of a data set."""
    arrays = {
        argument.name: (
            data.buffers[argument.name],
            np.dtype(argument.dtype),
            argument.stored_shape,
        )
        for argument in data.arguments
        if argument.name in data.buffers
    }
    return {**arrays, **data.scalars(dataset)}


def _refusal(error: Exception) -> Exception:
    """Return an error of a library, which has types of its own, as an error of a launch."""
    if isinstance(error, ContextLostError | LaunchError | MemoryError):
        return error
    return LaunchError(f"{type(error).__name__}: {error}")
