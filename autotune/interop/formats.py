"""Kernel Tuner's cache files and FAIR autotuning's T4 results: one schema, to read and to write.

T4: github.com/odgaard/TuningSchema, as Kernel Tuner 1.5 ships it. The cache:
`kernel_tuner.util.process_cache`; its rows are read and written as T4's. What T4 has no name for stands
in each row of ours as ``autotune``, as JSON text, and the problem's fields as ``problem``: other tools
ignore both.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
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
Lists: TypeAlias = dict[str, list[ParameterValue]]
Time: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=sys.float_info.max)]
Duration: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]
#: Kernel Tuner's own misspelling is in published files.
TimeUnit: TypeAlias = Literal["", "ms", "milliseconds", "miliseconds", "s", "seconds"]
Invalidity: TypeAlias = Literal[
    "correct", "timeout", "compile", "runtime", "correctness", "constraints"
]


class CacheFile(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A cache file of Kernel Tuner; `CacheRow` reads its rows."""

    device_name: str | None = None
    kernel_name: str | None = None
    problem_size: int | float | str | list[int | float | str] | None = None
    #: Ours: the problem's fields by name.
    problem: dict[str, int | str] = {}
    tune_params_keys: list[str] = []
    tune_params: Lists = {}
    objective: str | list[str] = ""
    schema_version: str = ""
    cache: dict[str, dict[str, Any]]


class CacheRow(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A row of a cache, without its parameters and metrics; durations are milliseconds."""

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
    compilation_time: Duration = 0.0
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
#: Of every other status ``correctness``.
_INVALIDITY: dict[Status, Invalidity] = {
    **{status: word for word, (status, _) in _STATUSES.items()},
    Status.STOPPED_EARLY: "correct",
    Status.CRASHED: "runtime",
}
#: Kernel Tuner's failure classes; every other is RuntimeFailedConfig.
_FAILURES: dict[str, Invalidity] = {
    "InvalidConfig": "constraints",
    "CompilationFailedConfig": "compile",
}
#: Versions of Kernel Tuner before 0.4 wrote this time for every failure.
_FAILED_TIME = 1e20
#: Names in a row of a cache, which Kernel Tuner lists among T4's measurements, that are no metric.
_NO_METRIC = frozenset(CacheRow.__struct_encode_fields__) | {"strategy_time", "framework_time"}
_REMEDY = "record the space again, or take another copy of the file"


def _finite(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a row that are metrics."""
    return {
        name: value
        for name, value in values.items()
        if name not in _NO_METRIC and isinstance(value, int | float) and math.isfinite(value)
    }


def _as_t4(entry: dict[str, Any], names: Sequence[str]) -> T4Row:
    """Return a cache's row as T4's."""
    row = msgspec.convert(entry, CacheRow)
    failure = row.error or (row.time if isinstance(row.time, str) else "")
    if row.time == _FAILED_TIME:
        failure = "RuntimeFailedConfig"
    values = {name: value for name, value in entry.items() if name in names}
    metrics = {name: value for name, value in entry.items() if name not in names}
    if not failure:
        metrics = {"time": row.time, **metrics}
    return T4Row(
        timestamp=row.timestamp,
        configuration=msgspec.convert(values, dict[str, ParameterValue]),
        times=T4Times(
            compilation=row.compile_time,
            benchmark=row.benchmark_time,
            validation=row.verification_time,
            runtimes=row.times,
        ),
        invalidity=_FAILURES.get(failure, "runtime") if failure else "correct",
        measurements=tuple(T4Metric(name, value) for name, value in metrics.items()),
        autotune=row.autotune,
    )


def _as_cache(row: T4Row) -> dict[str, Any]:
    """Return T4's row as one of a cache."""
    values = {metric.name: metric.value for metric in row.measurements}
    failure = ""
    if row.invalidity != "correct":
        classes = {word: name for name, word in _FAILURES.items()}
        failure = classes.get(row.invalidity, "RuntimeFailedConfig")
    known = CacheRow(
        time=failure or values.get("time"),
        times=row.times.runtimes,
        error=failure,
        compile_time=row.times.compilation_time,
        verification_time=row.times.validation,
        benchmark_time=row.times.benchmark,
        timestamp=row.timestamp,
        autotune=row.autotune,
    )
    return {**row.configuration, **_finite(values), **msgspec.to_builtins(known)}


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


def t4_text(results: Results) -> str:
    """Return a file of T4 results, one per measurement; times are milliseconds, as Kernel Tuner's."""
    metadata = T4Metadata(
        timeunit="milliseconds",
        kernel=results.kernel,
        device=results.device_name,
        problem=dict(results.problem),
        tune_params={name: list(values) for name, values in results.parameters.items()},
    )
    document = T4File(results=_rows(results), schema_version="1.0.0", metadata=metadata)
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
    for row in _rows(results):
        key = ",".join(str(row.configuration[name]) for name in results.parameters)
        lines.append(f"{json.dumps(key)}: {json.dumps(_as_cache(row))}")
    # Kernel Tuner takes a file for closed only if it ends in exactly "}\n}".
    text = json.dumps(msgspec.to_builtins(document), indent=1)[:-4]
    return text + "{\n" + ",\n".join(lines) + "}\n}"


def _rows(results: Results) -> list[T4Row]:
    pairs = zip_longest(results.measurements, results.timestamps)
    return [_row(measurement, timestamp or "") for measurement, timestamp in pairs]


def _row(measurement: Measurement, timestamp: str) -> T4Row:
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
        autotune=_note(measurement),
    )


