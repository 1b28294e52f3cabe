"""The whole job of one `autotune run`: searches, finals, portfolio, record.

It prints nothing and writes no file. `recording` makes the record.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from autotune import __version__
from autotune.answers.table import Portfolio
from autotune.arrays import usable_cores
from autotune.data.sight import Unseen, unseen_inputs
from autotune.data.wrapping import wrapping_outputs
from autotune.devices.device import Device
from autotune.errors import KEPT, AutotuneError, Interrupted, NothingValidError, StoreError
from autotune.kernel.sizes import ranges_of
from autotune.kernel.spec import Kernel
from autotune.measure.measurement import require
from autotune.measure.references import Need, find_unseen
from autotune.measure.roofline import Limits
from autotune.run import verdict
from autotune.run.answering import AnswerTimer, stored_sizes
from autotune.run.bench import LOCAL, Bench, Site
from autotune.run.device_limits import known_limits, limit_requests
from autotune.run.division import Division, done_at_once
from autotune.run.drawing import SEED
from autotune.run.extreme_checks import differences, message
from autotune.run.idle import unnamed
from autotune.run.other_sizes import verified_answers
from autotune.run.recording import record_of
from autotune.run.request import Request
from autotune.run.result import ProblemResult, RunResult, without_wrong, wrong_somewhere
from autotune.run.size_times import TimeMatrix
from autotune.run.tuner import ProblemTuner, Tuner, TunerPlan, TunerProcess
from autotune.search.session import Event, Listener, Phase, ignore
from autotune.store import RunInfo, RunState, Store
from autotune.tuned.reading import user_folder
from autotune.tuned.writing import update
from autotune.values import Configuration, Problem


def execute(
    request: Request, store: Store, listener: Listener = ignore, site: Site = LOCAL
) -> RunResult:
    """Execute a request and compare its results with the device's known limits; see `Run.run`."""
    site.require_supported(request)
    for device in request.devices:
        if request.objective.needs_energy:
            require(request.objective, device, site.why_no_energy(device))
    for problem in (*request.problems, *request.kernel.edge_problems):
        request.kernel.check_problem(problem)
    for text in (*unnamed(request.kernel), *wrapping_outputs(request.kernel)):
        warnings.warn(text, stacklevel=2)
    with closing(Run(request, store, listener, site)) as run:
        return run.run(known_limits(request.device) if request.goal.writes_record else {})


def measure_limits(device: Device, store: Store) -> None:
    """Measure the limits of a device and add them to the user's records."""
    for request in limit_requests(device):
        with closing(Run(request, store)) as run:
            record = run.run().record
        assert record is not None  # a run without a winner raises
        update(Path(user_folder(request.kernel.project)), record)


