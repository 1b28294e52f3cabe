"""The schema of a tuned record: all that is known about one kernel on one device.

Lookup imports this module, so it imports nothing heavy. `autotune.answers.schema` has the answer tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import msgspec

from autotune.answers.schema import (
    Amount,
    Count,
    Grid,
    Integer,
    Measured,
    Plan,
    Portfolio,
    Positive,
    Sizes,
    StoredExpression,
    Triple,
    Value,
)
from autotune.values import SOURCE

if TYPE_CHECKING:
    from autotune.devices.device import Device

SCHEMA_VERSION = 2
FORMAT = "autotune tuned record"

#: What records are tuned for by default.
TIME = "time"
#: How thorough a search was, least first. A first call tries a few configurations of records.
EFFORTS = ("first_call", "quick", "full")

#: Words that no rule depends on: of a driver, a compiler, a library.
Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=1000)]

#: Part of a path, in some folders.
Word: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^\w{1,32}\Z")]
ProblemItems: TypeAlias = frozenset[tuple[str, int | str]]


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

    #: When; see `autotune.tuned.clock`.
    on: str
    driver: Text
    toolchain: Text
    #: Time then over the recorded one: above 1 it was slower.
    ratio: Amount
    ratio_interval: tuple[Amount, Amount]


class TuningOrigin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When, how and from what a problem was tuned."""

    #: See `autotune.tuned.clock`.
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
    effort: Literal["first_call", "quick", "full"]
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
    #: Of a first call: sha256 of all that the winner compiles and launches, another one makes it stale; and
    #: whether only deterministic configurations were tried.
    identity: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?\Z")] = ""
    deterministic: bool = False


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


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """The versions and the time of the latest run that wrote the record."""

    version: Text
    toolchain: Text
    driver: Text
    #: Fingerprint of the kernel's sources; empty: not known.
    source: str = ""
    #: When; see `autotune.tuned.clock`. Of several records of a kernel the latest says what its shape is.
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
    #: Entries of effort ``first_call`` (`TunedProblem`), oldest first; see `autotune.tuned.first_calls`. Their
    #: problems have layout fields, too. A race has the winner, then the answer of runs if that was slower.
    first_calls: tuple[msgspec.Raw, ...] = ()
    provenance: Provenance
    #: What all problems were tuned for: ``time``, ``energy`` or ``edp``.
    objective: str = TIME
    schema_version: int = SCHEMA_VERSION
    format: str = FORMAT

    @property
    def is_tuned(self) -> bool:
        """Return whether a run wrote the record; otherwise it holds first calls alone."""
        return bool(self.problems) or not self.first_calls

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


def key_of(problem: Mapping[str, int | str]) -> ProblemItems:
    """Return a problem as a key that does not depend on the order of its fields."""
    return frozenset(problem.items())
