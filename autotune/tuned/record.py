"""The tuned record: what is known about one kernel on one device, as one JSON file.

Schema, reading, atomic writing and merging per problem. Knows nothing of the results store, or of
how a configuration was found; `_lookup` reads the same files without this module's dependencies.

A record lies at ``<directory>/<device folder>/<kernel>.json`` and never holds a path. Values of
equal records are written as equal bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from autotune.devices import device as devices
from autotune.errors import RecordError, UsageError
from autotune.kernel import expression
from autotune.tuned.table import moment

SCHEMA_VERSION = 1
FORMAT = "autotune tuned record"

#: What slots and multiples may be.
_POSITIVE = range(1, 2**31)

#: How thorough a search was, least first.
EFFORTS = ("quick", "full")


class DamagedRecord(RecordError):
    """Ours, but cut off or altered: may be set aside, unlike what is foreign or newer."""


class RecordedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """The device that a record was measured on; see `autotune.devices.device.Device`."""

    backend: str
    name: str
    arch: str
    uuid: str = ""
    driver: str = ""
    sm_count: int = 1
    shared_bytes_per_block: int = 0
    l2_bytes: int = 0
    memory_bytes: int = 0
    peak_gb_per_s: float = 0.0
    peak_gflop_per_s: float = 0.0

    @classmethod
    def of(cls, device: devices.Device) -> RecordedDevice:
        """What a record keeps of a live device."""
        return cls(**{name: getattr(device, name) for name in cls.__struct_fields__})

    @property
    def folder(self) -> str:
        """Name of the device as a folder."""
        return self.known().folder

    def known(self) -> devices.Device:
        """The device as far as it is recorded."""
        return devices.Device(**{name: getattr(self, name) for name in self.__struct_fields__})

    def planned_for(self) -> devices.Device:
        """The device as far as it is known without being here, to plan launches for."""
        device = self.known()
        if not device.compiles_for_arch:
            return device
        recorded = {name: getattr(self, name) for name in self.__struct_fields__}
        return dataclasses.replace(devices.for_arch(self.arch), **recorded)


class LaunchStep(msgspec.Struct, frozen=True, kw_only=True, tag="launch", tag_field="step"):
    """One kernel launch of a step sequence."""

    entry: str
    #: Grid for the entry's own problem.
    concrete_grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int = 0
    #: Stored expressions over the problem fields; None where the launch cannot be traced.
    grid: tuple[int | str | list[Any], ...] | None = None
    #: Names of arguments and scratch buffers, integers, or stored operations on problem fields.
    args: tuple[int | str | list[Any], ...] = ()


class FillStep(msgspec.Struct, frozen=True, kw_only=True, tag="fill", tag_field="step"):
    """A buffer set to one value, as part of a step sequence."""

    name: str
    value: float = 0.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration and how its first launch looks: what lookup answers with."""

    configuration: Mapping[str, int | bool | str]
    block: tuple[int, ...]
    shared_bytes: int = 0
    #: Stored expressions over the problem fields; None where the launch cannot be traced.
    grid: tuple[int | str | list[Any], ...] | None = None
    #: Stored condition that a problem must satisfy; None where every problem is fine.
    requires: int | str | list[Any] | None = None
    #: Architectures whose declared space holds this configuration; None where not examined.
    archs: tuple[str, ...] | None = None


class Vendor(msgspec.Struct, frozen=True, kw_only=True):
    """The vendor library on the same problem, measured in the same finals."""

    name: str
    median_ms: float
    #: Vendor time over ours: above 1 ours is faster.
    ratio: float
    ratio_interval: tuple[float, float]
    #: Median of calls back to back; None where not taken.
    hot_ms: float | None = None


class Checks(msgspec.Struct, frozen=True, kw_only=True):
    """Largest error of the winner against the float64 reference, and the bound it kept."""

    max_error: float
    rms_error: float
    bound: float


class RunnerUp(msgspec.Struct, frozen=True, kw_only=True):
    """Another finalist, measured in the same rounds as the winner."""

    configuration: Mapping[str, int | bool | str]
    median_ms: float
    interval_ms: tuple[float, float]


