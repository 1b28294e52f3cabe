"""The request of one run: kernel, devices, problems, goal and effort; and the options that make a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, TypeAlias

from autotune.devices.device import Device
from autotune.errors import NothingValidError, UsageError, unknown
from autotune.interop.exchange import fastest_imported
from autotune.kernel import parsing
from autotune.kernel.space import Space, broken_constraints
from autotune.kernel.spec import Kernel
from autotune.measure.device_worker import MEASURE_TIMEOUT_S
from autotune.measure.measurement import TIME, Objective, find_objective
from autotune.measure.roofline import deciding_caches
from autotune.measure.timing import Caches, Timing
from autotune.search import strategies
from autotune.search.session import Budget
from autotune.values import Configuration, Problem, Value

#: The only values that are searched, for some parameters.
Fixed: TypeAlias = Mapping[str, Sequence[Value]]


@dataclass(frozen=True)
class Search:
    """A search of every problem. The winners go into a record."""

    strategy: str = "auto"
    fixed: Fixed = field(default_factory=dict)
    #: Imported configurations with their problems, which are tried first if the space contains them.
    imported: tuple[tuple[Problem, Configuration], ...] = ()
    #: Whether to measure again, without results from the store.
    fresh: bool = False
    #: Options of the strategy; see `strategies.checked_options`.
    strategy_options: Mapping[str, Value] = field(default_factory=dict)
    #: Whether the results are recorded and compared with the device's limits.
    writes_record: ClassVar[bool] = True

    @property
    def searched_by(self) -> str:
        """The strategy and its options, as records and the store name them: ``kt:pso (popsize=10)``."""
        options = f" ({Configuration(self.strategy_options)})" if self.strategy_options else ""
        return self.strategy + options


@dataclass(frozen=True)
class VerifyOne:
    """One configuration, which is verified and timed on every problem."""

    configuration: Configuration
    fixed: Fixed = field(default_factory=dict)
    imported: ClassVar[tuple[tuple[Problem, Configuration], ...]] = ()
    strategy: ClassVar[str] = "none"
    searched_by: ClassVar[str] = "none"
    #: True, since rows of the store may have been stopped early, without a time.
    fresh: ClassVar[bool] = True
    writes_record: bool = False

    def require_member(self, kernel: Kernel, device: Device, space: Space) -> None:
        """Raise `NothingValidError` if the configuration is not in the space."""
        row = space.canonical(space.row(self.configuration))
        if space.find(row) is not None:
            return
        canonical = {
            name: declared[index]
            for (name, declared), index in zip(space.parameters.items(), row, strict=True)
            if name in self.configuration
        }
        broken = [
            f"{rule.name} ({rule.doc})" for rule in broken_constraints(kernel, canonical, device)
        ]
        shown = Configuration(space.relevant(canonical))
        why = "; ".join(broken) or "outside the fixed values"
        raise NothingValidError(f"{kernel.name}: {shown} is not valid on {device.name}: {why}")


Goal: TypeAlias = Search | VerifyOne


@dataclass(frozen=True)
class Effort:
    """The thoroughness of a run."""

    name: str
    seconds_per_problem: float
    finalists: int
    rounds: int
    #: Number of rounds of energy windows, if the objective needs energy.
    windows: int
    #: Whether problems share the budget of the command; else each problem has it.
    shared: bool
    #: Whether finalists on a GPU run under compute-sanitizer by default.
    sanitizes: bool


EFFORTS = {
    "quick": Effort("quick", 60.0, finalists=6, rounds=30, windows=8, shared=True, sanitizes=False),
    "full": Effort(
        "full", 600.0, finalists=12, rounds=100, windows=16, shared=False, sanitizes=True
    ),
}


@dataclass(frozen=True)
class Request:
    """The request of one run."""

    kernel: Kernel
    device: Device
    problems: tuple[Problem, ...]
    effort: Effort = field(default_factory=lambda: EFFORTS["quick"])
    goal: Goal = field(default_factory=Search)
    budget: Budget | None = None
    seed: int = 0
    #: State of the caches before each call; None: it depends on the problem, see `caches_of`.
    caches: Caches | None = None
    #: Other devices of the same model, which measure at the same time.
    others: tuple[Device, ...] = ()
    #: The cost that is minimised.
    objective: Objective = TIME
    #: Whether finalists must pass NVIDIA's compute-sanitizer; None: by effort, see `Effort.sanitizes`.
    sanitize: bool | None = None
    #: Whether the result replaces any recorded entry and lookup uses it, even for an experiment.
    accept: bool = False
    #: Winners of records into which the result is merged. They enter the finals.
    recorded: Mapping[Problem, Sequence[Configuration]] = field(default_factory=dict)
    #: Maximum time in seconds to verify and time one configuration.
    timeout_s: float = MEASURE_TIMEOUT_S
    command: str = ""
    #: Whether the random data are a caller's own and so the same for every seed.
    has_callers_data: bool = False

    @classmethod
    def without_search(
        cls,
        kernel: Kernel,
        device: Device,
        problems: Sequence[Problem],
        caches: Caches | None = None,
        command: str = "",
    ) -> Request:
        """Return the request for a bench that verifies or times given configurations."""
        return cls(kernel, device, tuple(problems), caches=caches, command=command)

    @classmethod
    def with_kernel(cls, kernel: Kernel, others: Mapping[str, Any]) -> Request:
        """Return a request from a kernel and the fields of `without_kernel`."""
        return cls(kernel=kernel, **others)

    def without_kernel(self) -> dict[str, Any]:
        """Return all fields except the kernel, which another process loads itself."""
        names = (field.name for field in fields(self))
        return {name: getattr(self, name) for name in names if name != "kernel"}

    @property
    def is_experiment(self) -> bool:
        """True if the result does not go into the records that lookup reads."""
        return not self.accept and bool(self.goal.fixed or not self.goal.writes_record)

    def with_default_problems(self) -> Request:
        """Return the request with each named problem once; without any, with the kernel's own problems."""
        if self.problems:
            named = tuple(dict.fromkeys(map(self.kernel.normal, self.problems)))
            for problem in named if self.goal.writes_record else ():
                if layout := self.kernel.layout_of(problem):
                    raise UsageError(
                        f"{self.kernel.name}: {layout} is a layout, and layouts are not tuned: "
                        f"leave it out, or verify one configuration on it (config)"
                    )
            for problem in named:
                if why := self.kernel.unsupported_offsets(problem, self.device):
                    raise UsageError(f"{self.kernel.name} ({problem}): {why}")
            return replace(self, problems=named)
        groups = self.kernel.problems if self.effort.name == "full" else self.kernel.quick_problems
        chosen = groups.get(self.device.backend, ())
        if not chosen:
            raise UsageError(f"{self.kernel.name}: no problems for {self.device.backend}; name one")
        return replace(self, problems=chosen)

    @property
    def devices(self) -> tuple[Device, ...]:
        """All devices that measure."""
        return (self.device, *self.others)

    def caches_of(self, problem: Problem) -> Caches:
        """Return the requested state of the caches before calls on a problem, or the state by a fixed rule."""
        return self.caches or deciding_caches(self.kernel.work_of(problem), self.device)

    def timing_of(self, problem: Problem) -> Timing:
        """Return the way of timing a problem."""
        launched_by = "graph" if self.device.is_cuda else "stream"
        return Timing.of(self.caches_of(problem), launched_by)

    @property
    def sanitizes(self) -> bool:
        """True if finalists run under compute-sanitizer when it is installed."""
        by_effort = self.effort.sanitizes and self.goal.writes_record
        return by_effort if self.sanitize is None else self.sanitize

    @property
    def total_budget(self) -> Budget:
        """The budget of the command: as given, else by effort."""
        if self.budget is not None:
            return self.budget
        times = 1 if self.effort.shared else len(self.problems)
        return Budget(seconds=self.effort.seconds_per_problem * times)


