"""Tuned records on disk: merges newly tuned problems, and writes equal records as equal bytes."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from autotune.errors import RecordError, UsageError
from autotune.files import write_atomically
from autotune.tuned.first_calls import with_first_call, without_problems
from autotune.tuned.identity import other_kernel
from autotune.tuned.reading import (
    DamagedRecord,
    decode,
    path_of,
    read,
    unwritten,
    user_folder,
    warn,
)
from autotune.tuned.record import EFFORTS, FORMAT, TIME, TunedProblem, TunedRecord, key_of
from autotune.values import SOURCE

if TYPE_CHECKING:
    from autotune.devices.device import Device
    from autotune.kernel.spec import Kernel


class MergedProblem(msgspec.Struct, frozen=True):
    """The outcome of merging one newly tuned problem."""

    problem: Mapping[str, int | str]
    action: Literal["added", "replaced", "kept"]
    reason: str


#: Action and reason where there is nothing to choose between.
NEW: tuple[Literal["added"], str] = ("added", "not tuned before")
RESHAPED: tuple[Literal["replaced"], str] = (
    "replaced",
    "parameters or problem fields changed since",
)
#: Says which of two entries of one problem stays, the first or the second, and why.
Choice: TypeAlias = Callable[[TunedProblem, TunedProblem], tuple[Literal["kept", "replaced"], str]]


def by_rule(
    old: TunedProblem, new: TunedProblem, is_settled: bool = False
) -> tuple[Literal["kept", "replaced"], str]:
    """Choose the new entry, unless the old one is of the same source and arguments, and better.

    It is better if it had more effort, or if it is surely faster. The latter is not asked where the
    new finals settled it: both raced there, or the old winner was wrong.
    """
    if old.origin.source != new.origin.source:
        return "replaced", "the source changed since"
    if old.origin.arguments != new.origin.arguments:
        return "replaced", "the arguments changed since"
    if EFFORTS.index(new.origin.effort) < EFFORTS.index(old.origin.effort):
        return (
            "kept",
            f"tuned with more effort before ({old.origin.effort}, now {new.origin.effort})",
        )
    is_settled = is_settled or new.race.of(old.configuration) is not None
    if old.race.timing == new.race.timing and not is_settled:
        (_, most_ms), (least_ms, _) = old.winner.time_ms.interval, new.winner.time_ms.interval
        if most_ms < least_ms:
            return "kept", f"faster before ({old.median_ms:.4g} ms, now {new.median_ms:.4g} ms)"
    return "replaced", f"tuned again with effort {new.origin.effort}"


def accepted(old: TunedProblem, new: TunedProblem) -> tuple[Literal["kept", "replaced"], str]:
    """Choose the new entry, because the user said so."""
    return "replaced", "accepted"


class Merged(msgspec.Struct, frozen=True):
    """A merged record and, per newly tuned problem, whether it went in."""

    record: TunedRecord
    outcomes: tuple[MergedProblem, ...]


# ---------------------------------------------------------------------- files


def update(
    directory: Path, new: TunedRecord, choose: Choice = by_rule, alone: bool = False
) -> Merged:
    """Merge newly tuned problems into the record on disk and write it; ``alone``: replace that record.

    Processes that tune on several devices of one name may do so at once. A damaged file is set
    aside as ``<kernel>.json.damaged``; a file that is no record or of a newer schema is refused.
    """
    path = path_of(directory, new)
    encode(new)
    with locked_folder(path):
        merged = merge(None if alone else _existing(path), new, choose)
        data = encode(merged.record)
        write_atomically(path, data)
    return msgspec.structs.replace(merged, record=decode(data))


def add_first_call(directory: Path, entry: TunedProblem, empty: TunedRecord) -> str:
    """Add the answer of a first call to a record on disk; return why only this process has it, or "".

    ``empty`` is the record to begin with: without entries, of the shape that lookup answers with.
    """
    path = path_of(directory, empty)
    try:
        with locked_folder(path):
            before = _existing(path)
            if before is not None and not before.is_tuned and before.shape != empty.shape:
                before = None
            if before is not None and (before.shape, before.objective) != (
                empty.shape,
                empty.objective,
            ):
                raise RecordError(f"{path}: it has other parameters, fields or another objective")
            write_atomically(path, _encoded(with_first_call(before or empty, entry)))
    except RecordError as error:
        unwritten[str(path)] = with_first_call(unwritten.get(str(path), empty), entry)
        cause = error.__cause__
        return f"{path}: {cause.strerror}" if isinstance(cause, OSError) else str(error)
    return ""


def _existing(path: Path) -> TunedRecord | None:
    if not path.exists():
        return None
    try:
        return read(path)
    except DamagedRecord:
        path.replace(path.with_name(path.name + ".damaged"))
        return None


@contextlib.contextmanager
def locked_folder(path: Path) -> Iterator[None]:
    """Let one process at a time read, merge and write where a record lies; what it wrote lasts.

    Locks the folder itself, so that no lock file is left behind. File systems without locks go
    without: a record is replaced whole either way.
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


def mergeable(
    out: Path, device: Device, kernel: Kernel, objective: str, others: Iterable[Path] = ()
) -> Iterator[TunedRecord]:
    """Yield the records that a run will be merged into: those of the user, of ``out`` and of ``others``.

    Refuses a run whose objective differs from one of them. Warns of records that the run will replace,
    since they are of another kernel of that name.
    """
    mine = [Path(user_folder(kernel.project))] if objective == TIME else []
    for directory in dict.fromkeys((out, *mine, *others)):
        path = directory / device.folder / f"{kernel.name}.json"
        with contextlib.suppress(RecordError):  # merging it warns
            if not path.exists() or not (old := read(path)).is_tuned:
                continue
            if old.objective != objective:
                raise _other_objective(old, objective)
            yield old
            if warning := other_kernel(kernel, str(path), old.fields, old.parameters):
                warn(warning)
                return


