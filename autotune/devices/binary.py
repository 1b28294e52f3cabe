"""A compiled source: the binary, and the resources of its functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class CompiledFunction:
    """The resources of one compiled kernel function; None where the compiler does not report them."""

    name: str
    registers: int | None = None
    spill_bytes: int | None = None
    #: Static shared memory per block.
    shared_bytes: int | None = None
    #: Name in the binary if it differs: C++ functions are mangled.
    symbol: str = ""


@dataclass(frozen=True)
class Binary:
    """A compiled source that a backend can load."""

    code: bytes
    entries: tuple[CompiledFunction, ...]
    log: str
    #: sha256 of everything that decides the code; see `autotune.measure.compiler`.
    key: str
    #: Parameters of the functions, where the compiler reports them: NumPy's name of each type, or an
    #: empty text, with ``*`` at the end for a pointer.
    parameters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def entry(self, name: str) -> CompiledFunction | None:
        """Return a function by name, or None."""
        return next((entry for entry in self.entries if entry.name == name), None)

    def symbol(self, name: str) -> str:
        """Return the name of a function in the code."""
        entry = self.entry(name)
        return entry.symbol if entry and entry.symbol else name
