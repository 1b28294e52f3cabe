"""Where tuned records lie, and how they are found and read; `autotune.tuned.writing` writes them.

A record lies at ``<directory>/<device folder>/<kernel>.json``. Lookup imports this, so what is heavy
is imported where it is used.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from autotune.errors import RecordError
from autotune.files import bundled_path, data_path
from autotune.tuned.record import FORMAT, SCHEMA_VERSION, TunedRecord, check

if TYPE_CHECKING:
    from pathlib import Path


class DamagedRecord(RecordError):
    """Ours, but cut off or altered: may be set aside, unlike what is foreign or newer."""


class Loaded(NamedTuple):
    """A record, and where it came from."""

    layer: str
    folder: str
    record: TunedRecord

    @property
    def source(self) -> str:
        """Layer, device and kernel, for a person."""
        return f"{self.layer}:{self.folder}/{self.record.kernel}"


# ---------------------------------------------------------------------- where


def layers() -> list[tuple[str, str]]:
    """Folders of tuned records with their names, the first to be asked first.

    ``AUTOTUNE_TUNED``, the user's data, and what ships with the package; never the current folder.
    """
    given = os.environ.get("AUTOTUNE_TUNED")
    rest = [("user", user_folder()), ("shipped", shipped_folder())]
    return [("AUTOTUNE_TUNED", given), *rest] if given else rest


def user_folder() -> str:
    """Where runs of this user put tuned records."""
    return data_path("tuned")


def shipped_folder() -> str:
    """Records that came with the package."""
    return bundled_path("reports")


def device_folders(layer: str, directory: str) -> list[str]:
    """The folders of a layer, one per device.

    Only what was measured on GPUs ships: a CPU's records that a run left in the checkout's
    reports are in the user's layer too.
    """
    try:
        with os.scandir(directory) as found:
            names = sorted(file.name for file in found if file.is_dir())
        return [name for name in names if layer != "shipped" or not name.startswith("opencl_")]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        warn(f"{directory}: cannot read tuned records: {error.strerror}")
        return []


def path_of(directory: Path, record: TunedRecord) -> Path:
    """Where a record lies under a directory of tuned records."""
    return directory / record.device.folder / f"{record.kernel}.json"


def stamp(kernel: str) -> tuple[object, ...]:
    """Changes whenever a record of the kernel appears, disappears or is replaced."""
    states = []
    for _, _, path in _files(kernel):
        try:
            state = os.stat(path)
        except OSError:
            continue
        states.append((path, state.st_mtime_ns, state.st_size, state.st_ino))
    return tuple(states)


def kernel_names(wanted: str | None = None) -> set[str]:
    """The kernels that have a record in some layer, of one device's folder or of any."""
    return {
        file[:-5]
        for layer, directory in layers()
        for folder in device_folders(layer, directory)
        if wanted in (None, folder)
        for file in os.listdir(os.path.join(directory, folder))
        if file.endswith(".json")
    }


def _files(kernel: str) -> Iterator[tuple[str, str, str]]:
    """Layer, device folder and path of every record of a kernel."""
    for layer, directory in layers():
        for folder in device_folders(layer, directory):
            path = os.path.join(directory, folder, f"{kernel}.json")
            if os.path.exists(path):
                yield layer, folder, path


# ---------------------------------------------------------------------- reading


def read_layers(kernel: str) -> list[Loaded]:
    """All readable records of a kernel, those of the first layer first."""
    found = ((layer, folder, _readable(path)) for layer, folder, path in _files(kernel))
    return [Loaded(layer, folder, record) for layer, folder, record in found if record]


def read_all(directory: Path, kernel: str = "*") -> list[TunedRecord]:
    """All readable records below a directory, of one kernel or of all, in the order of their paths."""
    found = (_readable(path) for path in sorted(directory.glob(f"*/{kernel}.json")))
    return [record for record in found if record]


def _readable(path: Path | str) -> TunedRecord | None:
    """A record where its kernel's is expected; None, with a warning, where it cannot be used."""
    try:
        record = read(path)
        if os.path.basename(path) != f"{record.kernel}.json":
            raise RecordError(f"it is of another kernel, {record.kernel!r}")
    except RecordError as error:
        warn(f"{path}: tuned record left out: {error}")
        return None
    return record


def read(path: Path | str) -> TunedRecord:
    """Read one record.

    Raises
    ------
    RecordError
        If the file cannot be read, is damaged, is something else, or of a newer schema.
    """
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise RecordError(f"{path}: cannot read the tuned record: {error.strerror}") from error
    return decode(data, os.path.basename(path))


class _Head(msgspec.Struct):
    """What tells whose a file is."""

    format: Any = None
    schema_version: Any = None


_HEAD = msgspec.json.Decoder(_Head)
_RECORD = msgspec.json.Decoder(TunedRecord)


def decode(data: bytes, name: str = "record") -> TunedRecord:
    """Read a record from the bytes of its file.

    Raises
    ------
    RecordError
        If they are damaged, something else, or of a newer schema.
    """
    try:
        head = _HEAD.decode(data)
    except msgspec.ValidationError:
        head = _Head()
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise DamagedRecord(f"{name}: not a tuned record, or damaged: {error}") from error
    if head.format != FORMAT:
        raise RecordError(f"{name}: not a tuned record of autotune")
    version = head.schema_version
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise RecordError(
            f"{name}: tuned record of schema {version!r}, this autotune reads up to "
            f"{SCHEMA_VERSION}; upgrade kernel-autotune"
        )
    try:
        record = _RECORD.decode(data)
        check(record)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise DamagedRecord(f"{name}: damaged tuned record: {error}") from error
    return record


def warn(message: str) -> None:
    """Tell of what was left out; a production process goes on with what is left."""
    warnings.warn(message, RuntimeWarning, stacklevel=3)
