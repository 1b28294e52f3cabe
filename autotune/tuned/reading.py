"""Finds, reads and checks tuned records, at ``<directory>/<device folder>/<kernel>.json``.

Lookup imports this module, so heavy imports are inside the functions that use them.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from autotune.errors import RecordError, UsageError, unknown
from autotune.files import data_path
from autotune.project import (
    Project,
    bundled_project,
    current_folder,
    folder_name,
    id_of,
    project_of,
    space_places,
)
from autotune.tuned.record import FORMAT, SCHEMA_VERSION, TunedRecord
from autotune.tuned.validity import check

if TYPE_CHECKING:
    from os import PathLike
    from pathlib import Path


#: Maximum number of bytes of a record: a hundred times the largest shipped record. Reading takes half a second.
MAX_BYTES = 32 << 20


class DamagedRecord(RecordError):
    """A truncated or altered record, or a path that is not a file; `update` renames it."""


class RecordFile(NamedTuple):
    """A record, with the layer and the device folder of its file."""

    layer: str
    folder: str
    record: TunedRecord

    @property
    def source(self) -> str:
        """Return layer, device and kernel, for messages."""
        return f"{self.layer}:{self.folder}/{self.record.kernel}"


# ---------------------------------------------------------------------- folders


def layers(owner: Project) -> list[tuple[str, str]]:
    """Return names and folders of the layers of a project's records, highest priority first.

    They are ``AUTOTUNE_TUNED``, the user's data of the project, and the records next to its kernels.
    """
    given = os.environ.get("AUTOTUNE_TUNED")
    kept = "shipped" if owner == bundled_project() else "project"
    found = [("AUTOTUNE_TUNED", given or ""), ("user", user_folder(owner)), (kept, owner.reports)]
    return [(layer, folder) for layer, folder in found if folder]


def user_folder(owner: Project) -> str:
    """Return the folder of this user's records of a project."""
    return data_path("tuned", owner.folder)


def user_folders() -> list[str]:
    """Return the folders of this user's records of the current project and of the bundled kernels."""
    names = dict.fromkeys([*members(current_project()), bundled_project().folder])
    return [data_path("tuned", name) for name in names]


def tuned_folders(kernel: str | None = None) -> list[str]:
    """Return the names of the folders of all projects with records of this user, or with records of a kernel."""
    return [
        folder.name
        for folder in _listed(data_path("tuned"))
        if folder.is_dir()
        and (
            kernel is None
            or any(
                os.path.lexists(os.path.join(device.path, f"{kernel}.json"))
                for device in _listed(folder.path)
            )
        )
    ]


def members(owner: Project, kernel: str | None = None) -> list[str]:
    """Return the names of the `tuned_folders` of a project, including its subfolders'."""
    whole = folder_name(owner.name)
    known = tuned_folders(kernel)
    return [name for name in known if name == whole or name.startswith(f"{whole}:")]


def owner_of(
    kernel: str, asked: str | PathLike[str] | Project | None = None, spaces: Path | None = None
) -> Project:
    """Return the project whose records answer for the name of a kernel.

    ``asked`` is the id or a folder of a project. Default: the project of the nearest space file of the name,
    else of the current folder. This function does not run space files. It leaves out the records in the
    current folder: anyone who can write there could choose the launched configuration.
    """
    if isinstance(asked, Project):
        return asked
    if asked is None:
        for place in space_places(spaces):
            file = os.path.join(place, f"{kernel}.py")
            if os.path.isfile(file):
                found = project_of(os.path.dirname(os.path.realpath(file)))
                return found if found == bundled_project() else found._replace(reports="")
        here = current_project()
    else:
        here = Project.of_id(asked) if isinstance(asked, str) else project_of(asked)
    known = members(here, kernel)
    if here.folder in known or not known:
        return bundled_project() if here.id == bundled_project().id else here
    if len(known) > 1:
        raise UsageError(
            f"{kernel} is tuned in several folders of project {here.name}: "
            f"{', '.join(map(id_of, known))}; select one: set AUTOTUNE_PROJECT, or pass lookup(project=)"
        )
    return Project.of_id(id_of(known[0]))


def current_project() -> Project:
    """Return the project of the current folder, without the records in that folder."""
    return project_of(current_folder())._replace(reports="")


def no_record(kernel: str, owner: Project) -> str:
    """Return the message that a project has no record of a kernel; it names the projects with one."""
    others = [id_of(name) for name in tuned_folders(kernel) if name != owner.folder]
    if not others and any(
        os.path.isfile(os.path.join(place, f"{kernel}.py")) for place in space_places()
    ):
        return f"no tuned record of {kernel} yet; make one with: autotune run {kernel}"
    if not others:
        names = kernel_names(owner, bundled_project()) - {kernel}
        known = unknown("kernel", kernel, sorted(names))
        return f"no tuned record: {known}; to tune a kernel, run: autotune run KERNEL"
    return (
        f"no tuned record of {kernel} in project {owner.id}; it is tuned in: {', '.join(others)}; "
        f"set AUTOTUNE_PROJECT to that project, or tune it here: autotune run {kernel}"
    )


def device_folders(layer: str, directory: str) -> list[str]:
    """Return the device folders of a layer.

    Records of CPUs do not ship: those in a checkout are also in the user's layer.
    """
    return [
        file.name
        for file in _listed(directory)
        if os.path.isdir(file.path) and (layer != "shipped" or not file.name.startswith("opencl_"))
    ]


def path_of(directory: Path, record: TunedRecord) -> Path:
    """Return the file of a record under a directory of tuned records."""
    return directory / record.device.folder / f"{record.kernel}.json"


