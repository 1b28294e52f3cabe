"""Answers a lookup from a table: checks the fields, finds the device, and describes the hit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import Any

from autotune.answers.table import Plan, ProblemKey, Triple, Value
from autotune.devices.device import BACKENDS, Device, arch_of_model
from autotune.errors import NoAnswerError, UsageError, unknown
from autotune.kernel.expression import text_of
from autotune.tuned.first_calls import CalledProblem, FirstCalls
from autotune.tuned.merged import (
    DEFAULT,
    EXACT,
    FIRST_CALL,
    NEAREST_ARCH,
    SAME_ARCH,
    Hit,
    LookupTable,
    arch_number,
    is_arch,
    normal_arch,
    pick,
)
from autotune.tuned.record import TunedProblem, TuningOrigin
from autotune.tuned.rival import TunedCall


@dataclass(frozen=True)
class TunedLaunch:
    """One launch of a configuration for a problem.

    Attributes
    ----------
    entry : str
        Name of the function, as the kernel's launch declares it.
    grid : tuple of int or None
        Blocks in x, y, z. None if the launch could not be traced, or the layout of the arrays is not the
        tuned one.
    block : tuple of int
        Threads in x, y, z.
    shared_bytes : int
        Dynamic shared memory per block.
    cluster : tuple of int
        Blocks of a cluster in x, y, z; empty without clusters.
    cooperative, programmatic : bool
        Further attributes of the launch; see `autotune.Launch`.
    """

    entry: str
    grid: Triple | None
    block: Triple
    shared_bytes: int
    cluster: tuple[int, ...] = ()
    cooperative: bool = False
    programmatic: bool = False


@dataclass(frozen=True, eq=False, repr=False)
class TunedConfig(Mapping[str, Any]):
    """A configuration of a kernel and its launches: a mapping of parameters to values.

    Attributes
    ----------
    launches : tuple of TunedLaunch
        All launches in order, without fills.
    main : TunedLaunch
        The launch of the function with the kernel's name, else the first launch. ``block``, ``grid`` and
        ``shared_bytes`` are its values.
    quality : str
        Quality of the hit: ``exact``, ``first_call``, ``nearest_problem``, ``same_arch``,
        ``nearest_arch`` or ``default``.
    expected_fraction : float or None
        Share of the best speed that nine of ten answers for held-out sizes reach; 1 for an exact hit.
        None outside the measured sizes, if too few answers were measured, or if no prediction chose the
        configuration.
    median_fraction : float or None
        Share of the best speed that half of such answers reach; None if unknown.
    expected_ms : float or None
        Measured time of a call, or the time predicted from other sizes, in ms; None if unknown.
    stale_reasons : tuple of str
        Changes of the kernel's files since the answer was tuned; empty while it is current, and if the files
        are not at hand. `lookup` compares them without running them. `TunedKernel.choice` and the
        command ``autotune lookup`` also compare computed lists of values and files outside the project.
    exclusive : bool
        Whether two launches of one loaded module must not overlap, for example on two streams.
    deterministic : bool
        Whether the kernel declares that the same data give the same bits in every run on a device.
    noise : str
        Reasons why its time or the choice may be wrong, for example a busy device; empty without any.
    objective : str
        The objective of tuning: ``time``, ``energy`` or ``edp``.
    source : str
        Layer, device and kernel of the record, for example ``shipped:NVIDIA_H100/sgemm``.
    origin : TuningOrigin or None
        Date, method and sources of the tuning; None if the answer is not from a tuned problem.
    verified : bool
        Whether the configuration was verified at this size, or at sizes below and above it in each field.
        False without a record of such a size: its results may be wrong there.
    other_device : str
        One line: why no record of the asked device or architecture answers, where the answer was measured, and
        the command that tunes the kernel; empty if such a record answers.
    rival : TunedCall or None
        A call of another library that was faster than this configuration in the race of this problem, by more
        than the uncertainty, and that the kernel lets answer (``baseline(..., answers=True)``). `load` makes it in
        place of the launches.
    """

    _values: Mapping[str, Value]
    launches: tuple[TunedLaunch, ...]
    main: TunedLaunch
    quality: str
    expected_fraction: float | None
    median_fraction: float | None
    expected_ms: float | None
    stale_reasons: tuple[str, ...]
    exclusive: bool
    deterministic: bool
    noise: str
    objective: str
    source: str
    origin: TuningOrigin | None
    verified: bool
    other_device: str = ""
    rival: TunedCall | None = None

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def block(self) -> Triple:
        """Return the threads in x, y, z of the main launch."""
        return self.main.block

    @property
    def shared_bytes(self) -> int:
        """Return the dynamic shared memory per block of the main launch."""
        return self.main.shared_bytes

    @property
    def grid(self) -> Triple | None:
        """Return the blocks in x, y, z of the main launch; see `TunedLaunch`."""
        return self.main.grid

    @property
    def expected(self) -> str:
        """Return the expected speed in words; empty for a tuned problem, or if unknown."""
        low, median = self.expected_fraction, self.median_fraction
        if low is None or low == median == 1:
            return ""
        if median is None:
            return f"expected at least {low:.2f} of the best"
        return f"expected {low:.2f} to {median:.2f} of the best"

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value}" for name, value in self._values.items())
        return f"TunedConfig({values}; block={self.block}, quality={self.quality!r})"


def answer(
    table: LookupTable,
    arch: str | int | None,
    device: Any,
    deterministic: bool,
    problem: Mapping[str, Any],
    first_calls: FirstCalls | None = None,
    is_valid: Callable[[TunedProblem], bool] | None = None,
) -> TunedConfig:
    """Return the tuned configuration for a problem; see `autotune.lookup`.

    First calls answer after exact entries. The first answer for which ``is_valid`` returns true answers. By
    default it is the first that is of the newest record's kernel, else the last: the kernel may have changed
    since.
    """
    values, layout = _values(table, problem), _layout(table, problem)
    key, arch_name = _place(table, arch, device)
    count = _multiprocessors(device)
    hit = pick(table, values, key, arch_name, layout, deterministic, multiprocessors=count)
    if first_calls is not None and (hit is None or hit.quality != EXACT):
        called = CalledProblem(table.named(values, layout), deterministic)
        if known := _first_call(table, first_calls, device, called, is_valid):
            source, entry, plan = known
            found = Hit(plan, None, FIRST_CALL, verified=hit is not None and hit.verified)
            return replace(
                tuned_config(table, found, values, layout),
                stale_reasons=table.newest.stale_reasons(entry),
                source=source,
                origin=entry.origin,
                expected_ms=_expected_ms(entry, hit.expected_ms if hit else None),
            )
    if hit is None:
        where = arch_name or (table.devices[key].arch if key in table.devices else "")
        raise NoAnswerError(_why_nothing(table, values, layout, where, deterministic))
    other_device = _why_other_device(table, hit, key, arch_name, device)
    return replace(tuned_config(table, hit, values, layout), other_device=other_device)


def _why_other_device(
    table: LookupTable, hit: Hit, key: str | None, arch: str | None, device: Any
) -> str:
    """Return why no record of the asked device answers, and what to do; empty if one does."""
    if hit.quality not in (SAME_ARCH, NEAREST_ARCH, DEFAULT) or hit.row is None:
        return ""
    missing = _missing(table, hit.quality, key, arch, device)
    if not missing:
        return ""
    measured = hit.row.origin.record.device
    answer_is = f"this answer was measured on {measured.name} ({measured.arch})"
    if hit.quality == DEFAULT:
        answer_is = "this answer is the kernel's default"
    return f"{missing}: {answer_is}; to tune it there, run: autotune run {table.kernel}"


def _missing(
    table: LookupTable, quality: str, key: str | None, arch: str | None, device: Any
) -> str:
    """Return what the records lack; empty if nothing is known about the asked device."""
    own = table.devices.get(key or "")
    name = getattr(device, "name", device)
    if own or (arch in table.archs and quality != SAME_ARCH):
        where = own.device.name if own and own.device else arch
        return f"no configuration that was tuned on {where} is valid for this problem"
    if arch and quality != SAME_ARCH:
        return f"no record of {arch}"
    if isinstance(device, Device) and (namesake := table.names.get(device.name)):
        recorded = table.devices[namesake].device
        difference = recorded and device.chip.difference(recorded.chip)
        return f"no record of this {name} ({difference})"
    return f"no record of {name}" if name else ""


def _first_call(
    table: LookupTable,
    first_calls: FirstCalls,
    device: Any,
    called: CalledProblem,
    is_valid: Callable[[TunedProblem], bool] | None,
) -> tuple[str, TunedProblem, Plan] | None:
    """Return the first call that answers a problem, with its source and its plan; see `answer`."""
    known = device if isinstance(device, Device) else None
    found = [
        (source, entry, plan)
        for folder in _first_call_folders(table, device)
        for source, entry in first_calls.answers(folder, called, known)
        if (plan := table.plan_of(entry.configuration, called.fields, called.deterministic))
    ]
    if is_valid is not None:
        return next((each for each in found if is_valid(each[1])), None)
    current = [each for each in found if not table.newest.stale_reasons(each[1])]
    return next(iter(current or found[::-1]), None)


def _first_call_folders(table: LookupTable, device: Any) -> Iterable[str]:
    """Return the folders that may have the first calls of a lookup's ``device``."""
    if device is None or isinstance(device, Device):
        return [device.folder] if device else []
    group = table.devices.get(table.names.get(str(device), ""))
    named = [Device(backend, str(device), "").folder for backend in BACKENDS]
    # A uuid is no name.
    return dict.fromkeys([*named, *([group.device.folder] if group and group.device else [])])


