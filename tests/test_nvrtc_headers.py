"""Standard headers and headers of CUDA compile with NVRTC, and a missing header has a remedy."""

import re

import pytest

from autotune.devices import nvrtc
from autotune.devices.base import CompileError

OPTIONS = ["-arch=sm_90", "-std=c++17"]
#: Headers that a `.cu` file may include, each with code that uses it in a kernel.
USES = {
    "cstdint": "std::uint32_t a = UINT32_MAX; uint64_t b = a;",
    "stdint.h": "int8_t c = INT8_MAX;",
    "cstddef": "std::size_t d = offsetof(Pair, second); void* e = NULL;",
    "stddef.h": "ptrdiff_t e2 = 0;",
    "cmath": "auto f = std::sqrt(x[0]) + std::pow(2.0f, 3) + std::fmax(1.0f, 2) + std::abs(-1.0f);",
    "math.h": "auto g = pow(n, 2) + fmod(7, 2) + (isnan(x[0]) ? INFINITY : M_PI);",
    "cstdio": 'std::printf("%d", n);',
    "stdio.h": 'printf("%d", n);',
    "cassert": "assert(n > 0);",
    "assert.h": "assert(n > 1);",
    "cstdlib": "auto h = std::abs(n);",
    "stdlib.h": "free(malloc(1));",
    "cstring": "std::memcpy(x, x + 1, 4);",
    "string.h": "memset(x, 0, 4);",
    "climits": "auto i = INT_MAX;",
    "limits.h": "auto i2 = CHAR_BIT;",
    "cfloat": "auto j = FLT_MAX;",
    "float.h": "auto j2 = DBL_EPSILON;",
    "type_traits": "static_assert(std::is_same_v<decltype(std::sqrt(1.0f)), float>);",
    "limits": "auto k = std::numeric_limits<float>::infinity();",
    "algorithm": "auto l = std::min(n, 3) + std::clamp(n, 0, 1);",
    "utility": "std::pair<int, float> m{1, 2.0f};",
    "array": "std::array<int, 2> o{};",
    "tuple": "auto q = std::get<0>(std::make_tuple(1, 2));",
    "complex": "std::complex<float> r(1.0f, 2.0f);",
    "functional": "auto s = std::plus<>{}(1, 2);",
    "numeric": "auto t = std::gcd(4, 6);",
    "iterator": "auto u = std::distance(x, x + 1);",
    "bit": "",
    "concepts": "",
    "initializer_list": "",
    "optional": "std::optional<int> v;",
    "ratio": "",
    "span": "",
    "variant": "",
    "cub/cub.cuh": "using R = cub::BlockReduce<float, 32>; __shared__ R::TempStorage w; x[1] = R(w).Sum(x[0]);",
    "cooperative_groups.h": "cooperative_groups::this_thread_block().sync();",
    "cuda_fp8.h": "__nv_fp8_e4m3 y(1.0f);",
    "cuda.h": "CUtensorMap aa; CUdeviceptr ab = 0;",
    "mma.h": "nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> z;",
    "cuda_runtime.h": "float4 z2 = make_float4(0, 0, 0, INFINITY); cudaGridDependencySynchronize();",
}


def test_a_source_may_include_the_headers_of_nvcc():
    pytest.importorskip("cuda.bindings.nvrtc")
    includes = "".join(f"#include <{name}>\n" for name in [*USES, *USES])
    body = "\n    ".join(USES.values())
    head = 'struct Pair { int first, second; };\nextern "C" __global__ void f(float* x, int n)'
    assert nvrtc.compile_cubin(f"{includes}{head} {{\n    {body}\n}}\n", OPTIONS).code
    assert {file.name for file in nvrtc.STANDARD_HEADERS.iterdir()} - {"cub"} <= set(USES)


@pytest.mark.parametrize(
    "order", [("dialect.h", "math.h", "cfloat"), ("math.h", "cfloat", "dialect.h")]
)
def test_the_dialect_goes_with_the_headers_in_any_order(order, tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc")
    from autotune.kernel.includes import flattened

    body = "KERNEL(32, 1, 0) f(GLOBAL float* x) { x[0] = INFINITY + FLT_MAX + DBL_MAX + NAN; }\n"
    (tmp_path / "f.cu").write_text("".join(f'#include "{name}"\n' for name in order) + body)
    assert nvrtc.compile_cubin(flattened(tmp_path / "f.cu").text, OPTIONS).code


@pytest.mark.parametrize(
    ("header", "remedy"),
    [
        ("vector", r"NVRTC has no host code; put the include under #ifndef __CUDACC_RTC__"),
        ("time.h", r"NVRTC has no host code; put the include under #ifndef __CUDACC_RTC__"),
        ("cublas_v2.h", r"NVRTC has no host code; put the include under #ifndef __CUDACC_RTC__"),
        ("mine.h", r"name its folder: @k.options with \[f\"-I\{Path\(__file__\).parent\}\"\]"),
        ("cuda/no_such", r"pip install 'kernel-autotune\[nvrtc\]'"),
        ("cutlass/cutlass.h", r"pip install nvidia-cutlass"),
    ],
)
def test_a_missing_header_has_a_remedy_in_its_line(header, remedy):
    pytest.importorskip("cuda.bindings.nvrtc")
    with pytest.raises(CompileError) as caught:
        nvrtc.compile_cubin(f"#include <{header}>\n", OPTIONS)
    assert re.search(rf'cannot open source file "{header}"; {remedy}', str(caught.value))


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("int blocks = 4;", r"host variable.*; put host code under #ifndef __CUDACC_RTC__"),
        ("int f() { return 4; }", r"host function.*-default-device in the options hook"),
        (
            "__device__ float f() { return INFINITY; }",
            r'"INFINITY" is undefined; .*#include <cmath>',
        ),
        ("__device__ uint32_t f();", r'"uint32_t" is undefined; .*#include <cstdint>'),
        ("__device__ float f() { return speed; }", r'"speed" is undefined$'),
    ],
)
def test_code_that_nvcc_takes_has_a_remedy_in_its_line(code, error):
    pytest.importorskip("cuda.bindings.nvrtc")
    with pytest.raises(CompileError) as caught:
        nvrtc.compile_cubin(f"{code}\n", OPTIONS)
    assert re.search(rf"error: .*{error}", str(caught.value), re.MULTILINE)


def test_a_kernel_that_the_source_lacks_is_named():
    pytest.importorskip("cuda.bindings.nvrtc")
    with pytest.raises(
        CompileError, match=r"the source has no kernel k: name one by Launch\(entry="
    ):
        nvrtc.compile_cubin("__global__ void scale(float* x) {}\n", OPTIONS, ["k"])
