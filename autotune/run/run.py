"""The whole job of one `autotune run`: searches, finals, portfolio, record.

Divides the time among the parts; prints nothing and writes no file. `recording` makes the record.
"""

from __future__ import annotations

import math
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from autotune import __version__
from autotune.devices.device import Device
from autotune.errors import KEPT, AutotuneError, Interrupted, NothingValidError, StoreError
from autotune.kernel.expression import ceil_div
from autotune.kernel.space import Space, enumerate_space
from autotune.kernel.spec import Kernel
from autotune.measure.limits import Limits
from autotune.measure.measurement import Measurement, require
from autotune.measure.sight import unseen_inputs
from autotune.run import verdict
from autotune.run.bench import LOCAL, Bench, Site
from autotune.run.finals import Finals
from autotune.run.idle import equal_values, unnamed
from autotune.run.limits import known_limits, limit_requests
from autotune.run.portfolio import measure_portfolio
from autotune.run.recording import ProblemResult, RunResult, record_of, wrong_somewhere
from autotune.run.request import Request
from autotune.run.searching import ProblemSearch, SearchedProblem
from autotune.search.session import Budget, Listener, ignore
from autotune.store import RunInfo, RunState, Store
from autotune.tuned.reading import user_folder
from autotune.tuned.record import Portfolio
from autotune.tuned.writing import update

#: Share of the time of several problems that is kept for the portfolio.
_PORTFOLIO_SHARE = 0.1
#: What the finals of a problem take however little time there is, about: kept for them where the share is
#: less, up to this share.
_LEAST_FINALS_S, _MOST_FINALS_SHARE = 2.0, 0.5
#: Share of the budget of several problems that is kept for going on with some of them (docs/search.md).
_AGAIN_SHARE = 0.4
#: Shortest time of a search, as data must be uploaded.
_LEAST_SEARCH_S = 1.0


def execute(
    request: Request, store: Store, listener: Listener = ignore, site: Site = LOCAL
) -> RunResult:
    """Do what is requested; see `Run.run`. Results are compared with the device's known limits."""
    for device in request.devices:
        if request.objective.needs_energy:
            require(request.objective, device, site.why_no_energy(device))
    for problem in (*request.problems, *request.kernel.edge_problems):
        request.kernel.check_problem(problem)
    for text in unnamed(request.kernel):
        warnings.warn(text, stacklevel=2)
    is_compared = request.goal.writes_record and request.device.is_cuda
    with closing(Run(request, store, listener, site)) as run:
        return run.run(known_limits(request.device) if is_compared else {})


def measure_limits(device: Device, store: Store) -> None:
    """Measure limits of a device into the user's records."""
    for request in limit_requests(device):
        with closing(Run(request, store)) as run:
            record = run.run().record
        assert record is not None  # a run without a winner raises
        update(Path(user_folder(request.kernel.project)), record)


