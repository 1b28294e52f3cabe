"""Finds source languages, their compilers and their interpreters by name.

A backend's name stands for the dialect of C that it compiles itself: CUDA C++ by NVRTC, OpenCL C.
"""

from __future__ import annotations

from autotune.devices import choose
from autotune.devices.base import Backend, Compiler
from autotune.errors import UsageError, unknown
from autotune.languages.base import Language

#: Names of the languages that backends do not compile themselves.
LANGUAGES = ("triton", "cubin")


def compiler(name: str) -> Compiler:
    """Return the compiler of a language, and import only that one."""
    return language(name) if name in LANGUAGES else find_backend(name)


def find_backend(name: str) -> Backend:
    """Return a backend by name, an interpreter of a language among them."""
    if name == "interpreter":
        from autotune.languages.interpreter import InterpreterBackend

        return InterpreterBackend()
    return choose.backend(name)


def language(name: str) -> Language:
    """Return a language of `LANGUAGES`."""
    if name == "triton":
        from autotune.languages.triton import TritonLanguage

        return TritonLanguage()
    if name == "cubin":
        from autotune.languages.cubins import CubinLanguage

        return CubinLanguage()
    raise UsageError(unknown("language", name, LANGUAGES))
