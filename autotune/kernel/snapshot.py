"""Serialises kernels of scripts and notebooks for other processes, with the objects that they use.

Other processes do not run the script again. Objects of other modules are serialised by name only.
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
from autotune.kernel.source import functions_of, own_fingerprint
from autotune.kernel.space_text import modules_fingerprint
from autotune.kernel.spec import Kernel

#: The space file of a kernel, or the state of a `snapshot`.
Origin: TypeAlias = "Path | bytes"

#: Limit for a serialised kernel in bytes, because every task contains one.
_MAX_BYTES = 16 << 20


def origin_of(kernel: Kernel) -> Origin:
    """Return the space file or the state from which another process loads a kernel."""
    declared = kernel_for_run(kernel)
    if declared.state:
        return declared.state
    assert declared.file is not None
    return declared.file


def kernel_for_run(kernel: Kernel) -> Kernel:
    """Return a kernel for a run: the kernel of a space file unchanged, else its `snapshot`."""
    if kernel.state or (kernel.module != "__main__" and is_of_file(kernel)):
        return kernel
    return snapshot(kernel)


def snapshot(kernel: Kernel) -> Kernel:
    """Return a copy of a script's kernel, which later changes of the script's variables do not affect."""
    kernel.validate()
    modules = frozenset(functions_of(kernel).modules)
    state = _pickled(
        kernel, (kernel, own_fingerprint(kernel), modules, modules_fingerprint(modules))
    )
    if len(state) > _MAX_BYTES:
        raise kernel.error(
            f"its functions use {len(state) >> 20} MiB of the script's data; other processes get at "
            f"most {_MAX_BYTES >> 20} MiB: make the arrays in the functions"
        )
    return restore_kernel(state)


def serialise_kernel(kernel: Kernel) -> bytes:
    """Return the state of a kernel for another machine, with the user's own modules; see `restore_kernel`."""
    with modules.running(kernel.folder):
        state = (kernel, own_fingerprint(kernel), frozenset[str](), modules_fingerprint(()))
        return _pickled(kernel, state, _own_modules(kernel.folder))


def _own_modules(folder: Path | None) -> list[str]:
    files = {
        name for name, module in list(sys.modules.items()) if getattr(module, "__file__", None)
    }
    homes = {top: modules.home_of(top, folder) for top in {name.split(".")[0] for name in files}}
    # A folder with *.dist-info has installed packages, for example of ``pip install --target``.
    own = {top for top, home in homes.items() if home and not any(home.glob("*.dist-info"))}
    return [name for name in files if name.split(".")[0] in own]


def restore_kernel(state: bytes) -> Kernel:
    """Return the kernel of a state that `snapshot` or `serialise_kernel` made, in any process."""
    kernel, fingerprint, modules, expected = pickle.loads(state)
    assert isinstance(kernel, Kernel)
    if modules_fingerprint(modules) != expected:
        raise AutotuneError(
            f"{kernel.name}: a module that its functions use changed during the run; measurements so far "
            "are kept: import the module again, and tune again"
        )
    kernel.fingerprint, kernel.state = fingerprint, state
    return kernel


def load_kernel(origin: Origin, fingerprint: str) -> Kernel:
    """Load the kernel of another process; `AutotuneError` if its functions have changed."""
    if isinstance(origin, bytes):
        return restore_kernel(origin)
    kernel = load_file(origin)
    if fingerprint and own_fingerprint(kernel) != fingerprint:
        raise AutotuneError(
            f"{kernel.name} ({origin.name}): the space file, or a module that it imports, changed during "
            "the run; measurements so far are kept: run the command again"
        )
    return kernel


def _pickled(kernel: Kernel, value: object, by_value: Iterable[str] = ()) -> bytes:
    try:
        import cloudpickle
    except ImportError as error:
        feature = "tuning a kernel of a script or notebook"
        raise MissingDependencyError("cloudpickle", "tune", feature) from error

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        """Serialises cached functions by value, which `functools.cache` serialises by name."""

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
            "its functions use an object of the script that cannot be serialised for other processes "
            f"({type(error).__name__}: {error}); make the object inside a function"
        ) from error
    finally:
        for home in homes:
            cloudpickle.unregister_pickle_by_value(home)
    return written.getvalue()


def _cached(function: Callable[..., Any], maxsize: int | None, typed: bool) -> Callable[..., Any]:
    return functools.lru_cache(maxsize, typed)(function)
