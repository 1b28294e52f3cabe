"""Finds and reads tuned records, at ``<directory>/<device folder>/<kernel>.json``.

Lookup imports this module, so it imports what is heavy only where that is used.
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
from autotune.tuned.check import check
from autotune.tuned.record import FORMAT, SCHEMA_VERSION, TunedRecord

if TYPE_CHECKING:
    from os import PathLike
    from pathlib import Path


#: Most bytes of a record: a hundred times the largest that ships, and read in half a second.
MAX_BYTES = 32 << 20


class DamagedRecord(RecordError):
    """A file that is cut off, altered or no file: `update` sets it aside."""


class RecordFile(NamedTuple):
    """A record and the place that it was read from."""

    layer: str
    folder: str
    record: TunedRecord

    @property
    def source(self) -> str:
        """Return layer, device and kernel, for a person."""
        return f"{self.layer}:{self.folder}/{self.record.kernel}"


# ---------------------------------------------------------------------- where


def layers(owner: Project) -> list[tuple[str, str]]:
    """Return names and folders of the layers of a project's records, in the order in which lookup asks them.

    They are ``AUTOTUNE_TUNED``, the user's data of the project, and the records kept with its kernels.
    """
    given = os.environ.get("AUTOTUNE_TUNED")
    kept = "shipped" if owner == bundled_project() else "project"
    found = [("AUTOTUNE_TUNED", given or ""), ("user", user_folder(owner)), (kept, owner.reports)]
    return [(layer, folder) for layer, folder in found if folder]


def user_folder(owner: Project) -> str:
    """Return the folder of this user's records of a project."""
    return data_path("tuned", owner.folder)


def user_folders(kernel: str | None, spaces: Path | None = None) -> list[str]:
    """Return the folder of this user's records of a kernel, or those of the current project and of bundled kernels."""
    if kernel is not None:
        return [user_folder(owner_of(kernel, spaces=spaces))]
    names = dict.fromkeys([*members(current_project()), bundled_project().folder])
    return [data_path("tuned", name) for name in names]


def tuned_folders(kernel: str | None = None) -> list[str]:
    """Return the names of the folders of all projects that this user has records of, or those of a kernel."""
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
    """Return the names of the `tuned_folders` of a project, for all places in it."""
    whole = folder_name(owner.name)
    known = tuned_folders(kernel)
    return [name for name in known if name == whole or name.startswith(f"{whole}:")]


def owner_of(
    kernel: str, asked: str | PathLike[str] | Project | None = None, spaces: Path | None = None
) -> Project:
    """Return the project whose records answer for the name of a kernel.

    The project ``asked`` for is an id or a folder. By default it is that of the nearest space file of the
    name, else of the current folder. Reads no space file, and returns no records of the current folder:
    anybody who can write there would choose what is launched.
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
            f"{', '.join(map(id_of, known))}; name one of them: AUTOTUNE_PROJECT, or lookup(project=)"
        )
    return Project.of_id(id_of(known[0]))


def current_project() -> Project:
    """Return the project of the current folder, without records that lie there."""
    return project_of(current_folder())._replace(reports="")


def no_record(kernel: str, owner: Project) -> str:
    """Return the message that a project has no record of a kernel, with the projects that have."""
    others = [id_of(name) for name in tuned_folders(kernel) if name != owner.folder]
    if not others and any(
        os.path.isfile(os.path.join(place, f"{kernel}.py")) for place in space_places()
    ):
        return f"no tuned record of {kernel} yet; make one with: autotune run {kernel}"
    if not others:
        names = kernel_names(owner, bundled_project()) - {kernel}
        known = unknown("kernel", kernel, sorted(names))
        return f"no tuned record: {known}; make one with: autotune run {kernel}"
    return (
        f"no tuned record of {kernel} in project {owner.id}; it is tuned in: {', '.join(others)}; "
        f"set AUTOTUNE_PROJECT to that project, or tune it here: autotune run {kernel}"
    )


def device_folders(layer: str, directory: str) -> list[str]:
    """Return the folders of a layer, one per device.

    Only records of GPUs ship: a CPU's records in the checkout are in the user's layer too.
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
    """Return a value that changes when a record of a project's kernel appears, disappears or is replaced."""
    states = ((path, stamp_of(path)) for _, _, path in _files(kernel, owner))
    return tuple((path, *state) for path, state in states if state)


def stamp_of(path: str | PathLike[str]) -> tuple[int, ...]:
    """Return a value that changes when a file is replaced; empty where there is none."""
    try:
        state = os.stat(path)
    except OSError:
        return ()
    return state.st_mtime_ns, state.st_size, state.st_ino