def _note(measurement: Measurement) -> str:
    """Return what a row has no place for, as text: Kernel Tuner carries it from a cache to T4."""
    blank = Measurement(measurement.configuration, Status.OK)
    known, empty = (json.loads(encode(value)) for value in (measurement, blank))
    held = {"configuration", "samples_ms", "metrics"}
    differing = {n: v for n, v in known.items() if n not in held and v != empty[n]}
    return json.dumps({"status": known["status"], **differing})


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


def read(path: Path, labels: Labels | None = None) -> Recording:
    """Read a cache file, closed or not, or a file of T4 results, gzipped or not."""
    content = content_of(path)
    stem = path.name.split(".")[0]
    usual = Labels(stem, stem)
    try:
        document = _document(content.decode())
        make = _read_cache if "cache" in document else _read_t4
        own, lists, rows = make(document)
        space, measurements = _space(lists, rows)
    except (ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise RecordError(f"{path}: {error}; {_REMEDY}") from None
    layers = [layer for layer in (labels, own, usual) if layer is not None]
    device = next(layer.device for layer in layers if layer.device)
    digest = hashlib.sha256(content).hexdigest()[:16]
    return Recording(
        path=path,
        kernel=next(layer.kernel for layer in layers if layer.kernel),
        device=Device(backend="replay", name=device, arch="replay", uuid=f"replay-{digest}"),
        problem=next((layer.problem for layer in layers if layer.problem), Problem()),
        space=space,
        measurements=measurements,
    )


def _document(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        try:  # a cache that tuning still appends to gets its last braces at the end
            data = json.loads(text.rstrip().rstrip(",") + "}}")
        except (ValueError, RecursionError):
            raise ValueError(f"not JSON, or cut off ({error})") from None
    if isinstance(data, dict) and ("cache" in data or "results" in data):
        return data
    raise ValueError(
        "not a Kernel Tuner cache (it has no object 'cache' at the top) and not T4 results "
        "('results'); give a file that tune_kernel wrote with its argument cache=, or "
        "store_output_file"
    )


#: What a file names, the values of its parameters, and its measurements with their places.
_Read: TypeAlias = tuple[Labels, Lists, list[tuple[str, Measurement]]]


def _read_cache(document: dict[str, Any]) -> _Read:
    file = msgspec.convert(document, CacheFile)
    names = file.tune_params_keys or list(file.tune_params)
    sizes = file.problem_size if isinstance(file.problem_size, list) else [file.problem_size]
    if len(sizes) > 3 or not all(isinstance(size, int | str) for size in sizes):
        sizes = []
    problem = Problem(file.problem or dict(zip("xyz", sizes, strict=False)))
    entries = ((f"cache[{key!r}]", entry) for key, entry in file.cache.items())
    rows = _measured(entries, lambda entry: _measurement(_as_t4(entry, names)))
    lists = {name: file.tune_params.get(name, []) for name in names}
    # Kernel Tuner leaves the name of AMD devices empty.
    return Labels(file.kernel_name or "", file.device_name or "", problem), lists, rows


def _read_t4(document: dict[str, Any]) -> _Read:
    file = msgspec.convert(document, T4File)
    about = file.metadata
    unit_ms = 1e3 if about.timeunit in ("s", "seconds") else 1.0
    entries = ((f"results[{number}]", row) for number, row in enumerate(file.results))
    rows = _measured(entries, lambda row: _measurement(row, unit_ms))
    names = file.results[0].configuration if file.results else {}
    lists = {name: about.tune_params.get(name, []) for name in names}
    return Labels(about.kernel, about.device, Problem(about.problem)), lists, rows


def _measured(
    entries: Iterable[tuple[str, Any]], measurement_of: Callable[[Any], Measurement]
) -> list[tuple[str, Measurement]]:
    rows = []
    for place, entry in entries:
        try:
            rows.append((place, measurement_of(entry)))
        except (ValueError, OverflowError, msgspec.MsgspecError) as error:
            raise ValueError(f"{place}: {error}") from None
    return rows


def _measurement(row: T4Row, unit_ms: float = 1.0) -> Measurement:
    known = {metric.name: metric for metric in row.measurements}
    is_wrong = row.invalidity == "correct" and row.correctness == 0
    status, what = _STATUSES["correctness" if is_wrong else row.invalidity]
    samples_ms: tuple[float, ...] = ()
    if status is Status.OK and row.times.runtimes:
        samples_ms = tuple(sample * unit_ms for sample in row.times.runtimes)
    elif status is Status.OK:
        if "time" not in known:
            raise ValueError(f"no time was measured (objectives: {', '.join(row.objectives)})")
        unit = msgspec.convert(known["time"].unit, TimeUnit)
        own_ms = unit_ms if not unit else 1e3 if unit in ("s", "seconds") else 1.0
        samples_ms = (msgspec.convert(known["time"].value, Time) * own_ms,)
    measurement = Measurement(
        Configuration(row.configuration),
        status,
        f"recorded as {row.invalidity}: it {what}" if what else "",
        samples_ms,
        compile_s=(row.times.compilation_time or row.times.compilation) * unit_ms / 1e3,
        verify_s=row.times.validation * unit_ms / 1e3,
        measure_s=row.times.benchmark * unit_ms / 1e3,
        metrics=_finite({name: metric.value for name, metric in known.items()}),
    )
    # Kernel Tuner lists it among the measurements.
    note = known["autotune"].value if "autotune" in known else row.autotune
    if not note:  # other tools keep the first sample, which runs cold and is up to 6 % off
        return replace(measurement, samples_ms=samples_ms[1:] or samples_ms)
    noted = msgspec.json.decode(msgspec.convert(note, str), type=dict[str, Any])
    held = {"configuration": row.configuration, "samples_ms": samples_ms}
    metrics = dict(measurement.metrics)
    return decode(json.dumps({**noted, **held, "metrics": metrics}), Measurement)


def _space(
    lists: Lists, rows: list[tuple[str, Measurement]]
) -> tuple[Space, tuple[Measurement, ...]]:
    """Return the space of the rows and its measurements; of equal configurations the last counts."""
    if not rows or not lists:
        raise ValueError("no configuration was recorded")
    parameters: dict[str, tuple[ParameterValue, ...]] = {}
    for name, values in lists.items():
        found = {row.configuration[name] for _, row in rows if name in row.configuration}
        ordered = sorted(found, key=lambda value: (isinstance(value, str), value))
        parameters[name] = tuple(dict.fromkeys(values or ordered))
    if not is_numberable(map(len, parameters.values())):
        raise ValueError("tune_params: more combinations than can be numbered")
    ranks = {name: {value: n for n, value in enumerate(v)} for name, v in parameters.items()}
    measured: dict[tuple[int, ...], Measurement] = {}
    for place, measurement in rows:
        for name in parameters:
            value = measurement.configuration.get(name)
            if value not in ranks[name]:
                raise ValueError(f"{place}: {name}={value!r} is not among its values")
        key = tuple(ranks[name][measurement.configuration[name]] for name in parameters)
        measured[key] = measurement
    order = sorted(measured)
    space = Space(parameters, np.array(order, index_type(map(len, parameters.values()))))
    return space, tuple(
        replace(measured[key], configuration=space.configuration(index))
        for index, key in enumerate(order)
    )
