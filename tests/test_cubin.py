"""Reads a cubin: variables in constant memory by their C++ names, and its machine code."""

from typing import Any

import pytest
from sample_spaces import SOURCE, write_space

from autotune.checking.kernel_check import check_kernel
from autotune.compiling.binaries import code_hash
from autotune.devices import cubin, nvrtc
from autotune.devices.base import Binary, LaunchError
from autotune.kernel.catalog import load_file

CONSTANTS = """
namespace outer {
__constant__ float weights[4];
namespace inner { __constant__ double deep; }
static __constant__ float hidden[3];
}
namespace other { __constant__ float weights[2]; }
namespace { __constant__ float nameless[5]; }
static __constant__ int inside[7];
template <int N, class T = float, bool B = true> __constant__ T table[N];
__device__ float no_constant;
extern "C" __global__ void f(float* x, int n) {
    x[0] = outer::weights[n] + outer::inner::deep + outer::hidden[n] + other::weights[n] + nameless[n] + inside[n]
        + table<128>[n] + table<64, int, false>[n] + no_constant;
}
"""


@pytest.fixture(scope="module")
def code():
    pytest.importorskip("cuda.bindings.nvrtc")
    return nvrtc.compile_cubin(CONSTANTS, ["-arch=sm_90", "-std=c++17"]).code


def test_constants_have_their_names_of_cpp(code):
    assert {name: variable.nbytes for name, variable in cubin.constants(code).items()} == {
        "outer::weights": 16,
        "outer::inner::deep": 8,
        "outer::hidden": 12,
        "other::weights": 8,
        "nameless": 20,
        "inside": 28,
        "table<128, float, true>": 512,
        "table<64, int, false>": 256,
    }


def test_a_constant_is_found_by_the_part_of_its_name_that_no_other_has(code):
    assert cubin.constant(code, "outer::weights", 16) == "_ZN5outer7weightsE"
    assert cubin.constant(code, "deep", 8) == cubin.constant(code, "outer::inner::deep", 8)
    assert cubin.constant(code, "inner::deep", 8) == cubin.constant(code, "deep", 8)
    assert cubin.constant(code, "inside", 4) == "inside"
    assert cubin.constant(code, "table<64>", 4) == cubin.constant(code, "table<64,int>", 4)
    assert cubin.constant(code, "table<64, int, false>", 256) == "_Z5tableILi64EiLb0EE"


@pytest.mark.parametrize(
    ("name", "nbytes", "message"),
    [
        (
            "weights",
            8,
            r"several .* named weights: outer::weights, .*Constant\(array, symbol='outer",
        ),
        (
            "outer::weight",
            8,
            r"unknown __constant__ variable 'outer::weight'; did you mean 'outer::w",
        ),
        ("no_constant", 4, r"unknown .*; a variable that the source does not declare or use"),
        ("nameless", 24, r"nameless has 20 bytes, its argument 24; give the array the shape"),
    ],
)
def test_a_constant_that_does_not_fit_is_named(code, name, nbytes, message):
    with pytest.raises(LaunchError, match=message):
        cubin.constant(code, name, nbytes)


@pytest.mark.parametrize("symbol", ["plain", "_Zx", "_Z3fooIPfE", "_Z3foov", "_ZN3foo3barEv"])
def test_an_unknown_form_of_a_name_stays(symbol):
    assert cubin.cpp_name(symbol) == symbol


def test_check_names_a_constant_that_no_binary_has(tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc")
    edits = [
        ("problems=", 'backends=("cuda",), problems='),
        ("import Kernel", "import Constant, Kernel"),
        ('"n": p.n}', '"n": p.n, "scale": Constant(np.ones(4, np.float32))}'),
    ]
    kernel = load_file(write_space(tmp_path, *edits))
    (tmp_path / "kernels" / "scale.cu").write_text(
        SOURCE.replace(
            "KERNEL(", "namespace a { __constant__ float scale_of[4]; }\nKERNEL(", 1
        ).replace("factor * x", "a::scale_of[i & 3] * x")
    )
    (failure,) = check_kernel(kernel, ["sm_90"], samples=1, seed=0).failures
    assert "unknown __constant__ variable 'scale'; did you mean 'a::scale_of'?" in failure


LOOP = """
extern "C" __global__ void f(float* x, int n) {
    __shared__ float tile[SIZE];
    for (int i = 0; i < n; ++i) tile[i] = x[i] * FACTOR;
    for (int i = 0; i < n; ++i) x[i] = tile[n - i];
}
"""


def hash_of(size: int = 64, factor: float = 2.0) -> str:
    source = LOOP.replace("SIZE", str(size)).replace("FACTOR", f"{factor}f")
    made = nvrtc.compile_cubin(source, ["-arch=sm_90"])
    assert cubin.code_hash(made.code) == code_hash(Binary(made.code, (), "", ""))
    return cubin.code_hash(made.code)


def test_the_hash_of_machine_code_leaves_out_what_only_names_it() -> None:
    """Two cubins with the same code: one also has lines, which makes its other sections differ."""
    pytest.importorskip("cuda.bindings.nvrtc")
    plain, with_lines = (
        nvrtc.compile_cubin(LOOP.replace("SIZE", "64").replace("FACTOR", "2"), options).code
        for options in (["-arch=sm_90"], ["-arch=sm_90", "-lineinfo"])
    )
    assert plain != with_lines
    assert cubin.code_hash(plain) == cubin.code_hash(with_lines)


@pytest.mark.parametrize(
    "changed",
    [{"size": 128}, {"factor": 3.0}],
    ids=["shared memory", "a constant"],
)
def test_the_hash_of_machine_code_changes_with_the_code(changed: dict[str, Any]) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    assert hash_of() == hash_of() != hash_of(**changed)


def test_the_hash_of_machine_code_has_the_registers(code: bytes) -> None:
    """They decide how many blocks a multiprocessor holds."""
    registers = code.index(bytes([4, 0x2F, 8, 0])) + 8
    more = code[:registers] + bytes([code[registers] + 8]) + code[registers + 1 :]
    assert len(more) == len(code)
    assert cubin.code_hash(more) != cubin.code_hash(code)


def test_the_hash_of_a_binary_that_is_no_cubin_is_of_all_its_bytes() -> None:
    first, second = (code_hash(Binary(code, (), "", "")) for code in (b"pocl 1", b"pocl 2"))
    assert first != second and len(first) == 64
