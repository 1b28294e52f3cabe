"""The errors of autotune, with the exit code of a command that each one ends.

    AutotuneError                 1  base class; the message has the failure, the place and the remedy
    ├── UsageError                2  a name or value does not exist or does not fit
    │   └── SpecError             2  a space file is wrong
    ├── NothingValidError         3  no configuration is valid, or none is correct
    │   └── NoAnswerError         3  no recorded configuration is valid. Also a LookupError
    ├── DeviceError               4  no usable device
    ├── MissingDependencyError    1  an optional package is not installed; the message has the pip command.
    │                                Also an ImportError
    ├── OutOfMemoryError          1  the data of a problem do not fit the memory. Also a MemoryError
    ├── StoreError                1  the results store cannot be read or written
    ├── RecordError               1  a tuned record or recorded space is damaged, foreign or newer
    ├── RegressionError           5  a tuned entry is now slower, wrong or stale; so is an exported header
    ├── FleetError                6  the scheduler of a fleet cannot be reached, or was lost; results are kept
    └── Interrupted             130  Ctrl-C; results are kept

Only ``cli`` turns errors into text and an exit code. The module also has the extras of the project and the pip
command that installs an extra, because error messages name it.
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
    "cryptography": "fleet",
    "cuda": "nvrtc",
    "cupy": "cuda13",
    "dask": "fleet",
    "dask_jobqueue": "fleet",
    "distributed": "fleet",
    "kernel_tuner": "tune",
    "ml_dtypes": "tune",
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
    """The base class of the errors. ``str(error)`` is a complete message for the user."""

    exit_code = 1


class UsageError(AutotuneError):
    """A name or value of the user does not exist or does not fit."""

    exit_code = 2


class SpecError(UsageError):
    """A space file is wrong. The message names the file, the line or hook, and the remedy."""


class NothingValidError(AutotuneError):
    """No configuration is valid, or none is correct."""

    exit_code = 3


class NoAnswerError(NothingValidError, LookupError):
    """No recorded configuration is valid for a problem on a device."""


class DeviceError(AutotuneError):
    """No device is usable: it is absent, not permitted or lost."""

    exit_code = 4


class MissingDependencyError(AutotuneError, ImportError):
    """An optional package is missing; the arguments are its import name, its extra and the purpose."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        #: The message without the pip command.
        self.lack = f"{purpose} needs the package {package!r}, which is not installed"
        self.extra = extra
        super().__init__(f"{self.lack}; run: {install(extra)}")
        self._given = (package, extra, purpose)

    def __reduce__(self) -> tuple[type[MissingDependencyError], tuple[str, str, str]]:
        """Pickle the arguments of `__init__`; by default an exception is rebuilt from its message."""
        return type(self), self._given


@contextmanager
def needing(purpose: str) -> Iterator[None]:
    """Raise `MissingDependencyError` if the block fails to import a package of an extra."""
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
    """A tuned entry is slower, wrong or stale now, or an exported header is not the current one."""

    exit_code = 5


class FleetError(AutotuneError):
    """The scheduler of a fleet cannot be reached, or was lost; all measurements are in the store."""

    exit_code = 6


#: The end of the message of an interruption.
KEPT = "every finished measurement is kept; run the same command to continue"


class OutOfMemoryError(AutotuneError, MemoryError):
    """The data of a problem do not fit the memory of this machine."""


class Interrupted(AutotuneError):
    """The user pressed Ctrl-C; all measurements are in the store."""

    exit_code = 130


def unknown(kind: str, name: object, known: Iterable[object]) -> str:
    """Return the message for an unknown name; it has the known names and the most similar one."""
    from difflib import get_close_matches

    names = [str(name) for name in known]
    close = get_close_matches(str(name), names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"unknown {kind} {str(name)!r}{hint} (known: {', '.join(names) or 'none'})"


def extra_of(module: str | None) -> str | None:
    """Return the extra that installs a module; None if no extra does."""
    return EXTRAS.get((module or "").partition(".")[0])


def install(extra: str) -> str:
    """Return the pip command that installs an extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
