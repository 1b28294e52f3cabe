"""Runs the code of users: checks who may change the files, finds their modules, and redirects output.

The rule of `fault_of` holds in every process for space files, the modules that they import, kernel sources
with their includes, and the cache.

``import _tables`` in a space file finds ``_tables.py`` in its folder. The modules of a folder are in
`sys.modules` only while code of that folder runs, so two projects may both have a ``_tables``.
"""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import site
import stat
import sys
import sysconfig
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from autotune.errors import SpecError
from autotune.files import bundled_path

#: Environment variable with the trusted folders, separated as in ``PATH``. Child processes inherit it.
TRUST = "AUTOTUNE_TRUST"
#: Prefix of the module names of space files.
SPACE = "autotune_space_"


# ---------------------------------------------------------------- trusted files


@dataclass(frozen=True)
class ForeignPlace:
    """A file to run, or a folder above it, that other users may change."""

    place: Path
    #: The fault, for example ``all users may write it``.
    reason: str
    #: The command that removes write access of others; empty if another user owns the place.
    remedy: str = ""

    @property
    def project(self) -> Path:
        """The folder that the user can choose to trust."""
        folder = self.place if self.place.is_dir() else self.place.parent
        return folder.parent if folder.name in ("spaces", "kernels") else folder


def refuse_foreign(file: Path) -> None:
    """Raise `SpecError` if another user may change a file, or a folder above it."""
    fault = fault_of(file)
    if fault is not None:
        remedy = f"run: {fault.remedy}; or, " if fault.remedy else ""
        raise SpecError(
            f"{fault.place}: {fault.reason}, and {file.name} is code; {remedy}if you trust its content, "
            f"set {TRUST}={shlex.quote(str(fault.project))}"
        )


def fault_of(file: Path) -> ForeignPlace | None:
    """Return the first place that another user may change: the file or a folder above it; else None.

    The check follows the path as given and the path with links resolved. Each place must belong to root
    or this user, and other users must not have write access. A sticky folder may be writable, because
    other users cannot replace files in it. Trusted folders, and folders above them, are not checked.
    """
    # Strings are faster than `Path`, and every binary from the cache is checked here.
    paths = os.path.join(os.getcwd(), file), os.path.realpath(file)
    places = dict.fromkeys(place for path in paths for place in _down_to(path))
    listed = filter(None, os.environ.get(TRUST, "").split(os.pathsep))
    known = (*(Path(folder).resolve() for folder in listed), *_running_folders())
    trusted = [folder for folder in known if str(folder) in places]
    for place in places:
        if any(Path(place).is_relative_to(f) or f.is_relative_to(place) for f in trusted):
            continue
        status = os.lstat(place)
        if status.st_uid not in (0, os.geteuid()):
            return ForeignPlace(Path(place), f"belongs to user {status.st_uid}, not to you")
        is_sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        if not is_sticky and (who := _other_writers(status)):
            return ForeignPlace(
                Path(place), f"{who} may write it", f"chmod go-w {shlex.quote(str(place))}"
            )
    return None


def _down_to(path: str) -> list[str]:
    """Return the root, all folders of a path, and the path."""
    ends = [end for end, letter in enumerate(path) if letter == os.sep and end]
    return [os.sep, *(path[:end] for end in ends), path]


@cache
def _installed_folders() -> tuple[Path, ...]:
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    places = [*map(sysconfig.get_path, kinds), *site.getsitepackages()]
    if site.ENABLE_USER_SITE:
        places.append(site.getusersitepackages())
    return tuple(dict.fromkeys(Path(place).resolve() for place in places))


@cache
def _running_folders() -> tuple[Path, ...]:
    """Return the folders of this package and of installed packages, whose code this process runs."""
    return (Path(bundled_path("")).resolve(), *_installed_folders())


def _other_writers(status: os.stat_result) -> str:
    """Return a phrase for the other users with write access; empty if there are none."""
    if stat.S_ISLNK(status.st_mode):  # the mode of a link has no effect
        return ""
    if status.st_mode & stat.S_IWOTH:
        return "all users"
    is_shared = status.st_mode & stat.S_IWGRP and not _is_private(status)
    return f"the group {status.st_gid}" if is_shared else ""


def _is_private(status: os.stat_result) -> bool:
    """Return whether the group of a place has its owner as the only member.

    Many systems give every user such a group. It has the owner's name and no other member. If the names
    are unknown, it has the owner's number.
    """
    with suppress(KeyError):
        user, group = pwd.getpwuid(status.st_uid).pw_name, grp.getgrgid(status.st_gid)
        return group.gr_name == user and set(group.gr_mem) <= {user}
    return status.st_gid == status.st_uid


# ---------------------------------------------------------------- running code


def run_space(file: Path) -> ModuleType:
    """Run a space file, given by its resolved path, and reload the modules of its folder.

    Exceptions of the file are not caught. `SpecError` if another user may change the file.
    """
    refuse_foreign(file)
    name = f"{SPACE}{file.stem}"
    spec = spec_from_file_location(name, file, loader=_SourceLoader(name, str(file)))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    _folders.pop(file.parent, None)
    with running(file.parent):
        spec.loader.exec_module(module)
    return module


def is_running() -> bool:
    """Return whether this thread runs code of a space file."""
    return _thread.home is not None


