"""Where autotune keeps what can be made again, and how a file gets there without being half there."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def cache_folder(kind: str) -> Path:
    """A folder under ``$AUTOTUNE_CACHE_DIR``, default ``$XDG_CACHE_HOME/autotune``; made if absent."""
    base = os.environ.get("AUTOTUNE_CACHE_DIR") or (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "autotune"
    )
    folder = Path(base) / kind
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def data_folder() -> Path:
    """``$XDG_DATA_HOME/autotune``: results that are worth keeping; made if absent."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    folder = Path(base) / "autotune"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_atomically(file: Path, data: bytes) -> None:
    """Write a file so that others see the old one or the whole new one, never a part."""
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
