"""Launches as numbers: completed, held against the device's limits, bound to buffers, traced."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sample_spaces import write_space

from autotune.data.arguments import Argument
from autotune.devices.base import Binary, BoundFill, BoundLaunch, CompiledFunction
from autotune.devices.device import for_arch
from autotune.errors import SpecError
from autotune.kernel import launches as binding
from autotune.kernel.catalog import find_kernel, load_file
from autotune.kernel.expression import (
    Symbol,
    UntraceableError,
    ceil_div,
    maximum,
    minimum,
    stored_form,
    value_of,
)
from autotune.kernel.spec import Fill, Launch
from autotune.values import Configuration, Problem

DEVICE = for_arch("sm_90")
C = Configuration(BLOCK=64)
RETURN = "return Launch(grid=(blocks(p, c),), block=(c.BLOCK,))"


@pytest.fixture
def kernel(tmp_path):
    """Load ``scale`` with its launch function returning something else."""

    def made(returned, *edits):
        return load_file(write_space(tmp_path, (RETURN, f"return {returned}"), *edits))

    return made


def test_a_plan_fills_in_what_the_launch_leaves_out(kernel):
    steps = binding.launch_sequence(
        kernel(RETURN.removeprefix("return ")), C, Problem(n=129), DEVICE
    )
    assert steps.steps == (Launch((3, 1, 1), (64, 1, 1), 0, "scale", None),)
    assert steps.main is steps.steps[0]


def test_a_plan_keeps_the_order_of_several_steps(kernel):
    given = kernel(
        "Fill('out', 1), Launch(grid=np.int64(p.n), block=[8, 4], entry='first'), "
        "Launch(grid=(1, 2, 3), block=64, shared_bytes=512, args=('out', 'n', 7))",
        ("import Kernel", "import Fill, Kernel"),
    )
    found = binding.launch_sequence(given, C, Problem(n=5), DEVICE)
    assert found.steps == (
        Fill("out", 1),
        Launch((5, 1, 1), (8, 4, 1), 0, "first", None),
        Launch((1, 2, 3), (64, 1, 1), 512, "scale", ("out", "n", 7)),
    )
    assert found.launches == found.steps[1:]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (
            "Launch(grid=(p.n / 64,), block=64)",
            r"grid=\(15\.625,\) is not a tuple of integers.*ceil_div",
        ),
        ("Launch(grid=('n',), block=64)", "grid=.* is not a tuple of integers"),
        ("Launch(grid=(p.n // 4096,), block=64)", "one to three positive integers"),
        ("Launch(grid=1, block=(64, -1))", "one to three positive integers"),
        ("Launch(grid=(1, 1, 1, 1), block=64)", "one to three positive integers"),
        ("Launch(grid=2**70, block=64)", "positive integers below 2"),
        ("None", "expected Launch"),
        ("(Launch(1, 1), 'again')", "'again' is neither a Launch nor a Fill"),
        ("Launch(grid=(1 // 0,), block=64)", r"launch: ZeroDivisionError.*scale\.py:\d+"),
    ],
)
def test_a_launch_that_cannot_be_is_the_space_files_fault(kernel, returned, message):
    """A fraction above all: cut off, it would silently leave the end of the problem undone."""
    with pytest.raises(SpecError, match=message):
        binding.launch_sequence(kernel(returned), C, Problem(n=1000), DEVICE)


# ---------------------------------------------------------------- limits

BINARY = Binary(
    b"", (CompiledFunction("k", registers=128, spill_bytes=0, shared_bytes=1024),), "", "key"
)


def test_functions_of_a_binary_are_those_that_are_launched():
    two = Binary(b"", (*BINARY.entries, CompiledFunction("other", registers=255)), "", "key")
    assert two.launched(["k"]) == BINARY.entries
    assert two.launched(["names in no report"]) == two.entries


def over(binary=None, device=DEVICE, **launch):
    given = Launch(**{"grid": (1, 1, 1), "block": (128, 1, 1), "entry": "k", **launch})
    return binding.exceeded_limit(binding.LaunchSequence((Fill("out"), given)), binary, device)


def test_limits_are_inclusive():
    assert over(block=(1024, 1, 1)) == over(block=(32, 8, 4)) == ""
    assert over(grid=(2**31 - 1, 65535, 65535)) == ""
    assert over(shared_bytes=DEVICE.shared_bytes_per_block) == ""
    assert over(BINARY, shared_bytes=DEVICE.shared_bytes_per_block - 1024) == ""
    assert over(BINARY, block=(512, 1, 1)) == ""  # 128 registers x 512 are all of an SM


@pytest.mark.parametrize(
    ("binary", "launch", "words"),
    [
        (None, {"block": (1025, 1, 1)}, "1025 threads, but sm_90 allows 1024"),
        (None, {"grid": (2**31, 1, 1)}, "grid x=2147483648, but the limit is 2147483647"),
        (None, {"grid": (1, 1, 65536)}, "grid z=65536"),
        (
            None,
            {"shared_bytes": 232449},
            "232449 bytes of shared memory per block, but sm_90 allows 232448",
        ),
        (BINARY, {"block": (513, 1, 1)}, "128 registers × 513 threads, but an SM has 65536"),
    ],
)
def test_one_more_than_a_limit_is_told_with_need_and_limit(binary, launch, words):
    assert words in over(binary, **launch)


# ---------------------------------------------------------------- binding

NAMES = ["x", "out", "n", "work"]
BUFFERS = {"x": object(), "out": object(), "work": object()}
SCALARS = {"n": np.int32(5)}
ARRAYS = {
    "x": Argument("x", "input", "<f4"),
    "out": Argument("out", "out", "<f2"),
    "work": Argument("work", "out", "<i4"),
}


def bound(*steps):
    return binding.bind_arguments(binding.LaunchSequence(steps), NAMES, BUFFERS, SCALARS, ARRAYS)


def test_without_args_a_launch_gets_arguments_then_scratch_in_order():
    (launch,) = bound(Launch((2, 1, 1), (64, 1, 1), 16, "k"))
    assert launch == BoundLaunch(
        "k", (2, 1, 1), (64, 1, 1), 16, (BUFFERS["x"], BUFFERS["out"], np.int32(5), BUFFERS["work"])
    )


def test_args_pick_names_and_pass_integers_as_32_bits_and_typed_scalars_as_they_are():
    (launch,) = bound(Launch((1, 1, 1), (1, 1, 1), 0, "k", ("out", 7, np.int64(2**40), "n")))
    assert launch.args == (BUFFERS["out"], 7, 2**40, 5)
    assert [type(argument) for argument in launch.args[1:]] == [np.int32, np.int64, np.int32]


def test_a_fill_value_takes_the_buffers_type():
    fills = bound(Fill("out", 0.5), Fill("work", -1))
    assert fills == [
        BoundFill(BUFFERS["out"], np.float16(0.5)),
        BoundFill(BUFFERS["work"], np.int32(-1)),
    ]
    assert [fill.value.dtype for fill in fills] == [np.float16, np.int32]


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (Fill("oot"), r"no buffer 'oot' \(known: x, out, work\)"),
        (Launch((1,), (1,), args=("oot",)), r"no argument 'oot' \(known: x, out, work, n\)"),
        (
            Launch((1,), (1,), args=(2**31,)),
            "2147483648 is neither a name nor a 32-bit integer; .* np.int64",
        ),
        (Launch((1,), (1,), args=(0.5,)), "0.5 is neither a name nor a 32-bit integer"),
    ],
)
def test_what_cannot_be_bound_is_told(step, message):
    with pytest.raises(SpecError, match=message):
        bound(step)


# ---------------------------------------------------------------- tracing


def test_a_grid_of_integer_arithmetic_is_traced(kernel):
    given = kernel(
        "Launch(grid=(ceil_div(p.n, c.BLOCK), minimum(p.n, 8) % 3, 2), block=c.BLOCK)",
        ("ceil_div\n", "ceil_div, minimum\n"),
    )
    x, y, z = binding.traced_grid(binding.trace_launches(given, C, DEVICE), given.name)
    for n in (1, 63, 64, 65, 1000):
        assert value_of(x, {"n": n}) == -(-n // 64)
        assert value_of(y, {"n": n}) == min(n, 8) % 3
    assert z == 2


@pytest.mark.parametrize(
    "returned",
    [
        "Launch(grid=(1 if p.n > 5 else 2,), block=64)",
        "Launch(grid=(p.n if isinstance(p.n, int) else 1,), block=64)",
        "Launch(grid=(p.n,) if isinstance(p.n, int) else (p.n, 2), block=64)",
    ],
)
def test_a_grid_that_needs_numbers_is_not_traced(kernel, returned):
    """None, not a guess: the record then holds the grid of tuned problems only."""
    given = kernel(returned)
    assert binding.traced_grid(binding.trace_launches(given, C, DEVICE), given.name) is None


@pytest.mark.parametrize(
    ("returned", "threads", "blocks"),
    [
        ("(Launch(p.n, 32, entry='prepare'), Launch(ceil_div(p.n, 64), 64))", 64, 2),
        ("(Launch(ceil_div(p.n, 64), 64), Launch(1, 32, entry='finish'))", 64, 2),
        ("(Launch(p.n, 32, entry='one'), Launch(1, 64, entry='two'))", 32, 65),
    ],
)
def test_records_show_the_launch_that_is_named_like_the_kernel(kernel, returned, threads, blocks):
    """Else the first: predictions count its blocks, which are those that take the time."""
    given, problem = kernel(returned), Problem(n=65)
    main = binding.launch_sequence(given, C, problem, DEVICE).main
    (x,) = binding.traced_grid(binding.trace_launches(given, C, DEVICE), given.name)
    assert (main.block, main.grid) == ((threads, 1, 1), (blocks, 1, 1))
    assert value_of(x, problem) == blocks


def test_a_requirement_is_traced_for_this_configuration(kernel):
    requires = "@scale.requires\ndef requires(c, p):\n    return {}\n\n\n@scale.launch"

    def found(condition):
        given = kernel("Launch(1, 64)", ("@scale.launch", requires.format(condition)))
        return binding.requirement(given, C, Problem(n=64))

    condition = found("(p.n % c.BLOCK == 0) & (p.n <= 512)")
    assert [value_of(condition, {"n": n}) for n in (64, 100, 512, 576)] == [1, 0, 1, 0]
    assert found("True") is None
    assert value_of(found("False"), {"n": 1}) == 0
    with pytest.raises(SpecError, match="combine conditions with &"):
        found("p.n % 2 == 0 and p.n <= 4")
    assert binding.requirement(kernel("Launch(1, 64)"), C, Problem(n=64)) is None


def test_a_requirement_is_that_of_a_problems_category():
    """Atomics add integers of any number, and no floats."""
    kernel = find_kernel("reduce_op")
    atomic = Configuration({**kernel.default(), "FINISH": "atomic"})
    problems = [Problem(n=1000, op="sum", dtype=dtype) for dtype in ("int32", "float32")]
    assert [binding.requirement(kernel, atomic, each) for each in problems] == [None, 0]


@pytest.mark.parametrize(
    "name",
    ["sgemm", "sgemm_tf32x3", "gemv", "gemv_columns", "reduce", "transpose", "copy", "prefetch"],
)
def test_what_may_win_can_be_recorded(name):
    """Records hold the condition and the launches of a winner as expressions of the problem's fields."""
    kernel = find_kernel(name)
    problems = [kernel.filled(p) for p in (*kernel.problems["cuda"], *kernel.edges_on(DEVICE))]
    for seed in map(kernel.completed, kernel.seeds):
        served = [p for p in problems if kernel.allows(seed, p)]
        assert served, seed
        binding.requirement(kernel, seed, served[0])
        assert binding.traced_grid(binding.trace_launches(kernel, seed, DEVICE, served[0]), name), (
            seed
        )


