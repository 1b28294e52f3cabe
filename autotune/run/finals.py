"""The finals of a run: verify the best configurations again, and race them with the vendor's calls.

Failed configurations get a row in the store. `verdict` chooses the winner.
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
from autotune.run.other_sizes import OtherSizes
from autotune.search.session import Listener, Phase
from autotune.store import Store
from autotune.values import Configuration, Problem, Value, size_of

#: Maximum time of a problem's race.
_MAX_RACE_SECONDS = 60.0
#: Minimum time of a problem's race.
_MIN_RACE_SECONDS = 2.0
#: Longest race on any backend but CUDA, as a share of the effort's time per problem. Times vary more there;
#: more rounds would take longer than the search and improve little.
_UNSTEADY_SHARE = 1 / 20
#: Number of finalists that are verified even if no time is left.
_MIN_FINALISTS = 3

#: Folders of the data sets of one problem. Finals of several problems share the checks on odd sizes.
_Data: TypeAlias = tuple[Path, ...]
#: The key of a check: the data, a configuration, and whether two launches run at once.
_CheckKey: TypeAlias = tuple[_Data, Configuration, bool]


@dataclass(frozen=True)
class Finals:
    """The finals of one run."""

    bench: Bench
    #: The store of disqualified configurations.
    store: Store
    run_id: int
    listener: Listener
    #: Path of compute-sanitizer; empty if finalists do not run under it.
    sanitizer: str = ""
    #: Results of verification so far.
    _known: dict[_CheckKey, Measurement] = field(default_factory=dict)
    #: Failures of rivals by data and name; see `autotune.kernel.declaration.Baseline`.
    _failed_rivals: dict[tuple[_Data, str], str] = field(default_factory=dict)
    #: Kernels for which the run has warned of refused sizes; see `autotune.run.other_sizes`.
    _warned: set[str] = field(default_factory=set)
    #: Findings of compute-sanitizer by configuration and static fields; None if it found no fault.
    _faults: dict[tuple[Configuration, tuple[Value, ...]], str | None] = field(default_factory=dict)

    def expect(self, problem: Problem, measured: Sequence[Measurement]) -> None:
        """Let compilers start on the binaries for other layouts that the next finals need."""
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
    ) -> tuple[Race | None, tuple[Measurement, ...]]:
        """Verify the best on other data and other sizes, then race them with the vendor's calls.

        If all finalists are wrong or fail in the race, the next best configurations follow.

        Recorded winners are verified first and take part in the race, even if they were slow in the
        search. A configuration thus replaces a recorded winner only if it is faster in the same race, or
        if the recorded winner is wrong.

        Verification may take half of the time; after that only the `_MIN_FINALISTS` best are verified.
        The rest, at least `_MIN_RACE_SECONDS`, is for the race. The time of compute-sanitizer does not
        count for the budget. ``meanwhile`` is called before the race, in which compilers are idle.

        Return the race, or None if no configuration is correct, and the rows of configurations that were
        wrong or failed. The store has these rows.
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
        sizes = OtherSizes(self.bench, problem, known, check, self._warned)
        effort, begun_s = self.bench.request.effort, self.bench.clock_s()
        unsteady_s = _UNSTEADY_SHARE * effort.seconds_per_problem
        most_race_s = _MAX_RACE_SECONDS if self.bench.device.is_cuda else unsteady_s
        recorded = self.bench.request.recorded.get(problem, ())
        out: list[Measurement] = []
        result = None
        while left and result is None:
            winners = [row for row in left if row.configuration in recorded]
            first = verdict.candidates(winners, len(winners))
            chosen = verdict.candidates(left, effort.finalists, repeats)
            chosen = [row for row in chosen if row not in first]
            # The best deterministic configuration is verified even if there is little time.
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
                race_s = min(most_race_s, max(_MIN_RACE_SECONDS, left_s))
                vendors = self._vendors(others)
                result, failed = self._raced(job, [*finalists, *vendors], race_s)
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
        """Verify finalists on other inputs, on odd sizes and on sizes near the problem.

        Return correct finalists, rows of wrong ones, and rows of those not verified before ``until``.
        """
        kernel = self.bench.kernel
        correct, wrong, unverified = list[Contender](), list[Measurement](), list[Measurement]()
        for row in chosen:
            binary = self.bench.compiled(row.configuration, problem).binary
            if binary is None:
                message = "it compiled in the search, but not in the finals"
                wrong.append(replace(row, status=Status.COMPILE_FAILED, message=message))
                continue
            repeats = kernel.is_deterministic(row.configuration, problem)
            correct.append(Contender(row.configuration, binary, row=row, deterministic=repeats))
        twice = {found.configuration: self._twice(found, others) for found in correct}
        # Submit all other layouts now, so that compilers work on them at once.
        ahead = correct[:_MIN_FINALISTS] if self.bench.clock_s() > until else correct
        for job, finalist in product(others, ahead):
            at_once = job in twice[finalist.configuration]
            is_new = _key(job, finalist, at_once) not in self._known
            is_same = kernel.shares_binary(job.problem, problem)
            if is_new and self._is_allowed(finalist, job) and not is_same:
                self.bench.compilers.submit(
                    self.bench.compile_job(finalist.configuration, job.problem)
                )
        for job in others:  # job by job, since the data of a job must be uploaded
            passed: list[Contender] = []
            for finalist in correct:
                if not self._is_allowed(finalist, job):
                    # lookup, header and load do not use it on such a problem
                    passed.append(finalist)
                    continue
                at_once = job in twice[finalist.configuration]
                has_enough = len(passed) >= _MIN_FINALISTS and self.bench.clock_s() > until
                if has_enough and _key(job, finalist, at_once) not in self._known:
                    assert finalist.row is not None
                    unverified.append(finalist.row)
                    continue
                found = self._checked(finalist, job, at_once)
                if found.status is Status.OK:
                    passed.append(finalist)
                else:
                    wrong.append(found)
            correct = passed
        self.bench.compilers.drop()  # compilations queued for finalists that were not verified
        correct, wrong_at_sizes = sizes.verified(correct)
        wrong += wrong_at_sizes
        safe, unsafe = self._sanitized(problem, correct) if self.sanitizer else (correct, [])
        return safe, [*wrong, *unsafe], unverified

    def _is_allowed(self, finalist: Contender, job: Job) -> bool:
        return self.bench.kernel.allows(finalist.configuration, job.problem)

    def _twice(self, finalist: Contender, others: Sequence[Job]) -> list[Job]:
        """Return the jobs on which two launches run at once: the problem, and on a GPU the largest odd size."""
        if self.bench.kernel.is_exclusive(finalist.configuration):
            return []
        *odd, own = others
        allowed = [job for job in odd if self._is_allowed(finalist, job)]
        largest = sorted(allowed, key=lambda job: size_of(job.problem))[-1:]
        return [*largest, own] if self.bench.device.is_cuda else [own]

    def _checked(self, finalist: Contender, job: Job, at_once: bool) -> Measurement:
        """Verify a finalist on a job and remember the result; ``at_once``: also with two launches at once."""
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
                f"its launches share state: two launches at once on {job.problem}: {twice.message}; "
                f"declare @{kernel.name}.exclusive if its launches must not overlap"
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
        """Return finalists without a finding of compute-sanitizer, and rows of the other finalists.

        Problems with the same static fields share findings.
        """
        static = self.bench.kernel.static_of(problem)
        configurations = [finalist.configuration for finalist in finalists]
        unknown = [c for c in configurations if (c, static) not in self._faults]
        if unknown:
            self.listener(Phase(problem, "sanitizer"))
            with self.bench.off_budget():
                found = self._faults_of(problem, unknown)
            self.listener(Phase(problem, "finals"))
            self._faults.update({(c, static): found.get(c) for c in unknown})
        faults = {c: self._faults[c, static] for c in configurations}
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
        """Run configurations under compute-sanitizer on small problems; warn of missing checks."""
        bench = self.bench
        trials = []
        for configuration in configurations:
            for small in sanitize.small_problems(
                bench.kernel, configuration, problem, bench.device
            ):
                job = bench.compile_job(configuration, small)
                # With this option a finding names the line; the machine code is the same.
                with_lines = replace(job, options=(*job.options, "-lineinfo"))
                binary = bench.compilers.result(with_lines).binary
                if binary is not None:
                    made = bench.job(small, bench.request.seed + 1)
                    trials.append(sanitize.Trial(made, configuration, binary))
        faults, remarks = sanitize.find_faults(self.sanitizer, trials)
        for text in remarks:
            warnings.warn(f"{bench.kernel.name}: compute-sanitizer: {text}", stacklevel=2)
        return faults

    # ------------------------------------------------------------------ the vendors' calls

    def _vendors(self, others: Sequence[Job]) -> list[Contender]:
        """Return the vendor's calls for this backend, without rivals that are wrong on one of the jobs."""
        kernel, vendors = self.bench.kernel, []
        for call in kernel.baselines:
            vendor = Contender(
                vendor=call.name, answers=call.answers, deterministic=call.deterministic
            )
            if call.backend == self.bench.device.backend and all(
                self._is_correct(job, vendor) for job in others if call.answers
            ):
                vendors.append(vendor)
        return vendors

    def _is_correct(self, job: Job, rival: Contender) -> bool:
        """Return whether a rival is correct on a job, or does not support its problem; warn if it is wrong."""
        key = _data_of(job), rival.vendor
        if key not in self._failed_rivals:
            # A race without rounds verifies its contenders.
            rules = RaceRules(0, self.bench.request.seed, _MIN_RACE_SECONDS)
            failures = race(self.bench.worker, job, [rival], rules).failures
            self._failed_rivals[key] = failures[0].message if failures else ""
        if message := self._failed_rivals[key]:
            warnings.warn(
                f"{self.bench.kernel.name}: {rival.vendor} is left out: on {job.problem} with other inputs: "
                f"{message}",
                stacklevel=2,
            )
        return not message

    # ------------------------------------------------------------------ the race

    def _raced(
        self, job: Job, contenders: Sequence[Contender], seconds: float
    ) -> tuple[Race | None, list[Measurement]]:
        request, kernel, problem = self.bench.request, self.bench.kernel, job.problem
        rules = RaceRules(
            request.effort.rounds,
            request.seed,
            seconds,
            windows=request.effort.windows if request.objective.needs_energy else 0,
            finals=True,
        )
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
        is_timed = any(
            samples.times_ms and contender.row
            for contender, samples in zip(contenders, done.samples, strict=True)
        )
        return done if is_timed else None, failed


def _key(job: Job, finalist: Contender, at_once: bool) -> _CheckKey:
    return _data_of(job), finalist.configuration, at_once


def _data_of(job: Job) -> _Data:
    return tuple(dataset.folder for dataset in job.datasets)
