"""The contract of a source language that is no backend's own dialect of C.

A language says which text decides the code of a function, and which symbols are compiled in for a
configuration and problem. Text and symbols are all that its compiler gets, in any process. The binary
says how it is launched: see `autotune.devices.base.Convention`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from autotune.devices.base import Compiler
from autotune.values import Value

#: Compilers may use that this divides an integer, or an address.
ALIGNMENT = 16
#: Stands for an integer that is not known: neither 1 nor a multiple of anything.
UNKNOWN = 3


@dataclass(frozen=True)
class Passed:
    """A value that a launch passes, for one problem."""

    #: Of the argument or scratch buffer; empty for a number.
    name: str
    #: NumPy's name of the type, of elements for an array.
    dtype: str
    #: None for an array.
    value: int | float | bool | None = None
    #: Bytes past a boundary of 16 at which an array begins.
    offset_bytes: int = 0


class Files(Protocol):
    """Access to a person's own files."""

    def read(self, file: Path) -> str:
        """Return the text of a file; `SpecError` if it cannot be read or another user may change it."""

    def read_bytes(self, file: Path) -> bytes:
        """Return the content of a file, as `read` does."""

    def of_module(self, name: str, folder: Path) -> list[Path]:
        """Return the files that are run to import a person's own module; none for an installed one."""


class Language(Compiler, Protocol):
    """A source language; see the functions of `Compiler` too."""

    #: Backends whose devices run its binaries.
    backends: tuple[str, ...]
    #: Name of the backend that runs its sources on the host, slowly; empty if there is none.
    interpreter: str
    #: Parameters that the compiler takes, whatever the source.
    options: frozenset[str]

    def source(self, file: Path, functions: Sequence[str], files: Files) -> str:
        """Return the text that decides the code of functions; `SpecError` if one is missing."""

    def symbols(
        self,
        source: str,
        function: str,
        launches: Sequence[Sequence[Passed]],
        values: Mapping[str, Value],
    ) -> dict[str, str]:
        """Return what is compiled in, as texts by name; `SpecError` if something is missing.

        ``launches`` are all launches of the function; ``values`` the parameters and problem fields.
        Functions of one configuration are compiled with the symbols of all of them.
        """

    def block(self, values: Mapping[str, Value]) -> tuple[int, ...]:
        """Return the threads of a block in a configuration; empty if the launch function decides."""
