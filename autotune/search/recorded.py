"""What others measured, as their files say it: Kernel Tuner's caches, T4 results, wisdom files.

Knows these formats (`autotune.export` writes them). Knows no device: what was measured, and on
what, is what the file says, and nothing of it was verified here.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from autotune.devices.device import Device
from autotune.errors import RecordError
from autotune.kernel.space import Space, index_type, is_numberable
from autotune.measure.measurement import Measurement, Status
from autotune.store import Scope
from autotune.store.rows import decode
from autotune.values import Configuration, Problem, Value

#: Kernel Tuner's failure classes. It skips an InvalidConfig before it compiles anything.
_FAILURES = {
    "InvalidConfig": (Status.PRUNED, "exceeds a limit of the device"),
    "CompilationFailedConfig": (Status.COMPILE_FAILED, "did not compile"),
    "RuntimeFailedConfig": (Status.LAUNCH_FAILED, "did not launch"),
}
#: T4's words for the same.
_INVALIDITY = {
    "timeout": (Status.TIMED_OUT, "took too long"),
    "compile": (Status.COMPILE_FAILED, "did not compile"),
    "runtime": (Status.LAUNCH_FAILED, "did not launch"),
    "correctness": (Status.WRONG_RESULT, "computed something else"),
    "constraints": (Status.PRUNED, "breaks a constraint"),
}
#: Versions of Kernel Tuner before 0.4 wrote this time for every failure.
_FAILED_TIME = 1e20
#: Milliseconds in a unit, as T4 files spell it; Kernel Tuner's own misspelling is in the published ones.
_UNITS_MS = {
    **dict.fromkeys(("", "ms", "milliseconds", "miliseconds"), 1.0),
    **dict.fromkeys(("s", "seconds"), 1e3),
    **dict.fromkeys(("us", "microseconds"), 1e-3),
    **dict.fromkeys(("ns", "nanoseconds"), 1e-6),
}
#: Members of a cache's entry that are no metric.
_KNOWN = frozenset(
    (
        *("time", "times", "__error__", "timestamp", "autotune"),
        *("compile_time", "verification_time", "benchmark_time", "strategy_time", "framework_time"),
    )
)
#: Of these, what stands among the measurements of T4.
_CARRIED = frozenset(("time", "autotune"))
#: Members of which each format has one.
_WORDS = (b'"cache"', b'"tune_params', b'"results"', b'"tunable_parameters"', b'"invalidity"')
_REMEDY = "record the space again, or take another copy of the file"


@dataclass(frozen=True)
class Reported:
    """One configuration as a file reports it."""

    #: With every sample, the first one too.
    measurement: Measurement
    #: When it was measured, as it is written; empty where it is not.
    timestamp: str = ""
    #: Host time that the search and the rest of the tuner took.
    strategy_ms: float = 0.0
    framework_ms: float = 0.0
    #: What was measured, by name: a value and its unit. ``time`` too, where it is no median.
    metrics: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    #: Whether autotune measured it, here or elsewhere, and left the first sample out itself.
    is_ours: bool = False


@dataclass(frozen=True, eq=False)
class Recording:
    """One kernel, measured by someone on one device for every configuration of a space."""

    path: Path
    kernel: str
    #: Backend ``replay``; the name is the recorded one, the uuid stands for the file's content.
    device: Device
    #: The recorded size as ``x``, ``y``, ``z``, unless the file names its fields.
    problem: Problem
    #: The recorded configurations, failing ones included.
    space: Space
    #: By number in the space.
    measurements: tuple[Measurement, ...]
    #: The format of the file: ``cache``, ``t4`` or ``wisdom``.
    kind: str = "cache"
    #: What the file says, in its order; a configuration may come again.
    reported: tuple[Reported, ...] = ()
    #: The text of the file.
    text: str = ""

    @property
    def best_ms(self) -> float | None:
        """Median time of the best configuration; None where all failed."""
        times_ms = [measurement.median_ms for measurement in self.measurements]
        return min((time_ms for time_ms in times_ms if time_ms is not None), default=None)

    def best(self, count: int) -> list[Measurement]:
        """The fastest that did not fail, best first."""
        timed = [found for found in self.measurements if found.status is Status.OK]
        return sorted(timed, key=lambda found: found.median_ms or 0.0)[:count]

    @property
    def scope(self) -> Scope:
        """Key of its measurements, as of those of a device."""
        return Scope(
            kernel=self.kernel,
            problem=self.problem,
            device_uuid=self.device.uuid,
            device_name=self.device.name,
            driver="",
            toolchain="",
            source="",
            arguments="",
            timing="",
        )


@dataclass(frozen=True)
class Names:
    """What a person says of a file that does not, or not well, say it itself."""

    kernel: str = ""
    device: str = ""
    problem: Problem = field(default_factory=Problem)


def read(path: Path, names: Names | None = None) -> list[Recording]:
    """Read a file of others, gzipped or not; a cache may be unclosed.

    A cache and T4 results are one recording, a wisdom file one for each device and problem.

    Raises
    ------
    RecordError
        If the file is missing, damaged or something else; the message says where and what to do.
    """
    return parse(content_of(path), path, names)


def is_theirs(content: bytes) -> bool:
    """Whether a content looks like one of these formats, however damaged it is."""
    return b'"autotune tuned record"' not in content and any(word in content for word in _WORDS)


def is_description(content: bytes) -> bool:
    """Whether a content looks like T1, which describes a space and has no measurements."""
    return b'"ConfigurationSpace"' in content and b'"TuningParameters"' in content


def content_of(path: Path) -> bytes:
    """The content of a file, unpacked.

    Raises
    ------
    RecordError
        If it cannot be read or unpacked.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise RecordError(f"{path}: cannot be read (not a file); check the path")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    if not content.startswith(b"\x1f\x8b"):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise RecordError(f"{path}: the gzip data is damaged ({error}); {_REMEDY}") from None


