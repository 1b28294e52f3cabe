"""Every call of the vendor's libraries for a bundled kernel's problem, beyond the one that its space file names.

Each call enqueues on CuPy's current stream and allocates nothing. None of them is known to be correct or fast:
`vendor_task` finds that out.
"""

from __future__ import annotations

import ctypes
import glob
import hashlib
import importlib.util
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import cublaslt
import cusparse

from autotune.devices.nvrtc import find_program
from autotune.errors import AutotuneError
from autotune.files import cache_folder
from autotune.values import Value
from autotune.vendor import PLAIN, TRANSPOSED, cublas_call

Call = Callable[[], object]
#: Temporary memory for a reduction: CUB asks for some bytes a block.
_TEMPORARY_BYTES = 1 << 20
#: CUB's types of elements and of the result.
_CUB_TYPES = {
    "float32": ("float", "float"),
    "float64": ("double", "double"),
    "int32": ("int", "int"),
    "float16": ("__half", "float"),
    "bfloat16": ("__nv_bfloat16", "float"),
}


def further(kernel: str, cub: Path | None, arguments: dict[str, Any]) -> dict[str, Call]:
    if kernel in ("sgemm", "sgemm_tf32x3"):
        return _products(**arguments)
    if kernel == "hgemm":
        calls = cublaslt.products(alpha=1.0, beta=0.0, **arguments)
        return {f"cublasLt {i}": call for i, call in enumerate(calls, 1)}
    if kernel == "gemv":
        return _vector_products(**arguments)
    if kernel == "gemv_columns":
        return _products_of_columns(**arguments)
    if kernel in ("reduce", "reduce_op") and cub is not None:
        return _reductions(cub, **arguments)
    if kernel == "spmm":
        return dict(cusparse.products(**arguments))
    return {}


def _products(
    a: Any, b: Any, c: Any, alpha: Any, beta: Any, m: Any, n: Any, k: Any
) -> dict[str, Call]:
    """cublasLt's heuristics; with one row or column cublasSgemv too, and cublasLt in its other form."""
    calls = cublaslt.products(a, b, c, alpha, beta, m, n, k)
    found: dict[str, Call] = {f"cublasLt {i}": call for i, call in enumerate(calls, 1)}
    if n == 1:
        args = (TRANSPOSED, k, m, alpha, a, k, b, 1, beta, c, 1)
    elif m == 1:
        args = (PLAIN, n, k, alpha, b, n, a, 1, beta, c, 1)
    else:
        return found
    turned = cublaslt.products(a, b, c, alpha, beta, m, n, k, turned=True)
    found |= {f"cublasLt turned {i}": call for i, call in enumerate(turned, 1)}
    return {**found, "cublasSgemv": cublas_call("cublasSgemv_v2", *args)}


def _vector_products(
    a: Any, x: Any, y: Any, alpha: Any, beta: Any, m: Any, n: Any
) -> dict[str, Call]:
    """cublasSgemm and cublasLt for a matrix of one column, each for y' = x' A' and for y = A x."""
    calls = _products(a, x, y, alpha, beta, m, 1, n)
    del calls["cublasSgemv"]  # which the space file names
    plain = (PLAIN, PLAIN, 1, m, n, alpha, x, 1, a, n, beta, y, 1)
    turned = (TRANSPOSED, PLAIN, m, 1, n, alpha, a, n, x, n, beta, y, m)
    return {
        **calls,
        "cublasSgemm": cublas_call("cublasSgemm_v2", *plain),
        "cublasSgemm turned": cublas_call("cublasSgemm_v2", *turned),
    }


def _products_of_columns(
    a: Any, x: Any, y: Any, alpha: Any, beta: Any, m: Any, n: Any
) -> dict[str, Call]:
    """The same of an A by columns: for y' = x' A', whose A' lies row by row, and for y = A x."""
    calls = _products(x, a, y, alpha, beta, 1, m, n)
    del calls["cublasSgemv"]
    plain = (PLAIN, PLAIN, m, 1, n, alpha, a, m, x, n, beta, y, m)
    turned = (PLAIN, TRANSPOSED, 1, m, n, alpha, x, 1, a, m, beta, y, 1)
    return {
        **calls,
        "cublasSgemm": cublas_call("cublasSgemm_v2", *plain),
        "cublasSgemm turned": cublas_call("cublasSgemm_v2", *turned),
    }


