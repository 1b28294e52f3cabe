"""`load`: which configuration is launched, what is refused, and results on host arrays.

What runs on device arrays is in tests/gpu.
"""

import math
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_records import defaults_of, tuned_problem, write

from autotune import Out, linalg, load
from autotune.answers.table import Plan
from autotune.calling.binding import CallArguments, ResolvedCall, bind
from autotune.calling.choice import choose
from autotune.calling.libraries import Numpy
from autotune.data.arguments import declared_arguments
from autotune.devices.choose import choose_device
from autotune.devices.device import Device, for_arch
from autotune.errors import MissingDependencyError, NothingValidError, SpecError, UsageError
from autotune.kernel.catalog import bundled_folder, find_kernel
from autotune.kernel.operand import Instead, NothingToDo, Operand
from autotune.kernel.space import enumerate_space, is_member, valid_archs
from autotune.kernel.spec import Kernel
from autotune.tuned.lookup import clear_cache
from autotune.tuned.record import Provenance, TunedRecord
from autotune.tuned.recorded_device import RecordedDevice
from autotune.values import Configuration, Problem

SPACE = '''
"""y = a x + y, and a count of calls."""
import numpy as np
from autotune import Fill, InOut, Kernel, Launch, Out, Problem, ceil_div

axpy = Kernel("axpy.cu", problems=[Problem(n=1000)], default={"BLOCK": 64},
              BLOCK=(32, 64, 128), PER_THREAD=(1, 2))

@axpy.constraint
def small(BLOCK, PER_THREAD):
    """At most 128 elements per block."""
    return BLOCK * PER_THREAD <= 128

@axpy.arguments
def arguments(p, rng):
    x = rng.standard_normal(p.n)
    return {"x": x, "y": InOut(rng.standard_normal(p.n)), "total": Out((1,)), "a": 2.0, "n": p.n}

@axpy.scratch
def scratch(c, p):
    return {"unused": Out((p.n,))}

@axpy.reference
def reference(x, y, a):
    return {"y": a * x + y, "total": np.zeros(1)}

@axpy.launch
def launch(c, p):
    step = Launch(grid=(ceil_div(p.n, c.BLOCK * c.PER_THREAD),), block=(c.BLOCK,),
                  args=("x", "y", "total", "a", "n", 7))
    return Fill("total", 0), step

@axpy.call
def call(x, y, a=2.0):
    return Problem(n=len(x)), {"x": x, "y": y, "a": a, "n": len(x)}
'''
SOURCE = """
#include "dialect.h"
KERNEL(BLOCK, 1, 1)
axpy(GLOBAL const float* x, GLOBAL float* y, GLOBAL float* total, float a, int n,
                 int seven) {
  for (int k = 0; k < PER_THREAD; ++k) {
    int i = (BID(0) * PER_THREAD + k) * BLOCK + TID(0);
    if (i < n) y[i] = a * x[i] + y[i];
    if (i == 0) total[0] = total[0] + seven;
  }
}
"""


