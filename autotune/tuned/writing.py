"""Merges newly tuned problems into records on disk. Equal records have equal bytes."""

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
from autotune.tuned.reading import (
    DamagedRecord,
    decode,
    path_of,
    read,
    user_folder,
    warn,
)
from autotune.tuned.record import EFFORTS, FORMAT, TIME, TunedProblem, TunedRecord, key_of
from autotune.tuned.recorded_device import RecordedDevice
from autotune.values import SOURCE

if TYPE_CHECKING:
    from autotune.devices.device import Device
    from autotune.kernel.spec import Kernel


class MergedProblem(msgspec.Struct, frozen=True):
    """The outcome of merging one newly tuned problem."""

    problem: Mapping[str, int | str]
    action: Literal["added", "replaced", "kept"]
    reason: str


#: Action and reason for a problem without an older entry.
NEW: tuple[Literal["added"], str] = ("added", "not tuned before")
#: Action and reason if the older record has other parameters or fields.
RESHAPED: tuple[Literal["replaced"], str] = (
    "replaced",
    "parameters or problem fields changed since",
)
#: Chooses between the old and the new entry of a problem; returns the action and the reason.
Choice: TypeAlias = Callable[[TunedProblem, TunedProblem], tuple[Literal["kept", "replaced"], str]]


def by_rule(
    old: TunedProblem, new: TunedProblem, is_settled: bool = False
) -> tuple[Literal["kept", "replaced"], str]:
    """Choose the new entry, unless the old entry has the same source and arguments and is better.

    It is better if it had more effort, or if it is clearly faster. Speed is ignored if the new run
    already compared the two: the old winner was in its final race, or gave wrong results.
    """
    if old.origin.source != new.origin.source:
        return "replaced", "the source changed since"
    if old.origin.arguments != new.origin.arguments:
        return "replaced", "the arguments changed since"
    if EFFORTS.index(new.origin.effort) < EFFORTS.index(old.origin.effort):
        return (
            "kept",
            f"tuned before with more effort ({old.origin.effort}, now {new.origin.effort})",
        )
    is_settled = is_settled or new.race.of(old.configuration) is not None
    if old.race.timing == new.race.timing and not is_settled:
        (_, most_ms), (least_ms, _) = old.winner.time_ms.interval, new.winner.time_ms.interval
        if most_ms < least_ms:
            return "kept", f"faster before ({old.median_ms:.4g} ms, now {new.median_ms:.4g} ms)"
    return "replaced", f"tuned again with effort {new.origin.effort}"


def accepted(old: TunedProblem, new: TunedProblem) -> tuple[Literal["kept", "replaced"], str]:
    """Choose the new entry, because the user accepts it."""
    return "replaced", "accepted"


class MergeResult(msgspec.Struct, frozen=True):
    """A merged record, with the outcome of each newly tuned problem."""

    record: TunedRecord
    outcomes: tuple[MergedProblem, ...]


# ---------------------------------------------------------------------- files


def update(
    directory: Path, new: TunedRecord, choose: Choice = by_rule, alone: bool = False
) -> MergeResult:
    """Merge newly tuned problems into the record on disk and write it; with ``alone`` replace that record.

    Several processes may update a record at the same time. A damaged file is renamed to
    ``<kernel>.json.damaged``. Raise `RecordError` for a file that is not a record, or of a newer schema.
    """
    path = path_of(directory, new)
    encode(new)
    with locked_folder(path):
        merged = merge(None if alone else _existing(path), new, choose)
        data = encode(merged.record)
        write_atomically(path, data)
    return msgspec.structs.replace(merged, record=decode(data))


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
    """Lock the folder of a record, so that one process at a time merges it; sync the folder at the end.

    The lock is on the folder itself, so no lock file is left. On a file system without locks there is no
    lock; writing still replaces a whole record at once.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
            os.fsync(handle)  # so that the new file survives a power failure
        finally:
            os.close(handle)
    except OSError as error:
        raise RecordError(
            f"{path}: cannot write the tuned record: {error.strerror}; fix the cause, then run the same "
            "command again; measurements are kept"
        ) from error


def mergeable(
    out: Path, device: Device, kernel: Kernel, objective: str, others: Iterable[Path] = ()
) -> Iterator[TunedRecord]:
    """Yield the records that a run will be merged into: of the user, of ``out`` and of ``others``.

    Raise `UsageError` if one has another objective, or is of another chip. Warn of a record of another kernel
    with the same name, because the run will replace it.
    """
    mine = [Path(user_folder(kernel.project))] if objective == TIME else []
    for directory in dict.fromkeys((out, *mine, *others)):
        path = directory / device.folder / f"{kernel.name}.json"
        with contextlib.suppress(RecordError):  # the merge will warn
            if not path.exists() or not (old := read(path)).is_tuned:
                continue
            if old.objective != objective:
                raise _other_objective(str(path), old, objective)
            if why := other_chip(old, device):
                raise UsageError(f"{path}: {why}")
            yield old
            if warning := other_kernel(kernel, str(path), old.fields, old.parameters):
                warn(warning)
                return


def other_kernel(
    kernel: Kernel, where: str, fields: Iterable[str], parameters: Iterable[str]
) -> str:
    """Return a warning if a record with a kernel's name has other fields or parameters, else "".

    A changed source does not count: it makes problems stale.
    """
    declared = {"problem fields": kernel.fields, "parameters": kernel.parameters}
    differences = [
        f"{noun} {', '.join(there)} in the record, {', '.join(here)} in the kernel"
        for (noun, here), there in zip(declared.items(), (fields, parameters), strict=True)
        if set(there) != set(here)
    ]
    if not differences:
        return ""
    return (
        f"{where} does not fit the kernel {kernel.name} of {kernel.file or 'this declaration'}: "
        f"{'; '.join(differences)}. It is of another kernel, or of an earlier version. Rename one of the "
        f"kernels, or replace the record: autotune run {kernel.name}"
    )


def other_chip(record: TunedRecord, device: Device | RecordedDevice) -> str:
    """Return why a device with a record's name has another chip, and what to do; empty if it has the same."""
    difference = device.chip.difference(record.device.chip)
    if not difference:
        return ""
    return (
        f"it is of another {record.device.name}; this one has {difference}; give the records of each chip "
        "folders of their own: --out DIR, and XDG_DATA_HOME"
    )