# ---------------------------------------------------------------------- Symbolic integers say the


FIELDS = ("m", "n", "k")
#: A function of the fields.
Function = Callable[[dict[str, Any]], Any]

OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "a + b": lambda a, b: a + b,
    "a - b": lambda a, b: a - b,
    "a * b": lambda a, b: a * b,
    "a // b": lambda a, b: a // b,
    "a % b": lambda a, b: a % b,
    "ceil_div": ceil_div,
    "minimum": minimum,
    "maximum": maximum,
    "a == b": lambda a, b: a == b,
    "a <= b": lambda a, b: a <= b,
    "a >= b": lambda a, b: a >= b,
}


@st.composite
def functions(draw, depth=4):
    """Arithmetic over the fields and constants, as a Python function."""
    if depth == 0 or draw(st.booleans()):
        if draw(st.booleans()):
            name = draw(st.sampled_from(FIELDS))
            return lambda p: p[name]
        constant = draw(st.integers(-40, 40))
        return lambda p: constant
    left = draw(functions(depth=depth - 1))
    if draw(st.integers(0, len(OPERATIONS))) == 0:
        return lambda p: -left(p)
    operation = OPERATIONS[draw(st.sampled_from(list(OPERATIONS)))]
    right = draw(functions(depth=depth - 1))
    return lambda p: operation(left(p), right(p))