def stamp(kernel: str, owner: Project) -> tuple[object, ...]:
    """Return a value that changes if a record of a project's kernel is added, removed or replaced."""
    states = ((path, stamp_of(path)) for _, _, path in _files(kernel, owner))
    return tuple((path, *state) for path, state in states if state)


def stamp_of(path: str | PathLike[str]) -> tuple[int, ...]:
    """Return a value that changes if a file is replaced; empty without a file."""
    try:
        state = os.stat(path)
    except OSError:
        return ()
    return state.st_mtime_ns, state.st_size, state.st_ino


def kernel_names(*owners: Project) -> set[str]:
    """Return the names of the kernels of projects with a record in any layer."""
    return {
        file.name[:-5]
        for owner in owners
        for layer, directory in layers(owner)
        for folder in device_folders(layer, directory)
        for file in _listed(os.path.join(directory, folder))
        if _is_record(file.name)
    }


def _is_record(file: str) -> bool:
    """Return whether a file name is of a record; a kernel's other files, ``x.explain.json``, have two dots."""
    return file.endswith(".json") and "." not in file[:-5]


def _listed(directory: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as found:
            return sorted(found, key=lambda file: file.name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        warn(f"{directory}: cannot list tuned records: {error.strerror}")
        return []


def _files(kernel: str, owner: Project) -> Iterator[tuple[str, str, str]]:
    for layer, directory in layers(owner):
        for folder in device_folders(layer, directory):
            path = os.path.join(directory, folder, f"{kernel}.json")
            if os.path.lexists(path):  # also a dangling link, so that reading warns of it
                yield layer, folder, path


# ---------------------------------------------------------------------- reading


def read_layers(kernel: str, owner: Project) -> list[RecordFile]:
    """Read the readable records of a project's kernel that runs wrote; the first layer comes first."""
    files = list(_files(kernel, owner))
    if not any(layer == "user" for layer, _, _ in files):
        warn_of_unowned(kernel)
    found = ((layer, folder, _readable(path)) for layer, folder, path in files)
    return [
        RecordFile(layer, folder, record)
        for layer, folder, record in found
        if record and record.is_tuned
    ]


def warn_of_unowned(kernel: str) -> None:
    """Warn of the user's records of a kernel in a folder without a project."""
    for folder in tuned_folders():
        path = data_path("tuned", folder, f"{kernel}.json")
        if os.path.lexists(path):
            warn(
                f"tuned record left out: {path}: its project is unknown; if it is of the {kernel} of this "
                f"project, import it: autotune import {path}"
            )


def read_all(directory: Path, kernel: str = "*") -> list[TunedRecord]:
    """Read the readable records below a directory that runs wrote, of one kernel or of all, sorted by path."""
    files = sorted(directory.glob(f"*/{kernel}.json"))
    found = (_readable(path) for path in files if _is_record(path.name))
    return [record for record in found if record and record.is_tuned]


def _readable(path: Path | str) -> TunedRecord | None:
    try:
        return read_in_place(path)
    except RecordError as error:
        kernel = os.path.basename(path).removesuffix(".json")
        warn(
            f"tuned record left out: {error}; repair or remove it, or tune again: autotune run {kernel}"
        )
        return None


def read_in_place(path: Path | str) -> TunedRecord:
    """Read one record; raise `RecordError` if its kernel or device is not that of its path."""
    record = read(path)
    folder, file = os.path.split(path)
    named = os.path.basename(folder), file.removesuffix(".json")
    for noun, found, here in zip(
        ("device", "kernel"), (record.device.folder, record.kernel), named, strict=True
    ):
        if found != here:
            raise RecordError(
                f"{path}: the record is of another {noun}, {found:.80}, not of {here}"
            )
    return record


def read(path: Path | str) -> TunedRecord:
    """Read one record, in a time proportional to its length."""
    # Checked before opening, because opening a device file may have effects.
    if os.path.exists(path) and not os.path.isfile(path):
        raise DamagedRecord(f"{path}: not a regular file, so not a tuned record")
    try:
        with open(path, "rb") as file:
            return decode(file.read(MAX_BYTES + 1), str(path))
    except OSError as error:
        raise RecordError(f"{path}: cannot read the tuned record: {error.strerror}") from error


class _Head(msgspec.Struct):
    format: Any = None
    schema_version: Any = None


_HEAD = msgspec.json.Decoder(_Head)
_RECORD = msgspec.json.Decoder(TunedRecord)


def decode(data: bytes, name: str = "record") -> TunedRecord:
    """Decode and check a record from the bytes of its file."""
    if len(data) > MAX_BYTES:
        raise DamagedRecord(f"{name}: more than {MAX_BYTES >> 20} MiB, so not a tuned record")
    try:
        record = _RECORD.decode(data)
        check(record)
        return record
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise _foreign(data, name) or DamagedRecord(
            f"{name}: not a tuned record, or damaged: {error!s:.300}"
        ) from error


def _foreign(data: bytes, name: str) -> RecordError | None:
    """Return the error of a file that is no tuned record or has another schema; else None."""
    try:
        head = _HEAD.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    version = head.schema_version
    if head.format != FORMAT:
        return RecordError(f"{name}: not a tuned record of autotune")
    if type(version) is int and version < SCHEMA_VERSION:
        return DamagedRecord(
            f"{name}: tuned record of schema {version}, older than {SCHEMA_VERSION}, the schema of this "
            "autotune; delete the file, and tune again: autotune run KERNEL"
        )
    if version == SCHEMA_VERSION:
        return None
    return RecordError(
        f"{name}: tuned record of schema {version!s:.40}, newer than {SCHEMA_VERSION}, the schema of this "
        "autotune; upgrade autotune"
    )


def warn(message: str) -> None:
    """Warn of a record that is left out, or of a default in its place."""
    warnings.warn(message, RuntimeWarning, stacklevel=3)
