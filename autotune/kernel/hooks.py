"""Calls the functions that a person attached to a kernel; knows nothing of what they mean.

Whatever they raise becomes one error with kernel, function and line; whatever they print goes to
standard error.
"""

from __future__ import annotations

import inspect
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, cast

from autotune.errors import SpecError
from autotune.kernel.expression import UntraceableError

#: The signals that end a command.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Optional last argument of hooks that may look at the device.
DEVICE = "device"


class _StdoutAside:
    """Standard output goes to standard error while any thread is inside.

    Of what people's code prints: standard output belongs to the command's results. Where two threads
    overlap, `contextlib.redirect_stdout` would restore what it found and leave it redirected.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._stdout: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._stdout, sys.stdout = sys.stdout, cast("TextIO", _Unclosed())
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                sys.stdout = self._stdout


stdout_aside = _StdoutAside()


class _Unclosed:
    """Standard error under the name of standard output: closing that must not close it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)

    def close(self) -> None:
        """Leave it open."""


@contextmanager
def signals_kept() -> Iterator[None]:
    """Signals are handled afterwards as before: Ctrl-C ends a command whatever its space file set."""
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


class Hooks:
    """The functions of one kernel by name, and its name and space file for messages."""

    name: str
    #: The space file that declared this kernel; None in a notebook.
    file: Path | None
    hooks: dict[str, Callable[..., Any]]

    def hook(self, name: str) -> Callable[..., Any]:
        """The function attached under a name.

        Raises
        ------
        SpecError
            If none is attached.
        """
        if name not in self.hooks:
            raise self.error(f"no {name} function; attach one with @{self.name}.{name}")
        return self.hooks[name]

    def call_hook(self, name: str, *args: Any, device: Any = None) -> Any:
        """Call a hook of ``(c, p)``-like arguments, with the device if it asks for one.

        Raises
        ------
        SpecError
            If the hook raises; the message names kernel, hook and line.
        """
        function = self.hook(name)
        extra = {DEVICE: device} if DEVICE in inspect.signature(function).parameters else {}
        return self.guarded(name, function, *args, **extra)

    def guarded(self, what: str, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Call a user's function; turn whatever it raises into a `SpecError` with its line.

        What it prints goes to standard error: standard output belongs to the command's results.
        """
        try:
            with stdout_aside:
                return function(*args, **named)
        except (SpecError, UntraceableError, MemoryError, KeyboardInterrupt):
            raise
        except BaseException as error:  # SystemExit, and what no code should raise
            where = line_of(error, self.file) or _line_of_cell(error, function)
            raise self.error(f"{what}: {type(error).__name__}: {error}{where}") from error

    def error(self, message: str) -> SpecError:
        """A `SpecError` that names this kernel and its space file."""
        where = f" ({self.file.name})" if getattr(self, "file", None) and self.file else ""
        return SpecError(f"{getattr(self, 'name', 'Kernel')}{where}: {message}")


def line_of(error: BaseException, file: Path | None) -> str:
    """The last line of the space file that an exception came through, as `` (file.py:12)``."""
    lines = _lines(error)
    found = [line for name, line in lines if file is not None and Path(name) == file]
    return f" ({file.name}:{found[-1]})" if file is not None and found else ""


def _line_of_cell(error: BaseException, function: Callable[..., Any]) -> str:
    """The last line of the cell, or other text, with a function, as `` (line 4)``."""
    code = getattr(function, "__code__", None)
    found = [line for name, line in _lines(error) if code and name == code.co_filename]
    return f" (line {found[-1]})" if found else ""


def _lines(error: BaseException) -> list[tuple[str, int]]:
    """The file and line of every frame that an exception came through."""
    steps = traceback.walk_tb(error.__traceback__)
    return [(frame.f_code.co_filename, line) for frame, line in steps]
