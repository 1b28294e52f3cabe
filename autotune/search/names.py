"""The search strategies by name. Knows which exist and what they need; runs none itself.

A library is imported when a strategy of it is asked for, not before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

from autotune.errors import UsageError, unknown
from autotune.extras import extra_of, install
from autotune.search import auto, simple
from autotune.search import kernel_tuner as kernel_tuner_adapter
from autotune.search import optuna as optuna_adapter
from autotune.search.base import BudgetSpent, Search, Session, StrategyInfo

__all__ = ["BudgetSpent", "Search", "Session", "StrategyInfo", "available", "find"]

_OWN: dict[str, tuple[Callable[..., None], str]] = {
    "auto": (
        auto.search,
        "the default: all where the budget allows, else surrogate until little is left to gain",
    ),
    "surrogate": (
        auto.surrogate,
        "our own: expected improvement under a Gaussian process, over the valid configurations",
    ),
    "random": (simple.random, "every configuration once, in random order"),
    "exhaustive": (simple.exhaustive, "every configuration once, in order"),
}


def find(name: str, at_once: int = 1, ahead: int = 1) -> Search:
    """The search of a name, for example ``auto``, ``kt:pso`` or ``optuna:tpe``.

    Parameters
    ----------
    name : str
        See `available`.
    at_once : int
        Configurations that several devices measure at a time: whoever can choose asks for so many.
    ahead : int
        Proposals that our own search makes before it knows the first one's result, so that
        compilers and devices do not wait for it.

    Raises
    ------
    UsageError
        If the name is unknown, or the strategy cannot run here; the message says why.
    """
    known = {info.name: info for info in available()}
    if name not in known:
        usable = [info.name for info in known.values() if not info.unavailable]
        raise UsageError(unknown("strategy", name, usable))
    if known[name].unavailable:
        raise UsageError(f"strategy {name!r} cannot be used: {known[name].unavailable}")
    if name == "auto":
        return partial(auto.search, ahead=ahead)
    if name == "surrogate":
        return partial(auto.surrogate, ahead=ahead)
    if name in _OWN:
        return _OWN[name][0]
    library, _, short = name.partition(":")
    if library == "kt":
        return partial(kernel_tuner_adapter.search, short)
    return partial(optuna_adapter.search, short, batch=at_once)


def available() -> list[StrategyInfo]:
    """Every strategy, those that cannot run here with the reason."""
    return [
        *(
            StrategyInfo(name, doc, _missing("optuna") if name in ("auto", "surrogate") else "")
            for name, (_, doc) in _OWN.items()
        ),
        *(
            StrategyInfo(f"kt:{name}", doc, _missing("kernel_tuner"))
            for name, doc in kernel_tuner_adapter.STRATEGIES.items()
        ),
        *(
            StrategyInfo(f"kt:{name}", f"{name} of Kernel Tuner", reason)
            for name, reason in kernel_tuner_adapter.UNAVAILABLE.items()
        ),
        *(
            StrategyInfo(f"optuna:{name}", doc, _missing("optuna") or _needs(name))
            for name, doc in optuna_adapter.SAMPLERS.items()
        ),
    ]


def _missing(package: str) -> str:
    """Why a package makes a strategy unavailable; empty where it is installed."""
    if find_spec(package):
        return ""
    extra = extra_of(package)
    remedy = install(extra) if extra else f"pip install {package}"
    return f"it needs the package {package} ({remedy})"


def _needs(sampler: str) -> str:
    package = optuna_adapter.NEEDS.get(sampler)
    return _missing(package) if package else ""
