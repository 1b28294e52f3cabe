"""The outputs on which most configurations agree.

They are the expected outputs of a kernel without a reference. With one they are expected until it is evaluated.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from autotune import cache
from autotune.data.consensus import keep_expected, with_results
from autotune.devices.base import Binary
from autotune.devices.device import Device
from autotune.errors import AutotuneError
from autotune.kernel.space import Space, is_member
from autotune.kernel.spec import Kernel
from autotune.measure.claim import Claim
from autotune.measure.measurement import Measurement, Status
from autotune.measure.tasks import launch, verify_configuration, write_results
from autotune.measure.worker_state import Job
from autotune.values import Configuration, Problem

#: Number of configurations whose outputs are compared.
N_VOTERS = 5
#: Maximum number of configurations that are tried to find `N_VOTERS` that run.
_MAX_TRIED = 12
#: Statuses of configurations that ran.
_RAN = (Status.OK, Status.WRONG_RESULT)


class Verify(Protocol):
    """The contract of `Bench.verify`."""

    def __call__(
        self,
        job: Job,
        configuration: Configuration,
        task: Callable[..., Measurement] = verify_configuration,
        *args: Any,
    ) -> Measurement:
        """Compile a configuration, then run a task of the worker on it."""


def voters(kernel: Kernel, problem: Problem, space: Space, device: Device) -> list[Configuration]:
    """Return the configurations that vote, in order: the default, seeds, and random ones of a space."""
    known = [kernel.default(), *map(kernel.completed, kernel.seeds)]
    valid = [listed for listed in known if is_member(kernel, listed, device)]
    drawn = space.sample(np.random.default_rng(0), _MAX_TRIED)
    different = dict.fromkeys([*valid, *map(space.configuration, drawn)])
    allowed = (candidate for candidate in different if kernel.allows(candidate, problem))
    return list(islice(allowed, _MAX_TRIED))


def agreed(
    kernel: Kernel,
    job: Job,
    candidates: Sequence[Configuration],
    verify: Verify,
    submit: Callable[[Configuration], None],
) -> Job:
    """Return a job with expected outputs for a kernel without a reference.

    The first `NN_VOTERS` of the ``candidates`` that run vote; see `voters`. The expected outputs are those of
    the first configuration that more than half of the voters reproduce. ``submit`` gives a configuration to
    the compilers. Raise `AutotuneError` if fewer than two configurations, or at most half of them, agree.
    """
    with cache.scratch() as scratch:
        claimed = partial(_with_results, kernel, job, verify, Path(scratch))
        vote = _vote(_submitted(candidates, submit), verify, claimed)
        if vote.job is not None:
            return replace(job, datasets=keep_expected(job.datasets, vote.job.datasets, vote.most))
    raise AutotuneError(
        f"{kernel.name} ({job.problem}): without a reference most configurations must agree, but only "
        f"{vote.most} of {vote.ran} that ran do; write @{kernel.name}.reference, or declare a larger "
        f"@{kernel.name}.tolerance; exclude unsupported sizes by @{kernel.name}.requires"
    )


def claimed(
    job: Job,
    candidates: Sequence[Configuration],
    verify: Verify,
    submit: Callable[[Configuration], None],
    binary: Callable[[Configuration], Binary | None],
) -> Job | None:
    """Return a job with the claim that most voters reproduce; None if there is none.

    The first `NN_VOTERS` of the ``candidates`` that run vote; see `voters`. ``submit`` gives a configuration
    to the compilers, and ``binary`` returns its binary.
    """

    def claim(configuration: Configuration) -> Job | None:
        if verify(job, configuration, launch).status is not Status.OK:
            return None
        code = binary(configuration)
        return None if code is None else replace(job, claim=Claim(configuration, code))

    return _vote(_submitted(candidates, submit), verify, claim).job


@dataclass(frozen=True)
class _Vote:
    """The outcome of a vote: the job that more than half of the voters agree on, or None."""

    job: Job | None
    #: Most voters that agree on one job, and the number of voters.
    most: int
    ran: int


def _vote(
    untried: Iterator[Configuration],
    verify: Verify,
    claimed: Callable[[Configuration], Job | None],
) -> _Vote:
    """Let configurations vote; ``claimed`` returns a job that expects the outputs of a configuration."""
    most = ran = 0
    for claim, statuses in _claims(untried, verify, claimed):
        votes, ran = statuses.count(Status.OK), len(statuses)
        if votes > 1 and 2 * votes > ran:
            return _Vote(claim, votes, ran)
        most = max(most, votes)
    return _Vote(None, most, ran)


def _claims(
    untried: Iterator[Configuration],
    verify: Verify,
    claimed: Callable[[Configuration], Job | None],
) -> Iterator[tuple[Job, list[Status]]]:
    """Yield, for each voter, a job that expects its outputs, with the status of every voter on that job.

    The voters are the first configurations that run.
    """
    for first in untried:
        if (claim := claimed(first)) is not None:
            break
    else:
        return
    tried = ((voter, verify(claim, voter).status) for voter in chain([first], untried))
    ran = list(islice((pair for pair in tried if pair[1] in _RAN), N_VOTERS))
    yield claim, [status for _, status in ran]
    voters = [voter for voter, _ in ran]
    for voter in voters:
        if voter != first and (claim := claimed(voter)) is not None:
            yield claim, [verify(claim, other).status for other in voters]


def _with_results(
    kernel: Kernel, job: Job, verify: Verify, scratch: Path, configuration: Configuration
) -> Job | None:
    """Return a job that expects the outputs of a configuration; None if the configuration does not run."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    if verify(job, configuration, write_results, folder).status is not Status.OK:
        return None
    return replace(job, datasets=with_results(kernel, job.problem, job.datasets, folder))


def _submitted(
    candidates: Sequence[Configuration], submit: Callable[[Configuration], None]
) -> Iterator[Configuration]:
    """Yield configurations; compilers work on `N_VOTERS` of them at a time."""
    for begin in range(0, len(candidates), N_VOTERS):
        batch = candidates[begin : begin + N_VOTERS]
        for configuration in batch:
            submit(configuration)
        yield from batch
