"""The values that go into the store and come out of it, and a measurement as JSON. Knows no SQL."""

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

#: How a run ended: nothing was left to try, or its budget was spent, or something ended it.
RunState: TypeAlias = Literal["done", "budget", "interrupted", "failed"]
#: How a run ended as far as this machine can see; ``done`` of `RunState` is ``finished``.
RunEnding: TypeAlias = Literal[
    "running", "finished", "budget", "interrupted", "failed", "killed", "unknown"
]


@dataclass(frozen=True)
class Scope:
    """The key of a remembered measurement, without the configuration itself.

    The search space is no part of it: a new value in a parameter's list re-measures nothing.
    """

    kernel: str
    problem: Problem
    device_uuid: str
    #: The driver's name of the device.
    device_name: str
    driver: str
    toolchain: str
    #: sha256 of the source and of every file it includes.
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
    """The facts of a run before its first measurement."""

    kernel: str
    device_name: str
    strategy: str
    seed: int
    #: Of this package.
    version: str
    #: The command line, for a person.
    command: str


@dataclass(frozen=True)
class PastRun(RunInfo):
    """A run as the store remembers it."""

    id: int
    #: ISO 8601, UTC.
    started: str
    #: When it ended in good order, ISO 8601, UTC; else None.
    finished: str | None
    #: Measurements that it stored itself.
    rows: int
    ended: RunEnding

    @property
    def seconds(self) -> float | None:
        """Return its duration; None if it did not end in good order."""
        if self.finished is None:
            return None
        ended = datetime.fromisoformat(self.finished)
        return (ended - datetime.fromisoformat(self.started)).total_seconds()


@dataclass(frozen=True, kw_only=True)
class Row(Scope):
    """One measurement with its provenance, as the store remembers it."""

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
    """Median times of configurations on one problem size, measured together on rotated buffers."""

    problem: Problem
    times_ms: Mapping[Configuration, float]


#: `Scope.timing` of `SizeTimes`: calls take several sets of buffers in turn; see `autotune.measure.rotation`.
ROTATED = "rotated"


def encode(value: Any) -> str:
    """Write a measurement or a problem as strict JSON in ASCII, names in their own order.

    JSON has no NaN and no infinity: they become the strings ``nan``, ``inf`` and ``-inf``. ASCII,
    because compiler logs hold bytes that PostgreSQL refuses in any other form.
    """
    try:
        return _JSON.encode(msgspec.to_builtins(value, enc_hook=dict))
    except ValueError:  # it holds what is no number
        return _JSON.encode(_plain(value))


def decode(text: str, kind: type[Value]) -> Value:
    """Read the text that `encode` made of a value of this kind; raise ValueError if it is damaged."""
    decoder = _decoder(cast(Any, kind))
    try:
        if "\\ud" not in text:
            return cast(Value, decoder.decode(text))
        # It may hold half a surrogate pair, of bytes that were no text, which msgspec refuses.
        return msgspec.convert(json.loads(text), kind, strict=False, dec_hook=_fields)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from None


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    # Lax, so that "nan" is a float; `_fields` leaves a configuration's values as they are.
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