class Confirmed(msgspec.Struct, frozen=True, kw_only=True):
    """The latest time that an entry was verified and measured again, and held."""

    #: When; see `timestamp`.
    on: str
    driver: str
    toolchain: str
    #: Time then over the recorded one: above 1 it was slower.
    ratio: float
    ratio_interval: tuple[float, float]


class Entry(Plan, frozen=True, kw_only=True):
    """The winner of one problem, and the evidence."""

    problem: Mapping[str, int | str]
    median_ms: float
    interval_ms: tuple[float, float]
    samples: int
    #: Fingerprint of all sources of the kernel, not only of the winner's.
    source: str
    #: How it was timed: ``cold:graph``, ``cold:flush`` …; see `autotune.measure.timing.Timing`.
    timing: str
    effort: Literal["quick", "full"]
    strategy: str
    evaluations: int
    seed: int
    #: When; see `timestamp`.
    tuned_on: str
    steps: tuple[LaunchStep | FillStep, ...] = ()
    gb_per_s: float | None = None
    gflop_per_s: float | None = None
    #: Share of the device's measured limit that binds, and which limit that is.
    limit_fraction: float | None = None
    limit_name: str | None = None
    vendor: Vendor | None = None
    #: Median of calls back to back, from warm caches; None where not taken.
    hot_ms: float | None = None
    #: Size of the tied set: configurations within noise of the winner, itself included.
    tied: int = 1
    checks: Checks | None = None
    registers: int | None = None
    spill_bytes: int | None = None
    static_shared_bytes: int | None = None
    #: Fingerprint of the space file's arguments, reference, launch and options; empty: not known.
    arguments: str = ""
    #: Names of arguments that a file gave in place of drawn ones.
    inputs: tuple[str, ...] = ()
    #: Compiler options of the winner beside its defines; None: not known.
    options: tuple[str, ...] | None = None
    #: What it was measured with and on; empty: see the record's provenance and device.
    driver: str = ""
    toolchain: str = ""
    device_uuid: str = ""
    #: The next best finalists, best first.
    runners_up: tuple[RunnerUp, ...] = ()
    confirmed: Confirmed | None = None
    #: Why it should be tuned again, one sentence each; empty while it is current.
    stale_reasons: tuple[str, ...] = ()


#: A coefficient in milliseconds, and the integer problem fields that it is multiplied by.
Term: TypeAlias = tuple[float, tuple[str, ...]]


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration's time as a function of the problem.

    ``fixed``, plus for each of ``waves`` its terms times ``ceil(blocks / slots)``, times the
    factors of the fields that are ``misaligned``: no multiple of the prediction's ``multiple``.
    """

    plan: Plan
    fixed: tuple[Term, ...]
    #: Blocks that run at a time, and the terms.
    waves: tuple[tuple[int, tuple[Term, ...]], ...]
    misaligned: Mapping[str, float] = {}


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """What chooses for problems that were not measured: the least of the costs that they allow."""

    multiple: int
    costs: tuple[Cost, ...]


class Portfolio(msgspec.Struct, frozen=True, kw_only=True):
    """Every configuration of the finals measured on every problem."""

    configurations: tuple[Mapping[str, int | bool | str], ...] = ()
    problems: tuple[Mapping[str, int | str], ...] = ()
    #: One row per configuration, one column per problem; None where it failed or does not apply.
    median_ms: tuple[tuple[float | None, ...], ...] = ()
    #: Fitted to the times; one for each combination of categories where that answers best.
    predictions: tuple[Prediction, ...] = ()


class FallbackRow(msgspec.Struct, frozen=True, kw_only=True):
    """What to use for problems nearest to this one."""

    problem: Mapping[str, int | str]
    plan: Plan
    #: Expected share of the best possible speed; None where too little was measured to tell.
    expected_fraction: float | None = None
    #: Position of the portfolio's prediction that answers in place of the plan; None: none does.
    prediction: int | None = None


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """What the latest run that wrote the record ran with."""

    version: str
    toolchain: str
    driver: str
    #: When; see `timestamp`. Of several records of a kernel the latest says what its shape is.
    created: str


class TunedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known about one kernel on one device."""

    kernel: str
    device: RecordedDevice
    #: Problem fields in the kernel's order.
    fields: Mapping[str, Literal["integer", "categorical"]]
    #: Parameters in declared order, with the values each may take.
    parameters: Mapping[str, tuple[int | bool | str, ...]]
    #: What to use when nothing is known of a problem.
    default: Plan
    entries: tuple[Entry, ...] = ()
    portfolio: Portfolio = Portfolio()
    fallback: tuple[FallbackRow, ...] = ()
    provenance: Provenance
    schema_version: int = SCHEMA_VERSION
    format: str = FORMAT

    def entry(self, problem: Mapping[str, int | str]) -> Entry | None:
        """The entry of one problem, or None."""
        return next((one for one in self.entries if dict(one.problem) == dict(problem)), None)


