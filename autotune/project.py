"""Finds the project of a tuned record. Lookup imports this module, so it has few imports."""

from __future__ import annotations

import os
import warnings
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

from autotune.errors import DISTRIBUTION
from autotune.files import bundled_path

#: Environment variable with the project of kernels outside installed packages.
PROJECT = "AUTOTUNE_PROJECT"
#: Names of the folders with installed packages.
_INSTALLED = ("site-packages", "dist-packages")
#: Longest name of a folder of records, in bytes; file systems allow 255.
_MAX_BYTES = 200
#: Folder of the study kernels, below the bundled folders.
STUDY = os.path.join("spaces", "study")


class Project(NamedTuple):
    """The owner of tuned records: a project, an installed package, or another folder."""

    #: The name of the project or package, or the path of a folder.
    name: str
    #: The folder of the kernels relative to the project, because two folders may have kernels of one name.
    place: str = ""
    #: The folder of records next to the kernels; empty if lookup must not read such records.
    reports: str = ""

    @classmethod
    def of_id(cls, text: str) -> Project:
        """Return the project with an `id`."""
        name, _, place = text.partition(":")
        return cls(name, place)

    @property
    def id(self) -> str:
        """Return name and place, as ``AUTOTUNE_PROJECT`` takes them."""
        return f"{self.name}:{self.place}" if self.place else self.name

    @property
    def folder(self) -> str:
        """Return the name of the project's folder in the user's records."""
        return folder_name(self.id)


def folder_name(project: str) -> str:
    """Return an id as the name of a folder; a long name is cut and ends with a hash."""
    name = project.replace("%", "%25").replace("/", "%2F")
    if name.startswith("."):
        name = "%2E" + name[1:]
    data = os.fsencode(name)
    if len(data) <= _MAX_BYTES:
        return name
    from hashlib import sha256

    return f"{data[:100].decode(errors='ignore')}-{sha256(data).hexdigest()[:32]}"


def id_of(folder: str) -> str:
    """Return the id for a folder of the user's records; see `folder_name`."""
    return folder.replace("%2E", ".").replace("%2F", "/").replace("%25", "%")


def bundled_project() -> Project:
    """Return the project of the bundled kernels."""
    return Project(DISTRIBUTION, "", bundled_path("reports"))


def current_folder() -> str:
    """Return the current folder; the root if the folder was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return os.sep


def space_places(spaces: str | os.PathLike[str] | None = None) -> list[str]:
    """Return the folders to search for space files, nearest first; the bundled folders come last."""
    listed = os.environ.get("AUTOTUNE_PATH", "").split(os.pathsep)
    named = [*([os.fspath(spaces)] if spaces else []), *filter(None, listed)]
    return [*named, "spaces", bundled_path("spaces"), bundled_path(STUDY)]


def project_of(folder: str | os.PathLike[str]) -> Project:
    """Return the project of the kernels in a folder, or in its subfolder ``spaces``.

    In an installed package it is the package. Otherwise its name is ``AUTOTUNE_PROJECT``, else
    ``[project].name`` of the nearest pyproject.toml up to the folder of ``.git``. Without these it is the
    folder of ``.git``, or outside a repository the folder itself.
    """
    home = os.path.realpath(folder)
    if home == os.path.realpath(bundled_path(STUDY)):
        return bundled_project()
    home = _above_spaces(home)
    reports = os.path.join(home, "reports")
    if reports == os.path.realpath(bundled_path("reports")):
        return bundled_project()
    name, root = _package(home) or _surrounding(home)
    if ":" in name:
        return Project.of_id(name)._replace(reports=reports)
    place = os.path.relpath(home, root)
    return Project(name, "" if place == os.curdir else place, reports)


#: Prefix of the names of bundled files that a kernel of another project uses.
_BUNDLED = "autotune:"


def file_name(space: str, file: str) -> str:
    """Return the name of a kernel's file in records: its path relative to the folder of the space file.

    A bundled file of another project's kernel has a name of its own. Other files outside the project have no
    name (""), because they may differ on each machine.
    """
    home, bundled = os.path.dirname(os.path.realpath(space)), bundled_path("kernels")
    package, bundle = _package(home), os.path.dirname(os.path.realpath(bundled))
    root = package[1] if package else _surrounding(_above_spaces(home))[1]
    real = os.path.realpath(file)
    if os.path.commonpath([root, real]) == root:
        return os.path.relpath(real, home)
    if os.path.commonpath([bundle, real]) == bundle:
        return _BUNDLED + os.path.relpath(real, bundle)
    return ""


def file_named(space: str, name: str) -> str:
    """Return the path of a file by its `file_name`."""
    if name.startswith(_BUNDLED):
        return os.path.join(bundled_path(""), name.removeprefix(_BUNDLED))
    return os.path.join(os.path.dirname(os.path.realpath(space)), name)


def _above_spaces(home: str) -> str:
    """Return the folder above a folder ``spaces``; another folder unchanged."""
    return os.path.dirname(home) if os.path.basename(home) == "spaces" else home


def _package(home: str) -> tuple[str, str] | None:
    """Return name and folder of the installed package that has a folder; None without one."""
    parts = home.split(os.sep)
    ends = [i + 2 for i, part in enumerate(parts[:-1]) if part in _INSTALLED]
    return (parts[ends[-1] - 1], os.sep.join(parts[: ends[-1]])) if ends else None


def _surrounding(home: str) -> tuple[str, str]:
    """Return name and root folder of the project of a folder."""
    asked = os.environ.get(PROJECT)
    folder = home
    while True:
        name = _declared_name(os.path.join(folder, "pyproject.toml"))
        if name or os.path.lexists(os.path.join(folder, ".git")):
            return asked or name or folder, folder
        above = os.path.dirname(folder)
        if above == folder:
            return asked or home, home
        folder = above


def _declared_name(file: str) -> str:
    with suppress(OSError):
        return _name_in(file, os.stat(file).st_mtime_ns) if os.path.isfile(file) else ""
    return ""


@lru_cache(maxsize=64)
def _name_in(file: str, changed_ns: int) -> str:
    """Return the name that a pyproject.toml declares, or ""; read the file once after each change."""
    import re
    import tomllib

    try:
        with open(file, "rb") as stream:
            project = tomllib.load(stream).get("project")
    except (OSError, ValueError, RecursionError) as error:
        folder = os.path.dirname(file)
        warnings.warn(
            f"{file}: cannot read it ({error!s:.200}); records belong to {folder} until it is fixed",
            RuntimeWarning,
            stacklevel=2,
        )
        return folder
    name = project.get("name") if isinstance(project, dict) else None
    return name if isinstance(name, str) and re.fullmatch(r"[\w.-]+", name) else ""