class Run(Bench):
    """One run in progress: its processes, its store, its clock."""

    def __init__(
        self, request: Request, store: Store, listener: Listener = ignore, site: Site = LOCAL
    ) -> None:
        # Told before anything is searched, where compute-sanitizer is wanted and is not there.
        self._sanitizer = site.sanitizer(request)
        super().__init__(request, site)
        self.store, self.listener = store, listener
        #: When the first search began, by `clock_s`.
        self._begun_s = self.clock_s()

    def run(self, limits: Limits | None = None) -> RunResult:
        """Tune every problem of the request; ``limits`` of the device are kept with the result.

        Ctrl-C or an error end the run early: once some problem is decided the result has the decided
        ones and what ended it, before that it is raised. Rows are in the store either way.
        """
        run_id = self.store.begin_run(
            RunInfo(
                kernel=self.kernel.name,
                device_name=self.device.name,
                strategy=self.request.goal.strategy,
                seed=self.request.seed,
                version=__version__,
                command=self.request.command,
            )
        )
        made = partial(
            RunResult, self.request, run_id=run_id, source=self.source, limits=limits or {}
        )
        decided: list[ProblemResult] = []
        try:
            made = partial(made, unseen=self._unseen())
            self._begun_s = self.clock_s()
            for found in self._hold_finals(run_id, self._search_problems(run_id)):
                decided.insert(0, found)
            portfolio = self._portfolio(decided)
        except BaseException as error:
            was_told_to = isinstance(error, KeyboardInterrupt)
            with suppress(StoreError):  # which may be what ended the run
                self.store.finish_run(run_id, "interrupted" if was_told_to else "failed")
            stop = Interrupted(f"{self.kernel.name}: interrupted; {KEPT}") if was_told_to else error
            solved = tuple(found for found in decided if found.result is not None)
            if solved and isinstance(stop, AutotuneError):
                stop.__cause__ = error if was_told_to else error.__cause__
                result = made(solved, space=self.space, toolchain=self.toolchain, ended=stop)
                return self._recorded(result)
            if was_told_to:
                raise stop from error
            raise
        result = made(
            tuple(decided), space=self.space, toolchain=self.toolchain, portfolio=portfolio
        )
        right: RunState = "budget" if result.spent_budget else "done"
        self.store.finish_run(run_id, right if result.solved else "failed")
        if not result.solved:
            raise NothingValidError(_why_nothing(self.kernel, decided))
        return self._recorded(result)

    def _unseen(self) -> tuple[str, ...]:
        """Return inputs of which a missing element would not be noticed, and warn of them."""
        problems = (*self.kernel.edge_problems, *self.request.problems)
        missed = unseen_inputs(self.kernel, problems, self.request.seed)
        for each in missed:
            warnings.warn(f"{self.kernel.name}: {each}", stacklevel=2)
        return tuple(each.argument for each in missed)

    def _recorded(self, result: RunResult) -> RunResult:
        """Return a result with its tuned record; one configuration is not recorded."""
        recorded = self.request.goal.writes_record
        return replace(result, record=record_of(result)) if recorded else result

    # ------------------------------------------------------------------ searches

    @cached_property
    def space(self) -> Space:
        """Return the configurations to search."""
        space = enumerate_space(self.kernel, self.device)
        return space.restricted(self.request.goal.fixed) if self.request.goal.fixed else space

    def _search_problems(self, run_id: int) -> list[SearchedProblem]:
        search = ProblemSearch(self, self.store, run_id, self.listener)
        searched: list[SearchedProblem] = []
        for problem in self.request.problems:
            left = self._left(searched, self._again_share)
            budget = left.share(len(self.request.problems) - len(searched))
            searched.append(search.search(problem, self.space, budget, searched))
        searched = self._searched_on(search, searched)
        self.compilers.drop()
        for text in equal_values(self.kernel, [found.evaluator.twins for found in searched]):
            warnings.warn(text, stacklevel=2)
        return searched

    def _left(self, searched: Iterable[SearchedProblem], kept: float = 0.0) -> _Left:
        """Return what is left of the budget for searches, but for a share of it."""
        evaluations = self.request.total_budget.evaluations
        if evaluations is not None:
            evaluations -= int(kept * evaluations) + sum(len(found.asked) for found in searched)
        return _Left(self._seconds_left(but=self._kept_share + kept), evaluations)

    def _searched_on(
        self, search: ProblemSearch, searched: Sequence[SearchedProblem]
    ) -> list[SearchedProblem]:
        """Spend what is left of the budget, by turns where most gain is expected and where least was tried."""
        found = {other.problem: other for other in searched}
        for turns in range(len(searched), 0, -1) if self._again_share else ():
            open_ones = [other for other in found.values() if _gain(other) > 0]
            if not open_ones:
                break
            if (len(searched) - turns) % 2 == 0:
                # By gain per second: data of large problems take longer to bring back than to search on.
                chosen = max(open_ones, key=lambda each: _gain(each) * each.searches / each.seconds)
            else:  # what was searched least may be what the model is most mistaken about
                chosen = min(open_ones, key=lambda each: (each.searches, len(each.asked)))
            left = self._left(found.values())
            if left.is_spent:
                break
            found[chosen.problem] = search.search(
                chosen.problem, chosen.space, left.share(turns), list(found.values())
            )
        return list(found.values())

    @property
    def _kept_share(self) -> float:
        finals = self.request.objective.finals_share
        if total_s := self.request.total_budget.seconds:
            least = _LEAST_FINALS_S * len(self.request.problems) / total_s
            finals = max(finals, min(least, _MOST_FINALS_SHARE))
        return finals + self._portfolio_share

    @property
    def _again_share(self) -> float:
        """Return the share of the budget that is kept for going on where most is to be gained."""
        goal = self.request.goal
        several = len(self.request.problems) > 1 and goal.writes_record
        return _AGAIN_SHARE if several and goal.strategy in ("auto", "surrogate") else 0.0

    @property
    def _portfolio_share(self) -> float:
        return _PORTFOLIO_SHARE if len(self.request.problems) > 1 else 0.0

    def _seconds_left(self, but: float = 0.0) -> float:
        """Return the time of the budget that is left, but for a share of it; infinite where it is not limited."""
        total_s = self.request.total_budget.seconds
        if total_s is None:
            return math.inf
        return total_s * (1 - but) - (self.clock_s() - self._begun_s)

    # ------------------------------------------------------------------ finals

    def _hold_finals(
        self, run_id: int, searched: Sequence[SearchedProblem]
    ) -> Iterator[ProblemResult]:
        finals = Finals(self, self.store, run_id, self.listener, self._sanitizer)
        # The last first: its data are on the device, and of many large data sets, which the disk has
        # no room for at once, those of the latest problems are left.
        order = searched[::-1]
        for position, found in enumerate(order):
            following = next(iter(order[position + 1 :]), None)
            seconds = max(0.0, self._seconds_left(but=self._portfolio_share))
            seconds /= len(searched) - position
            begun = time.monotonic()
            race, wrong = finals.hold(
                found.evaluator,
                self._entrants(found),
                seconds,
                meanwhile=partial(self._expect, finals, following),
                search_s=found.seconds,
            )
            request = self.request
            result = verdict.judge(race, request.objective, request.seed) if race else None
            yield ProblemResult(
                found.problem,
                found.measured,
                wrong,
                race,
                result,
                seconds=found.seconds + time.monotonic() - begun,
                sanitized=len(race.finalists) if race and self._sanitizer else None,
                ended_by=found.ended_by,
                agreed=found.evaluator.job.datasets[0].agreed,
            )

    def _expect(self, finals: Finals, following: SearchedProblem | None) -> None:
        """Have compilers begin with the finals of the problem that follows."""
        if following is not None:
            finals.expect(following.evaluator, self._entrants(following))

    def _entrants(self, found: SearchedProblem) -> list[Measurement]:
        """Return who enters the finals: the best of each device, since those of two are not compared."""
        if not self.request.others:
            return list(found.choice)
        repeats = partial(self.kernel.is_deterministic, p=found.problem)
        # A card of a fleet may have come after the run began.
        by_device = defaultdict[str, list[Measurement]](list)
        for row in found.choice:
            by_device[row.device_uuid or self.device.uuid].append(row)
        share = ceil_div(self.request.effort.finalists, max(1, len(by_device)))
        return [
            entrant
            for rows in by_device.values()
            for entrant in verdict.candidates(rows, share, repeats)
        ]

    # ------------------------------------------------------------------ portfolio

    def _portfolio(self, results: Sequence[ProblemResult]) -> Portfolio | None:
        """Measure the best of every problem on every problem; by time, so only where that is asked."""
        if self.request.objective.needs_energy or not self.request.goal.writes_record:
            return None
        raced = {result.problem: result.result for result in results if result.result is not None}
        if len(raced) < 2:
            return None
        wrong = wrong_somewhere(results)
        chosen = verdict.portfolio_entrants(list(raced.values()), self.kernel.default())
        known = {problem: result.winner.time_ms.value for problem, result in raced.items()}
        # What is wrong on one problem, or its other data, must answer for no other.
        right = [entrant for entrant in chosen if entrant in self.space and entrant not in wrong]
        if not right:
            return None
        seconds = self._seconds_left()
        if total_s := self.request.total_budget.seconds:
            # What is kept for it, though the finals took longer: few configurations answer other sizes badly.
            seconds = max(seconds, total_s * self._portfolio_share)
        return measure_portfolio(self, self.listener, known, right, seconds)


