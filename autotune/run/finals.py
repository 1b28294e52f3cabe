"""The finals of a run: the best are verified again, and raced with the vendor's calls.

Stores the rows of configurations that fail; `verdict` chooses the winner.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TypeAlias

from autotune.measure import sanitize
from autotune.measure.measurement import Measurement, Status
from autotune.measure.race import Contender, Race, RaceRules, race
from autotune.measure.tasks import check_at_once
from autotune.measure.worker_state import Job
from autotune.run import verdict
from autotune.run.bench import Bench
from autotune.run.sizes import OtherSizes
from autotune.search.session import Listener, Phase
from autotune.store import Store
from autotune.values import Configuration, Problem, Value, size_of

#: Longest and shortest time of a problem's race.
_RACE_SECONDS, _LEAST_RACE_SECONDS = 60.0, 2.0
#: Maximum share of an effort's time per problem for a race on a device with unsteady times. More rounds
#: would take longer than the search and tell little more.
_UNSTEADY_SHARE = 1 / 20
#: Finalists that are verified even without time.
_LEAST_FINALISTS = 3

#: Data sets of one problem, a configuration, and whether two launches run at once. Finals of several
#: problems share odd sizes.
_CheckKey: TypeAlias = tuple[tuple[Path, ...], Configuration, bool]


@dataclass(frozen=True)
class Finals:
    """The finals of one run."""

    bench: Bench
    #: The store of disqualified configurations.
    store: Store
    run_id: int
    listener: Listener
    #: Path of compute-sanitizer; empty: finalists do not run under it.
    sanitizer: str = ""
    #: Results of verification so far.
    _known: dict[_CheckKey, Measurement] = field(default_factory=dict)
    #: Kernels of whose refused sizes the run has warned; see `autotune.run.sizes`.
    _warned: set[str] = field(default_factory=set)
    #: Findings of compute-sanitizer by configuration and static fields; None where there is no fault.
    _faults: dict[tuple[Configuration, tuple[Value, ...]], str | None] = field(default_factory=dict)

    def expect(self, problem: Problem, measured: Sequence[Measurement]) -> None:
        """Let compilers begin with the binaries that the next finals need for other layouts."""
        kernel, device = self.bench.kernel, self.bench.device
        edges = {kernel.static_of(edge): edge for edge in kernel.edges_like(problem, device)}
        edges.pop(kernel.static_of(problem), None)
        if device.is_cuda:
            self.bench.compilers.suggest(
                self.bench.compile_job(row.configuration, edge)
                for row in verdict.candidates(measured, self.bench.request.effort.finalists)
                for edge in edges.values()
                if kernel.allows(row.configuration, edge)
            )

    def hold(
        self,
        job: Job,
        measured: Sequence[Measurement],
        seconds: float,
        meanwhile: Callable[[], object] = lambda: None,
        search_s: float = 0.0,
    ) -> tuple[Race | None, tuple[Measurement, ...]]:
        """Verify the best again on other data and other sizes, then race them and the vendor's calls.

        If all finalists are wrong or fail in the race, the next best take their places.

        Recorded winners are verified first and race too, even if they were slow in the search: a
        configuration that replaces one is faster in the same race, or the recorded one is wrong.

        Half of the time is for verification; after that only the `_LEAST_FINALISTS` best are still
        verified. The rest, at least `_LEAST_RACE_SECONDS`, is for the race. compute-sanitizer takes no
        time of the budget.

        ``meanwhile`` is called before the race, during which compilers are idle.

        Returns the race, or None if no configuration is correct, and the configurations that were wrong
        or failed; their rows are in the store.
        """
        problem = job.problem
        left = verdict.candidates(measured, len(measured))
        repeats = partial(self.bench.kernel.is_deterministic, p=problem)
        others: list[Job] = []
        if left:
            self.listener(Phase(problem, "other inputs"))
            others = self.bench.other_jobs(job)
            self.listener(Phase(problem, "finals"))
        known = list(dict.fromkeys(other.problem for other in others))
        check = partial(self._checked, at_once=False)
        sizes = OtherSizes(self.bench, job, known, check, search_s, self._warned)
        effort, begun_s = self.bench.request.effort, self.bench.clock_s()
        unsteady_s = _UNSTEADY_SHARE * effort.seconds_per_problem
        most_race_s = _RACE_SECONDS if self.bench.device.is_cuda else unsteady_s
        recorded = self.bench.request.recorded.get(problem, ())
        out: list[Measurement] = []
        result = None
        while left and result is None:
            winners = [row for row in left if row.configuration in recorded]
            first = verdict.candidates(winners, len(winners))
            chosen = verdict.candidates(left, effort.finalists, repeats)
            chosen = [row for row in chosen if row not in first]
            # The best deterministic one is verified even if there is little time.
            first += [row for row in chosen if repeats(row.configuration)][:1]
            chosen = [*first, *(row for row in chosen if row not in first)]
            left = [row for row in left if row not in chosen]
            verify_until = begun_s + seconds / 2
            finalists, wrong, unverified = self._verified(
                problem, chosen, others, sizes, verify_until
            )
            left += unverified
            if finalists:
                meanwhile()
                left_s = begun_s + seconds - self.bench.clock_s()
                race_s = min(most_race_s, max(_LEAST_RACE_SECONDS, left_s))
                result, failed = self._raced(job, finalists, race_s)
                wrong = [*wrong, *failed]
            self.store.add_many(self.run_id, self.bench.scope(problem), wrong)
            out += wrong
        return result, tuple(out)

    # ------------------------------------------------------------------ verifying

    def _verified(
        self,
        problem: Problem,
        chosen: Sequence[Measurement],
        others: Sequence[Job],
        sizes: OtherSizes,
        until: float,
    ) -> tuple[list[Contender], list[Measurement], list[Measurement]]:
        """Return correct finalists, rows of wrong ones, and rows that were not verified before ``until``.

        They are verified on other inputs, on odd sizes and on sizes near the problem.
        """
        kernel = self.bench.kernel
        right, wrong, unverified = list[Contender](), list[Measurement](), list[Measurement]()
        for row in chosen:
            binary = self.bench.compiled(row.configuration, problem).binary
            if binary is None:
                message = "compiled before, but not again"
                wrong.append(replace(row, status=Status.COMPILE_FAILED, message=message))
                continue
            repeats = kernel.is_deterministic(row.configuration, problem)
            right.append(Contender(row.configuration, binary, row=row, deterministic=repeats))
        twice = {each.configuration: self._twice(each, others) for each in right}
        # Other layouts are submitted ahead, so that they are compiled at once; only for finalists that
        # will be verified.
        ahead = right[:_LEAST_FINALISTS] if self.bench.clock_s() > until else right
        for job, finalist in product(others, ahead):
            at_once = job in twice[finalist.configuration]
            is_new = _key(job, finalist, at_once) not in self._known
            is_same = kernel.shares_binary(job.problem, problem)
            if is_new and self._is_allowed(finalist, job) and not is_same:
                self.bench.compilers.submit(
                    self.bench.compile_job(finalist.configuration, job.problem)
                )
        for job in others:  # job by job: each one's data must be uploaded
            passed: list[Contender] = []
            for finalist in right:
                if not self._is_allowed(finalist, job):
                    passed.append(finalist)  # lookup, header and load keep it from such a problem
                    continue
                at_once = job in twice[finalist.configuration]
                has_enough = len(passed) >= _LEAST_FINALISTS and self.bench.clock_s() > until
                if has_enough and _key(job, finalist, at_once) not in self._known:
                    assert finalist.row is not None
                    unverified.append(finalist.row)
                    continue
                found = self._checked(finalist, job, at_once)
                if found.status is Status.OK:
                    passed.append(finalist)
                else:
                    wrong.append(found)
            right = passed
        self.bench.compilers.drop()  # of finalists that were not verified
        right, elsewhere = sizes.verified(right)
        wrong += elsewhere
        safe, unsafe = self._sanitized(problem, right) if self.sanitizer else (right, [])
        return safe, [*wrong, *unsafe], unverified

    def _is_allowed(self, finalist: Contender, job: Job) -> bool:
        return self.bench.kernel.allows(finalist.configuration, job.problem)

    def _twice(self, finalist: Contender, others: Sequence[Job]) -> list[Job]:
        """Return the jobs with two launches at once: the problem, and on a GPU the largest odd size."""
        if self.bench.kernel.is_exclusive(finalist.configuration):
            return []
        *odd, own = others
        allowed = [job for job in odd if self._is_allowed(finalist, job)]
        largest = sorted(allowed, key=lambda job: size_of(job.problem))[-1:]
        return [*largest, own] if self.bench.device.is_cuda else [own]

    def _checked(self, finalist: Contender, job: Job, at_once: bool) -> Measurement:
        """Verify a finalist on a job, also with two launches ``at_once``; remember the result."""
        key = _key(job, finalist, at_once)
        if key not in self._known:
            self._known[key] = self._run(job, finalist.configuration, at_once)
        return self._known[key]

    def _run(self, job: Job, configuration: Configuration, at_once: bool) -> Measurement:
        kernel = self.bench.kernel
        alone = self.bench.verify(job, configuration)
        if alone.status is not Status.OK:
            message = f"on {job.problem} with other inputs: {alone.message}"
            return replace(alone, message=message)
        if not at_once:
            return alone
        twice = self.bench.verify(job, configuration, check_at_once)
        if twice.status is not Status.OK:
            message = (
                f"shares state between launches: two at once on {job.problem}: {twice.message}; "
                f"declare @{kernel.name}.exclusive if launches of it must not overlap"
            )
            return replace(twice, message=message)
        if twice.message:
            warnings.warn(
                f"{kernel.name} ({job.problem}): two launches at once were not tried at this size: "
                f"{twice.message}",
                stacklevel=2,
            )
        return alone

    # ------------------------------------------------------------------ compute-sanitizer

    def _sanitized(
        self, problem: Problem, finalists: Sequence[Contender]
    ) -> tuple[list[Contender], list[Measurement]]:
        """Return finalists without a finding of compute-sanitizer, and rows of the others.

        Findings for another problem of the run hold here: the small problems are the same.
        """
        static = self.bench.kernel.static_of(problem)
        configurations = [finalist.configuration for finalist in finalists]
        unknown = [each for each in configurations if (each, static) not in self._faults]
        if unknown:
            self.listener(Phase(problem, "sanitizer"))
            with self.bench.off_budget():
                found = self._faults_of(problem, unknown)
            self.listener(Phase(problem, "finals"))
            self._faults.update({(each, static): found.get(each) for each in unknown})
        faults = {each: self._faults[each, static] for each in configurations}
        safe = [finalist for finalist in finalists if faults[finalist.configuration] is None]
        device_uuid = self.bench.device.uuid
        unsafe = [
            Measurement(configuration, Status.UNSAFE, fault, device_uuid=device_uuid)
            for configuration, fault in faults.items()
            if fault is not None
        ]
        return safe, unsafe

    def _faults_of(
        self, problem: Problem, configurations: Sequence[Configuration]
    ) -> dict[Configuration, str]:
        """Run configurations under compute-sanitizer on small problems; warn of checks that were not done."""
        bench = self.bench
        trials = []
        for configuration in configurations:
            for small in sanitize.small_problems(
                bench.kernel, configuration, problem, bench.device
            ):
                job = bench.compile_job(configuration, small)
                # A finding then names the line; the code is the same.
                with_lines = replace(job, options=(*job.options, "-lineinfo"))
                binary = bench.compilers.result(with_lines).binary
                if binary is not None:
                    made = bench.job(small, bench.request.seed + 1)
                    trials.append(sanitize.Trial(made, configuration, binary))
        faults, remarks = sanitize.find_faults(self.sanitizer, trials)
        for text in remarks:
            warnings.warn(f"{bench.kernel.name}: compute-sanitizer: {text}", stacklevel=2)
        return faults

    # ------------------------------------------------------------------ the race

    def _raced(
        self, job: Job, finalists: Sequence[Contender], seconds: float
    ) -> tuple[Race | None, list[Measurement]]:
        request, kernel, problem = self.bench.request, self.bench.kernel, job.problem
        vendors = [call.name for call in kernel.baselines if call.backend == request.device.backend]
        rules = RaceRules(
            request.effort.rounds,
            request.seed,
            seconds,
            windows=request.effort.windows if request.objective.needs_energy else 0,
            finals=True,
        )
        contenders = [*finalists, *(Contender(vendor=name) for name in vendors)]
        done = race(self.bench.worker, job, contenders, rules)
        failed = []
        for place, failure in done.failures.items():
            contender = contenders[place]
            if contender.row is not None:
                message = f"in the finals: {failure.message}"
                failed.append(replace(contender.row, status=failure.status, message=message))
            else:
                warnings.warn(
                    f"{kernel.name} ({problem}): no ratio to {contender.vendor}, which failed: "
                    f"{failure.message}",
                    stacklevel=2,
                )
        is_timed = any(samples.times_ms for samples in done.samples[: len(finalists)])
        return done if is_timed else None, failed


def _key(job: Job, finalist: Contender, at_once: bool) -> _CheckKey:
    folders = tuple(dataset.folder for dataset in job.datasets)
    return folders, finalist.configuration, at_once
