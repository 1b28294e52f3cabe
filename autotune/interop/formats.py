"""Reads and writes Kernel Tuner's cache files and FAIR autotuning's T4 results.

Source of T4: github.com/odgaard/TuningSchema, as Kernel Tuner 1.5 ships it. Source of the cache format:
`kernel_tuner.util.process_cache`. Files written here name the problem's fields in ``problem``, which
other tools ignore.
"""

from __future__ import annotations

import gzip
import json
import math
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from autotune.errors import RecordError
from autotune.measure.measurement import Measurement, Status
from autotune.values import Configuration, Problem, Value

# ---------------------------------------------------------------------- schema

ParameterValue: TypeAlias = bool | int | float | str
Lists: TypeAlias = dict[str, list[ParameterValue]]
Time: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=sys.float_info.max)]
Duration: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]
#: Published files have Kernel Tuner's misspelling "miliseconds".
TimeUnit: TypeAlias = Literal["", "ms", "milliseconds", "miliseconds", "s", "seconds"]
Invalidity: TypeAlias = Literal[
    "correct", "timeout", "compile", "runtime", "correctness", "constraints"
]


class CacheFile(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A cache file of Kernel Tuner; `CacheRow` reads its rows."""

    device_name: str | None = None
    kernel_name: str | None = None
    problem_size: int | float | str | list[int | float | str] | None = None
    #: The problem's fields by name; only files written here have them.
    problem: dict[str, int | str] = {}
    tune_params_keys: list[str] = []
    tune_params: Lists = {}
    objective: str | list[str] = ""
    schema_version: str = ""
    cache: dict[str, dict[str, Any]]


class CacheRow(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A row of a cache, without its parameters and metrics; durations are milliseconds."""

    #: The time, or the failure class of a failed configuration.
    time: Time | str | None = None
    times: tuple[Time, ...] = ()
    error: str = msgspec.field(name="__error__", default="")
    compile_time: Duration = 0.0
    verification_time: Duration = 0.0
    benchmark_time: Duration = 0.0


class T4Metric(msgspec.Struct):
    """A measured value of a T4 result."""

    name: str
    value: Any
    unit: str = ""


class T4Times(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Durations of a T4 result, in the file's unit."""

    #: The schema's name of the compile time.
    compilation_time: Duration = 0.0
    #: Kernel Tuner's name of the compile time.
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


class T4Metadata(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Facts of a T4 file that hold for all its results."""

    timeunit: TimeUnit = ""
    kernel: str = ""
    device: str = ""
    problem: dict[str, int | str] = {}
    tune_params: Lists = {}


class T4File(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A file of T4 results."""

    results: list[T4Row]
    schema_version: str = ""
    metadata: T4Metadata = msgspec.field(default_factory=T4Metadata)


_STATUSES: dict[Invalidity, tuple[Status, str]] = {
    "correct": (Status.OK, ""),
    "timeout": (Status.TIMED_OUT, "took too long"),
    "compile": (Status.COMPILE_FAILED, "did not compile"),
    "runtime": (Status.LAUNCH_FAILED, "did not launch"),
    "correctness": (Status.WRONG_RESULT, "computed something else"),
    "constraints": (Status.PRUNED, "breaks a constraint"),
}
#: Invalidity of each status; ``correctness`` for a status that is not listed.
_INVALIDITY: dict[Status, Invalidity] = {
    **{status: word for word, (status, _) in _STATUSES.items()},
    Status.STOPPED_EARLY: "correct",
    Status.CRASHED: "runtime",
}
#: Failure class of each invalidity; RuntimeFailedConfig for an invalidity that is not listed.
_FAILURES: dict[Invalidity, str] = {
    "correct": "",
    "constraints": "InvalidConfig",
    "compile": "CompilationFailedConfig",
}
#: Time that Kernel Tuner before 0.4 wrote for every failure.
_FAILED_TIME = 1e20
#: Members of a cache row that are not metrics, although Kernel Tuner lists them among T4's measurements.
_NO_METRIC = frozenset(CacheRow.__struct_encode_fields__) | {"strategy_time", "framework_time"}
#: Limit for an unpacked file in bytes: room for a million configurations of a cache.
MAX_BYTES = 256 << 20
#: Milliseconds per unit; 1 for a unit that is not listed.
_MS: dict[TimeUnit, float] = {"s": 1e3, "seconds": 1e3}
_REMEDY = "record the space again, or take another copy of the file"


def _finite(values: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: value
        for name, value in values.items()
        if name not in _NO_METRIC and isinstance(value, int | float) and math.isfinite(value)
    }


# ---------------------------------------------------------------------- writing


@dataclass(frozen=True)
class Results:
    """The measurements of a kernel on one problem and device."""

    kernel: str
    device_name: str
    problem: Problem
    #: Values of each parameter: the declared ones, or the measured ones if the file declares none.
    parameters: Mapping[str, tuple[Value, ...]]
    measurements: Sequence[Measurement]
    #: Time of each measurement, ISO 8601; empty if unknown.
    timestamps: Sequence[str]

    def best(self, count: int) -> list[Measurement]:
        """Return at most ``count`` successful measurements, fastest first."""
        timed = [found for found in self.measurements if found.status is Status.OK]
        return sorted(timed, key=lambda found: found.median_ms or 0.0)[:count]


def t4_text(results: Results) -> str:
    """Return the text of a T4 file; times are milliseconds, as in Kernel Tuner's files."""
    metadata = T4Metadata(
        timeunit="milliseconds",
        kernel=results.kernel,
        device=results.device_name,
        problem=dict(results.problem),
        tune_params={name: list(values) for name, values in results.parameters.items()},
    )
    rows = list(map(_t4_row, results.measurements, results.timestamps))
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
        tune_params={name: list(values) for name, values in results.parameters.items()},
        objective="time",
        cache={},
    )
    lines = []
    for measurement, timestamp in zip(results.measurements, results.timestamps, strict=True):
        # A parameter that the configuration's source lacks is an empty part of the key.
        key = ",".join(str(measurement.configuration.get(name, "")) for name in results.parameters)
        lines.append(f"{json.dumps(key)}: {json.dumps(_cache_row(measurement, timestamp))}")
    # Kernel Tuner treats a file as closed only if it ends in exactly "}\n}".
    text = json.dumps(msgspec.to_builtins(document), indent=1)[:-4]
    return text + "{\n" + ",\n".join(lines) + "}\n}"


def _cache_row(measurement: Measurement, timestamp: str) -> dict[str, Any]:
    invalidity = _INVALIDITY.get(measurement.status, "correctness")
    failure = _FAILURES.get(invalidity, "RuntimeFailedConfig")
    return {
        **measurement.configuration,
        **_finite(measurement.metrics),
        "time": failure or measurement.median_ms,
        "times": measurement.samples_ms,
        **({"__error__": failure} if failure else {}),
        "compile_time": measurement.compile_s * 1e3,
        "verification_time": measurement.verify_s * 1e3,
        "benchmark_time": measurement.measure_s * 1e3,
        "timestamp": timestamp,
    }


def _t4_row(measurement: Measurement, timestamp: str) -> T4Row:
    invalidity = _INVALIDITY.get(measurement.status, "correctness")
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
    )


# ---------------------------------------------------------------------- reading


@dataclass(frozen=True)
class Labels:
    """Names from the command line, in place of those in a file."""

    kernel: str = ""
    device: str = ""
    problem: Problem = field(default_factory=Problem)


def content_of(path: Path) -> bytes:
    """Return the content of a file, unpacked; `RecordError` above `MAX_BYTES`."""
    # Opening a pipe would wait for a writer.
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise RecordError(f"{path}: cannot be read (not a file); check the path")
    try:
        with path.open("rb") as file:
            is_packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if is_packed else path.open("rb") as opened:
            content: bytes = opened.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or f"the gzip data is damaged: {error}"
        raise RecordError(
            f"{path}: cannot be read ({why}); check it, or use another copy"
        ) from None
    if len(content) > MAX_BYTES:
        raise RecordError(f"{path}: more than {MAX_BYTES >> 20} MiB unpacked; import a part of it")
    return content


def read_results(path: Path, labels: Labels | None = None) -> Results:
    """Read a cache file, closed or open, or a T4 file; both may be gzipped.

    The problem is the recorded size as ``x``, ``y``, ``z``, unless the file names the problem's fields.
    If a configuration has several results, the last counts.
    """
    content, stem = content_of(path), path.name.split(".")[0]
    try:
        document = _document(content.decode())
        own, lists, rows = (_read_cache if "cache" in document else _read_t4)(document)
        if not rows or not lists:
            raise ValueError("no configuration was recorded")
        if any(row.configuration.keys() != lists.keys() for row in rows):
            raise ValueError(f"a configuration has other parameters than {', '.join(lists)}")
    except (ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise RecordError(f"{path}: {error}; {_REMEDY}") from None
    layers = [labels or Labels(), own, Labels(stem, stem)]
    measurements = tuple({row.configuration: row for row in rows}.values())
    return Results(
        kernel=next(layer.kernel for layer in layers if layer.kernel),
        device_name=next(layer.device for layer in layers if layer.device),
        problem=next((layer.problem for layer in layers if layer.problem), Problem()),
        parameters={
            name: tuple(values or sorted({row.configuration[name] for row in rows}, key=_place))
            for name, values in lists.items()
        },
        measurements=measurements,
        timestamps=[""] * len(measurements),
    )


def _place(value: ParameterValue) -> tuple[bool, Any]:
    return isinstance(value, str), value


def _document(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        try:  # Kernel Tuner writes the last braces of a cache at the end of a run
            data = json.loads(text.rstrip().rstrip(",") + "}}")
        except (ValueError, RecursionError):
            raise ValueError(f"not JSON, or truncated ({error})") from None
    if isinstance(data, dict) and ("cache" in data or "results" in data):
        return data
    raise ValueError(
        "not a Kernel Tuner cache (no top-level member 'cache') and not T4 results (no 'results'); "
        "give a file that tune_kernel(cache=...) or store_output_file wrote"
    )


#: The names in a file, the values of its parameters, and its measurements.
_Read: TypeAlias = tuple[Labels, Lists, list[Measurement]]


@contextmanager
def _at(place: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise ValueError(f"{place}: {error}") from None


def _read_cache(document: dict[str, Any]) -> _Read:
    file = msgspec.convert(document, CacheFile)
    names = file.tune_params_keys or list(file.tune_params)
    sizes = file.problem_size if isinstance(file.problem_size, list) else [file.problem_size]
    if len(sizes) > 3 or not all(isinstance(size, int | str) for size in sizes):
        sizes = []
    problem = Problem(file.problem or dict(zip("xyz", sizes, strict=False)))
    rows = []
    for key, entry in file.cache.items():
        with _at(f"cache[{key!r}]"):
            rows.append(_measurement(_as_t4(entry, names), "ms", is_ours=bool(file.problem)))
    lists = {name: file.tune_params.get(name, []) for name in names}
    # Kernel Tuner records no name for AMD devices.
    return Labels(file.kernel_name or "", file.device_name or "", problem), lists, rows


def _as_t4(entry: dict[str, Any], names: Sequence[str]) -> T4Row:
    row = msgspec.convert(entry, CacheRow)
    failure = row.error or (row.time if isinstance(row.time, str) else "")
    words = {name: word for word, name in _FAILURES.items()}
    values = {name: value for name, value in entry.items() if name in names}
    metrics = [T4Metric(name, value) for name, value in entry.items() if name not in names]
    return T4Row(
        configuration=msgspec.convert(values, dict[str, ParameterValue]),
        times=T4Times(
            compilation=row.compile_time,
            benchmark=row.benchmark_time,
            validation=row.verification_time,
            runtimes=row.times,
        ),
        invalidity="runtime" if row.time == _FAILED_TIME else words.get(failure, "runtime"),
        measurements=tuple(metrics),
    )


def _read_t4(document: dict[str, Any]) -> _Read:
    file = msgspec.convert(document, T4File)
    about = file.metadata
    rows = []
    for number, row in enumerate(file.results):
        with _at(f"results[{number}]"):
            rows.append(_measurement(row, about.timeunit, is_ours=bool(about.kernel)))
    names = rows[0].configuration if rows else ()
    lists = {name: about.tune_params.get(name, []) for name in names}
    return Labels(about.kernel, about.device, Problem(about.problem)), lists, rows


def _measurement(row: T4Row, unit: TimeUnit, is_ours: bool) -> Measurement:
    known = {metric.name: metric for metric in row.measurements}
    is_wrong = row.invalidity == "correct" and row.correctness == 0
    status, what = _STATUSES["correctness" if is_wrong else row.invalidity]
    # Other tools keep the first sample, which runs on a cold device and is up to 6 % off.
    samples, times_unit = row.times.runtimes if is_ours else row.times.runtimes[1:], unit
    if status is Status.OK and not row.times.runtimes:
        if "time" not in known:
            raise ValueError(f"no time was measured (objectives: {', '.join(row.objectives)})")
        samples = (msgspec.convert(known["time"].value, Time),)
        times_unit = msgspec.convert(known["time"].unit, TimeUnit) or unit
    unit_ms = _MS.get(unit, 1.0)
    return Measurement(
        Configuration(row.configuration),
        status,
        f"recorded as {row.invalidity}: it {what}" if what else "",
        tuple(sample * _MS.get(times_unit, 1.0) for sample in samples or row.times.runtimes)
        if status is Status.OK
        else (),
        compile_s=(row.times.compilation_time or row.times.compilation) * unit_ms / 1e3,
        verify_s=row.times.validation * unit_ms / 1e3,
        measure_s=row.times.benchmark * unit_ms / 1e3,
        metrics=_finite({name: metric.value for name, metric in known.items()}),
    )
