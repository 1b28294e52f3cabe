"""Finds source languages, their compilers and their interpreters by name.

The name of a backend also names the dialect of C that it compiles: CUDA C++ (NVRTC) or OpenCL C.
"""

from __future__ import annotations

from autotune.devices import choose
from autotune.devices.base import Backend, Compiler
from autotune.errors import UsageError, unknown
from autotune.languages.base import Language

#: Names of the languages other than the backends' dialects of C.
LANGUAGES = ("triton", "cubin")


def compiler(name: str) -> Compiler:
    """Return the compiler of a language or backend; import no other compiler."""
    return language(name) if name in LANGUAGES else find_backend(name)


def find_backend(name: str) -> Backend:
    """Return a backend by name; ``interpreter`` is the backend of Triton's interpreter."""
    if name == "interpreter":
        from autotune.languages.interpreter import InterpreterBackend

        return InterpreterBackend()
    return choose.backend(name)


def language(name: str) -> Language:
    """Return a language by its name in `LANGUAGES`."""
    if name == "triton":
        from autotune.languages.triton import TritonLanguage

        return TritonLanguage()
    if name == "cubin":
        from autotune.languages.cubins import CubinLanguage

        return CubinLanguage()
    raise UsageError(unknown("language", name, LANGUAGES))
