"""Answers that first calls added to records. A lookup decodes only the entry of its problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from autotune.answers.table import Sizes
from autotune.devices.device import Device
from autotune.tuned.dates import moment
from autotune.tuned.merged import LookupTable
from autotune.tuned.reading import RecordFile, warn
from autotune.tuned.record import TunedProblem, TunedRecord, key_of
from autotune.tuned.recorded_device import RecordedDevice

#: Maximum number of entries of first calls in a record; a new entry removes the oldest.
MAX_FIRST_CALLS = 4096


class _Origin(msgspec.Struct):
    deterministic: bool = False


class _AnsweredCall(msgspec.Struct):
    """The part of an entry that identifies its calls."""

    problem: Sizes
    origin: _Origin

    @property
    def key(self) -> object:
        return key_of(self.problem), self.origin.deterministic


_CALL = msgspec.json.Decoder(_AnsweredCall)
_ENTRY = msgspec.json.Decoder(TunedProblem)


def with_first_call(record: TunedRecord, entry: TunedProblem) -> TunedRecord:
    """Return a record with the answer of a first call; it replaces an older answer for the same call."""
    new = msgspec.Raw(msgspec.json.encode(entry, enc_hook=dict))
    key = _CALL.decode(new).key
    others = [known for known in record.first_calls if _CALL.decode(known).key != key]
    return msgspec.structs.replace(record, first_calls=(*others[1 - MAX_FIRST_CALLS :], new))


def without_problems(record: TunedRecord, problems: Sequence[Sizes]) -> tuple[msgspec.Raw, ...]:
    """Return the first calls of a record without those of problems that a run tuned."""
    tuned = {key_of({**record.layout, **problem}) for problem in problems}
    calls = ((entry, _CALL.decode(entry)) for entry in record.first_calls)
    return tuple(entry for entry, call in calls if key_of(call.problem) not in tuned)


class FirstCalls:
    """The first calls of the records of one kernel, by device."""

    def __init__(self, files: Sequence[RecordFile], table: LookupTable) -> None:
        """Index the first calls of records with the table's shape; records of higher layers come first."""
        shape = table.empty_record(files[0].record.device, files[0].record.provenance).shape
        #: Device, source and entry, by the device (folder, name or uuid) and the key of the call.
        self._entries: dict[tuple[str, object], tuple[RecordedDevice, str, msgspec.Raw]] = {}
        for file in reversed(files):
            device = file.record.device
            names = [name for name in (device.folder, device.name, device.uuid) if name]
            for entry in file.record.first_calls if file.record.shape == shape else ():
                key = _CALL.decode(entry).key
                found = device, file.source, entry
                self._entries.update({(name, key): found for name in names})

    def find(
        self, device: Any, fields: Mapping[str, int | str], deterministic: bool
    ) -> tuple[str, TunedProblem] | None:
        """Return source and entry for a problem with its layout, on a device or a device's name."""
        name = device.folder if isinstance(device, Device) else str(device)
        found = self._entries.get((name, (key_of(fields), deterministic)))
        if found is None:
            return None
        recorded, source, data = found
        if isinstance(device, Device) and not recorded.is_of(device):
            return None
        try:
            entry = _ENTRY.decode(data)
            moment(entry.origin.tuned_on)
        except ValueError as error:
            warn(f"{source}: a first call is left out: {error!s:.200}")
            return None
        return source, entry
