"""A sample of configurations, verified; on an interpreter only on problems that are small enough."""

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

#: Maximum time of an interpreted launch after the smallest problem, and of all launches together.
LONGEST_S, ALL_S = 5.0, 60.0
#: Problems that a note names.
_SHOWN = 5


@dataclass(frozen=True)
class SampleResult:
    """The result of one configuration for one target."""

    #: ``compiled``, ``verified``, ``pruned``, ``skipped`` or ``failed``.
    result: str
    registers: int | None = None
    spill_bytes: int | None = None
    #: Why it is neither compiled nor verified.
    problem: str = ""

    @classmethod
    def without_success(cls, result: str, why: str) -> SampleResult:
        """Return a result that was neither compiled nor verified, and why."""
        return cls(result, problem=f"{result}: {why}")


def verified(bench: Bench, configuration: Configuration, jobs: Sequence[Job]) -> SampleResult:
    """Compile and verify a configuration on the jobs that allow it, up to the first where it fails."""
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
            "skipped", "it requires what neither the first problem nor an odd size meets"
        )
    return SampleResult("verified")


class InterpretedSample:
    """A sample of configurations that is interpreted, on problems within the time limits."""

    def __init__(self, bench: Bench, sample: Sequence[Configuration]) -> None:
        self._bench, self._sample = bench, sample
        self._jobs: dict[Problem, Job] = {}
        #: Problems on which a configuration was verified.
        self.seen: set[Problem] = set()
        #: Reasons of problems that are not interpreted.
        self.left: dict[Problem, str] = {}
        #: Categories in which a problem took too long.
        self._slow: set[tuple[str, ...]] = set()
        #: Time limit of the first problem.
        self._longest_s = bench.worker.timeout_s
        self._until_s = time.monotonic() + ALL_S

    def why_left(self, problem: Problem) -> str:
        """Return a reason if there is no time for a problem, else an empty string."""
        if category_of(problem) in self._slow:
            return "a smaller one took too long"
        return "" if time.monotonic() < self._until_s else f"smaller ones took {ALL_S:g} s"

    def begin(self, problem: Problem) -> str:
        """Make the data of a problem and check the first configuration that it allows; return the failure."""
        worker, begun_s = self._bench.worker, time.monotonic()
        try:
            self._jobs[problem] = self._bench.job(problem)
        except AutotuneError as error:
            if time.monotonic() - begun_s < worker.timeout_s:
                self.left[problem] = "failed"
                return str(error)
            self.left[problem] = "a launch took too long, or configurations do not agree"
            self._slow.add(category_of(problem))
        else:
            allows = self._bench.kernel.allows
            self._check_on(problem, next(c for c in self._sample if allows(c, problem)))
        worker.timeout_s = LONGEST_S
        return ""

    def check(self, configuration: Configuration) -> SampleResult:
        """Check a configuration on all problems that are interpreted; return the worst result."""
        allows = partial(self._bench.kernel.allows, configuration)
        wanted = [p for p in self._jobs if p not in self.left and allows(p)]
        found = [self._check_on(problem, configuration) for problem in wanted]
        order = ("failed", "verified", "skipped")
        none = SampleResult.without_success(
            "skipped", "no problem that is interpreted meets what it requires"
        )
        return min(found, key=lambda each: order.index(each.result), default=none)

    def _check_on(self, problem: Problem, configuration: Configuration) -> SampleResult:
        is_first = problem is self._bench.request.problems[0]
        self._bench.worker.timeout_s = self._longest_s if is_first else LONGEST_S
        found = verified(self._bench, configuration, [self._jobs[problem]])
        if found.result == "skipped":
            self.left[problem] = found.problem
            self._slow.add(category_of(problem))
        else:
            self.seen.add(problem)
        return found

    def not_verified(self) -> Iterator[str]:
        """Yield a note for each reason, with its problems."""
        for why in dict.fromkeys(self.left.values()):
            listed = [f"({problem})" for problem in self.left if self.left[problem] == why]
            more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
            text = ", ".join(listed[:_SHOWN]) + more
            yield f"not verified: {text}: {why.removeprefix('skipped: ')}"
