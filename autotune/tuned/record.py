"""The schema of a tuned record: the results for one kernel on one device.

Lookup imports this module, so it has no heavy imports. `autotune.answers.table` has the answer tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from functools import cached_property
from math import inf
from typing import Annotated, Literal, TypeAlias

import msgspec

from autotune.answers.table import (
    Amount,
    Count,
    Grid,
    Integer,
    Measured,
    Plan,
    Portfolio,
    SizeRange,
    Sizes,
    StoredExpression,
    TableRow,
    Triple,
    Value,
)
from autotune.kernel.definition import NOT_DECLARED, changes
from autotune.tuned.recorded_device import RecordedDevice, Text
from autotune.values import SOURCE

#: The field ``schema_version`` of a record; records of other versions are refused.
SCHEMA_VERSION: Literal[2] = 2
#: The field ``format`` of a record.
FORMAT: Literal["autotune tuned record"] = "autotune tuned record"

#: The default objective.
TIME = "time"
#: Efforts of a search, least first. A first call tries a few configurations of records.
EFFORTS = ("first_call", "quick", "full")

#: A digest of files, compared for equality only.
Fingerprint: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]

#: The sha256 of machine code, see `autotune.compiling.binaries.code_hash`; empty in older records.
CodeHash: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?\Z")]
#: The name of a kernel's file; see `autotune.project.file_name`.
FileName: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[^/\x00-\x1f][^\x00-\x1f]{0,400}\Z")]
#: The fields of a problem as a key; see `key_of`.
ProblemItems: TypeAlias = frozenset[tuple[str, int | str]]


class LaunchStep(msgspec.Struct, frozen=True, kw_only=True, tag="launch", tag_field="step"):
    """One kernel launch of a step sequence."""

    entry: Text
    #: Grid for the problem of the entry.
    concrete_grid: Triple
    block: Triple
    shared_bytes: Count = 0
    #: Expressions over problem fields; None if the launch cannot be traced.
    grid: Grid | None = None
    #: Names of arguments and scratch buffers, integers, or expressions over problem fields.
    args: tuple[StoredExpression, ...] = ()
    #: Attributes of the launch, left out if it has none; see `autotune.Launch`.
    cluster: Triple | msgspec.UnsetType = msgspec.UNSET
    cooperative: bool | msgspec.UnsetType = msgspec.UNSET
    programmatic: bool | msgspec.UnsetType = msgspec.UNSET


class FillStep(msgspec.Struct, frozen=True, kw_only=True, tag="fill", tag_field="step"):
    """A step that sets a buffer to one value."""

    name: str
    value: float = 0.0


class Checks(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Errors of the winner against the expected results, and the bound of the largest error."""

    max_error: Amount
    rms_error: Amount
    bound: Amount
    #: Inputs for which verification would not notice a missing element.
    unseen: tuple[Text, ...] = ()
    #: Number of configurations that agree on the expected results; 0 with a float64 reference.
    agreed: Count = 0
    #: Smallest and largest finite number of each array of the random data.
    drawn: Mapping[Text, tuple[float, float]] = {}
    #: Clear differences from the reference on values that the data never hold; what evaluated it, if known.
    differs: tuple[Text, ...] = ()
    reference: Text = ""


class Estimate(msgspec.Struct, frozen=True, array_like=True):
    """A median and its 95 % interval."""

    value: Measured
    #: Ends of the interval; None if not recorded.
    low: Measured | None = None
    high: Measured | None = None

    @property
    def interval(self) -> tuple[float, float]:
        """Return the interval; its ends are the median if they were not recorded."""
        return self.low or self.value, self.high or self.value


class EnergyResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The energy of one call of a contender, measured in the energy windows of its race; see docs/timing.md."""

    #: Energy of one call, in millijoules.
    call_mj: Estimate
    #: Mean power of the whole board under load, in watts.
    power_w: Measured | None = None
    #: Power limit of the board, in watts.
    limit_w: Measured | None = None
    #: SM clock under load.
    sm_mhz: Count | None = None
    #: Number of energy windows.
    windows: Count = 0


class ContenderResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A configuration after a race, or a vendor's call by its name."""

    #: None for a vendor's call.
    configuration: Mapping[str, Value] | None = None
    vendor: Text = ""
    #: Whether it is a tie with the best; None if not recorded.
    tied: bool | None = None
    time_ms: Estimate
    #: Its cost (by default its time) over the winner's cost in the same rounds; above 1 it is worse.
    ratio: Estimate | None = None
    #: A vendor call's time over the winner's time, if the cost is not the time.
    time_ratio: Estimate | None = None
    #: Median time of clean calls; None if not measured; see docs/timing.md.
    clean_ms: Measured | None = None
    #: Median time of back-to-back calls; None if not measured; see docs/timing.md.
    hot_ms: Measured | None = None
    #: None if the objective needs no energy.
    energy: EnergyResult | None = None
    #: Whether it is declared to give the same bits in every run.
    deterministic: bool = False
    #: Number of runs that gave the same bits.
    identical_runs: Count = 0
    #: Registers of the function with most registers; None if unknown.
    registers: Count | None = None
    spill_bytes: Count | None = None
    static_shared_bytes: Count | None = None
    #: Of a configuration; see `CodeHash`.
    code: CodeHash = ""
    #: True for a vendor's call that may answer calls: it was verified like a configuration.
    answers: bool = False
    #: What decides the results of a vendor's call, as a library's version; empty if unknown.
    pins: Text = ""


class RaceResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of one race; `autotune.run.verdict.judge` makes it."""

    #: Method of timing: ``cold:graph``, ``cold:flush`` ...; see `autotune.measure.timing.Timing`.
    timing: Text
    rounds: Count
    #: SM clock under load; None if the device does not report it.
    sm_mhz: Count | None = None
    #: Number of tied configurations, including the winner.
    tied: Count = 1
    #: Reasons why the time or the choice may be less exact than usual.
    noise: tuple[Text, ...] = ()
    #: The winner, then the other configurations, best first, then vendor calls, fastest first.
    contenders: Annotated[tuple[ContenderResult, ...], msgspec.Meta(min_length=1)]

    @property
    def winner(self) -> ContenderResult:
        """Return the result of the winning configuration."""
        return self.contenders[0]

    @property
    def finalists(self) -> tuple[ContenderResult, ...]:
        """Return the results of configurations: the winner, then the others, best first."""
        return tuple(found for found in self.contenders if not found.vendor)

    @property
    def runners_up(self) -> tuple[ContenderResult, ...]:
        """Return the results of configurations without the winner, best first."""
        return self.finalists[1:]

    @property
    def vendor(self) -> ContenderResult | None:
        """Return the result of the fastest vendor call; None without vendor calls."""
        return next((found for found in self.contenders if found.vendor), None)

    @property
    def vendor_name(self) -> str:
        """Return the name of the fastest vendor call; empty without vendor calls."""
        return self.vendor.vendor if self.vendor else ""

    @property
    def speedup(self) -> Estimate | None:
        """Return the vendor call's time over the winner's in the same rounds; above 1 the winner is faster."""
        return (self.vendor.time_ratio or self.vendor.ratio) if self.vendor else None

    @property
    def best_deterministic(self) -> ContenderResult | None:
        """Return the best deterministic runner-up; None without one, or if the winner is deterministic."""
        if self.winner.deterministic:
            return None
        return next((found for found in self.runners_up if found.deterministic), None)

    def of(self, configuration: Mapping[str, Value]) -> ContenderResult | None:
        """Return the result of a configuration; None if it was not in the race."""
        wanted = dict(configuration)
        return next((found for found in self.finalists if found.configuration == wanted), None)


class Confirmation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The driver and the compiler with which an entry was last found correct and not slower."""

    #: Time of the last measurement; see `autotune.tuned.dates`.
    on: str
    driver: Text = ""
    toolchain: Text = ""
    #: New time over the recorded time; above 1 it was slower. None if the compiler made the code that was measured
    #: before, so that nothing was measured.
    ratio: Amount | None = None
    ratio_interval: tuple[Amount, Amount] | None = None
    #: Of the winner.
    code: CodeHash = ""