class Run(Bench):
    """One run in progress: its processes and its store."""

    def __init__(
        self, request: Request, store: Store, listener: Listener = ignore, site: Site = LOCAL
    ) -> None:
        # At the beginning, since it warns if compute-sanitizer is required and missing.
        self._sanitizer = site.sanitizer(request)
        super().__init__(request, site)
        self.store, self.listener = store, listener

    def run(self, limits: Limits | None = None) -> RunResult:
        """Tune every problem of the request; the result includes the device's ``limits``.

        If Ctrl-C or an error ends the run early, the result has the finished problems and the error. If
        no problem is finished, the error is raised. In both cases the store has the rows.
        """
        decided: list[ProblemResult] = []
        run_id = 0  # no run yet
        info = RunInfo(
            kernel=self.kernel.name,
            device_name=self.device.name,
            strategy=self.request.goal.searched_by,
            seed=self.request.seed,
            version=__version__,
            command=self.request.command,
        )
        try:
            with self.store.beginning(info) as run_id:
                made = partial(
                    RunResult,
                    self.request,
                    run_id=run_id,
                    definition=self.definition,
                    limits=limits or {},
                )
            unseen = self._unseen()
            processes = self.processes(run_id)
            own = ProblemTuner(self, self.store, run_id, self.listener, self._sanitizer)
            division = self.division(processes or [own])
            at_once = done_at_once(division, processes, self.site.require_running)
            with closing(at_once if processes else division.results(own)) as results:
                for found in results:
                    decided.append(found)
                    decided.sort(key=lambda found: self.request.problems.index(found.problem))
            decided = without_wrong(decided, self.request)
            portfolio, sizes = self._portfolio(decided, division, run_id)
            self.listener(Phase(self.request.problems[0], "checks"))
            made = partial(made, unseen=self._named(unseen), portfolio=portfolio, sizes=sizes)
            made = partial(made, differs=self._differing(decided))
            result = made(tuple(decided), space=self.space, toolchain=self.toolchain)
            state: RunState = "budget" if result.spent_budget else "done"
            self.store.finish_run(run_id, state if result.solved else "failed")
        except BaseException as error:
            is_ctrl_c = isinstance(error, KeyboardInterrupt)
            with suppress(StoreError):  # the store's failure may be the reason of the end
                if run_id:
                    self.store.finish_run(run_id, "interrupted" if is_ctrl_c else "failed")
            stop = Interrupted(f"{self.kernel.name}: interrupted; {KEPT}") if is_ctrl_c else error
            decided = without_wrong(decided, self.request)
            solved = tuple(found for found in decided if found.result is not None)
            if solved and isinstance(stop, AutotuneError):
                stop.__cause__ = error if is_ctrl_c else error.__cause__
                if unseen.done() and not unseen.exception():
                    made = partial(made, unseen=self._named(unseen))
                result = made(solved, space=self.space, toolchain=self.toolchain, ended=stop)
                return self._recorded(result)
            if is_ctrl_c:
                raise stop from error
            raise
        if not result.solved:
            raise NothingValidError(_why_nothing(self.kernel, decided))
        return self._recorded(result)

    def _unseen(self) -> Future[tuple[Unseen, ...]]:
        """Look for inputs whose missing elements verification would not notice."""
        problems = (*self.kernel.edge_problems, *self.request.problems)
        if self.references is not None and self.searches_first:
            return self.references.submit(Need.SIGHT, find_unseen, problems, self.request.seed)
        # In a thread, so that compilers need not wait for the reference.
        pool = self._stack.enter_context(ThreadPoolExecutor(1))
        unseen = pool.submit(unseen_inputs, self.kernel, problems, self.request.seed)
        if not self.device.is_cuda:
            unseen.result()  # wait: the thread would disturb timing
        return unseen

    def _named(self, unseen: Future[tuple[Unseen, ...]]) -> tuple[str, ...]:
        """Return the names of inputs that were found; warn of each."""
        for missed in unseen.result():
            warnings.warn(f"{self.kernel.name}: {missed}", stacklevel=2)
        return tuple(missed.argument for missed in unseen.result())

    def _differing(self, results: Sequence[ProblemResult]) -> dict[Configuration, tuple[str, ...]]:
        """Return the winners that differ on values that the data never hold; warn of each difference once."""
        chosen = {found.winner: found.problem for found in results if found.winner is not None}
        differing = differences(self, chosen)
        for texts in dict.fromkeys(differing.values()):
            named = [str(winner) for winner in differing if differing[winner] == texts]
            name = f"{self.kernel.name}: {' and '.join(named)}"
            warnings.warn(message(name, texts), stacklevel=2)
        return differing

    def _recorded(self, result: RunResult) -> RunResult:
        """Return a result with its tuned record, unless the run is of one configuration."""
        recorded = self.request.goal.writes_record
        return replace(result, record=record_of(result)) if recorded else result

    # ------------------------------------------------------------------ tuners

    def processes(self, run_id: int) -> list[TunerProcess]:
        """Start tuner processes, each with its share of the devices; none if this process tunes.

        The number of problems, devices and cores limits their number.
        """
        devices = self.request.devices
        count = min(len(devices), len(self.request.problems), usable_cores())
        if count < 2 or not self.request.goal.writes_record:
            return []
        listening = threading.Lock()

        def listener(event: Event) -> None:
            with listening:
                self.listener(event)

        requests = [
            replace(self.request, device=device, others=devices[number + count :: count])
            for number, device in enumerate(devices[:count])
        ]
        return [
            self._stack.enter_context(closing(TunerProcess(plan, listener)))
            for plan in (
                TunerPlan.of(self, request, self.store, run_id, self._sanitizer, number)
                for number, request in enumerate(requests)
            )
        ]

    def division(self, tuners: Sequence[Tuner]) -> Division:
        return Division(self.request, bool(self._sanitizer), self.clock_s(), list(tuners))

    # ------------------------------------------------------------------ portfolio

    def _portfolio(
        self, results: Sequence[ProblemResult], division: Division, run_id: int
    ) -> tuple[Portfolio | None, Portfolio | None]:
        """Time the best of every problem on every problem, then on random sizes while there is time.

        Return the times on the problems, and the times on all sizes in the store. Both are None for a run
        of one problem, of one configuration, or with another objective than time.
        """
        if self.request.objective.needs_energy or not self.request.goal.writes_record:
            return None, None
        raced = {result.problem: result.result for result in results if result.result is not None}
        if len(raced) < 2:
            return None, None
        wrong = wrong_somewhere(results)
        chosen = verdict.portfolio_entrants(list(raced.values()), self.kernel.default())
        known = {problem: result.winner.time_ms.value for problem, result in raced.items()}
        # A configuration that is wrong on one problem or data set must not answer for other problems.
        correct = [entrant for entrant in chosen if entrant in self.space and entrant not in wrong]
        correct, sizes = verified_answers(self, results, correct)
        if not correct:
            return None, None
        begun_s = self.clock_s()
        timer = AnswerTimer(self, self.store, run_id, self.listener)
        portfolio = timer.portfolio(known, correct, division.portfolio_s())
        if portfolio is None:
            return None, None
        timed = [*map(Problem, portfolio.problems)]
        verified = ranges_of(self.kernel, [*sizes, *timed], timed)
        portfolio = msgspec.structs.replace(portfolio, verified=verified)
        matrix = TimeMatrix(correct, stored_sizes(self, self.store, wrong))
        left_s = division.random_sizes_s() - (self.clock_s() - begun_s)
        if left_s > 0:
            timer.time_random_sizes(matrix, SEED, left_s)
        return portfolio, matrix.portfolio()


def _why_nothing(kernel: Kernel, results: Sequence[ProblemResult]) -> str:
    """Return the message of a run without a winner: the count of each status, with an example."""
    rows = [row for result in results for row in result.trials]
    if not rows:
        return f"{kernel.name}: the budget ended before the first measurement; give a larger budget"
    counts = Counter(row.status for row in rows).most_common()
    shares = ", ".join(f"{count} {status}" for status, count in counts)
    example = next(row for row in rows if row.status is counts[0][0])
    return (
        f"{kernel.name}: no configuration passed verification ({shares}). "
        f"For example {example.configuration}: {example.message or example.status}"
    )