def _expected_ms(entry: TunedProblem, of_runs_ms: float | None) -> float | None:
    """Return the expected time of a first call's answer, from that of the answer of runs.

    The times of a first call include the overhead of timing, so only their ratio counts.
    """
    if of_runs_ms is None:
        return None
    return of_runs_ms * entry.median_ms / entry.race.contenders[-1].time_ms.value


def _why_nothing(
    table: LookupTable,
    values: ProblemKey,
    layout: Mapping[str, int],
    arch: str,
    deterministic: bool,
) -> str:
    """Return the message that no recorded configuration is valid: what was needed, and what to do."""
    fields, kernel = table.named(values, layout), table.kernel
    asked = ", ".join(f"{name}={value}" for name, value in fields.items())
    where = f" on {arch}" if arch else ""
    plans = [plan for plan in table.plans() if not deterministic or plan.deterministic]
    if not plans:
        return (
            f"{kernel}: no recorded configuration for ({asked}) is declared deterministic; declare "
            f"which configurations are (@{kernel}.deterministic), then tune: autotune run {kernel}"
        )
    is_cuda = arch_number(arch) is not None
    able = [plan for plan in plans if not is_cuda or plan.fits(arch)]
    if not able:
        names = {name for plan in plans for name in plan.archs or ()}
        known = sorted(names, key=lambda name: arch_number(name) or 0)
        needed = f"they need one of {', '.join(known)}" if known else "they need a larger device"
    else:
        needed = _needed(able, fields)
    kind = "deterministic " if deterministic else ""
    return (
        f"{kernel}: no recorded {kind}configuration is valid for ({asked}){where}: {needed}; tune the "
        f"kernel for it: autotune run {kernel}"
    )


