"""Vendor libraries made ready for baselines, so that nothing but the call itself is timed.

Imports CuPy only when it is called: space files import this.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

#: What cuBLAS recommends for a workspace of the caller's own on Hopper; more than enough before it
#: (cuBLAS documentation, "cublasSetWorkspace").
_WORKSPACE_BYTES = 32 << 20
#: RTLD_NOLOAD of dlopen: another copy of the library would not know the handle.
_LOADED = 4


def cublas_handle() -> int:
    """A cuBLAS handle for CuPy's current stream, in plain float32, with a workspace of its own.

    Without one cuBLAS would put an allocation into every CUDA graph that captures a call of it, and
    that would be timed too (cuBLAS documentation, "CUDA Graphs Support").

    Returns
    -------
    int
        As ``cupy_backends.cuda.libs.cublas`` takes it. One for each stream: do not destroy it.
    """
    from cupy.cuda import get_current_stream

    return _prepared(get_current_stream().ptr)[0]


@cache
def _prepared(stream: int) -> tuple[int, Any]:
    """The handle of a stream, and the workspace, which lives as long."""
    import cupy
    from cupy_backends.cuda.libs import cublas

    handle: int = cublas.create()
    workspace = cupy.empty(_WORKSPACE_BYTES, cupy.uint8)
    cublas.setStream(handle, stream)  # first: it would take the workspace away again
    status = _library().cublasSetWorkspace_v2(
        ctypes.c_void_p(handle),
        ctypes.c_void_p(workspace.data.ptr),
        ctypes.c_size_t(_WORKSPACE_BYTES),
    )
    if status != 0:
        raise RuntimeError(f"cublasSetWorkspace: status {status}")
    cublas.setMathMode(handle, cublas.CUBLAS_DEFAULT_MATH)  # never TF32 for cublasSgemm
    return handle, workspace


def _library() -> ctypes.CDLL:
    """The cuBLAS that CuPy has loaded: CuPy itself has no call that sets a workspace."""
    for version in (13, 12):
        try:
            return ctypes.CDLL(f"libcublas.so.{version}", mode=ctypes.RTLD_GLOBAL | _LOADED)
        except OSError:
            continue
    raise RuntimeError("cuBLAS is not loaded, though CuPy has made a handle")
