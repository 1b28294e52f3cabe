"""What a lookup answers with: a configuration, its launch, and how good the hit is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

if TYPE_CHECKING:
    from autotune.tuned.record import Triple, Value


class MadeFor(NamedTuple):
    """What an entry was tuned for, as fingerprints; see `autotune.kernel.source.changed_since`."""

    #: Of the kernel's sources, and of what its space file gives and asks for.
    source: str
    arguments: str
    #: Names of arguments that a file gave.
    inputs: tuple[str, ...] = ()


class TunedConfig(Mapping[str, Any]):
    """A configuration of a kernel and how to launch it: a mapping of parameters to values.

    Attributes
    ----------
    block : tuple of int
        Threads in x, y, z.
    shared_bytes : int
        Dynamic shared memory per block.
    grid : tuple of int or None
        Blocks in x, y, z of the main launch for the asked problem; None where the launch could
        not be traced, does not fit a CUDA grid, or is of arrays that lie otherwise than those tuned.
    quality : str
        How good the hit is: ``exact``, ``nearest_problem``, ``same_arch``, ``nearest_arch`` or
        ``default``.
    expected_fraction : float or None
        Share of the best possible speed that nine of ten such answers reach at least; 1 for an
        exact hit, None where too little is known, as far from everything that was measured.
    stale_reasons : tuple of str
        Why it should be tuned again, as the record says; empty while it is current. `lookup` reads
        records only: ``choice`` of what `load` returns and the command ``autotune lookup``, which
        have the kernel's files, add whether those changed since.
    exclusive : bool
        Whether two launches of one loaded module must not overlap: on two streams, say.
    deterministic : bool
        Whether the same data give the same bits in every run on a device, as the kernel declares.
    unsure : str
        Why its time and choice are unsure, as measured on a busy device; empty where they are sure.
    objective : str
        What it was tuned for: ``time``, ``energy``, ``edp`` or a metric of the kernel.
    source : str
        Layer, device and kernel of the record, for example ``shipped:NVIDIA_H100/sgemm``.
    made_for : MadeFor or None
        Fingerprints of what it was tuned for; None where no entry of a problem answers.
    requires_met : bool
        False only where not even the default may be used: for this problem, or where none of what
        was tuned is valid on the architecture.
    """

    __slots__ = (
        "_values",
        "block",
        "deterministic",
        "exclusive",
        "expected_fraction",
        "grid",
        "made_for",
        "objective",
        "quality",
        "requires_met",
        "shared_bytes",
        "source",
        "stale_reasons",
        "unsure",
    )

    _values: Mapping[str, Value]
    block: Triple
    shared_bytes: int
    grid: Triple | None
    quality: str
    expected_fraction: float | None
    stale_reasons: tuple[str, ...]
    exclusive: bool
    deterministic: bool
    unsure: str
    objective: str
    source: str
    made_for: MadeFor | None
    requires_met: bool

    def __init__(self, values: Mapping[str, Value], **about: Any) -> None:
        object.__setattr__(self, "_values", dict(values))
        for name, value in about.items():
            object.__setattr__(self, name, value)

    def with_reasons(self, reasons: Iterable[str]) -> TunedConfig:
        """The same with further reasons why it is stale."""
        about = {name: getattr(self, name) for name in self.__slots__ if name != "_values"}
        about["stale_reasons"] = (*self.stale_reasons, *reasons)
        return TunedConfig(self._values, **about)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("TunedConfig is immutable")

    def __reduce__(self) -> tuple[Any, ...]:
        about = {name: getattr(self, name) for name in self.__slots__ if name != "_values"}
        return partial(TunedConfig, dict(self._values), **about), ()

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value}" for name, value in self._values.items())
        return f"TunedConfig({values}; block={self.block}, quality={self.quality!r})"
