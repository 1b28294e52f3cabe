"""Runs space files and the modules beside them, which each folder has under names of its own.

``import _tables`` in a space file finds ``_tables.py`` in its folder; another folder's ``_tables`` is another
module in the same process, and both are read anew with the space file. Knows nothing of kernels.
"""

from __future__ import annotations

import builtins
import hashlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, SourceFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from autotune.kernel.trust import installed_folders, refuse_foreign, running_folders

#: What the names of the modules begin with that space files are run as.
SPACE = "autotune_space_"
#: And those of the modules beside them; the folder follows.
BESIDE = "autotune_beside_"


def run(file: Path) -> ModuleType:
    """Run a space file, given by its resolved path; whatever it raises comes through.

    Raises
    ------
    SpecError
        If it, or a module beside it, is not mine.
    """
    beside = _beside(file.parent)
    for name in [name for name in sys.modules if name.startswith(beside.prefix)]:
        del sys.modules[name]
    spec = beside.spec(f"{SPACE}{file.stem}", file)
    assert spec.loader is not None
    module = module_from_spec(spec)
    with _guard():
        spec.loader.exec_module(module)
    return module


def is_running() -> bool:
    """Whether this thread is inside `run`, or an import by what was run."""
    return _guard.is_on


def home_of(module: str, beside: Path | None = None) -> Path | None:
    """The folder that a person's own module is imported from, by its name without dots.

    ``beside`` is searched before `sys.path`, but hides nothing that is Python's or installed: a kernel may
    be called ``copy``. None for these, and for what is not there.
    """
    if module in sys.stdlib_module_names or is_installed(module):
        return None
    if beside is not None and file_of(beside, module):
        return beside
    place = _place(module)
    return place.parent if place else None


def is_installed(module: str) -> bool:
    """Whether a module without dots is Python's or comes with an installed package, as this one does."""
    if module == "autotune":
        return True
    place = _place(module)
    return place is not None and _is_in(installed_folders(), place)


def _is_in(folders: Sequence[Path], place: Path) -> bool:
    """Whether a place, or what it leads to, is in one: of packages that are linked there, only the link is."""
    return any(
        where.is_relative_to(folder) for folder in folders for where in (place, place.resolve())
    )


def files_of(folder: Path, module: str) -> Iterator[Path]:
    """The files that are run to import a module, whose outermost package is in a folder."""
    for part in module.split("."):
        if file := file_of(folder, part):
            yield file
        folder = folder / part


def file_of(folder: Path, module: str) -> Path | None:
    """The file of a module or package in a folder."""
    names = (f"{module}/__init__.py", *(module + end for end in (*EXTENSION_SUFFIXES, ".py")))
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _place(module: str) -> Path | None:
    """The file, or the folder of the package, that `sys.path` has for a module without dots."""
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):  # as of ``__main__``
        return None
    if spec is None:
        return None
    places = list(spec.submodule_search_locations or [])
    if spec.has_location and spec.origin and not places:
        places = [spec.origin]
    return Path(places[0]).absolute() if places else None


class _Beside:
    """Finds the modules of one folder, for `sys.meta_path`, and imports for the code in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.prefix = f"{BESIDE}{hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]}_"

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module of a name that begins with the folder's prefix."""
        if not name.startswith(self.prefix):
            return None
        *packages, last = name.removeprefix(self.prefix).split(".")
        file = file_of(self.folder.joinpath(*packages), last)
        return self.spec(name, file) if file else None

    def spec(self, name: str, file: Path) -> ModuleSpec:
        """How a file of the folder is loaded, under any name.

        Raises
        ------
        SpecError
            If it is not mine.
        """
        refuse_foreign(file)
        loader = _Loader(name, str(file), self.import_) if file.suffix == ".py" else None
        inside = [str(file.parent)] if file.name == "__init__.py" else None
        spec = spec_from_file_location(name, file, loader=loader, submodule_search_locations=inside)
        assert spec is not None
        return spec

    def import_(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """`__import__` of the code in this folder."""
        if not level and home_of(name.partition(".")[0], self.folder) == self.folder:
            name = self.prefix + name
        return _guard.import_(name, globals, locals, fromlist, level)


class _Guard:
    """Lets no module through that is not mine where the code of a space file, or what it imports, imports.

    For `sys.meta_path`, ahead of the finders that it asks.
    """

    def __init__(self) -> None:
        self._thread = threading.local()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Guard what this thread imports."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        was_on, self._thread.is_on = self.is_on, True
        try:
            yield
        finally:
            self._thread.is_on = was_on

    @property
    def is_on(self) -> bool:
        """Whether imports of this thread are guarded."""
        return getattr(self._thread, "is_on", False)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What the other finders find.

        Raises
        ------
        SpecError
            If it is not mine.
        """
        if not self.is_on:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next(filter(None, found), None)
        if spec is None or not (spec.has_location and spec.origin):
            return spec
        file = Path(spec.origin)
        if not _is_in(running_folders(), file):
            refuse_foreign(file)
            if type(spec.loader) is SourceFileLoader:
                spec.loader = _Loader(name, spec.origin, self.import_)
        return spec

    def import_(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """`__import__`, guarded."""
        with self():
            return builtins.__import__(name, globals, locals, fromlist or (), level)


_guard = _Guard()


class _Loader(SourceFileLoader):
    """Runs a person's own file, with its own import; neither reads bytecode, which may be others', nor writes it."""

    def __init__(self, name: str, path: str, import_: Callable[..., ModuleType]) -> None:
        super().__init__(name, path)
        self._import = import_

    def get_code(self, fullname: str) -> Any:
        return self.source_to_code(self.get_data(self.path), self.path)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": self._import}
        super().exec_module(module)


@cache
def _beside(folder: Path) -> _Beside:
    beside = _Beside(folder)
    sys.meta_path.insert(0, beside)  # before what would find the inside of its packages
    return beside