def _needed(plans: Sequence[Plan], fields: Mapping[str, int | str]) -> str:
    """Return the conditions of plans that a problem does not satisfy, at most three."""
    # Many plans share few conditions.
    different = {repr(plan.requires): plan for plan in plans}.values()
    conditions = [text_of(plan.requires or 0) for plan in different if not plan.meets(fields)]
    if not conditions:
        return "none is of these categories, or their grids are larger than CUDA allows"
    return "they need " + ", or ".join(conditions[:3])


def promising(
    table: LookupTable, device: Any, deterministic: bool, problem: Mapping[str, Any], count: int
) -> list[Mapping[str, Value]]:
    """Return at most ``count`` configurations to try for a problem, the answer first.

    Each next configuration is the answer without the configurations before it.
    """
    values, layout = _values(table, problem), _layout(table, problem)
    (key, arch), here = _place(table, None, device), _multiprocessors(device)
    found: list[Mapping[str, Value]] = []
    while len(found) < count:
        hit = pick(table, values, key, arch, layout, deterministic, found, here)
        if hit is None or hit.quality == DEFAULT:
            break
        found.append(hit.plan.configuration)
    return found


def tuned_config(
    table: LookupTable,
    hit: Hit,
    problem: ProblemKey,
    layout: Mapping[str, int] | None = None,
) -> TunedConfig:
    """Return the answer of lookup for a hit. Default ``layout``: the tuned layout."""
    plan, row = hit.plan, hit.row
    tuned = row.tuned if row else None
    is_plain = layout is None or layout == table.layout
    grids = _grids(hit, problem, table.named(problem)) if is_plain else repeat(None)
    launches = tuple(
        TunedLaunch(
            launch.entry or table.kernel,
            grid,
            launch.block,
            launch.shared_bytes,
            launch.cluster or (),
            launch.cooperative,
            launch.programmatic,
        )
        for launch, grid in zip(plan.launches, grids, strict=False)
    )
    return TunedConfig(
        dict(plan.configuration),
        launches=launches,
        main=launches[len(plan.before)],
        quality=hit.quality,
        expected_fraction=hit.expected_fraction,
        median_fraction=hit.median_fraction,
        expected_ms=hit.expected_ms,
        stale_reasons=(),
        noise="; ".join(tuned.race.noise) if tuned else "",
        objective=table.objective,
        source=row.origin.source if row else "",
        exclusive=plan.exclusive,
        deterministic=plan.deterministic,
        origin=tuned.origin if tuned else None,
        verified=hit.verified,
        rival=hit.rival,
    )


