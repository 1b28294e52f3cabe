"""The answers that processes found at their first call of a problem, for all processes of a user.

They are next to the records of a device. An answer is a folder with one file. A process writes it under
another name and renames it. A folder cannot be renamed onto one that has files, so the first writer wins, also
on a shared file system. Nothing waits, and a killed process leaves nothing that others would read.

The answers to a problem have numbers from 0. A process takes the first answer that is valid for its kernel,
compiler and records. If there is none, it adds the next. So an answer is never replaced, and processes of the
same code agree.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Literal, NamedTuple

import msgspec

from autotune.devices.device import Device
from autotune.project import Project
from autotune.tuned.dates import moment
from autotune.tuned.reading import device_folders, layers, stamp_of, user_folder, warn
from autotune.tuned.record import TunedProblem, key_of
from autotune.tuned.recorded_device import RecordedDevice

#: Maximum number of answers of a kernel on a device. Beyond it the oldest quarter is removed.
MAX_ANSWERS = 4096
#: Maximum number of bytes of an answer.
_MAX_BYTES = 1 << 20
#: Two changes of a folder within this time may leave it with one time of change, in ns; FAT counts in 2 s.
_TICK_NS = 2_000_000_000
#: The file in the folder of an answer.
_FILE = "answer.json"


class _StoredAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The content of an answer's file."""

    format: Literal["autotune first call"] = "autotune first call"
    schema_version: Literal[1] = 1
    device: RecordedDevice
    entry: TunedProblem


_ANSWER = msgspec.json.Decoder(_StoredAnswer)


class CalledProblem(NamedTuple):
    """A problem that a first call answers."""

    #: All problem and layout fields.
    fields: Mapping[str, int | str]
    #: Whether only deterministic configurations may answer.
    deterministic: bool

    @property
    def name(self) -> str:
        """Return the beginning of the names of its answers."""
        from hashlib import sha256

        text = msgspec.json.encode([sorted(self.fields.items()), self.deterministic])
        return sha256(text).hexdigest()[:32]


#: The answer that this process could not write, by its path without number.
_unwritten: dict[str, tuple[TunedProblem]] = {}


class FirstCalls:
    """The answers of first calls of one kernel, next to its records in all layers."""

    def __init__(self, kernel: str, owner: Project) -> None:
        self._kernel, self._layers, self._user = kernel, layers(owner), user_folder(owner)
        #: States of the folders of all devices, to notice new answers.
        self._states: list[tuple[int, ...]] = []
        self._looked_ns = 0
        self.refresh()

    def refresh(self) -> bool:
        """Return whether an answer may have been added or removed since the last call."""
        before_ns, self._looked_ns = self._looked_ns - _TICK_NS, time.time_ns()
        states = [
            stamp_of(self._folder(records, device))
            for layer, records in self._layers
            for device in device_folders(layer, records)
        ]
        is_recent = any(state and state[0] > before_ns for state in states)
        is_changed, self._states = is_recent or states != self._states, states
        return is_changed

    def answers(
        self, folder: str, problem: CalledProblem, device: Device | None = None
    ) -> Iterator[tuple[str, TunedProblem]]:
        """Yield the answers to a problem in order, with their source; warn of answers that cannot be read.

        ``folder`` is that of the device. Leave out answers of other chips than a ``device``'s.
        """
        if not any(self._states) and not _unwritten:
            return  # no folder of answers when `refresh` looked last
        for layer, records in self._layers:
            path = os.path.join(self._folder(records, folder), problem.name)
            found = [*_numbered(path, problem, device), *_unwritten.get(path, ())]
            yield from ((f"{layer}:{folder}/{self._kernel}", entry) for entry in found)

    def agree(
        self,
        device: Device,
        problem: CalledProblem,
        entry: TunedProblem,
        is_valid: Callable[[TunedProblem], bool],
    ) -> tuple[TunedProblem, str]:
        """Return the user's first valid answer to a problem; if there is none, add ``entry`` and return it.

        If that fails, this process alone keeps the entry. The text is the reason, else "".
        """
        folder = self._folder(self._user, device.folder)
        path = os.path.join(folder, problem.name)
        try:
            for number in count():
                answer = f"{path}-{number}"
                try:
                    known = _read(answer, problem, device)
                except FileNotFoundError:
                    if _is_added(answer, RecordedDevice.of(device), entry):
                        _trim(folder)
                        break
                    known = _read(answer, problem, device)
                if known is not None and is_valid(known):
                    return known, ""
        except OSError as error:
            _unwritten[path] = (entry,)
            return entry, f"{path}: {error.strerror}"
        return entry, ""

    def _folder(self, records: str, device: str) -> str:
        return os.path.join(records, device, f"{self._kernel}.first_calls")


