"""Which extra brings a package, and the command that adds an extra to this copy of autotune.

Knows where this copy came from (PEP 610): a checkout, a folder, a file, an address or an index. What
it says works from there: no distribution is named that an index need not have.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import Distribution

DISTRIBUTION = "kernel-autotune"
#: Packages by the name that code imports, and the extra of pyproject.toml that installs each.
_EXTRAS = {
    "asyncssh": "fleet",
    "bokeh": "fleet",
    "cloudpickle": "tune",
    "cmaes": "tune",
    "cuda": "nvrtc",
    "cupy": "cuda13",
    "dask": "fleet",
    "dask_jobqueue": "fleet",
    "distributed": "fleet",
    "kernel_tuner": "tune",
    "numpy": "tune",
    "optuna": "tune",
    "pandas": "tune",
    "plotly": "tune",
    "psycopg": "postgres",
    "pynvml": "tune",
    "pyopencl": "cpu",
    "scipy": "tune",
    "sqlalchemy": "tune",
    "threadpoolctl": "tune",
    "torch": "torch",
}


def extra_of(module: str | None) -> str | None:
    """The extra that installs a module; None where it is none of ours."""
    return _EXTRAS.get((module or "").partition(".")[0])


@dataclass(frozen=True)
class Origin:
    """Where a copy of autotune came from, as pip takes it: ``place[extra,extra]rest``."""

    #: A folder, a file, or the distribution's name.
    place: str
    #: What follows the extras: the address, or the version.
    rest: str = ""
    is_editable: bool = False
    #: Whether it lies on this machine's disk, where no other finds it.
    is_local: bool = False

    def requirement(self, *extras: str) -> str:
        """The one word that asks pip for this copy with extras."""
        return f"{self.place}[{','.join(extras)}]{self.rest}" if extras else self.place + self.rest


def origin() -> Origin:
    """Where the copy that runs came from."""
    from importlib.metadata import PackageNotFoundError, distribution

    package = os.path.dirname(os.path.abspath(__file__))
    checkout = os.path.dirname(package)
    if os.path.isfile(os.path.join(checkout, "pyproject.toml")):
        return Origin(checkout, is_editable=True, is_local=True)
    try:
        return origin_of(distribution(DISTRIBUTION))
    except PackageNotFoundError:  # copied to where it is
        return Origin(DISTRIBUTION)


def origin_of(installed: Distribution) -> Origin:
    """Where an installed distribution came from.

    A folder or file that is gone cannot be asked for again. Its name and version can: pip is content
    with the copy that is there, and adds what the extra needs, without asking an index for it.
    """
    import json
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    found: dict[str, Any] = json.loads(installed.read_text("direct_url.json") or "{}")
    url, inside = found.get("url", ""), found.get("subdirectory", "")
    if not url:
        return Origin(DISTRIBUTION, f"=={installed.version}")
    if url.startswith("file:"):  # also of a repository: pip takes no name before git+file
        place = os.path.join(url2pathname(urlsplit(url).path), inside).rstrip("/")
        if not os.path.exists(place):
            return Origin(DISTRIBUTION, f"=={installed.version}", is_local=True)
        is_editable = bool(found.get("dir_info", {}).get("editable"))
        return Origin(place, is_editable=is_editable, is_local=True)
    if control := found.get("vcs_info"):
        url = f"{control['vcs']}+{url}@{control['commit_id']}"
    return Origin(DISTRIBUTION, f" @ {url}#subdirectory={inside}" if inside else f" @ {url}")


def install(*extras: str) -> str:
    """The command that adds extras to this copy, for a shell in the current folder."""
    from dataclasses import replace

    here = origin()
    if os.path.isabs(here.place):
        here = replace(here, place=_seen(here.place))
    return pip("install", *(["-e"] if here.is_editable else []), here.requirement(*extras))


def pip(*words: str) -> str:
    """A command of the pip that installs for this interpreter, whether or not its folder is on the PATH."""
    from importlib.util import find_spec

    python = sys.executable or "python3"
    found = shutil.which("pip")
    if found and os.path.dirname(found) == os.path.dirname(python):
        return f"pip {shlex.join(words)}"
    seen = shlex.quote(os.path.relpath(python) if _is_below(python) else python)
    if find_spec("pip"):
        return f"{seen} -m pip {shlex.join(words)}"
    command, *others = words  # uv makes environments that have no pip
    return f"uv pip {command} --python {seen} {shlex.join(others)}"


def _seen(path: str) -> str:
    """A path as someone in the current folder writes it: with a slash, else pip takes it for a name."""
    if not _is_below(path):
        return path
    relative = os.path.relpath(path)
    return relative if relative == os.curdir else os.path.join(os.curdir, relative)


def _is_below(path: str) -> bool:
    try:
        return os.path.commonpath([path, os.getcwd()]) == os.getcwd()
    except (OSError, ValueError):  # the current folder is gone
        return False