class TuningOrigin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The date, method and sources of the tuning of a problem."""

    #: Time; see `autotune.tuned.dates`.
    tuned_on: str
    #: Fingerprint of all sources of the kernel, not only of the winner's.
    source: Fingerprint
    #: Fingerprint of the space file's arguments, reference, launch and options.
    arguments: Fingerprint
    #: Compiler options of the winner, without its defines.
    options: tuple[Text, ...] = ()
    driver: Text
    toolchain: Text
    #: The device of the final race.
    device_uuid: Text
    effort: Literal["first_call", "quick", "full"]
    strategy: Text
    seed: Integer
    evaluations: Count
    #: The command of the run, without folders; empty in older records.
    command: Annotated[str, msgspec.Meta(max_length=2000)] = ""
    #: The budget of the run; empty in older records.
    budget: Annotated[str, msgspec.Meta(max_length=200)] = ""
    #: Name of the user, from ``AUTOTUNE_WHO``; empty without it.
    who: Annotated[str, msgspec.Meta(max_length=200)] = ""
    #: The git commit of the space file and its sources, with ``-dirty`` if they have changes; empty outside
    #: a repository.
    commit: Annotated[str, msgspec.Meta(max_length=80)] = ""
    #: Of a first call: sha256 of the winner's compile job and launches; a change makes the entry stale.
    identity: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?\Z")] = ""
    #: Of a first call: whether it tried deterministic configurations only.
    deterministic: bool = False


class TunedProblem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A problem with its winner and the evidence."""

    problem: Sizes
    #: The winner's plan; if it is not deterministic, also the plan of the best deterministic finalist.
    plans: Annotated[tuple[Plan, ...], msgspec.Meta(min_length=1)]
    steps: tuple[LaunchStep | FillStep, ...] = ()
    #: The final race.
    race: RaceResult
    gb_per_s: Amount | None = None
    gflop_per_s: Amount | None = None
    #: Achieved share of the device's measured limit that binds.
    limit_fraction: Amount | None = None
    #: Name of the limit that binds.
    limit_name: Text | None = None
    checks: Checks | None = None
    #: Sizes at which the configurations of the plans were verified.
    verified: tuple[SizeRange, ...] = ()
    #: Metrics of the winner that the kernel declares.
    metrics: Mapping[str, float] = {}
    origin: TuningOrigin
    confirmed: Confirmation | None = None

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
        """Return the winner's result in the final race."""
        return self.race.winner

    @property
    def median_ms(self) -> float:
        """Return the winner's median time in the final race, in ms."""
        return self.winner.time_ms.value

    @property
    def launches(self) -> tuple[LaunchStep, ...]:
        """Return the launches of the winner in order; empty if not recorded."""
        return tuple(step for step in self.steps if isinstance(step, LaunchStep))


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """The versions and the time of the latest run that wrote the record."""

    version: Text
    toolchain: Text
    driver: Text
    #: Fingerprint of the kernel's sources; empty: unknown.
    source: str = ""
    #: Fingerprint of the space file's functions; empty: unknown, or each problem has its own.
    arguments: str = ""
    #: Fingerprint of each file of the kernel by its path from the space file; see `autotune.project.file_name`.
    files: Mapping[FileName, str] = {}
    #: Time; see `autotune.tuned.dates`. The latest record of a kernel decides its fields and parameters.
    created: str

    def changes_since(self, source: str, arguments: str) -> tuple[str, ...]:
        """Return the changes of the kernel from results with these fingerprints to this run."""
        return changes(source, arguments, self.source, [self.arguments])


