"""Finds and reads tuned records, at ``<directory>/<device folder>/<kernel>.json``.

Lookup imports this module, so it imports what is heavy only where that is used.
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


def layers() -> list[tuple[str, str]]:
    """Return names and folders of the layers of records, in the order in which lookup asks them.

    They are ``AUTOTUNE_TUNED``, the user's data, and what ships with the package; never the current folder.
    """
    given = os.environ.get("AUTOTUNE_TUNED")
    rest = [("user", user_folder()), ("shipped", shipped_folder())]
    return [("AUTOTUNE_TUNED", given), *rest] if given else rest


def user_folder() -> str:
    """Return the folder of this user's records."""
    return data_path("tuned")


def shipped_folder() -> str:
    """Return the folder of the records that came with the package."""
    return bundled_path("reports")


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


def stamp(kernel: str) -> tuple[object, ...]:
    """Return a value that changes when a record of the kernel appears, disappears or is replaced."""
    states = []
    for _, _, path in _files(kernel):
        try:
            state = os.stat(path)
        except OSError:
            continue
        states.append((path, state.st_mtime_ns, state.st_size, state.st_ino))
    return tuple(states)


def kernel_names(wanted: str | None = None) -> set[str]:
    """Return the kernels that have a record in some layer, of one device's folder or of any."""
    return {
        file.name[:-5]
        for layer, directory in layers()
        for folder in device_folders(layer, directory)
        if wanted in (None, folder)
        for file in _listed(os.path.join(directory, folder))
        if file.name.endswith(".json")
    }


def _listed(directory: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as found:
            return sorted(found, key=lambda file: file.name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        warn(f"{directory}: cannot read tuned records: {error.strerror}")
        return []


def _files(kernel: str) -> Iterator[tuple[str, str, str]]:
    for layer, directory in layers():
        for folder in device_folders(layer, directory):
            path = os.path.join(directory, folder, f"{kernel}.json")
            if os.path.lexists(path):  # warns of a link that leads nowhere
                yield layer, folder, path


# ---------------------------------------------------------------------- reading


def read_layers(kernel: str) -> list[RecordFile]:
    """Read all readable records of a kernel, those of the first layer first."""
    found = ((layer, folder, _readable(path)) for layer, folder, path in _files(kernel))
    return [RecordFile(layer, folder, record) for layer, folder, record in found if record]


def read_all(directory: Path, kernel: str = "*") -> list[TunedRecord]:
    """Read all readable records below a directory, of one kernel or of all, in the order of their paths."""
    found = (_readable(path) for path in sorted(directory.glob(f"*/{kernel}.json")))
    return [record for record in found if record]


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
