"""From a kernel and a problem to the tuned configuration, and how good the hit is.

Finds record files, keeps the table made of them and the answers given from it. Standard library
only, because this is what a production process imports; knows nothing of how records come about.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

from autotune.kernel.expression import value_of
from autotune.tuned.current import current_device, forget
from autotune.tuned.table import (
    CUDA_ARCH_MACRO,
    DEFAULT,
    EXACT,
    NEAREST_PROBLEM,
    Loaded,
    LookupRow,
    LookupTable,
    Problem,
    Triple,
    Value,
    build_table,
    fastest,
    moment,
    pick,
)

FORMAT = "autotune tuned record"
SCHEMA_VERSION = 1

#: Largest extent of a grid on any CUDA device.
MAX_GRID = 2**31 - 1
#: How long a change of the record files may go unnoticed, in seconds.
RECHECK_S = 1.0
#: Answers kept per kernel; a serving process may ask for ever new sizes.
MAX_ANSWERS = 4096

#: What reading a malformed record can raise.
MALFORMED = (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError)


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
        return _restored, (dict(self._values), about)

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value}" for name, value in self._values.items())
        return f"TunedConfig({values}; block={self.block}, quality={self.quality!r})"


def _restored(values: Mapping[str, Value], about: Mapping[str, Any]) -> TunedConfig:
    return TunedConfig(values, **about)


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

    def __init__(self, kernel: str, stamp: tuple[object, ...]) -> None:
        self.stamp = stamp
        self.checked_at = time.monotonic()
        self.answers: dict[object, TunedConfig] = {}
        records = read_layers(kernel)
        self.table = build_table(records, _warn) if records else None


#: By kernel and the environment variables that decide where records are.
_cache: dict[object, _Cached] = {}


def clear_cache() -> None:
    """Forget every record, answer and device that was seen."""
    _cache.clear()
    forget()


def _refreshed(key: object, kernel: str) -> _Cached:
    """What is cached if no file changed since, else a new table."""
    if not isinstance(kernel, str) or not kernel.isidentifier():
        raise _usage_error(f"the name of a kernel is an identifier, not {kernel!r}")
    stamp = _stamp(kernel)
    cached = _cache.get(key)
    if cached is None or cached.stamp != stamp:
        cached = _cache[key] = _Cached(kernel, stamp)
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
        raise _unknown_kernel(kernel)
    values = _values(table, problem)
    if disabled:
        return _tuned_config(table, table.default, DEFAULT, values)
    folder, arch_name = _folder(table, device), normal_arch(arch)
    if arch_name is None and folder not in table.devices:
        arch_name = normal_arch(getattr(device, "arch", None))
    if arch_name is None and device is None:
        arch_name = _arch_without_gpu(table)
    return _tuned_config(table, *pick(table, values, folder, arch_name), values)


def _tuned_config(
    table: LookupTable, row: LookupRow, quality: str, problem: Problem
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


def _grid(row: LookupRow, problem: Problem, fields: Mapping[str, Any]) -> Triple | None:
    """The grid of a row's plan for a problem; None where it is not known or cannot be launched."""
    if row.plan.grid is None:
        return row.grid if row.problem == problem else None
    try:
        x, y, z = (value_of(axis, fields) for axis in row.plan.grid)
    except ValueError:
        return None
    return (x, y, z) if min(x, y, z) >= 0 and max(x, y, z) <= MAX_GRID else None


def _values(table: LookupTable, problem: Mapping[str, Any]) -> Problem:
    """The problem's values in the kernel's order, of the right kinds.

    Raises
    ------
    UsageError
        If a field is unknown, missing, or of the wrong kind.
    """
    for name in problem:
        if name not in table.fields:
            raise _unknown(table.kernel, "problem field", name, table.fields)
    values: list[int | str] = []
    for name, integer in table.fields.items():
        if name not in problem:
            needed = ", ".join(table.fields)
            raise _usage_error(f"{table.kernel}: problem field {name!r} is missing (of {needed})")
        values.append(_value(table.kernel, name, problem[name], integer))
    return tuple(values)


def _value(kernel: str, name: str, value: Any, integer: bool) -> int | str:
    if integer and hasattr(value, "__index__"):
        return int(value)
    if not integer and isinstance(value, str):
        return value
    kind = "an integer" if integer else "a str"
    raise _usage_error(f"{kernel}: problem field {name}={value!r} must be {kind}")


def normal_arch(arch: str | int | None) -> str | None:
    """``sm_90`` for 90, ``"9.0"``, ``"sm_90a"`` and 900 (`CUDA_ARCH_MACRO`); other names unchanged."""
    if arch is None:
        return None
    name = str(arch).strip().lower()
    bare = name.removeprefix("sm_").removesuffix("a").replace(".", "")
    if not bare.isdecimal():
        return name
    number = int(bare)
    return f"sm_{number // 10 if number in CUDA_ARCH_MACRO else number}"


def _folder(table: LookupTable, device: Any) -> str | None:
    """The folder of a device among the records; its own name where it has none."""
    if device is None:
        return None
    known = [str(getattr(device, part, "")) for part in ("uuid", "name")] + [str(device)]
    return next((table.names[one] for one in known if one in table.names), known[-1])