@given(functions(), st.fixed_dictionaries({name: st.integers(0, 10**6) for name in FIELDS}))
def test_traced_equals_direct(function, fields):
    try:
        traced = stored_form(function({name: Symbol(name) for name in FIELDS}))
    except ZeroDivisionError:  # of two constants
        return
    assert traced is not None
    assert json.loads(json.dumps(traced)) == traced
    try:
        expected = int(function(fields))
    except ZeroDivisionError:
        with pytest.raises(ValueError, match=r"division by zero|more than 64 bits"):
            value_of(traced, fields)
    else:
        try:
            value = value_of(traced, fields)
        except ValueError as error:
            assume("more than 64 bits" not in str(error))
            raise
        assert value == expected


@given(st.integers(0, 64), st.integers(0, 64))
def test_conditions_join_with_and(m, n):
    joined = (Symbol("m") % 4 == 0) & (Symbol("n") >= 8)
    assert value_of(joined.json, {"m": m, "n": n}) == int(m % 4 == 0 and n >= 8)


@given(st.integers(0, 8), st.integers(0, 8))
def test_conditions_compare_and_join_as_in_python(m, n):
    a, b = Symbol("m"), Symbol("n")
    conditions = [
        (a < b, m < n),
        (a < 4, m < 4),
        (a > 4, m > 4),
        (a > b, m > n),
        (a != b, m != n),
        ((a == 3) | (b > 5), m == 3 or n > 5),
    ]
    for traced, expected in conditions:
        assert value_of(traced.json, {"m": m, "n": n}) == int(expected)


