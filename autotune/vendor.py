"""Vendor libraries made ready for baselines, so that nothing but the call itself is timed.

Imports CuPy only when it is called: space files import this.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

from autotune.errors import install, needing

#: cublasOperation_t: a matrix as it is, and transposed.
PLAIN, TRANSPOSED = 0, 1
#: What cuBLAS recommends for a workspace of the caller's own on Hopper; more than enough before it
#: (cuBLAS documentation, "cublasSetWorkspace").
_WORKSPACE_BYTES = 32 << 20
#: CUBLAS_DEFAULT_MATH: never TF32 for single precision.
_DEFAULT_MATH = 0


def cublas_call(name: str, *args: Any) -> Callable[[], None]:
    """A call of cuBLAS with everything decided: handle, workspace, arguments.

    Straight from the library, because CuPy refuses its own calls of cuBLAS while a CUDA graph is
    captured. The workspace is the handle's own: cuBLAS would put an allocation into every graph,
    and that would be timed too (cuBLAS documentation, "CUDA Graphs Support").

    Parameters
    ----------
    name : str
        Of the function, for example ``cublasSgemm_v2``.
    *args
        Its arguments after the handle: integers and operations, device arrays, and floating-point
        scalars, which are passed as pointers to float32 on the host.

    Returns
    -------
    callable
        Enqueues on CuPy's current stream of now; a status other than 0 is a RuntimeError.

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
    """Return the library, a handle for a stream, and its workspace, which must live as long."""
    import cupy

    library, handle = _library(), ctypes.c_void_p()
    workspace = cupy.empty(_WORKSPACE_BYTES, cupy.uint8)
    steps = (
        ("cublasCreate_v2", ctypes.byref(handle)),
        # The stream first: setting it takes the workspace away again.
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
    raise RuntimeError(f"cuBLAS is not there; run: {install('cuda13')}")
