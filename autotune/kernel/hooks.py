"""Calls the functions that a person attached to a kernel, and names kernel, function and line in errors."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from autotune.errors import SpecError
from autotune.kernel import modules
from autotune.kernel.expression import UntraceableError

#: Optional last argument of hooks that may look at the device.
DEVICE = "device"


class Hooks:
    """The functions of one kernel by name, and its name and space file for messages."""

    name: str
    #: The module that declared this kernel, by its name.
    module: str
    #: The space file that declared this kernel; None in a notebook.
    file: Path | None
    hooks: dict[str, Callable[..., Any]]

    @cached_property
    def folder(self) -> Path | None:
        """The folder of the space file, whose modules the functions import; None for a script's."""
        return self.file.parent if self.file and self.module.startswith(modules.SPACE) else None

    def hook(self, name: str) -> Callable[..., Any]:
        """Return the function attached under a name."""
        if name not in self.hooks:
            raise self.error(f"no {name} function; attach one with @{self.name}.{name}")
        return self.hooks[name]

    def call_hook(self, name: str, *args: Any, device: Any = None) -> Any:
        """Call a hook of ``(c, p)``-like arguments, with the device if it asks for one."""
        function = self.hook(name)
        extra = {DEVICE: device} if DEVICE in inspect.signature(function).parameters else {}
        return self.guarded(name, function, *args, **extra)

    def guarded(self, what: str, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Call a user's function; turn whatever it raises into a `SpecError` with its line."""
        try:
            with modules.running(self.folder):
                return function(*args, **named)
        except (SpecError, UntraceableError, MemoryError, KeyboardInterrupt):
            raise
        except BaseException as error:  # SystemExit, and what no code should raise
            where = line_of(error, self.file) or _line_of_cell(error, function)
            raise self.error(f"{what}: {type(error).__name__}: {error}{where}") from error

    def error(self, message: str) -> SpecError:
        """Return a `SpecError` that names this kernel and its space file."""
        where = f" ({self.file.name})" if getattr(self, "file", None) and self.file else ""
        return SpecError(f"{getattr(self, 'name', 'Kernel')}{where}: {message}")


def line_of(error: BaseException, file: Path | None) -> str:
    """Return the last line of the space file that an exception came through, as `` (file.py:12)``."""
    lines = _lines(error)
    found = [line for name, line in lines if file is not None and Path(name) == file]
    return f" ({file.name}:{found[-1]})" if file is not None and found else ""


def _line_of_cell(error: BaseException, function: Callable[..., Any]) -> str:
    """Return the last line of the cell, or other text, with a function, as `` (line 4)``."""
    code = getattr(function, "__code__", None)
    found = [line for name, line in _lines(error) if code and name == code.co_filename]
    return f" (line {found[-1]})" if found else ""


def _lines(error: BaseException) -> list[tuple[str, int]]:
    """Return the file and line of every frame that an exception came through."""
    steps = traceback.walk_tb(error.__traceback__)
    return [(frame.f_code.co_filename, line) for frame, line in steps]
