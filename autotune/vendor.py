"""Prepares calls of vendor libraries for baselines, so that only the call itself is timed.

It imports CuPy inside the functions, because space files import this module.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from threading import RLock, get_ident
from typing import Any, NamedTuple

from autotune.errors import install, needing

#: cublasOperation_t: a matrix unchanged, and transposed.
PLAIN, TRANSPOSED = 0, 1
#: Size of a user's workspace that cuBLAS recommends on Hopper; more than it recommends on older GPUs
#: (cuBLAS documentation, "cublasSetWorkspace").
_WORKSPACE_BYTES = 32 << 20
#: CUBLAS_DEFAULT_MATH, which never uses TF32 for single precision.
_DEFAULT_MATH = 0
#: CU_STREAM_PER_THREAD of the driver API: the default stream of the calling thread.
_PER_THREAD = 2


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
        status other than 0. Its attribute ``pins`` is the version of the library.

    Raises
    ------
    MissingDependencyError
        If CuPy is not installed.
    """
    with needing("cuBLAS"):
        from cupy.cuda import get_current_stream

    found = _prepared(get_current_stream().ptr)
    function, handle = getattr(found.library, name), found.pointer
    given = [_argument(argument) for argument in args]

    def call() -> None:
        status = function(handle, *given)
        if status != 0:
            raise RuntimeError(f"{name}: status {status}")

    call.pins = found.pins  # type: ignore[attr-defined]
    return call


def _argument(value: Any) -> Any:
    import numpy as np

    if isinstance(value, int | np.integer):
        return ctypes.c_int(int(value))
    if isinstance(value, float | np.floating):
        return ctypes.pointer(ctypes.c_float(float(value)))
    return ctypes.c_void_p(value.data.ptr)


class _Handle(NamedTuple):
    """A handle of cuBLAS."""

    library: ctypes.CDLL
    pointer: ctypes.c_void_p
    #: Name and version of the library.
    pins: str

    def ask(self, name: str, *args: Any) -> None:
        """Call a function of the library; raise RuntimeError for a status other than 0."""
        if status := getattr(self.library, name)(self.pointer, *args):
            raise RuntimeError(f"{name}: status {status}")


#: Handles by device, stream, and what uses the stream: a capture, or a thread. They are never destroyed.
_handles: dict[object, _Handle] = {}
#: Workspaces of handles; graphs may use them.
_workspaces: list[Any] = []
#: Handles without a stream by device. cuBLAS cannot make a handle while a graph captures a stream.
_spares: dict[int, _Handle] = {}
_making = RLock()


def _prepared(stream: int) -> _Handle:
    """Return a handle for a stream of the current device.

    The handle for captures has no workspace of the user, so that the memory of a graph is its own.
    """
    import cupy

    runtime = cupy.cuda.runtime
    device, is_captured = runtime.getDevice(), bool(stream and runtime.streamIsCapturing(stream))
    thread = get_ident() if stream == _PER_THREAD and not is_captured else 0
    key = device, stream, is_captured, thread
    with _making:
        if key not in _handles:
            made = _spares.pop(device, None) or _made()
            # The stream comes first, because cublasSetStream resets the workspace.
            made.ask("cublasSetStream_v2", ctypes.c_void_p(stream))
            if not is_captured:
                workspace = cupy.empty(_WORKSPACE_BYTES, cupy.uint8)
                address, nbytes = ctypes.c_void_p(workspace.data.ptr), _WORKSPACE_BYTES
                made.ask("cublasSetWorkspace_v2", address, ctypes.c_size_t(nbytes))
                _workspaces.append(workspace)
            _handles[key] = made
        if device not in _spares and not is_captured:
            _spares[device] = _made()
        return _handles[key]


def _made() -> _Handle:
    library, pointer, version = _library(), ctypes.c_void_p(), ctypes.c_int()
    if status := library.cublasCreate_v2(ctypes.byref(pointer)):
        raise RuntimeError(f"cublasCreate_v2: status {status}")
    library.cublasGetVersion_v2(pointer, ctypes.byref(version))
    made = _Handle(library, pointer, f"cuBLAS {version.value}")
    made.ask("cublasSetMathMode", ctypes.c_int(_DEFAULT_MATH))
    return made


def _library() -> ctypes.CDLL:
    from cupy_backends.cuda.libs import cublas  # noqa: F401  # importing it loads the library

    for version in (13, 12):
        try:
            return ctypes.CDLL(f"libcublas.so.{version}")
        except OSError:
            continue
    raise RuntimeError(f"cuBLAS is not installed; run: {install('cuda13')}")
