"""The finals of a run: the best verified again, and raced with the vendor.

Measures and records rows; who won is `selection`'s to say.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TypeAlias

from autotune.devices.binary import Binary
from autotune.errors import AutotuneError, FleetError
from autotune.measure.cache import use_up
from autotune.measure.compiler import CompileJob, compile_job
from autotune.measure.evaluator import DeviceEvaluator
from autotune.measure.measurement import Energy, Measurement, Status
from autotune.measure.objective import EDP, ENERGY, Scoring
from autotune.measure.racing import race
from autotune.measure.tasks import Contender, Job
from autotune.run import selection
from autotune.run.bench import Bench
from autotune.search.session import Listener, Phase
from autotune.store import Store
from autotune.values import Configuration, size_of

#: Longest and shortest time of a problem's race.
_RACE_SECONDS, _LEAST_RACE_SECONDS = 60.0, 2.0
#: Share of an effort's time per problem that a race gets at most where times are not steady: there
#: rounds that take longer than a whole search tell little more.
_UNSTEADY_SHARE = 1 / 20
#: Finalists that are verified, however little time there is.
_LEAST_FINALISTS = 3
#: Finalists that race again on a second device, and for how long at most: this share of the race, or this.
_REPEATED, _REPEAT_SHARE, _REPEAT_SECONDS = 4, 0.2, 10.0
#: Launches that take longer on a CPU are not run twice at once where shorter ones will do.
_LONG_MS = 0.3

#: The data, which are of one problem; what runs on them; and whether twice at once.
_TrialKey: TypeAlias = tuple[tuple[Path, ...], Configuration, bool]


@dataclass(frozen=True)
class _Finalist:
    """One that entered the finals, and what it runs."""

    measurement: Measurement
    binary: Binary

    @property
    def configuration(self) -> Configuration:
        return self.measurement.configuration


@dataclass(frozen=True)
class _Trial:
    """One thing that a finalist has to pass: to be right on a job, perhaps twice at once."""

    #: Of the finalist, by the search.
    measurement: Measurement
    job: Job
    #: What it runs; None where other fields are compiled in than for the problem of the finals.
    binary: Binary | None
    at_once: bool

    @property
    def key(self) -> _TrialKey:
        """The same in the finals of every problem that has this job's for an odd size."""
        folders = tuple(dataset.folder for dataset in self.job.datasets)
        return folders, self.measurement.configuration, self.at_once


