"""What is kept on disk so that it need not be made again: how much there is, and what goes first.

Knows files and folders and when they were used last, not what is in them. Anything here may be
removed at any time: whoever needs it makes it again.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from autotune.errors import UsageError
from autotune.files import cache_folder

#: What is kept: data sets (a folder each) and compiled binaries (a file each).
DATA, BINARIES = "data", "binaries"
#: What they are called. Whatever else lies there is somebody's own: the folder may have been a project's before.
_DATA_SET = re.compile("[0-9a-f]{40}")
_SHARD, _BINARY = re.compile("[0-9a-f]{2}"), re.compile(r"[0-9a-f]{64}\.msgpack")
#: Most bytes of data sets between two runs, where `SETTING` says nothing else.
SETTING, _DEFAULT = "AUTOTUNE_CACHE_SIZE", "4G"
#: Of what data sets may take, binaries may take this share beside them.
_BINARIES_SHARE = 0.25
#: What runs in progress work with may take more, but no more of the disk's free space than this share.
_MOST_BYTES, _LARGEST_SHARE = 48 << 30, 0.5
#: Folders in which data sets are made, and files in which runs say what they work with, begin with
#: these; both are locked as long as their process lives.
_SCRATCH, _IN_USE = ".making.", ".in-use."
#: What nobody has locked was left by a process that was killed, if it is so old: it may be about to be
#: locked; and so old where a file system has no locks.
_UNLOCKED_S, _ABANDONED_S = 60.0, 86400.0
#: Of many runs of a process that end together one at a time looks through the cache.
_MAKING_ROOM = Lock()


@dataclass(frozen=True)
class Entry:
    """A file or folder of the cache."""

    path: Path
    size_bytes: int
    #: Seconds since the epoch.
    last_used_s: float


def limit_bytes(kind: str) -> int:
    """Most bytes of a kind that are kept between two runs.

    Raises
    ------
    UsageError
        If ``AUTOTUNE_CACHE_SIZE`` is not a size.
    """
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
    with suppress(OSError):  # somebody else's, or gone
        os.utime(path)


def use_up(path: Path) -> None:
    """Let an entry be the first to go where room is needed: nobody needs it again soon."""
    with suppress(OSError):  # it has gone already
        os.utime(path, (0, 0))


def entries(kind: str) -> list[Entry]:
    """All that is kept of a kind, what was used last first."""
    folder, found = cache_folder(kind), []
    if kind == DATA:
        kept = _within(folder, _DATA_SET)
    else:
        kept = (file for shard in _within(folder, _SHARD) for file in _within(shard, _BINARY))
    for entry in kept:
        with suppress(OSError):  # removed meanwhile
            status = entry.stat()
            size = status.st_size
            if kind == DATA:
                with os.scandir(entry) as files:
                    size = sum(file.stat().st_size for file in files)
            found.append(Entry(Path(entry), size, status.st_mtime))
    return sorted(found, key=lambda entry: entry.last_used_s, reverse=True)


def _within(folder: os.PathLike[str], name: re.Pattern[str]) -> Iterator[os.DirEntry[str]]:
    """What lies in a folder and is called so, but for links."""
    with (
        suppress(OSError),
        os.scandir(folder) as found,
    ):  # it may be a file of somebody's, or be gone
        for entry in found:
            if name.fullmatch(entry.name) and not entry.is_symlink():
                yield entry


def make_room(kind: str) -> None:
    """Remove what was used longest ago beyond the limit, and what killed processes left.

    What a run in progress works with goes only where the disk would not hold it; see `InUse`.
    """
    folder, in_use = cache_folder(kind), _names_in_use(kind)
    for made in folder.glob(f"{_SCRATCH}*"):
        if _is_abandoned(made):
            _remove(made)
    found = entries(kind)
    everything = sum(entry.size_bytes for entry in found)
    most = min(_MOST_BYTES, _LARGEST_SHARE * (shutil.disk_usage(folder).free + everything))
    limit, kept = min(limit_bytes(kind), most), 0
    for entry in sorted(found, key=lambda entry: entry.path.name not in in_use):
        if kept + entry.size_bytes <= (most if entry.path.name in in_use else limit):
            kept += entry.size_bytes
        else:
            _remove(entry.path)


def clear(kind: str) -> list[Entry]:
    """Remove all that no run in progress works with; returns what was removed."""
    in_use = _names_in_use(kind)
    gone = [entry for entry in entries(kind) if entry.path.name not in in_use]
    for entry in gone:
        _remove(entry.path)
    make_room(kind)  # what killed processes left
    return gone


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):  # somebody else's, or gone
            path.unlink()


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder to make a data set in; gone in the end, unless it was given its name."""
    folder = Path(tempfile.mkdtemp(dir=cache_folder(DATA), prefix=_SCRATCH))
    handle = os.open(folder, os.O_RDONLY)
    try:
        _lock(handle)
        yield folder
    finally:
        os.close(handle)
        _remove(folder)


class InUse:
    """What one run works with: nobody removes it to make room until the run has ended, or died."""

    def __init__(self) -> None:
        limit_bytes(DATA)  # told now, where it is no size, and not when the run ends
        handle, name = tempfile.mkstemp(dir=cache_folder(DATA), prefix=_IN_USE)
        self._file, self._stream = Path(name), os.fdopen(handle, "w")
        _lock(handle)

    def add(self, path: Path) -> None:
        """Keep an entry from now on."""
        self._stream.write(f"{path.name}\n")
        self._stream.flush()

    def forget(self) -> None:
        """Let go of everything so far: it may be removed to make room."""
        self._stream.seek(0)
        self._stream.truncate()

    def close(self) -> None:
        """Let go of everything, and remove what is beyond the limit then."""
        self._file.unlink(missing_ok=True)
        self._stream.close()
        for kind in (DATA, BINARIES):
            with suppress(OSError), _MAKING_ROOM:
                make_room(kind)

    def __enter__(self) -> InUse:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _names_in_use(kind: str) -> set[str]:
    """What runs in progress work with; forgets those that died."""
    names: set[str] = set()
    for file in filter(Path.is_file, cache_folder(kind).glob(f"{_IN_USE}*")):
        with suppress(OSError):  # its run ends just now
            if _is_abandoned(file):
                file.unlink()
            else:
                names.update(file.read_text().split())
    return names


def _lock(handle: int) -> None:
    with suppress(OSError):  # a file system without locks
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_abandoned(path: Path) -> bool:
    """Whether the process that made and locked a file or folder has died."""
    try:
        age_s, handle = time.time() - path.stat().st_mtime, os.open(path, os.O_RDONLY)
    except OSError:  # it has gone already
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return age_s > _ABANDONED_S
    finally:
        os.close(handle)
    return age_s > _UNLOCKED_S
