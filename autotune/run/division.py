"""Divides the problems and the time of a run among its tuners: searches, continued searches, finals."""

from __future__ import annotations

import math
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from autotune.data.extremes import drawn_ranges
from autotune.errors import AutotuneError, FleetError, Interrupted, StoreError, UsageError
from autotune.kernel.expression import ceil_div
from autotune.measure.process import ActorFailed
from autotune.run import verdict
from autotune.run.idle import equal_values
from autotune.run.request import Request
from autotune.run.result import ProblemResult
from autotune.run.searching import SearchedProblem
from autotune.run.tuner import Tuner, TunerProcess
from autotune.search.session import Budget
from autotune.values import Problem

#: Share of the time that a run of several problems reserves for the portfolio.
_PORTFOLIO_SHARE = 0.1
#: Time in seconds that is reserved for the finals of a problem if their share is less.
_MIN_FINALS_S = 2.0
#: Maximum share of the budget that `_MIN_FINALS_S` reserves.
_MAX_FINALS_SHARE = 0.5
#: Share of the budget that a run of several problems reserves for continued searches (docs/search.md).
_AGAIN_SHARE = 0.4
#: Minimum time in seconds of a search, which first uploads its data.
_MIN_SEARCH_S = 1.0
#: Time in seconds between two checks that the site still runs.
_GLANCE_S = 1.0
#: Errors that end the whole run. Any other error ends the work of one device.
_OF_THE_RUN = (FleetError, Interrupted, StoreError, UsageError)


