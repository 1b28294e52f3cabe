"""The values that are stored, and a measurement as JSON. This module uses no SQL."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from functools import cache, cached_property
from typing import Any, Literal, TypeAlias, TypeVar, cast

import msgspec

from autotune.measure.measurement import Measurement
from autotune.values import Configuration, Problem

Value = TypeVar("Value")

_JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False)

#: The end of a run: nothing was left to try, the budget was spent, Ctrl-C, or an error.
RunState: TypeAlias = Literal["done", "budget", "interrupted", "failed"]
#: The end of a run as this machine sees it; ``done`` of `RunState` is ``finished``.
RunEnding: TypeAlias = Literal[
    "running", "finished", "budget", "interrupted", "failed", "killed", "unknown"
]


@dataclass(frozen=True)
class Scope:
    """The key of a remembered measurement, without the configuration itself.

    The search space is not part of the key: a new value in a parameter's list re-measures nothing.
    """

    kernel: str
    problem: Problem
    device_uuid: str
    #: The device's name, as the driver gives it.
    device_name: str
    driver: str
    toolchain: str
    #: sha256 of the source and of all included files.
    source: str
    #: Fingerprint of the arguments.
    arguments: str
    #: See `autotune.measure.timing.Timing`.
    timing: str
    #: Architecture, for example ``sm_90``; may be empty.
    arch: str = ""

    @cached_property
    def fingerprint(self) -> str:
        """Return the sha256 of all fields."""
        named = {field.name: getattr(self, field.name) for field in fields(Scope)}
        named["problem"] = self.problem.canonical_json()
        return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class RunInfo:
    """The facts of a run that are known when it begins."""

    kernel: str
    device_name: str
    strategy: str
    seed: int
    #: Version of this package.
    version: str
    #: The command line, for people.
    command: str


@dataclass(frozen=True)
class PastRun(RunInfo):
    """A run in the store."""

    id: int
    #: ISO 8601, UTC.
    started: str
    #: Time of its orderly end, ISO 8601, UTC; None if it has none.
    finished: str | None
    #: Number of measurements that it stored.
    rows: int
    ended: RunEnding

    @property
    def seconds(self) -> float | None:
        """Its duration; None if it has no orderly end."""
        if self.finished is None:
            return None
        ended = datetime.fromisoformat(self.finished)
        return (ended - datetime.fromisoformat(self.started)).total_seconds()


@dataclass(frozen=True, kw_only=True)
class Row(Scope):
    """One measurement in the store, with its provenance."""

    id: int
    run_id: int
    #: Fingerprint of its `Scope`, as stored.
    scope: str
    measurement: Measurement
    #: ISO 8601, UTC.
    created: str
    seed: int
    strategy: str


@dataclass(frozen=True)
class SizeTimes:
    """Median times of several configurations on one problem size, measured together on rotated buffers."""

    problem: Problem
    times_ms: Mapping[Configuration, float]


#: `Scope.timing` of `SizeTimes`: calls use several sets of buffers in turn; see `autotune.measure.rotation`.
ROTATED = "rotated"


def encode(value: Any) -> str:
    """Return a measurement or a problem as strict JSON in ASCII; names keep their order.

    JSON has neither NaN nor infinity: they become the strings ``nan``, ``inf`` and ``-inf``. The text is
    ASCII because compiler logs contain bytes that PostgreSQL refuses in other encodings.
    """
    try:
        return _JSON.encode(msgspec.to_builtins(value, enc_hook=dict))
    except ValueError:  # a NaN or an infinity
        return _JSON.encode(_plain(value))


def decode(text: str, kind: type[Value]) -> Value:
    """Read the text of a value of this type, written by `encode`; raise `ValueError` if it is damaged."""
    decoder = _decoder(cast(Any, kind))
    try:
        if "\\ud" not in text:
            return cast(Value, decoder.decode(text))
        # msgspec refuses single surrogates, which stand for bytes that are not text.
        return msgspec.convert(json.loads(text), kind, strict=False, dec_hook=_fields)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from None


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    # Not strict, so that "nan" becomes a float; `_fields` does not convert a configuration's values.
    return msgspec.json.Decoder(kind, strict=False, dec_hook=_fields)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return value


def _fields(kind: type[Any], value: Any) -> Any:
    if not isinstance(value, Mapping) or any(isinstance(of, dict | list) for of in value.values()):
        raise ValueError(f"expected names and values, got {str(value)[:60]}")
    return kind(value)
