"""cuSPARSE's algorithms for a sparse times a dense matrix in float32, as calls to time.

Called through ctypes: CuPy's wrapper lacks the preprocessing step, which two of the algorithms profit from. Names and
numbers of constants: cuSPARSE 12 and 13 API reference, "cusparseSpMM", and cusparse.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from vendor_library import Library

_FLOAT32, _INT32 = 0, 2  # CUDA_R_32F, CUSPARSE_INDEX_32I
_PLAIN, _ROWS, _FROM_0 = 0, 2, 0  # CUSPARSE_OPERATION_NON_TRANSPOSE, _ORDER_ROW, _INDEX_BASE_ZERO
#: Of matrices by compressed rows: CUSPARSE_SPMM_CSR_ALG1, _ALG2, _ALG3.
ALGORITHMS = {"ALG1": 4, "ALG2": 6, "ALG3": 12}

_LIBRARY = Library(("libcusparse.so.12", "libcusparse.so.13"), "nvidia-cusparse")


def products(
    row_start: Any, columns: Any, values: Any, b: Any, c: Any, m: Any, n: Any
) -> dict[str, Callable[[], None]]:
    """Calls of C = A B on the current stream by name, one for each algorithm; all arrays row-major.

    What an algorithm prepares for one matrix A is prepared here, and no call pays for it.
    """
    import cupy
    from cupy_backends.cuda.libs import cusparse as loaded  # noqa: F401  # it loads the library

    m, n, k = int(m), int(n), b.size // int(n)

    def at(array: Any) -> ctypes.c_void_p:
        return ctypes.c_void_p(array.data.ptr)

    def matrix(rows: int, array: Any) -> ctypes.c_void_p:
        sizes = (ctypes.c_int64(rows), ctypes.c_int64(n), ctypes.c_int64(n))
        return _LIBRARY.made("cusparseCreateDnMat", *sizes, at(array), _FLOAT32, _ROWS)

    handle = _LIBRARY.made("cusparseCreate")
    sizes = (ctypes.c_int64(m), ctypes.c_int64(k), ctypes.c_int64(values.size))
    types = (_INT32, _INT32, _FROM_0, _FLOAT32)
    a = _LIBRARY.made("cusparseCreateCsr", *sizes, at(row_start), at(columns), at(values), *types)
    scalars = np.array([1, 0], np.float32)
    one, zero = (ctypes.c_void_p(scalars.ctypes.data + 4 * i) for i in range(2))
    product = (handle, _PLAIN, _PLAIN, one, a, matrix(k, b), zero, matrix(m, c), _FLOAT32)

    def call(algorithm: int) -> Callable[[], None]:
        count = ctypes.c_size_t()
        _LIBRARY.call("cusparseSpMM_bufferSize", *product, algorithm, ctypes.byref(count))
        buffer = cupy.empty(max(1, count.value), cupy.uint8)
        _LIBRARY.call(
            "cusparseSetStream", handle, ctypes.c_void_p(cupy.cuda.get_current_stream().ptr)
        )
        _LIBRARY.call("cusparseSpMM_preprocess", *product, algorithm, at(buffer))

        def multiply() -> None:
            stream = ctypes.c_void_p(cupy.cuda.get_current_stream().ptr)
            _LIBRARY.call("cusparseSetStream", handle, stream)
            _LIBRARY.call("cusparseSpMM", *product, algorithm, at(buffer))

        # Kept alive: the library reads and writes them at every call.
        multiply.alive = (scalars, buffer)  # type: ignore[attr-defined]
        return multiply

    return {f"cuSPARSE {name}": call(number) for name, number in ALGORITHMS.items()}
