"""`autotune`: a drop-in for `triton.autotune` that remembers what it found, and verifies it.

================== ========================================================
`decorator`        the decorator; calls of a decorated function
`options`          arguments of the decorator, and the configurations they name
`function`         a decorated function, and the description of a call
`reader`           the arguments of a call that was made before
`tuning`           the configuration of a call, after a search if one is due
`recorder`         calls that ``autotune run FILE:FUNCTION`` tunes
`decorated_kernel` a decorated function as a kernel that a run tunes
`calls`            arguments and launches of a call, and the file of calls
================== ========================================================
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.triton.decorator import Decorated, autotune

__all__ = ["Decorated", "autotune"]


def __getattr__(name: str) -> Any:
    """Import the decorator, and with it Triton, which a worker that gets a kernel does not need."""
    if name not in __all__:
        raise AttributeError(f"module 'autotune.triton' has no attribute {name!r}")
    from autotune.errors import needing

    with needing("autotune.triton"):
        from autotune.triton import decorator
    return getattr(decorator, name)
