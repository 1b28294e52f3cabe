"""Chooses the variants of a kernel, compiles them, and reads figures that need no device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

from autotune.compiling.binaries import compile_now
from autotune.compiling.job import compile_job
from autotune.devices.base import Binary
from autotune.devices.choose import backend, choose_device
from autotune.devices.device import Device, for_arch
from autotune.devices.occupancy import Occupancy, occupancy
from autotune.devices.sass import FunctionCode, code_of
from autotune.errors import AutotuneError, UsageError, unknown
from autotune.kernel.launches import completed, launch_sequence
from autotune.kernel.space import broken_constraints
from autotune.kernel.spec import Kernel, Work
from autotune.measure.counters import by_name
from autotune.measure.disassembly import disassembled
from autotune.measure.roofline import Limits, is_memory_bound, share
from autotune.run.device_limits import known_limits
from autotune.tuned.lookup import lookup
from autotune.tuned.reading import RecordFile, read_layers
from autotune.tuned.record import TunedRecord
from autotune.values import Configuration, Problem

#: The variant that the record answers for the problem.
BEST = "best"


@dataclass(frozen=True)
class KernelVariant:
    """A configuration with the name that tables show, and where it comes from."""

    name: str
    configuration: Configuration
    origin: str = ""


@dataclass(frozen=True)
class Facts:
    """All that is known of a variant; None is not known. Of several launches it is the main one."""

    variant: KernelVariant
    #: Reason why it cannot be compiled or launched; may be empty.
    failure: str = ""
    #: Constraints of the space that it breaks.
    outside: tuple[str, ...] = ()
    entry: str = ""
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    launches: int = 1
    registers: int | None = None
    spill_bytes: int | None = None
    static_bytes: int | None = None
    dynamic_bytes: int = 0
    occupancy: Occupancy | None = None
    code: FunctionCode | None = None
    #: Bytes of loads under way on a multiprocessor, at most; only where memory limits the kernel.
    in_flight: int | None = None
    time_ms: float | None = None
    #: Whether the time is of a record, or of this command.
    is_recorded: bool = False
    gb_per_s: float | None = None
    gflop_per_s: float | None = None
    #: Share of the device's measured limit, and the name of the limit.
    limit_share: float | None = None
    limit_name: str = ""
    #: Counters by metric of Nsight Compute, and the metrics that the device does not have.
    metrics: Mapping[str, float] = field(default_factory=dict)
    absent: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name that tables show."""
        return self.variant.name

    @cached_property
    def counters(self) -> dict[str, float]:
        """Counters by short name; see `autotune.measure.counters`."""
        return by_name(self.metrics)


@dataclass(frozen=True)
class Setting:
    """A kernel and a problem on a device or architecture, and what records know of them."""

    kernel: Kernel
    device: Device
    problem: Problem
    #: Records of the kernel on the architecture.
    records: tuple[RecordFile, ...] = ()
    #: Whether the device is here, so that it can measure.
    is_here: bool = False

    @cached_property
    def own_records(self) -> list[TunedRecord]:
        """The records of the device itself."""
        return [each.record for each in self.records if each.folder == self.device.folder]

    @cached_property
    def work(self) -> Work | None:
        """The minimum work of the problem; None if the kernel declares none."""
        return self.kernel.work_of(self.problem)

    @cached_property
    def limits(self) -> Limits:
        """Measured limits of the device."""
        return known_limits(self.device)

    @cached_property
    def is_memory_bound(self) -> bool:
        """Moving the bytes takes longer than the arithmetic."""
        return self.work is not None and is_memory_bound(self.work, self.limits)


def setting_of(
    kernel: Kernel, arch: str | None, selector: str | None, problem: Problem | None = None
) -> Setting:
    """Return the setting of an architecture, or of a device of this machine.

    Without either the first GPU, else the architecture that was tuned last. An architecture stands
    for the device of it that was tuned last, whose limits and multiprocessors are known.
    """
    if arch and selector:
        raise UsageError("give --arch or --device, not both: a device has an architecture")
    own = "cuda" if "cuda" in kernel.backends else kernel.backends[0]
    if not arch and not selector and (own != "cuda" or backend("cuda").devices()):
        selector = own
    known = [
        each
        for each in read_layers(kernel.name, kernel.project)
        if each.record.objective == "time" and each.record.device.backend == "cuda"
    ]
    known.sort(key=lambda each: each.record.provenance.created, reverse=True)
    if selector:
        device = choose_device(selector, kernel.backends)
    else:
        device = for_arch(arch or (known[0].record.device.arch if known else "sm_90"))
    records = tuple(each for each in known if each.record.device.arch == device.arch)
    if records and not selector:
        device = records[0].record.device.planned_for()
    size = problem or kernel.first_problem(device.backend)
    return Setting(kernel, device, size, records, is_here=bool(selector))


def choose(setting: Setting, names: Sequence[str]) -> list[KernelVariant]:
    """Return variants by name; without names all that are declared, and the record's answer."""
    return [_named(setting, name) for name in names or (*setting.kernel.variants, BEST)]


