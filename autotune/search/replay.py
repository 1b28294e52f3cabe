"""Recorded spaces: Kernel Tuner's cache files read back, and measured again from memory.

Knows that file format. Knows no device: what was measured, and on what, is what the file says.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autotune.devices.device import Device
from autotune.errors import RecordError, UsageError
from autotune.kernel.space import Space, index_type, is_numberable
from autotune.measure.evaluator import ignore
from autotune.measure.measurement import Measurement, Status
from autotune.search.session import Budget, SearchSession
from autotune.store import Scope
from autotune.values import Configuration, Problem, Value

#: Kernel Tuner's failure classes. It skips an InvalidConfig before it compiles anything.
_FAILURES = {
    "InvalidConfig": (Status.PRUNED, "exceeds a limit of the device"),
    "CompilationFailedConfig": (Status.COMPILE_FAILED, "did not compile"),
    "RuntimeFailedConfig": (Status.LAUNCH_FAILED, "did not launch"),
}
#: Versions of Kernel Tuner before 0.4 wrote this time for every failure.
_FAILED_TIME = 1e20
_REMEDY = "record the space again, or take another copy of the file"


@dataclass(frozen=True, eq=False)
class Recording:
    """One kernel, measured by someone on one device for every configuration of a space."""

    path: Path
    kernel: str
    #: Backend ``replay``; the name is the recorded one, the uuid stands for the file's content.
    device: Device
    #: The recorded size as ``x``, ``y``, ``z``.
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
class ReplayEvaluator:
    """Measures configurations by looking them up in a recording."""

    recording: Recording

    def measure(
        self,
        configurations: Iterable[Configuration],
        begin: Callable[[Configuration], None] = ignore,
    ) -> Iterator[Measurement]:
        """Yield the recorded measurements, in this order.

        Raises
        ------
        UsageError
            If a configuration was not recorded.
        """
        for configuration in configurations:
            index = self.recording.space.index(configuration)
            if index is None:
                name = self.recording.path.name
                raise UsageError(f"{name} has no configuration {configuration}")
            begin(configuration)
            yield self.recording.measurements[index]

    def hint(self, configurations: Sequence[Configuration]) -> None:
        """Nothing is compiled, so nothing is done ahead."""

    def recall(self, measurement: Measurement) -> None:
        """What others remember is in the recording too."""


def session(recording: Recording, budget: Budget, space: Space | None = None) -> SearchSession:
    """A search of a recording, or of a part of its space, which remembers nothing beyond it."""
    return SearchSession(
        space=space or recording.space,
        evaluator=ReplayEvaluator(recording),
        store=None,
        run_id=0,
        scope=recording.scope,
        budget=budget,
    )


def load(path: Path) -> Recording:
    """Read a Kernel Tuner cache file, gzipped or not, closed or not.

    Raises
    ------
    RecordError
        If the file is missing, damaged or something else; the message says where and what to do.
    """
    content = _read(path)
    data = _parse(path, content)
    try:
        return _recording(path, hashlib.sha256(content).hexdigest(), data)
    except _Fault as fault:
        raise RecordError(f"{path}: {fault}; {_REMEDY}") from None


class _Fault(Exception):
    """What is wrong with the content, and where."""


def _read(path: Path) -> bytes:
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


def _parse(path: Path, content: bytes) -> dict[str, Any]:
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise RecordError(f"{path}: not a text file (byte {error.start}); {_REMEDY}") from None
    try:
        data = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        data = _parse_unclosed(path, text, error)
    if not isinstance(data, dict) or not isinstance(data.get("cache"), dict):
        raise RecordError(
            f"{path}: not a Kernel Tuner cache (it has no object 'cache' at the top); give a file "
            "that tune_kernel wrote with its argument cache="
        )
    return data


def _parse_unclosed(path: Path, text: str, error: Exception) -> Any:
    """A cache is appended to line by line and gets its last braces when tuning ends."""
    try:
        return json.loads(text.rstrip().rstrip(",") + "}}")
    except (json.JSONDecodeError, RecursionError):
        where = f"line {error.lineno}" if isinstance(error, json.JSONDecodeError) else "nesting"
        raise RecordError(
            f"{path}: not JSON, or cut off ({where}: {error}); {_REMEDY}, or delete the last, "
            "incomplete line"
        ) from None


def _recording(path: Path, digest: str, data: Mapping[str, Any]) -> Recording:
    entries = _entries(data)
    parameters = _parameters(data, entries)
    rows = _rows(parameters, entries)
    space = Space(parameters, rows)
    order = np.lexsort(rows.T[::-1])
    if len(space) > 1 and (np.diff(space.rows.astype(np.int64), axis=0) == 0).all(axis=1).any():
        raise _Fault("cache: a configuration occurs twice")
    keys = list(entries)
    return Recording(
        path=path,
        kernel=_text(data, "kernel_name") or path.name.split(".")[0],
        device=Device(
            backend="replay",
            # Empty in what Kernel Tuner recorded on AMD devices.
            name=_text(data, "device_name") or path.name.split(".")[0],
            arch="replay",
            uuid=f"replay-{digest[:16]}",
        ),
        problem=_problem(data.get("problem_size")),
        space=space,
        measurements=tuple(
            _measurement(keys[row], space.configuration(index), entries[keys[row]])
            for index, row in enumerate(order)
        ),
    )


def _entries(data: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = data["cache"]
    if not entries:
        raise _Fault("cache: no configuration was recorded")
    for key, entry in entries.items():
        if not isinstance(entry, dict):
            raise _Fault(f"cache[{key!r}]: an object was expected")
    return entries


def _parameters(
    data: Mapping[str, Any], entries: Mapping[str, Mapping[str, Any]]
) -> dict[str, tuple[Value, ...]]:
    names = data.get("tune_params_keys") or list(data.get("tune_params") or ())
    if not _is_list_of(names, str) or not names:
        raise _Fault("tune_params_keys: a list of parameter names was expected")
    declared = data.get("tune_params")
    if not isinstance(declared, dict):  # written by older versions
        declared = {
            name: sorted(
                {_value(name, entry, key) for key, entry in entries.items()},
                key=lambda value: (isinstance(value, str), value),
            )
            for name in names
        }
    for name in names:
        if not _is_list_of(declared.get(name), (int, float, str)) or not declared[name]:
            raise _Fault(f"tune_params[{name!r}]: a list of numbers or texts was expected")
    parameters = {name: tuple(dict.fromkeys(declared[name])) for name in names}
    if not is_numberable(map(len, parameters.values())):
        raise _Fault("tune_params: more combinations than can be numbered")
    return parameters


def _rows(
    parameters: Mapping[str, tuple[Value, ...]], entries: Mapping[str, Mapping[str, Any]]
) -> Any:
    ranks = {
        name: {value: rank for rank, value in enumerate(values)}
        for name, values in parameters.items()
    }
    rows = np.empty((len(entries), len(parameters)), index_type(map(len, parameters.values())))
    for number, (key, entry) in enumerate(entries.items()):
        for position, name in enumerate(parameters):
            value = _value(name, entry, key)
            if value not in ranks[name]:
                raise _Fault(f"cache[{key!r}]: {name}={value!r} is not among its values")
            rows[number, position] = ranks[name][value]
    return rows


def _value(name: str, entry: Mapping[str, Any], key: str) -> Any:
    value = entry.get(name)
    if not isinstance(value, int | float | str):
        raise _Fault(f"cache[{key!r}]: no usable value of {name}")
    return value


def _measurement(key: str, configuration: Configuration, entry: Mapping[str, Any]) -> Measurement:
    status, message = _outcome(entry)
    try:
        return Measurement(
            configuration,
            status,
            message,
            _samples_ms(entry) if status is Status.OK else (),
            compile_s=_seconds(entry, "compile_time"),
            verify_s=_seconds(entry, "verification_time"),
            measure_s=_seconds(entry, "benchmark_time"),
        )
    except _Fault as fault:
        raise _Fault(f"cache[{key!r}]: {fault}") from None


def _outcome(entry: Mapping[str, Any]) -> tuple[Status, str]:
    """Whether a configuration failed: a class name in ``__error__``, or in place of the time."""
    name = entry.get("__error__", entry.get("time"))
    if isinstance(name, str):
        status, what = _FAILURES.get(name, (Status.LAUNCH_FAILED, "failed"))
        return status, f"recorded as {name}: it {what}"
    if name == _FAILED_TIME:
        return Status.LAUNCH_FAILED, "recorded as failed, without a reason"
    return Status.OK, ""


def _samples_ms(entry: Mapping[str, Any]) -> tuple[float, ...]:
    """All samples but the first, which runs cold: it is off by up to 6 %."""
    samples = entry.get("times") or [entry.get("time")]
    if not _is_list_of(samples, (int, float)):
        raise _Fault("times: a list of numbers was expected")
    if not all(0 < sample <= sys.float_info.max for sample in samples):
        raise _Fault("times: every time must be positive")
    return tuple(float(sample) for sample in samples[1:] or samples)


def _seconds(entry: Mapping[str, Any], name: str) -> float:
    """A duration that the file has in milliseconds; 0 where it has none."""
    value = entry.get(name, 0)
    if not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
        raise _Fault(f"{name}: a number that is not negative was expected")
    return value / 1000


def _problem(size: Any) -> Problem:
    """Up to three grid dimensions; a size that the file does not give as integers has no fields."""
    sizes = [size] if isinstance(size, int | str) else size
    if not _is_list_of(sizes, (int, str)) or len(sizes) > 3:
        return Problem()
    return Problem(dict(zip("xyz", sizes, strict=False)))


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name, "")
    return value if isinstance(value, str) else ""


def _is_list_of(value: Any, types: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, types) for entry in value)