class MergedProblem(msgspec.Struct, frozen=True):
    """What became of one newly tuned problem when it was merged."""

    problem: Mapping[str, int | str]
    action: Literal["added", "replaced", "kept"]
    reason: str


class Merged(msgspec.Struct, frozen=True):
    """A merged record and, per newly tuned problem, whether it went in."""

    record: TunedRecord
    outcomes: tuple[MergedProblem, ...]


def timestamp() -> str:
    """Now, as records say it: ISO 8601, UTC, to the second. Older records have only a day."""
    return datetime.now(UTC).isoformat(timespec="seconds")


# ---------------------------------------------------------------------- files


def path_of(directory: Path | str, record: TunedRecord) -> Path:
    """Where a record lies under a directory of tuned records."""
    return Path(directory) / record.device.folder / f"{record.kernel}.json"


def read(path: Path | str) -> TunedRecord:
    """Read one record.

    Raises
    ------
    RecordError
        If the file cannot be read, is damaged, is something else, or of a newer schema.
    """
    path = Path(path)
    try:
        return decode(path.read_bytes(), path.name)
    except OSError as error:
        raise RecordError(f"{path}: cannot read the tuned record: {error.strerror}") from error


def read_all(directory: Path | str, kernel: str | None = None) -> list[TunedRecord]:
    """Read the records below a directory, of one kernel or of all, in the order of their paths."""
    return [read(path) for path in sorted(Path(directory).glob(f"*/{kernel or '*'}.json"))]


def decode(data: bytes, name: str = "record") -> TunedRecord:
    """Read a record from the bytes of its file.

    Raises
    ------
    RecordError
        If they are damaged, something else, or of a newer schema.
    """
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedRecord(f"{name}: not a tuned record, or damaged: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise RecordError(f"{name}: not a tuned record of autotune")
    version = document.get("schema_version")
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise RecordError(
            f"{name}: tuned record of schema {version!r}, this autotune reads up to "
            f"{SCHEMA_VERSION}; upgrade kernel-autotune"
        )
    try:
        record = msgspec.convert(document, TunedRecord)
        _check(record)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise DamagedRecord(f"{name}: damaged tuned record: {error}") from error
    return record


def encode(record: TunedRecord) -> bytes:
    """The bytes of a record's file: equal for equal records.

    Raises
    ------
    RecordError
        If the record would not be read back: a NaN, a name that is not declared.
    """
    document = msgspec.to_builtins(_ordered(record), enc_hook=dict)
    document = {"format": FORMAT, "schema_version": record.schema_version, **document}
    document["entries"] = [{"problem": one["problem"], **one} for one in document["entries"]]
    try:
        data = (_lines(document) + "\n").encode("ascii")
    except ValueError as error:
        raise RecordError(f"{record.kernel}: cannot write the tuned record: {error}") from error
    decode(data, record.kernel)
    return data


def write(directory: Path | str, record: TunedRecord) -> Path:
    """Write a record atomically, replacing what is there; see `update` to merge.

    Raises
    ------
    RecordError
        If it cannot be written.
    """
    path = path_of(directory, record)
    data = encode(record)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, data)
    except OSError as error:
        raise _unwritable(path, error) from error
    return path


