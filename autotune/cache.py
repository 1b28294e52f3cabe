"""Data sets and compiled binaries on disk: their sizes, and which are removed first when room is short.

Any entry may be removed at any time: the next use makes it again.
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

#: Kinds of entries: data sets (a folder each) and compiled binaries (a file each).
DATA, BINARIES = "data", "binaries"
#: Names of entries. Other files in these folders are the user's: the folder may have been a project's before.
_NAMES = {DATA: re.compile("[0-9a-f]{40}"), BINARIES: re.compile(r"[0-9a-f]{64}\.msgpack")}
#: Environment variable with the bytes of data sets that are kept between runs, and its default.
SETTING, _DEFAULT = "AUTOTUNE_CACHE_SIZE", "4G"
#: Binaries may take this share of the size of data sets, in addition.
_BINARIES_SHARE = 0.25
#: A data set that was used in the last day may be in use by a run. Such data sets may take this many
#: bytes, and this share of the disk's free space.
_IN_USE_S, _MOST_BYTES, _LARGEST_SHARE = 86400.0, 48 << 30, 0.5
#: Beginning of the names of folders in which data sets are made. One from a day ago was left by a killed process.
_SCRATCH = ".making."
#: Data sets that this process works with.
_used: set[Path] = set()


@dataclass(frozen=True)
class CacheEntry:
    """A file or folder of the cache."""

    path: Path
    size_bytes: int
    #: Seconds since the epoch.
    last_used_s: float


def limit_bytes(kind: str) -> int:
    """Return the bytes of a kind that are kept between runs; UsageError if the setting is not a size."""
    text = os.environ.get(SETTING) or _DEFAULT
    found = re.fullmatch(
        r"([0-9]{1,15}(?:\.[0-9]+)?) ?([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE
    )
    if found is None:
        raise UsageError(f"{SETTING}={text!r}: expected a size in bytes, for example 16G or 500M")
    size = float(found[1]) * 1024.0 ** " KMGT".index(found[2].upper() or " ")
    return int(size * (_BINARIES_SHARE if kind == BINARIES else 1))


def touch(path: Path) -> None:
    """Note that an entry is used now."""
    with suppress(OSError):  # another user's, or gone
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
    """Remove the least recently used entries beyond the limit, and folders of killed processes."""
    folder, now_s = cache_folder(kind), time.time()
    for scratch_folder in folder.glob(f"{_SCRATCH}*"):
        with suppress(OSError):  # gone
            if now_s - scratch_folder.stat().st_mtime > _IN_USE_S:
                _remove(scratch_folder)
    found = entries(kind)
    everything = sum(entry.size_bytes for entry in found)
    most = min(_MOST_BYTES, _LARGEST_SHARE * (shutil.disk_usage(folder).free + everything))
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
    with suppress(OSError):  # a file; or another user's, or gone
        path.unlink()


def scratch() -> tempfile.TemporaryDirectory[str]:
    """Make a folder for a new data set; it is removed at the end unless it was renamed."""
    folder = cache_folder(DATA)
    return tempfile.TemporaryDirectory(dir=folder, prefix=_SCRATCH, ignore_cleanup_errors=True)


def use(folder: Path) -> None:
    """Note that this process works with a data set, which is kept beyond the limit until `tidy`."""
    _used.add(folder)


def used() -> frozenset[Path]:
    """Return the data sets that this process works with."""
    return frozenset(_used)


def tidy() -> None:
    """Give up the data sets that this process worked with, and keep to the limits."""
    while _used:
        folder = _used.pop()
        with suppress(OSError):  # gone
            used_s = folder.stat().st_mtime - _IN_USE_S
            os.utime(folder, (used_s, used_s))
    for kind in (DATA, BINARIES):
        with suppress(OSError):
            make_room(kind)
