"""The schema of a tuned record, all that is known about one kernel on one device, and its check.

Lookup imports this module, so it imports what is heavy only where that is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import msgspec

from autotune.kernel.expression import MAX_INTEGER, OPERATORS, value_of
from autotune.values import SOURCE

if TYPE_CHECKING:
    from autotune.devices.device import Device
    from autotune.kernel.spec import Kernel

SCHEMA_VERSION = 2
FORMAT = "autotune tuned record"

#: What records are tuned for by default.
TIME = "time"
#: How thorough a search was, least first.
EFFORTS = ("quick", "full")

#: Shared memory that every CUDA architecture grants a block without asking.
COMMON_SHARED_BYTES = 48 * 1024
#: Operations within operations of a stored expression: more than a person writes, and so few that
#: they can be walked wherever lookup is called.
MAX_DEPTH = 64
#: Features of a cost besides those of the problem, and levels of a tree at most.
OWN_FEATURES, MAX_LEVELS = 4, 6
#: A newer portfolio, of today's winners, takes the place of one that is at most this much wider.
FAR_MORE = 1.5

#: What a number of a file may be, so that nobody who reads one need ask: an integer is of 64 bits,
#: there are so many of something, a time in milliseconds or a ratio of two is neither nothing nor
#: absurd, a rate or an error may be nothing.
Integer: TypeAlias = Annotated[int, msgspec.Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
Measured: TypeAlias = Annotated[float, msgspec.Meta(gt=0, lt=1e15)]
Amount: TypeAlias = Annotated[float, msgspec.Meta(ge=0, lt=1e300)]
#: Words that no rule depends on: of a driver, a compiler, a library.
Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=1000)]

#: Part of a path, in some folders.
Word: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^\w{1,32}\Z")]
#: A value of a parameter; a text is part of a C identifier.
Value: TypeAlias = (
    Integer | bool | float | Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_]+\Z")]
)
#: Values of a problem's fields.
Sizes: TypeAlias = Mapping[str, Integer | str]
ProblemItems: TypeAlias = frozenset[tuple[str, int | str]]
#: Threads or blocks in x, y, z.
Triple: TypeAlias = tuple[Positive, Positive, Positive]
#: An expression over integer problem fields as JSON; see `autotune.kernel.expression`.
StoredExpression: TypeAlias = int | str | list[Any]
Grid: TypeAlias = tuple[StoredExpression, StoredExpression, StoredExpression]
#: How far problems are apart; see `autotune.tuned.table.distance`.
Distance: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
#: The share of the best speed to expect at least, and the distance up to which.
Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]
Expectation: TypeAlias = tuple[Distance, Share]
#: A correction of a fitted time.
Factor: TypeAlias = Annotated[float, msgspec.Meta(ge=0.01, le=100)]
#: A coefficient in milliseconds, and the integer problem fields that it is multiplied by.
Term: TypeAlias = tuple[Annotated[float, msgspec.Meta(ge=0, lt=1e15)], tuple[str, ...]]


class RecordedDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The device that a record was measured on; see `autotune.devices.device.Device`."""

    backend: Word
    name: Text
    arch: Word
    uuid: Text = ""
    driver: Text = ""
    #: Of every CUDA device 32 and 1024.
    warp_size: Positive = 32
    max_threads_per_block: Positive = 1024
    sm_count: Count = 1
    shared_bytes_per_block: Count = 0
    l2_bytes: Count = 0
    memory_bytes: Count = 0
    peak_gb_per_s: Amount = 0.0
    peak_gflop_per_s: Amount = 0.0

    @classmethod
    def of(cls, device: Device) -> RecordedDevice:
        """Return what a record keeps of a live device."""
        return cls(**{name: getattr(device, name) for name in cls.__struct_fields__})

    @property
    def folder(self) -> str:
        """Return the name of the device as a folder."""
        from autotune.devices.device import Device

        return Device(self.backend, self.name, self.arch).folder

    def planned_for(self) -> Device:
        """Return a device to plan launches for, of the recorded properties."""
        from dataclasses import replace

        from autotune.devices.device import Device, for_arch

        known = msgspec.structs.asdict(self)
        device = Device(**known)
        if device.is_cuda:
            return replace(for_arch(self.arch), **known)
        return replace(
            device,
            max_threads_per_sm=self.max_threads_per_block,
            shared_bytes_per_sm=self.shared_bytes_per_block,
        )


