"""The search strategies by name.

A library is imported when a strategy needs it, not before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from autotune.errors import UsageError, extra_of, install, unknown
from autotune.kernel.space import Space
from autotune.search.base import BudgetSpent, Session, Strategy

if TYPE_CHECKING:
    from numpy.random import Generator

__all__ = ["BudgetSpent", "Session", "Strategy", "StrategyInfo", "available", "find"]

_OWN = {
    "auto": "default: the whole space if the budget allows, else surrogate until little gain is left",
    "surrogate": (
        "our own: expected improvement under a Gaussian process, over the valid configurations"
    ),
    "random": "every configuration once, in random order",
    "exhaustive": "every configuration once, in order",
}


@dataclass(frozen=True)
class StrategyInfo:
    """A strategy's name and description."""

    name: str
    doc: str
    #: Reason why the strategy cannot run on this machine; empty if it can.
    unavailable: str = ""


def find(name: str, at_once: int = 1, ahead: int = 1) -> Strategy:
    """Return the strategy with a name, for example ``auto``, ``kt:pso`` or ``optuna:tpe``.

    Several devices measure ``at_once`` configurations at a time. Our own strategies make up to ``ahead``
    proposals before they get the first result, so that compilers and devices do not wait.
    """
    known = {info.name: info for info in (_own() if name in _OWN else available())}
    if name not in known:
        usable = [info.name for info in known.values() if not info.unavailable]
        raise UsageError(unknown("strategy", name, usable))
    if known[name].unavailable:
        raise UsageError(f"strategy {name!r} cannot be used: {known[name].unavailable}")
    if name in ("random", "exhaustive"):
        return random if name == "random" else exhaustive
    if name in _OWN:
        from autotune.search.auto import auto, surrogate

        return partial(auto if name == "auto" else surrogate, ahead=ahead)
    library, _, short = name.rpartition(":")
    if library == "kt":
        from autotune.search import kernel_tuner

        return partial(kernel_tuner.search, short)
    from autotune.search import optuna

    return partial(optuna.search, short, batch=at_once)


def available() -> list[StrategyInfo]:
    """Return every strategy, with a reason if it cannot run on this machine."""
    from autotune.search import kernel_tuner, optuna

    return [
        *_own(),
        *(
            StrategyInfo(f"kt:{name}", doc, _missing("kernel_tuner"))
            for name, doc in kernel_tuner.STRATEGIES.items()
        ),
        *(
            StrategyInfo(
                f"optuna:{name}", doc, _missing("optuna") or _missing(optuna.NEEDS.get(name))
            )
            for name, doc in optuna.SAMPLERS.items()
        ),
    ]


def _own() -> list[StrategyInfo]:
    return [
        StrategyInfo(name, doc, _missing("scipy") if name in ("auto", "surrogate") else "")
        for name, doc in _OWN.items()
    ]


def _missing(package: str | None) -> str:
    if package is None or find_spec(package):
        return ""
    extra = extra_of(package)
    remedy = install(extra) if extra else f"pip install {package}"
    return f"it needs the package {package} ({remedy})"


def random(space: Space, session: Session, rng: Generator) -> None:
    """Measure every configuration once, in random order."""
    # The array's buffer, since a list of millions takes 0.1 s.
    session.measure(rng.permutation(len(space)).data)


def exhaustive(space: Space, session: Session, rng: Generator) -> None:
    """Measure every configuration once, in the order of the space."""
    session.measure(range(len(space)))


def in_given_order(order: Sequence[int]) -> Strategy:
    """Return a strategy that measures these numbers; compilers take them in this order."""

    def search(space: Space, session: Session, rng: Generator) -> None:
        session.measure(order)

    return search
