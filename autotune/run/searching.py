"""The search of one problem: its data, what is tried first, and on which devices.

Chooses no winner; how long a search may take is the run's to say.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.errors import NothingValidError
from autotune.kernel.membership import broken_constraints
from autotune.kernel.space import Space
from autotune.measure.evaluator import PER_DEVICE, DeviceEvaluator
from autotune.measure.measurement import Measurement
from autotune.run import selection
from autotune.run.bench import Bench, stopping_rule
from autotune.search.names import find
from autotune.search.session import Budget, Listener, Phase, SearchSession, search
from autotune.store import Store
from autotune.tuned.table import distance, place_of
from autotune.values import Configuration, Problem

#: The winners of so many problems, those nearest by size, are tried first on the next.
_NEAR_PROBLEMS = 8
#: From so many compilers on a search that is limited by time asks for batches.
_MANY_COMPILERS = 4


@dataclass(frozen=True)
class SearchedProblem:
    """A problem between its search and its finals."""

    problem: Problem
    space: Space
    evaluator: DeviceEvaluator
    measured: tuple[Measurement, ...]
    #: What the finals choose from: measured now or remembered.
    choice: tuple[Measurement, ...]
    seconds: float
    #: How long its finals will take to make data of another seed: one set, where this made two.
    other_data_s: float


@dataclass(frozen=True)
class ProblemSearch:
    """The searches of one run."""

    bench: Bench
    store: Store
    run_id: int
    listener: Listener

    def search(
        self, problem: Problem, space: Space, budget: Budget, before: Sequence[SearchedProblem]
    ) -> SearchedProblem:
        """Search one problem, beginning with what won on the nearest of those searched before it.

        Raises
        ------
        NothingValidError
            If the one configuration that was asked for is not valid.
        """
        bench, only = self.bench, self.bench.request.only
        begun = time.monotonic()
        self.listener(Phase(problem, "inputs"))
        job = bench.job(problem)
        other_data_s = (time.monotonic() - begun) / 2
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
            seconds = max(1.0, seconds - (time.monotonic() - begun) - other_data_s)
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
                others=tuple(device.uuid for device in bench.request.others),
            )
            measured = tuple(self._searched(session, _winners_near(problem, before)).values())
        bench.compilers.forget()
        choice = measured if only is not None else tuple(session.known())
        spent_s = time.monotonic() - begun
        return SearchedProblem(problem, space, evaluator, measured, choice, spent_s, other_data_s)

    def _searched(
        self, session: SearchSession, known: Sequence[Configuration]
    ) -> dict[int, Measurement]:
        """Begin with what is known to be good, the default and the seeds; then the strategy."""
        request, kernel = self.bench.request, self.bench.kernel
        only = request.only
        if only is not None:
            if session.space.find(session.space.canonical(session.space.row(only))) is None:
                raise NothingValidError(self._why_invalid(session.space, only))
            return search(session, lambda *_: None, request.seed, [only])
        declared = [kernel.default(), *map(kernel.completed, kernel.seeds)]
        others = len(request.others)
        compilers_wait = (
            self.bench.device.leaves_host_free
            and session.budget.evaluations is None
            and self.bench.compilers.processes >= _MANY_COMPILERS
        )
        strategy = find(
            request.strategy,
            at_once=PER_DEVICE * (1 + others) if others else 1,
            in_batches=bool(others) or compilers_wait,
        )
        return search(session, strategy, request.seed, [*known, *declared])

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


def _winners_near(problem: Problem, before: Sequence[SearchedProblem]) -> list[Configuration]:
    """The best of the problems nearest to one, of those that were searched before it."""
    here = place_of(tuple(problem.values()))

    def apart(other: SearchedProblem) -> float:
        steps = distance(here, place_of(tuple(other.problem.values())))
        return math.inf if steps is None else steps

    nearest = sorted(before, key=apart)[:_NEAR_PROBLEMS]
    best = [row for other in nearest for row in selection.candidates(other.choice, 1)]
    return list(dict.fromkeys(row.configuration for row in best))