class LaunchStep(msgspec.Struct, frozen=True, kw_only=True, tag="launch", tag_field="step"):
    """One kernel launch of a step sequence."""

    entry: str
    #: Grid for the entry's own problem.
    concrete_grid: Triple
    block: Triple
    shared_bytes: Count = 0
    #: None where the launch cannot be traced.
    grid: Grid | None = None
    #: Names of arguments and scratch buffers, integers, or stored operations on problem fields.
    args: tuple[StoredExpression, ...] = ()


class FillStep(msgspec.Struct, frozen=True, kw_only=True, tag="fill", tag_field="step"):
    """A buffer set to one value, as part of a step sequence."""

    name: str
    value: float = 0.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration and its main launch, that of the kernel's name: the answer of a lookup."""

    configuration: Mapping[str, Value]
    block: Triple
    shared_bytes: Count = 0
    #: None where the launch cannot be traced.
    grid: Grid | None = None
    #: Condition that a problem and its layout must satisfy; None where all are fine.
    requires: StoredExpression | None = None
    #: Architectures whose declared space holds this configuration; None where not examined.
    archs: tuple[str, ...] | None = None
    #: Whether two launches of one loaded module must not overlap.
    exclusive: bool = False
    #: Whether it is declared that the same data give the same bits in every run; see `Kernel.deterministic`.
    deterministic: bool = False

    def allows(self, fields: Mapping[str, object]) -> bool:
        """Return whether a problem satisfies this plan's condition."""
        if self.requires is None:
            return True
        try:
            return value_of(self.requires, fields) != 0
        except ValueError:
            return False

    def fits(self, arch: str) -> bool:
        """Return whether the plan is known, or else likely, to be valid on an architecture."""
        if self.archs is not None:
            return arch in self.archs
        return self.shared_bytes <= COMMON_SHARED_BYTES