def _arch_without_gpu(table: LookupTable) -> str | None:
    """Where no GPU is found, the user's own records of the CPU are what can be meant."""
    return next((arch for arch in table.archs if arch == "opencl_cpu"), None)


# ---------------------------------------------------------------------- records on disk


def layers() -> list[tuple[str, str]]:
    """Folders of tuned records with their names, the first to be asked first.

    ``AUTOTUNE_TUNED``, the user's data, and what ships with the package; never the current folder.
    """
    given = os.environ.get("AUTOTUNE_TUNED")
    rest = [("user", user_folder()), ("shipped", shipped_folder())]
    return [("AUTOTUNE_TUNED", given), *rest] if given else rest


def user_folder() -> str:
    """Where runs of this user put tuned records."""
    data = os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local/share")
    return os.path.join(data, "autotune", "tuned")


def shipped_folder() -> str:
    """Records that came with the package: inside it, or beside it in a checkout."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    bundled = os.path.join(package, "_bundled", "reports")
    checkout = os.path.dirname(package)
    # Beside an installed package lies site-packages, whose `reports` would be somebody else's.
    in_checkout = os.path.exists(os.path.join(checkout, "pyproject.toml"))
    return os.path.join(checkout, "reports") if in_checkout else bundled


def read_layers(kernel: str) -> list[Loaded]:
    """All readable records of a kernel; others are left out with a warning."""
    loaded = []
    for layer, folder, path in _files(kernel):
        try:
            with open(path, "rb") as file:
                document = check(json.loads(file.read()), kernel)
            loaded.append(Loaded(layer, folder, document))
        except (OSError, *MALFORMED) as error:
            _warn(f"{path}: tuned record left out: {type(error).__name__}: {error}")
    return loaded


def check(document: Any, kernel: str) -> dict[str, Any]:
    """A record's JSON, if a table can be made of it.

    Raises
    ------
    ValueError
        If it is foreign or newer; this and other `MALFORMED` if it is damaged.
    """
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError("not a tuned record of autotune")
    version = document["schema_version"]
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise ValueError(f"schema {version!r} is newer than this autotune")
    if document["kernel"] != kernel:
        raise ValueError(f"it is of another kernel, {document['kernel']!r}")
    moment(document["provenance"]["created"])
    table = build_table([Loaded("", "", document)])
    for one in (document["default"], *document["entries"]):
        if set(one["configuration"]) != set(document["parameters"]):
            raise ValueError(f"{one['configuration']!r} is not a configuration of this kernel")
    for group in table.devices.values():
        for row in (*group.exact.values(), *group.nearest.values()):
            _tuned_config(table, *pick(table, row.problem, arch=group.arch), row.problem)
        for row in {id(one.prediction): one for one in group.nearest.values()}.values():
            fastest(row, dict(zip(table.fields, row.problem, strict=True)), None)
    portfolio = document["portfolio"]
    for _, times in zip(portfolio["configurations"], portfolio["median_ms"], strict=True):
        for _, time_ms in zip(portfolio["problems"], times, strict=True):
            float(time_ms or 0)
    return document


def _files(kernel: str) -> Iterator[tuple[str, str, str]]:
    """Layer, device folder and path of every record of a kernel."""
    for layer, directory in layers():
        for folder in device_folders(layer, directory):
            path = os.path.join(directory, folder, f"{kernel}.json")
            if os.path.exists(path):
                yield layer, folder, path


def device_folders(layer: str, directory: str) -> list[str]:
    """The folders of a layer, one per device.

    Only what was measured on GPUs ships: a CPU's records that a run left in the checkout's
    reports are in the user's layer too.
    """
    try:
        with os.scandir(directory) as found:
            names = sorted(one.name for one in found if one.is_dir())
        return [one for one in names if layer != "shipped" or not one.startswith("opencl_")]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        _warn(f"{directory}: cannot read tuned records: {error.strerror}")
        return []


def _stamp(kernel: str) -> tuple[object, ...]:
    """Changes whenever a record of the kernel appears, disappears or is replaced."""
    stamp = []
    for _, _, path in _files(kernel):
        try:
            state = os.stat(path)
        except OSError:
            continue
        stamp.append((path, state.st_mtime_ns, state.st_size, state.st_ino))
    return tuple(stamp)


def _warn(message: str) -> None:
    import warnings

    warnings.warn(message, RuntimeWarning, stacklevel=2)


# ---------------------------------------------------------------------- errors


def _usage_error(message: str) -> Exception:
    from autotune.errors import UsageError

    return UsageError(message)


def _unknown(kernel: str, kind: str, name: object, known: Iterable[object]) -> Exception:
    from autotune.errors import unknown

    return _usage_error(f"{kernel}: {unknown(kind, name, known)}")


def _unknown_kernel(kernel: str) -> Exception:
    from autotune.errors import unknown

    found = set()
    for layer, directory in layers():
        for folder in device_folders(layer, directory):
            files = os.listdir(os.path.join(directory, folder))
            found |= {file[:-5] for file in files if file.endswith(".json")}
    message = unknown("kernel", kernel, sorted(found - {kernel}))
    return _usage_error(f"no tuned record: {message}; make one with: autotune run {kernel}")
