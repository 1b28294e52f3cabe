"""Verifies a sample of configurations. An interpreter verifies it on small problems only."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from autotune.errors import AutotuneError
from autotune.measure.measurement import Status
from autotune.measure.worker_state import Job
from autotune.run.bench import Bench
from autotune.values import Configuration, Problem, category_of

#: Maximum time in seconds of an interpreted launch, except on the first problem.
LONGEST_S = 5.0
#: Maximum time in seconds after which no further problem is begun.
ALL_S = 60.0
#: Maximum number of problems that a note names.
_MAX_SHOWN = 5


@dataclass(frozen=True)
class SampleResult:
    """The result of one configuration for one target."""

    #: ``compiled``, ``verified``, ``pruned``, ``skipped`` or ``failed``.
    result: str
    registers: int | None = None
    spill_bytes: int | None = None
    #: Reason why the configuration is neither compiled nor verified.
    problem: str = ""

    @classmethod
    def without_success(cls, result: str, why: str) -> SampleResult:
        """Return the result of a configuration that is neither compiled nor verified, with the reason."""
        return cls(result, problem=f"{result}: {why}")


def verified(bench: Bench, configuration: Configuration, jobs: Sequence[Job]) -> SampleResult:
    """Compile and verify a configuration on the jobs that allow it; stop at the first failure."""
    allowed = [job for job in jobs if bench.kernel.allows(configuration, job.problem)]
    for job in allowed:
        measured = bench.verify(job, configuration)
        if measured.status is Status.COMPILE_FAILED:
            return SampleResult.without_success("failed", measured.message)
        if measured.status is Status.TIMED_OUT and bench.device.backend == "interpreter":
            return SampleResult.without_success(
                "skipped", f"{job.problem} is too large to be interpreted; give edge_problems"
            )
        if measured.status is not Status.OK:
            return SampleResult.without_success(
                "failed", f"{measured.status} on {job.problem}: {measured.message}"
            )
    if not allowed:
        return SampleResult.without_success(
            "skipped", "neither the first problem nor an odd size allows it"
        )
    return SampleResult("verified")


class InterpretedSample:
    """A sample of configurations that an interpreter verifies, within the time limits."""

    def __init__(self, bench: Bench, sample: Sequence[Configuration]) -> None:
        self._bench, self._sample = bench, sample
        self._jobs: dict[Problem, Job] = {}
        #: Problems on which a configuration was verified.
        self.verified: set[Problem] = set()
        #: Problems that are not interpreted, with the reason.
        self.left_out: dict[Problem, str] = {}
        #: Categories in which a problem took too long.
        self._slow: set[tuple[str, ...]] = set()
        #: Maximum time in seconds of a launch on the first problem.
        self._first_longest_s = bench.worker.timeout_s
        self._until_s = time.monotonic() + ALL_S

    def why_left_out(self, problem: Problem) -> str:
        """Return the reason why there is no time for a problem; empty if there is time."""
        if category_of(problem) in self._slow:
            return "a smaller problem took too long"
        return "" if time.monotonic() < self._until_s else f"smaller problems took {ALL_S:g} s"

    def begin(self, problem: Problem) -> str:
        """Make the data of a problem and check the first configuration that it allows.

        Return the message of a failure; empty if there is none.
        """
        worker, begun_s = self._bench.worker, time.monotonic()
        try:
            self._jobs[problem] = self._bench.job(problem)
        except AutotuneError as error:
            if time.monotonic() - begun_s < worker.timeout_s:
                self.left_out[problem] = "failed"
                return str(error)
            self.left_out[problem] = "a launch took too long, or configurations do not agree"
            self._slow.add(category_of(problem))
        else:
            allows = self._bench.kernel.allows
            self._check_on(problem, next(c for c in self._sample if allows(c, problem)))
        worker.timeout_s = LONGEST_S
        return ""

    def check(self, configuration: Configuration) -> SampleResult:
        """Check a configuration on all interpreted problems; return a failure if there is one."""
        allows = partial(self._bench.kernel.allows, configuration)
        allowed = [p for p in self._jobs if p not in self.left_out and allows(p)]
        results = [self._check_on(problem, configuration) for problem in allowed]
        order = ("failed", "verified", "skipped")
        none = SampleResult.without_success("skipped", "no interpreted problem allows it")
        return min(results, key=lambda result: order.index(result.result), default=none)

    def _check_on(self, problem: Problem, configuration: Configuration) -> SampleResult:
        is_first = problem is self._bench.request.problems[0]
        self._bench.worker.timeout_s = self._first_longest_s if is_first else LONGEST_S
        found = verified(self._bench, configuration, [self._jobs[problem]])
        if found.result == "skipped":
            self.left_out[problem] = found.problem
            self._slow.add(category_of(problem))
        else:
            self.verified.add(problem)
        return found

    def not_verified(self) -> Iterator[str]:
        """Yield a note for each reason, with the problems that it applies to."""
        for why in dict.fromkeys(self.left_out.values()):
            listed = [f"({problem})" for problem in self.left_out if self.left_out[problem] == why]
            more = f" and {len(listed) - _MAX_SHOWN} more" if len(listed) > _MAX_SHOWN else ""
            text = ", ".join(listed[:_MAX_SHOWN]) + more
            yield f"not verified: {text}: {why.removeprefix('skipped: ')}"
