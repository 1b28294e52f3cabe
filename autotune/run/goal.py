"""The goal of a run: a search of every problem, or one configuration to verify and time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from autotune.devices.device import Device
from autotune.errors import NothingValidError
from autotune.kernel.space import Space, broken_constraints
from autotune.kernel.spec import Kernel
from autotune.search.names import Strategy, find
from autotune.values import Configuration, Problem, Value

#: Values that some parameters are restricted to.
Fixed: TypeAlias = Mapping[str, Sequence[Value]]


@dataclass(frozen=True)
class Search:
    """A search of every problem, whose winners go into a record."""

    strategy: str = "auto"
    fixed: Fixed = field(default_factory=dict)
    #: Tried first, where they are in the space: what others found for which problem, which nobody verified here.
    imported: tuple[tuple[Problem, Configuration], ...] = ()
    #: Measure again what is remembered.
    fresh: bool = False
    #: Whether the results are recorded, and compared with the device's limits.
    writes_record: ClassVar[bool] = True
    #: Whether the problems of a run learn from one another.
    links_problems: ClassVar[bool] = True

    def strategy_for(self, at_once: int, ahead: int) -> Strategy:
        """Return the strategy that follows on what is tried first."""
        return find(self.strategy, at_once, ahead)

    def first(
        self, kernel: Kernel, device: Device, space: Space, known: Callable[[], list[Configuration]]
    ) -> list[Configuration]:
        """Return what is tried first on a problem: ``known`` good configurations."""
        return known()


@dataclass(frozen=True)
class VerifyOne:
    """One configuration to verify and time on every problem."""

    configuration: Configuration
    fixed: Fixed = field(default_factory=dict)
    imported: ClassVar[tuple[tuple[Problem, Configuration], ...]] = ()
    strategy: ClassVar[str] = "none"
    #: It is to be timed, though it may have been stopped early.
    fresh: ClassVar[bool] = True
    writes_record: ClassVar[bool] = False
    links_problems: ClassVar[bool] = False

    def strategy_for(self, at_once: int, ahead: int) -> Strategy:
        """Return a strategy that proposes nothing more."""
        return lambda *_: None

    def first(
        self, kernel: Kernel, device: Device, space: Space, known: Callable[[], list[Configuration]]
    ) -> list[Configuration]:
        """Return the configuration; NothingValidError where it is not in the space."""
        row = space.canonical(space.row(self.configuration))
        if space.find(row) is not None:
            return [self.configuration]
        values = zip(space.parameters.items(), row, strict=True)
        canonical = {name: declared[index] for (name, declared), index in values}
        broken = [
            f"{rule.name} ({rule.doc})" for rule in broken_constraints(kernel, canonical, device)
        ]
        shown = Configuration(space.relevant(canonical))
        why = "; ".join(broken) or "outside --fix"
        raise NothingValidError(f"{kernel.name}: {shown} is not valid on {device.name}: {why}")


Goal: TypeAlias = Search | VerifyOne
