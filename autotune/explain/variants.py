"""Choose the variants of a kernel, compile them, and collect the figures that need no device."""

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
from autotune.errors import AutotuneError, NoAnswerError, UsageError, unknown
from autotune.kernel.launches import complete_launches, launch_sequence
from autotune.kernel.space import broken_constraints
from autotune.kernel.spec import Kernel, Work
from autotune.measure.counters import by_name
from autotune.measure.disassembly import disassembled
from autotune.measure.roofline import Limits, deciding_caches, device_limit, is_memory_bound
from autotune.measure.timing import Caches, Timing
from autotune.run.device_limits import known_limits
from autotune.tuned.lookup import lookup
from autotune.tuned.reading import RecordFile, read_layers
from autotune.tuned.record import TunedRecord
from autotune.values import Configuration, Problem

#: Name of the variant with the configuration that `lookup` returns for the problem.
BEST = "best"


@dataclass(frozen=True)
class KernelVariant:
    """A configuration with its name in tables and its origin."""

    name: str
    configuration: Configuration
    origin: str = ""


@dataclass(frozen=True)
class Facts:
    """The figures of a variant; None if not known. If it has several launches, those of the main launch."""

    variant: KernelVariant
    #: Why the variant cannot be compiled or launched; may be empty.
    failure: str = ""
    #: Constraints of the search space that the variant breaks.
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
    #: Maximum bytes of loads in flight on a multiprocessor; only if the kernel is memory-bound.
    in_flight: int | None = None
    time_ms: float | None = None
    #: Whether the time comes from a record, instead of this command.
    is_recorded: bool = False
    gb_per_s: float | None = None
    gflop_per_s: float | None = None
    #: Share of the device's measured limit, and the name of the limit.
    limit_share: float | None = None
    limit_name: str = ""
    #: Counters by metric of Nsight Compute.
    metrics: Mapping[str, float] = field(default_factory=dict)
    #: Metrics that the device does not have.
    absent: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The variant's name in tables."""
        return self.variant.name

    @cached_property
    def counters(self) -> dict[str, float]:
        """Counters by short name; see `autotune.measure.counters`."""
        return by_name(self.metrics)


@dataclass(frozen=True)
class Setting:
    """A kernel and a problem on a device or architecture, with the kernel's records."""

    kernel: Kernel
    device: Device
    problem: Problem
    #: Records of the kernel on the architecture.
    records: tuple[RecordFile, ...] = ()
    #: Whether the device is in this machine, so that variants can be measured.
    is_here: bool = False
    #: Why the device was chosen, if the user named none; may be empty.
    choice: str = ""

    @cached_property
    def own_records(self) -> list[TunedRecord]:
        """The records of this device model."""
        return [file.record for file in self.records if file.record.device.is_of(self.device)]

    @cached_property
    def work(self) -> Work | None:
        """The minimum work of the problem; None if the kernel does not declare it."""
        return self.kernel.work_of(self.problem)

    @cached_property
    def limits(self) -> Limits:
        """The measured limits of the device."""
        return known_limits(self.device)

    @cached_property
    def is_memory_bound(self) -> bool:
        """True if moving the bytes takes longer than the arithmetic."""
        return self.work is not None and is_memory_bound(self.work, self.limits)


def setting_of(
    kernel: Kernel, arch: str | None, selector: str | None, problem: Problem | None = None
) -> Setting:
    """Return the setting for an architecture, or for a device of this machine or of a record.

    By default the device is the first GPU of this machine, else the device of the newest record. For an
    architecture, the limits and multiprocessors are those of its most recently tuned device. A CPU must be
    in this machine.
    """
    if arch and selector:
        raise UsageError("give --arch or --device, not both: --device implies the architecture")
    known = [
        file for file in read_layers(kernel.name, kernel.project) if file.record.objective == "time"
    ]
    known.sort(key=lambda file: file.record.provenance.created, reverse=True)
    device, is_here, choice = _chosen(kernel, known, arch, selector)
    records = tuple(file for file in known if file.record.device.arch == device.arch)
    size = problem or kernel.first_problem(device.backend)
    return Setting(kernel, device, size, records, is_here, choice)