def _grids(hit: Hit, problem: ProblemKey, fields: Mapping[str, Any]) -> Iterator[Triple | None]:
    """Yield the grid of each launch; grids that were not traced are known for the tuned problem only."""
    tuned = hit.row.tuned if hit.row and hit.row.problem == problem else None
    is_winner = tuned is not None and tuned.configuration == hit.plan.configuration
    steps = tuned.launches if tuned and is_winner else ()
    untraced = chain((step.concrete_grid for step in steps), repeat(None))
    for launch, known in zip(hit.plan.launches, untraced, strict=False):
        if launch.grid is None:
            yield known
        else:
            x, y, z = launch.grid_for(fields)
            yield x, y, z


def _values(table: LookupTable, problem: Mapping[str, Any]) -> ProblemKey:
    for name in problem:
        if name not in table.fields and name not in table.layout:
            known = unknown("problem field", name, [*table.fields, *table.layout])
            raise UsageError(f"{table.kernel}: {known}")
    values: list[int | str] = []
    for name, integer in table.fields.items():
        if name not in problem:
            needed = ", ".join(table.fields)
            raise UsageError(f"{table.kernel}: problem field {name!r} is missing (of {needed})")
        value = _value(table.kernel, name, problem[name], integer)
        if isinstance(value, int) and value < 0:
            raise UsageError(f"{table.kernel}: problem field {name}={value} must be at least 0")
        values.append(value)
    return tuple(values)


def _layout(table: LookupTable, problem: Mapping[str, Any]) -> dict[str, int]:
    return {
        name: int(_value(table.kernel, name, problem.get(name, plain), True))
        for name, plain in table.layout.items()
    }


def _value(kernel: str, name: str, value: Any, integer: bool) -> int | str:
    if integer and hasattr(value, "__index__"):
        return int(value)
    if not integer and isinstance(value, str):
        return value
    kind = "an integer" if integer else "a str"
    raise UsageError(f"{kernel}: problem field {name}={value!r} must be {kind}")


def _place(
    table: LookupTable, arch: str | int | None, device: Any
) -> tuple[str | None, str | None]:
    """Return the key of the device's records and the architecture of a lookup's ``device`` and ``arch``.

    The key is "" for a device without records, and None without a device.
    """
    key, arch_name = _device_key(table, device), _arch(table, arch)
    if arch_name is None and key not in table.devices:
        arch_name = normal_arch(_arch_of(device))
    if arch_name is None and device is None:
        # Without a GPU only the user's records of the CPU can apply.
        arch_name = "opencl_cpu" if "opencl_cpu" in table.archs else None
    return key, arch_name


def _arch(table: LookupTable, arch: str | int | None) -> str | None:
    """Return the normal name of an architecture, tuned or not; raise `UsageError` for another text."""
    name = normal_arch(arch)
    if name is None or name in table.archs or is_arch(name):
        return name
    tuned = ", ".join(sorted(table.archs))
    raise UsageError(
        f"{table.kernel}: arch {arch!r} is not an architecture; write for example sm_90, 90, 9.0 or "
        f"900 (tuned: {tuned})"
    )


def _multiprocessors(device: Any) -> int:
    """Return the number of multiprocessors of a GPU; 0 if unknown."""
    count = device.chip.multiprocessors if isinstance(device, Device) else 1
    return count if count > 1 else 0


def _arch_of(device: Any) -> str | None:
    return device.arch if isinstance(device, Device) else arch_of_model(str(device or ""))


def _device_key(table: LookupTable, device: Any) -> str | None:
    if device is None:
        return None
    if isinstance(device, Device):
        return table.own_records(device)
    return table.names.get(str(device), "")
