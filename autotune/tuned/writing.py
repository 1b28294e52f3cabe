"""Puts tuned records where lookup finds them: merged per problem, in equal bytes, all or nothing.

Values of equal records are written as equal bytes. Knows nothing of the results store.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import msgspec

from autotune.errors import RecordError, UsageError
from autotune.files import write_atomically
from autotune.tuned.reading import DamagedRecord, decode, path_of, read, user_folder, warn
from autotune.tuned.record import (
    EFFORTS,
    FORMAT,
    TIME,
    AnswerTable,
    Entry,
    Plan,
    Prediction,
    RunnerUp,
    TableRow,
    TunedRecord,
    key_of,
    other_kernel,
)

if TYPE_CHECKING:
    from autotune.devices.device import Device
    from autotune.kernel.spec import Kernel

Configured = TypeVar("Configured", bound=Plan | RunnerUp)
Placed = TypeVar("Placed", bound=Entry | TableRow)


class MergedProblem(msgspec.Struct, frozen=True):
    """What became of one newly tuned problem when it was merged."""

    problem: Mapping[str, int | str]
    action: Literal["added", "replaced", "kept"]
    reason: str


#: Which of two entries of one problem stays, the first or the second, and why.
Choice: TypeAlias = Callable[[Entry, Entry], tuple[Literal["kept", "replaced"], str]]


def by_rule(old: Entry, new: Entry) -> tuple[Literal["kept", "replaced"], str]:
    """The new one, unless it was tuned with less effort from the same source and arguments."""
    if old.source != new.source:
        return "replaced", "the source changed since"
    if old.arguments != new.arguments:
        return "replaced", "the arguments changed since"
    if EFFORTS.index(new.effort) < EFFORTS.index(old.effort):
        return "kept", f"tuned with more effort before ({old.effort}, now {new.effort})"
    return "replaced", f"tuned again with effort {new.effort}"


class Merged(msgspec.Struct, frozen=True):
    """A merged record and, per newly tuned problem, whether it went in."""

    record: TunedRecord
    outcomes: tuple[MergedProblem, ...]


# ---------------------------------------------------------------------- files


def write(directory: Path, record: TunedRecord) -> Path:
    """Write a record atomically, replacing what is there; see `update` to merge.

    Raises
    ------
    RecordError
        If it cannot be written.
    """
    path, data = path_of(directory, record), encode(record)
    with _locked_folder(path):
        write_atomically(path, data)
    return path


def update(directory: Path, new: TunedRecord, choose: Choice = by_rule) -> Merged:
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
    with _locked_folder(path):
        merged = merge(_existing(path), new, choose)
        write_atomically(path, encode(merged.record))
    return msgspec.structs.replace(merged, record=_ordered(merged.record))  # as it is read back


def _existing(path: Path) -> TunedRecord | None:
    """The record on disk; None where there is none, or where it is damaged and now set aside."""
    if not path.exists():
        return None
    try:
        return read(path)
    except DamagedRecord:
        path.replace(path.with_name(path.name + ".damaged"))
        return None


@contextlib.contextmanager
def _locked_folder(path: Path) -> Iterator[None]:
    """Let one process at a time read, merge and write where a record lies; what it wrote lasts.

    Locks the folder itself, so that no lock file is left behind. File systems without locks go
    without: a record is replaced whole either way.

    Raises
    ------
    RecordError
        If something there cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
            os.fsync(handle)  # the new name, even across a power failure
        finally:
            os.close(handle)
    except OSError as error:
        raise RecordError(
            f"{path}: cannot write the tuned record: {error.strerror}; mend that, and run the "
            "same command again: what was measured is kept"
        ) from error


def require_mergeable(out: Path, device: Device, kernel: Kernel, objective: str) -> None:
    """Make sure, before anything is measured, that a run may be merged with what is on disk.

    Warns of records that the run will replace, since they are of another kernel of that name.

    Raises
    ------
    UsageError
        If what is in ``out`` was tuned for something else.
    """
    for directory in (out, *([Path(user_folder())] if objective == TIME else [])):
        path = directory / device.folder / f"{kernel.name}.json"
        with contextlib.suppress(RecordError):  # which is told when it is merged
            if not path.exists():
                continue
            old = read(path)
            if directory == out and old.objective != objective:
                raise _other_objective(old, objective)
            if told := other_kernel(kernel, str(path), old.fields, old.parameters):
                warn(told)
                return


def _other_objective(old: TunedRecord, objective: str) -> UsageError:
    return UsageError(
        f"{old.kernel} on {old.device.name} is tuned for {old.objective} there, not for {objective}: "
        "a folder of records has one objective; name another (--out, or out= of tune)"
    )


# ---------------------------------------------------------------------- merging


