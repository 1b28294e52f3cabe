"""Answers a lookup from a table: checks the fields, finds the device, and describes the hit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from autotune.answers.table import ProblemKey, Triple, Value
from autotune.errors import UsageError, unknown
from autotune.kernel.expression import value_of
from autotune.tuned.merged import (
    DEFAULT,
    EXACT,
    FIRST_CALL,
    Hit,
    LookupTable,
    arch_number,
    is_arch,
    normal_arch,
    pick,
)
from autotune.tuned.record import TunedProblem, TuningOrigin

if TYPE_CHECKING:
    from autotune.tuned.first_calls import FirstCalls

#: Largest extent of a grid on any CUDA device.
MAX_GRID = 2**31 - 1


@dataclass(frozen=True, eq=False, repr=False)
class TunedConfig(Mapping[str, Any]):
    """A configuration of a kernel and its launch: a mapping of parameters to values.

    Attributes
    ----------
    block : tuple of int
        Threads in x, y, z.
    shared_bytes : int
        Dynamic shared memory per block.
    grid : tuple of int or None
        Blocks in x, y, z of the main launch for the problem. None if the launch could not be traced,
        does not fit a CUDA grid, or the layout of the arrays is not the tuned one.
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
    requires_met : bool
        False if not even the default is valid: for this problem, or on this architecture.
    """

    _values: Mapping[str, Value]
    block: Triple
    shared_bytes: int
    grid: Triple | None
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
    requires_met: bool

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

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
) -> TunedConfig:
    """Return the tuned configuration for a problem; see `autotune.lookup`.

    First calls answer after exact entries.
    """
    values, layout = _values(table, problem), _layout(table, problem)
    folder, arch_name = _place(table, arch, device)
    hit = pick(table, values, folder, arch_name, layout, deterministic)
    found = tuned_config(table, hit, values, layout, arch_name)
    if first_calls is not None and found.quality != EXACT:
        fields = table.named(values, layout)
        if known := first_calls.find(device, fields, deterministic):
            source, entry = known
            if plan := table.plan_of(entry.configuration, fields, deterministic):
                hit = Hit(plan, None, FIRST_CALL, verified=found.verified)
                of_plan = tuned_config(table, hit, values, layout, arch_name)
                of_plan = replace(of_plan, stale_reasons=table.newest.stale_reasons(entry))
                return _of_first_call(entry, source, of_plan, found.expected_ms)
    if deterministic and not hit.plan.deterministic:
        asked = ", ".join(f"{name}={value}" for name, value in problem.items())
        raise UsageError(
            f"{table.kernel}: no recorded configuration for ({asked}) is declared deterministic; declare "
            f"which configurations are (@{table.kernel}.deterministic), then tune: autotune run "
            f"{table.kernel}"
        )
    return found


def _of_first_call(
    entry: TunedProblem, source: str, found: TunedConfig, expected_ms: float | None
) -> TunedConfig:
    """Describe the answer of a first call; ``expected_ms`` is the expected time of the answer of runs.

    The times of a first call include the overhead of timing, so only their ratio counts.
    """
    if expected_ms is not None:
        answer_ms = entry.race.contenders[-1].time_ms.value
        expected_ms = expected_ms * entry.median_ms / answer_ms
    return replace(found, source=source, origin=entry.origin, expected_ms=expected_ms)


def promising(
    table: LookupTable, device: Any, deterministic: bool, problem: Mapping[str, Any], count: int
) -> list[Mapping[str, Value]]:
    """Return at most ``count`` configurations to try for a problem, the answer first.

    Each next configuration is the answer without the configurations before it.
    """
    values, layout = _values(table, problem), _layout(table, problem)
    folder, arch = _place(table, None, device)
    found: list[Mapping[str, Value]] = []
    while len(found) < count:
        hit = pick(table, values, folder, arch, layout, deterministic, found)
        if hit.row is None:
            break
        found.append(hit.plan.configuration)
    return found


def tuned_config(
    table: LookupTable,
    hit: Hit,
    problem: ProblemKey,
    layout: Mapping[str, int] | None = None,
    arch: str | None = None,
) -> TunedConfig:
    """Return the answer of lookup for a hit. Default ``layout``: the tuned layout.

    `pick` returns only plans that are valid on the architecture, apart from the default.
    """
    plan, row = hit.plan, hit.row
    tuned = row.tuned if row else None
    is_plain = layout is None or layout == table.layout
    fields = table.named(problem, layout)
    is_cuda = arch is not None and arch_number(arch) is not None
    is_valid = hit.quality != DEFAULT or not is_cuda or plan.fits(str(arch))
    return TunedConfig(
        dict(plan.configuration),
        block=plan.block,
        shared_bytes=plan.shared_bytes,
        grid=_grid(table.kernel, hit, problem, fields) if is_plain else None,
        quality=hit.quality,
        expected_fraction=hit.expected_fraction,
        median_fraction=hit.median_fraction,
        expected_ms=hit.expected_ms,
        stale_reasons=(),
        noise="; ".join(tuned.race.noise) if tuned else "",
        objective=table.objective,
        source=row.origin.source if row else table.source,
        exclusive=plan.exclusive,
        deterministic=plan.deterministic,
        origin=tuned.origin if tuned else None,
        verified=hit.verified,
        requires_met=is_valid and plan.allows(fields),
    )


def _grid(kernel: str, hit: Hit, problem: ProblemKey, fields: Mapping[str, Any]) -> Triple | None:
    if hit.plan.grid is None:
        tuned = hit.row.tuned if hit.row and hit.row.problem == problem else None
        is_winner = tuned and tuned.configuration == hit.plan.configuration
        return tuned.untraced_grid(kernel) if tuned and is_winner else None
    try:
        x, y, z = (value_of(axis, fields) for axis in hit.plan.grid)
    except ValueError:
        return None
    return (x, y, z) if min(x, y, z) >= 0 and max(x, y, z) <= MAX_GRID else None


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
    """Return the record folder and the architecture of a lookup's ``device`` and ``arch``."""
    folder, arch_name, own = _folder(table, device), _arch(table, arch), _arch_of(device)
    if folder in table.devices and own not in (None, table.devices[folder].arch):
        folder = None  # a record of another GPU that bears its name
    if arch_name is None and folder not in table.devices:
        arch_name = normal_arch(own)
    if arch_name is None and device is None:
        # Without a GPU only the user's records of the CPU can apply.
        arch_name = "opencl_cpu" if "opencl_cpu" in table.archs else None
    return folder, arch_name


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


def _arch_of(device: Any) -> str | None:
    if isinstance(device, str):
        from autotune.devices.device import arch_of_model

        return arch_of_model(device)
    return getattr(device, "arch", None)


def _folder(table: LookupTable, device: Any) -> str | None:
    if device is None:
        return None
    known = [str(getattr(device, part, "")) for part in ("uuid", "name")] + [str(device)]
    return next((table.names[name] for name in known if name in table.names), known[-1])
