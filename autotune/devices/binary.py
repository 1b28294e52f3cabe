"""What a backend compiles a source to: a binary, and the resources that its functions take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class CompiledFunction:
    """What one compiled kernel function takes, as the compiler reports them.

    ``None`` means that the toolchain does not say.
    """

    name: str
    registers: int | None = None
    spill_bytes: int | None = None
    #: Static shared memory per block.
    shared_bytes: int | None = None
    #: Name in the binary, where that is another: C++ functions are mangled.
    symbol: str = ""


@dataclass(frozen=True)
class Binary:
    """A compiled source: what a backend loads."""

    code: bytes
    entries: tuple[CompiledFunction, ...]
    log: str
    #: sha256 of all that decides the code; see `autotune.measure.compiler`.
    key: str
    #: What the functions take, where the compiler says it: for each parameter NumPy's name of its
    #: type or nothing, with a ``*`` behind it for a pointer.
    parameters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def entry(self, name: str) -> CompiledFunction | None:
        """CompiledFunction of one function, or None where the binary does not have it."""
        return next((entry for entry in self.entries if entry.name == name), None)

    def symbol(self, name: str) -> str:
        """What a function is called in the code."""
        entry = self.entry(name)
        return entry.symbol if entry and entry.symbol else name