@dataclass(frozen=True)
class RunOptions:
    """The user's options of a run, for any kernel; see `autotune.tune` for their meaning.

    The constructor raises `UsageError` for an unknown effort, timing, objective or strategy, an invalid
    budget, or an invalid option of the strategy.
    """

    problems: Sequence[str | Mapping[str, Any]] = ()
    effort: str = "quick"
    budget: str | None = None
    strategy: str = "auto"
    strategy_options: Mapping[str, Any] = field(default_factory=dict)
    objective: str = "time"
    fixed: Mapping[str, Any] = field(default_factory=dict)
    #: The configuration to measure instead of a search.
    config: str | Mapping[str, Any] | None = None
    timing: str | None = None
    seed: int = 0
    fresh: bool = False
    #: Whether imported configurations are measured first.
    tries_imported: bool = True
    sanitize: bool | None = None
    accept: bool = False
    command: str = ""

    def __post_init__(self) -> None:
        if self.effort not in EFFORTS:
            raise UsageError(unknown("effort", self.effort, EFFORTS))
        if self.timing not in (None, *Caches):
            raise UsageError(unknown("timing", self.timing, Caches))
        find_objective(self.objective)
        _ = self._budget, self._strategy_options

    def request(self, kernel: Kernel, devices: Sequence[Device]) -> Request:
        """Return the request for a kernel on devices of one model."""
        return Request(
            kernel=kernel,
            device=devices[0],
            others=tuple(devices[1:]),
            problems=tuple(parsing.problem(kernel, problem) for problem in self.problems),
            effort=EFFORTS[self.effort],
            goal=self._goal(kernel),
            budget=self._budget,
            seed=self.seed,
            caches=Caches(self.timing) if self.timing else None,
            objective=find_objective(self.objective),
            sanitize=self.sanitize,
            accept=self.accept,
            command=self.command,
        )

    @property
    def _budget(self) -> Budget | None:
        return None if self.budget is None else Budget.parse(self.budget)

    @property
    def _strategy_options(self) -> dict[str, Value]:
        return strategies.checked_options(self.strategy, self.strategy_options)

    def _goal(self, kernel: Kernel) -> Goal:
        fixed = parsing.restriction(kernel.name, kernel.parameters, self.fixed)
        if self.config is not None:
            configuration = parsing.configuration(kernel, self.config)
            return VerifyOne(configuration, fixed, self.accept)
        imported = fastest_imported(kernel.name) if self.tries_imported else ()
        return Search(self.strategy, fixed, imported, self.fresh, self._strategy_options)
