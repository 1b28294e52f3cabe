"""Finds compilers by the name of a source language.

A backend's name stands for the dialect of C that it compiles itself: CUDA C++ by NVRTC, OpenCL C.
"""

from __future__ import annotations

from autotune.devices.base import Compiler
from autotune.devices.choose import backend


def compiler(language: str) -> Compiler:
    """Return the compiler of a language, and import only that one."""
    return backend(language)
