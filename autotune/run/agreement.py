"""The expected outputs of a kernel without a reference: those on which most of a few configurations agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import lru_cache, partial
from itertools import count, islice
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
    untried, witnesses = _compiled(kernel, job, submit), list[_Witness]()
    most = tried = 0
    with cache.scratch() as scratch:
        for number in count():
            claimant = next(iter(witnesses[tried:]) if witnesses else untried, None)
            if claimant is None:
                break
            folder = Path(scratch) / f"{number}"
            done = worker.measure(job, *claimant, folder, task=write_results)
            if done.status is Status.OK:
                datasets = with_results(kernel, job.problem, job.datasets, folder)
                check = lru_cache(partial(worker.check, replace(job, datasets=datasets)))
                if not witnesses:
                    running = (each for each in untried if check(*each).status in _RAN)
                    witnesses = [claimant, *islice(running, _WANTED - 1)]
                votes = sum(check(*each).status is Status.OK for each in witnesses)
                if votes > 1 and 2 * votes > len(witnesses):
                    return replace(job, datasets=keep_expected(job.datasets, datasets, votes))
                most = max(most, votes)
            tried += bool(witnesses)
    raise AutotuneError(
        f"{kernel.name} ({job.problem}): without a reference most configurations must agree, and "
        f"{most} of {len(witnesses)} that ran do; write @{kernel.name}.reference, or declare a larger "
        f"@{kernel.name}.tolerance; if it is not made for such sizes, @{kernel.name}.requires says so"
    )


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