def _other_objective(where: str, old: TunedRecord, objective: str) -> UsageError:
    return UsageError(
        f"{where} is tuned for {old.objective}, not for {objective}; a folder of records "
        "has one objective; choose another folder (--out, or out= of tune)"
    )


# ---------------------------------------------------------------------- merging


def merge(old: TunedRecord | None, new: TunedRecord, choose: Choice = by_rule) -> MergeResult:
    """Merge newly tuned problems into a record.

    ``choose`` decides between two entries of a problem. Older entries of other problems stay while the kernel
    has the same parameters and problem fields; entries of a changed kernel stay for `retune`, but answer
    nothing. The newer portfolio replaces the old one, unless the kernel is unchanged and the old one is far
    wider or no new entry was taken. All other fields are the newer record's.
    """
    if old and (old.kernel, old.device.folder) != (new.kernel, new.device.folder):
        raise UsageError(
            f"cannot merge {new.kernel} on {new.device.name} into {old.kernel} on {old.device.name}"
        )
    if old and (why := other_chip(old, new.device)):
        raise UsageError(f"cannot merge into the record of {old.kernel}: {why}")
    if old and old.objective != new.objective:
        where = f"the record of {old.kernel} on {old.device.name}"
        raise _other_objective(where, old, new.objective)
    if old is None or old.shape != new.shape:
        same = RESHAPED if old and old.is_tuned else NEW
        return MergeResult(
            new, tuple(MergedProblem(entry.problem, *same) for entry in new.problems)
        )
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
    keeps = new.serves(old) and (is_behind or old.portfolio.is_far_wider(new.portfolio))
    portfolio = old.portfolio if keeps else new.portfolio
    record = msgspec.structs.replace(new, problems=(*stay, *taken), portfolio=portfolio)
    return MergeResult(record, tuple(outcomes))


# ---------------------------------------------------------------------- bytes


def encode(record: TunedRecord) -> bytes:
    """Return the bytes of a record's file, equal for equal records; check that they can be read."""
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
        data = _lines(document).encode("ascii") + b"\n"
    except ValueError as error:
        raise RecordError(f"{record.kernel}: cannot write the tuned record: {error}") from error
    decode(data, record.kernel)
    return data


def _in_order(value: Any, orders: Sequence[Sequence[str]]) -> Any:
    if isinstance(value, dict):
        names = next((names for names in orders if value.keys() == set(names)), list(value))
        return {name: _in_order(value[name], orders) for name in names}
    if isinstance(value, list | tuple) and any(isinstance(item, _CONTAINERS) for item in value):
        return [_in_order(item, orders) for item in value]
    return value


#: Deepest level that is split into lines, by key.
_DEEPEST = {"tables": 6, "race": 5}
#: Lists and dictionaries with shorter text stay on one line.
_SHORT = 96
_CONTAINERS = (dict, list, tuple)


def _lines(value: Any, depth: int = 0, deepest: int = 3) -> str:
    """Return JSON with one line per entry field, per table row and per fitted cost, for readable diffs."""
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
