"""The expected outputs of a kernel without a reference: those on which most of a few configurations agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import numpy as np

from autotune.devices.base import Binary
from autotune.errors import AutotuneError
from autotune.kernel.space import enumerate_space, is_member
from autotune.kernel.spec import Kernel
from autotune.measure import cache
from autotune.measure.data import keep_expected, with_results
from autotune.measure.measurement import Status
from autotune.measure.tasks import DeviceWorker, Job, write_results
from autotune.values import Configuration

#: Configurations that are compared, and those that are tried for that.
_WANTED, _MOST_TRIED = 5, 12
#: A configuration that ran, and the folder of its results.
_Witness: TypeAlias = tuple[Configuration, Binary, Path]


def agreed(
    kernel: Kernel,
    job: Job,
    worker: DeviceWorker,
    compiled: Callable[[Configuration], Binary | None],
) -> Job:
    """Return a job with expected outputs where the kernel has no reference.

    The first of `_WANTED` configurations whose results verify most of them, itself included, gives
    them; the default comes first.

    Raises `AutotuneError` if fewer than two configurations, or no more than half of them, agree.
    """
    if "reference" in kernel.hooks or all(dataset.bounds for dataset in job.datasets):
        return job
    with cache.scratch() as scratch:
        witnesses = list(islice(_witnesses(kernel, job, worker, compiled, Path(scratch)), _WANTED))
        most = 0
        for _, _, folder in witnesses:
            claimed = replace(job, datasets=with_results(kernel, job.problem, job.datasets, folder))
            votes = sum(
                worker.check(claimed, configuration, binary).status is Status.OK
                for configuration, binary, _ in witnesses
            )
            if votes > 1 and 2 * votes > len(witnesses):
                return replace(job, datasets=keep_expected(job.datasets, claimed.datasets, votes))
            most = max(most, votes)
    raise AutotuneError(
        f"{kernel.name} ({job.problem}): without a reference most configurations must agree, and "
        f"{most} of {len(witnesses)} that ran do; write @{kernel.name}.reference, or declare a larger "
        f"@{kernel.name}.tolerance; if it is not made for such sizes, @{kernel.name}.requires says so"
    )


def _witnesses(
    kernel: Kernel,
    job: Job,
    worker: DeviceWorker,
    compiled: Callable[[Configuration], Binary | None],
    scratch: Path,
) -> Iterator[_Witness]:
    """Yield different configurations that run: the default, seeds, and others drawn."""
    known = [kernel.default(), *map(kernel.completed, kernel.seeds)]
    valid = [each for each in known if is_member(kernel, each, job.device)]
    space = enumerate_space(kernel, job.device)
    drawn = space.sample(np.random.default_rng(0), _MOST_TRIED)
    every = dict.fromkeys([*valid, *map(space.configuration, drawn)])
    allowed = (each for each in every if kernel.allows(each, job.problem))
    for number, configuration in enumerate(islice(allowed, _MOST_TRIED)):
        if (binary := compiled(configuration)) is None:
            continue
        folder = scratch / str(number)
        done = worker.measure(job, configuration, binary, folder, task=write_results)
        if done.status is Status.OK:
            yield configuration, binary, folder
