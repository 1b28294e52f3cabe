"""Find the fastest verified configuration of a GPU kernel, per device and problem size.

Names are imported when first used: ``from autotune import lookup`` loads msgspec and nothing heavier.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.api import tune
    from autotune.calling.first_call import tuned_on_first_call
    from autotune.calling.load import load
    from autotune.kernel.expression import ceil_div, maximum, minimum
    from autotune.kernel.operand import Instead, NothingToDo, Operand
    from autotune.kernel.products import matrix_product
    from autotune.kernel.rules import Source
    from autotune.kernel.spec import Constant, Fill, InOut, Kernel, Launch, Out, Work
    from autotune.kernel.views import TensorMap, Texture
    from autotune.tuned.answer import TunedConfig
    from autotune.tuned.lookup import lookup
    from autotune.values import Configuration, Problem

__version__ = "0.1.0"

__all__ = [
    "Configuration",
    "Constant",
    "Fill",
    "InOut",
    "Instead",
    "Kernel",
    "Launch",
    "NothingToDo",
    "Operand",
    "Out",
    "Problem",
    "Source",
    "TensorMap",
    "Texture",
    "TunedConfig",
    "Work",
    "__version__",
    "ceil_div",
    "load",
    "lookup",
    "matrix_product",
    "maximum",
    "minimum",
    "tune",
    "tuned_on_first_call",
]

_NAMES = {
    "api": ("tune",),
    "kernel.expression": ("ceil_div", "maximum", "minimum"),
    "kernel.operand": ("Instead", "NothingToDo", "Operand"),
    "kernel.products": ("matrix_product",),
    "kernel.rules": ("Source",),
    "kernel.spec": (
        "BFloat16",
        "Constant",
        "Fill",
        "InOut",
        "Kernel",
        "Launch",
        "Out",
        "Work",
    ),
    "kernel.views": ("TensorMap", "Texture"),
    "calling.first_call": ("tuned_on_first_call",),
    "calling.load": ("load",),
    "tuned.answer": ("TunedConfig",),
    "tuned.lookup": ("lookup",),
    "values": ("Configuration", "Problem"),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name from its home (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'autotune' has no attribute {name!r}")
    from importlib import import_module

    from autotune.errors import needing

    with needing(f"autotune.{name}"):
        value = getattr(import_module(f"autotune.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
