"""From a kernel and a problem to the tuned configuration, and how good the hit is.

Keeps the table made of the record files and the answers given from it. Light to import, because
this is what a production process imports; knows nothing of how records come about.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NoReturn

from autotune.errors import UsageError, unknown
from autotune.kernel.expression import value_of
from autotune.tuned.current import current_device, forget
from autotune.tuned.files import kernel_names, read_layers, stamp, warn
from autotune.tuned.record import Triple, Value
from autotune.tuned.table import (
    DEFAULT,
    EXACT,
    NEAREST_PROBLEM,
    LookupRow,
    LookupTable,
    ProblemKey,
    build_table,
    normal_arch,
    pick,
)

#: Largest extent of a grid on any CUDA device.
MAX_GRID = 2**31 - 1
#: How long a change of the record files may go unnoticed, in seconds.
RECHECK_S = 1.0
#: Answers kept per kernel; a serving process may ask for ever new sizes.
MAX_ANSWERS = 4096


class TunedConfig(Mapping[str, Any]):
    """A configuration of a kernel and how to launch it: a mapping of parameters to values.

    Attributes
    ----------
    block : tuple of int
        Threads in x, y, z.
    shared_bytes : int
        Dynamic shared memory per block.
    grid : tuple of int or None
        Blocks in x, y, z of the first launch for the asked problem; None where the launch could
        not be traced, or does not fit a CUDA grid.
    quality : str
        How good the hit is: ``exact``, ``nearest_problem``, ``same_arch``, ``nearest_arch`` or
        ``default``.
    expected_fraction : float or None
        Expected share of the best possible speed; 1 for an exact hit, None where it is not known.
    stale_reasons : tuple of str
        Why it should be tuned again; empty while it is current.
    source : str
        Layer, device and kernel of the record, for example ``shipped:NVIDIA_H100/sgemm``.
    requires_met : bool
        False only where not even the default may be used for this problem.
    """

    __slots__ = (
        "_values",
        "block",
        "expected_fraction",
        "grid",
        "quality",
        "requires_met",
        "shared_bytes",
        "source",
        "stale_reasons",
    )

    _values: Mapping[str, Value]
    block: Triple
    shared_bytes: int
    grid: Triple | None
    quality: str
    expected_fraction: float | None
    stale_reasons: tuple[str, ...]
    source: str
    requires_met: bool

    def __init__(self, values: Mapping[str, Value], **about: Any) -> None:
        object.__setattr__(self, "_values", dict(values))
        for name, value in about.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("TunedConfig is immutable")

    def __reduce__(self) -> tuple[Any, ...]:
        about = {name: getattr(self, name) for name in self.__slots__ if name != "_values"}
        return partial(TunedConfig, dict(self._values), **about), ()

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value}" for name, value in self._values.items())
        return f"TunedConfig({values}; block={self.block}, quality={self.quality!r})"


# ---------------------------------------------------------------------- lookup


def lookup(
    kernel: str, *, arch: str | int | None = None, device: Any = None, **problem: Any
) -> TunedConfig:
    """Find the tuned configuration of a kernel for a problem.

    Never fails for a size: what was measured for others answers, and `TunedConfig.quality` says how
    good the hit is. Record files are read once, and looked at again when the last look is a second
    old; a change of ``AUTOTUNE_TUNED`` or ``XDG_DATA_HOME`` is seen at once. With
    ``AUTOTUNE_DISABLE=1`` it answers with the default.

    Parameters
    ----------
    kernel : str
        Name of the kernel, for example ``sgemm``.
    arch : str or int, optional
        Architecture: ``sm_90``, 90, or 900 as in ``__CUDA_ARCH__``. Default: that of ``device``,
        else ``AUTOTUNE_ARCH``, else that of the current device where CUDA is initialised, else of
        the first visible GPU.
    device : str or Device, optional
        The driver's name of a device, its uuid, or its folder among the records.
    **problem : int or str
        All problem fields of the kernel.

    Returns
    -------
    TunedConfig
        Parameters by name, with ``block``, ``shared_bytes``, ``grid`` and ``quality``.

    Raises
    ------
    UsageError
        If nothing is known of the kernel at all, or the problem fields are not the kernel's.
    """
    environ = os.environ
    key = (kernel, environ.get("AUTOTUNE_TUNED"), environ.get("XDG_DATA_HOME"))
    cached = _cache.get(key)
    if cached is None or time.monotonic() - cached.checked_at > RECHECK_S:
        cached = _refreshed(key, kernel)
    disabled = environ.get("AUTOTUNE_DISABLE", "0") not in ("", "0")
    name = None
    if device is None and arch is None and not disabled:
        arch = environ.get("AUTOTUNE_ARCH") or None
        if arch is None:
            name, arch = current_device()
    question = (disabled, arch, device, name, *problem.items())
    try:
        return cached.answers[question]
    except KeyError:
        answer = _answer(kernel, cached.table, disabled, arch, device or name, problem)
    except TypeError:  # an unhashable device or field
        return _answer(kernel, cached.table, disabled, arch, device or name, problem)
    if len(cached.answers) >= MAX_ANSWERS:
        cached.answers.clear()
    cached.answers[question] = answer
    return answer


class _Cached:
    """The table of one kernel in one environment, and the answers given from it."""

    def __init__(self, kernel: str, state: tuple[object, ...]) -> None:
        self.state = state
        self.checked_at = time.monotonic()
        self.answers: dict[object, TunedConfig] = {}
        loaded = read_layers(kernel)
        self.table = build_table(loaded, warn) if loaded else None


#: By kernel and the environment variables that decide where records are.
_cache: dict[object, _Cached] = {}


def clear_cache() -> None:
    """Forget every record, answer and device that was seen."""
    _cache.clear()
    forget()


def _refreshed(key: object, kernel: str) -> _Cached:
    """What is cached if no file changed since, else a new table."""
    if not isinstance(kernel, str) or not kernel.isidentifier():
        raise UsageError(f"the name of a kernel is an identifier, not {kernel!r}")
    state = stamp(kernel)
    cached = _cache.get(key)
    if cached is None or cached.state != state:
        cached = _cache[key] = _Cached(kernel, state)
    cached.checked_at = time.monotonic()
    return cached


def _answer(
    kernel: str,
    table: LookupTable | None,
    disabled: bool,
    arch: str | int | None,
    device: Any,
    problem: Mapping[str, Any],
) -> TunedConfig:
    if table is None:
        known = unknown("kernel", kernel, sorted(kernel_names() - {kernel}))
        raise UsageError(f"no tuned record: {known}; make one with: autotune run {kernel}")
    values = _values(table, problem)
    if disabled:
        return _tuned_config(table, table.default, DEFAULT, values)
    folder, arch_name = _folder(table, device), normal_arch(arch)
    if arch_name is None and folder not in table.devices:
        arch_name = normal_arch(getattr(device, "arch", None))
    if arch_name is None and device is None:
        # Where no GPU is found, the user's own records of the CPU are what can be meant.
        arch_name = "opencl_cpu" if "opencl_cpu" in table.archs else None
    return _tuned_config(table, *pick(table, values, folder, arch_name), values)


def _tuned_config(
    table: LookupTable, row: LookupRow, quality: str, problem: ProblemKey
) -> TunedConfig:
    fields = dict(zip(table.fields, problem, strict=True))
    return TunedConfig(
        row.plan.configuration,
        block=row.plan.block,
        shared_bytes=row.plan.shared_bytes,
        grid=_grid(row, problem, fields),
        quality=quality,
        # Measured on the device itself: nothing is known of the loss elsewhere.
        expected_fraction=row.expected_fraction if quality in (EXACT, NEAREST_PROBLEM) else None,
        stale_reasons=row.stale_reasons,
        source=row.source,
        requires_met=row.plan.allows(fields),
    )


def _grid(row: LookupRow, problem: ProblemKey, fields: Mapping[str, Any]) -> Triple | None:
    """The grid of a row's plan for a problem; None where it is not known or cannot be launched."""
    if row.plan.grid is None:
        return row.grid if row.problem == problem else None
    try:
        x, y, z = (value_of(axis, fields) for axis in row.plan.grid)
    except ValueError:
        return None
    return (x, y, z) if min(x, y, z) >= 0 and max(x, y, z) <= MAX_GRID else None