def kernel_names(*owners: Project) -> set[str]:
    """Return the kernels of projects that have a record in some layer."""
    return {
        file.name[:-5]
        for owner in owners
        for layer, directory in layers(owner)
        for folder in device_folders(layer, directory)
        for file in _listed(os.path.join(directory, folder))
        if _is_record(file.name)
    }


def _is_record(file: str) -> bool:
    """Return whether a name is that of a record; a kernel's other files, ``x.explain.json``, have two dots."""
    return file.endswith(".json") and "." not in file[:-5]


def _listed(directory: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as found:
            return sorted(found, key=lambda file: file.name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        warn(f"{directory}: cannot read tuned records: {error.strerror}")
        return []


def _files(kernel: str, owner: Project) -> Iterator[tuple[str, str, str]]:
    for layer, directory in layers(owner):
        for folder in device_folders(layer, directory):
            path = os.path.join(directory, folder, f"{kernel}.json")
            if os.path.lexists(path):  # warns of a link that leads nowhere
                yield layer, folder, path


# ---------------------------------------------------------------------- reading


#: Records of first calls that this process could not write, by path.
unwritten: dict[str, TunedRecord] = {}


def read_layers(kernel: str, owner: Project) -> list[RecordFile]:
    """Read the readable records of a project's kernel that runs wrote, those of the first layer first."""
    return [file for file in read_with_first_calls(kernel, owner) if file.record.is_tuned]


def read_with_first_calls(kernel: str, owner: Project) -> list[RecordFile]:
    """Read all readable records of a project's kernel, also those that hold first calls alone."""
    files = list(_files(kernel, owner))
    if not any(layer == "user" for layer, _, _ in files):
        warn_of_unowned(kernel)
    found = ((layer, folder, _readable(path)) for layer, folder, path in files)
    known = [RecordFile(layer, folder, record) for layer, folder, record in found if record]
    mine = user_folder(owner) + os.sep
    known += [
        RecordFile("user", record.device.folder, record)
        for path, record in unwritten.items()
        if path.startswith(mine) and record.kernel == kernel
    ]
    return known


def warn_of_unowned(kernel: str) -> None:
    """Warn of the user's records of a kernel from before records belonged to projects."""
    for folder in tuned_folders():
        path = data_path("tuned", folder, f"{kernel}.json")
        if os.path.lexists(path):
            warn(
                f"tuned record left out: {path}: its project is not known; if it is of the {kernel} of this "
                f"project, add it to yours: autotune import {path}"
            )


def read_all(directory: Path, kernel: str = "*") -> list[TunedRecord]:
    """Read the readable records below a directory that runs wrote, of one kernel or of all, ordered by path."""
    files = sorted(directory.glob(f"*/{kernel}.json"))
    found = (_readable(path) for path in files if _is_record(path.name))
    return [record for record in found if record and record.is_tuned]


def _readable(path: Path | str) -> TunedRecord | None:
    kernel = os.path.basename(path).removesuffix(".json")
    try:
        record = read(path)
        if record.kernel != kernel:
            raise RecordError(f"{path}: it is of another kernel, {record.kernel:.40}")
    except RecordError as error:
        warn(
            f"tuned record left out: {error}; others answer until it is mended or removed, "
            f"or tuned anew: autotune run {kernel}"
        )
        return None
    return record


def read(path: Path | str) -> TunedRecord:
    """Read one record, in a time that its length bounds."""
    # Asked before it is opened, since that alone has effects on some devices.
    if os.path.exists(path) and not os.path.isfile(path):
        raise DamagedRecord(f"{path}: not a file, so no tuned record")
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
    """Read a record from the bytes of its file."""
    if len(data) > MAX_BYTES:
        raise DamagedRecord(f"{name}: more than {MAX_BYTES >> 20} MiB, so no tuned record")
    try:
        head = _HEAD.decode(data)
        if head.format == FORMAT and head.schema_version == SCHEMA_VERSION:
            record = _RECORD.decode(data)
            check(record)
            return record
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise DamagedRecord(f"{name}: not a tuned record, or damaged: {error!s:.300}") from error
    if head.format != FORMAT:
        raise RecordError(f"{name}: not a tuned record of autotune")
    version = head.schema_version
    if isinstance(version, int) and version < SCHEMA_VERSION:
        raise DamagedRecord(
            f"{name}: tuned record of schema {version}, which this autotune does not read any more; "
            "delete the file, and tune again: autotune run KERNEL"
        )
    raise RecordError(
        f"{name}: tuned record of schema {version!s:.40}, this autotune reads up to "
        f"{SCHEMA_VERSION}; upgrade autotune"
    )


def warn(message: str) -> None:
    """Warn of a record that is left out; the others still answer."""
    warnings.warn(message, RuntimeWarning, stacklevel=3)
