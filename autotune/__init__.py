"""Find the fastest verified configuration of a GPU kernel, per device and problem size.

Names are imported when first used: ``from autotune import lookup`` loads the standard library only.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune._lookup import TunedConfig, lookup
    from autotune.api import tune
    from autotune.expression import ceil_div, maximum, minimum
    from autotune.launcher import load
    from autotune.spec import Constant, Fill, InOut, Kernel, Launch, Out, Work
    from autotune.values import Configuration, Problem

__version__ = "0.1.0"

__all__ = [
    "Configuration",
    "Constant",
    "Fill",
    "InOut",
    "Kernel",
    "Launch",
    "Out",
    "Problem",
    "TunedConfig",
    "Work",
    "__version__",
    "ceil_div",
    "load",
    "lookup",
    "maximum",
    "minimum",
    "tune",
]

_HOMES = {
    "Configuration": "values",
    "Constant": "spec",
    "Fill": "spec",
    "InOut": "spec",
    "Kernel": "spec",
    "Launch": "spec",
    "Out": "spec",
    "Problem": "values",
    "TunedConfig": "_lookup",
    "Work": "spec",
    "ceil_div": "expression",
    "load": "launcher",
    "lookup": "_lookup",
    "maximum": "expression",
    "minimum": "expression",
    "tune": "api",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its home (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'autotune' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"autotune.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
