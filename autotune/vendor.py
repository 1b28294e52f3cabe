"""Prepares calls of vendor libraries for baselines, so that only the call itself is timed.

It imports CuPy inside the functions, because space files import this module.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

from autotune.errors import install, needing

#: cublasOperation_t: a matrix unchanged, and transposed.
PLAIN, TRANSPOSED = 0, 1
#: Size of a user's workspace that cuBLAS recommends on Hopper; more than it recommends on older GPUs
#: (cuBLAS documentation, "cublasSetWorkspace").
_WORKSPACE_BYTES = 32 << 20
#: CUBLAS_DEFAULT_MATH, which never uses TF32 for single precision.
_DEFAULT_MATH = 0


def cublas_call(name: str, *args: Any) -> Callable[[], None]:
    """Return a call of a cuBLAS function with prepared handle, workspace and arguments.

    It calls the library directly, because CuPy refuses its own cuBLAS calls while a graph captures the
    stream. The handle has a workspace of the user. Otherwise cuBLAS would add an allocation to every graph,
    which would be timed, too (cuBLAS documentation, "CUDA Graphs Support").

    Parameters
    ----------
    name : str
        Name of the function, for example ``cublasSgemm_v2``.
    *args
        The arguments after the handle: integers and operations, device arrays, and floating-point
        scalars, which become pointers to float32 on the host.

    Returns
    -------
    callable
        Enqueues the call on the stream that is CuPy's current stream now. It raises RuntimeError for a
        status other than 0.

    Raises
    ------
    MissingDependencyError
        If CuPy is not installed.
    """
    with needing("cuBLAS"):
        from cupy.cuda import get_current_stream

    library, handle, _ = _prepared(get_current_stream().ptr)
    function = getattr(library, name)
    given = [_argument(argument) for argument in args]

    def call() -> None:
        status = function(handle, *given)
        if status != 0:
            raise RuntimeError(f"{name}: status {status}")

    return call


def _argument(value: Any) -> Any:
    import numpy as np

    if isinstance(value, int | np.integer):
        return ctypes.c_int(int(value))
    if isinstance(value, float | np.floating):
        return ctypes.pointer(ctypes.c_float(float(value)))
    return ctypes.c_void_p(value.data.ptr)


@cache
def _prepared(stream: int) -> tuple[ctypes.CDLL, ctypes.c_void_p, Any]:
    """Return the library, a handle for a stream, and the handle's workspace, which must live as long."""
    import cupy

    library, handle = _library(), ctypes.c_void_p()
    workspace = cupy.empty(_WORKSPACE_BYTES, cupy.uint8)
    steps = (
        ("cublasCreate_v2", ctypes.byref(handle)),
        # The stream comes first, because cublasSetStream resets the workspace.
        ("cublasSetStream_v2", handle, ctypes.c_void_p(stream)),
        (
            "cublasSetWorkspace_v2",
            handle,
            ctypes.c_void_p(workspace.data.ptr),
            ctypes.c_size_t(_WORKSPACE_BYTES),
        ),
        ("cublasSetMathMode", handle, ctypes.c_int(_DEFAULT_MATH)),
    )
    for name, *args in steps:
        status = getattr(library, name)(*args)
        if status != 0:
            raise RuntimeError(f"{name}: status {status}")
    return library, handle, workspace


def _library() -> ctypes.CDLL:
    from cupy_backends.cuda.libs import cublas  # noqa: F401  # importing it loads the library

    for version in (13, 12):
        try:
            return ctypes.CDLL(f"libcublas.so.{version}")
        except OSError:
            continue
    raise RuntimeError(f"cuBLAS is not installed; run: {install('cuda13')}")
