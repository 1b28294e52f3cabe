"""The whole job of one `autotune run`: search every problem, hold the finals, make the record.

Puts the parts together; prints nothing and writes no file of its own. `cli` and `api` call it.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from autotune import __version__
from autotune.devices.device import Device
from autotune.errors import AutotuneError, Interrupted, NothingValidError, StoreError
from autotune.kernel.expression import ceil_div
from autotune.kernel.membership import broken_constraints
from autotune.kernel.space import Space, enumerate_space
from autotune.kernel.spec import Kernel
from autotune.measure import probe, sanitize
from autotune.measure.compiler import compile_job
from autotune.measure.evaluator import PER_DEVICE, DeviceEvaluator, Evaluator
from autotune.measure.measurement import Measurement, Status
from autotune.measure.probe import MeasuredLimits
from autotune.measure.several import SeveralEvaluator
from autotune.measure.timing import StoppingRule
from autotune.run import portfolio as portfolios
from autotune.run import selection
from autotune.run.bench import Bench
from autotune.run.finals import Finals
from autotune.run.request import EFFORTS, Effort, Request
from autotune.search.names import find
from autotune.search.session import Budget, Listener, Phase, SearchSession, ignore, search
from autotune.store import RunInfo, Store
from autotune.tuned.table import distance, place_of
from autotune.values import Configuration, Problem, Value

__all__ = [
    "EFFORTS",
    "Effort",
    "ProblemResult",
    "Request",
    "Run",
    "RunResult",
    "stopping_rule",
]

#: Shares of the time that are kept for the finals, and of several problems for the portfolio.
_FINALS_SHARE, _PORTFOLIO_SHARE = 0.15, 0.1
#: Of the time for a problem's finals the most that is spent on measuring the others' best there.
_GUESTS_SHARE = 0.3
#: Of every other problem this many of the best enter a problem's finals.
_GUESTS = 2
#: The winners of so many problems, those nearest by size, are tried first on the next.
_NEAR_PROBLEMS = 8
#: So often the next best take the place of finalists in which compute-sanitizer found a fault.
_SANITIZER_ROUNDS = 3


@dataclass(frozen=True)
class ProblemResult:
    """What came of one problem."""

    problem: Problem
    space: Space
    #: In the order they were asked for, remembered ones included.
    measured: tuple[Measurement, ...]
    #: None where nothing was right.
    finals: selection.Decision | None
    disqualified: tuple[Measurement, ...] = ()
    seconds: float = 0.0
    #: Finalists in which compute-sanitizer found nothing; None where it was not asked.
    sanitized: int | None = None


@dataclass(frozen=True)
class RunResult:
    """What came of a run."""

    request: Request
    problems: tuple[ProblemResult, ...]
    run_id: int
    source: str
    toolchain: str
    #: Finalists of all problems on every problem; None for a run of one problem.
    portfolio: selection.PortfolioTimes | None = None
    #: What the device was measured to reach; None where that failed.
    limits: MeasuredLimits | None = None

    @property
    def solved(self) -> tuple[ProblemResult, ...]:
        """The problems that have a winner."""
        return tuple(one for one in self.problems if one.finals is not None)


@dataclass(frozen=True)
class _Searched:
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


class Run(Bench):
    """One run in progress: its processes, its store, its results so far.

    Parameters
    ----------
    request : Request
        What to do.
    store : Store
        Where rows go.
    listener : callable
        Told what happens.
    """

    def __init__(self, request: Request, store: Store, listener: Listener = ignore) -> None:
        # Told before anything is searched, where compute-sanitizer is wanted and is not there.
        self._sanitizer = sanitize.required(request.device) if request.sanitize else ""
        #: By configuration and static fields; None where nothing was found.
        self._findings: dict[
            tuple[Configuration, tuple[Value, ...]], sanitize.SanitizerFault | None
        ] = {}
        super().__init__(request)
        self.store, self.listener = store, listener
        self.done: list[ProblemResult] = []
        #: When the first search began, by `time.monotonic`.
        self._begun_s = time.monotonic()

    def run(self) -> RunResult:
        """Tune every problem of the request.

        Raises
        ------
        NothingValidError
            If no configuration of any problem is valid and right.
        Interrupted
            On Ctrl-C; rows are in the store.
        """
        request = self.request
        run_id = self.store.begin_run(
            RunInfo(
                kernel=self.kernel.name,
                device_name=self.device.name,
                strategy=request.strategy,
                seed=request.seed,
                version=__version__,
                command=request.command,
            )
        )
        try:
            limits = self._limits()
            self._begun_s = time.monotonic()
            self._run_problems(run_id)
            portfolio = self._portfolio()
        except KeyboardInterrupt as error:
            self.store.finish_run(run_id, "interrupted")
            raise Interrupted(
                f"{self.kernel.name}: interrupted; every finished measurement is kept, and the "
                "same command goes on where this one stopped"
            ) from error
        except BaseException:
            with suppress(StoreError):  # which may be what ended the run
                self.store.finish_run(run_id, "failed")
            raise
        self.store.finish_run(run_id, "done")
        result = RunResult(
            request, tuple(self.done), run_id, self.source, self.toolchain, portfolio, limits
        )
        if not result.solved:
            raise NothingValidError(_why_nothing(self.kernel, self.done))
        return result

    def _limits(self) -> MeasuredLimits | None:
        """What the device reaches: known, or measured now, once per device.

        Before the search, while the device is cool; not kept, and not used, where it is throttled.
        Of a CPU, whose caches hold whole problems, no share of a memory limit would mean anything.
        """
        if self.request.only is not None or self.device.backend != "cuda":
            return None
        try:
            if probe.known_limits(self.device) is None:
                self.listener(Phase(self.request.problems[0], "limits"))
                probe.limits_of(self.device, self.worker, self.compilers)
        except AutotuneError as error:
            warnings.warn(f"{self.device.name}: limits not measured: {error}", stacklevel=2)
        return probe.known_limits(self.device)

    def _run_problems(self, run_id: int) -> None:
        """Search every problem, then hold the finals of each with the others' best as guests."""
        space = enumerate_space(self.kernel, self.device)
        if self.request.fixed:
            space = space.restricted(self.request.fixed)
        searched: list[_Searched] = []
        total = self.request.total_budget
        for position, problem in enumerate(self.request.problems):
            left = len(self.request.problems) - position
            seconds = self._seconds_left(but=_FINALS_SHARE + self._portfolio_share)
            if seconds is not None:
                kept_s = sum(one.other_data_s for one in searched)
                seconds = max(1.0, (seconds - kept_s) / left)
            evaluations = total.evaluations
            if evaluations is not None:
                spent = sum(len(one.measured) for one in searched)
                evaluations = ceil_div(evaluations - spent, left)
            budget = Budget(seconds, evaluations)
            known = _winners_near(problem, searched)
            searched.append(self._searched(run_id, problem, space, budget, known))
        # The last first: its data are on the device, and of many large data sets, which the disk has
        # no room for at once, those of the latest problems are left.
        for position, one in enumerate(reversed(searched)):
            seconds = self._seconds_left(but=self._portfolio_share)
            if seconds is not None:
                seconds = max(0.0, seconds / (len(searched) - position))
            self.done.insert(0, self._decided(run_id, one, searched, seconds))

    @property
    def _portfolio_share(self) -> float:
        """Share of the time that is kept for the portfolio: one problem needs none."""
        return _PORTFOLIO_SHARE if len(self.request.problems) > 1 else 0.0

    def _seconds_left(self, but: float = 0.0) -> float | None:
        """Time of the budget that is left, but for a share of it; None where it is not limited."""
        total_s = self.request.total_budget.seconds
        if total_s is None:
            return None
        return total_s * (1 - but) - (time.monotonic() - self._begun_s)

    def _searched(
        self,
        run_id: int,
        problem: Problem,
        space: Space,
        budget: Budget,
        known: Sequence[Configuration],
    ) -> _Searched:
        begun = time.monotonic()
        self.listener(Phase(problem, "inputs"))
        job = self.job(problem)
        other_data_s = (time.monotonic() - begun) / 2
        self.worker.prepare(job)
        evaluator = DeviceEvaluator(
            self.kernel, job, self.compilers, self.worker, stopping_rule(self.device)
        )
        seconds = budget.seconds
        if seconds is not None:
            seconds = max(1.0, seconds - (time.monotonic() - begun) - other_data_s)
        with self._on_every_device(evaluator) as searching:
            session = SearchSession(
                space=space,
                evaluator=searching,
                store=self.store,
                run_id=run_id,
                scope=self.scope(problem),
                budget=Budget(seconds, budget.evaluations),
                listener=self.listener,
                # One configuration by name is to be timed, though it may have been stopped early.
                fresh=self.request.fresh or self.request.only is not None,
                others=tuple(one.uuid for one in self.request.others),
            )
            measured = tuple(self._search(session, known).values())
        self.compilers.forget()
        choice = measured if self.request.only is not None else tuple(session.known())
        spent_s = time.monotonic() - begun
        return _Searched(problem, space, evaluator, measured, choice, spent_s, other_data_s)

    @contextmanager
    def _on_every_device(self, first: DeviceEvaluator) -> Iterator[Evaluator]:
        """An evaluator of all devices of the request.

        That of several serves one GPU too: it measures the next while the session stores the last.
        A CPU has no time for anything while it measures.
        """
        if self.device.backend != "cuda" and not self.request.others:
            yield first
            return
        others = [
            DeviceEvaluator(
                self.kernel, replace(first.job, device=device), self.compilers, worker, first.rule
            )
            for device, worker in zip(self.request.others, self.workers[1:], strict=True)
        ]
        with SeveralEvaluator([first, *others]) as several:
            yield several

    def _decided(
        self, run_id: int, one: _Searched, everyone: Sequence[_Searched], seconds: float | None
    ) -> ProblemResult:
        """Hold the finals of one problem."""
        begun = time.monotonic()
        guests = self._guests(run_id, one, everyone, seconds and _GUESTS_SHARE * seconds)
        if seconds is not None:
            seconds = max(0.0, seconds - (time.monotonic() - begun))
        entrants = [*self._entrants(one.choice), *guests]
        unsafe: list[Measurement] = []
        if self._sanitizer:
            entrants, unsafe = self._safe(one.problem, entrants)
            self.store.add_many(run_id, self.scope(one.problem), unsafe)
        finals, wrong = Finals(self, self.store, run_id, self.listener).hold(
            one.evaluator, entrants, seconds
        )
        return ProblemResult(
            one.problem,
            one.space,
            one.measured,
            finals,
            (*unsafe, *wrong),
            one.seconds + time.monotonic() - begun,
            len(entrants) if self._sanitizer else None,
        )

    def _safe(
        self, problem: Problem, entrants: Sequence[Measurement]
    ) -> tuple[list[Measurement], list[Measurement]]:
        """Finalists in which compute-sanitizer finds no fault, and rows of those where it does.

        The next best take the place of what is out, and are checked as well, a few times over. What
        was found for another problem of the run holds here: the small problems are the same.
        """
        static = tuple(problem[name] for name in self.kernel.static)
        safe: list[Measurement] = []
        out: dict[Configuration, sanitize.SanitizerFault] = {}
        for _ in range(_SANITIZER_ROUNDS):
            left = [one for one in entrants if one.configuration not in out]
            finalists = selection.candidates(left, self.request.effort.finalists)
            unknown = [
                one.configuration
                for one in finalists
                if (one.configuration, static) not in self._findings
            ]
            if unknown:
                self.listener(Phase(problem, "sanitizer"))
                begun = time.monotonic()
                found = self._sanitized(problem, unknown)
                self._begun_s += time.monotonic() - begun  # beside the budget, not out of it
                self._findings |= {(one, static): found.get(one) for one in unknown}
            safe = []
            for one in finalists:
                finding = self._findings[one.configuration, static]
                if finding is None:
                    safe.append(one)
                else:
                    out[one.configuration] = finding
            if len(safe) == len(finalists):
                break
        uuid = self.device.uuid
        rows = [Measurement(c, Status.UNSAFE, str(f), device_uuid=uuid) for c, f in out.items()]
        return safe, rows

    def _sanitized(
        self, problem: Problem, configurations: Sequence[Configuration]
    ) -> Mapping[Configuration, sanitize.SanitizerFault]:
        """What compute-sanitizer finds in configurations; warns of what it could not check."""
        trials = []
        for configuration in configurations:
            job = compile_job(self.kernel, configuration, problem, self.device)
            # So that a finding names the line; the code is the same.
            with_lines = replace(job, options=(*job.options, "-lineinfo"))
            binary = self.compilers.result(with_lines).binary
            if binary is not None:
                trials += [
                    sanitize.Trial(self.job(one, self.request.seed + 1), configuration, binary)
                    for one in sanitize.small_problems(self.kernel, configuration, problem)
                ]
        verdict = sanitize.check(self._sanitizer, trials)
        for text in verdict.unchecked:
            warnings.warn(f"{self.kernel.name}: compute-sanitizer: {text}", stacklevel=2)
        return verdict.findings

    def _entrants(self, choice: Sequence[Measurement]) -> list[Measurement]:
        """Who enters the finals: the best of each device, since those of two are not compared."""
        if not self.request.others:
            return list(choice)
        share = ceil_div(self.request.effort.finalists, len(self.request.devices))
        return [
            entrant
            for device in self.request.devices
            for entrant in selection.candidates(
                [one for one in choice if one.device_uuid == device.uuid], share
            )
        ]

    def _guests(
        self,
        run_id: int,
        one: _Searched,
        everyone: Sequence[_Searched],
        seconds: float | None,
    ) -> list[Measurement]:
        """Measure the best of every other problem here too, where that was not done, in this time."""
        if self.request.only is not None:
            return []
        known = {measurement.configuration for measurement in one.choice}
        best = [
            measurement.configuration
            for other in everyone
            for measurement in selection.candidates(other.choice, _GUESTS)
        ]
        guests = [
            configuration for configuration in dict.fromkeys(best) if configuration not in known
        ]
        end = math.inf if seconds is None else time.monotonic() + seconds
        measured: list[Measurement] = []
        for measurement in one.evaluator.measure(guests):
            measured.append(measurement)
            if time.monotonic() > end:
                self.compilers.forget()  # those of the other guests
                break
        self.store.add_many(run_id, self.scope(one.problem), measured)
        return measured

    def _search(
        self, session: SearchSession, known: Sequence[Configuration]
    ) -> dict[int, Measurement]:
        """Search one problem, beginning with what won elsewhere, the default and the seeds."""
        only = self.request.only
        if only is not None:
            if session.space.find(session.space.canonical(session.space.row(only))) is None:
                raise NothingValidError(self._why_invalid(session.space, only))
            return search(session, lambda *_: None, self.request.seed, [only])
        declared = [self.kernel.default(), *map(self.kernel.completed, self.kernel.seeds)]
        others = len(self.request.others)
        strategy = find(
            self.request.strategy,
            at_once=PER_DEVICE * (1 + others) if others else 1,
        )
        return search(session, strategy, self.request.seed, [*known, *declared])

    def _why_invalid(self, space: Space, configuration: Configuration) -> str:
        row = space.canonical(space.row(configuration))
        values = zip(space.parameters.items(), row, strict=True)
        canonical = {name: declared[index] for (name, declared), index in values}
        broken = [
            f"{rule.name} ({rule.doc})"
            for rule in broken_constraints(self.kernel, canonical, self.device)
        ]
        shown = Configuration(space.relevant(canonical))
        why = "; ".join(broken) or "outside --fix"
        return f"{self.kernel.name}: {shown} is not valid on {self.device.name}: {why}"

    def _portfolio(self) -> selection.PortfolioTimes | None:
        """Measure the best of every problem on every problem; choose winners among ties by it."""
        results = {one.problem: one.finals for one in self.done if one.finals is not None}
        if len(results) < 2 or self.request.only is not None:
            return None
        wrong = {one.configuration for result in self.done for one in result.disqualified}
        chosen = selection.enter_portfolio(list(results.values()), self.kernel.default())
        space = self.done[0].space
        # What is wrong on one problem's other data must answer for no problem.
        chosen = [one for one in chosen if one in space and one not in wrong]
        known = {
            problem: portfolios.KnownProblem(
                one.winner.median_ms, {f.measurement.configuration for f in one.finalists}
            )
            for problem, one in results.items()
        }
        portfolio = portfolios.measure(self, self.listener, known, chosen, self._seconds_left())
        if portfolio is not None:
            self.done = [_chosen_again(one, portfolio, self.request.seed) for one in self.done]
        return portfolio


