"""`install`: modules that are imported afterwards tune with `autotune` where they use `triton.autotune`.

Python runs `at_import` when it starts, if the environment variable ``AUTOTUNE_TRITON`` is set and not 0: the
installed package has a file ``kernel_autotune.pth`` with the call.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

#: Modules of Triton that have the name ``autotune``.
_MODULES = ("triton", "triton.runtime", "triton.runtime.autotuner")

_log = logging.getLogger("autotune")
_replaced: dict[str, Any] = {}


def install(*, tune: str = "first_call", budget: str = "60s") -> None:
    """Replace `triton.autotune` by `autotune.triton.autotune` for all modules that are imported afterwards.

    Records are named after the function and its file: ``add_layers``.

    Parameters
    ----------
    tune, budget
        As of `autotune.triton.autotune`.

    Raises
    ------
    MissingDependencyError
        If Triton is not installed.
    UsageError
        If ``tune`` or ``budget`` is invalid.
    """
    from autotune.errors import needing

    with needing("autotune.triton"):
        modules = {name: import_module(name) for name in _MODULES}
    from autotune.triton.options import Options

    Options(None, None, tune, budget, None).check()
    original = _replaced.get("triton", modules["triton"].autotune)

    def autotuned(*args: Any, **named: Any) -> Callable[[Any], Any]:
        def decorated(fn: Any) -> Any:
            from autotune.triton.decorator import autotune

            try:
                options = {"name": _name_in_file(fn), "tune": tune, "budget": budget}
                return autotune(*args, **{**options, **named})(fn)
            except Exception as error:
                _log.warning("autotune: left to triton.autotune: %.400s", error)
                return original(*args, **named)(fn)

        return decorated

    for name, module in modules.items():
        _replaced.setdefault(name, module.autotune)
        module.autotune = autotuned  # type: ignore[attr-defined]


def uninstall() -> None:
    """Give `triton.autotune` back; functions that were decorated meanwhile stay as they are."""
    for name, original in _replaced.items():
        sys.modules[name].autotune = original  # type: ignore[attr-defined]
    _replaced.clear()


def at_import() -> None:
    """Call `install` as soon as Triton is imported."""
    if "triton" in sys.modules:
        install()
    else:
        sys.meta_path.insert(0, _AfterImport())


class _AfterImport(MetaPathFinder):
    """Finds Triton once, and calls `install` after its import."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != "triton":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                install()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _name_in_file(fn: Any) -> str:
    """Return a name for records: files of a library have functions of one name."""
    while hasattr(fn, "fn"):
        fn = fn.fn
    text = f"{fn.__name__}_{Path(fn.__code__.co_filename).stem}"
    return "_".join(re.findall(r"[A-Za-z0-9]+", text))
