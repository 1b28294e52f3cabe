"""The cache of data sets and compiled binaries on disk; the least recently used entries are removed first.

A process holds a shared lock on each data set that it uses, and no other process removes it meanwhile.
The lock ends with the process. A removed entry is made again by its next use.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import threading
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
#: Maximum number of bytes of data sets in use.
_MAX_BYTES = 48 << 30
#: Largest share of the disk's free space for data sets in use.
_MAX_SHARE = 0.5
#: Prefix of folders in which a process makes or removes a data set.
_SCRATCH = ".making."
#: Age of such a folder in seconds at which its process was killed.
_KILLED_S = 86400.0
#: Largest number of data sets that a process locks; each takes a file descriptor.
_MAX_LOCKS = 128
#: Seconds for which a cache that was less than half full is not looked through again: that takes 36 ms for 1000
#: data sets.
_LOOKED_S = 60.0
#: Descriptors of the data sets that this process uses, the least recently used first; each has a shared lock.
_used: dict[Path, int] = {}
_changing_used = threading.RLock()


@dataclass
class _Look:
    """The size of the entries of a cache folder."""

    size_bytes: int
    #: Time of the look (`time.monotonic`).
    looked_s: float


#: What this process found when it last looked, by folder and by the limit at that time.
_looks: dict[tuple[Path, int], _Look] = {}


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


def keep_room(kind: str) -> None:
    """Make room, unless this process lately found the cache, with what it added since, less than half full."""
    folder, limit = cache_folder(kind), limit_bytes(kind)
    known = _looks.get((folder, limit))
    if known is not None and time.monotonic() < known.looked_s + _LOOKED_S:
        size = known.size_bytes
        if size <= min(limit, _most_bytes(folder, size)) / 2:
            return
    make_room(kind)


def _most_bytes(folder: Path, size_bytes: int) -> float:
    """Return the most bytes that a cache folder of this size may take of its disk."""
    return min(_MAX_BYTES, _MAX_SHARE * (shutil.disk_usage(folder).free + size_bytes))


def make_room(kind: str) -> None:
    """Remove the least recently used entries beyond the limit, and the folders of killed processes.

    Data sets that this process uses are kept beyond the limit, up to a share of the free disk.
    """
    folder, now_s = cache_folder(kind), time.time()
    for scratch_folder in folder.glob(f"{_SCRATCH}*"):
        with suppress(OSError):  # gone
            if now_s - scratch_folder.stat().st_mtime > _KILLED_S:
                shutil.rmtree(scratch_folder, ignore_errors=True)
    found = entries(kind)
    most = _most_bytes(folder, sum(entry.size_bytes for entry in found))
    wanted = limit_bytes(kind)
    limit, kept = min(wanted, most), 0
    for entry in found:
        has_room = kept + entry.size_bytes <= (most if entry.path in _used else limit)
        if has_room or not remove(entry.path):
            kept += entry.size_bytes
    _looks[folder, wanted] = _Look(kept, time.monotonic())


def clear(kind: str) -> list[CacheEntry]:
    """Remove all entries of a kind that no other process uses, and return them."""
    return [entry for entry in entries(kind) if remove(entry.path)]


def remove(path: Path) -> bool:
    """Remove an entry unless another process uses it; return whether it is gone."""
    release(path)
    gone = path.with_name(f"{_SCRATCH}{path.name}.{os.getpid()}")
    try:
        if not path.is_dir():
            path.unlink()
            return True
        descriptor = _locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            path.rename(gone)  # a process that waits for the lock finds nothing here
        finally:
            os.close(descriptor)
    except OSError:  # in use, of another user, or gone
        return not path.exists()
    shutil.rmtree(gone, ignore_errors=True)
    return True


def _locked(folder: Path, operation: int) -> int:
    """Open and lock a folder; return the descriptor, or raise OSError if it is absent or locked."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, operation)
        except BlockingIOError:
            raise
        except OSError:  # a file system without locks
            pass
        if not os.path.samestat(os.fstat(descriptor), os.stat(folder)):
            raise FileNotFoundError(folder)  # another process removed it and made a new one
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def scratch() -> tempfile.TemporaryDirectory[str]:
    """Make a folder for a new data set; the context removes it at the end unless it was renamed."""
    folder = cache_folder(DATA)
    return tempfile.TemporaryDirectory(dir=folder, prefix=_SCRATCH, ignore_cleanup_errors=True)


def use(folder: Path) -> None:
    """Lock a data set, if it exists, until `tidy`; only this process may remove it, to make room for others."""
    with suppress(OSError):  # absent
        descriptor = _locked(folder, fcntl.LOCK_SH)
        touch(folder)
        _hold(folder, descriptor)


def publish(scratch_folder: Path, folder: Path) -> None:
    """Give a complete data set its name and use it; raise OSError if there is one with this name."""
    descriptor = _locked(scratch_folder, fcntl.LOCK_SH)
    try:
        scratch_folder.rename(folder)
    except OSError:
        os.close(descriptor)
        raise
    _hold(folder, descriptor)
    count_bytes(DATA, sum(file.stat().st_size for file in folder.iterdir()))


def count_bytes(kind: str, nbytes: int) -> None:
    """Count bytes that this process added to an entry."""
    for (folder, _), known in _looks.items():
        known.size_bytes += nbytes if folder == cache_folder(kind) else 0


def _hold(folder: Path, descriptor: int) -> None:
    with _changing_used:
        release(folder)
        _used[folder] = descriptor
        while len(_used) > _MAX_LOCKS:
            release(next(iter(_used)))


def release(folder: Path) -> None:
    """End the use of a data set by this process."""
    with _changing_used:
        descriptor = _used.pop(folder, None)
    if descriptor is not None:
        os.close(descriptor)


def used() -> frozenset[Path]:
    """Return the data sets that this process uses."""
    return frozenset(_used)


def tidy() -> None:
    """Release the data sets of this process, and remove entries beyond the limits."""
    for folder in tuple(_used):
        release(folder)
    for kind in (DATA, BINARIES):
        with suppress(OSError):
            keep_room(kind)
