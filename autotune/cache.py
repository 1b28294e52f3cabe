"""The cache of data sets and compiled binaries on disk; the least recently used entries are removed first.

An entry may be removed at any time; its next use makes it again.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import UsageError
from autotune.files import cache_folder

#: Kinds of entries: a data set is a folder, a compiled binary is a file.
DATA, BINARIES = "data", "binaries"
#: Names of entries. Other files in the cache's folders belong to the user and stay.
_NAMES = {DATA: re.compile("[0-9a-f]{40}"), BINARIES: re.compile(r"[0-9a-f]{64}\.msgpack")}
#: Environment variable with the size of the data sets to keep between runs, in bytes.
SETTING = "AUTOTUNE_CACHE_SIZE"
#: The default of `SETTING`.
_DEFAULT = "4G"
#: Size of the binaries to keep, as a share of the size of data sets and in addition to it.
_BINARIES_SHARE = 0.25
#: A run may still use a data set whose last use is less old than this, in seconds.
_IN_USE_S = 86400.0
#: Maximum number of bytes of data sets in use.
_MAX_BYTES = 48 << 30
#: Largest share of the disk's free space for data sets in use.
_MAX_SHARE = 0.5
#: Prefix of folders in which a process makes a data set. A folder from a day ago is of a killed process.
_SCRATCH = ".making."
#: Data sets that this process uses.
_used: set[Path] = set()


@dataclass(frozen=True)
class CacheEntry:
    """A file or folder of the cache."""

    path: Path
    size_bytes: int
    #: Seconds since the epoch.
    last_used_s: float


def limit_bytes(kind: str) -> int:
    """Return the bytes of a kind to keep between runs; raise `UsageError` if the setting is not a size."""
    text = os.environ.get(SETTING) or _DEFAULT
    found = re.fullmatch(
        r"([0-9]{1,15}(?:\.[0-9]+)?) ?([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE
    )
    if found is None:
        raise UsageError(
            f"{SETTING}={text!r} is not a size in bytes; write for example 16G or 500M"
        )
    size = float(found[1]) * 1024.0 ** " KMGT".index(found[2].upper() or " ")
    return int(size * (_BINARIES_SHARE if kind == BINARIES else 1))


def touch(path: Path) -> None:
    """Set the time of an entry's last use to now."""
    with suppress(OSError):  # of another user, or removed
        os.utime(path)


def entries(kind: str) -> list[CacheEntry]:
    """Return all entries of a kind, the most recently used first."""
    found, parents = [], [cache_folder(kind)]
    if kind == BINARIES:
        parents = [
            folder for i in range(256) if not (folder := parents[0] / f"{i:02x}").is_symlink()
        ]
    for parent in parents:
        with suppress(OSError), os.scandir(parent) as inside:
            for entry in inside:
                if _NAMES[kind].fullmatch(entry.name) and not entry.is_symlink():
                    with suppress(OSError):  # removed meanwhile
                        files = os.scandir(entry) if kind == DATA else (entry,)
                        size = sum(file.stat().st_size for file in files)
                        found.append(CacheEntry(Path(entry), size, entry.stat().st_mtime))
    return sorted(found, key=lambda entry: entry.last_used_s, reverse=True)


def make_room(kind: str) -> None:
    """Remove the least recently used entries beyond the limit, and the folders of killed processes."""
    folder, now_s = cache_folder(kind), time.time()
    for scratch_folder in folder.glob(f"{_SCRATCH}*"):
        with suppress(OSError):  # gone
            if now_s - scratch_folder.stat().st_mtime > _IN_USE_S:
                _remove(scratch_folder)
    found = entries(kind)
    everything = sum(entry.size_bytes for entry in found)
    most = min(_MAX_BYTES, _MAX_SHARE * (shutil.disk_usage(folder).free + everything))
    limit, kept = min(limit_bytes(kind), most), 0
    for entry in found:
        in_use = kind == DATA and now_s - entry.last_used_s < _IN_USE_S
        if kept + entry.size_bytes <= (most if in_use else limit):
            kept += entry.size_bytes
        else:
            _remove(entry.path)


def clear(kind: str) -> list[CacheEntry]:
    """Remove all entries of a kind, and return them."""
    gone = entries(kind)
    for entry in gone:
        _remove(entry.path)
    return gone


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):  # a file; or of another user, or removed
        path.unlink()


def scratch() -> tempfile.TemporaryDirectory[str]:
    """Make a folder for a new data set; the context removes it at the end unless it was renamed."""
    folder = cache_folder(DATA)
    return tempfile.TemporaryDirectory(dir=folder, prefix=_SCRATCH, ignore_cleanup_errors=True)


def use(folder: Path) -> None:
    """Mark a data set as used by this process; it is kept beyond the limit until `tidy`."""
    _used.add(folder)


def used() -> frozenset[Path]:
    """Return the data sets that this process uses."""
    return frozenset(_used)


def tidy() -> None:
    """Release the data sets of this process, and remove entries beyond the limits."""
    while _used:
        folder = _used.pop()
        with suppress(OSError):  # gone
            used_s = folder.stat().st_mtime - _IN_USE_S
            os.utime(folder, (used_s, used_s))
    for kind in (DATA, BINARIES):
        with suppress(OSError):
            make_room(kind)