@contextmanager
def running(folder: Path | None) -> Iterator[None]:
    """Prepare this thread to run code of a space file in ``folder``, or of a script (None).

    Meanwhile standard output goes to standard error, because standard output is for the command's results.
    `contextlib.redirect_stdout` does not support threads that overlap.
    """
    home = _folders.get(folder) if folder is not None else None
    if folder is not None and home is None:
        home = _folders[folder] = _Folder(folder)
    outer, _thread.home = _thread.home, home
    with _lock:
        _outputs.append(sys.stdout)
        if len(_outputs) == 1:
            sys.stdout = sys.stderr
        if home is not None:
            home.enter()
    try:
        yield
    finally:
        _thread.home = outer
        with _lock:
            if home is not None:
                home.leave()
            found = _outputs.pop()
            if not _outputs:
                sys.stdout = found


class _Folder:
    """A folder with space files, and the modules imported from it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        stems = {file.stem for file in path.glob("*.py")} | {
            file.parent.name for file in path.glob("*/__init__.py")
        }
        #: Names of the folder's modules and packages, without those of the standard library.
        self.names = stems - sys.stdlib_module_names
        #: Full names of modules that were imported from the folder and its packages.
        self.found: set[str] = set()
        self._modules: dict[str, ModuleType] = {}
        self._hidden: dict[str, ModuleType] = {}
        self._inside = 0

    def enter(self) -> None:
        """Put the folder's modules into `sys.modules`; hide other modules with the same names."""
        self._inside += 1
        if self._inside == 1:
            taken = [
                name
                for top in self.names
                if top in sys.modules
                and not is_installed(getattr(sys.modules[top], "__spec__", None))
                for name in list(sys.modules)
                if name == top or name.startswith(f"{top}.")
            ]
            self._hidden = {name: sys.modules.pop(name) for name in taken}
            sys.modules.update(self._modules)

    def leave(self) -> None:
        """Remove the folder's modules from `sys.modules`; restore the hidden modules."""
        self._inside -= 1
        if self._inside == 0:
            self._modules = {n: sys.modules.pop(n) for n in self.found if n in sys.modules}
            sys.modules.update(self._hidden)


class _Thread(threading.local):
    """State of a thread: the folder whose code it runs."""

    home: _Folder | None = None


class _Finder:
    """Finds modules for threads that run code of a space file; refuses files that others may change."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        home = _thread.home
        top = name.partition(".")[0]
        if home is None or top in sys.stdlib_module_names:
            return None
        spec = _find(name, home.path) if path is None else PathFinder.find_spec(name, path)
        place = _place(spec)
        if spec is None or place is None:
            return spec
        if place.is_relative_to(home.path):
            home.found.add(name)
        if _is_in(_running_folders(), place):
            return spec
        if spec.has_location and spec.origin:
            refuse_foreign(Path(spec.origin))
            if type(spec.loader) is SourceFileLoader:
                spec.loader = _SourceLoader(name, spec.origin)
        return spec


class _SourceLoader(SourceFileLoader):
    """Runs a user's file without bytecode files, because another user may have written them."""

    def get_code(self, fullname: str) -> Any:
        return self.source_to_code(self.get_data(self.path), self.path)


def home_of(module: str, folder: Path | None = None) -> Path | None:
    """Return the folder of a user's module, given by its name without dots.

    ``folder`` is searched before `sys.path`. None if the module is Python's, installed or absent.
    """
    spec = None if module in sys.stdlib_module_names else _find(module, folder)
    place = _place(spec)
    return None if place is None or is_installed(spec) else place.parent


def is_installed(spec: ModuleSpec | None) -> bool:
    """Return whether a module belongs to Python, to an installed package or to this package."""
    place = _place(spec)
    return place is not None and (
        place.name == "autotune"
        or _is_in(_installed_folders(), place)
        or _holds_distributions(place.parent)
    )


@cache
def _holds_distributions(folder: Path) -> bool:
    """Return whether an installer filled a folder of `sys.path`, for example ``pip --target``."""
    return any(folder.glob("*.dist-info"))


def files_of(folder: Path, module: str) -> Iterator[Path]:
    """Yield the files that Python runs to import a module, whose outermost package is in ``folder``."""
    for part in module.split("."):
        names = (f"{part}/__init__.py", *(part + end for end in (*EXTENSION_SUFFIXES, ".py")))
        yield from [folder / name for name in names if (folder / name).is_file()][:1]
        folder = folder / part


def _find(name: str, folder: Path | None) -> ModuleSpec | None:
    """Find a top-level module: first an installed one, then in the folder, then in `sys.path`."""
    spec = PathFinder.find_spec(name)
    if folder is not None and not is_installed(spec):
        sys.path_importer_cache.pop(str(folder), None)  # the cache may miss files written just now
        own = PathFinder.find_spec(name, [str(folder)])
        if own and own.has_location:  # a package without __init__.py does not hide other modules
            spec = own
    return spec


def _place(spec: ModuleSpec | None) -> Path | None:
    places = list(spec.submodule_search_locations or []) if spec else []
    if spec and spec.has_location and spec.origin and not places:
        places = [spec.origin]
    return Path(places[0]).absolute() if places else None


def _is_in(folders: Sequence[Path], place: Path) -> bool:
    """Return whether a place, or the target of its link, is in one of the folders.

    A linked package only has its link in the folder of installed packages.
    """
    return any(
        where.is_relative_to(folder) for folder in folders for where in (place, place.resolve())
    )


_lock = threading.RLock()
_thread = _Thread()
#: The previous standard output of each thread inside `running`.
_outputs: list[Any] = []
#: Folders with space files that this process ran.
_folders: dict[Path, _Folder] = {}
sys.meta_path.insert(0, _Finder())
