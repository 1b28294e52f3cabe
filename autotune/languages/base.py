"""The interface of a source language other than the dialect of C that a backend compiles itself.

A language returns the text that decides the code of a function. For a configuration and problem it
returns the symbols to compile in. Its compiler gets only this text and these symbols, in any process.
The binary states how to launch it: see `autotune.devices.base.Convention`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from autotune.devices.base import Compiler
from autotune.values import Value

#: Compilers may specialise for integers, and for addresses in bytes, that are multiples of this.
ALIGNMENT = 16
#: Placeholder for an unknown integer: it is not 1 and not a multiple of `ALIGNMENT`.
UNKNOWN = 3


@dataclass(frozen=True)
class PassedValue:
    """A value that a launch passes, for one problem."""

    #: Name of the argument or scratch buffer; empty for a number.
    name: str
    #: NumPy's name of the type; for an array, of its elements.
    dtype: str
    #: The number; None for an array.
    value: int | float | bool | None = None
    #: Bytes between a 16-byte boundary and the first element of an array.
    offset_bytes: int = 0


class Files(Protocol):
    """Access to the user's own files."""

    def read(self, file: Path) -> str:
        """Return the text of a file.

        Raises
        ------
        SpecError
            If the file cannot be read, or another user may change it.
        """

    def read_bytes(self, file: Path) -> bytes:
        """Return the content of a file; raise the errors of `read`."""

    def module_files(self, name: str, folder: Path) -> list[Path]:
        """Return the files that Python runs to import a user's module; empty if it is installed."""


class Language(Compiler, Protocol):
    """A source language, which is also a `Compiler`."""

    #: Backends whose devices run its binaries.
    backends: tuple[str, ...]
    #: Name of the backend that interprets its sources on the host; empty if there is no interpreter.
    interpreter: str
    #: Parameters that are options of the compiler, for every source.
    options: frozenset[str]

    def source(self, file: Path, functions: Sequence[str], files: Files) -> str:
        """Return the text that decides the code of functions; `SpecError` if a function is missing."""

    def symbols(
        self,
        source: str,
        function: str,
        launches: Sequence[Sequence[PassedValue]],
        values: Mapping[str, Value],
    ) -> dict[str, str]:
        """Return the symbols to compile in, as texts by name; `SpecError` if a symbol is missing.

        ``launches`` are all launches of the function; ``values`` are the parameters and problem fields.
        The functions of a configuration are compiled together, with the symbols of all of them.
        """

    def block(self, values: Mapping[str, Value]) -> tuple[int, ...]:
        """Return the block size of a configuration; empty if the launch function decides it."""
