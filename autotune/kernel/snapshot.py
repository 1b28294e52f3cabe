"""Sends kernels of scripts and notebooks to other processes: functions by value, with what they use.

No process runs the script again. Of modules other than the script only names are sent.
"""

from __future__ import annotations

import functools
import io
import pickle
import sys
from collections.abc import Callable, Iterable
from functools import _lru_cache_wrapper
from pathlib import Path
from typing import Any, TypeAlias

from autotune.errors import AutotuneError, MissingDependencyError
from autotune.kernel import modules
from autotune.kernel.catalog import is_of_file, load_file
from autotune.kernel.source import functions_of, modules_fingerprint, own_fingerprint
from autotune.kernel.spec import Kernel

#: The space file of a kernel, or the state of a `snapshot`.
Origin: TypeAlias = "Path | bytes"

#: Every task carries the kernel.
_MOST_BYTES = 16 << 20


def origin_of(kernel: Kernel) -> Origin:
    """Return what another process loads a kernel from."""
    declared = as_it_is(kernel)
    if declared.state:
        return declared.state
    assert declared.file is not None
    return declared.file


def as_it_is(kernel: Kernel) -> Kernel:
    """Return a kernel for a run: of a space file itself, else its `snapshot`."""
    if kernel.state or (kernel.module != "__main__" and is_of_file(kernel)):
        return kernel
    return snapshot(kernel)


def snapshot(kernel: Kernel) -> Kernel:
    """Return a kernel of a script as it is now: later changes of the script's names do not affect it."""
    kernel.validate()
    modules = frozenset(functions_of(kernel).modules)
    state = _pickled(
        kernel, (kernel, own_fingerprint(kernel), modules, modules_fingerprint(modules))
    )
    if len(state) > _MOST_BYTES:
        raise kernel.error(
            f"its functions use {len(state) >> 20} MiB of the script's values, and at most "
            f"{_MOST_BYTES >> 20} can be sent to other processes; make arrays in the functions"
        )
    return restored(state)


def travelling(kernel: Kernel) -> bytes:
    """Return a kernel as it is now for another machine, with the person's own modules; see `restored`."""
    with modules.running(kernel.folder):
        state = (kernel, own_fingerprint(kernel), frozenset[str](), modules_fingerprint(()))
        return _pickled(kernel, state, _own_modules(kernel.folder))


def _own_modules(folder: Path | None) -> list[str]:
    files = {
        name for name, module in list(sys.modules.items()) if getattr(module, "__file__", None)
    }
    homes = {top: modules.home_of(top, folder) for top in {name.split(".")[0] for name in files}}
    # Packages may be installed in any folder, as by ``pip install --target``.
    own = {top for top, home in homes.items() if home and not any(home.glob("*.dist-info"))}
    return [name for name in files if name.split(".")[0] in own]


def restored(state: bytes) -> Kernel:
    """Return the kernel of a `snapshot`, which another process may have taken."""
    kernel, fingerprint, modules, known_by = pickle.loads(state)
    assert isinstance(kernel, Kernel)
    if modules_fingerprint(modules) != known_by:
        raise AutotuneError(
            f"{kernel.name}: a module that its functions use was changed while it was in use; what was "
            "measured is kept: import the module again, and tune again"
        )
    kernel.fingerprint, kernel.state = fingerprint, state
    return kernel


def load_kernel(origin: Origin, fingerprint: str) -> Kernel:
    """Load the kernel of another process; AutotuneError if its functions changed since."""
    if isinstance(origin, bytes):
        return restored(origin)
    kernel = load_file(origin)
    if fingerprint and own_fingerprint(kernel) != fingerprint:
        raise AutotuneError(
            f"{kernel.name} ({origin.name}): the space file, or a module that it imports, was changed "
            "while it was in use; measurements so far are kept: run the command again"
        )
    return kernel


def _pickled(kernel: Kernel, value: object, by_value: Iterable[str] = ()) -> bytes:
    try:
        import cloudpickle
    except ImportError as error:
        feature = "tuning a kernel of a script or notebook"
        raise MissingDependencyError("cloudpickle", "tune", feature) from error

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        """Keeps results of functions by value too: `functools.cache` names them by their module."""

        def reducer_override(self, given: Any) -> Any:
            if isinstance(given, _lru_cache_wrapper):
                options = given.cache_parameters()
                return _cached, (given.__wrapped__, options["maxsize"], options["typed"])
            return super().reducer_override(given)

    names = {*by_value, kernel.module} - {"__main__"}
    homes = [sys.modules[name] for name in names if name in sys.modules]
    for home in homes:
        cloudpickle.register_pickle_by_value(home)
    written = io.BytesIO()
    try:
        Pickler(written, pickle.HIGHEST_PROTOCOL).dump(value)
    except Exception as error:
        raise kernel.error(
            "its functions use something of the script that no other process can be given "
            f"({type(error).__name__}: {error}); make it inside a function"
        ) from error
    finally:
        for home in homes:
            cloudpickle.unregister_pickle_by_value(home)
    return written.getvalue()


def _cached(function: Callable[..., Any], maxsize: int | None, typed: bool) -> Callable[..., Any]:
    return functools.lru_cache(maxsize, typed)(function)
