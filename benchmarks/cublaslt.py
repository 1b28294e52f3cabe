"""cublasLt's own choices for a matrix product with float32 sums, as calls to time: the vendor at its best.

cublasSgemm picks one algorithm; cublasLt's heuristics name several, and one of them is often faster. Called
through ctypes, as no Python package that is needed elsewhere wraps it. Names and numbers of constants: cuBLAS
13 API reference, "Using the cublasLt API", and cublasLt.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from vendor_library import Library

_FLOAT32 = 0  # CUDA_R_32F
#: cudaDataType by the name of a CuPy array's type, to which bits of bfloat16 are integers.
_TYPES = {"float32": _FLOAT32, "float16": 2, "uint16": 14}
_COMPUTE_FLOAT32 = 68  # CUBLAS_COMPUTE_32F: products and sums in float32, never TF32
_FIRST_TRANSPOSED, _SECOND_TRANSPOSED = 3, 4  # CUBLASLT_MATMUL_DESC_TRANSA, _TRANSB
_TRANSPOSED = 1  # CUBLAS_OP_T
_MAX_WORKSPACE_BYTES = 1  # CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES
#: What the library recommends for Hopper, and what cublasSgemm takes there.
WORKSPACE_BYTES = 32 << 20
#: How many heuristics are asked for.
COUNT = 16

_LIBRARY = Library(("libcublasLt.so.13", "libcublasLt.so.12"), "nvidia-cublas")


class _Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t: opaque."""

    _fields_ = (("data", ctypes.c_uint64 * 8),)


class _Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", _Algorithm),
        ("workspace_bytes", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


def products(
    a: Any,
    b: Any,
    c: Any,
    alpha: Any,
    beta: Any,
    m: Any,
    n: Any,
    k: Any,
    turned: bool = False,
) -> list[Callable[[], None]]:
    """Calls of C = alpha A B + beta C, one for each heuristic, on the current stream; best guess first.

    Row-major: the library is column-major, so it is asked for C' = B' A'. Of one row or column, C and C' lie
    alike, and it may be asked for C = A B with the matrix transposed instead: other algorithms answer that. A, B
    and C are of float32, halves or, as uint16, bfloat16.
    """
    import cupy
    from cupy_backends.cuda.libs import cublas as loaded  # noqa: F401  # it loads cublasLt

    m, n, k = int(m), int(n), int(k)
    handle = _handle()
    operation = _LIBRARY.made("cublasLtMatmulDescCreate", _COMPUTE_FLOAT32, _FLOAT32)
    operands = (b, a)
    given, made = a.dtype.name, c.dtype.name
    left, right, result = _layout(n, k, given), _layout(k, m, given), _layout(n, m, made)
    if turned:
        operands, result = (a, b), _layout(m, n, made)
        shapes = ((k, m), (k, 1)) if n == 1 else ((1, k), (n, k))
        left, right = (_layout(*shape, given) for shape in shapes)
        transposed = ctypes.c_int(_TRANSPOSED)
        _LIBRARY.call(
            "cublasLtMatmulDescSetAttribute",
            operation,
            _FIRST_TRANSPOSED if n == 1 else _SECOND_TRANSPOSED,
            ctypes.byref(transposed),
            ctypes.c_size_t(4),
        )
    preference = _LIBRARY.made("cublasLtMatmulPreferenceCreate")
    most = ctypes.c_uint64(WORKSPACE_BYTES)
    _LIBRARY.call(
        "cublasLtMatmulPreferenceSetAttribute",
        preference,
        _MAX_WORKSPACE_BYTES,
        ctypes.byref(most),
        ctypes.c_size_t(8),
    )
    found = (_Heuristic * COUNT)()
    count = ctypes.c_int()
    described = (operation, left, right, result, result)
    _LIBRARY.call(
        "cublasLtMatmulAlgoGetHeuristic",
        handle,
        *described,
        preference,
        COUNT,
        found,
        ctypes.byref(count),
    )
    workspace = cupy.empty(WORKSPACE_BYTES, cupy.uint8)
    scalars = np.array([alpha, beta], np.float32)
    alpha_at, beta_at = (ctypes.c_void_p(scalars.ctypes.data + 4 * i) for i in range(2))
    at = [ctypes.c_void_p(array.data.ptr) for array in (*operands, c)]
    room = ctypes.c_void_p(workspace.data.ptr)

    def call(heuristic: _Heuristic) -> Callable[[], None]:
        def multiply() -> None:
            stream = ctypes.c_void_p(cupy.cuda.get_current_stream().ptr)
            _LIBRARY.call(
                "cublasLtMatmul",
                *(handle, operation, alpha_at, at[0], left, at[1], right, beta_at),
                *(at[2], result, at[2], result, ctypes.byref(heuristic.algorithm)),
                *(room, ctypes.c_size_t(WORKSPACE_BYTES), stream),
            )

        # Kept alive: the library reads and writes them at every call.
        multiply.alive = (scalars, workspace, found)  # type: ignore[attr-defined]
        return multiply

    return [call(heuristic) for heuristic in found[: count.value] if heuristic.status == 0]


def _layout(rows: int, columns: int, kind: str) -> ctypes.c_void_p:
    sizes = (ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows))
    return _LIBRARY.made("cublasLtMatrixLayoutCreate", _TYPES[kind], *sizes)


@cache
def _handle() -> ctypes.c_void_p:
    return _LIBRARY.made("cublasLtCreate")
