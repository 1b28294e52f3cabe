"""The search of one problem: its data, what is tried first, and on which devices.

Chooses no winner; how long a search may take is the run's to say.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

import numpy as np

from autotune.errors import AutotuneError, NothingValidError
from autotune.interop.imported import first_on
from autotune.kernel.membership import broken_constraints
from autotune.kernel.space import Space
from autotune.measure.evaluator import PER_DEVICE, DeviceEvaluator, nothing
from autotune.measure.measurement import Measurement
from autotune.run import verdict
from autotune.run.bench import Bench, stopping_rule
from autotune.run.elsewhere import OtherDevices, point_of, recorded_winners, told_apart
from autotune.search.base import AtHand, BudgetSpent, Elsewhere, Outlook, Tell
from autotune.search.names import Search, find
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
    """A problem between its search and its finals."""

    problem: Problem
    space: Space
    evaluator: DeviceEvaluator
    #: Measured or recalled by the search, by number, in order.
    asked: Mapping[int, Measurement]
    #: What the finals choose from: measured now or remembered.
    choice: tuple[Measurement, ...]
    seconds: float
    #: See `SearchSession.ended_by`.
    ended_by: str
    #: Numbers of what was given to compilers, measured or not.
    compiled: frozenset[int]
    #: How often it was searched.
    searches: int = 1
    #: What the strategy expects of going on, where it says so.
    outlook: Outlook | None = None

    @property
    def measured(self) -> tuple[Measurement, ...]:
        """In the order asked for."""
        return tuple(self.asked.values())


@dataclass(frozen=True)
class ProblemSearch:
    """The searches of one run."""

    bench: Bench
    store: Store
    run_id: int
    listener: Listener

    @cached_property
    def devices(self) -> OtherDevices:
        """What is known of other devices."""
        return OtherDevices(self.bench.kernel.name, self.bench.device, self.store)

    @cached_property
    def recorded(self) -> dict[Problem, list[Configuration]]:
        """What is recorded to have won on this device."""
        return recorded_winners(self.bench.kernel.name, self.bench.device)

    def search(
        self, problem: Problem, space: Space, budget: Budget, before: Sequence[SearchedProblem]
    ) -> SearchedProblem:
        """Search one problem, beginning with what won on the nearest of those searched before it.

        What was searched ``before`` may be this problem too: then the search goes on.

        Raises
        ------
        NothingValidError
            If the one configuration that was asked for is not valid.
        """
        bench, only = self.bench, self.bench.request.only
        begun, begun_s = time.monotonic(), bench.clock_s()
        earlier = next((found for found in before if found.problem == problem), None)
        others = [found for found in before if found is not earlier]
        asked = dict(earlier.asked) if earlier else {}
        first = [] if earlier else self._first(space, problem, others)
        place, elsewhere = self._elsewhere(problem, others)
        compiled = frozenset[int]().union(*(found.compiled for found in before))
        foresight = Foresight(budget.evaluations, place, elsewhere, compiled)
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
                # One configuration by name is to be timed, though it may have been stopped early.
                fresh=bench.request.fresh or only is not None,
                others=bench.site.remembered(bench.request),
                scoring=None if bench.request.objective.is_time else bench.scoring(problem),
                place=place,
                elsewhere=elsewhere,
                compiled=compiled,
                asked=asked,
            )
            for measurement in asked.values():
                evaluator.recall(measurement)
            search(session, self._strategy(budget), bench.request.seed + len(asked), first)
        bench.compilers.drop()
        measured = tuple(session.asked.values())
        return SearchedProblem(
            problem,
            space,
            evaluator,
            session.asked,
            measured if only is not None else tuple(session.known()),
            time.monotonic() - begun + (earlier.seconds if earlier else 0.0),
            session.ended_by,
            frozenset(session.asked).union(session.awaited.values()),
            earlier.searches + 1 if earlier else 1,
            session.outlook,
        )

    @staticmethod
    def _elsewhere(
        problem: Problem, others: Sequence[SearchedProblem]
    ) -> tuple[tuple[float, ...], list[Elsewhere]]:
        """Where a problem is, and what is known of other places."""
        searched = [Elsewhere(point_of(found.problem, problem), found.asked) for found in others]
        return told_apart(point_of(problem, problem), searched)

    def _first(
        self, space: Space, problem: Problem, before: Sequence[SearchedProblem]
    ) -> list[Configuration]:
        """What is tried first: the one that was asked for, or what is known to be good."""
        request, kernel = self.bench.request, self.bench.kernel
        if request.only is not None:
            if space.find(space.canonical(space.row(request.only))) is None:
                raise NothingValidError(self._why_invalid(space, request.only))
            return [request.only]
        declared = [kernel.default(), *map(kernel.completed, kernel.seeds)]
        recorded = self.recorded.get(problem, ())
        imported = first_on(problem, request.first)
        known = [*recorded, *imported, *_winners_near(problem, before), *declared]
        if not request.objective.is_time:
            return known  # what is kept of other devices is times
        wanted = _OF_OTHERS_LATER if before else _OF_OTHERS
        return [*known, *self.devices.best(problem, wanted)]

    def _strategy(self, budget: Budget) -> Search:
        """What follows; nothing where one configuration was asked for."""
        request = self.bench.request
        if request.only is not None:
            return lambda *_: None
        others = len(request.others)
        at_once = PER_DEVICE * (1 + others) if others else 1
        # Where evaluations are scarce the next waits for the result of the last; a CPU would compile
        # what is asked for ahead while it measures.
        is_time_scarce = budget.evaluations is None and self.bench.device.leaves_host_free
        ahead = self.bench.compilers.processes + PER_DEVICE if is_time_scarce else 1
        return find(request.strategy, at_once, max(at_once, ahead))

    def _compile_ahead(
        self,
        problem: Problem,
        space: Space,
        budget: Budget,
        first: Sequence[Configuration],
        foresight: Foresight,
    ) -> None:
        """Have compiled what will be asked for first; not where a CPU would still do so when it measures."""
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

    def _why_invalid(self, space: Space, configuration: Configuration) -> str:
        kernel, device = self.bench.kernel, self.bench.device
        row = space.canonical(space.row(configuration))
        values = zip(space.parameters.items(), row, strict=True)
        canonical = {name: declared[index] for (name, declared), index in values}
        broken = [
            f"{rule.name} ({rule.doc})" for rule in broken_constraints(kernel, canonical, device)
        ]
        shown = Configuration(space.relevant(canonical))
        why = "; ".join(broken) or "outside --fix"
        return f"{kernel.name}: {shown} is not valid on {device.name}: {why}"


@dataclass
class Foresight:
    """A session that measures nothing, and notes what it is asked for."""

    evaluations_left: int | None
    place: tuple[float, ...] = ()
    elsewhere: Sequence[Elsewhere] = ()
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


def foreseen(space: Space, strategy: Search, session: Foresight, seed: int) -> list[int]:
    """Numbers of what a strategy will ask for before it knows a result, in that order."""
    with suppress(BudgetSpent, AutotuneError):  # errors come again in the search
        strategy(space, session, np.random.default_rng(seed))
    return session.asked


def _winners_near(problem: Problem, before: Sequence[SearchedProblem]) -> list[Configuration]:
    """The best of the problems nearest to one, of those that were searched before it."""
    here = place_of(tuple(problem.values()))

    def apart(other: SearchedProblem) -> float:
        steps = distance(here, place_of(tuple(other.problem.values())))
        return math.inf if steps is None else steps

    nearest = sorted(before, key=apart)[:_NEAR_PROBLEMS]
    best = [row for other in nearest for row in verdict.candidates(other.choice, 1)]
    return list(dict.fromkeys(row.configuration for row in best))
