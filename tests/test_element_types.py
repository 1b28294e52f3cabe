"""Types that NumPy lacks: bits and values, drawn data, what is verified and what is refused."""

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import ml_dtypes
import numpy as np
import pytest
from sample_spaces import write_space

from autotune import BFloat16, Operand, Out, load, tune
from autotune.calling.binding import bind
from autotune.compiling.binaries import compiled_for
from autotune.data.arguments import declared_argument, declared_arguments
from autotune.data.dataset import EXACT, RANDOM
from autotune.data.draw import DeclaredShapes, Draw
from autotune.data.prepare import prepare_dataset
from autotune.devices.choose import backend, choose_device
from autotune.devices.device import for_arch
from autotune.element_types import ELEMENT_TYPES, ENCODED_TYPES
from autotune.encoding import (
    decoded,
    dtype_of,
    element_of,
    encoded,
    encoded_type,
    finite_values,
    has_value,
    is_held,
    nearest_value,
)
from autotune.errors import SpecError, UsageError
from autotune.kernel.catalog import bundled_folder, find_kernel, load_file
from autotune.measure import verify
from autotune.measure.verify import DeviceData, WrongResult
from autotune.values import Problem

SHORT = [name for name, element in ENCODED_TYPES.items() if element.bits <= 8]
FLOATS = [name for name in ENCODED_TYPES if name.startswith(("bfloat", "float"))]
COUNT = 998


# ---------------------------------------------------------------- bits and values


