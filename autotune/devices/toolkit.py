"""Finds programs of the CUDA toolkit: on PATH, in a toolkit, or in a Python package."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from shutil import which

#: NVIDIA's Python package of compute-sanitizer.
SANITIZER_PACKAGE = "nvidia-cuda-sanitizer-api"


def find_program(name: str) -> str:
    """Return the path of a program such as ``nvcc``; empty where it is not found."""
    toolkits = (os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), "/usr/local/cuda")
    places = os.pathsep.join(str(Path(toolkit, "bin")) for toolkit in toolkits if toolkit)
    return which(name) or which(name, path=places) or _packaged(name)


def _packaged(name: str) -> str:
    with suppress(Exception):  # no pathfinder, or an unknown name
        from cuda.pathfinder import find_nvidia_binary_utility

        return find_nvidia_binary_utility(name) or ""
    return ""
