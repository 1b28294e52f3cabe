"""The expected outputs of a kernel without a reference: those on which most of a few configurations agree."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TypeAlias

import numpy as np

from autotune.devices.base import Binary
from autotune.errors import AutotuneError
from autotune.kernel.space import enumerate_space, is_member
from autotune.kernel.spec import Kernel
from autotune.measure import cache
from autotune.measure.compiler import Compiled
from autotune.measure.data import keep_expected, with_results
from autotune.measure.measurement import Status
from autotune.measure.tasks import DeviceWorker, Job, write_results
from autotune.values import Configuration

#: Configurations that are compared, and those that are tried for that.
_WANTED, _MOST_TRIED = 5, 12
#: Of configurations that ran.
_RAN = (Status.OK, Status.WRONG_RESULT)
#: Gives a configuration to the compilers.
_Submit: TypeAlias = Callable[[Configuration], Future[Compiled]]
_Witness: TypeAlias = tuple[Configuration, Binary]


def agreed(kernel: Kernel, job: Job, worker: DeviceWorker, submit: _Submit) -> Job:
    """Return a job with expected outputs where the kernel has no reference.

    The first of `_WANTED` configurations whose results verify most of them, itself included, gives
    them; the default comes first. Results of another are written only where those before it failed.

    Raises `AutotuneError` if fewer than two configurations, or no more than half of them, agree.
    """
    if "reference" in kernel.hooks or all(dataset.bounds for dataset in job.datasets):
        return job
    most = ran = 0
    with cache.scratch() as scratch:
        for claim, statuses in _claims(kernel, job, worker, Path(scratch), submit):
            votes, ran = statuses.count(Status.OK), len(statuses)
            if votes > 1 and 2 * votes > ran:
                return replace(job, datasets=keep_expected(job.datasets, claim.datasets, votes))
            most = max(most, votes)
    raise AutotuneError(
        f"{kernel.name} ({job.problem}): without a reference most configurations must agree, and "
        f"{most} of {ran} that ran do; write @{kernel.name}.reference, or declare a larger "
        f"@{kernel.name}.tolerance; if it is not made for such sizes, @{kernel.name}.requires says so"
    )


def _claims(
    kernel: Kernel, job: Job, worker: DeviceWorker, scratch: Path, submit: _Submit
) -> Iterator[tuple[Job, list[Status]]]:
    """Yield a job that expects the results of a configuration, with how each witness ends in it.

    The first is of the first configuration that runs. It and those that run beside it are the witnesses,
    whose own follow.
    """
    claimed, untried = (
        partial(_claimed, kernel, job, worker, scratch),
        _compiled(kernel, job, submit),
    )
    for first in untried:
        if (claim := claimed(first)) is not None:
            break
    else:
        return
    ended = ((each, worker.check(claim, *each).status) for each in chain([first], untried))
    known = list(islice((pair for pair in ended if pair[1] in _RAN), _WANTED))
    yield claim, [status for _, status in known]
    witnesses = [witness for witness, _ in known]
    for witness in witnesses:
        if witness != first and (claim := claimed(witness)) is not None:
            yield claim, [worker.check(claim, *each).status for each in witnesses]


def _claimed(
    kernel: Kernel, job: Job, worker: DeviceWorker, scratch: Path, witness: _Witness
) -> Job | None:
    """Return the job that expects what a configuration makes of its data; None where it does not run."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    if worker.measure(job, *witness, folder, task=write_results).status is not Status.OK:
        return None
    return replace(job, datasets=with_results(kernel, job.problem, job.datasets, folder))


def _compiled(kernel: Kernel, job: Job, submit: _Submit) -> Iterator[_Witness]:
    """Yield different configurations that compile: the default, seeds, and others drawn.

    So many as are wanted are compiled at once.
    """
    known = [kernel.default(), *map(kernel.completed, kernel.seeds)]
    valid = [each for each in known if is_member(kernel, each, job.device)]
    space = enumerate_space(kernel, job.device)
    drawn = space.sample(np.random.default_rng(0), _MOST_TRIED)
    every = dict.fromkeys([*valid, *map(space.configuration, drawn)])
    allowed = islice((each for each in every if kernel.allows(each, job.problem)), _MOST_TRIED)
    while together := list(islice(allowed, _WANTED)):
        for configuration, compiled in [(each, submit(each)) for each in together]:
            if (binary := compiled.result().binary) is not None:
                yield configuration, binary