@pytest.mark.parametrize("name", SHORT)
def test_every_value_has_its_own_bits(name: str):
    values = finite_values(name)
    values = values[: len(values) // 2 * 2].reshape(2, -1)
    values = values[:, : values.shape[1] // 2 * 2]
    bits = encoded(values, name)
    np.testing.assert_array_equal(decoded(bits, name), values)
    assert bits.nbytes * 8 == values.size * ENCODED_TYPES[name].bits
    assert bits.dtype == ENCODED_TYPES[name].stored
    assert is_held(values, name) and np.array_equal(nearest_value(values, name), values)


def test_numbers_are_rounded_to_the_nearest():
    numbers = [1, -1.5, 0, 1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, np.inf, np.nan, 1 + 2**-8 + 2**-20]
    expected = [1, -1.5, 0, 1, 1 + 2**-6, np.inf, np.inf, np.nan, 1 + 2**-7]
    found = decoded(encoded(np.float64(numbers), "bfloat16"), "bfloat16")
    np.testing.assert_array_equal(found, np.float32(expected))
    assert encoded(np.empty((3, 0), np.float32), "bfloat16").shape == (3, 0)
    found = nearest_value(np.array([500.0, -1e9, 1.05, 0.0]), "float8_e4m3fn")
    np.testing.assert_array_equal(found, [448, -448, 1, 0])


def test_of_two_elements_in_a_byte_the_first_is_low():
    bits = encoded(np.array([1.0, -6.0]), "float4_e2m1fn")
    assert bits.tolist() == [0xF2], "1 is 0010, -6 is 1111"
    assert decoded(np.uint8([[0x21, 0xFE]]), "int4").tolist() == [[1, 2, -2, -1]]
    assert element_of("uint4", 3) == 0x33 and element_of("float32", 2).dtype == np.float32


def test_a_type_is_known_by_name_scalar_type_and_dtype():
    for given in ("float8_e5m2", ml_dtypes.float8_e5m2, np.dtype(ml_dtypes.float8_e5m2)):
        assert encoded_type(given).cuda == "__nv_fp8_e5m2"
    assert encoded_type("float32") is encoded_type(np.int8) is encoded_type([("a", "f4")]) is None
    for name, element in ELEMENT_TYPES.items():
        assert dtype_of(name).itemsize * 8 == max(8, element.bits)


@pytest.mark.parametrize(
    ("name", "lacking"),
    [
        ("bfloat16", []),
        ("float8_e5m2", []),
        ("float8_e4m3fn", [np.inf]),
        ("float8_e8m0fnu", [np.inf, 0.0, -1.0]),
        ("float4_e2m1fn", [np.inf, np.nan]),
    ],
)
def test_a_type_may_lack_nan_infinity_and_zero(name: str, lacking: list[float]):
    numbers = (1.0, 0.0, -1.0, np.inf, np.nan, 1e30)
    assert [n for n in numbers if not has_value(n, name)] == pytest.approx(
        [n for n in numbers if str(n) in map(str, lacking)], nan_ok=True
    )


# ---------------------------------------------------------------- drawn data


@pytest.mark.parametrize("name", ENCODED_TYPES)
def test_exact_data_are_few_numbers_of_the_type(name: str):
    rng = Draw(exact=True, key=1)
    for drawn in (rng.standard_normal(COUNT, name), rng.uniform(0.25, 5, COUNT, dtype=name)):
        assert drawn.dtype == dtype_of(name)
        values = drawn.astype(np.float32)
        assert np.isfinite(values).all() and (values != 0).all()
        assert 2 <= len(set(values.tolist())) <= 4


@pytest.mark.parametrize("name", FLOATS)
def test_random_data_are_numbers_of_the_type(name: str):
    rng = Draw(exact=False, key=1)
    values = rng.standard_normal(1 << 14, name).astype(np.float32)
    assert 0.8 < np.abs(values).mean() * 1.25 < 1.2 and np.isfinite(values).all()
    assert (values < 0).any() == (name != "float8_e8m0fnu"), "it has no sign"
    values = rng.uniform(0.5, 4, 1 << 14, name).astype(np.float32)
    assert 0.5 <= values.min() < 0.6 and 1.9 < values.max() < 4
    assert rng.integers(-3, 4, 5, name).dtype == dtype_of(name)
    assert rng.standard_normal(None, name).dtype == dtype_of(name)
    assert DeclaredShapes(1).uniform(0, 1, (1 << 40, 3), name).shape == (1 << 40, 3)


@pytest.mark.parametrize("exact", [True, False])
def test_both_parts_of_complex_numbers_are_drawn(exact: bool):
    rng = Draw(exact, key=1)
    for found in (
        rng.standard_normal((50, 3), "complex64"),
        rng.normal(0, 1, (50, 3), np.complex64),
        rng.uniform(1, 2, (50, 3), dtype="complex64"),
    ):
        assert (found.dtype, found.shape) == (np.complex64, (50, 3))
        assert len(set(found.imag.flat)) > 1 and np.all(found.imag != 0)
    assert rng.standard_normal(None, "complex128").imag != 0
    declared = DeclaredShapes(0).standard_normal((1 << 40, 3), "complex64")
    assert (declared.shape, declared.dtype) == ((1 << 40, 3), np.complex64)


def test_a_range_without_numbers_of_the_type_is_refused():
    with pytest.raises(ValueError, match="float4_e2m1fn"):
        Draw(exact=True, key=1).uniform(0.1, 0.2, 5, "float4_e2m1fn")


def test_bfloat16_takes_bits_and_broadcast_numbers():
    same = BFloat16(np.broadcast_to(np.float32(2), (1 << 40, 3)))
    assert same.shape == (1 << 40, 3) and same[0, 0] == 2
    assert BFloat16(np.uint16([0x4000])).tolist() == [2]


# ---------------------------------------------------------------- verification


@pytest.fixture(scope="module")
def executor(opencl_device):
    return backend("opencl").open(choose_device(opencl_device))


@pytest.fixture
def data(executor, tmp_path):
    """Device data of ``out = reference(x)`` in types of two names."""

    def made(x, out, reference, drawn="rng.standard_normal(p.n", n=COUNT):
        file = write_space(
            tmp_path,
            ("problems=[Problem(n=1000)]", f"problems=[Problem(n={n})]"),
            ("rng.standard_normal(p.n, dtype=np.float32)", f'{drawn}, dtype="{x}")'),
            ("Out(p.n)", f'Out(p.n, "{out}")'),
            ("return factor * x", f"return {reference}"),
        )
        kernel = load_file(file)
        sets = {which: prepare_dataset(kernel, Problem(n=n), which) for which in (EXACT, RANDOM)}
        return DeviceData(executor, sets)

    return made


def kernel(made: DeviceData, function):
    """Return a kernel that writes the values of a function, as stored bits, and waits."""
    x, out = made.argument("x"), made.argument("out")

    def run():
        stored = made.executor.read(made.buffers["x"], np.dtype(x.dtype), x.stored_shape)
        found = function(x.values(stored))
        bits = found if found.nbytes == out.nbytes else encoded(found, out.bits_of)
        made.executor.write(made.buffers["out"], bits)

    return run


def truncated(values, name):
    """Round towards zero."""
    held = finite_values(name)
    below = held[np.searchsorted(held, np.abs(values) * (1 + 1e-7), "right") - 1]
    return np.copysign(below, values).astype(np.float32)


@pytest.mark.opencl
@pytest.mark.parametrize("name", [*FLOATS, "int4", "uint4"])
def test_a_copy_is_exact_and_every_wrong_bit_shows(data, name: str):
    drawn = "rng.standard_normal(p.n" if name in FLOATS else "rng.integers(0, 8, p.n"
    made = data(name, name, "x", drawn)
    for which in (EXACT, RANDOM):
        (check,) = verify.verify(made, which, kernel(made, lambda x: x))
        assert check.is_correct and check.max_error == 0

        def wrong(x):
            bits = encoded(x, name)
            bits[-1] ^= 1 << (6 if name == "bfloat16" else 0)
            return bits

        with pytest.raises(WrongResult, match=r"^out\[99\d\] is \S+, expected "):
            verify.verify(made, which, kernel(made, wrong))
        with pytest.raises(WrongResult, match="not written"):
            verify.verify(made, which, lambda: None)


@pytest.mark.opencl
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"])
def test_rounding_to_the_nearest_is_right_and_truncation_is_wrong(data, name: str):
    made = data("float32", name, "0.73 * x")
    right = kernel(made, lambda x: np.float32(0.73) * x)
    cut = kernel(made, lambda x: truncated(np.float32(0.73) * x, name))
    for which in (EXACT, RANDOM):
        (check,) = verify.verify(made, which, right)
        assert check.is_correct and check.max_error > 0
        with pytest.raises(WrongResult, match=r"^out\[\d+\] is \S+, expected "):
            verify.verify(made, which, cut)
    with pytest.raises(WrongResult):
        verify.verify(made, RANDOM, kernel(made, lambda x: np.float32(0.76) * x))


@pytest.mark.opencl
def test_sums_that_round_to_the_other_side_of_a_middle_are_right(data):
    """Half an ulp and the error of the sum: a result next to a middle may be either neighbour."""
    made = data("float32", "float8_e4m3fn", "np.full(len(x), 1.0625) + 0 * x", n=64)
    bounds = made.datasets[RANDOM].element_bounds("out")
    assert bounds is None or bounds.max() <= 0.0626
    for value in (1.0, 1.125):
        verify.verify(made, RANDOM, kernel(made, lambda x, v=value: np.full(len(x), v, "f4")))
    with pytest.raises(WrongResult):
        verify.verify(made, RANDOM, kernel(made, lambda x: np.full(len(x), 1.25, "f4")))


@pytest.mark.opencl
def test_a_kernel_may_saturate_but_not_write_nan_beyond_the_largest_value(data):
    made = data("float32", "float8_e4m3fn", "300 * x")
    limit = np.float32(448)
    saturated = kernel(made, lambda x: np.clip(300 * x, -limit, limit))
    verify.verify(made, EXACT, saturated)
    verify.verify(made, RANDOM, saturated)
    with pytest.raises(WrongResult, match=r"is nan, expected -?6"):
        verify.verify(made, EXACT, kernel(made, lambda x: 300 * x))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            Out(5, "float8_e3m4"),
            "x is float8_e3m4, a type of no kernel .known: bfloat16, .* as uint8",
        ),
        (np.zeros(5, ml_dtypes.int2), "x is int2, a type of no kernel"),
        (ml_dtypes.float8_e5m2(2), "x is float8_e5m2; expected .* a number of a type of NumPy"),
        (ml_dtypes.bfloat16(2), "x is bfloat16; expected"),
    ],
)
def test_a_type_of_no_kernel_is_named(tmp_path, value, message: str):
    with pytest.raises(SpecError, match=message):
        declared_argument(load_file(write_space(tmp_path)), "x", value)


