"""Every error that autotune raises on purpose, and the exit code each one ends a command with.

    AutotuneError                 1  something failed; the message says what, where and what to do
    ├── UsageError                2  a name or value that was asked for does not exist or does not fit
    │   └── SpecError             2  a space file is wrong
    ├── NothingValidError         3  no configuration is valid, or none is correct
    ├── DeviceError               4  no usable device
    ├── MissingDependencyError    1  an optional package is not installed; the message has the pip line.
    │                                It is an ImportError, too
    ├── StoreError                1  the results store cannot be read or written
    ├── RecordError               1  a tuned record or recorded space is damaged, foreign or newer
    ├── RegressionError           5  a tuned entry is slower or wrong now
    ├── FleetError                6  the scheduler of a fleet cannot be reached, or was lost; results are kept
    └── Interrupted             130  Ctrl-C; results are kept

Only ``cli`` turns them into text and an exit code. The extras of the project are here too, with the pip
command that installs them: errors name it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

DISTRIBUTION = "kernel-autotune"
#: Extras of pyproject.toml by the packages they install, as code imports them.
EXTRAS = {
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
    "triton": "triton",
}


class AutotuneError(Exception):
    """Root of the tree. ``str(error)`` is one complete message for a person."""

    exit_code = 1


class UsageError(AutotuneError):
    """A name or value that was asked for does not exist or does not fit."""

    exit_code = 2


class SpecError(UsageError):
    """A space file is wrong: the message names the file, the line or hook, and the remedy."""


class NothingValidError(AutotuneError):
    """No configuration is valid, or none is correct."""

    exit_code = 3


class DeviceError(AutotuneError):
    """No usable device: absent, not permitted, or gone."""

    exit_code = 4


class MissingDependencyError(AutotuneError, ImportError):
    """An optional package is missing: its import name, our extra that installs it, and what for."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        #: The message without the command that installs the package.
        self.lack = f"{purpose} needs the package {package!r}, which is not installed"
        self.extra = extra
        super().__init__(f"{self.lack}; run: {install(extra)}")
        self._given = (package, extra, purpose)

    def __reduce__(self) -> tuple[type[MissingDependencyError], tuple[str, str, str]]:
        """Pickle the arguments of `__init__`; an exception is unpickled from its message otherwise."""
        return type(self), self._given


@contextmanager
def needing(purpose: str) -> Iterator[None]:
    """Raise `MissingDependencyError` where a package of one of our extras fails to import inside."""
    try:
        yield
    except ModuleNotFoundError as error:
        package, extra = (error.name or "").partition(".")[0], extra_of(error.name)
        if extra is None:
            raise
        raise MissingDependencyError(package, extra, purpose) from error


class StoreError(AutotuneError):
    """The results store cannot be read or written."""


class RecordError(AutotuneError):
    """A tuned record or a recorded space is damaged, foreign or of a newer schema."""


class RegressionError(AutotuneError):
    """A tuned entry is slower, or wrong, on this device now."""

    exit_code = 5


class FleetError(AutotuneError):
    """The scheduler of a fleet cannot be reached, or was lost; what was measured is in the store."""

    exit_code = 6


#: The end of an interruption's message.
KEPT = "every finished measurement is kept, and the same command goes on where this one stopped"


class Interrupted(AutotuneError):
    """The user pressed Ctrl-C; what was measured is in the store."""

    exit_code = 130


def unknown(kind: str, name: object, known: Iterable[object]) -> str:
    """Return the message for an unknown name, with the known names and the nearest."""
    from difflib import get_close_matches

    names = [str(name) for name in known]
    close = get_close_matches(str(name), names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"unknown {kind} {str(name)!r}{hint} (known: {', '.join(names) or 'none'})"


def extra_of(module: str | None) -> str | None:
    """Return the extra that installs a module; None where no extra does."""
    return EXTRAS.get((module or "").partition(".")[0])


def install(extra: str) -> str:
    """Return the command that installs an extra into the environment in use."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