def parse(content: bytes, path: Path, names: Names | None = None) -> list[Recording]:
    """Read the content of a file that was at a path; see `read`."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise RecordError(f"{path}: not a text file (byte {error.start}); {_REMEDY}") from None
    kind, document = _document(path, text)
    if kind == "t1":
        raise RecordError(
            f"{path}: T1 describes a space and has no measurements; make a space file of it with: "
            "autotune import FILE --into FOLDER"
        )
    try:
        tables = list(_TABLES[kind](document))
        digest = hashlib.sha256(content).hexdigest()[:16]
        return [
            _recording(path, f"{digest}-{number}" if number else digest, kind, text, table, names)
            for number, table in enumerate(tables)
        ]
    except _Fault as fault:
        raise RecordError(f"{path}: {fault}; {_REMEDY}") from None


# ---------------------------------------------------------------------- which format


class _Fault(Exception):
    """What is wrong with the content, and where."""


def _document(path: Path, text: str) -> tuple[str, Any]:
    """The format of a text, and what is in it."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        lines = _wisdom_lines(path, text)
        if lines:
            return "wisdom", lines
        data = _parse_unclosed(path, text, error)
    if isinstance(data, dict):
        if isinstance(data.get("cache"), dict):
            return "cache", data
        if isinstance(data.get("results"), list):
            return "t4", data
        if "tunable_parameters" in data:
            return "wisdom", [data]
        if "ConfigurationSpace" in data:
            return "t1", data
    raise RecordError(
        f"{path}: not a Kernel Tuner cache (it has no object 'cache' at the top), T4 results "
        "('results') or a wisdom file; give a file that tune_kernel wrote with its argument cache=, "
        "or store_output_file, or Kernel Launcher"
    )


def _parse_unclosed(path: Path, text: str, error: Exception) -> Any:
    """A cache is appended to line by line and gets its last braces when tuning ends."""
    try:
        return json.loads(text.rstrip().rstrip(",") + "}}")
    except (ValueError, RecursionError):
        where = f"line {error.lineno}" if isinstance(error, json.JSONDecodeError) else "nesting"
        raise RecordError(
            f"{path}: not JSON, or cut off ({where}: {error}); {_REMEDY}, or delete the last, "
            "incomplete line"
        ) from None


def _wisdom_lines(path: Path, text: str) -> list[Any]:
    """The lines of a wisdom file; none where the first is no header of one."""
    lines: list[Any] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            lines.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            if not lines:
                return []
            raise RecordError(
                f"{path}: line {number} of a wisdom file is not JSON, or cut off ({error}); "
                f"{_REMEDY}, or delete that line"
            ) from None
        if not isinstance(lines[0], dict) or "tunable_parameters" not in lines[0]:
            return []
    return lines


# ---------------------------------------------------------------------- what each format says


class _Row(NamedTuple):
    """Where it stands in a file, the value of each parameter, and the rest."""

    place: str
    values: Mapping[str, Any]
    reported: Reported


class _Table(NamedTuple):
    """What a file says of one kernel, device and problem."""

    kernel: str
    device: str
    problem: Problem
    names: list[str]
    #: None where only the configurations tell.
    declared: Any
    rows: list[_Row]
    #: Whether a configuration may come again, of which the last then counts.
    repeats: bool = True