def test_an_offset_counts_elements_also_if_two_share_a_byte(tmp_path):
    edits = (
        ("problems=[", 'backends=("cuda",), layout={"offset_x": 0}, problems=['),
        ("dtype=np.float32", 'dtype="int4"'),
    )
    kernel = load_file(write_space(tmp_path, *edits))
    argument = declared_arguments(kernel, Problem(n=64))["x"]
    assert (argument.nbytes, replace(argument, offset=6).offset_bytes) == (32, 3)
    bytes_of_caller = Operand((32,), (1,), "uint8", offset=3, source=0)
    given = {"x": bytes_of_caller, "out": Operand.new((64,), "float32")}
    kernel.call(lambda x: (Problem(n=64), given))
    call = bind(kernel, (bytes_of_caller,), {}, lambda name: kernel)
    assert call.problem["offset_x"] == 6


@pytest.mark.opencl
def test_a_reference_beyond_the_type_is_named(data):
    made = data("float32", "float4_e2m1fn", "np.where(x > 0, x, np.nan)")
    with pytest.raises(WrongResult, match="expected nan, which float4_e2m1fn cannot hold"):
        verify.verify(made, EXACT, kernel(made, lambda x: x))
    with pytest.raises(SpecError, match=r"holds 9\.0, which int4 cannot hold"):
        data("float32", "int4", "np.full(len(x), 9.0)")
    with pytest.raises(SpecError, match=r"x is float4_e2m1fn\[7\]; two elements share a byte"):
        data("float4_e2m1fn", "float32", "x", n=7)
    with pytest.raises(SpecError, match=r"out is int4\[7\]; two elements share a byte"):
        data("float32", "int4", "0 * x", n=7)