@dataclass
class Division:
    """The remaining work of a run, shared by the threads of its tuners."""

    request: Request
    sanitizes: bool
    #: Begin of the first search, by a tuner's clock.
    begun_s: float
    tuners: list[Tuner]
    #: Searches by problem, in the order of their first search.
    searched: dict[Problem, SearchedProblem] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._open = deque(self.request.problems)
        #: Number of evaluations in the budget of each running search.
        self._running: dict[Problem, int] = {}
        #: The tuner that searched each problem whose finals have not begun.
        self._undecided: dict[Problem, Tuner] = {}
        #: Tuners that search no more.
        self._finishing: list[Tuner] = []
        self._has_compared = False

    @property
    def is_done(self) -> bool:
        """True if all finals have begun."""
        return not (self._open or self._undecided)

    def results(self, tuner: Tuner) -> Generator[ProblemResult]:
        """Search problems with one tuner while problems are left, then hold finals.

        The finals of the last problem come first, since its data are on the device. If the disk is too
        small for all data sets, it has those of the last problems.
        """
        while not self.is_done:
            self.search_all(tuner)
            with self._lock:
                self._finishing.append(tuner)
            self._compare_twins()
            while not self._open and (found := self._next_finals(tuner)) is not None:
                yield self._finals(tuner, found)
            if not self._open:
                return

    def search_all(self, tuner: Tuner) -> None:
        """Search problems while problems are left, then continue the tuner's own searches."""
        while (first := self._next_search(tuner)) is not None:
            self._search(tuner, *first)
        self._search_on(tuner)

    def lose(self, tuner: Tuner) -> None:
        """Go on without a tuner; other tuners decide the problems that it searched."""
        with self._lock:
            self.tuners = [other for other in self.tuners if other is not tuner]
            self._finishing.append(tuner)

    # ------------------------------------------------------------------ searches

    def _next_search(self, tuner: Tuner) -> tuple[Problem, Budget] | None:
        with self._lock:
            if not self._open:
                return None
            left = self._left(tuner, self._again_share)
            budget = left.share(len(self._open), len(self.tuners))
            problem = self._open.popleft()
            self._running[problem] = budget.evaluations or 0
            return problem, budget

    def _search(self, tuner: Tuner, problem: Problem, budget: Budget) -> None:
        with self._lock:
            before = list(self.searched.values())
            self._running[problem] = budget.evaluations or 0
        try:
            found = tuner.search(problem, budget, before)
        except BaseException:
            with self._lock:
                del self._running[problem]
                if problem not in self.searched:
                    self._open.appendleft(problem)
            raise
        with self._lock:
            del self._running[problem]
            self.searched[problem], self._undecided[problem] = found, tuner

    def _search_on(self, tuner: Tuner) -> None:
        """Spend the rest of the budget, in turn on the largest expected gain and on the fewest results."""
        with self._lock:
            own = [problem for problem, its in self._undecided.items() if its is tuner]
        for turns in range(len(own), 0, -1) if self._again_share else ():
            promising = [found for p in own if self._gain(found := self.searched[p]) > 0]
            with self._lock:
                left = self._left(tuner)
            if not promising or left.is_spent:
                break
            if (len(own) - turns) % 2 == 0:
                # Gain per second: uploading the data of a large problem takes longer than its search.
                chosen = max(promising, key=lambda p: self._gain(p) * p.searches / p.seconds)
            else:  # the model may be most mistaken about the problem with the fewest results
                chosen = min(promising, key=lambda p: (p.searches, len(p.measurements)))
            at_once = len(self.tuners)
            self._search(tuner, chosen.problem, left.share(turns * at_once, at_once))

    def _left(self, tuner: Tuner, kept: float = 0.0) -> _Left:
        """Return the rest of the budget for searches, without the share ``kept``."""
        evaluations = self.request.total_budget.evaluations
        if evaluations is not None:
            evaluations -= int(kept * evaluations) + sum(self._running.values())
            evaluations -= sum(len(found.measurements) for found in self.searched.values())
        return _Left(self.seconds_left(tuner, but=self._kept_share + kept), evaluations)

    @property
    def _kept_share(self) -> float:
        finals = self.request.objective.finals_share
        if total_s := self.request.total_budget.seconds:
            least = _MIN_FINALS_S * len(self.request.problems) / total_s / len(self.tuners)
            finals = max(finals, min(least, _MAX_FINALS_SHARE))
        return finals + self._portfolio_share

    @property
    def _again_share(self) -> float:
        """The share of the budget that is reserved for continued searches."""
        goal = self.request.goal
        several = len(self.request.problems) > 1 and goal.writes_record
        return _AGAIN_SHARE if several and goal.strategy in ("auto", "surrogate") else 0.0

    @property
    def _portfolio_share(self) -> float:
        return _PORTFOLIO_SHARE if len(self.request.problems) > 1 else 0.0

    def seconds_left(self, tuner: Tuner, but: float = 0.0) -> float:
        """Return the rest of the time budget, without the share ``but``; infinite without a time budget."""
        total_s = self.request.total_budget.seconds
        if total_s is None:
            return math.inf
        return total_s * (1 - but) - (tuner.clock_s() - self.begun_s)

    def portfolio_s(self) -> float:
        """Return the time for the portfolio.

        It gets its share even if the finals took longer, since a small portfolio gives bad answers for
        other sizes.
        """
        total_s = self.request.total_budget.seconds or 0.0
        return max(total_s * self._portfolio_share, *map(self.seconds_left, self.tuners))

    def random_sizes_s(self) -> float:
        """Return the time for portfolio and random sizes together: a share of the budget of full effort."""
        if self.request.effort.name != "full":
            return 0.0
        return (self.request.total_budget.seconds or 0.0) * self._portfolio_share

    def _gain(self, found: SearchedProblem) -> float:
        if found.ended_by == "all":
            return 0.0
        if found.outlook is None:
            return math.inf
        return 0.0 if found.outlook.is_enough else found.outlook.gain

    def _compare_twins(self) -> None:
        """Warn of values that lead to the same binary, after all problems are searched."""
        with self._lock:
            if self._has_compared or self._open or self._running:
                return
            self._has_compared = True
        twins = [found.twins for found in self.searched.values()]
        for text in equal_values(self.request.kernel, twins):
            warnings.warn(text, stacklevel=2)

    # ------------------------------------------------------------------ finals

    def _next_finals(self, tuner: Tuner) -> SearchedProblem | None:
        """Return the tuner's last problem, else one of a tuner that is lost or has several left."""
        with self._lock:
            mine = [problem for problem, its in self._undecided.items() if its is tuner]
            others = [
                problem
                for problem, its in self._undecided.items()
                if its is not tuner and any(its is other for other in self._finishing)
            ]
            chosen = next(iter(mine[::-1] or others), None)
            if chosen is None:
                return None
            del self._undecided[chosen]
            return self.searched[chosen]

    def _finals(self, tuner: Tuner, found: SearchedProblem) -> ProblemResult:
        with self._lock:
            following = next(
                (self.searched[p] for p, its in [*self._undecided.items()][::-1] if its is tuner),
                None,
            )
            left = len(self._undecided) + len(self._running) + 1
            turns = ceil_div(left, len(self.tuners))
        seconds = max(0.0, self.seconds_left(tuner, but=self._portfolio_share)) / turns
        begun = time.monotonic()
        try:
            race, wrong = tuner.hold_finals(found, seconds, following)
        except BaseException:
            with self._lock:
                self._undecided[found.problem] = tuner
            raise
        request, random = self.request, found.job.datasets[-1]
        if random.difference:
            warnings.warn(
                f"{request.kernel.name} ({found.problem}): NumPy evaluates the reference, because "
                f"{random.difference}",
                stacklevel=2,
            )
        return ProblemResult(
            found.problem,
            found.measured,
            wrong,
            race,
            verdict.judge(race, request.objective, request.seed) if race else None,
            seconds=found.seconds + time.monotonic() - begun,
            sanitized=len(race.finalists) if race and self.sanitizes else None,
            ended_by=found.ended_by,
            agreed=found.job.datasets[0].agreed,
            drawn=drawn_ranges(random),
            reference=random.reference
            + (", by @matches" if "matches" in request.kernel.hooks else ""),
        )