# ---------------------------------------------------------------------- CUB


def _reductions(library: Path, x: Any, out: Any, n: Any, **others: Any) -> dict[str, Call]:
    """The newest CUB's reduction, the same from run to run, and in a single pass that is not."""
    import cupy

    temporary = cupy.empty(_TEMPORARY_BYTES, cupy.uint8)
    functions = ctypes.CDLL(str(library))

    def call(name: str) -> None:
        stream = cupy.cuda.get_current_stream().ptr
        status = functions[name](
            ctypes.c_void_p(temporary.data.ptr),
            ctypes.c_size_t(_TEMPORARY_BYTES),
            ctypes.c_void_p(x.data.ptr),
            ctypes.c_void_p(out.data.ptr),
            ctypes.c_longlong(int(n)),
            ctypes.c_void_p(stream),
        )
        if status:
            raise RuntimeError(f"cub::DeviceReduce::Reduce, {name}: status {status}")

    names = {"CUB run-to-run": "run_to_run", "CUB not_guaranteed": "not_guaranteed"}
    return {shown: partial(call, name) for shown, name in names.items()}


def newest_cub() -> tuple[Path, str] | None:
    """The include folder with the newest CUB that is installed, and its version; None where there is none."""
    spec = importlib.util.find_spec("nvidia")
    folders = [f"{one}/*" for one in (spec.submodule_search_locations if spec else None) or ()]
    if compiler := find_program("nvcc"):
        toolkit = Path(compiler).resolve().parents[1]
        folders += [str(toolkit), f"{toolkit}/targets/*"]
    found = []
    for file in (
        Path(name)
        for folder in folders
        for name in glob.glob(f"{folder}/include/cccl/cub/version.cuh")
    ):
        number = re.search(r"#define CUB_VERSION (\d+)", file.read_text(encoding="utf-8"))
        found += [(int(number[1]), file.parents[1])] if number else []
    if not found:
        return None
    newest, include = max(found)
    return include, f"{newest // 100000}.{newest // 100 % 1000}.{newest % 100}"


def cub_symbols(kernel: str, problem: Mapping[str, Value]) -> tuple[str, ...] | None:
    """Return what cub_reduce.cu is compiled with for a problem; None where CUB has nothing like the kernel."""
    if kernel not in ("reduce", "reduce_op"):
        return None
    element, wide = _CUB_TYPES[str(problem.get("dtype", "float32"))]
    return f"-DTYPE={element}", f"-DWIDE={wide}", f"-DOP={problem.get('op', 'sum')}"


def build_cub(arch: str, symbols: tuple[str, ...]) -> Path:
    """Compile the newest CUB's reductions into a library, which is kept; the first time it takes some ten seconds."""
    compiler, newest = find_program("nvcc"), newest_cub()
    if not compiler or newest is None:
        raise AutotuneError("no nvcc, or no CUB: cub_reduce.cu is not compiled")
    include, version = newest
    source = Path(__file__).with_name("cub_reduce.cu")
    key = hashlib.sha256(source.read_bytes() + " ".join(symbols).encode()).hexdigest()[:8]
    library = cache_folder("vendor") / f"cub_reduce-{version}-{arch}-{key}.so"
    if library.is_file():
        return library
    made = library.with_suffix(f".{os.getpid()}")
    flags = ["-std=c++17", "-O3", f"-arch={arch}", "-shared", "-Xcompiler", "-fPIC", *symbols]
    command = [compiler, *flags, f"-I{include}", source.name, "-o", str(made)]
    done = subprocess.run(command, cwd=source.parent, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AutotuneError(f"nvcc: {done.stderr.strip()[-500:]}")
    return made.rename(library)