def _cache(data: Mapping[str, Any]) -> Iterator[_Table]:
    names = data.get("tune_params_keys") or list(data.get("tune_params") or ())
    if not _is_list_of(names, str) or not names:
        raise _Fault("tune_params_keys: a list of parameter names was expected")
    rows = []
    for key, entry in data["cache"].items():
        place = f"cache[{key!r}]"
        rows.append(_Row(place, _object(entry, place), _cache_entry(place, entry, names)))
    yield _Table(
        _text(data, "kernel_name"),
        _text(data, "device_name"),
        _named_problem(data) or _problem(data.get("problem_size")),
        names,
        data.get("tune_params"),
        rows,
        repeats=False,
    )


def _cache_entry(place: str, entry: Mapping[str, Any], names: Sequence[str]) -> Reported:
    with _At(place):
        configuration = _configuration(entry, names)
        status, message = _outcome(entry)
        measurement = Measurement(
            configuration,
            status,
            message,
            _samples_ms("times", entry.get("times") or [entry.get("time")])
            if status is Status.OK
            else (),
            compile_s=_seconds(entry, "compile_time"),
            verify_s=_seconds(entry, "verification_time"),
            measure_s=_seconds(entry, "benchmark_time"),
        )
        metrics = {
            name: (value, "")
            for name, value in entry.items()
            if name not in _KNOWN and name not in names
        }
        if status is Status.OK and "time" in entry:
            metrics["time"] = entry["time"], "ms"
        host = ("strategy_time", "framework_time")
        return _reported(entry, measurement, metrics, [_seconds(entry, name) for name in host])


def _outcome(entry: Mapping[str, Any]) -> tuple[Status, str]:
    """Whether a configuration failed: a class name in ``__error__``, or in place of the time."""
    name = entry.get("__error__", entry.get("time"))
    if isinstance(name, str):
        status, what = _FAILURES.get(name, (Status.LAUNCH_FAILED, "failed"))
        return status, f"recorded as {name}: it {what}"
    if name == _FAILED_TIME:
        return Status.LAUNCH_FAILED, "recorded as failed, without a reason"
    return Status.OK, ""


def _t4(data: Mapping[str, Any]) -> Iterator[_Table]:
    about = data.get("metadata")
    about = about if isinstance(about, dict) else {}
    unit = about.get("timeunit", "")
    rows = []
    for number, result in enumerate(data["results"]):
        place = f"results[{number}]"
        with _At(place):
            values = _object(_object(result).get("configuration"), "configuration")
            rows.append(_Row(place, values, _t4_result(result, values, unit)))
    names = list(rows[0].values) if rows else []
    declared = about.get("tune_params")
    yield _Table(
        _text(about, "kernel"),
        _text(about, "device"),
        _named_problem(about),
        names,
        declared if isinstance(declared, dict) and set(declared) == set(names) else None,
        rows,
    )


def _t4_result(result: Mapping[str, Any], values: Mapping[str, Any], unit: Any) -> Reported:
    times = _object(result.get("times", {}), "times")
    per_unit_ms = _unit_ms("metadata.timeunit", unit)
    metrics = _t4_metrics(result)
    word = result.get("invalidity", "correct")
    status, what = _INVALIDITY.get(word, (Status.OK, "")) if isinstance(word, str) else (None, "")
    if status is None or (status is Status.OK and word != "correct"):
        raise _Fault(f"invalidity: {word!r} is none of correct, {', '.join(_INVALIDITY)}")
    if status is Status.OK and result.get("correctness", 1) == 0:
        status, what = _INVALIDITY["correctness"]
    samples_ms: tuple[float, ...] = ()
    if status is Status.OK:
        if times.get("runtimes"):
            samples_ms = _samples_ms("times.runtimes", times["runtimes"], per_unit_ms)
        elif "time" in metrics:
            value, own = metrics["time"]
            scale = _unit_ms("measurements: time", own) if own else per_unit_ms
            samples_ms = _samples_ms("measurements: time", [value], scale)
        else:
            objectives = result.get("objectives") or "not said"
            raise _Fault(f"no time was measured (objectives: {objectives})")
    duration = {name: _seconds(times, name, per_unit_ms) for name in ("benchmark", "validation")}
    # The schema has the first, and Kernel Tuner writes the second.
    compiling = "compilation_time" if "compilation_time" in times else "compilation"
    measurement = Measurement(
        Configuration(values),
        status,
        f"recorded as {word}: it {what}" if what else "",
        samples_ms,
        compile_s=_seconds(times, compiling, per_unit_ms),
        verify_s=duration["validation"],
        measure_s=duration["benchmark"],
    )
    carried = metrics.pop("autotune", (result.get("autotune"), ""))[0]
    if status is not Status.OK or _UNITS_MS.get(metrics.get("time", ("", ""))[1]) != 1.0:
        metrics.pop("time", None)
    host = ("search_algorithm", "framework")
    return _reported(
        {**result, "autotune": carried},
        measurement,
        metrics,
        [_seconds(times, name, per_unit_ms) for name in host],
    )