def test_numpy_integers_are_integers():
    assert (Symbol("m") + np.int32(3)).json == ["+", "m", 3]
    assert (np.int64(3) - Symbol("m")).json == ["-", 3, "m"]


def test_branching_on_a_symbol_is_refused():
    m: Any = Symbol("m")
    branches: tuple[Callable[[], Any], ...] = (
        lambda: bool(m),
        lambda: 0 < m < 3,
        lambda: range(m),
        lambda: float(m),
        lambda: [1, 2][m],
    )
    for branch in branches:
        with pytest.raises(UntraceableError):
            branch()
    with pytest.raises(TypeError):  # UntraceableError is one
        min(m, 3)
    with pytest.raises(TypeError):
        m + 0.5
    with pytest.raises(TypeError):
        minimum(m, "3")


def test_only_integers_and_expressions_have_a_stored_form():
    assert stored_form(True) == 1
    assert stored_form(np.int16(7)) == 7
    assert stored_form(2.0) is None
    assert stored_form("m") is None


@pytest.mark.parametrize(
    "json_form", [1.5, None, True, ["+", 1], ["pow", 2, 3], [["+"], 1, 2], "q", "t"]
)
def test_malformed_expressions_are_value_errors(json_form):
    with pytest.raises(ValueError, match=r"not an expression|not an integer"):
        value_of(json_form, {"m": 1, "t": "float32"})


@given(st.recursive(st.none() | st.integers() | st.text(max_size=3) | st.floats(), st.lists))
def test_whatever_a_file_holds_is_a_number_or_a_value_error(json_form):
    with suppress(ValueError):
        assert isinstance(value_of(json_form, {}), int)
