"""Kernel Tuner's cache files and FAIR autotuning's T4 results: one schema, to read and to write.

T4: github.com/odgaard/TuningSchema, as Kernel Tuner 1.5 ships it. The cache:
`kernel_tuner.util.process_cache`. What neither format has a name for stands in each row of ours as
``autotune``, as JSON text, and the problem's fields as ``problem``: other tools ignore both.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np

from autotune.devices.device import Device
from autotune.errors import RecordError
from autotune.kernel.space import Space, index_type, is_numberable
from autotune.measure.measurement import Measurement, Status
from autotune.store import Scope
from autotune.store.rows import decode, encode
from autotune.values import Configuration, Problem, Value

# ---------------------------------------------------------------------- schema

ParameterValue: TypeAlias = bool | int | float | str
Time: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=sys.float_info.max)]
Duration: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]
Invalidity: TypeAlias = Literal[
    "correct", "timeout", "compile", "runtime", "correctness", "constraints"
]
#: Kernel Tuner's own misspelling is in published files.
TimeUnit: TypeAlias = Literal[
    "",
    "ms",
    "milliseconds",
    "miliseconds",
    "s",
    "seconds",
    "us",
    "microseconds",
    "ns",
    "nanoseconds",
]
_UNITS_MS = {
    **dict.fromkeys(("", "ms", "milliseconds", "miliseconds"), 1.0),
    **dict.fromkeys(("s", "seconds"), 1e3),
    **dict.fromkeys(("us", "microseconds"), 1e-3),
    **dict.fromkeys(("ns", "nanoseconds"), 1e-6),
}


class CacheFile(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A cache file of Kernel Tuner; its rows are read by `CacheRow`."""

    device_name: str | None = None
    kernel_name: str | None = None
    problem_size: int | float | str | list[int | float | str] | None = None
    #: Ours: the problem's fields by name.
    problem: dict[str, int | str] = {}
    tune_params_keys: list[str] = []
    tune_params: dict[str, list[ParameterValue]] = {}
    objective: str | list[str] = ""
    schema_version: str = ""
    cache: dict[str, dict[str, Any]]