class TunedRecord(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The results for one kernel on one device."""

    kernel: str
    device: RecordedDevice
    #: Problem fields in the kernel's order.
    fields: Mapping[str, Literal["integer", "categorical"]]
    #: Parameters of all sources in declared order, with their declared values.
    parameters: Mapping[str, Annotated[tuple[Value, ...], msgspec.Meta(min_length=1)]]
    #: The parameters of each source, if there are several sources; see `autotune.values.SOURCE`.
    sources: Mapping[str, tuple[str, ...]] = {}
    #: Layout fields with their values in the tuned layout.
    layout: Mapping[str, Integer] = {}
    #: The plan of the kernel's default for problems without another answer: one row for each combination of
    #: categories. Like the portfolio, it is of the kernel of ``provenance``.
    defaults: Annotated[tuple[TableRow, ...], msgspec.Meta(min_length=1)]
    #: Entries of an earlier kernel answer nothing; see `stale_reasons`.
    problems: tuple[TunedProblem, ...] = ()
    portfolio: Portfolio = Portfolio()
    #: Earlier versions kept first calls here; they are not read, and not written again.
    first_calls: tuple[msgspec.Raw, ...] = ()
    provenance: Provenance
    #: The objective of all problems: ``time``, ``energy`` or ``edp``.
    objective: Annotated[str, msgspec.Meta(pattern=r"^(time|energy|edp)\Z")] = TIME
    schema_version: Literal[2] = SCHEMA_VERSION
    format: Literal["autotune tuned record"] = FORMAT

    @property
    def default(self) -> Plan:
        """Return the plan of the default for the first combination of categories."""
        return self.defaults[0].plans[0]

    @property
    def is_tuned(self) -> bool:
        """Return whether a run wrote the record; otherwise an earlier version wrote its first calls."""
        return bool(self.problems) or not self.first_calls

    def tuned(self, problem: Mapping[str, int | str]) -> TunedProblem | None:
        """Return the entry of a problem; None if it was not tuned."""
        return self._by_problem.get(key_of(problem))

    def plans(self) -> Iterator[Plan]:
        """Yield every plan of the record."""
        for row in self.defaults:
            yield from row.plans
        for tuned in self.problems:
            yield from tuned.plans
        for table in self.portfolio.tables:
            yield from table.plans()

    def slowdown(self, problem: Sizes, configuration: Mapping[str, Value]) -> float:
        """Return the slowdown of a configuration against the portfolio's best, as a share; infinite if unknown."""
        column = self._columns.get(key_of(problem))
        times_ms = self._rows.get(frozenset(configuration.items()))
        time_ms = None if column is None or times_ms is None else times_ms[column]
        if column is None or time_ms is None:
            return inf
        return time_ms / min(ms for row in self.portfolio.median_ms if (ms := row[column])) - 1

    def answering(self, other: TunedRecord) -> Iterator[Plan]:
        """Yield the plans of another record that may answer while this record is the newest one."""
        for tuned in other.problems:
            yield from () if self.stale_reasons(tuned) else tuned.plans
        if self.serves(other):
            yield from (plan for table in other.portfolio.tables for plan in table.plans())

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
        """Return the changes of the kernel between the tuning of a problem and the latest run."""
        found = self.provenance.changes_since(tuned.origin.source, tuned.origin.arguments)
        return found if self.has_values(tuned.configuration) else (*found, NOT_DECLARED)

    def has_values(self, configuration: Mapping[str, Value]) -> bool:
        """Return whether all values of a configuration are in the lists of the latest run."""
        return all(value in self.parameters.get(n, ()) for n, value in configuration.items())

    def serves(self, other: TunedRecord) -> bool:
        """Return whether default and portfolio of an older record are of this kernel: else launches may be wrong."""
        made, portfolio = other.provenance, other.portfolio
        plans = (plan for table in portfolio.tables for plan in table.plans())
        configurations = (*portfolio.configurations, *(plan.configuration for plan in plans))
        return not self.provenance.changes_since(made.source, made.arguments) and all(
            map(self.has_values, configurations)
        )

    @property
    def shape(self) -> tuple[object, ...]:
        """Names and types of fields and parameters; records that differ in them cannot be merged."""
        kinds = {name: type(values[0]) for name, values in self.parameters.items()}
        return self.fields, kinds, self.layout, self.sources

    def is_declared(self, configuration: Mapping[str, Value]) -> bool:
        """Return whether a configuration has exactly the parameters of its source."""
        source = configuration.get(SOURCE) if self.sources else None
        return configuration.keys() == self._names.get(source)

    @cached_property
    def _names(self) -> dict[object, Set[str]]:
        """The names of the parameters of each source; of the only source by None."""
        if not self.sources:
            return {None: self.parameters.keys()}
        return {name: {SOURCE, *own} for name, own in self.sources.items()}


def key_of(problem: Mapping[str, int | str]) -> ProblemItems:
    """Return a problem as a key that does not depend on the order of its fields."""
    return frozenset(problem.items())
