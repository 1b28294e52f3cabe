"""`autotune`: a drop-in for `triton.autotune` that records and verifies its results.

================== ========================================================
`decorator`        the decorator; calls of a decorated function
`installing`       the decorator in place of `triton.autotune`, for whole libraries
`options`          arguments of the decorator; its list of configurations
`function`         a decorated function, and the description of a call
`reader`           the key of a call, and its arguments for a launch
`tuning`           the configuration of a call, after a search if necessary
`recorder`         calls that ``autotune run FILE:FUNCTION`` tunes
`decorated_kernel` a decorated function as a kernel that a run tunes
`calls`            arguments and launches of a call, and the file of calls
================== ========================================================
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.triton.decorator import Decorated, autotune
    from autotune.triton.installing import install, uninstall

__all__ = ["Decorated", "autotune", "install", "uninstall"]


def __getattr__(name: str) -> Any:
    """Import the decorator, and so Triton; workers import this package without Triton."""
    if name not in __all__:
        raise AttributeError(f"module 'autotune.triton' has no attribute {name!r}")
    from autotune.errors import needing

    if name.endswith("install"):
        from autotune.triton import installing

        return getattr(installing, name)
    with needing("autotune.triton"):
        from autotune.triton import decorator
    return getattr(decorator, name)
