"""Whose code is run: what only root and I could have put where it is, and what I said I trust.

Knows files and their owners, not what is in them. Space files, the modules they import, kernel
sources and their includes all come under this rule, in every process: another user's code would do
what I may do, and another user's kernel would be mine.
"""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import site
import stat
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from autotune.errors import SpecError
from autotune.files import bundled_path

#: Folders that I trust whoever owns them, as ``PATH`` lists folders. Child processes inherit it.
TRUST = "AUTOTUNE_TRUST"
#: Links followed on the way to a file before it is given up, as Linux does (path_resolution(7)).
_MAX_LINKS = 40
_ANYBODY = "anybody"


@dataclass(frozen=True)
class Fault:
    """Why a file is not run: a place on the way to it that others may change."""

    place: Path
    #: For example ``anybody may write it``.
    what: str
    #: The folder to trust, if what is there is known.
    project: Path
    #: The command that shuts others out; empty where they own the place.
    mend: str = ""


def refuse_foreign(file: Path) -> None:
    """Let nobody else's code through.

    Raises
    ------
    SpecError
        If others own or may change the file, or a folder or link on the way to it.
    """
    fault = fault_of(file)
    if fault is not None:
        leads = "it is code" if fault.place == file else f"{file.name} is code that it leads to"
        mend = f"run: {fault.mend}; or, " if fault.mend else ""
        raise SpecError(
            f"{fault.place}: {fault.what}, and {leads}; {mend}if you know what is there, "
            f"add --trust {shlex.quote(str(fault.project))} (or set {TRUST})"
        )


def fault_of(file: Path) -> Fault | None:
    """What speaks against running a file, or all in a folder; None where nothing does.

    Looked at is every folder and link by which the system reaches it, from the root on. Each must be
    root's or mine, and writable by nobody else; a sticky folder may be, since there nobody can
    replace what is not theirs. Anything goes in a trusted folder, and above it on the way into it.
    """
    passed = dict(_way(file))
    entered = [folder for folder in trusted_folders() if folder in passed]
    for place, status in passed.items():
        if any(place.is_relative_to(folder) or folder.is_relative_to(place) for folder in entered):
            continue
        if status.st_uid not in (0, os.geteuid()):
            what = f"belongs to {_user(status.st_uid)}, not to you ({_user(os.geteuid())})"
            return Fault(place, what, _project(file, place))
        is_sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        if not is_sticky and (who := _other_writers(place, status)):
            mend = f"chmod {'o' if who == _ANYBODY else 'g'}-w {shlex.quote(str(place))}"
            return Fault(place, f"{who} may write it", _project(file, place), mend)
    return None


def is_mine(folder: Path) -> bool:
    """Whether only I decide what a folder holds, or I said that I trust it."""
    status = folder.stat()
    is_own = status.st_uid == os.geteuid() and not _other_writers(folder, status)
    return is_own or any(folder.resolve().is_relative_to(known) for known in trusted_folders())


def trusted_folders() -> list[Path]:
    """What `TRUST` lists, and what this process runs code from anyway."""
    listed = os.environ.get(TRUST, "").split(os.pathsep)
    return [*(Path(folder).resolve() for folder in listed if folder), *running_folders()]


@cache
def installed_folders() -> tuple[Path, ...]:
    """Where Python has its library and installed packages."""
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    places = [*map(sysconfig.get_path, kinds), *site.getsitepackages()]
    if site.ENABLE_USER_SITE:
        places.append(site.getusersitepackages())
    return tuple(dict.fromkeys(Path(place).resolve() for place in places))


@cache
def running_folders() -> tuple[Path, ...]:
    """What this process runs code from anyway."""
    return (Path(bundled_path("")).resolve(), *installed_folders())


def _project(file: Path, place: Path) -> Path:
    """The folder of a project, for a file of it and a place on the way there."""
    whole = file.resolve()
    if place != whole and place not in whole.parents:  # it is on the way to a link
        whole = file.absolute()
    folder = whole if whole.is_dir() else whole.parent
    return folder.parent if folder.name in ("spaces", "kernels") else folder


def _way(file: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every place that the system passes on its way to a file, links and what they lead to included."""
    here, links = Path(), 0
    parts = [*reversed(file.absolute().parts)]
    while parts:
        part = parts.pop()
        here = here.parent if part == ".." else here / part
        status = here.lstat()
        yield here, status
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > _MAX_LINKS:
                raise SpecError(f"{file}: too many links")
            parts += reversed(Path(os.readlink(here)).parts)
            here = here.parent


def _other_writers(place: Path, status: os.stat_result) -> str:
    """Who may write a place beside its owner; empty where nobody may."""
    if stat.S_ISLNK(status.st_mode):  # whose mode means nothing
        return ""
    if status.st_mode & stat.S_IWOTH:
        return _ANYBODY
    if status.st_mode & stat.S_IWGRP and not _is_private(place, status):
        return f"the group {_group(status.st_gid)}"
    return ""


def _is_private(place: Path, status: os.stat_result) -> bool:
    """Whether a place's group has its owner as the only member, as the groups that many systems give every user.

    By their convention: the group has the user's name, or number where names are not known. Beside an
    access control list the group's bits are what any entry of it may allow (acl(5)): then it is not.
    """
    with suppress(AttributeError, OSError):  # a system or file system without such lists
        if "system.posix_acl_access" in os.listxattr(place):
            return False
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


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)
