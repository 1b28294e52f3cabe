"""The search strategies by name.

A library is imported when a strategy needs it, not before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from autotune.errors import UsageError, extra_of, install, unknown
from autotune.kernel.space import Space
from autotune.search.base import BudgetSpent, Session, Strategy
from autotune.values import Value

if TYPE_CHECKING:
    from numpy.random import Generator

__all__ = [
    "BudgetSpent",
    "Session",
    "Strategy",
    "StrategyInfo",
    "available",
    "checked_options",
    "find",
]

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


def find(
    name: str, at_once: int = 1, ahead: int = 1, options: Mapping[str, Value] | None = None
) -> Strategy:
    """Return the strategy with a name, for example ``auto``, ``kt:pso`` or ``optuna:tpe``.

    Several devices measure ``at_once`` configurations at a time. Our own strategies make up to ``ahead``
    proposals before they get the first result, so that compilers and devices do not wait. For
    ``options`` see `checked_options`.
    """
    _require_usable(name)
    if name in ("random", "exhaustive"):
        return random if name == "random" else exhaustive
    if name in _OWN:
        from autotune.search.auto import auto, surrogate

        return partial(auto if name == "auto" else surrogate, ahead=ahead)
    library, _, short = name.rpartition(":")
    if library == "kt":
        from autotune.search import kernel_tuner

        return partial(kernel_tuner.search, short, given=options or {})
    from autotune.search import optuna

    return partial(optuna.search, short, batch=at_once, given=options or {})


def _require_usable(name: str) -> None:
    known = {info.name: info for info in (_own() if name in _OWN else available())}
    if name not in known:
        usable = [info.name for info in known.values() if not info.unavailable]
        raise UsageError(unknown("strategy", name, usable))
    if known[name].unavailable:
        raise UsageError(f"strategy {name!r} cannot be used: {known[name].unavailable}")


def checked_options(name: str, given: Mapping[str, object]) -> dict[str, Value]:
    """Return the options of a strategy of Kernel Tuner or Optuna, as values of their types.

    A value may be a text, as on the command line.

    Raises
    ------
    UsageError
        If the strategy is unknown or has no such option, or a value is not of the option's type.
    """
    _require_usable(name)
    if not given:
        return {}
    types: Mapping[str, type[Value]] = {}
    library, _, short = name.rpartition(":")
    if library == "kt":
        from autotune.search import kernel_tuner

        types = kernel_tuner.option_types(short)
    elif library == "optuna":
        from autotune.search import optuna

        types = optuna.option_types(short)
    if not types:
        raise UsageError(f"strategy {name} has no options")
    found = dict[str, Value]()
    for option, value in given.items():
        if option not in types:
            raise UsageError(f"strategy {name}: {unknown('option', option, types)}")
        found[option] = _value(f"strategy {name}: option {option}", types[option], str(value))
    return found


#: Texts of the values of a Boolean option.
_TRUTHS = {"true": True, "1": True, "false": False, "0": False}


def _value(option: str, kind: type[Value], text: str) -> Value:
    try:
        value = _TRUTHS[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        value = math.nan
    if isinstance(value, float) and not math.isfinite(value):
        names = {bool: "true or false", int: "an integer", float: "a number"}
        raise UsageError(f"{option}={text}: expected {names[kind]}")
    return value


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