def _other_objective(old: TunedRecord, objective: str) -> UsageError:
    return UsageError(
        f"{old.kernel} on {old.device.name} is tuned for {old.objective} there, not for {objective}: "
        "a folder of records has one objective; name another (--out, or out= of tune)"
    )


# ---------------------------------------------------------------------- merging


def merge(old: TunedRecord | None, new: TunedRecord, choose: Choice = by_rule) -> Merged:
    """Merge newly tuned problems into a record.

    ``choose`` decides between two entries of one problem. Fields of the whole record come from the
    newer. Older entries of other problems stay while the kernel has the same parameters and problem
    fields. The newer portfolio replaces the old one whole, unless the old one is far wider or every
    new entry was left out. First calls stay that are of other problems or of arrays that lie otherwise.
    """
    if old and (old.kernel, old.device.folder) != (new.kernel, new.device.folder):
        raise UsageError(
            f"cannot merge {new.kernel} on {new.device.name} into {old.kernel} on {old.device.name}"
        )
    if old and old.objective != new.objective:
        raise _other_objective(old, new.objective)
    if old is None or old.shape != new.shape:
        same = RESHAPED if old and old.is_tuned else NEW
        return Merged(new, tuple(MergedProblem(each.problem, *same) for each in new.problems))
    pairs = [(old.tuned(entry.problem), entry) for entry in new.problems]
    outcomes = [
        MergedProblem(entry.problem, *(choose(known, entry) if known else NEW))
        for known, entry in pairs
    ]
    kept = {key_of(outcome.problem) for outcome in outcomes if outcome.action == "kept"}
    taken = [entry for entry in new.problems if key_of(entry.problem) not in kept]
    replaced = {key_of(entry.problem) for entry in taken}
    stay = [entry for entry in old.problems if key_of(entry.problem) not in replaced]
    is_behind = bool(kept) and not taken
    keeps = is_behind or old.portfolio.is_far_wider(new.portfolio)
    portfolio = old.portfolio if keeps else new.portfolio
    first_calls = without_problems(old, [entry.problem for entry in new.problems])
    record = msgspec.structs.replace(
        new, problems=(*stay, *taken), portfolio=portfolio, first_calls=first_calls
    )
    return Merged(record, tuple(outcomes))


# ---------------------------------------------------------------------- bytes


def encode(record: TunedRecord) -> bytes:
    """Return the bytes of a record's file, which can be read: equal for equal records."""
    data = _encoded(record)
    decode(data, record.kernel)
    return data


def _encoded(record: TunedRecord) -> bytes:
    document = msgspec.to_builtins(msgspec.structs.replace(record, first_calls=()), enc_hook=dict)
    document = {"format": FORMAT, "schema_version": record.schema_version, **document}
    del document["first_calls"]
    if not record.sources:
        del document["sources"]
    own = [[SOURCE, *names] for names in record.sources.values()]
    document = _in_order(document, [list(record.fields), list(record.parameters), *own])
    document["problems"] = sorted(
        document["problems"], key=lambda tuned: [*tuned["problem"].values()]
    )
    try:
        data = _lines(document).encode("ascii")
    except ValueError as error:
        raise RecordError(f"{record.kernel}: cannot write the tuned record: {error}") from error
    if record.first_calls:
        entries = b",\n  ".join(map(bytes, record.first_calls))
        data = data.removesuffix(b"\n}") + b',\n "first_calls": [\n  ' + entries + b"\n ]\n}"
    return data + b"\n"


def _in_order(value: Any, orders: Sequence[Sequence[str]]) -> Any:
    if isinstance(value, dict):
        names = next((names for names in orders if value.keys() == set(names)), list(value))
        return {name: _in_order(value[name], orders) for name in names}
    if isinstance(value, list | tuple) and any(isinstance(item, _CONTAINERS) for item in value):
        return [_in_order(item, orders) for item in value]
    return value


#: Levels that are written on lines of their own, by the key of what is deeper than others.
_DEEPEST = {"tables": 6, "race": 5}
#: Lists and dictionaries with shorter text are on one line.
_SHORT = 96
_CONTAINERS = (dict, list, tuple)


def _lines(value: Any, depth: int = 0, deepest: int = 3) -> str:
    """Return JSON with one line per entry field, table row and cost, so that a diff reads well."""
    if depth == deepest or not isinstance(value, _CONTAINERS):
        return json.dumps(value, allow_nan=False)
    if isinstance(value, dict):
        items = [
            f"{json.dumps(key)}: {_lines(held, depth + 1, _DEEPEST.get(key, deepest))}"
            for key, held in value.items()
        ]
    else:
        items = [_lines(held, depth + 1, deepest) for held in value]
    left, right = "{}" if isinstance(value, dict) else "[]"
    if sum(map(len, items)) + 2 * len(items) < _SHORT and not any("\n" in text for text in items):
        return f"{left}{', '.join(items)}{right}"
    inner = " " * (depth + 1)
    body = f",\n{inner}".join(items)
    return f"{left}\n{inner}{body}\n{' ' * depth}{right}"