class Checks(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Largest error of the winner against the expected results, and the bound it kept."""

    max_error: Amount
    rms_error: Amount
    bound: Amount
    #: Inputs of which a missing element would not have been noticed.
    unseen: tuple[Text, ...] = ()
    #: Configurations that agree on the expected results; 0 where a float64 reference gives them.
    agreed: Count = 0


class Estimate(msgspec.Struct, frozen=True, array_like=True):
    """A median and its 95 % interval."""

    value: Measured
    #: None where they were not recorded.
    low: Measured | None = None
    high: Measured | None = None

    @property
    def interval(self) -> tuple[float, float]:
        """Return the interval; of no width where it was not recorded."""
        return self.low or self.value, self.high or self.value


class EnergyResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The energy of one call of a contender, over the energy windows of its race; see docs/timing.md."""

    #: Of one call, in millijoules.
    call_mj: Estimate
    #: Mean power under load, of the whole board, and the most that it was allowed to draw.
    power_w: Measured | None = None
    limit_w: Measured | None = None
    #: Under load.
    sm_mhz: Count | None = None
    windows: Count = 0


class ContenderResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A configuration after a race, or a vendor's call by its name."""

    #: None for a vendor's call.
    configuration: Mapping[str, Value] | None = None
    vendor: Text = ""
    #: Whether it is too close to the best to call; None where this was not recorded.
    tied: bool | None = None
    time_ms: Estimate
    #: Its cost, by default its time, over the winner's in the same rounds: above 1 it is worse.
    ratio: Estimate | None = None
    #: Of a vendor's call, its time over the winner's, where the cost is something else.
    time_ratio: Estimate | None = None
    #: Medians of clean calls, and of calls back to back; None where not taken; see docs/timing.md.
    clean_ms: Measured | None = None
    hot_ms: Measured | None = None
    #: None where the objective needs no energy.
    energy: EnergyResult | None = None
    #: Whether it is declared to give the same bits in every run, and the number of runs that did.
    deterministic: bool = False
    identical_runs: Count = 0
    #: Of the function with most registers; None where unknown.
    registers: Count | None = None
    spill_bytes: Count | None = None
    static_shared_bytes: Count | None = None


class RaceResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of one race; `autotune.run.verdict.judge` makes it."""

    #: How samples were taken: ``cold:graph``, ``cold:flush`` ...; see `autotune.measure.timing.Timing`.
    timing: Text
    rounds: Count
    #: SM clock under load; None where the device does not say.
    sm_mhz: Count | None = None
    #: Number of configurations too close to call, the winner included.
    tied: Count = 1
    #: Why the time or the choice may be wrong by more than usual, one clause each.
    noise: tuple[Text, ...] = ()
    #: The winner, the other configurations best first, then vendor calls by their time.
    contenders: Annotated[tuple[ContenderResult, ...], msgspec.Meta(min_length=1)]

    @property
    def winner(self) -> ContenderResult:
        """Return the configuration that was chosen."""
        return self.contenders[0]

    @property
    def finalists(self) -> tuple[ContenderResult, ...]:
        """Return the configurations: the winner, then the others best first."""
        return tuple(found for found in self.contenders if not found.vendor)

    @property
    def runners_up(self) -> tuple[ContenderResult, ...]:
        """Return the configurations without the winner, best first."""
        return self.finalists[1:]

    @property
    def vendor(self) -> ContenderResult | None:
        """Return the fastest vendor call: beating a slower one proves nothing."""
        return next((found for found in self.contenders if found.vendor), None)

    @property
    def vendor_name(self) -> str:
        """Return the name of that call; empty where there is none."""
        return self.vendor.vendor if self.vendor else ""

    @property
    def speedup(self) -> Estimate | None:
        """Return its time over the winner's in the same rounds: above 1 the winner is faster."""
        return (self.vendor.time_ratio or self.vendor.ratio) if self.vendor else None

    @property
    def best_deterministic(self) -> ContenderResult | None:
        """Return the best deterministic configuration where the winner is not one; None: there is none."""
        if self.winner.deterministic:
            return None
        return next((found for found in self.runners_up if found.deterministic), None)

    def of(self, configuration: Mapping[str, Value]) -> ContenderResult | None:
        """Return the result of a configuration; None where it has none."""
        wanted = dict(configuration)
        return next((found for found in self.finalists if found.configuration == wanted), None)


class Confirmed(msgspec.Struct, frozen=True, kw_only=True):
    """The latest time that an entry was verified and measured again, and held."""

    #: When; see `timestamp`.
    on: str
    driver: Text
    toolchain: Text
    #: Time then over the recorded one: above 1 it was slower.
    ratio: Amount
    ratio_interval: tuple[Amount, Amount]


class TuningOrigin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When, how and from what a problem was tuned."""

    #: See `timestamp`.
    tuned_on: str
    #: Fingerprint of all sources of the kernel, not only of the winner's.
    source: str
    #: Fingerprint of the space file's arguments, reference, launch and options.
    arguments: str
    #: Compiler options of the winner, without its defines.
    options: tuple[str, ...] = ()
    driver: Text
    toolchain: Text
    #: The device that held the finals.
    device_uuid: Text
    effort: Literal["quick", "full"]
    strategy: Text
    seed: int
    evaluations: Count
    #: The command of the run, without folders, and its budget; empty in older records.
    command: Annotated[str, msgspec.Meta(max_length=2000)] = ""
    budget: Annotated[str, msgspec.Meta(max_length=200)] = ""
    #: Who measured, as ``AUTOTUNE_WHO`` said; empty where nobody asked to be named.
    who: Annotated[str, msgspec.Meta(max_length=200)] = ""
    #: The git commit of the space file and its sources, ``-dirty`` where they differ from it; empty
    #: where they are in no repository.
    commit: Annotated[str, msgspec.Meta(max_length=80)] = ""


class TunedProblem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A problem with its winner and the evidence."""

    problem: Sizes
    #: The winner's plan, then that of the best deterministic finalist where the winner is none.
    plans: Annotated[tuple[Plan, ...], msgspec.Meta(min_length=1)]
    steps: tuple[LaunchStep | FillStep, ...] = ()
    #: The finals.
    race: RaceResult
    gb_per_s: Amount | None = None
    gflop_per_s: Amount | None = None
    #: Share of the device's measured limit that binds, and which limit that is.
    limit_fraction: Amount | None = None
    limit_name: Text | None = None
    checks: Checks | None = None
    #: The kernel's own metrics of the winner.
    metrics: Mapping[str, float] = {}
    origin: TuningOrigin
    confirmed: Confirmed | None = None

    @property
    def plan(self) -> Plan:
        """Return the winner's plan."""
        return self.plans[0]

    @property
    def configuration(self) -> Mapping[str, Value]:
        """Return the winner's configuration."""
        return self.plan.configuration

    @property
    def winner(self) -> ContenderResult:
        """Return the winner's result in the finals."""
        return self.race.winner

    @property
    def median_ms(self) -> float:
        """Return the winner's time in the finals."""
        return self.winner.time_ms.value

    def untraced_grid(self, kernel: str) -> Triple | None:
        """Return the grid of the main launch for this very problem, where the plan has none."""
        # The main launch is as in `autotune.kernel.launches`, which is too heavy to import here.
        launches = [step for step in self.steps if isinstance(step, LaunchStep)]
        named = (step for step in launches if step.entry == kernel)
        main = next(named, launches[0] if launches else None)
        return main.concrete_grid if main and self.plan.grid is None else None


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration's time as a function of the problem; see `autotune.tuned.table`.

    ``fixed``, plus for each of ``waves`` its terms times ``ceil(blocks / slots)``, times the
    factors of the fields that are ``misaligned``: no multiple of the prediction's ``multiple``.
    """

    plan: Plan
    fixed: tuple[Term, ...]
    #: Blocks that run at a time, and the terms.
    waves: tuple[tuple[Positive, tuple[Term, ...]], ...]
    misaligned: Mapping[str, Measured] = {}


class Tree(msgspec.Struct, frozen=True, array_like=True):
    """Splits of features, and a factor for each of their outcomes; see `autotune.tuned.table`."""

    #: The number of a feature, and a threshold. Bit i of an outcome: the i-th feature is above its own.
    splits: tuple[tuple[Count, Integer], ...]
    factors: tuple[Factor, ...]


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of the best speed that answers reach, by kind of size, as of sizes held out of the fit."""

    #: Least and largest value of each integer field that was measured; nothing is expected beyond.
    ranges: tuple[tuple[Integer, Integer], ...]
    #: As of a `Tree`, of features of the problem alone.
    splits: tuple[tuple[Count, Integer], ...]
    #: The lower tenth and the median for each outcome.
    shares: tuple[tuple[Share, Share], ...]


class Prediction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The costs of which the least that a problem allows chooses its configuration."""

    multiple: Positive
    costs: tuple[Cost, ...]
    #: Factors of the costs, in their order; none of any where it is empty.
    corrections: tuple[tuple[Tree, ...], ...] = ()
    #: Random sizes that it was fitted to; 0: to the problems of the portfolio.
    sizes: Count = 0
    expected: Expected | None = None


class TableRow(msgspec.Struct, frozen=True, kw_only=True):
    """A measured problem, and the plans to use for problems nearest to it."""

    problem: Sizes
    #: In order of preference. All but the first are for arrays that lie otherwise than those tuned,
    #: and for answers that must be deterministic.
    plans: Annotated[tuple[Plan, ...], msgspec.Meta(min_length=1)]


class AnswerTable(msgspec.Struct, frozen=True, kw_only=True):
    """The answers for problems of one combination of categories that were not measured."""

    rows: tuple[TableRow, ...]
    #: Chooses in place of a row's first plan; None where the rows answer better.
    prediction: Prediction | None = None
    #: Nearest first. Nine of ten problems within a distance get that share; none is known beyond.
    expected: tuple[Expectation, ...] = ()


class Portfolio(msgspec.Struct, frozen=True, kw_only=True):
    """Every configuration of the finals measured on every problem, and the answers made of that."""

    configurations: tuple[Mapping[str, Value], ...] = ()
    problems: tuple[Sizes, ...] = ()
    #: One row per configuration, one column per problem; None where it failed or does not apply.
    median_ms: tuple[tuple[Measured | None, ...], ...] = ()
    tables: tuple[AnswerTable, ...] = ()

    @property
    def sizes(self) -> int:
        """Return the number of random sizes that answers were fitted to."""
        return sum(table.prediction.sizes for table in self.tables if table.prediction)

    def is_far_wider(self, other: Portfolio) -> bool:
        """Return whether this measured far more problems, or times, than another."""
        if self.sizes != other.sizes:
            return self.sizes > other.sizes
        count, others = (len(p.configurations) * len(p.problems) for p in (self, other))
        is_wider = len(self.problems) > FAR_MORE * len(other.problems)
        return is_wider or count > FAR_MORE * others


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """The versions and the time of the latest run that wrote the record."""

    version: Text
    toolchain: Text
    driver: Text
    #: Fingerprint of the kernel's sources; empty: not known.
    source: str = ""
    #: When; see `timestamp`. Of several records of a kernel the latest says what its shape is.
    created: str


class TunedRecord(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """All that is known about one kernel on one device."""

    kernel: str
    device: RecordedDevice
    #: Problem fields in the kernel's order.
    fields: Mapping[str, Literal["integer", "categorical"]]
    #: Parameters of any source in declared order, with the values that each may take.
    parameters: Mapping[str, Annotated[tuple[Value, ...], msgspec.Meta(min_length=1)]]
    #: If there are several sources, the names of the parameters of each; see `autotune.values.SOURCE`.
    sources: Mapping[str, tuple[str, ...]] = {}
    #: Layout fields, and what they are where arrays lie as those that were tuned.
    layout: Mapping[str, Integer] = {}
    #: What to use when nothing is known of a problem.
    default: Plan
    problems: tuple[TunedProblem, ...] = ()
    portfolio: Portfolio = Portfolio()
    provenance: Provenance
    #: What all problems were tuned for: ``time``, ``energy`` or ``edp``.
    objective: str = TIME
    schema_version: int = SCHEMA_VERSION
    format: str = FORMAT

    def tuned(self, problem: Mapping[str, int | str]) -> TunedProblem | None:
        """Return what is known of one problem; None where it was not tuned."""
        return self._by_problem.get(key_of(problem))

    def plans(self) -> Iterator[Plan]:
        """Yield every plan of the record."""
        yield self.default
        for tuned in self.problems:
            yield from tuned.plans
        for table in self.portfolio.tables:
            yield from (plan for row in table.rows for plan in row.plans)
            if table.prediction is not None:
                yield from (cost.plan for cost in table.prediction.costs)

    def slowdown(self, problem: Sizes, configuration: Mapping[str, Value]) -> float:
        """Return by how much a configuration is slower than the portfolio's best; infinite if unknown."""
        column = self._columns.get(key_of(problem))
        times_ms = self._rows.get(frozenset(configuration.items()))
        time_ms = None if column is None or times_ms is None else times_ms[column]
        if column is None or time_ms is None:
            return inf
        return time_ms / min(ms for row in self.portfolio.median_ms if (ms := row[column])) - 1

    @cached_property
    def _columns(self) -> dict[ProblemItems, int]:
        return {key_of(problem): i for i, problem in enumerate(self.portfolio.problems)}

    @cached_property
    def _rows(self) -> dict[frozenset[tuple[str, Value]], tuple[float | None, ...]]:
        keys = (frozenset(values.items()) for values in self.portfolio.configurations)
        return dict(zip(keys, self.portfolio.median_ms, strict=True))

    @cached_property
    def _by_problem(self) -> dict[ProblemItems, TunedProblem]:
        return {key_of(tuned.problem): tuned for tuned in self.problems}

    def stale_reasons(self, tuned: TunedProblem) -> tuple[str, ...]:
        """Return why a problem should be tuned again, as far as the record itself tells."""
        is_older = self.provenance.source not in ("", tuned.origin.source)
        return ("the source changed since",) if is_older else ()

    @property
    def shape(self) -> tuple[object, ...]:
        """Names and kinds of values: records that differ in them cannot be merged."""
        kinds = {name: type(values[0]) for name, values in self.parameters.items()}
        return self.fields, kinds, self.layout, self.sources

    def is_declared(self, configuration: Mapping[str, Value]) -> bool:
        """Return whether a configuration has the parameters of its source, and no others."""
        own = self.sources.get(str(configuration.get(SOURCE))) if self.sources else self.parameters
        named = {SOURCE} if self.sources else set[str]()
        return own is not None and set(configuration) == named.union(own)


def other_kernel(
    kernel: Kernel, where: str, fields: Iterable[str], parameters: Iterable[str]
) -> str:
    """Return a warning if a record of a kernel's name is of another kernel, else an empty text.

    Only names count: problems of a kernel whose source changed are stale.
    """
    declared = {"problem fields": kernel.fields, "parameters": kernel.parameters}
    apart = [
        f"{what} {', '.join(there)} there, {', '.join(here)} here"
        for (what, here), there in zip(declared.items(), (fields, parameters), strict=True)
        if set(there) != set(here)
    ]
    if not apart:
        return ""
    return (
        f"{where} is of another kernel {kernel.name} than {kernel.file or 'the one declared here'}, "
        f"or of what it was: {'; '.join(apart)}. Rename one of the two, or tune this one, which "
        f"takes its place: autotune run {kernel.name}"
    )


def key_of(problem: Mapping[str, int | str]) -> ProblemItems:
    """Return a problem as a key that does not depend on the order of its fields."""
    return frozenset(problem.items())


def timestamp() -> str:
    """Return the time now as records hold it: ISO 8601, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def moment(text: str) -> datetime:
    """Return a time of a record, which is of ISO 8601, in UTC where it names no zone."""
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} is no time of ISO 8601") from error


# ---------------------------------------------------------------------- what types cannot say


def check(record: TunedRecord) -> None:
    """Raise `ValueError` if names, declared values, expressions or the shapes of tables are wrong."""
    names = [*record.fields, *record.parameters, *record.layout]
    for name in (record.kernel, *names):
        if not name.isidentifier() or not name.isascii():
            raise ValueError(f"{name!r} is not a name")
    if len(set(names)) < len(names):
        raise ValueError("a problem field, parameter or layout field has the name of another")
    moment(record.provenance.created)
    _check_sources(record)
    for name, values in record.parameters.items():
        if len({type(value) for value in values}) > 1:
            raise ValueError(f"parameter {name} has values of several kinds")
    if len({key_of(tuned.problem) for tuned in record.problems}) < len(record.problems):
        raise ValueError("one problem several times")
    _check_members(record)
    integers = {name for name, kind in record.fields.items() if kind == "integer"}
    layout = integers | set(record.layout)
    # Plans of one record have few different grids and conditions.
    plans = list(record.plans())
    grids = {msgspec.json.encode(form): form for plan in plans for form in plan.grid or ()}
    conditions = {msgspec.json.encode(plan.requires): plan.requires for plan in plans}
    for form in grids.values():
        _check_expression(form, integers)
    for condition in conditions.values():
        if condition is not None:
            _check_expression(condition, layout)
    _check_portfolio(record.portfolio, integers)


def _check_sources(record: TunedRecord) -> None:
    if not record.sources:
        return
    if record.parameters.get(SOURCE) != tuple(record.sources):
        raise ValueError(f"parameter {SOURCE} has other values than the sources")
    own = {name for names in record.sources.values() for name in names}
    if own != record.parameters.keys() - {SOURCE}:
        raise ValueError("the sources have other parameters than the record")


def _check_members(record: TunedRecord) -> None:
    contenders = [found for tuned in record.problems for found in tuned.race.contenders]
    if any(bool(found.vendor) == (found.configuration is not None) for found in contenders):
        raise ValueError("a contender is a configuration or a vendor's call")
    for tuned in record.problems:
        if tuned.winner.configuration != tuned.configuration:
            raise ValueError(f"problem {dict(tuned.problem)}: the first plan is not the winner's")
    problems = [tuned.problem for tuned in record.problems] + [*record.portfolio.problems]
    problems += [row.problem for table in record.portfolio.tables for row in table.rows]
    for problem in problems:
        kinds = {n: "integer" if isinstance(v, int) else "categorical" for n, v in problem.items()}
        if kinds != record.fields:
            raise ValueError(f"problem {dict(problem)} has other fields than {record.fields}")
    configurations: list[Any] = [plan.configuration for plan in record.plans()]
    configurations += record.portfolio.configurations
    configurations += [found.configuration for found in contenders if not found.vendor]
    declared = {name: type(values[0]) for name, values in record.parameters.items()}
    for configuration in configurations:
        is_declared = record.is_declared(configuration)
        if not is_declared or any(type(v) is not declared[n] for n, v in configuration.items()):
            raise ValueError(f"configuration {dict(configuration)} has other parameters, or kinds")


def _check_expression(form: object, integers: set[str], depth: int = 0) -> None:
    match form:
        case [str(operator), first, second] if operator in OPERATORS and depth < MAX_DEPTH:
            _check_expression(first, integers, depth + 1)
            _check_expression(second, integers, depth + 1)
        case str() if form not in integers:
            raise ValueError(f"expression over {form!r}, which is no integer problem field")
        case bool() | float() | list() | dict() | None:
            raise ValueError(
                f"no expression of at most {MAX_DEPTH} operations in one another: {form!r}"
            )


def _check_portfolio(portfolio: Portfolio, integers: set[str]) -> None:
    shape = [len(portfolio.problems)] * len(portfolio.configurations)
    if [len(times) for times in portfolio.median_ms] != shape:
        raise ValueError("the portfolio's times do not match its configurations and problems")
    for table in portfolio.tables:
        for cost in table.prediction.costs if table.prediction else ():
            terms = [*cost.fixed, *(term for _, terms in cost.waves for term in terms)]
            names = {name for _, names in terms for name in names} | set(cost.misaligned)
            if names - integers:
                raise ValueError(
                    f"a cost over {sorted(names - integers)}, no integer problem fields"
                )
            if cost.plan.grid is None:
                raise ValueError("a cost without grid")
        if table.prediction:
            _check_trees(table.prediction, len(integers))


def _check_trees(prediction: Prediction, integers: int) -> None:
    if prediction.corrections and len(prediction.corrections) != len(prediction.costs):
        raise ValueError("the corrections do not match the costs")
    pairs = zip(prediction.costs, prediction.corrections, strict=False)
    if any(trees and not cost.waves for cost, trees in pairs):
        raise ValueError("a corrected cost without waves")
    trees: list[tuple[Sequence[tuple[int, int]], Sequence[object], int]] = [
        (tree.splits, tree.factors, OWN_FEATURES)
        for trees in prediction.corrections
        for tree in trees
    ]
    if expected := prediction.expected:
        trees.append((expected.splits, expected.shares, 0))
        if len(expected.ranges) != integers:
            raise ValueError("the ranges of an expectation do not match the integer problem fields")
    for splits, outcomes, further in trees:
        if len(splits) > MAX_LEVELS or len(outcomes) != 1 << len(splits):
            raise ValueError("the outcomes of a tree do not match its splits")
        if any(feature >= 2 * integers + further for feature, _ in splits):
            raise ValueError("a tree splits a feature that there is not")