def update(directory: Path | str, new: TunedRecord) -> Merged:
    """Merge newly tuned problems into the record on disk and write it.

    Processes that tune on several devices of one name may do so at once. A damaged file is set
    aside as ``<kernel>.json.damaged``.

    Raises
    ------
    RecordError
        If what is there belongs to something else or to a newer autotune, or cannot be replaced.
    """
    path = path_of(directory, new)
    encode(new)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.parent):
            merged = merge(_existing(path), new)
            write(directory, merged.record)
    except OSError as error:
        raise _unwritable(path, error) from error
    return merged


def _unwritable(path: Path, error: OSError) -> RecordError:
    return RecordError(
        f"{path}: cannot write the tuned record: {error.strerror}; mend that, and run the same "
        "command again: what was measured is kept"
    )


# ---------------------------------------------------------------------- merging


def merge(old: TunedRecord | None, new: TunedRecord) -> Merged:
    """Merge newly tuned problems into a record.

    An entry is replaced only if its source or arguments are stale, or by one of equal or higher
    effort. What is said once per record comes from the newer; entries of another source stay,
    marked stale, as long as they name the parameters and problem fields that the kernel has now.

    Raises
    ------
    UsageError
        If the records are of different kernels or devices.
    """
    if old is None:
        added = tuple(
            MergedProblem(one.problem, "added", "not tuned before") for one in new.entries
        )
        return Merged(new, added)
    if (old.kernel, old.device.folder) != (new.kernel, new.device.folder):
        raise UsageError(
            f"cannot merge {new.kernel} on {new.device.name} into {old.kernel} on {old.device.name}"
        )
    if (set(old.parameters), old.fields) != (set(new.parameters), new.fields):
        reason = "parameters or problem fields changed since"
        return Merged(
            new, tuple(MergedProblem(one.problem, "replaced", reason) for one in new.entries)
        )
    outcomes = tuple(_outcome(old.entry(one.problem), one) for one in new.entries)
    taken = [
        entry
        for entry, outcome in zip(new.entries, outcomes, strict=True)
        if outcome.action != "kept"
    ]
    kept = [_aged(one, old, new) for one in old.entries if not _holds(taken, one.problem)]
    record = msgspec.structs.replace(
        new,
        entries=(*kept, *taken),
        portfolio=old.portfolio if _is_wider(old, new) else new.portfolio,
        fallback=_merged_fallback(old, new, [o.problem for o in outcomes if o.action == "kept"]),
    )
    return Merged(record, outcomes)


def _outcome(old: Entry | None, new: Entry) -> MergedProblem:
    if old is None:
        return MergedProblem(new.problem, "added", "not tuned before")
    if old.source != new.source:
        return MergedProblem(new.problem, "replaced", "the source changed since")
    if old.arguments and new.arguments and old.arguments != new.arguments:
        return MergedProblem(new.problem, "replaced", "the arguments changed since")
    if EFFORTS.index(new.effort) < EFFORTS.index(old.effort):
        return MergedProblem(
            new.problem, "kept", f"tuned with more effort before ({old.effort}, now {new.effort})"
        )
    return MergedProblem(new.problem, "replaced", f"tuned again with effort {new.effort}")


def _aged(entry: Entry, old: TunedRecord, new: TunedRecord) -> Entry:
    """An old entry that stays, marked stale where its source is no longer the kernel's.

    What only the old record's provenance said of it, it says itself from now on.
    """
    entry = msgspec.structs.replace(
        entry,
        driver=entry.driver or old.provenance.driver,
        toolchain=entry.toolchain or old.provenance.toolchain,
        device_uuid=entry.device_uuid or old.device.uuid,
    )
    reason = "the source changed since"
    current = {one.source for one in new.entries}
    if not current or entry.source in current or reason in entry.stale_reasons:
        return entry
    return msgspec.structs.replace(entry, stale_reasons=(*entry.stale_reasons, reason))


