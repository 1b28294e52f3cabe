"""The search of one problem: its data, its first configurations, its devices."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice

import numpy as np

from autotune.errors import AutotuneError
from autotune.interop.exchange import first_on
from autotune.kernel.space import Space
from autotune.measure.evaluator import PER_DEVICE, DeviceEvaluator, nothing
from autotune.measure.measurement import Measurement
from autotune.run import verdict
from autotune.run.bench import Bench, stopping_rule
from autotune.run.transfer import (
    OtherDevices,
    drop_constant_features,
    problem_features,
    recorded_winners,
)
from autotune.search.base import AtHand, BudgetSpent, Outlook, RelatedProblem, Tell
from autotune.search.names import Strategy
from autotune.search.session import Budget, Listener, Phase, SearchSession, number_in, search
from autotune.store import Store
from autotune.tuned.table import distance, place_of
from autotune.values import Configuration, Problem

#: Of other devices' best so many are tried on the first problem, and on later ones.
_OF_OTHERS, _OF_OTHERS_LATER = 8, 2
#: The winners of so many problems, those nearest by size, are tried first on the next.
_NEAR_PROBLEMS = 8


@dataclass(frozen=True)
class SearchedProblem:
    """A problem after its search and before its finals."""

    problem: Problem
    space: Space
    evaluator: DeviceEvaluator
    #: Measured or recalled by the search, by number, in order.
    asked: Mapping[int, Measurement]
    #: Configurations that the finals choose from: measured now or remembered.
    choice: tuple[Measurement, ...]
    seconds: float
    #: See `SearchSession.ended_by`.
    ended_by: str
    #: Numbers of configurations given to compilers, measured or not.
    compiled: frozenset[int]
    #: How often it was searched.
    searches: int = 1
    #: Gain that the strategy expects of a longer search, where it has a model.
    outlook: Outlook | None = None

    @property
    def measured(self) -> tuple[Measurement, ...]:
        """Measurements in the order of the search."""
        return tuple(self.asked.values())


@dataclass(frozen=True)
class ProblemSearch:
    """Searches the problems of one run."""

    bench: Bench
    store: Store
    run_id: int
    listener: Listener

    @cached_property
    def devices(self) -> OtherDevices:
        """Measurements of other devices."""
        return OtherDevices(self.bench.kernel.name, self.bench.device, self.store)

    @cached_property
    def recorded(self) -> dict[Problem, list[Configuration]]:
        """Winners on this device by its records."""
        return recorded_winners(self.bench.kernel.name, self.bench.device)

    def search(
        self, problem: Problem, space: Space, budget: Budget, before: Sequence[SearchedProblem]
    ) -> SearchedProblem:
        """Search one problem, beginning with the winners of the nearest problems searched before.

        Where this problem was searched ``before``, its search goes on.
        """
        bench = self.bench
        begun, begun_s = time.monotonic(), bench.clock_s()
        earlier = next((found for found in before if found.problem == problem), None)
        others = [found for found in before if found is not earlier]
        asked = dict(earlier.asked) if earlier else {}
        goal, known = bench.request.goal, partial(self._known, problem, others)
        first = [] if earlier else goal.first(bench.kernel, bench.device, space, known)
        features, related = drop_constant_features(
            problem_features(problem, problem),
            [RelatedProblem(problem_features(o.problem, problem), o.asked) for o in others],
        )
        compiled = frozenset[int]().union(*(found.compiled for found in before))
        foresight = Foresight(budget.evaluations, features, related, compiled)
        self.listener(Phase(problem, "inputs"))
        job = bench.job(
            problem,
            meanwhile=lambda: self._compile_ahead(problem, space, budget, first, foresight),
        )
        bench.worker.prepare(job)
        evaluator = DeviceEvaluator(
            bench.kernel,
            job,
            bench.compilers,
            bench.worker,
            stopping_rule(bench.device),
            zip(bench.request.others, bench.workers[1:], strict=True),
        )
        seconds = budget.seconds
        if seconds is not None:
            seconds = max(1.0, seconds - (bench.clock_s() - begun_s))
        with evaluator:
            session = SearchSession(
                space=space,
                evaluator=evaluator,
                store=self.store,
                run_id=self.run_id,
                scope=bench.scope(problem),
                budget=Budget(seconds, budget.evaluations),
                listener=self.listener,
                fresh=goal.fresh,
                others=bench.site.remembered(bench.request),
                objective=bench.request.objective,
                problem_features=features,
                related=related,
                compiled=compiled,
                asked=asked,
            )
            for measurement in asked.values():
                evaluator.recall(measurement)
            search(session, self._strategy(budget), bench.request.seed + len(asked), first)
        bench.compilers.drop()
        return SearchedProblem(
            problem,
            space,
            evaluator,
            session.asked,
            tuple(session.known()),
            time.monotonic() - begun + (earlier.seconds if earlier else 0.0),
            session.ended_by,
            frozenset(session.asked).union(session.awaited.values()),
            earlier.searches + 1 if earlier else 1,
            session.outlook,
        )

    def _known(self, problem: Problem, before: Sequence[SearchedProblem]) -> list[Configuration]:
        """Return known good configurations: recorded, imported, of problems before, declared, of other devices."""
        request, kernel = self.bench.request, self.bench.kernel
        declared = [kernel.default(), *map(kernel.completed, kernel.seeds)]
        recorded = self.recorded.get(problem, ())
        imported = first_on(problem, request.goal.imported)
        known = [*recorded, *imported, *_winners_near(problem, before), *declared]
        if request.objective.needs_energy:
            return known
        wanted = _OF_OTHERS_LATER if before else _OF_OTHERS
        return [*known, *self.devices.best(problem, wanted)]

    def _strategy(self, budget: Budget) -> Strategy:
        """Return the strategy, told how much to have measured and compiled at once."""
        request = self.bench.request
        others = len(request.others)
        at_once = PER_DEVICE * (1 + others) if others else 1
        # Where evaluations are counted the next proposal waits for the last result. A CPU cannot compile
        # and measure at once.
        is_time_scarce = budget.evaluations is None and self.bench.device.leaves_host_free
        ahead = self.bench.compilers.processes + PER_DEVICE if is_time_scarce else 1
        return request.goal.strategy_for(at_once, max(at_once, ahead))

    def _compile_ahead(
        self,
        problem: Problem,
        space: Space,
        budget: Budget,
        first: Sequence[Configuration],
        foresight: Foresight,
    ) -> None:
        """Have the first proposals compiled; not on a CPU, which would compile while it measures."""
        bench = self.bench
        if not bench.device.leaves_host_free:
            return
        job = bench.job_without_data(problem)
        evaluator = DeviceEvaluator(bench.kernel, job, bench.compilers, bench.worker)
        numbers = [
            *(number_in(space, configuration) for configuration in first),
            *foreseen(space, self._strategy(budget), foresight, bench.request.seed),
        ]
        evaluator.hint([space.configuration(i) for i in dict.fromkeys(numbers) if i is not None])


@dataclass
class Foresight:
    """A session that measures nothing and notes the first proposals."""

    evaluations_left: int | None
    problem_features: tuple[float, ...] = ()
    related: Sequence[RelatedProblem] = ()
    compiled: Collection[int] = ()
    asked: list[int] = field(default_factory=list)
    outlook: Outlook | None = None

    def stream(
        self, proposals: Iterable[int], tell: Tell, ahead: int, at_hand: AtHand = nothing
    ) -> None:
        self.asked += islice(proposals, ahead)
        raise BudgetSpent

    def hint(self, indices: Sequence[int]) -> None:
        self.asked += indices

    def best(self, count: int) -> list[int]:
        return []

    def measure(self, indices: Sequence[int]) -> list[Measurement]:
        self.asked += indices
        raise BudgetSpent


def foreseen(space: Space, strategy: Strategy, session: Foresight, seed: int) -> list[int]:
    """Return the numbers that a strategy proposes before it knows a result."""
    with suppress(BudgetSpent, AutotuneError):  # errors come again in the search
        strategy(space, session, np.random.default_rng(seed))
    return session.asked


def _winners_near(problem: Problem, before: Sequence[SearchedProblem]) -> list[Configuration]:
    """Return the best configurations of the nearest problems searched before."""
    here = place_of(tuple(problem.values()))

    def apart(other: SearchedProblem) -> float:
        steps = distance(here, place_of(tuple(other.problem.values())))
        return math.inf if steps is None else steps

    nearest = sorted(before, key=apart)[:_NEAR_PROBLEMS]
    best = [row for other in nearest for row in verdict.candidates(other.choice, 1)]
    return list(dict.fromkeys(row.configuration for row in best))
