"""Decides whose files are run as code: those that only root and this user may change.

Space files, the modules that they import, kernel sources with their includes, and the cache come under
this rule, in every process.
"""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import site
import stat
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from autotune.errors import SpecError
from autotune.files import bundled_path

#: Lists trusted folders, as ``PATH`` does. Child processes inherit it.
TRUST = "AUTOTUNE_TRUST"


@dataclass(frozen=True)
class ForeignPlace:
    """A file or folder that other users may change, on the way to a file that would be run."""

    place: Path
    #: For example ``anybody may write it``.
    what: str
    #: The folder to trust, if its content is known.
    project: Path
    #: The command that shuts others out; empty where another user owns the place.
    mend: str = ""


def refuse_foreign(file: Path) -> None:
    """Raise `SpecError` where another user may change a file, or a folder above it."""
    fault = fault_of(file)
    if fault is not None:
        leads = "it is code" if fault.place == file else f"{file.name} is code that it leads to"
        mend = f"run: {fault.mend}; or, " if fault.mend else ""
        raise SpecError(
            f"{fault.place}: {fault.what}, and {leads}; {mend}if you know what is there, "
            f"set {TRUST}={shlex.quote(str(fault.project))}"
        )


def fault_of(file: Path) -> ForeignPlace | None:
    """Return the first place on the way to a file that another user may change; None where there is none.

    The places are the file and all folders above it, by the path as given and with links followed. Each
    has to belong to root or this user and be writable by nobody else. A sticky folder may be writable:
    others cannot replace files in it. Trusted folders, and those above them, are not checked.
    """
    named, real = file.absolute(), file.resolve()
    places = [place for path in (named, real) for place in (*reversed(path.parents), path)]
    trusted = [folder for folder in trusted_folders() if folder in places]
    for place in dict.fromkeys(places):
        if any(place.is_relative_to(folder) or folder.is_relative_to(place) for folder in trusted):
            continue
        status = place.lstat()
        project = _project(real if place in (real, *real.parents) else named)
        if status.st_uid not in (0, os.geteuid()):
            what = f"belongs to {_user(status.st_uid)}, not to you ({_user(os.geteuid())})"
            return ForeignPlace(place, what, project)
        is_sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        if not is_sticky and (who := _other_writers(status)):
            mend = (
                f"chmod {'g' if who.startswith('the group') else 'o'}-w {shlex.quote(str(place))}"
            )
            return ForeignPlace(place, f"{who} may write it", project, mend)
    return None


def is_mine(folder: Path) -> bool:
    """Return whether only this user may change the content of a folder, or it is trusted."""
    status = folder.stat()
    is_own = status.st_uid == os.geteuid() and not _other_writers(status)
    return is_own or any(folder.resolve().is_relative_to(known) for known in trusted_folders())


def trusted_folders() -> list[Path]:
    """Return the folders that `TRUST` lists, and those that this process runs code from anyway."""
    listed = os.environ.get(TRUST, "").split(os.pathsep)
    return [*(Path(folder).resolve() for folder in listed if folder), *running_folders()]


@cache
def installed_folders() -> tuple[Path, ...]:
    """Return the folders of Python's library and of installed packages."""
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    places = [*map(sysconfig.get_path, kinds), *site.getsitepackages()]
    if site.ENABLE_USER_SITE:
        places.append(site.getusersitepackages())
    return tuple(dict.fromkeys(Path(place).resolve() for place in places))


@cache
def running_folders() -> tuple[Path, ...]:
    """Return the folders that this process runs code from anyway."""
    return (Path(bundled_path("")).resolve(), *installed_folders())


def _project(file: Path) -> Path:
    folder = file if file.is_dir() else file.parent
    return folder.parent if folder.name in ("spaces", "kernels") else folder


def _other_writers(status: os.stat_result) -> str:
    """Return who else than the owner may write a place; empty where nobody may."""
    if stat.S_ISLNK(status.st_mode):  # the mode of a link means nothing
        return ""
    if status.st_mode & stat.S_IWOTH:
        return "anybody"
    if status.st_mode & stat.S_IWGRP and not _is_private(status):
        try:
            return f"the group {grp.getgrgid(status.st_gid).gr_name}"
        except KeyError:
            return f"the group {status.st_gid}"
    return ""


def _is_private(status: os.stat_result) -> bool:
    """Return whether a place's group is its owner's own, as many systems give every user one.

    Such a group has the owner's name and no other member, or the owner's number where names are unknown.
    """
    try:
        user, group = pwd.getpwuid(status.st_uid).pw_name, grp.getgrgid(status.st_gid)
    except KeyError:
        return status.st_gid == status.st_uid
    return group.gr_name == user and set(group.gr_mem) <= {user}


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