def forget_unwritten() -> None:
    """Clear the answers that this process could not write."""
    _unwritten.clear()


def _numbered(path: str, problem: CalledProblem, device: Device | None) -> Iterator[TunedProblem]:
    """Yield the answers of a path in order."""
    for number in count():
        try:
            found = _read(f"{path}-{number}", problem, device)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            warn(f"{path}-{number}: cannot read first calls: {error.strerror}")
            return
        if found is not None:
            yield found


def _read(path: str, problem: CalledProblem, device: Device | None) -> TunedProblem | None:
    """Read an answer; None if it is of another chip, or, with a warning, damaged or of a newer version."""
    with open(os.path.join(path, _FILE), "rb") as file:
        data = file.read(_MAX_BYTES + 1)
    try:
        if len(data) > _MAX_BYTES:
            raise ValueError(f"more than {_MAX_BYTES >> 20} MiB")
        stored = _ANSWER.decode(data)
        entry = stored.entry
        moment(entry.origin.tuned_on)
        asked = key_of(problem.fields), problem.deterministic
        if (key_of(entry.problem), entry.origin.deterministic) != asked:
            raise ValueError("it is of another problem")
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        warn(f"{path}: a first call is left out: {error!s:.200}")
        return None
    return entry if device is None or stored.device.is_of(device) else None


def _is_added(path: str, device: RecordedDevice, entry: TunedProblem) -> bool:
    """Write an answer; return False if there is one of this name."""
    from errno import EEXIST, ENOENT, ENOTEMPTY
    from shutil import rmtree
    from uuid import uuid4

    temporary = f"{path}.{uuid4().hex}"
    os.makedirs(temporary)
    try:
        with open(os.path.join(temporary, _FILE), "xb") as file:
            stored = _StoredAnswer(device=device, entry=entry)
            file.write(msgspec.json.encode(stored, enc_hook=dict) + b"\n")
        os.rename(temporary, path)
    except OSError as error:
        # NFS repeats a rename if the reply was lost; then its source is gone.
        if error.errno not in (EEXIST, ENOTEMPTY, ENOENT):
            raise
        return False
    finally:
        rmtree(temporary, ignore_errors=True)
    return True


def _trim(folder: str) -> None:
    """Remove the problems that were answered first, and what killed processes left, if there are too many answers."""
    names = os.listdir(folder)
    if len(names) <= MAX_ANSWERS:
        return
    from shutil import rmtree

    by_problem: dict[str, list[str]] = {}
    for name in names:
        by_problem.setdefault(name.partition("-")[0], []).append(name)

    def changed_ns(problem: str) -> int:
        paths = (os.path.join(folder, name) for name in by_problem[problem])
        return max((stamp_of(path) or (0,))[0] for path in paths)

    count_left = len(names)
    for problem in sorted(by_problem, key=changed_ns):
        if count_left <= MAX_ANSWERS * 3 // 4:
            break
        # From the last number, so that readers always find the numbers from 0 on.
        for name in sorted(by_problem[problem], key=lambda name: (len(name), name), reverse=True):
            rmtree(os.path.join(folder, name), ignore_errors=True)
            count_left -= 1