def _winners_near(problem: Problem, searched: Sequence[_Searched]) -> list[Configuration]:
    """The best of the problems nearest to one, of those that were searched before it."""
    here = place_of(tuple(problem.values()))

    def apart(other: _Searched) -> float:
        steps = distance(here, place_of(tuple(other.problem.values())))
        return math.inf if steps is None else steps

    nearest = sorted(searched, key=apart)[:_NEAR_PROBLEMS]
    best = [one for other in nearest for one in selection.candidates(other.choice, 1)]
    return list(dict.fromkeys(one.configuration for one in best))


def _chosen_again(
    result: ProblemResult, portfolio: selection.PortfolioTimes, seed: int
) -> ProblemResult:
    if result.finals is None:
        return result
    finals = selection.with_portfolio(result.finals, result.problem, portfolio, seed)
    return replace(result, finals=finals)


def stopping_rule(device: Device) -> StoppingRule:
    """How long to time on a device.

    A CPU shares its cores with everything else: slow samples in a row there prove nothing. On a GPU
    verifying has loaded the binary, and of a long launch the first sample is as good as the next;
    the fewest samples of a launch of several milliseconds are enough, as little disturbs it.
    """
    if device.backend == "cuda":
        return StoppingRule(longest_discarded_ms=1.0, max_seconds=0.03)
    return StoppingRule(false_stop=0.0)


def _why_nothing(kernel: Kernel, problems: Sequence[ProblemResult]) -> str:
    """The message of a run without a winner: what happened how often, with an example."""
    everything = [one for result in problems for one in (*result.measured, *result.disqualified)]
    counts: dict[Status, int] = {}
    for one in everything:
        counts[one.status] = counts.get(one.status, 0) + 1
    shares = ", ".join(f"{count} {status}" for status, count in counts.items())
    if not everything:
        return f"{kernel.name}: the budget ended before anything was measured; give it more"
    worst = max(counts, key=lambda status: counts[status])
    example = next(one for one in everything if one.status is worst)
    return (
        f"{kernel.name}: no configuration is right ({shares}). "
        f"For example {example.configuration}: {example.message or example.status}"
    )