@dataclass(frozen=True)
class _Left:
    """The rest of a budget."""

    seconds: float
    evaluations: int | None

    @property
    def is_spent(self) -> bool:
        return self.seconds < _MIN_SEARCH_S or (
            self.evaluations is not None and self.evaluations < 1
        )

    def share(self, count: int, at_once: int) -> Budget:
        """Return the budget of one of ``count`` searches if ``at_once`` searches run at a time."""
        turns = ceil_div(count, at_once)
        seconds = None if self.seconds == math.inf else max(_MIN_SEARCH_S, self.seconds / turns)
        evaluations = self.evaluations
        return Budget(
            seconds, None if evaluations is None else max(1, ceil_div(evaluations, count))
        )


def done_at_once(
    division: Division, tuners: list[TunerProcess], require_running: Callable[[], object]
) -> Generator[ProblemResult]:
    """Let all tuners work at once; yield results as they come.

    If a device fails, other devices redo its current problem. If none is left, raise the last error.
    """
    done: SimpleQueue[ProblemResult | tuple[Tuner, BaseException | None]] = SimpleQueue()

    def work(tuner: Tuner) -> None:
        failure: BaseException | None = None
        try:
            for result in division.results(tuner):
                done.put(result)
        except BaseException as error:
            failure = error
        done.put((tuner, failure))

    threads: list[threading.Thread] = []
    try:
        while not division.is_done:
            begun = [threading.Thread(target=work, args=[t], daemon=True) for t in division.tuners]
            threads += begun
            for thread in begun:
                thread.start()
            working = len(begun)
            while working:
                with suppress(Empty):
                    found = done.get(timeout=_GLANCE_S)
                    if isinstance(found, ProblemResult):
                        yield found
                        continue
                    working -= 1
                    tuner, failure = found
                    if failure is not None:
                        _require_others(division, tuner, failure)
                require_running()
    finally:
        for process in tuners:
            process.close()
        for thread in threads:
            thread.join()


def _require_others(division: Division, tuner: Tuner, failure: BaseException) -> None:
    """Go on without a failed tuner; raise its error if no tuner is left or the error concerns the run."""
    is_its_own = isinstance(failure, AutotuneError | ActorFailed)
    if not is_its_own or isinstance(failure, _OF_THE_RUN):
        raise failure
    division.lose(tuner)
    if not division.tuners:
        if isinstance(failure, AutotuneError):
            raise failure
        raise AutotuneError(f"the process of {tuner.device.selector} ended: {failure}") from failure
    warnings.warn(
        f"{tuner.device.selector} ({tuner.device.uuid}) failed, and the run continues on the other "
        f"devices: {failure}",
        stacklevel=2,
    )