def _chosen(
    kernel: Kernel, known: Sequence[RecordFile], arch: str | None, selector: str | None
) -> tuple[Device, bool, str]:
    """Return the device, whether it is in this machine, and the reason if the user named none."""
    recorded = [file.record.device for file in known]
    if arch:
        named = [device for device in recorded if device.arch == arch]
        return (named[0].planned_for() if named else for_arch(arch)), False, ""
    if selector:
        named = [
            device
            for device in recorded
            if device.backend == "cuda" and selector in (device.name, device.folder)
        ]
        if named:
            return named[0].planned_for(), False, ""
        return choose_device(selector, kernel.backends), True, ""
    here = {device.folder: device for name in kernel.backends for device in backend(name).devices()}
    gpu = next((device for device in here.values() if device.is_cuda), None)
    if gpu is not None:
        others = dict.fromkeys(d.name for d in recorded if d.backend == "cuda")
        if not others or gpu.name in others:
            return gpu, True, ""
        return (
            gpu,
            True,
            (
                f"measured on {gpu.name}, the GPU of this machine; the records are of "
                f"{', '.join(others)}: name one with --device"
            ),
        )
    for device in recorded:
        if device.folder in here:
            return (
                here[device.folder],
                True,
                f"measured on {device.name}, the device of the newest record",
            )
        if device.backend == "cuda":
            return (
                device.planned_for(),
                False,
                (f"for {device.name}, the device of the newest record; this machine has no GPU"),
            )
    if "cuda" not in kernel.backends:
        return choose_device(kernel.backends[0], kernel.backends), True, ""
    return for_arch("sm_90"), False, "for sm_90: nothing is tuned, and this machine has no GPU"


def choose(setting: Setting, names: Sequence[str]) -> list[KernelVariant]:
    """Return the named variants; without names, all declared variants and `BEST`."""
    return [_named(setting, name) for name in names or (*setting.kernel.variants, BEST)]


def _named(setting: Setting, name: str) -> KernelVariant:
    kernel = setting.kernel
    if name in kernel.variants:
        configuration = kernel.completed(kernel.variants[name])
        return KernelVariant(name, configuration, "declared in the space file")
    if name != BEST:
        raise UsageError(f"{kernel.name}: {unknown('variant', name, (*kernel.variants, BEST))}")
    arch, device = setting.device.arch, setting.device if setting.own_records else None
    owner, problem = kernel.project, setting.problem
    try:
        found = lookup(kernel.name, arch=arch, device=device, project=owner, **problem)
    except (UsageError, NoAnswerError):
        why = "default of the space file: nothing is tuned"
        return KernelVariant(BEST, kernel.default(), why)
    how = "winner for this problem" if found.quality == "exact" else f"answer by {found.quality}"
    return KernelVariant(BEST, Configuration(found), f"{how} ({found.source})")


def facts_of(setting: Setting, variants: Sequence[KernelVariant]) -> list[Facts]:
    """Compile and disassemble variants, and add the times of the device's record."""
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda variant: _facts(setting, variant), variants))
    tuned = [entry for record in setting.own_records if (entry := record.tuned(setting.problem))]
    for i, facts in enumerate(found):
        if tuned and (result := tuned[0].race.of(facts.variant.configuration)):
            caches = Timing(tuned[0].race.timing).caches
            found[i] = with_time(setting, facts, result.time_ms.value, True, caches)
    return found


def _facts(setting: Setting, variant: KernelVariant) -> Facts:
    kernel, problem, device = setting.kernel, setting.problem, setting.device
    configuration = variant.configuration
    outside = tuple(rule.name for rule in broken_constraints(kernel, configuration, device))
    facts = Facts(variant, outside=outside)
    if not kernel.allows(configuration, problem):
        return replace(facts, failure=f"{problem} does not meet its requirements")
    plan = launch_sequence(kernel, configuration, problem, device)
    done = compile_now(compile_job(kernel, configuration, problem, device))
    if done.binary is None:
        return replace(facts, failure=done.message)
    main = complete_launches(plan, done.binary).main
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
    """Return the bytes that a multiprocessor loads in one pass of the hottest loop.

    Without a loop with loads, all loads of the code count. They also count with asynchronous copies,
    because the code before the loop starts the copies of later passes.
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
        return None  # `explaining` adds one note for all variants


def with_time(
    setting: Setting, facts: Facts, time_ms: float, recorded: bool, caches: Caches | None = None
) -> Facts:
    """Return facts with a time and the rates computed from it.

    ``caches`` is the state of the caches that was timed; default: the state that decides the problem.
    """
    facts, work = replace(facts, time_ms=time_ms, is_recorded=recorded), setting.work
    if work is None:
        return facts
    limit = device_limit(work, setting.limits, caches or deciding_caches(work, setting.device))
    moved = work.bytes_read + work.bytes_written
    gb, gflop = moved / time_ms / 1e6, work.flops / time_ms / 1e6
    facts = replace(facts, gb_per_s=gb, gflop_per_s=gflop)
    if limit is None:
        return facts
    return replace(facts, limit_share=limit.share(time_ms), limit_name=limit.name)


def winners_below(records: Sequence[RecordFile], occupancy_share: float) -> tuple[int, int]:
    """Return the number of recorded winners below an occupancy, and the number with known occupancy."""
    shares = []
    for record in (file.record for file in records):
        device = record.device.planned_for()
        for winner, plan in ((tuned.winner, tuned.plan) for tuned in record.problems):
            shared = (winner.static_shared_bytes or 0) + plan.shared_bytes
            found = occupancy(device, prod(plan.block), winner.registers or 0, shared)
            if found and found.blocks and winner.registers:
                shares.append(found.share)
    return sum(share < occupancy_share for share in shares), len(shares)