@dataclass(frozen=True)
class Finals:
    """The finals of one run."""

    bench: Bench
    #: Where rows of disqualified configurations go.
    store: Store
    run_id: int
    listener: Listener
    #: What came of trials so far. On an odd size a configuration is the same binary, and has the same
    #: data, in the finals of every problem.
    _known: dict[_TrialKey, Measurement] = field(default_factory=dict)

    def expect(self, evaluator: DeviceEvaluator, measured: Sequence[Measurement]) -> None:
        """Have compilers begin with what another problem's finals need for arrays that lie otherwise."""
        if not evaluator.compiles_ahead:
            return
        kernel, device, problem = self.bench.kernel, self.bench.device, evaluator.job.problem
        tried = {configuration for _, configuration, _ in self._known}
        best = selection.candidates(measured, self.bench.request.effort.finalists)
        needed = {
            (row.configuration, kernel.static_of(edge)): edge
            for row in best
            for edge in kernel.edges_beside(problem, device)
            if row.configuration not in tried and kernel.allows(row.configuration, edge)
        }
        self.bench.compilers.suggest(
            compile_job(kernel, configuration, edge, device)
            for (configuration, compiled_in), edge in needed.items()
            if compiled_in != kernel.static_of(problem)
        )

    def hold(
        self,
        evaluator: DeviceEvaluator,
        measured: Sequence[Measurement],
        seconds: float | None,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> tuple[selection.Decision | None, tuple[Measurement, ...]]:
        """Verify the best again on other data and odd sizes, then race them and the vendor.

        Where all finalists turn out to be wrong, or fail in the race, the next best take their
        places; where those that are deterministic do, the next of such.

        Half of the time is for verifying, after which only the `_LEAST_FINALISTS` best are still
        verified, and one that is deterministic; the rest, but at least `_LEAST_RACE_SECONDS`, for the
        race.

        ``meanwhile`` is called before a race, which leaves compilers idle.

        Returns the decision, None where nothing is right, and those that turned out to be wrong, or
        failed; their rows are in the store.

        Raises
        ------
        AutotuneError
            If the device process fails.
        """
        count = self.bench.request.effort.finalists
        left = selection.candidates(measured, len(measured))
        promises = partial(self.bench.kernel.is_deterministic, p=evaluator.job.problem)
        others: list[Job] = []
        if left:
            self.listener(Phase(evaluator.job.problem, "other inputs"))
            others = self.bench.other_jobs(evaluator.job)
            self.listener(Phase(evaluator.job.problem, "finals"))
        end = math.inf if seconds is None else self.bench.clock_s() + seconds
        out: list[Measurement] = []
        result = None
        while left and result is None:
            chosen = selection.candidates(left, count, promises)
            left = [row for row in left if row not in chosen]
            verify_until = end if seconds is None else end - seconds / 2
            finalists, wrong, unverified = self._verified(evaluator, chosen, others, verify_until)
            left += unverified
            for _ in range(_LEAST_FINALISTS):  # though there be no time
                if not finalists or any(promises(each.configuration) for each in finalists):
                    break
                repeating = [row for row in left if promises(row.configuration)]
                if not repeating:
                    break
                spare = selection.candidates(repeating, 1)
                left = [row for row in left if row not in spare]
                more, more_wrong, _ = self._verified(evaluator, spare, others, verify_until)
                finalists, wrong = [*finalists, *more], [*wrong, *more_wrong]
            if finalists:
                meanwhile()
                race_s = min(
                    self._most_race_s, max(_LEAST_RACE_SECONDS, end - self.bench.clock_s())
                )
                result, failed = self._raced(evaluator, finalists, race_s)
                wrong = [*wrong, *failed]
            self.store.add_many(self.run_id, self.bench.scope(evaluator.job.problem), wrong)
            out += wrong
        made = {dataset.folder: dataset for job in others for dataset in job.datasets}
        for dataset in made.values():
            if dataset not in evaluator.job.datasets:
                use_up(dataset.folder)  # its own will be needed for the portfolio
        return result, tuple(out)

    @property
    def _most_race_s(self) -> float:
        if self.bench.device.times_steadily:
            return _RACE_SECONDS
        return _UNSTEADY_SHARE * self.bench.request.effort.seconds_per_problem

    def _verified(
        self,
        evaluator: DeviceEvaluator,
        chosen: Sequence[Measurement],
        others: Sequence[Job],
        until: float,
    ) -> tuple[list[_Finalist], list[Measurement], list[Measurement]]:
        """Finalists that are right on other inputs and odd sizes; those that are not; the rest.

        The rest had no turn before ``until``.
        """
        binaries = [(row, evaluator.binary(row.configuration)) for row in chosen]
        right = [_Finalist(row, binary) for row, binary in binaries if binary is not None]
        wrong = [
            replace(row, status=Status.COMPILE_FAILED, message="compiled before, but not again")
            for row, binary in binaries
            if binary is None
        ]
        unverified: list[Measurement] = []
        trials = {finalist.configuration: self._trials(finalist, others) for finalist in right}
        # What lies otherwise, ahead, so that it is compiled at once; only of those that have a turn.
        ahead = right[:_LEAST_FINALISTS] if self.bench.clock_s() > until else right
        for place, finalist in product(range(len(others)), ahead):
            trial = trials[finalist.configuration].get(place)
            if trial and trial.binary is None and trial.key not in self._known:
                self.bench.compilers.submit(self._compile_job(trial))
        for place in range(len(others)):  # job by job: the data of each have to be uploaded
            passed: list[_Finalist] = []
            for finalist in right:
                its = trials[finalist.configuration].get(place)
                if its is None:
                    passed.append(finalist)  # lookup, header and load keep it from such a problem
                    continue
                has_enough = len(passed) >= _LEAST_FINALISTS and self.bench.clock_s() > until
                if has_enough and its.key not in self._known:
                    unverified.append(finalist.measurement)
                    continue
                again = self._tried(its)
                if again.status is Status.OK:
                    passed.append(finalist)
                else:
                    wrong.append(again)
            right = passed
        self.bench.compilers.drop()  # those of who had no turn
        return right, wrong, unverified

    def _trials(self, finalist: _Finalist, others: Sequence[Job]) -> dict[int, _Trial]:
        """What a finalist has to pass, by the place of its job among the others."""
        kernel, (*_, own) = self.bench.kernel, others
        configuration = finalist.configuration
        allowed = {
            place: job
            for place, job in enumerate(others)
            if kernel.allows(configuration, job.problem)
        }
        small = [job for job in allowed.values() if job is not own]
        twice = [] if kernel.is_exclusive(configuration) else self._at_once(finalist, small, own)
        compiled_in = kernel.static_of(own.problem)
        return {
            place: _Trial(
                finalist.measurement,
                job,
                finalist.binary if kernel.static_of(job.problem) == compiled_in else None,
                job in twice,
            )
            for place, job in allowed.items()
        }

    def _at_once(self, finalist: _Finalist, small: Sequence[Job], own: Job) -> list[Job]:
        """The jobs on which a finalist is run twice at once: the largest odd size, and the problem.

        A CPU, on which little meets in small ones and large ones take long, has one of the two.
        """
        largest = sorted(small, key=lambda job: size_of(job.problem))[-1:]
        if self.bench.device.leaves_host_free:
            return [*largest, own]
        is_long = (finalist.measurement.median_ms or 0.0) > _LONG_MS
        return largest if largest and is_long else [own]

    def _tried(self, trial: _Trial) -> Measurement:
        """What comes of a trial; where another problem's finals had it, what came of it there."""
        if trial.key in self._known:
            return self._known[trial.key]
        binary = trial.binary
        if binary is None:
            compiled = self.bench.compilers.result(self._compile_job(trial))
            if compiled.binary is None:
                message = f"on {trial.job.problem}: {compiled.message}"
                return replace(trial.measurement, status=Status.COMPILE_FAILED, message=message)
            binary = compiled.binary
        found = self._checked(trial.job, trial.measurement.configuration, binary, trial.at_once)
        self._known[trial.key] = found
        return found

    def _checked(
        self, job: Job, configuration: Configuration, binary: Binary, at_once: bool
    ) -> Measurement:
        """Verify a configuration on a job, and run it twice at once there."""
        kernel, worker = self.bench.kernel, self.bench.worker
        alone = worker.check(job, configuration, binary)
        if alone.status is not Status.OK:
            message = f"on {job.problem} with other inputs: {alone.message}"
            return replace(alone, message=message)
        if not at_once:
            return alone
        twice = worker.check_at_once(job, configuration, binary)
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

    def _compile_job(self, trial: _Trial) -> CompileJob:
        configuration, problem = trial.measurement.configuration, trial.job.problem
        return compile_job(self.bench.kernel, configuration, problem, self.bench.device)

    def _raced(
        self, evaluator: DeviceEvaluator, finalists: Sequence[_Finalist], seconds: float
    ) -> tuple[selection.Decision | None, list[Measurement]]:
        """Race finalists and the vendor's calls, interleaved; who fails is out."""
        request, kernel = self.bench.request, self.bench.kernel
        vendors = [call.name for call in kernel.baselines if call.backend == request.device.backend]
        contenders = [
            *(Contender(finalist.configuration, finalist.binary) for finalist in finalists),
            *(Contender(Configuration(), None, name) for name in vendors),
        ]
        worker, rounds = self.bench.worker, request.effort.rounds
        windows = request.effort.windows if request.objective.needs_energy else 0
        raced = worker.have(
            race,
            evaluator.job,
            contenders,
            rounds,
            request.seed,
            seconds,
            windows=windows,
            finals=True,
        )
        ours = len(finalists)
        failed = []
        for place, failure in raced.failures.items():
            if place < ours:
                message = f"in the finals: {failure.message}"
                row = finalists[place].measurement
                failed.append(replace(row, status=failure.status, message=message))
            else:
                warnings.warn(
                    f"{kernel.name} ({evaluator.job.problem}): no ratio to "
                    f"{vendors[place - ours]}, which failed: {failure.message}",
                    stacklevel=2,
                )
        scoring = self.bench.scoring(evaluator.job.problem)
        unknown = Measurement(Configuration(), Status.OK)
        timed = [
            replace(
                _timed(finalist.measurement, samples, energies, scoring),
                clean_ms=clean_ms,
                hot_ms=hot_ms,
                deterministic=kernel.is_deterministic(
                    finalist.configuration, evaluator.job.problem
                ),
                identical_runs=runs,
            )
            for finalist, samples, clean_ms, hot_ms, energies, runs in zip(
                finalists,
                raced.samples_ms,
                raced.clean_ms,
                raced.hot_ms,
                raced.energies,
                raced.identical_runs,
                strict=False,
            )
            if samples
        ]
        if not timed:
            return None, failed
        by_vendor = dict(zip(vendors, raced.samples_ms[ours:], strict=True))
        result = selection.decide(timed, by_vendor, request.seed)
        return replace(
            result,
            repeat=self._repeated(evaluator.job, result, finalists, seconds),
            vendor_clean_ms=dict(zip(vendors, raced.clean_ms[ours:], strict=True)),
            vendor_hot_ms=dict(zip(vendors, raced.hot_ms[ours:], strict=True)),
            vendor_energies=dict(zip(vendors, raced.energies[ours:], strict=True)),
            vendor_costs={
                name: scoring.costs(unknown, samples, energies)
                for name, samples, energies in zip(
                    vendors, raced.samples_ms[ours:], raced.energies[ours:], strict=True
                )
                if samples and request.objective in (ENERGY, EDP)
            },
            launched_by=raced.launched_by,
            clocks=raced.clocks,
        ), failed

    def _repeated(
        self,
        job: Job,
        result: selection.Decision,
        finalists: Sequence[_Finalist],
        seconds: float,
    ) -> selection.Repeat | None:
        """Race the best again on a second device; None where there is none, or it fails.

        Nobody wins or loses by that: it says how far two devices of the model are apart.
        """
        second = self.bench.site.second(self.bench.request, self.bench.workers)
        if second is None:
            return None
        device, worker = second
        binaries = {finalist.configuration: finalist.binary for finalist in finalists}
        best = [found.measurement.configuration for found in result.finalists[:_REPEATED]]
        contenders = [Contender(configuration, binaries[configuration]) for configuration in best]
        race_s = min(_REPEAT_SECONDS, _REPEAT_SHARE * seconds)
        rounds, seed = self.bench.request.effort.rounds, self.bench.request.seed
        try:
            there = replace(job, device=device)
            raced = worker.have(race, there, contenders, rounds, seed, race_s)
        except FleetError:
            raise
        except AutotuneError as error:
            warnings.warn(
                f"{self.bench.kernel.name} ({job.problem}): the finals were not repeated on "
                f"{device.name} {device.uuid}: {error}",
                stacklevel=2,
            )
            return None
        samples = zip(best, raced.samples_ms, strict=True)
        return selection.Repeat(device.uuid, {chosen: taken for chosen, taken in samples if taken})


def _timed(
    measurement: Measurement,
    samples_ms: tuple[float, ...],
    energies: tuple[Energy, ...],
    scoring: Scoring,
) -> selection.Finalist:
    """A finalist with what each of its rounds cost."""
    costs = () if scoring.objective.is_time else scoring.costs(measurement, samples_ms, energies)
    return selection.Finalist(measurement, samples_ms, costs=costs, energies=energies)
