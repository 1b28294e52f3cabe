"""Searches one problem: prepares its data, first configurations and evaluator."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from autotune.answers.table import distance, place_of
from autotune.devices.device import Device
from autotune.errors import NoAnswerError, UsageError
from autotune.interop.exchange import configurations_to_try
from autotune.kernel.space import Space
from autotune.kernel.spec import Kernel
from autotune.measure.evaluator import PER_DEVICE, DeviceEvaluator
from autotune.measure.measurement import Measurement
from autotune.measure.worker_state import Job
from autotune.run import verdict
from autotune.run.bench import Bench, stopping_rule
from autotune.run.late import LateVerifier
from autotune.run.request import VerifyOne
from autotune.run.starting import of_records
from autotune.search.base import MIN_RESULTS, Outlook, RelatedProblem, is_measured_whole
from autotune.search.session import Budget, Listener, Phase, SearchSession, number_in, search
from autotune.search.strategies import Strategy, find, in_given_order
from autotune.store import Store
from autotune.tuned.lookup import lookup
from autotune.tuned.merged import DEFAULT
from autotune.values import Configuration, Problem

#: Number of problems, nearest by size, whose winners are tried first on the next problem.
_NEAR_PROBLEMS = 8
#: Factor between two sizes at a distance of 1, as a power of two.
_OCTAVES = 4
#: Factor between the powers of two that divide two sizes at a distance of 1, as a power of two.
_TWOS = 4
#: Difference between the seeds of two searches that run at once.
_SEED_STEP = 1 << 32


@dataclass(frozen=True)
class SearchedProblem:
    """The result of a problem's search, before its finals."""

    problem: Problem
    #: The job with its data, for the first device that measured.
    job: Job
    #: Measurements of the search, new or remembered, by number, in order.
    measurements: Mapping[int, Measurement]
    #: Measurements from which the finals choose, new or remembered.
    choice: tuple[Measurement, ...]
    seconds: float
    #: See `SearchSession.ended_by`.
    ended_by: str
    #: Numbers of compiled configurations, measured or not.
    compiled: frozenset[int]
    #: For each configuration, a key that is equal for equal binaries and launches.
    twins: Mapping[Configuration, str] = field(default_factory=dict)
    #: Number of searches, including continued ones.
    searches: int = 1
    #: Gain that a strategy with a model expects from a longer search.
    outlook: Outlook | None = None
    #: Measurements of earlier runs that this search did not need.
    remembered: tuple[Measurement, ...] = ()

    def job_on(self, device: Device) -> Job:
        """Return the job for a device, which may be another one than that of the search."""
        return self.job if device == self.job.device else replace(self.job, device=device)

    @property
    def measured(self) -> tuple[Measurement, ...]:
        """Measurements in the order of the search, then the remembered ones that it did not need."""
        return (*self.measurements.values(), *self.remembered)


