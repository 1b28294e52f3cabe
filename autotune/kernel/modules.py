"""Runs the code of space files: with the modules of their folder, and what it prints on standard error.

``import _tables`` in a space file finds ``_tables.py`` in its folder. The modules of a folder are in
`sys.modules` only while code of that folder runs, so two projects may both have a ``_tables``.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from autotune.kernel.trust import installed_folders, refuse_foreign, running_folders

#: Prefix of the names of the modules that space files are run as.
SPACE = "autotune_space_"
#: The signals that end a command.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_space(file: Path) -> ModuleType:
    """Run a space file, given by its resolved path, and read the modules of its folder anew.

    Whatever the file raises comes through, and `SpecError` where another user may change it.
    """
    refuse_foreign(file)
    name = f"{SPACE}{file.stem}"
    spec = spec_from_file_location(name, file, loader=_SourceLoader(name, str(file)))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    _folders.pop(file.parent, None)
    with _signals_kept(), running(file.parent):
        was_loading, _thread.is_loading = is_loading(), True
        try:
            spec.loader.exec_module(module)
        finally:
            _thread.is_loading = was_loading
    return module


def is_loading() -> bool:
    """Return whether this thread is inside `run_space`."""
    return getattr(_thread, "is_loading", False)


@contextmanager
def running(folder: Path | None) -> Iterator[None]:
    """Run code of a space file in this folder, or of a script (None).

    Standard output goes to standard error meanwhile: it belongs to the command's results. Threads may
    overlap, so `contextlib.redirect_stdout` would not do.
    """
    home = _folders.get(folder) if folder is not None else None
    if folder is not None and home is None:
        home = _folders[folder] = _Folder(folder)
    outer = getattr(_thread, "home", None)
    with _lock:
        _stdout.redirect()
        if home is not None:
            home.enter()
    _thread.home = home
    try:
        yield
    finally:
        _thread.home = outer
        with _lock:
            if home is not None:
                home.leave()
            _stdout.restore()


class _Stdout:
    """Standard output, redirected while any thread runs code of a space file."""

    def __init__(self) -> None:
        self._inside = 0
        self._saved: Any = None

    def redirect(self) -> None:
        if self._inside == 0:
            self._saved, sys.stdout = sys.stdout, sys.stderr
        self._inside += 1

    def restore(self) -> None:
        self._inside -= 1
        if self._inside == 0:
            sys.stdout = self._saved


class _Folder:
    """A folder with space files, and the modules that were imported from it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        stems = {file.stem for file in path.glob("*.py")} | {
            file.parent.name for file in path.glob("*/__init__.py")
        }
        #: Names that mean the folder's modules, unless Python or an installed package has them.
        self.names = stems - sys.stdlib_module_names
        #: Modules that were found in the folder, also inside packages.
        self.found: set[str] = set()
        self._modules: dict[str, ModuleType] = {}
        self._hidden: dict[str, ModuleType] = {}
        self._inside = 0

    def enter(self) -> None:
        """Put the folder's modules into `sys.modules`, in place of others with their names."""
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
        """Take the folder's modules out of `sys.modules`."""
        self._inside -= 1
        if self._inside == 0:
            for name in self.found:
                if name in sys.modules and self._has(sys.modules[name]):
                    self._modules[name] = sys.modules.pop(name)
            sys.modules.update(self._hidden)

    def _has(self, module: ModuleType) -> bool:
        place = _place(module.__spec__)
        return place is not None and place.is_relative_to(self.path)


class _Finder:
    """Finds modules for threads that run code of a space file; refuses those that others may change."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        home: _Folder | None = getattr(_thread, "home", None)
        top = name.partition(".")[0]
        if home is None or top in sys.stdlib_module_names:
            return None
        spec = _find(name, home.path) if path is None else PathFinder.find_spec(name, path)
        place = _place(spec)
        if spec is None or place is None or _is_in(running_folders(), place):
            return spec
        if place.is_relative_to(home.path):
            home.found.add(name)
        if spec.has_location and spec.origin:
            refuse_foreign(Path(spec.origin))
            if type(spec.loader) is SourceFileLoader:
                spec.loader = _SourceLoader(name, spec.origin)
        return spec


class _SourceLoader(SourceFileLoader):
    """Runs a person's own file; neither writes bytecode nor reads it, which another user may have written."""

    def get_code(self, fullname: str) -> Any:
        return self.source_to_code(self.get_data(self.path), self.path)


def home_of(module: str, folder: Path | None = None) -> Path | None:
    """Return the folder that holds a person's own module, by its name without dots.

    ``folder`` is searched before `sys.path`. None for Python's modules, installed and absent ones.
    """
    spec = None if module in sys.stdlib_module_names else _find(module, folder)
    place = _place(spec)
    return None if place is None or is_installed(spec) else place.parent


def is_installed(spec: ModuleSpec | None) -> bool:
    """Return whether a module is Python's or comes with an installed package, as this one does."""
    place = _place(spec)
    installed = installed_folders()
    return place is not None and (place.name == "autotune" or _is_in(installed, place))


def files_of(folder: Path, module: str) -> Iterator[Path]:
    """Yield the files that are run to import a module, whose outermost package is in a folder."""
    for part in module.split("."):
        names = (f"{part}/__init__.py", *(part + end for end in (*EXTENSION_SUFFIXES, ".py")))
        yield from [folder / name for name in names if (folder / name).is_file()][:1]
        folder = folder / part


def _find(name: str, folder: Path | None) -> ModuleSpec | None:
    """Find a module without dots: an installed one, the folder's, or any of `sys.path`, in that order."""
    spec = PathFinder.find_spec(name)
    if folder is not None and not is_installed(spec):
        sys.path_importer_cache.pop(str(folder), None)  # its files may have changed just now
        own = PathFinder.find_spec(name, [str(folder)])
        if own and own.has_location:  # a folder without __init__.py hides nothing
            spec = own
    return spec


def _place(spec: ModuleSpec | None) -> Path | None:
    """Return the file of a module, or the folder of a package."""
    places = list(spec.submodule_search_locations or []) if spec else []
    if spec and spec.has_location and spec.origin and not places:
        places = [spec.origin]
    return Path(places[0]).absolute() if places else None


def _is_in(folders: Sequence[Path], place: Path) -> bool:
    """Return whether a place, or what it links to, is in a folder: of linked packages only the link is."""
    return any(
        where.is_relative_to(folder) for folder in folders for where in (place, place.resolve())
    )


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore the handling of signals afterwards: Ctrl-C ends a command whatever its space file set."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    handlers = {number: signal.getsignal(number) for number in _ENDING}
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if threading.current_thread() is threading.main_thread():  # no other may set any
            for number, handler in handlers.items():
                if signal.getsignal(number) is not handler and handler is not None:
                    signal.signal(number, handler)


_lock = threading.RLock()
_thread = threading.local()
_stdout = _Stdout()
_folders: dict[Path, _Folder] = {}
sys.meta_path.insert(0, _Finder())