def _is_wider(old: TunedRecord, new: TunedRecord) -> bool:
    """Whether the old matrix has more problems; two matrices of different days are never mixed."""
    return len(old.portfolio.problems) > len(new.portfolio.problems)


def _merged_fallback(
    old: TunedRecord, new: TunedRecord, kept: Sequence[Mapping[str, int | str]]
) -> tuple[FallbackRow, ...]:
    """Rows of the wider portfolio first; the other's rows for problems that it lacks.

    Where an entry was kept, the row that came with it is kept too.
    """
    outdone = [row for row in old.fallback if dict(row.problem) in [dict(one) for one in kept]]
    first = tuple(row for row in new.fallback if not _holds(outdone, row.problem))
    second = old.fallback
    if _is_wider(old, new):
        first, second = second, first
    # The other portfolio is left out, and its predictions with it.
    rest = (row for row in second if not _holds(first, row.problem))
    return (*first, *(msgspec.structs.replace(row, prediction=None) for row in rest))


def _holds(rows: Sequence[Entry | FallbackRow], problem: Mapping[str, int | str]) -> bool:
    return any(dict(row.problem) == dict(problem) for row in rows)


# ---------------------------------------------------------------------- inside


def _check(record: TunedRecord) -> None:
    """Check what types cannot say: names, declared values, expressions, table shapes.

    Raises
    ------
    ValueError
        Says what is wrong.
    """
    for name in (record.kernel, *record.fields, *record.parameters):
        if not name.isidentifier() or not name.isascii():
            raise ValueError(f"{name!r} is not a name")
    try:
        moment(record.provenance.created)
    except ValueError as error:
        raise ValueError(f"provenance.created: {error}") from error
    rows: list[Entry | FallbackRow] = [*record.entries, *record.fallback]
    for problem in [one.problem for one in rows] + [*record.portfolio.problems]:
        _check_problem(record, problem)
    costs = [cost for one in record.portfolio.predictions for cost in one.costs]
    plans = [*(one.plan for one in record.fallback), *(one.plan for one in costs)]
    for plan in [record.default, *record.entries, *plans]:
        _check_plan(record, plan)
    for one in record.entries:
        for other in one.runners_up:
            _check_names(record, other.configuration)
    matrix = record.portfolio.median_ms
    if len(matrix) != len(record.portfolio.configurations) or any(
        len(row) != len(record.portfolio.problems) for row in matrix
    ):
        raise ValueError("the portfolio's times do not match its configurations and problems")
    known = range(len(record.portfolio.predictions))
    if any(one.prediction not in (None, *known) for one in record.fallback):
        raise ValueError("a row of the fallback table names a prediction that is not there")
    for prediction in record.portfolio.predictions:
        _check_prediction(record, prediction)


def _check_problem(record: TunedRecord, problem: Mapping[str, int | str]) -> None:
    if set(problem) != set(record.fields):
        raise ValueError(f"problem {dict(problem)} has other fields than {list(record.fields)}")
    for name, kind in record.fields.items():
        if isinstance(problem[name], int) != (kind == "integer"):
            raise ValueError(f"problem field {name} is {kind}, not {problem[name]!r}")


def _check_plan(record: TunedRecord, plan: Plan) -> None:
    _check_names(record, plan.configuration)
    integers = [name for name, kind in record.fields.items() if kind == "integer"]
    for one in (*(plan.grid or ()), *(() if plan.requires is None else (plan.requires,))):
        _check_expression(one, integers)


def _check_prediction(record: TunedRecord, prediction: Prediction) -> None:
    integers = {name for name, kind in record.fields.items() if kind == "integer"}
    if prediction.multiple not in _POSITIVE:
        raise ValueError("a prediction whose multiple is not positive")
    for cost in prediction.costs:
        terms = [*cost.fixed, *(term for _, terms in cost.waves for term in terms)]
        numbers = [*(number for number, _ in terms), *cost.misaligned.values()]
        names = {name for _, names in terms for name in names} | set(cost.misaligned)
        if names - integers or not all(map(math.isfinite, numbers)):
            raise ValueError(f"a cost over {sorted(names - integers) or numbers}")
        if cost.plan.grid is None or any(slots not in _POSITIVE for slots, _ in cost.waves):
            raise ValueError("a cost without grid or slots")