@pytest.fixture
def axpy(tmp_path, monkeypatch):
    """A kernel with a fill, a scratch buffer, an in-out, an output and a literal argument."""
    for folder in ("spaces", "kernels"):
        (tmp_path / folder).mkdir()
    (tmp_path / "spaces/axpy.py").write_text(SPACE)
    (tmp_path / "kernels/axpy.cu").write_text(SOURCE)
    (tmp_path / "kernels/dialect.h").write_text(
        (bundled_folder("kernels") / "dialect.h").read_text()
    )
    monkeypatch.setenv("AUTOTUNE_PATH", str(tmp_path / "spaces"))
    monkeypatch.setenv("AUTOTUNE_TUNED", str(tmp_path / "tuned"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    clear_cache()
    return load("axpy").kernel


def write_record(folder, kernel, device, deterministic=False, **values):
    """A record whose winner for n=1000 is a configuration, valid or not."""
    plan: dict[str, Any] = {"configuration": values, "block": (64, 1, 1), "grid": (1, 1, 1)}
    plan["deterministic"] = deterministic
    made = tuned_problem({"n": 1000}, Plan(**plan), source="older", arguments="older")
    write(
        folder,
        TunedRecord(
            kernel=kernel.name,
            device=RecordedDevice.of(device),
            fields={"n": "integer"},
            parameters={name: (*v, 999) for name, v in kernel.parameters.items()},
            defaults=defaults_of(Plan(**plan), {"n": "integer"}),
            problems=(made,),
            provenance=Provenance(version="", toolchain="", driver="", created="2026-11-21"),
        ),
    )
    clear_cache()


# ---------------------------------------------------------------------- which configuration


@pytest.mark.parametrize(
    "values",
    [{"BLOCK": 128, "PER_THREAD": 2}, {"BLOCK": 999, "PER_THREAD": 1}],
    ids=["constraint broken", "value not declared"],
)
def test_what_the_space_does_not_hold_is_never_compiled(values, axpy, tmp_path):
    """A record is data that anybody may have written."""
    device = for_arch("sm_90")
    write_record(tmp_path / "tuned", axpy, device, **values)
    with pytest.warns(
        RuntimeWarning,
        match="no recorded configuration is valid on sm_90.*autotune run axpy",
    ):
        chosen = choose(axpy, Problem(n=1000), device)
    assert dict(chosen.configuration) == {"BLOCK": 64, "PER_THREAD": 1}
    assert chosen.tuned is None


@pytest.mark.parametrize("recorded", [True, False])
def test_only_what_is_deterministic_is_launched_where_that_is_asked(
    axpy, tmp_path, opencl_device, recorded
):
    device = choose_device(opencl_device)
    axpy.deterministic(lambda c, p: recorded or c.BLOCK == 64)
    write_record(tmp_path / "tuned", axpy, device, recorded, BLOCK=32, PER_THREAD=2)
    assert load(axpy).choice(n=1000).configuration["BLOCK"] == 32
    kept = load(axpy, deterministic=True)
    if recorded:
        assert kept.choice(n=1000).configuration["BLOCK"] == 32
    else:
        with pytest.warns(RuntimeWarning, match="declared deterministic.*its default"):
            assert kept.choice(n=1000).configuration["BLOCK"] == 64
    x, y = np.ones(1000, np.float32), np.zeros(1000, np.float32)
    assert "deterministic" in repr(kept)
    with warnings.catch_warnings(action="ignore"):  # the same again
        np.testing.assert_array_equal(kept(x, y)[0], np.full(1000, 2, np.float32))


def test_where_nothing_is_known_to_be_deterministic_a_call_is_refused(axpy, opencl_device):
    x = np.ones(1000, np.float32)
    message = r"for \(n=1000\) on .*\(@axpy.deterministic\), then tune"
    with pytest.warns(RuntimeWarning), pytest.raises(UsageError, match=message):
        load(axpy, deterministic=True)(x, x.copy())


def test_without_a_record_the_default_runs(axpy):
    with pytest.warns(RuntimeWarning, match="default configuration"):
        chosen = choose(axpy, Problem(n=1000), for_arch("sm_90"))
    assert dict(chosen.configuration) == {"BLOCK": 64, "PER_THREAD": 1}


def test_a_device_without_a_valid_default_is_said(axpy):
    axpy.source_of({}).default_values.update(PER_THREAD=2, BLOCK=128)
    with (
        pytest.warns(RuntimeWarning),
        pytest.raises(NothingValidError, match="neither the default"),
    ):
        choose(axpy, Problem(n=1000), for_arch("sm_90"))


@pytest.mark.parametrize("largest", [64, 32])
def test_a_block_that_an_opencl_device_does_not_allow_is_not_chosen(axpy, tmp_path, largest):
    """No constraint says what every launch has to keep."""
    tuned_on = Device("opencl", "One GPU", "opencl_gpu")
    write_record(tmp_path / "tuned", axpy, tuned_on, BLOCK=128, PER_THREAD=1)
    device = replace(tuned_on, max_threads_per_block=largest)
    with pytest.warns(RuntimeWarning, match="no recorded configuration is valid"):
        if largest == 64:
            assert choose(axpy, Problem(n=1000), device).configuration["BLOCK"] == 64
        else:
            with pytest.raises(NothingValidError, match="neither the default"):
                choose(axpy, Problem(n=1000), device)


def _conditional_kernel():
    kernel = Kernel("x.cu", A=(1, 2, 3), B=(False, True), C=("x", "y"), D=(1, 2))
    kernel.applies("C", "D")(_even)
    kernel.applies("D")(_is_y)
    kernel.constraint(_c_and_d)
    kernel.constraint(_fits)
    return kernel


def _even(A):
    return A == 2


def _is_y(B):
    return B


def _c_and_d(C, D, A):
    """Judges C and D."""
    return C == "x" or D == 2


def _fits(A, device):
    """Asks the device."""
    return device.shared_bytes_per_block >= A * 60000


@pytest.mark.parametrize("arch", ["sm_90", "sm_120"])
def test_membership_is_that_of_the_enumerated_space(arch):
    kernel, device = _conditional_kernel(), for_arch(arch)
    valid = set(enumerate_space(kernel, device))
    names = list(kernel.parameters)
    asked = [
        dict(zip(names, (a, b, c, d), strict=True))
        for a in (1, 2, 3, 4)
        for b in (False, True, 0)
        for c in ("x", "y", "z")
        for d in (1, 2, True)
    ]
    for values in asked:
        plain = all(type(values[n]) is type(v[0]) for n, v in kernel.parameters.items())
        assert is_member(kernel, values, device) == (plain and Configuration(values) in valid)
    assert not is_member(kernel, {"A": 1}, device)
    assert not is_member(kernel, {**asked[0], "E": 1}, device)


def test_valid_architectures_are_those_whose_space_has_it():
    kernel = _conditional_kernel()
    wide = {"A": 3, "B": False, "C": "x", "D": 1}
    assert "sm_90" in valid_archs(kernel, wide)
    assert "sm_120" not in valid_archs(kernel, wide)


# ---------------------------------------------------------------------- declared arguments


@given(st.integers(1, 10**12))
def test_arguments_are_described_without_drawing_them(n):
    kernel = Kernel("x.cu", A=(1,))
    kernel.arguments(_any_size)
    found = declared_arguments(kernel, Problem(n=n))
    assert [(argument.kind, argument.shape) for argument in found.values()] == [
        ("input", (n,)),
        ("input", (n, 2)),
        ("out", (n,)),
        ("scalar", ()),
    ]
    assert found["i"].dtype == "<i2"


def _any_size(p, rng):
    """Write into what is drawn, and divide by a sum that is 0 where all elements are."""
    x, weights = rng.uniform(size=p.n), rng.uniform(size=4)
    x[p.n // 2] = 2
    weights /= weights.sum()
    return {
        "x": x,
        "i": rng.integers(0, 9, (p.n, 2), np.int16),
        "y": Out((p.n,)),
        "n": np.int64(p.n),
    }


# ---------------------------------------------------------------------- running on host arrays


@pytest.mark.filterwarnings("ignore:no tuned record")
def test_host_arrays_run_on_the_cpu(axpy, opencl_device):
    tuned_axpy = load(axpy)
    for n in (1000, 77):
        x, y = np.arange(n, dtype=np.float32), np.ones(n, np.float32)
        changed, total = tuned_axpy(x, y, a=3)
        assert changed is y
        np.testing.assert_array_equal(y, 3 * x + 1)
        np.testing.assert_array_equal(total, [7])


@pytest.mark.filterwarnings("ignore:no tuned record")
def test_arrays_that_do_not_fit_are_refused(axpy, opencl_device):
    """Before a kernel reads past their end."""
    tuned_axpy = load(axpy)
    x = np.ones(100, np.float32)
    with pytest.raises(UsageError, match=r"y is float32\[50\].*needs float32\[100\]"):
        tuned_axpy(x, x[:50].copy())
    with pytest.raises(UsageError, match="y is float64"):
        tuned_axpy(x, x.astype(np.float64))
    with pytest.raises(UsageError, match="no argument is an array"):
        tuned_axpy(5, 6)
    with pytest.raises(UsageError, match=r"axpy\(x, y, a=2.0\): missing.*'y'"):
        tuned_axpy(x)
    with pytest.raises(UsageError, match=r"pass np\.asarray"):
        tuned_axpy([1.0, 2.0], x)
    with pytest.raises(UsageError, match=r"y is float32.*whose elements overlap"):
        tuned_axpy(x, np.broadcast_to(np.ones(1, np.float32), 100))
    x.flags.writeable = False
    with pytest.raises(UsageError, match="output y is read-only"):
        tuned_axpy(x, x)
    with pytest.raises(UsageError, match="a is 'two'; it must be a number"):
        tuned_axpy(x, x.copy(), a="two")


@pytest.mark.filterwarnings("ignore:no tuned record")
def test_views_are_read_and_written_where_they_lie(axpy, opencl_device):
    x, memory = np.arange(100, dtype=np.float32)[::-1], np.ones(201, np.float32)
    y = memory[1::2]
    load(axpy)(x, y)
    np.testing.assert_array_equal(y, 2 * np.arange(100)[::-1] + 1)
    np.testing.assert_array_equal(memory[::2], 1)


class Constants:
    """Arrays of a library that nobody knows and that never change, as those of JAX."""

    def __init__(self, values):
        self._values = np.array(values, np.float32)
        self._values.flags.writeable = False

    def __array__(self, dtype=None, copy=None):
        return self._values


@pytest.fixture
def constants(monkeypatch):
    """The class as its library has it, which takes what others made by DLPack."""
    library = ModuleType("constants")
    monkeypatch.setattr(Constants, "__module__", library.__name__)
    monkeypatch.setattr(
        library, "from_dlpack", lambda made: Constants(np.from_dlpack(made)), raising=False
    )
    monkeypatch.setitem(sys.modules, library.__name__, library)
    return Constants


@pytest.mark.filterwarnings("ignore:no tuned record")
def test_arrays_of_other_libraries_come_back_as_such(axpy, opencl_device, constants):
    x = constants([[0, 1, 2], [3, 4, 5]])
    result = load("transpose")(x)
    assert isinstance(result, constants)
    np.testing.assert_array_equal(result, np.asarray(x).T)
    ones = constants([1, 1])
    with pytest.raises(UsageError, match="output y is read-only"):
        load(axpy)(ones, ones)


@pytest.mark.filterwarnings("ignore:no tuned record")
def test_a_call_may_be_another_kernels(axpy, opencl_device):
    axpy.hooks["call"] = _instead
    assert load(axpy)(np.zeros((0, 3), np.float32)).shape == (0, 3)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(load(axpy)(x), x.T)
    assert load(axpy).choice(x).kernel == "transpose"


def _instead(x):
    return Instead("transpose", x) if x.size else NothingToDo((x,))


def test_kernels_that_call_each_other_without_end_are_refused(axpy):
    axpy.hooks["call"] = lambda x: Instead("axpy", x)
    with pytest.raises(SpecError, match="kernels pass the call on in a circle"):
        bind(axpy, (Operand.new((3,), "float32"),), {}, lambda name: axpy)


def test_a_call_that_changes_with_a_factor_is_made_for_each(axpy, opencl_device):
    x = np.ones(10, np.float32)
    with pytest.warns(RuntimeWarning):
        results = [load(axpy)(x, x.copy(), a=a)[0][0] for a in (2.0, 3.0, 0.0, 2.0, 1.0)]
    assert results == [3, 4, 1, 3, 2]


@pytest.mark.parametrize(
    ("answer", "passed_on", "is_by_value"),
    [
        (lambda a: a, {"a": 2}, False),
        (lambda a: a if a != 0 and a != 1 and isinstance(a, float) else 0.0, {"a": 2}, False),
        (lambda a: a or 3.0, {"a": 2}, False),
        (lambda a: 3.0, {}, False),
        (lambda a: a if a > 2 else 0.0, {"a": 2}, True),
        (lambda a: a if a == 2.5 else 0.0, {"a": 2}, True),
        (lambda a: 2 * a + a * a, {}, True),
        (np.float32, {}, True),
        (math.sqrt, {}, True),
        (lambda a: a if np.isfinite(a) else 0.0, {"a": 2}, True),
        (lambda a: a.real, {}, True),
        (lambda a: float(f"{a:.0f}"), {}, True),
    ],
)
def test_floats_that_a_call_function_only_passes_on_are_known(axpy, answer, passed_on, is_by_value):
    """Later calls may pass other floats in their place; all others are calls of their own."""
    axpy.hooks["call"] = lambda x, y, a: (Problem(n=9), {"x": x, "y": y, "a": answer(a), "n": 9})
    operands = [Operand.new((9,)), Operand.new((9,)), 2.5]
    arguments = CallArguments((), (), [], operands, None)
    call = arguments.bound(axpy, find_kernel, lambda call: None)
    assert isinstance(call, ResolvedCall)
    assert (call.passed_on, call.is_by_value) == (passed_on, is_by_value)
    assert call.scalars["a"] == answer(2.5) and type(call.scalars["a"]) is type(answer(2.5))


def test_a_choice_says_why(axpy, opencl_device, tmp_path):
    with pytest.warns(RuntimeWarning):
        assert "autotune run axpy" in str(load(axpy).choice(n=5))
    write_record(tmp_path / "tuned", axpy, choose_device(opencl_device), BLOCK=32, PER_THREAD=2)
    x = np.ones(1000, np.float32)
    for chosen in (load(axpy).choice(x, x), load(axpy).choice(n=1000)):
        assert str(chosen).startswith("axpy(n=1000): BLOCK=32, PER_THREAD=2 - exact of ")
        assert (
            chosen.tuned.stale_reasons[0] == "its source changed"
        )  # which the record does not know


def test_a_recorded_winner_runs_on_the_cpu(axpy, opencl_device, tmp_path, recwarn):
    """The whole journey without a GPU: record, lookup, compile, launch; and no warning."""
    device = choose_device(opencl_device)
    write_record(tmp_path / "tuned", axpy, device, BLOCK=32, PER_THREAD=2)
    x, y = np.ones(1000, np.float32), np.zeros(1000, np.float32)
    changed, _ = load("axpy")(x, y)
    np.testing.assert_array_equal(changed, np.full(1000, 2, np.float32))
    assert dict(load("axpy").choice(n=1000).configuration) == {"BLOCK": 32, "PER_THREAD": 2}
    assert not [caught for caught in recwarn if caught.category is RuntimeWarning]


@pytest.mark.filterwarnings("ignore:no tuned record")
def test_threads_may_call_while_calls_are_forgotten(axpy, opencl_device, monkeypatch):
    monkeypatch.setattr("autotune.calling.first_call.MAX_CALLS", 2)
    monkeypatch.setattr("autotune.calling.load.MAX_READY", 2)
    tuned_axpy = load(axpy)

    def calls(first):
        sizes = [first + i % 3 for i in range(20)]
        ones = [np.ones(n, np.float32) for n in sizes]
        return all((tuned_axpy(x, x.copy())[0] == 3).all() for x in ones)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(calls, (5, 6, 7, 8)))


def test_what_is_made_of_nothing_is_of_the_callers_library(axpy, opencl_device, constants):
    result = load("transpose")(constants(np.zeros((0, 3))))
    assert isinstance(result, constants)
    assert np.asarray(result).shape == (3, 0)


# ---------------------------------------------------------------------- mistakes


X = np.ones((4, 4), np.float32)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("kernel", "args", "named", "message"),
    [
        ("sgemm", (X, [1.0]), {}, r"sgemm: b is a list, \[1.0\]; pass np.asarray of it"),
        ("sgemm", (X, X), {"alpha": 1j}, "sgemm: alpha is a complex, 1j; pass an array or"),
        ("sgemm", (X, np.ma.ones((4, 4))), {}, r"sgemm: b is a masked array; pass its data"),
        (
            "sgemm",
            (X, X.astype(">f4")),
            {},
            "sgemm: b is an array of >f4, a type that no kernel takes",
        ),
        ("sgemm", (X, X), {"alpha": X}, r"sgemm: alpha is float32\[4, 4\]; it must be a number"),
        ("gemv", (X, X[0]), {"trans": X[0]}, r"float32\[4\] has no truth value"),
        ("ffma", (X, X, 2.5, 1.0), {}, "ffma: steps is 2.5; it must be an integer"),
        (
            "prefetch",
            (X, 2.0, 1.0, 4, -1),
            {},
            "prefetch: warps_per_sm is -1; it must be an integer",
        ),
    ],
)
def test_what_no_kernel_takes_is_named(opencl_device, kernel, args, named, message):
    with pytest.raises(UsageError, match=message):
        load(kernel)(*args, **named)


@pytest.mark.filterwarnings("ignore:no tuned record")
def test_an_integer_is_not_cut_off(axpy, opencl_device):
    axpy.hooks["call"] = lambda x, y, n: (Problem(n=len(x)), {"x": x, "y": y, "n": n})
    x = np.ones(4, np.float32)
    load(axpy)(x, x.copy(), 4.0)
    with pytest.raises(UsageError, match=r"axpy: n=3.5 does not fit int32"):
        load(axpy)(x, x.copy(), 3.5)


@pytest.mark.parametrize("value", [-1, 1.5, "x", True, None])
def test_fields_of_another_type_are_refused(axpy, opencl_device, value):
    for ask in (lambda: load(axpy).choice(n=value),):
        with pytest.raises(UsageError, match=f"axpy: n is {value!r}; it must be an integer"):
            ask()


@pytest.mark.filterwarnings("ignore:no tuned record")
def test_load_takes_the_folder_of_space_files_as_tune_does(axpy, monkeypatch):
    spaces = axpy.file.parent
    monkeypatch.delenv("AUTOTUNE_PATH")
    with pytest.raises(UsageError, match="unknown kernel 'axpy'"):
        load("axpy")
    for folder in (spaces, str(spaces)):
        assert load("axpy", spaces=folder).kernel.file == axpy.file
    with pytest.raises(UsageError, match="not a folder"):
        load("axpy", spaces=spaces / "none")


def test_what_is_no_kernel_is_not_loaded(axpy, opencl_device):
    with pytest.raises(UsageError, match="3 is neither the name of a kernel nor a Kernel"):
        load(3)
    with pytest.raises(
        UsageError, match=r"sgemm: the problem \(m=1\) lacks fields; give \(m, n, k\)"
    ):
        load("sgemm").choice(m=1)


# ---------------------------------------------------------------------- operands


def test_how_operands_lie():
    matrix = Operand((3, 4), (4, 1))
    assert matrix.is_by_rows
    assert not matrix.T.is_by_rows
    assert Operand((1, 4), (-9, 1)).is_by_rows
    assert not Operand((3, 4), (-4, 1)).is_by_rows
    assert (Operand((3, 4), (7, 1)).rows_apart, Operand((1, 4), (7, 1)).rows_apart) == (7, 4)
    for shape, strides in (((3, 4), (3, 1)), ((3, 4), (0, 1)), ((2, 2, 9), (4, 4, 100))):
        assert Operand(shape, strides).overlaps_itself
    for shape, strides in (((3, 4), (-4, 1)), ((0, 4), (0, 0)), ((), ()), ((1, 1), (0, 0))):
        assert not Operand(shape, strides).overlaps_itself


def test_views_of_views_that_run_backwards():
    memory = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    for array in (memory, memory[::-1], memory[:, ::-1, ::-2], memory[:, :, ::3]):
        operand = Numpy().operand(array, 0)
        for axis, index in ((0, 2), (1, 1), (2, 1)):
            view = Numpy().view(array, operand.select(axis, index).T)
            np.testing.assert_array_equal(view, array.take(index, axis).T)


def test_a_kernel_that_cannot_be_called_says_what_to_add(axpy):
    axpy.hooks.pop("call")
    with pytest.raises(SpecError, match="no call function; attach one"):
        load(axpy)


def test_a_mistake_in_the_call_names_its_line(axpy, opencl_device):
    with pytest.raises(SpecError, match=r"call: TypeError.*axpy\.py:\d+"):
        load(axpy)(5, np.ones(6, np.float32))
    axpy.hooks["call"] = lambda x: "nothing"
    with pytest.raises(SpecError, match=r"call: returned 'nothing'; return \(Problem"):
        load(axpy)(np.ones(6, np.float32))


# ---------------------------------------------------------------------- Functions by what they


@pytest.fixture(autouse=True)
def rng(opencl_device: str) -> np.random.Generator:
    """Where there is a device to compute on."""
    return np.random.default_rng(1)


def normal(rng: np.random.Generator, *shape: int) -> Any:
    return rng.standard_normal(shape, np.float32)


@pytest.mark.opencl
@pytest.mark.filterwarnings("ignore:.*default")
def test_matmul(rng: np.random.Generator) -> None:
    """Of matrices, of views of them, into what is there, and scaled."""
    a, b, out = normal(rng, 33, 65), normal(rng, 65, 17), normal(rng, 33, 17)
    exact = a.astype(np.float64) @ b
    np.testing.assert_allclose(linalg.matmul(a, b), exact, atol=1e-4)
    np.testing.assert_allclose(linalg.matmul(b.T, a.T, alpha=2.0), 2 * exact.T, atol=1e-4)
    expected = 0.5 * exact - out
    assert linalg.matmul(a, b, out, alpha=0.5, beta=-1.0) is out
    np.testing.assert_allclose(out, expected, atol=1e-4)


@pytest.mark.opencl
@pytest.mark.filterwarnings("ignore:.*default")
def test_matvec(rng: np.random.Generator) -> None:
    a, x, out = normal(rng, 33, 65), normal(rng, 65), normal(rng, 33)
    exact = a.astype(np.float64) @ x
    np.testing.assert_allclose(linalg.matvec(a, x), exact, atol=1e-4)
    expected = 3 * exact + out
    assert linalg.matvec(a, x, out, alpha=3.0, beta=1.0) is out
    np.testing.assert_allclose(out, expected, atol=1e-4)


@pytest.mark.opencl
@pytest.mark.filterwarnings("ignore:.*default")
def test_transpose(rng: np.random.Generator) -> None:
    x, out = normal(rng, 33, 65), np.zeros((65, 33), np.float32)
    np.testing.assert_array_equal(linalg.transpose(x), x.T)
    assert linalg.transpose(x, out) is out
    np.testing.assert_array_equal(out, x.T)


@pytest.mark.opencl
@pytest.mark.filterwarnings("ignore:.*default")
def test_total(rng: np.random.Generator) -> None:
    """Of an array of any shape."""
    x, out = normal(rng, 5, 7, 11), np.zeros(1, np.float32)
    np.testing.assert_allclose(linalg.total(x), [x.sum(dtype=np.float64)], rtol=1e-5)
    assert linalg.total(x, out) is out
    np.testing.assert_allclose(out, [x.sum(dtype=np.float64)], rtol=1e-5)


@pytest.mark.opencl
@pytest.mark.filterwarnings("ignore:.*default")
def test_what_does_not_fit(rng: np.random.Generator) -> None:
    a = normal(rng, 5, 7)
    with pytest.raises(UsageError, match="sgemm: "):
        linalg.matmul(a, a)
    with pytest.raises(UsageError, match="float64"):
        linalg.matmul(a.astype(np.float64), a.T.astype(np.float64))
    with pytest.raises(UsageError, match=r"unknown precision 'tf32'.*known: float32, tf32x3"):
        linalg.matmul(a, a.T, precision="tf32")


@pytest.mark.opencl
@pytest.mark.filterwarnings("ignore:.*default")
def test_torch_ops_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line that says what to install."""
    monkeypatch.delitem(sys.modules, "autotune.torch_ops", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependencyError, match=r"pip install .*\[torch\]'"):
        __import__("autotune.torch_ops")