class CacheRow(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A row of a cache, without its parameters and metrics. Times are milliseconds."""

    #: A failure class of Kernel Tuner in place of the time of a failed configuration.
    time: Time | str | None = None
    times: tuple[Time, ...] = ()
    error: str = msgspec.field(name="__error__", default="")
    compile_time: Duration = 0.0
    verification_time: Duration = 0.0
    benchmark_time: Duration = 0.0
    timestamp: str = ""
    autotune: str = ""


class T4Metric(msgspec.Struct):
    """A measured value of a T4 result."""

    name: str
    value: Any
    unit: str = ""


class T4Times(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Durations of a T4 result, in the file's unit."""

    #: The schema has the first name, Kernel Tuner writes the second.
    compilation_time: Duration | None = None
    compilation: Duration = 0.0
    benchmark: Duration = 0.0
    validation: Duration = 0.0
    runtimes: tuple[Time, ...] = ()


class T4Row(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A result in a T4 file."""

    timestamp: str = ""
    configuration: dict[str, ParameterValue]
    times: T4Times
    invalidity: Invalidity
    correctness: float | None = None
    measurements: tuple[T4Metric, ...] = ()
    objectives: tuple[str, ...] = ()
    autotune: str = ""


class T4Metadata(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a T4 file says of all its results."""

    timeunit: TimeUnit = ""
    kernel: str = ""
    device: str = ""
    problem: dict[str, int | str] = {}
    tune_params: dict[str, list[ParameterValue]] = {}


class T4File(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A file of T4 results."""

    results: list[T4Row]
    schema_version: str = ""
    metadata: T4Metadata = msgspec.field(default_factory=T4Metadata)


#: Kernel Tuner's failure classes. It skips an InvalidConfig before it compiles anything.
_FAILURES = {
    "InvalidConfig": (Status.PRUNED, "exceeds a limit of the device"),
    "CompilationFailedConfig": (Status.COMPILE_FAILED, "did not compile"),
    "RuntimeFailedConfig": (Status.LAUNCH_FAILED, "did not launch"),
}
_STATUSES = {
    "timeout": (Status.TIMED_OUT, "took too long"),
    "compile": (Status.COMPILE_FAILED, "did not compile"),
    "runtime": (Status.LAUNCH_FAILED, "did not launch"),
    "correctness": (Status.WRONG_RESULT, "computed something else"),
    "constraints": (Status.PRUNED, "breaks a constraint"),
}
_INVALIDITY: dict[Status, Invalidity] = {
    Status.OK: "correct",
    Status.STOPPED_EARLY: "correct",
    Status.PRUNED: "constraints",
    Status.COMPILE_FAILED: "compile",
    Status.LAUNCH_FAILED: "runtime",
    Status.WRONG_RESULT: "correctness",
    Status.TIMED_OUT: "timeout",
    Status.CRASHED: "runtime",
    Status.IMPLAUSIBLE: "correctness",
    Status.UNSAFE: "correctness",
    Status.NOT_DETERMINISTIC: "correctness",
}
#: Kernel Tuner has no failure class for wrong results.
_FAILURE_OF = {"constraints": "InvalidConfig", "compile": "CompilationFailedConfig"}
#: Versions of Kernel Tuner before 0.4 wrote this time for every failure.
_FAILED_TIME = 1e20
#: Names in a row, or among T4's measurements, that are no metric.
_NO_METRIC = frozenset(CacheRow.__struct_encode_fields__) | {"strategy_time", "framework_time"}
_REMEDY = "record the space again, or take another copy of the file"

# ---------------------------------------------------------------------- writing


@dataclass(frozen=True)
class Results:
    """All that was measured of one kernel on one problem and device."""

    kernel: str
    device_name: str
    problem: Problem
    #: Declared values of each parameter.
    parameters: Mapping[str, tuple[Value, ...]]
    measurements: Sequence[Measurement]
    #: When each was measured, ISO 8601; empty where not known.
    timestamps: Sequence[str] = ()

    @property
    def _rows(self) -> list[tuple[Measurement, str]]:
        return list(zip_longest(self.measurements, self.timestamps, fillvalue=""))  # type: ignore[arg-type]

    @property
    def _lists(self) -> dict[str, list[ParameterValue]]:
        return {name: list(values) for name, values in self.parameters.items()}


def t4_text(results: Results) -> str:
    """Return a file of T4 results, one per measurement; times are milliseconds, as Kernel Tuner's."""
    metadata = T4Metadata(
        timeunit="milliseconds",
        kernel=results.kernel,
        device=results.device_name,
        problem=dict(results.problem),
        tune_params=results._lists,
    )
    rows = [_t4_row(measurement, when) for measurement, when in results._rows]
    document = T4File(results=rows, schema_version="1.0.0", metadata=metadata)
    return json.dumps(msgspec.to_builtins(document), indent=1) + "\n"


def cache_text(results: Results) -> str:
    """Return a closed cache file; ``time`` is the median of the samples."""
    document = CacheFile(
        device_name=results.device_name,
        kernel_name=results.kernel,
        problem_size=[value for value in results.problem.values() if isinstance(value, int)],
        problem=dict(results.problem),
        tune_params_keys=list(results.parameters),
        tune_params=results._lists,
        objective="time",
        cache={},
    )
    lines = ",\n".join(_cache_line(results, *row) for row in results._rows)
    # Kernel Tuner takes a file for closed only if it ends in exactly "}\n}".
    return json.dumps(msgspec.to_builtins(document), indent=1)[:-4] + "{\n" + lines + "}\n}"


def _t4_row(measurement: Measurement, timestamp: str) -> T4Row:
    invalidity = _INVALIDITY[measurement.status]
    metrics = [T4Metric(name, value) for name, value in _finite(measurement.metrics).items()]
    if measurement.median_ms is not None:
        metrics.insert(0, T4Metric("time", measurement.median_ms, "ms"))
    return T4Row(
        timestamp=timestamp,
        configuration=dict(measurement.configuration),
        times=T4Times(
            compilation_time=measurement.compile_s * 1e3,
            benchmark=measurement.measure_s * 1e3,
            validation=measurement.verify_s * 1e3,
            runtimes=measurement.samples_ms,
        ),
        invalidity=invalidity,
        correctness=float(invalidity == "correct"),
        measurements=tuple(metrics),
        objectives=("time",),
        autotune=_note(measurement),
    )


def _cache_line(results: Results, measurement: Measurement, timestamp: str) -> str:
    configuration = {name: measurement.configuration[name] for name in results.parameters}
    failure = ""
    if measurement.median_ms is None:
        failure = _FAILURE_OF.get(_INVALIDITY[measurement.status], "RuntimeFailedConfig")
    row = CacheRow(
        time=failure or measurement.median_ms,
        times=measurement.samples_ms if not failure else (),
        error=failure,
        compile_time=measurement.compile_s * 1e3,
        verification_time=measurement.verify_s * 1e3,
        benchmark_time=measurement.measure_s * 1e3,
        timestamp=timestamp,
        autotune=_note(measurement),
    )
    key = ",".join(str(value) for value in configuration.values())
    entry = {**configuration, **_finite(measurement.metrics), **msgspec.to_builtins(row)}
    return f"{json.dumps(key)}: {json.dumps(entry)}"


def _note(measurement: Measurement) -> str:
    """Return what a row has no place for, as text: Kernel Tuner carries it from a cache to T4."""
    blank = Measurement(measurement.configuration, Status.OK)
    known, empty = (json.loads(encode(value)) for value in (measurement, blank))
    held = {"configuration", "samples_ms", "metrics"}
    differing = {n: v for n, v in known.items() if n not in held and v != empty[n]}
    return json.dumps({"status": known["status"], **differing})


def _finite(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a row that are metrics."""
    return {
        name: value
        for name, value in values.items()
        if name not in _NO_METRIC and isinstance(value, int | float) and math.isfinite(value)
    }


# ---------------------------------------------------------------------- reading


@dataclass(frozen=True)
class Labels:
    """Names that a person gives to a file that lacks them or has others."""

    kernel: str = ""
    device: str = ""
    problem: Problem = field(default_factory=Problem)


@dataclass(frozen=True, eq=False)
class Recording:
    """One kernel, measured by another tool on one device for every configuration of a space."""

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

    @property
    def best_ms(self) -> float | None:
        """Median time of the best configuration; None where all failed."""
        times_ms = [measurement.median_ms for measurement in self.measurements]
        return min((time_ms for time_ms in times_ms if time_ms is not None), default=None)

    def best(self, count: int) -> list[Measurement]:
        """Return the fastest that did not fail, best first."""
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
class _Content:
    """What a file says, whatever its format."""

    kernel: str
    device: str
    problem: Problem
    parameters: Mapping[str, Sequence[ParameterValue]]
    #: Each with its place in the file; of equal configurations the last counts.
    rows: list[tuple[str, Measurement]]


def read(path: Path, labels: Labels | None = None) -> Recording:
    """Read a cache file, closed or not, or a file of T4 results, gzipped or not."""
    return parse(content_of(path), path, labels)


def content_of(path: Path) -> bytes:
    """Return the content of a file, unpacked."""
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


def parse(content: bytes, path: Path, labels: Labels | None = None) -> Recording:
    """Read the content of a file that was at a path; see `read`."""
    document = _document(content, path)
    try:
        found = _read_cache(document) if "cache" in document else _read_t4(document)
        digest = hashlib.sha256(content).hexdigest()[:16]
        return _recording(path, digest, found, labels or Labels())
    except (ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise RecordError(f"{path}: {error}; {_REMEDY}") from None


def _document(content: bytes, path: Path) -> dict[str, Any]:
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise RecordError(f"{path}: not a text file (byte {error.start}); {_REMEDY}") from None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        data = _unclosed(path, text, error)
    if isinstance(data, dict) and ("cache" in data or "results" in data):
        return data
    raise RecordError(
        f"{path}: not a Kernel Tuner cache (it has no object 'cache' at the top) and not T4 results "
        "('results'); give a file that tune_kernel wrote with its argument cache=, or "
        "store_output_file"
    )


def _unclosed(path: Path, text: str, error: Exception) -> Any:
    """Read a cache that tuning still appends to: it gets its last braces at the end."""
    try:
        return json.loads(text.rstrip().rstrip(",") + "}}")
    except (ValueError, RecursionError):
        where = f"line {error.lineno}" if isinstance(error, json.JSONDecodeError) else "nesting"
        raise RecordError(
            f"{path}: not JSON, or cut off ({where}: {error}); {_REMEDY}, or delete the last, "
            "incomplete line"
        ) from None


def _read_cache(document: dict[str, Any]) -> _Content:
    file = msgspec.convert(document, CacheFile)
    names = file.tune_params_keys or list(file.tune_params)
    sizes = file.problem_size if isinstance(file.problem_size, list) else [file.problem_size]
    sizes = sizes if len(sizes) < 4 and all(isinstance(n, int | str) for n in sizes) else []
    rows = []
    for key, row in file.cache.items():
        place = f"cache[{key!r}]"
        try:
            rows.append((place, _cache_measurement(row, names)))
        except (ValueError, msgspec.MsgspecError) as error:
            raise ValueError(f"{place}: {error}") from None
    return _Content(
        kernel=file.kernel_name or "",
        device=file.device_name or "",  # empty in what Kernel Tuner recorded on AMD devices
        problem=Problem(file.problem or dict(zip("xyz", sizes, strict=False))),
        parameters={name: file.tune_params.get(name, []) for name in names},
        rows=rows,
    )


def _cache_measurement(entry: dict[str, Any], names: Sequence[str]) -> Measurement:
    row = msgspec.convert(entry, CacheRow)
    values = {name: value for name, value in entry.items() if name in names}
    status, what = Status.OK, ""
    if failure := row.error or (row.time if isinstance(row.time, str) else ""):
        status, what = _FAILURES.get(failure, (Status.LAUNCH_FAILED, "failed"))
        what = f"recorded as {failure}: it {what}"
    elif row.time == _FAILED_TIME:
        status, what = Status.LAUNCH_FAILED, "recorded as failed, without a reason"
    samples_ms = msgspec.convert(row.times or (row.time,), tuple[Time, ...]) if not what else ()
    measurement = Measurement(
        Configuration(msgspec.convert(values, dict[str, ParameterValue])),
        status,
        what,
        samples_ms,
        compile_s=row.compile_time / 1e3,
        verify_s=row.verification_time / 1e3,
        measure_s=row.benchmark_time / 1e3,
        metrics=_finite({name: value for name, value in entry.items() if name not in names}),
    )
    return _noted(measurement, row.autotune)


def _read_t4(document: dict[str, Any]) -> _Content:
    file = msgspec.convert(document, T4File)
    about = file.metadata
    rows = []
    for number, row in enumerate(file.results):
        place = f"results[{number}]"
        try:
            rows.append((place, _t4_measurement(row, about.timeunit)))
        except (ValueError, msgspec.MsgspecError) as error:
            raise ValueError(f"{place}: {error}") from None
    names = list(file.results[0].configuration) if file.results else []
    return _Content(
        kernel=about.kernel,
        device=about.device,
        problem=Problem(about.problem),
        parameters={name: about.tune_params.get(name, []) for name in names},
        rows=rows,
    )


def _t4_measurement(row: T4Row, unit: TimeUnit) -> Measurement:
    known = {metric.name: metric for metric in row.measurements}
    per_unit_ms, times = _UNITS_MS[unit], row.times
    word = "correctness" if row.invalidity == "correct" and row.correctness == 0 else row.invalidity
    status, what = _STATUSES.get(word, (Status.OK, ""))
    samples_ms: tuple[float, ...] = ()
    if status is Status.OK and times.runtimes:
        samples_ms = tuple(sample * per_unit_ms for sample in times.runtimes)
    elif status is Status.OK:
        timed = known.get("time")
        if timed is None:
            raise ValueError(f"no time was measured (objectives: {', '.join(row.objectives)})")
        own = msgspec.convert(timed.unit, TimeUnit)
        sample = msgspec.convert(timed.value, Time)
        samples_ms = (sample * (_UNITS_MS[own] if own else per_unit_ms),)
    compiling = times.compilation if times.compilation_time is None else times.compilation_time
    measurement = Measurement(
        Configuration(row.configuration),
        status,
        f"recorded as {row.invalidity}: it {what}" if what else "",
        samples_ms,
        compile_s=compiling * per_unit_ms / 1e3,
        verify_s=times.validation * per_unit_ms / 1e3,
        measure_s=times.benchmark * per_unit_ms / 1e3,
        metrics=_finite({name: metric.value for name, metric in known.items()}),
    )
    # Kernel Tuner lists every member of a cache's row among the measurements.
    note = known["autotune"].value if "autotune" in known else row.autotune
    return _noted(measurement, msgspec.convert(note, str))


def _noted(measurement: Measurement, note: str) -> Measurement:
    """Return a measurement of ours as it was, or one of others without its first sample.

    Other tools keep the first sample, which runs cold and is up to 6 % off.
    """
    if not note:
        return replace(measurement, samples_ms=measurement.samples_ms[1:] or measurement.samples_ms)
    known = {
        "configuration": dict(measurement.configuration),
        "samples_ms": list(measurement.samples_ms),
        "metrics": dict(measurement.metrics),
    }
    noted = msgspec.json.decode(note, type=dict[str, Any])
    return decode(json.dumps({**noted, **known}), Measurement)


def _recording(path: Path, digest: str, content: _Content, labels: Labels) -> Recording:
    if not content.rows or not content.parameters:
        raise ValueError("no configuration was recorded")
    parameters = {
        name: tuple(dict.fromkeys(values)) or _values(name, content)
        for name, values in content.parameters.items()
    }
    if not is_numberable(map(len, parameters.values())):
        raise ValueError("tune_params: more combinations than can be numbered")
    rows = _rows(parameters, content)
    order = np.lexsort(rows.T[::-1])
    again = (np.diff(rows[order].astype(np.int64), axis=0) == 0).all(axis=1)
    order = order[np.append(~again, True)]  # of equal ones, which stay in order, the last
    space, stem = Space(parameters, rows[order]), path.name.split(".")[0]
    return Recording(
        path=path,
        kernel=labels.kernel or content.kernel or stem,
        device=Device(
            backend="replay",
            name=labels.device or content.device or stem,
            arch="replay",
            uuid=f"replay-{digest}",
        ),
        problem=labels.problem or content.problem,
        space=space,
        measurements=tuple(
            replace(content.rows[row][1], configuration=space.configuration(index))
            for index, row in enumerate(order)
        ),
    )


def _values(name: str, content: _Content) -> tuple[ParameterValue, ...]:
    """Return the recorded values of a parameter whose declared ones the file does not have."""
    found = {row.configuration[name] for _, row in content.rows if name in row.configuration}
    return tuple(sorted(found, key=lambda value: (isinstance(value, str), value)))


def _rows(parameters: Mapping[str, tuple[Value, ...]], content: _Content) -> Any:
    ranks = {
        name: {value: rank for rank, value in enumerate(values)}
        for name, values in parameters.items()
    }
    rows = np.empty((len(content.rows), len(parameters)), index_type(map(len, parameters.values())))
    for number, (place, measurement) in enumerate(content.rows):
        for position, name in enumerate(parameters):
            value = measurement.configuration.get(name)
            if value not in ranks[name]:
                raise ValueError(f"{place}: {name}={value!r} is not among its values")
            rows[number, position] = ranks[name][value]
    return rows