def _values(table: LookupTable, problem: Mapping[str, Any]) -> ProblemKey:
    """The problem's values in the kernel's order, of the right kinds.

    Raises
    ------
    UsageError
        If a field is unknown, missing, or of the wrong kind.
    """
    for name in problem:
        if name not in table.fields:
            known = unknown("problem field", name, table.fields)
            raise UsageError(f"{table.kernel}: {known}")
    values: list[int | str] = []
    for name, integer in table.fields.items():
        if name not in problem:
            needed = ", ".join(table.fields)
            raise UsageError(f"{table.kernel}: problem field {name!r} is missing (of {needed})")
        values.append(_value(table.kernel, name, problem[name], integer))
    return tuple(values)


def _value(kernel: str, name: str, value: Any, integer: bool) -> int | str:
    if integer and hasattr(value, "__index__"):
        return int(value)
    if not integer and isinstance(value, str):
        return value
    kind = "an integer" if integer else "a str"
    raise UsageError(f"{kernel}: problem field {name}={value!r} must be {kind}")


def _folder(table: LookupTable, device: Any) -> str | None:
    """The folder of a device among the records; its own name where it has none."""
    if device is None:
        return None
    known = [str(getattr(device, part, "")) for part in ("uuid", "name")] + [str(device)]
    return next((table.names[name] for name in known if name in table.names), known[-1])