@dataclass(frozen=True)
class ProblemSearch:
    """Searches the problems of one run."""

    bench: Bench
    store: Store
    run_id: int
    listener: Listener
    #: Number among the searches that run at once, which have different seeds.
    number: int = 0

    def search(
        self, problem: Problem, space: Space, budget: Budget, before: Sequence[SearchedProblem]
    ) -> SearchedProblem:
        """Search one problem, beginning with the winners of the nearest problems in ``before``.

        If ``before`` contains a search of this problem, continue that search.
        """
        bench = self.bench
        begun, begun_s = time.monotonic(), bench.clock_s()
        earlier, others = _earlier_and_others(problem, before)
        first = self._first(problem, space, earlier, others)
        self.listener(Phase(problem, "inputs"))
        bench.start()
        if bench.device.is_cuda:  # compilers work while inputs are made and uploaded
            self._suggest(problem, space, budget, first)
        waiting = partial(self.listener, Phase(problem, "reference"))
        job, made = bench.job_to_search(problem, waiting)
        bench.worker.prepare(job)
        spent_s = bench.clock_s() - begun_s
        with self._evaluator(job) as evaluator:
            verifier = LateVerifier(bench, evaluator, made)
            session = self._session(
                problem, space, evaluator, verifier, _less(budget, spent_s), before
            )
            for measurement in session.measurements.values():
                evaluator.recall(measurement)
            seed = bench.request.seed + len(session.measurements) + _SEED_STEP * self.number
            search(session, self._strategy(budget), seed, first)
            while session.finish(bench.request.effort.finalists):
                search(session, self._strategy(budget), seed)
        bench.compilers.drop()
        return SearchedProblem(
            problem,
            evaluator.job,
            session.measurements,
            tuple(session.known()),
            time.monotonic() - begun + (earlier.seconds if earlier else 0.0),
            session.ended_by,
            frozenset(session.measurements).union(session.awaited.values()),
            {**(earlier.twins if earlier else {}), **evaluator.twins},
            earlier.searches + 1 if earlier else 1,
            session.outlook,
            tuple(session.remembered()),
        )

    def _first(
        self,
        problem: Problem,
        space: Space,
        earlier: SearchedProblem | None,
        others: Sequence[SearchedProblem],
    ) -> list[Configuration]:
        """Return the configurations to measure first."""
        goal = self.bench.request.goal
        if isinstance(goal, VerifyOne):
            goal.require_member(self.bench.kernel, self.bench.device, space)
            return [goal.configuration]
        return [] if earlier else self._known(problem, others)

    def _suggest(
        self, problem: Problem, space: Space, budget: Budget, first: Sequence[Configuration]
    ) -> None:
        """Give the first configurations to compilers; of a small space, all configurations."""
        bench = self.bench
        numbers = [number_in(space, configuration) for configuration in first]
        numbers += range(len(space)) if self._is_whole(space, budget) else ()
        valid = (space.configuration(n) for n in dict.fromkeys(numbers) if n is not None)
        bench.compilers.suggest(
            bench.compile_job(configuration, problem)
            for configuration in valid
            if bench.kernel.allows(configuration, problem)
        )

    def _evaluator(self, job: Job) -> DeviceEvaluator:
        bench = self.bench
        return DeviceEvaluator(
            bench.kernel,
            job,
            bench.compilers,
            bench.worker,
            stopping_rule(bench.device),
            zip(bench.request.others, bench.workers[1:], strict=True),
        )

    def _session(
        self,
        problem: Problem,
        space: Space,
        evaluator: DeviceEvaluator,
        verifier: LateVerifier,
        budget: Budget,
        before: Sequence[SearchedProblem],
    ) -> SearchSession:
        bench = self.bench
        earlier, others = _earlier_and_others(problem, before)
        features, *theirs = coordinates([problem, *(found.problem for found in others)])
        return SearchSession(
            space=space,
            evaluator=evaluator,
            verifier=verifier,
            store=self.store,
            run_id=self.run_id,
            scope=bench.scope(problem),
            budget=budget,
            listener=self.listener,
            fresh=bench.request.goal.fresh,
            others=bench.site.remembered(bench.request),
            objective=bench.request.objective,
            problem_features=features,
            related=[
                RelatedProblem(place, found.measurements)
                for place, found in zip(theirs, others, strict=True)
            ],
            compiled=frozenset[int]().union(*(found.compiled for found in before)),
            measurements=dict(earlier.measurements) if earlier else {},
        )

    def _known(self, problem: Problem, before: Sequence[SearchedProblem]) -> list[Configuration]:
        kernel = self.bench.kernel
        return [
            *self.bench.request.recorded.get(problem, ()),
            *recorded(kernel, self.bench.device, problem),
            *configurations_to_try(problem, self.bench.request.goal.imported),
            *winners_near(problem, before),
            kernel.default(),
            *map(kernel.completed, kernel.seeds),
            *of_records(kernel, self.bench.device),
        ]

    def _is_whole(self, space: Space, budget: Budget) -> bool:
        """Return whether a GPU measures the whole space, and compilers can begin with all of it."""
        if isinstance(self.bench.request.goal, VerifyOne) or len(space) > 2 * MIN_RESULTS:
            return False
        return is_measured_whole(len(space), budget.evaluations, compiles_meanwhile=True)

    def _strategy(self, budget: Budget) -> Strategy:
        request = self.bench.request
        goal = request.goal
        if isinstance(goal, VerifyOne):
            return in_given_order([])
        others = len(request.others)
        at_once = PER_DEVICE * (1 + others) if others else 1
        # Under a budget of evaluations the next proposal waits for the last result. A CPU cannot compile
        # and measure at once.
        is_time_scarce = budget.evaluations is None and self.bench.device.is_cuda
        ahead = self.bench.compilers.processes + PER_DEVICE if is_time_scarce else 1
        return find(goal.strategy, at_once, max(at_once, ahead), goal.strategy_options)


def _earlier_and_others(
    problem: Problem, before: Sequence[SearchedProblem]
) -> tuple[SearchedProblem | None, list[SearchedProblem]]:
    """Return the earlier search of a problem, and the searches of other problems."""
    earlier = next((found for found in before if found.problem == problem), None)
    return earlier, [found for found in before if found is not earlier]


def _less(budget: Budget, spent_s: float) -> Budget:
    """Return the rest of a budget, at least 1 s."""
    seconds = None if budget.seconds is None else max(1.0, budget.seconds - spent_s)
    return Budget(seconds, budget.evaluations)


def recorded(kernel: Kernel, device: Device, problem: Problem) -> list[Configuration]:
    """Return a list with the configuration that lookup answers for a problem; empty without a record."""
    try:
        found = lookup(kernel.name, device=device, project=kernel.project, **problem)
    except (UsageError, NoAnswerError):  # also for a record of a kernel with other fields
        return []
    return [] if found.quality == DEFAULT else [Configuration(found)]


def coordinates(problems: Sequence[Problem]) -> list[tuple[float, ...]]:
    """Return coordinates of problems; see `RelatedProblem.features`.

    Coordinates that are equal for all problems are left out, which saves time.
    """
    columns = list[Sequence[float]]()
    for name, own in problems[0].items():
        values = [problem[name] for problem in problems]
        if isinstance(own, str):
            columns.append([float(value != own) for value in values])
        else:
            sizes = [max(1, abs(int(value))) for value in values]
            twos = [(size & -size).bit_length() - 1 for size in sizes]
            columns.append([math.log2(size) / _OCTAVES for size in sizes])
            columns.append([min(two, _TWOS) / _TWOS for two in twos])
    kept = [column for column in columns if len(set(column)) > 1]
    return [tuple(column[i] for column in kept) for i in range(len(problems))]


def winners_near(problem: Problem, before: Sequence[SearchedProblem]) -> list[Configuration]:
    """Return the winners of the `_NEAR_PROBLEMS` nearest problems, each once."""
    nearest = sorted(before, key=lambda other: _apart(problem, other.problem))[:_NEAR_PROBLEMS]
    best = [row for other in nearest for row in verdict.candidates(other.choice, 1)]
    return list(dict.fromkeys(row.configuration for row in best))


def _apart(problem: Problem, other: Problem) -> float:
    steps = distance(place_of(tuple(problem.values())), place_of(tuple(other.values())))
    return math.inf if steps is None else steps
