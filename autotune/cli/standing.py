"""What a run has done so far, from its events. Shows nothing: `progress` and `live` do.

Events come from the thread that searches; any other may ask.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from autotune.measure.measurement import Measurement, Status
from autotune.measure.objective import TIME, Objective
from autotune.search.session import Budget, Event, Measured, SearchStarted
from autotune.values import Problem

#: What takes time, by its name in a `Phase`.
PHASES = {
    "inputs": "computing the reference",
    "other inputs": "computing the reference for other inputs and sizes",
    "compiling": "compiling",
    "finals": "finals: the best, interleaved",
    "portfolio": "the best of all problems, on each problem",
    "sanitizer": "finalists under compute-sanitizer",
    "limits": "measuring what the device can do, once",
}
#: Measurements that are kept to be shown.
_RECENT = 30


@dataclass
class SearchSoFar:
    """One search of one problem; times are seconds since the run began."""

    problem: Problem
    configurations: int
    remembered: int
    budget: Budget
    begun_s: float
    statuses: Counter[Status] = field(default_factory=Counter)
    #: When there was a new best, and its value of the objective.
    bests: list[tuple[float, float]] = field(default_factory=list)
    best_configuration: dict[str, Any] = field(default_factory=dict)
    #: What is minimised, of the best.
    best_cost: float | None = None
    #: When there was its newest measurement.
    last_s: float = 0.0
    #: When the budget is spent; None where it limits no time.
    end_s: float | None = None

    @property
    def tried(self) -> int:
        """Configurations that have a row, remembered ones included."""
        return self.statuses.total()

    @property
    def failed(self) -> int:
        """Of these, those that were not timed."""
        return sum(n for status, n in self.statuses.items() if not status.is_timed)

    def share(self, now_s: float) -> float | None:
        """How much of it is done; None where nothing limits it but the strategy."""
        most = self.budget.evaluations
        if most is not None:
            return min(1.0, self.tried / max(1, min(most, self.configurations)))
        if self.end_s is not None:
            return min(1.0, (now_s - self.begun_s) / max(1e-9, self.end_s - self.begun_s))
        return None


class Standing:
    """A listener of a run that keeps what it was told."""

    def __init__(
        self,
        kernel: str,
        problems: int,
        objective: Objective = TIME,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.kernel, self.problems, self.objective = kernel, problems, objective
        self._clock_s, self._begun_s = clock_s, clock_s()
        self._searches: list[SearchSoFar] = []
        self._recent: deque[dict[str, Any]] = deque(maxlen=_RECENT)
        #: What is being done where that is no search, and for which problem.
        self._phase: tuple[str, Problem] | None = None
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        now_s = self._now_s()
        with self._lock:
            if isinstance(event, SearchStarted):
                self._phase = None
                self._searches.append(self._begun(event, now_s))
            elif isinstance(event, Measured):
                self._measured(event, now_s)
            else:
                self._phase = PHASES.get(event.name, event.name), event.problem

    def _begun(self, event: SearchStarted, now_s: float) -> SearchSoFar:
        """A search that begins, or one that goes on."""
        for earlier in self._searches:
            if earlier.problem == event.problem:
                self._searches.remove(earlier)
                evaluations = event.budget.evaluations
                if evaluations is not None:
                    evaluations += earlier.tried
                earlier.budget = Budget(event.budget.seconds, evaluations)
                earlier.begun_s, earlier.end_s = now_s, None
                return earlier
        return SearchSoFar(
            event.problem, event.configurations, event.remembered, event.budget, now_s
        )

    def _measured(self, event: Measured, now_s: float) -> None:
        search, measured = self._searches[-1], event.measurement
        search.statuses[measured.status] += 1
        search.last_s = now_s
        if event.seconds_left is not None:
            search.end_s = now_s + event.seconds_left
        cost = self._cost(measured)
        if cost is not None and (search.best_cost is None or cost < search.best_cost):
            value = 1 / cost if self.objective.higher_is_better else cost
            search.best_cost = cost
            search.bests.append((now_s, value))
            search.best_configuration = dict(measured.configuration)
        self._recent.appendleft(
            {
                "at_s": now_s,
                "problem": str(event.problem),
                "configuration": dict(measured.configuration),
                "status": str(measured.status),
                "median_ms": measured.median_ms,
                "message": measured.message,
                "remembered": event.remembered,
            }
        )

    def _cost(self, measured: Measurement) -> float | None:
        if measured.status is not Status.OK:
            return None
        return measured.median_ms if self.objective.is_time else measured.cost

    def _now_s(self) -> float:
        return self._clock_s() - self._begun_s

    def line(self) -> str:
        """What is done, the best, and the time left of a search, in one line."""
        now_s = self._now_s()
        with self._lock:
            search = self._searches[-1] if self._searches else None
            if self._phase is not None:
                doing, problem = self._phase
                return f"{self.kernel} {problem}: {doing}"
            if search is None:
                return f"{self.kernel}: starting"
            which = f"[{len(self._searches)}/{self.problems}] " if self.problems > 1 else ""
            most = search.budget.evaluations
            facts = [f"{search.tried} of {most} tried" if most else f"{search.tried} tried"]
            if search.bests:
                facts.append(self._best_words(search))
            if search.end_s is not None:
                facts.append(f"{max(0.0, search.end_s - now_s):.0f} s left")
            return f"{which}{self.kernel} {search.problem}: {', '.join(facts)}"

    def best_words(self) -> str:
        """The best of the present search; empty where there is none."""
        with self._lock:
            search = self._searches[-1] if self._searches else None
            return self._best_words(search) if search and search.bests else ""

    def _best_words(self, search: SearchSoFar) -> str:
        name = "" if self.objective.is_time else f"{self.objective.name} "
        return f"best {name}{search.bests[-1][1]:.4g} {self.objective.unit}".rstrip()

    def as_json(self) -> dict[str, Any]:
        """All of it as plain values; seconds count from the beginning of the run."""
        now_s = self._now_s()
        with self._lock:
            phase, problem = self._phase or ("", "")
            return {
                "kernel": self.kernel,
                "problems": self.problems,
                "objective": self.objective.name,
                "unit": self.objective.unit,
                "now_s": now_s,
                "phase": phase,
                "phase_problem": str(problem),
                "searches": [
                    {
                        "problem": str(search.problem),
                        "configurations": search.configurations,
                        "remembered": search.remembered,
                        "tried": search.tried,
                        "failed": search.failed,
                        "begun_s": search.begun_s,
                        "last_s": search.last_s,
                        "seconds_left": search.end_s and max(0.0, search.end_s - now_s),
                        "evaluations": search.budget.evaluations,
                        "share": search.share(now_s),
                        "bests": list(search.bests),
                        "best_configuration": search.best_configuration,
                    }
                    for search in self._searches
                ],
                "recent": list(self._recent),
            }