def _t4_metrics(result: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    listed = result.get("measurements") or []
    if not _is_list_of(listed, dict):
        raise _Fault("measurements: a list of objects was expected")
    found = {
        _text(metric, "name"): (metric.get("value"), _text(metric, "unit")) for metric in listed
    }
    # Kernel Tuner lists every member of its results, those too that have a place of their own.
    return {name: found[name] for name in found if name in _CARRIED or name not in _KNOWN}


def _wisdom(lines: Sequence[Any]) -> Iterator[_Table]:
    header, *rest = lines
    names = header["tunable_parameters"]
    if not _is_list_of(names, str) or not names:
        raise _Fault("line 1: tunable_parameters: a list of names was expected")
    if header.get("version") != "1.0":
        raise _Fault(f"line 1: version {header.get('version')!r}, where 1.0 was expected")
    if header.get("objective") != "time":
        raise _Fault(f"line 1: its objective is {header.get('objective')!r}, not time")
    groups: dict[tuple[str, str, Problem], list[_Row]] = {}
    for number, row in enumerate(rest, 2):
        with _At(f"line {number}"):
            values = _object(row).get("config")
            if not isinstance(values, list) or len(values) != len(names):
                raise _Fault(f"config: a list of {len(names)} values was expected")
            found = dict(zip(names, values, strict=True))
            about = _object(row.get("environment", {}), "environment")
            problem = _named_problem(row) or _problem(row.get("problem_size"))
            samples_ms = _samples_ms("time", [row.get("time")])
            measured = Measurement(_configuration(found, names), Status.OK, samples_ms=samples_ms)
            kernel = _text(row, "kernel") or _text(header, "key")
            group = groups.setdefault((kernel, _text(about, "device_name"), problem), [])
            group.append(_Row(f"line {number}", found, Reported(measured, _text(about, "date"))))
    if not groups:
        raise _Fault("no configuration was recorded")
    for (kernel, device, problem), rows in groups.items():
        yield _Table(kernel, device, problem, names, None, rows)


_TABLES: dict[str, Callable[[Any], Iterator[_Table]]] = {
    "cache": _cache,
    "t4": _t4,
    "wisdom": _wisdom,
}


def _reported(
    entry: Mapping[str, Any],
    measurement: Measurement,
    metrics: Mapping[str, tuple[Any, str]],
    host_s: Sequence[float],
) -> Reported:
    """A measurement, as `autotune export` noted it where it did, with what else an entry says.

    ``host_s`` are the seconds that the search and the rest of the tuner took.
    """
    noted = entry.get("autotune")
    if noted is not None:
        known = {
            "configuration": dict(measurement.configuration),
            "samples_ms": list(measurement.samples_ms),
        }
        try:
            told = _object(json.loads(noted), "autotune")
            measurement = decode(json.dumps({**told, **known}), Measurement)
        except (TypeError, ValueError, RecursionError) as error:
            raise _Fault(f"autotune: {error}") from None
    strategy_ms, framework_ms = (1e3 * seconds for seconds in host_s)
    when = _text(entry, "timestamp")
    return Reported(measurement, when, strategy_ms, framework_ms, metrics, noted is not None)


# ---------------------------------------------------------------------- one recording


def _recording(
    path: Path, digest: str, kind: str, text: str, table: _Table, names: Names | None
) -> Recording:
    if not table.rows or not table.names:
        raise _Fault("no configuration was recorded")
    parameters = _parameters(table)
    rows = _rows(parameters, table)
    order = np.lexsort(rows.T[::-1])
    again = (np.diff(rows[order].astype(np.int64), axis=0) == 0).all(axis=1)
    if again.any() and not table.repeats:
        raise _Fault("cache: a configuration occurs twice")
    order = order[np.append(~again, True)]  # of equal ones, which stay in order, the last
    space = Space(parameters, rows[order])
    names, stem = names or Names(), path.name.split(".")[0]
    return Recording(
        path=path,
        kernel=names.kernel or table.kernel or stem,
        device=Device(
            backend="replay",
            # Empty in what Kernel Tuner recorded on AMD devices.
            name=names.device or table.device or stem,
            arch="replay",
            uuid=f"replay-{digest}",
        ),
        problem=names.problem or table.problem,
        space=space,
        measurements=tuple(
            _searched(table.rows[row].reported, space.configuration(index))
            for index, row in enumerate(order)
        ),
        kind=kind,
        reported=tuple(row.reported for row in table.rows),
        text=text,
    )


def _searched(reported: Reported, configuration: Configuration) -> Measurement:
    """A measurement as a search sees it: without the first sample of other tools, up to 6 % off."""
    samples_ms = reported.measurement.samples_ms
    if not reported.is_ours:
        samples_ms = samples_ms[1:] or samples_ms
    return replace(reported.measurement, configuration=configuration, samples_ms=samples_ms)


def _parameters(table: _Table) -> dict[str, tuple[Value, ...]]:
    declared = table.declared
    if not isinstance(declared, dict):
        declared = {
            name: sorted(
                {_value(name, row) for row in table.rows},
                key=lambda value: (isinstance(value, str), value),
            )
            for name in table.names
        }
    for name in table.names:
        if not _is_list_of(declared.get(name), (int, float, str)) or not declared[name]:
            raise _Fault(f"tune_params[{name!r}]: a list of numbers or texts was expected")
    parameters = {name: tuple(dict.fromkeys(declared[name])) for name in table.names}
    if not is_numberable(map(len, parameters.values())):
        raise _Fault("tune_params: more combinations than can be numbered")
    return parameters


def _rows(parameters: Mapping[str, tuple[Value, ...]], table: _Table) -> Any:
    ranks = {
        name: {value: rank for rank, value in enumerate(values)}
        for name, values in parameters.items()
    }
    shape = len(table.rows), len(parameters)
    rows = np.empty(shape, index_type(map(len, parameters.values())))
    for number, row in enumerate(table.rows):
        for position, name in enumerate(parameters):
            value = _value(name, row)
            if value not in ranks[name]:
                raise _Fault(f"{row.place}: {name}={value!r} is not among its values")
            rows[number, position] = ranks[name][value]
    return rows


# ---------------------------------------------------------------------- values


class _At:
    """Puts a place in front of the faults that are found within."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: object, __: object) -> None:
        if isinstance(error, _Fault):
            raise _Fault(f"{self._place}: {error}") from None


def _value(name: str, row: _Row) -> Any:
    value = row.values.get(name)
    if not isinstance(value, int | float | str):
        raise _Fault(f"{row.place}: no usable value of {name}")
    return value


def _configuration(entry: Mapping[str, Any], names: Sequence[str]) -> Configuration:
    return Configuration({name: entry[name] for name in names if name in entry})


def _object(value: Any, what: str = "") -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _Fault(f"{what}: an object was expected" if what else "an object was expected")
    return value


def _samples_ms(what: str, samples: Any, per_unit_ms: float = 1.0) -> tuple[float, ...]:
    if not _is_list_of(samples, (int, float)):
        raise _Fault(f"{what}: a list of numbers was expected")
    if not all(0 < sample <= sys.float_info.max for sample in samples):
        raise _Fault(f"{what}: every time must be positive")
    return tuple(float(sample) * per_unit_ms for sample in samples)


def _seconds(entry: Mapping[str, Any], name: str, per_unit_ms: float = 1.0) -> float:
    """A duration, by default in milliseconds; 0 where there is none."""
    value = entry.get(name, 0)
    if not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
        raise _Fault(f"{name}: a number that is not negative was expected")
    return value * per_unit_ms / 1000


def _unit_ms(what: str, unit: Any) -> float:
    if not isinstance(unit, str) or unit.lower() not in _UNITS_MS:
        raise _Fault(f"{what}: {unit!r} is no unit of time that is known here")
    return _UNITS_MS[unit.lower()]


def _problem(size: Any) -> Problem:
    """Up to three grid dimensions; a size that the file does not give as integers has no fields."""
    sizes = [size] if isinstance(size, int | str) else size
    if not _is_list_of(sizes, (int, str)) or len(sizes) > 3:
        return Problem()
    return Problem(dict(zip("xyz", sizes, strict=False)))


def _named_problem(about: Mapping[str, Any]) -> Problem:
    """The fields by name, which `autotune export` writes beside the sizes."""
    named = about.get("problem")
    if not isinstance(named, dict) or not _is_list_of(list(named.values()), (int, str)):
        return Problem()
    return Problem(named)


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name, "")
    return value if isinstance(value, str) else ""


def _is_list_of(value: Any, types: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, types) for entry in value)
