"""The folders of autotune, and atomic writing. Lookup imports this module, so it imports only `os` at the top."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_PACKAGE = os.path.dirname(os.path.abspath(__file__))


def data_path(*parts: str) -> str:
    """Return a path below ``$XDG_DATA_HOME/autotune``, the folder of results; create no folder."""
    base = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return os.path.join(base, "autotune", *parts)


def bundled_path(kind: str, package: str = _PACKAGE) -> str:
    """Return the folder of bundled files: ``kernels``, ``spaces``, ``reports`` or ``cpp``.

    In a checkout it is next to the package, in an installation inside the package.
    """
    parent = os.path.dirname(package)
    is_checkout = os.path.exists(os.path.join(parent, "pyproject.toml"))
    return os.path.join(parent if is_checkout else os.path.join(package, "_bundled"), kind)


def cache_path(*parts: str) -> str:
    """Return a path below ``$AUTOTUNE_CACHE_DIR``, default ``$XDG_CACHE_HOME/autotune``; create no folder."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    base = os.environ.get("AUTOTUNE_CACHE_DIR") or os.path.join(caches, "autotune")
    return os.path.join(base, *parts)


def cache_folder(kind: str) -> Path:
    """Return a folder of the cache; create it if necessary.

    Only this user can write there: autotune runs the files in it.
    """
    _made(cache_path(), mode=0o700)
    return _made(cache_path(kind), mode=0o700)


def data_folder(*parts: str) -> Path:
    """Return a `data_path`; create the folder if necessary."""
    return _made(data_path(*parts))


def _made(*parts: str, mode: int = 0o777) -> Path:
    from pathlib import Path

    folder = Path(*parts)
    if not os.path.isdir(folder):
        folder.mkdir(mode, parents=True, exist_ok=True)
    return folder


def content_fingerprint(data: bytes) -> str:
    """Return the sha256 of the content of a text file; it is the same for all line ends."""
    from hashlib import sha256

    return sha256(data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")).hexdigest()


def write_atomically(file: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file so that readers see either the old content or the whole new content."""
    import tempfile

    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(name, mode)
        os.replace(name, file)
    except BaseException:
        if os.path.exists(name):
            os.unlink(name)
        raise
