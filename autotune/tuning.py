"""The whole job of one `autotune run`: search every problem, hold the finals, make the record.

Puts the parts together; prints nothing and writes no file of its own. `cli` and `api` call it.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median
from typing import Any

from numpy.typing import NDArray

from autotune import __version__, probe, selection
from autotune.backends import backend
from autotune.compiler import CompilerPool
from autotune.data import EXACT, RANDOM, prepare
from autotune.device import Device
from autotune.engine import Budget, Listener, Phase, SearchSession, ignore, search
from autotune.errors import AutotuneError, Interrupted, NothingValidError, StoreError, UsageError
from autotune.evaluator import DeviceEvaluator
from autotune.expression import ceil_div
from autotune.measurement import Measurement, Status
from autotune.probe import MeasuredLimits
from autotune.process import usable_cores
from autotune.source import arguments_fingerprint, source_fingerprint
from autotune.space import Space, enumerate_space
from autotune.spec import Kernel
from autotune.store import RunInfo, Scope, Store
from autotune.strategies import find
from autotune.tasks import Contender, Job
from autotune.timing import StoppingRule
from autotune.values import Configuration, Problem, Value
from autotune.worker import MEASURE_TIMEOUT_S, Worker

#: Share of a problem's time that is kept for its finals.
_FINALS_SHARE = 0.15
#: Of every other problem this many of the best enter a problem's finals.
_GUESTS = 2
#: Samples of each configuration of the portfolio on each problem, and the time they may take.
_PORTFOLIO_ROUNDS = 9
_PORTFOLIO_SECONDS = 10.0


@dataclass(frozen=True)
class Effort:
    """How thorough a run is."""

    name: str
    seconds_per_problem: float
    finalists: int
    rounds: int
    #: Whether the budget of the command is divided among its problems.
    shared: bool


EFFORTS = {
    "quick": Effort("quick", 60.0, finalists=6, rounds=30, shared=True),
    "full": Effort("full", 600.0, finalists=12, rounds=100, shared=False),
}


@dataclass(frozen=True)
class Request:
    """What one run is asked to do."""

    kernel: Kernel
    device: Device
    problems: tuple[Problem, ...]
    effort: Effort = EFFORTS["quick"]
    strategy: str = "auto"
    budget: Budget | None = None
    seed: int = 0
    cold: bool = True
    #: Measure again what is remembered.
    fresh: bool = False
    #: Values that some parameters are restricted to.
    fixed: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    #: The one configuration to verify and time, instead of a search.
    only: Configuration | None = None
    #: Arrays to use in place of drawn ones, by argument name.
    inputs: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    #: Longest time one configuration may take to be verified and timed.
    timeout_s: float = MEASURE_TIMEOUT_S
    command: str = ""

    def with_default_problems(self) -> Request:
        """Where no problem is named: the kernel's own for this backend and effort.

        Raises
        ------
        UsageError
            If the kernel names none for this backend.
        """
        if self.problems:
            return self
        groups = self.kernel.problems if self.effort.name == "full" else self.kernel.quick_problems
        chosen = groups.get(self.device.backend, ())
        if not chosen:
            raise UsageError(
                f"{self.kernel.name}: no problems for {self.device.backend}; give --problem"
            )
        return replace(self, problems=chosen)

    @property
    def timing(self) -> str:
        """How samples are taken, as records say it."""
        return "cold:flush" if self.cold else "hot"

    @property
    def total_budget(self) -> Budget:
        """The budget of the command: as given, else by effort."""
        if self.budget is not None:
            return self.budget
        times = 1 if self.effort.shared else len(self.problems)
        return Budget(seconds=self.effort.seconds_per_problem * times)


@dataclass(frozen=True)
class ProblemResult:
    """What came of one problem."""

    problem: Problem
    space: Space
    #: In the order they were asked for, remembered ones included.
    measured: tuple[Measurement, ...]
    #: None where nothing was right.
    finals: selection.Result | None
    disqualified: tuple[Measurement, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class RunResult:
    """What came of a run."""

    request: Request
    problems: tuple[ProblemResult, ...]
    run_id: int
    source: str
    toolchain: str
    #: Finalists of all problems on every problem; None for a run of one problem.
    portfolio: selection.Portfolio | None = None
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


class Tuning:
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
        self.request, self.store, self.listener = request, store, listener
        self.kernel, self.device = request.kernel, request.device
        self.done: list[ProblemResult] = []
        self._stack = ExitStack()
        # One core stays free, so that compiling does not disturb the timing; where the device is
        # the CPU itself the evaluator never compiles and measures at once.
        spare = 1 if self.device.backend == "cuda" else 0
        processes = max(1, usable_cores() - spare)
        self.compilers = self._stack.enter_context(CompilerPool(processes))
        self.worker = self._stack.enter_context(Worker(request.timeout_s))

    def close(self) -> None:
        """End all processes."""
        self._stack.close()

    @cached_property
    def source(self) -> str:
        """sha256 of all sources of the kernel with their includes."""
        return source_fingerprint(self.kernel)

    @cached_property
    def toolchain(self) -> str:
        """Name and version of the compiler."""
        return backend(self.device.backend).toolchain()

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
        """
        if self.request.only is not None:
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
        start = time.monotonic()
        total = self.request.total_budget
        for position, problem in enumerate(self.request.problems):
            left = len(self.request.problems) - position
            seconds = total.seconds
            if seconds is not None:
                seconds = seconds * (1 - _FINALS_SHARE) - (time.monotonic() - start)
                seconds = max(1.0, seconds / left)
            evaluations = total.evaluations
            if evaluations is not None:
                spent = sum(len(one.measured) for one in searched)
                evaluations = ceil_div(evaluations - spent, left)
            budget = Budget(seconds, evaluations)
            searched.append(self._searched(run_id, problem, space, budget))
        seconds = total.seconds and _FINALS_SHARE * total.seconds / len(searched)
        for one in searched:
            self.done.append(self._decided(run_id, one, searched, seconds))

    def _searched(self, run_id: int, problem: Problem, space: Space, budget: Budget) -> _Searched:
        begun = time.monotonic()
        self.listener(Phase(problem, "inputs"))
        job = self.job(problem)
        self.worker.prepare(job)
        evaluator = DeviceEvaluator(
            self.kernel, job, self.compilers, self.worker, stopping_rule(self.device)
        )
        seconds = budget.seconds
        if seconds is not None:
            seconds = max(1.0, seconds - (time.monotonic() - begun))
        session = SearchSession(
            space=space,
            evaluator=evaluator,
            store=self.store,
            run_id=run_id,
            scope=self.scope(problem),
            budget=Budget(seconds, budget.evaluations),
            listener=self.listener,
            fresh=self.request.fresh,
        )
        measured = tuple(self._search(session).values())
        self.compilers.forget()
        choice = measured if self.request.only is not None else tuple(session.known())
        return _Searched(problem, space, evaluator, measured, choice, time.monotonic() - begun)

    def _decided(
        self, run_id: int, one: _Searched, everyone: Sequence[_Searched], seconds: float | None
    ) -> ProblemResult:
        """Hold the finals of one problem."""
        begun = time.monotonic()
        guests = self._guests(run_id, one, everyone)
        finals, disqualified = self._finals(run_id, one.evaluator, [*one.choice, *guests], seconds)
        took = one.seconds + time.monotonic() - begun
        return ProblemResult(one.problem, one.space, one.measured, finals, disqualified, took)

    def _guests(
        self, run_id: int, one: _Searched, everyone: Sequence[_Searched]
    ) -> list[Measurement]:
        """Measure the best of every other problem here too, where that was not done."""
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
        measured = list(one.evaluator.measure(guests))
        self.store.add_many(run_id, self.scope(one.problem), measured)
        return measured

    def _search(self, session: SearchSession) -> dict[int, Measurement]:
        only = self.request.only
        if only is not None:
            index = session.space.index(only)
            if index is None:
                raise NothingValidError(f"{self.kernel.name}: {only} is not valid here")
            return search(session, lambda *_: None, self.request.seed, [only])
        known = [self.kernel.default(), *map(self.kernel.completed, self.kernel.seeds)]
        return search(session, find(self.request.strategy), self.request.seed, known)

    # ------------------------------------------------------------------ finals

    def _finals(
        self,
        run_id: int,
        evaluator: DeviceEvaluator,
        measured: Sequence[Measurement],
        seconds: float | None,
    ) -> tuple[selection.Result | None, tuple[Measurement, ...]]:
        """Verify the best again on other data and odd sizes, then race them and the vendor."""
        chosen = selection.candidates(measured, self.request.effort.finalists)
        if not chosen:
            return None, ()
        self.listener(Phase(evaluator.job.problem, "finals"))
        chosen, disqualified = self._verified_again(run_id, evaluator, chosen)
        if not chosen:
            return None, disqualified
        contenders = [
            Contender(one.configuration, evaluator.binary(one.configuration)) for one in chosen
        ]
        vendors = [one.name for one in self.kernel.baselines if one.backend == self.device.backend]
        everyone = contenders + [Contender(Configuration(), None, name) for name in vendors]
        limit = max(2.0, seconds) if seconds is not None else 60.0
        samples = self.worker.race(
            evaluator.job, everyone, self.request.effort.rounds, self.request.seed, limit
        )
        finalists = [
            selection.Finalist(measurement, tuple(times))
            for measurement, times in zip(chosen, samples, strict=False)
        ]
        by_vendor = dict(zip(vendors, samples[len(chosen) :], strict=True))
        return selection.decide(finalists, by_vendor, self.request.seed), disqualified

    def _verified_again(
        self, run_id: int, evaluator: DeviceEvaluator, chosen: list[Measurement]
    ) -> tuple[list[Measurement], tuple[Measurement, ...]]:
        """Drop finalists that are wrong on another seed or an odd size; their rows say so."""
        wrong: dict[Configuration, Measurement] = {}
        for job in self.other_jobs(evaluator.job):
            for one in chosen:
                binary = evaluator.binary(one.configuration)
                if binary is None or one.configuration in wrong:
                    continue
                again = self.worker.check(job, one.configuration, binary)
                if again.status is not Status.OK:
                    message = f"on {job.problem} with other inputs: {again.message}"
                    wrong[one.configuration] = replace(again, message=message)
        scope = self.scope(evaluator.job.problem)
        self.store.add_many(run_id, scope, list(wrong.values()))
        kept = [
            one
            for one in chosen
            if one.configuration not in wrong and evaluator.binary(one.configuration)
        ]
        return kept, tuple(wrong.values())

    def other_jobs(self, job: Job) -> list[Job]:
        """The same problem with another seed, and the odd sizes.

        Static fields are compiled in, so an odd size with other values of those needs another
        binary and is left to the kernel's own tests.
        """
        static = self.kernel.static
        edges = [
            one
            for one in self.kernel.edge_problems
            if all(one[name] == job.problem[name] for name in static)
        ]
        other = self.request.seed + 1
        again = [] if self.request.inputs else [self.job(job.problem, other)]
        return [*(self.job(one, other) for one in edges), *again]

    # ------------------------------------------------------------------ portfolio

    def _portfolio(self) -> selection.Portfolio | None:
        """Measure the best of every problem on every problem; choose winners among ties by it."""
        solved = [one for one in self.done if one.finals is not None]
        if len(solved) < 2 or self.request.only is not None:
            return None
        finals = [one.finals for one in solved if one.finals is not None]
        chosen = selection.enter_portfolio(finals, self.kernel.default())
        space = solved[0].space
        chosen = [one for one in chosen if one in space]
        columns = [self._measured_on(one.problem, chosen) for one in solved]
        portfolio = selection.Portfolio(
            configurations=tuple(chosen),
            problems=tuple(one.problem for one in solved),
            median_ms=tuple(zip(*columns, strict=True)),
        )
        self.done = [
            replace(one, finals=selection.with_portfolio(one.finals, one.problem, portfolio))
            if one.finals is not None
            else one
            for one in self.done
        ]
        return portfolio

    def _measured_on(
        self, problem: Problem, configurations: Sequence[Configuration]
    ) -> list[float | None]:
        """Median time of each configuration on one problem; None where it is not right there."""
        self.listener(Phase(problem, "portfolio"))
        job = self.job(problem)
        evaluator = DeviceEvaluator(self.kernel, job, self.compilers, self.worker)
        evaluator.hint(configurations)
        contenders = []
        for one in configurations:
            binary = evaluator.binary(one)
            if binary is not None and self.worker.check(job, one, binary).status is Status.OK:
                contenders.append(Contender(one, binary))
        samples = self.worker.race(
            job, contenders, _PORTFOLIO_ROUNDS, self.request.seed, _PORTFOLIO_SECONDS
        )
        times = {
            one.configuration: median(taken)
            for one, taken in zip(contenders, samples, strict=True)
            if taken
        }
        return [times.get(one) for one in configurations]

    # ------------------------------------------------------------------ identities

    def job(self, problem: Problem, seed: int | None = None) -> Job:
        """The worker's job for a problem; makes inputs and references where they are not there."""
        assert self.kernel.file is not None
        chosen = self.request.seed if seed is None else seed
        inputs = self.request.inputs if seed is None else {}
        names = [RANDOM] if inputs else [EXACT, RANDOM]
        datasets = tuple(prepare(self.kernel, problem, name, chosen, inputs) for name in names)
        return Job(self.kernel.file, problem, self.device, datasets, self.request.cold)

    def scope(self, problem: Problem) -> Scope:
        """Key of remembered measurements of a problem."""
        assert self.kernel.file is not None
        return Scope(
            kernel=self.kernel.name,
            problem=problem,
            device_uuid=self.device.uuid,
            device_name=self.device.name,
            driver=self.device.driver,
            toolchain=self.toolchain,
            source=self.source,
            arguments=arguments_fingerprint(self.kernel, self.request.inputs),
            timing=self.request.timing,
            arch=self.device.arch,
        )


def stopping_rule(device: Device) -> StoppingRule:
    """How long to time on a device.

    A CPU shares its cores with everything else: three slow samples there prove nothing.
    """
    return StoppingRule() if device.backend == "cuda" else StoppingRule(stop_ratio=float("inf"))


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
