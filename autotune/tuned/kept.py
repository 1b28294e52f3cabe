"""Answers that first calls found: below the records, in files of their own beside the user's records.

A file names configurations of the records, and nothing else is launched because of it. `lookup` and
`load` read it; headers, exports and reports do not.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

import msgspec

from autotune.answers.schema import Measured, Sizes, Value
from autotune.errors import RecordError
from autotune.files import write_atomically
from autotune.project import Project
from autotune.tuned.clock import moment
from autotune.tuned.reading import device_folders, stamp_of, user_folder, warn
from autotune.tuned.record import RecordedDevice, TuningOrigin

FORMAT = "autotune first calls"
SCHEMA_VERSION = 1
#: How a file's name ends, after the kernel.
ENDING = ".first_call"
#: Answers of a file: the oldest go first; and most bytes that are read of one.
MAX_ANSWERS, MAX_BYTES = 4096, 8 << 20


class KeptAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The fastest of the configurations that a first call tried."""

    #: All problem fields, and all layout fields.
    problem: Sizes
    #: Whether only deterministic configurations were tried.
    deterministic: bool
    configuration: Mapping[str, Value]
    #: Of its calls, and of the records' own answer in the same rounds. Both include what timing adds.
    time_ms: Measured
    answer_ms: Measured
    #: sha256 of what is compiled and launched: another one makes the answer stale.
    identity: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    #: Its ``evaluations`` are the configurations that were timed.
    origin: TuningOrigin

    @property
    def key(self) -> tuple[object, ...]:
        """Return what no two answers of a file share."""
        return frozenset(self.problem.items()), self.deterministic


class KeptAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """The answers for one kernel on one device, oldest first."""

    format: str = FORMAT
    schema_version: int = SCHEMA_VERSION
    kernel: str
    device: RecordedDevice
    answers: tuple[KeptAnswer, ...]


class KeptLayer:
    """The answers of first calls for one kernel, by device."""

    def __init__(self, kernel: str, owner: Project) -> None:
        found = [_readable(path, kernel) for path in kept_files(kernel, owner)]
        found += [
            file
            for path, file in _unwritten.items()
            if path.startswith(user_folder(owner) + os.sep) and file.kernel == kernel
        ]
        #: Source and answer, by folder, name or uuid of the device and the key of the answer.
        self._answers: dict[tuple[str, object], tuple[str, KeptAnswer]] = {}
        for file in filter(None, found):
            source = f"user:{file.device.folder}/{kernel}"
            for name in filter(None, (file.device.folder, file.device.name, file.device.uuid)):
                for answer in file.answers:
                    self._answers[name, answer.key] = source, answer

    def find(
        self, device: Any, problem: Mapping[str, int | str], deterministic: bool
    ) -> tuple[str, KeptAnswer | None]:
        """Return source and answer for a problem with all its fields, on a device or the name of one."""
        name = device if isinstance(device, str) else getattr(device, "folder", "")
        return self._answers.get((name, (frozenset(problem.items()), deterministic)), ("", None))


#: Of this process alone, since their files cannot be written.
_unwritten: dict[str, KeptAnswers] = {}


def kept_stamp(kernel: str, owner: Project) -> tuple[object, ...]:
    """Return a value that changes with the files of a project's kernel."""
    return tuple((path, stamp_of(path)) for path in kept_files(kernel, owner))


def kept_files(kernel: str, owner: Project) -> Iterator[str]:
    """Yield the files of a project's kernel."""
    user = user_folder(owner)
    for folder in device_folders("user", user):
        path = os.path.join(user, folder, kernel + ENDING)
        if os.path.isfile(path):
            yield path


def keep(answer: KeptAnswer, kernel: str, device: RecordedDevice, owner: Project) -> str:
    """Add an answer to its file, in place of an older one; return why only this process has it, or "".

    A file that cannot be read is replaced.
    """
    from pathlib import Path

    from autotune.tuned.writing import locked_folder

    path = os.path.join(user_folder(owner), device.folder, kernel + ENDING)
    try:
        with locked_folder(Path(path)):
            before = _readable(path, kernel) if os.path.isfile(path) else None
            added = _added(before, answer, kernel, device)
            write_atomically(Path(path), _encoded(added))
    except RecordError as error:
        _unwritten[path] = _added(_unwritten.get(path), answer, kernel, device)
        return (
            f"{path}: {error.__cause__.strerror}"
            if isinstance(error.__cause__, OSError)
            else str(error)
        )
    return ""


def _added(
    before: KeptAnswers | None, answer: KeptAnswer, kernel: str, device: RecordedDevice
) -> KeptAnswers:
    others = [each for each in (before.answers if before else ()) if each.key != answer.key]
    return KeptAnswers(kernel=kernel, device=device, answers=(*others[1 - MAX_ANSWERS :], answer))


def _encoded(file: KeptAnswers) -> bytes:
    """Return JSON with a line for each answer."""
    head = msgspec.json.encode(msgspec.structs.replace(file, answers=()), enc_hook=dict)
    lines: Iterable[bytes] = (msgspec.json.encode(each, enc_hook=dict) for each in file.answers)
    return head.removesuffix(b"]}") + b"\n" + b",\n".join(lines) + b"\n]}\n"


_DECODER = msgspec.json.Decoder(KeptAnswers)


def _readable(path: str, kernel: str) -> KeptAnswers | None:
    """Read a file; None, with a warning, where it is damaged or of another version."""
    try:
        with open(path, "rb") as stream:
            data = stream.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES >> 20} MiB")
        file = _DECODER.decode(data)
        if (file.format, file.schema_version) != (FORMAT, SCHEMA_VERSION):
            raise ValueError(f"{file.format:.40} of schema {file.schema_version}")
        if (file.kernel, file.device.folder) != (kernel, os.path.basename(os.path.dirname(path))):
            raise ValueError(f"of {file.kernel:.40} on {file.device.name:.40}")
        for answer in file.answers:
            moment(answer.origin.tuned_on)
    except OSError as error:
        reason = str(error.strerror)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        reason = f"{error!s:.200}"
    else:
        return file
    warn(f"{path}: left out, first calls are tuned again: not a file of first calls: {reason}")
    return None
