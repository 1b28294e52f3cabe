"""NVIDIA's C libraries, called through ctypes."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cached_property
from typing import Any


class CallFailed(RuntimeError):
    """A call failed; says which, and with what status."""


@dataclass(frozen=True)
class Library:
    """A library that CuPy has loaded, or that the loader finds."""

    #: File names; the first existing file is used.
    names: tuple[str, ...]
    package: str

    @cached_property
    def _loaded(self) -> Any:
        for name in self.names:
            try:
                return ctypes.CDLL(name)
            except OSError:
                continue
        raise OSError(f"none of {', '.join(self.names)} can be loaded; install {self.package}")

    def call(self, name: str, *args: Any) -> None:
        """Call a function that returns a status.

        Raises
        ------
        CallFailed
            If the status is not 0.
        OSError
            If the library is not there.
        """
        if status := getattr(self._loaded, name)(*args):
            raise CallFailed(f"{name}: status {status}")

    def made(self, name: str, *args: Any) -> ctypes.c_void_p:
        """Return what a Create function makes; these few small objects live as long as the process."""
        handle = ctypes.c_void_p()
        self.call(name, ctypes.byref(handle), *args)
        return handle