def _check_names(record: TunedRecord, configuration: Mapping[str, Any]) -> None:
    if set(configuration) != set(record.parameters):
        raise ValueError(f"configuration {dict(configuration)} lacks or adds parameters")


def _check_expression(json_form: Any, integers: Sequence[str]) -> None:
    if isinstance(json_form, list):
        if len(json_form) != 3 or json_form[0] not in expression.OPERATORS:
            raise ValueError(f"{json_form!r} is not an expression")
        for operand in json_form[1:]:
            _check_expression(operand, integers)
    elif isinstance(json_form, str) and json_form not in integers:
        raise ValueError(f"expression over {json_form!r}, which is no integer problem field")


def _ordered(record: TunedRecord) -> TunedRecord:
    """The same record with names in declared order, and entries in the order of their problems."""
    fields, parameters = list(record.fields), list(record.parameters)

    def plan(one: Any) -> Any:
        return msgspec.structs.replace(one, configuration=_in_order(one.configuration, parameters))

    def entry(one: Entry) -> Any:
        others = tuple(plan(other) for other in one.runners_up)
        return problem(msgspec.structs.replace(plan(one), runners_up=others))

    def problem(one: Any) -> Any:
        return msgspec.structs.replace(one, problem=_in_order(one.problem, fields))

    def prediction(one: Prediction) -> Any:
        costs = (msgspec.structs.replace(cost, plan=plan(cost.plan)) for cost in one.costs)
        return msgspec.structs.replace(one, costs=tuple(costs))

    return msgspec.structs.replace(
        record,
        default=plan(record.default),
        entries=tuple(sorted(map(entry, record.entries), key=_problem_values)),
        fallback=tuple(
            problem(msgspec.structs.replace(row, plan=plan(row.plan))) for row in record.fallback
        ),
        portfolio=msgspec.structs.replace(
            record.portfolio,
            configurations=tuple(
                _in_order(one, parameters) for one in record.portfolio.configurations
            ),
            problems=tuple(_in_order(one, fields) for one in record.portfolio.problems),
            predictions=tuple(map(prediction, record.portfolio.predictions)),
        ),
    )


def _problem_values(entry: Entry) -> list[int | str]:
    return list(entry.problem.values())


def _in_order(values: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    known = [name for name in names if name in values]
    return {name: values[name] for name in [*known, *(set(values) - set(known))]}


def _lines(value: Any, depth: int = 0, deepest: int = 3) -> str:
    """JSON with one line per entry field, table row and cost, so that a diff reads well."""
    compact = json.dumps(value, allow_nan=False)
    if depth == deepest or not isinstance(value, dict | list | tuple) or len(compact) < 96:
        return compact
    inner = " " * (depth + 1)
    if isinstance(value, dict):
        items = [
            f"{json.dumps(key)}: {_lines(one, depth + 1, 5 if key == 'predictions' else deepest)}"
            for key, one in value.items()
        ]
    else:
        items = [_lines(one, depth + 1, deepest) for one in value]
    body = f",\n{inner}".join(items)
    left, right = "{}" if isinstance(value, dict) else "[]"
    return f"{left}\n{inner}{body}\n{' ' * depth}{right}"


def _existing(path: Path) -> TunedRecord | None:
    """The record on disk; None where there is none, or where it is damaged and now set aside."""
    if not path.exists():
        return None
    try:
        return read(path)
    except DamagedRecord:
        os.replace(path, path.with_name(path.name + ".damaged"))
        return None


def _replace(path: Path, data: bytes) -> None:
    """Put a file in place whole or not at all, even across a power failure."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process at a time read, merge and write in a folder.

    Locks the folder itself, so that no lock file is left behind. File systems without locks go
    without: a record is replaced whole either way.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