# ---------------------------------------------------------------- a kernel that changes bits

NEGATE = """
from autotune import Fill, Kernel, Launch, Operand, Out, Problem, ceil_div

negate = Kernel("negate.cu", problems=[Problem(n=1000)], BLOCK=(32, 64),
                default={{"BLOCK": 64}})

@negate.arguments
def arguments(p, rng):
    return {{"x": rng.standard_normal(p.n, dtype="{name}"), "y": Out(p.n, "{name}")}}

@negate.scratch
def scratch(c, p):
    return {{"one": Out((2,), "{scratch}")}}

@negate.launch
def launch(c, p):
    step = Launch((ceil_div(p.n * {bits} // 8, c.BLOCK),), (c.BLOCK,),
                  args=("x", "y", "one", p.n * {bits} // 8))
    return Fill("y", 3), Fill("one", 1), step

{reference}
@negate.requires
def requires(c, p):
    return p.n % 2 == 0

@negate.call
def call(x):
    n = x.shape[-1] * (8 // {bits} if x.dtype == "uint8" else 1)
    return Problem(n=n), {{"x": x}}
"""
SOURCE = """
#include "dialect.h"
// Changes signs. A fill wrote 3 to y and 1 to one.
KERNEL(BLOCK, 1, 1)
negate(GLOBAL const unsigned char* x, GLOBAL unsigned char* y, GLOBAL const unsigned char* one, int n) {{
  int i = BID(0) * BLOCK + TID(0);
  if (i < n && y[i] == {three} && one[0] == {one} && one[1] == {one}) y[i] = x[i] ^ {sign};
}}
"""
REFERENCE = "@negate.reference\ndef reference(x):\n    return -x\n\n"


@pytest.fixture
def negate(tmp_path, monkeypatch):
    """Write the kernel for a type of at most 8 bits; return its space file."""

    def written(name: str, reference: str = REFERENCE):
        bits = ENCODED_TYPES[name].bits
        scratch = "uint8" if bits < 8 else name
        (tmp_path / "spaces").mkdir(exist_ok=True)
        (tmp_path / "kernels").mkdir(exist_ok=True)
        numbers = {
            "three": int(element_of(name, 3)),
            "one": int(element_of(scratch, 1)),
            "sign": "0x80" if bits == 8 else "0x88",
        }
        (tmp_path / "kernels" / "negate.cu").write_text(SOURCE.format(**numbers))
        dialect = bundled_folder("kernels") / "dialect.h"
        (tmp_path / "kernels" / "dialect.h").write_text(dialect.read_text())
        file = tmp_path / "spaces" / "negate.py"
        fields = {"name": name, "bits": bits, "scratch": scratch, "reference": reference}
        file.write_text(NEGATE.format(**fields))
        return file

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return written


@pytest.mark.opencl
@pytest.mark.slow
@pytest.mark.parametrize(
    ("reference", "what"),
    [
        pytest.param(REFERENCE, {"config": {"BLOCK": 64}}, id="one"),
        pytest.param(REFERENCE, {"budget": "2evals"}, id="reference", marks=pytest.mark.full),
        pytest.param("", {"budget": "2evals"}, id="agreement", marks=pytest.mark.full),
    ],
)
@pytest.mark.filterwarnings("ignore:negate. not verified at n=999")
def test_a_kernel_of_packed_elements_is_tuned(negate, opencl_device, reference: str, what: dict):
    file = negate("float4_e2m1fn", reference)
    found = tune(str(file), device=opencl_device, quiet=True, **what)
    assert set(found.frame["status"]) == {"ok"}