@dataclass(frozen=True)
class _Left:
    """The rest of a budget."""

    seconds: float
    evaluations: int | None

    @property
    def is_spent(self) -> bool:
        return self.seconds < _LEAST_SEARCH_S or (
            self.evaluations is not None and self.evaluations < 1
        )

    def share(self, count: int) -> Budget:
        """Return the budget of one of so many searches."""
        seconds = None if self.seconds == math.inf else max(_LEAST_SEARCH_S, self.seconds / count)
        evaluations = self.evaluations
        return Budget(
            seconds, None if evaluations is None else max(1, ceil_div(evaluations, count))
        )


def _gain(found: SearchedProblem) -> float:
    if len(found.asked) == len(found.space):
        return 0.0
    if found.outlook is None:
        return math.inf
    return 0.0 if found.outlook.is_enough else found.outlook.gain


def _why_nothing(kernel: Kernel, results: Sequence[ProblemResult]) -> str:
    """Return the message of a run without a winner: how often what happened, with an example."""
    rows = [row for result in results for row in result.trials]
    if not rows:
        return f"{kernel.name}: the budget ended before anything was measured; give it more"
    counts = Counter(row.status for row in rows).most_common()
    shares = ", ".join(f"{count} {status}" for status, count in counts)
    example = next(row for row in rows if row.status is counts[0][0])
    return (
        f"{kernel.name}: no configuration is right ({shares}). "
        f"For example {example.configuration}: {example.message or example.status}"
    )