def _named(setting: Setting, name: str) -> KernelVariant:
    kernel = setting.kernel
    if name in kernel.variants:
        configuration = kernel.completed(kernel.variants[name])
        return KernelVariant(name, configuration, "variant of the space file")
    if name != BEST:
        raise UsageError(f"{kernel.name}: {unknown('variant', name, (*kernel.variants, BEST))}")
    arch, device = setting.device.arch, setting.device if setting.own_records else None
    owner, problem = kernel.project, setting.problem
    try:
        found = lookup(kernel.name, arch=arch, device=device, project=owner, **problem)
    except UsageError:  # nothing is tuned
        return KernelVariant(BEST, kernel.default(), "default of the space file: nothing is tuned")
    how = "winner of this problem" if found.quality == "exact" else f"answer by {found.quality}"
    return KernelVariant(BEST, Configuration(found), f"{how} ({found.source})")


def facts_of(setting: Setting, variants: Sequence[KernelVariant]) -> list[Facts]:
    """Compile and disassemble variants, and add the times of the device's record."""
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda each: _facts(setting, each), variants))
    tuned = [entry for each in setting.own_records if (entry := each.tuned(setting.problem))]
    for i, each in enumerate(found):
        if tuned and (result := tuned[0].race.of(each.variant.configuration)):
            found[i] = with_time(setting, each, result.time_ms.value, True)
    return found


def _facts(setting: Setting, variant: KernelVariant) -> Facts:
    kernel, problem, device = setting.kernel, setting.problem, setting.device
    configuration = variant.configuration
    outside = tuple(rule.name for rule in broken_constraints(kernel, configuration, device))
    facts = Facts(variant, outside=outside)
    if not kernel.allows(configuration, problem):
        return replace(facts, failure=f"it requires what {problem} does not meet")
    plan = launch_sequence(kernel, configuration, problem, device)
    done = compile_now(compile_job(kernel, configuration, problem, device))
    if done.binary is None:
        return replace(facts, failure=done.message)
    main = completed(plan, done.binary).main
    function = done.binary.entry(str(main.entry))
    if function is None:
        return replace(facts, failure=f"the source has no kernel function {main.entry!r}")
    facts = replace(
        facts,
        entry=function.name,
        grid=main.grid,
        block=main.block,
        launches=len(plan.launches),
        registers=function.registers,
        spill_bytes=function.spill_bytes,
        static_bytes=function.shared_bytes,
        dynamic_bytes=main.shared_bytes,
    )
    if not device.is_cuda:
        return facts
    if function.registers is not None:
        shared = (function.shared_bytes or 0) + main.shared_bytes
        resident = occupancy(device, prod(main.block), function.registers, shared)
        facts = replace(facts, occupancy=resident)
    facts = replace(facts, code=_code(done.binary, function.name))
    return replace(facts, in_flight=_in_flight(setting, facts))


def _in_flight(setting: Setting, facts: Facts) -> int | None:
    """Return the bytes of one pass: of the hottest loop, or of the whole code.

    The latter with asynchronous copies, whose prologue starts those of later passes.
    """
    if not setting.is_memory_bound or facts.code is None or facts.occupancy is None:
        return None
    loop, mix = facts.code.hottest, facts.code.mix
    is_ahead = "asynchronous copies" in mix.accesses
    loads = mix if loop is None or is_ahead or not loop.body.widest_loads[0] else loop.body
    blocks = min(facts.occupancy.blocks, -(-prod(facts.grid) // setting.device.sm_count))
    loaded = prod(loads.widest_loads) * blocks * prod(facts.block)
    return None if mix.bulk_copies else loaded


def _code(binary: Binary, entry: str) -> FunctionCode | None:
    try:
        return code_of(disassembled(binary.code), binary.symbol(entry))
    except AutotuneError:
        return None  # `explaining` says it once


def with_time(setting: Setting, facts: Facts, time_ms: float, recorded: bool) -> Facts:
    """Return facts with a time, and the rates that follow from it."""
    facts, work = replace(facts, time_ms=time_ms, is_recorded=recorded), setting.work
    if work is None:
        return facts
    reached, name = share(work, time_ms, setting.limits)
    moved = work.bytes_read + work.bytes_written
    gb, gflop = moved / time_ms / 1e6, work.flops / time_ms / 1e6
    facts = replace(facts, gb_per_s=gb, gflop_per_s=gflop)
    return replace(facts, limit_share=reached, limit_name=name or "")


def winners_below(records: Sequence[RecordFile], least: float) -> tuple[int, int]:
    """Return how many recorded winners have less than an occupancy, and how many are known."""
    shares = []
    for record in (each.record for each in records):
        device = record.device.planned_for()
        for winner, plan in ((tuned.winner, tuned.plan) for tuned in record.problems):
            shared = (winner.static_shared_bytes or 0) + plan.shared_bytes
            found = occupancy(device, prod(plan.block), winner.registers or 0, shared)
            if found and found.blocks and winner.registers:
                shares.append(found.share)
    return sum(each < least for each in shares), len(shares)
