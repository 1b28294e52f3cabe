"""The comparison of outputs on a GPU (checks.cu), run on the host: threads in turn, one a block."""

import ctypes
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from autotune.devices import nvrtc
from autotune.devices.base import Comparison
from autotune.devices.cuda_checks import checks_code, element_type
from autotune.devices.host import expected_type, found_type, found_values, host_difference
from autotune.element_types import ELEMENT_TYPES, ENCODED_TYPES

#: What CUDA gives the source. Each thread is the only one of its warp, so that shuffles have nothing to add.
BUILT_IN = r"""
#include <cmath>
#include <cstring>
#define __global__
#define __device__
struct { unsigned x; } threadIdx, blockIdx, blockDim, gridDim;
struct uint4 { unsigned x, y, z, w; };
template <class To, class From> To bits_of(From from) { To to; std::memcpy(&to, &from, sizeof to); return to; }
float __uint_as_float(unsigned bits) { return bits_of<float>(bits); }
long long __double_as_longlong(double x) { return bits_of<long long>(x); }
double __longlong_as_double(long long bits) { return bits_of<double>(bits); }
double __shfl_down_sync(unsigned, double, int) { return 0; }
void atomicMax(unsigned long long* to, unsigned long long x) { if (x > *to) *to = x; }
void atomicMin(unsigned long long* to, unsigned long long x) { if (x < *to) *to = x; }
void atomicAdd(double* to, double x) { *to += x; }
struct __half {
  unsigned short bits;
  operator float() const {
    const int exponent = bits >> 10 & 31, digits = bits & 1023;
    const float size = exponent == 31 ? (digits ? NAN : INFINITY)
                       : exponent     ? std::ldexp(float(digits + 1024), exponent - 25)
                                      : std::ldexp(float(digits), -24);
    return bits >> 15 ? -size : size;
  }
};
"""
RUN = """
extern "C" void run(const TYPE* out, const EXPECTED* expected, u64 count, double bound, const BOUND* bounds,
                    u64* results) {
  blockDim.x = 1, gridDim.x = 7;
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x)
    compare(out, expected, count, bound, bounds, results, (double*)(results + 1), results + 2);
}
"""
TYPES = [name for name in ELEMENT_TYPES if not name.startswith("complex")]


@pytest.mark.slow
@pytest.mark.parametrize("name", TYPES)
def test_a_gpu_finds_the_differences_that_the_host_finds(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN, infinities and bytes that are no bools among them."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="pip install '.[nvrtc]'")
    encoded, rng = ENCODED_TYPES.get(name), np.random.default_rng(0)
    dtype, bits_of = np.dtype(encoded.stored if encoded else name), name if encoded else ""
    stored = rng.integers(0, 256, 1001 * dtype.itemsize, np.uint8)
    if dtype.kind == "b":
        stored %= 3
    stored = stored.view(found_type(SimpleNamespace(dtype=dtype)))  # type: ignore[arg-type]
    values = found_values(SimpleNamespace(bits_of=bits_of), stored)  # type: ignore[arg-type]
    wide = "f4" if name in ("float16", "bfloat16") else "f8"
    with np.errstate(all="ignore"):
        expected = values.astype(wide) if values.dtype.kind == "f" else values.copy()
    expected[rng.integers(0, values.size, 9)] = 1
    bounds = rng.uniform(0, 2, values.size).astype("f8" if name == "float64" else "f4")
    given = Comparison(None, dtype, expected, values.size, 0.5, bits_of=bits_of)
    compiled, sources = nvrtc.compile_cubin, list[str]()

    def noted(source: str, options: list[str]) -> nvrtc.Compilation:
        sources.append(source)
        return compiled(source, options)

    monkeypatch.setattr(nvrtc, "compile_cubin", noted)
    wanted = ELEMENT_TYPES[expected_type(given).name].cuda
    assert checks_code.__wrapped__("sm_90", element_type(given), wanted)
    (source,) = sources
    (tmp_path / "checks.cpp").write_text(
        BUILT_IN + source.replace("#include <cuda_fp16.h>", "") + RUN
    )
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "checks.cpp", "-o", "checks.so"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=300)
    run = ctypes.CDLL(str(tmp_path / "checks.so")).run
    for each in (None, bounds):
        results = np.array([0, 0, -1]).astype(np.uint64)
        arrays = (ctypes.c_void_p(a if a is None else a.ctypes.data) for a in (each, results))
        count, bound = ctypes.c_uint64(values.size), ctypes.c_double(0.5)
        inputs = (ctypes.c_void_p(array.ctypes.data) for array in (stored, expected))
        run(*inputs, count, bound, *arrays)
        host = host_difference(values, expected, 0.5 if each is None else each)
        assert (results[:1].view(np.float64)[0], results[2]) == (host.max_error, host.first_wrong)
        rms_error = np.sqrt(results[1:2].view(np.float64)[0] / values.size)
        assert rms_error == pytest.approx(host.rms_error)