@pytest.mark.opencl
@pytest.mark.filterwarnings("ignore:no tuned record")
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_calls_take_arrays_of_ml_dtypes_and_their_bits(negate, opencl_device, name: str):
    function = load(str(negate(name)))
    x = np.arange(-8, 8).astype(dtype_of(name))
    found = function(x)
    assert found.dtype == x.dtype and np.array_equal(found, (-x.astype("f4")).astype(x.dtype))
    assert np.array_equal(function(x[::-2]), found[::-2]), "a view"


@pytest.mark.opencl
@pytest.mark.filterwarnings("ignore:no tuned record")
def test_arrays_of_another_library_come_back_through_its_asarray(
    negate, opencl_device, monkeypatch
):
    """NumPy passes no type of ml_dtypes through DLPack, which JAX would read."""
    library = ModuleType("eight_bits")
    library.asarray = lambda array: Array(array)

    class Array:
        __module__ = "eight_bits"

        def __init__(self, values):
            self.values = values

        def __array__(self, dtype=None, copy=None):
            return self.values

    monkeypatch.setitem(sys.modules, "eight_bits", library)
    x = np.arange(-8, 8).astype(ml_dtypes.float8_e4m3fn)
    found = load(str(negate("float8_e4m3fn")))(Array(x))
    assert isinstance(found, Array)
    np.testing.assert_array_equal(found.values.astype("f4"), -x.astype("f4"))


@pytest.mark.opencl
@pytest.mark.filterwarnings("ignore:no tuned record")
def test_calls_take_packed_bytes(negate, opencl_device):
    function, x = load(str(negate("float4_e2m1fn"))), np.array([0.5, -1, 6, 2] * 8)
    found = function(encoded(x, "float4_e2m1fn"))
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(decoded(found, "float4_e2m1fn"), -x)
    with pytest.raises(UsageError, match=r"kernels take two: .* b\[\.\.\., 1::2\] << 4"):
        function(x.astype(ml_dtypes.float4_e2m1fn))


# ---------------------------------------------------------------- the example with 8-bit floats

FP8_ROWS = Path(__file__).parents[1] / "examples" / "fp8_rows" / "spaces"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "columns", "vector"), [("sm_80", 999, 1), ("sm_90", 4096, 8), ("sm_120", 4100, 4)]
)
def test_the_example_compiles(arch: str, columns: int, vector: int):
    pytest.importorskip("cuda.bindings.nvrtc")
    kernel = find_kernel("fp8_rows", FP8_ROWS)
    problem, configuration = (
        Problem(rows=3, columns=columns),
        {"BLOCK": 128, "VECTOR": vector, "KEPT": 2},
    )
    binary = compiled_for(kernel, configuration, problem, for_arch(arch))
    assert binary.entry("fp8_rows").spill_bytes == 0


def quantized(x, factor=1.0, rounding=lambda q: q):
    """Return the bits and scales that the example computes, in float32."""
    most = np.abs(x).max(axis=1)
    reciprocal = np.where(most > 0, np.float32(448) / most, np.float32(1))[:, None]
    scale = np.where(most > 0, most / np.float32(448), 1).astype(np.float32)
    q = np.clip(rounding(x * reciprocal * np.float32(factor)), -448, 448)
    return encoded(q.astype(np.float32), "float8_e4m3fn"), scale


@pytest.mark.opencl
@pytest.mark.parametrize("shape", [(5, 999), (64, 512)])
def test_the_example_accepts_its_arithmetic_alone(executor, shape: tuple[int, int]):
    kernel, problem = find_kernel("fp8_rows", FP8_ROWS), Problem(rows=shape[0], columns=shape[1])
    sets = {which: prepare_dataset(kernel, problem, which) for which in (EXACT, RANDOM)}
    made = DeviceData(executor, sets)

    def computed(**wrong):
        def run():
            bits = executor.read(made.buffers["x"], np.dtype(np.uint16), shape)
            q, scale = quantized(made.argument("x").values(bits), **wrong)
            executor.write(made.buffers["q"], q)
            executor.write(made.buffers["scale"], scale)

        return run

    for which in (EXACT, RANDOM):
        checks = verify.verify(made, which, computed())
        assert all(check.is_correct for check in checks)
        with pytest.raises(WrongResult, match=r"q\[\d+, \d+\] is"):
            verify.verify(made, which, computed(factor=0.96))
    for rounding in (
        lambda q: truncated(q, "float8_e4m3fn"),
        lambda q: q * np.float32(1.002),
        lambda q: q.astype(np.float16) * np.float32(0.998),
    ):
        with pytest.raises(WrongResult, match=r"q\[\d+, \d+\] is"):
            verify.verify(made, RANDOM, computed(rounding=rounding))