def merge(old: TunedRecord | None, new: TunedRecord, choose: Choice = by_rule) -> Merged:
    """Merge newly tuned problems into a record.

    An entry is replaced only if its source or arguments are stale, or by one of equal or higher
    effort; of two that ``choose`` is asked about, as that says. What is said once per record comes
    from the newer; entries of another source stay, as long as they name the parameters and problem
    fields that the kernel has now. The newer portfolio replaces the old one whole, unless that is far
    wider, or every new entry was left out.

    Raises
    ------
    UsageError
        If the records are of different kernels or devices, or tuned for different objectives.
    """
    if old is None:
        return _all_of(new, "added", "not tuned before")
    if (old.kernel, old.device.folder) != (new.kernel, new.device.folder):
        raise UsageError(
            f"cannot merge {new.kernel} on {new.device.name} into {old.kernel} on {old.device.name}"
        )
    if old.objective != new.objective:
        raise _other_objective(old, new.objective)
    if old.shape != new.shape:
        return _all_of(new, "replaced", "parameters or problem fields changed since")
    outcomes = tuple(_outcome(old.entry(entry.problem), entry, choose) for entry in new.entries)
    kept = {key_of(outcome.problem) for outcome in outcomes if outcome.action == "kept"}
    taken = [entry for entry in new.entries if key_of(entry.problem) not in kept]
    replaced = {key_of(entry.problem) for entry in taken}
    stay = [entry for entry in old.entries if key_of(entry.problem) not in replaced]
    is_behind = bool(kept) and not taken
    keeps = is_behind or old.portfolio.is_far_wider(new.portfolio)
    portfolio = old.portfolio if keeps else new.portfolio
    record = msgspec.structs.replace(new, entries=(*stay, *taken), portfolio=portfolio)
    return Merged(record, outcomes)


def _all_of(new: TunedRecord, action: Literal["added", "replaced"], reason: str) -> Merged:
    """The new record alone."""
    return Merged(new, tuple(MergedProblem(e.problem, action, reason) for e in new.entries))


def _outcome(old: Entry | None, new: Entry, choose: Choice) -> MergedProblem:
    if old is None:
        return MergedProblem(new.problem, "added", "not tuned before")
    return MergedProblem(new.problem, *choose(old, new))


# ---------------------------------------------------------------------- bytes


def encode(record: TunedRecord) -> bytes:
    """The bytes of a record's file: equal for equal records.

    Raises
    ------
    RecordError
        If the record would not be read back: a NaN, a name that is not declared.
    """
    document = msgspec.to_builtins(_ordered(record), enc_hook=dict)
    document = {"format": FORMAT, "schema_version": record.schema_version, **document}
    document["entries"] = [{"problem": entry["problem"], **entry} for entry in document["entries"]]
    try:
        data = (_lines(document) + "\n").encode("ascii")
    except ValueError as error:
        raise RecordError(f"{record.kernel}: cannot write the tuned record: {error}") from error
    decode(data, record.kernel)
    return data


def _ordered(record: TunedRecord) -> TunedRecord:
    """The same record with names in declared order, and entries in the order of their problems."""
    fields, parameters = list(record.fields), list(record.parameters)

    def configured(holder: Configured) -> Configured:
        values = _in_order(holder.configuration, parameters)
        return msgspec.structs.replace(holder, configuration=values)

    def placed(row: Placed, **changes: Any) -> Placed:
        return msgspec.structs.replace(row, problem=_in_order(row.problem, fields), **changes)

    def entry(found: Entry) -> Entry:
        best = found.best_deterministic
        return placed(
            configured(found),
            runners_up=tuple(map(configured, found.runners_up)),
            best_deterministic=best and configured(best),
        )

    def prediction(found: Prediction) -> Prediction:
        costs = (msgspec.structs.replace(c, plan=configured(c.plan)) for c in found.costs)
        return msgspec.structs.replace(found, costs=tuple(costs))

    def table(found: AnswerTable) -> AnswerTable:
        return msgspec.structs.replace(
            found,
            rows=tuple(placed(row, plans=tuple(map(configured, row.plans))) for row in found.rows),
            prediction=found.prediction and prediction(found.prediction),
        )

    portfolio = record.portfolio
    return msgspec.structs.replace(
        record,
        default=configured(record.default),
        entries=tuple(sorted(map(entry, record.entries), key=lambda row: [*row.problem.values()])),
        portfolio=msgspec.structs.replace(
            portfolio,
            configurations=tuple(_in_order(c, parameters) for c in portfolio.configurations),
            problems=tuple(_in_order(problem, fields) for problem in portfolio.problems),
            tables=tuple(map(table, portfolio.tables)),
        ),
    )


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
            f"{json.dumps(key)}: {_lines(held, depth + 1, 6 if key == 'tables' else deepest)}"
            for key, held in value.items()
        ]
    else:
        items = [_lines(held, depth + 1, deepest) for held in value]
    body = f",\n{inner}".join(items)
    left, right = "{}" if isinstance(value, dict) else "[]"
    return f"{left}\n{inner}{body}\n{' ' * depth}{right}"
