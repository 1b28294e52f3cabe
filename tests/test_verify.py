"""What a kernel must and must not do: one test for each way to be wrong.

The kernels are host functions that write to the device's buffers, so each is wrong in one way only.
"""

import re

import numpy as np
import pytest
from sample_spaces import write_space

from autotune.data.dataset import EXACT, RANDOM
from autotune.data.prepare import prepare_dataset
from autotune.devices.base import BoundLaunch
from autotune.devices.choose import backend, choose_device
from autotune.errors import SpecError
from autotune.kernel.catalog import load_file
from autotune.kernel.spec import Out
from autotune.measure import verify
from autotune.measure.measurement import CheckResult
from autotune.measure.verify import DeviceData, NotDeterministic, WrongResult
from autotune.values import Problem

pytestmark = [pytest.mark.opencl, pytest.mark.usefixtures("opencl_device")]

ROWS, DEPTH = 37, 500
#: A row-wise dot product: out[i] = sum_k a[i, k] x[k], within a bound that grows with the depth.
DOT = (
    ("problems=[Problem(n=1000)]", f"problems=[Problem(n={ROWS})]"),
    ("x = rng.standard_normal(p.n, dtype=np.float32)", f"""\
a = rng.standard_normal((p.n, {DEPTH}), dtype=np.float32)
    x = rng.standard_normal({DEPTH}, dtype=np.float32)"""),
    ('"x": x, "out"', '"a": a, "x": x, "out"'),
    ("def reference(x, factor):", "def reference(a, x):"),
    ("return factor * x", "return a @ x"),
    ("@scale.launch", f"""\
@scale.tolerance
def tolerance(p):
    return 16 * 2.0**-24 * {DEPTH}


@scale.launch"""),
)  # fmt: skip


@pytest.fixture(scope="module")
def executor(opencl_device):
    device = choose_device(opencl_device)
    return backend("opencl").open(device)


@pytest.fixture
def data(executor, tmp_path):
    """Device data of a kernel made from ``scale`` by some edits."""

    def made(*edits, n=ROWS):
        kernel = load_file(write_space(tmp_path, *edits))
        sets = {which: prepare_dataset(kernel, Problem(n=n), which) for which in (EXACT, RANDOM)}
        return DeviceData(executor, sets, matching=kernel if "matches" in kernel.hooks else None)

    return made


class Host:
    """Reads and writes working buffers by name, as a kernel would."""

    def __init__(self, data):
        self.data = data

    def read(self, name):
        argument = next(argument for argument in self.data.arguments if argument.name == name)
        buffer = self.data.buffers[name]
        return self.data.executor.read(buffer, np.dtype(argument.dtype), argument.shape)

    def write(self, name, values):
        argument = next(argument for argument in self.data.arguments if argument.name == name)
        array = np.asarray(values).astype(argument.dtype).reshape(argument.shape)
        self.data.executor.write(self.data.buffers[name], array)


def dot(data, spoil=lambda a, x: None):
    """A right dot product in single precision, on arrays that ``spoil`` may change first."""
    host = Host(data)

    def run():
        a, x = host.read("a"), host.read("x")
        spoil(a, x)
        host.write("out", np.add.accumulate(a * x, axis=1, dtype=np.float32)[:, -1])

    return run


# ---------------------------------------------------------------- right kernels


@pytest.mark.parametrize("which", [EXACT, RANDOM])
def test_a_right_kernel_passes_with_the_size_of_its_error(data, which):
    made = data(*DOT)
    (check,) = verify.verify(made, which, dot(made))
    assert check.is_correct
    assert (check.output, check.dataset, check.first_wrong) == ("out", which, None)
    if which == EXACT:
        assert (check.bound, check.max_error, check.rms_error) == (0, 0, 0)
    else:
        assert 0 < check.rms_error < check.max_error <= check.bound


# ---------------------------------------------------------------- wrong outputs


@pytest.mark.parametrize("times", [0, 2], ids=["dropped", "doubled"])
@pytest.mark.parametrize("position", [(0, 0), (17, 250), (ROWS - 1, DEPTH - 1)])
def test_exact_data_find_one_dropped_or_doubled_element(data, times, position):
    made = data(*DOT)

    def spoil(a, x):
        a[position] *= times

    with pytest.raises(WrongResult, match=rf"out\[{position[0]}\] is .* on exact data") as caught:
        verify.verify(made, EXACT, dot(made, spoil))
    (check,) = caught.value.checks
    assert check.first_wrong == position[0]
    assert 1 <= check.max_error <= 4
    assert check.bound == 0


def test_the_random_tolerance_passes_single_precision_and_fails_tf32(data):
    """Ten bits of mantissa instead of 23: what a tensor core would quietly do."""
    made = data(*DOT)

    def to_tf32(a, x):
        for array in (a, x):
            bits = array.view(np.uint32)
            bits &= np.uint32(0xFFFFE000)

    assert verify.verify(made, RANDOM, dot(made))[0].is_correct
    with pytest.raises(WrongResult, match=r"on random data; largest error .*, bound 0\.000477"):
        verify.verify(made, RANDOM, dot(made, to_tf32))


def test_a_wrong_result_says_how_unusual_arrays_are_passed(data):
    """A kernel in float32 and C order reads other numbers from them."""
    made = data(
        ("np.float32)\n", "np.float32).reshape(-1, 1).repeat(2, axis=1)\n"),
        (
            '"x": x, ',
            '"x": np.asfortranarray(x), "y": x.astype(">f4"), "z": x.astype(float), '
            '"k": np.zeros(3, int), ',
        ),
        ("Out(p.n)", 'Out((p.n, 2), "float64")'),
    )
    with pytest.raises(WrongResult) as caught:
        verify.verify(made, EXACT, lambda: None)
    assert str(caught.value).endswith(
        "; the kernel gets x in C order, not in the declared Fortran order; y as float32 in the other "
        "byte order; z, out as float64; k as int64"
    )


@pytest.mark.parametrize("dtype", ["float32", "int32", "bfloat16"])
def test_masked_elements_may_hold_anything(data, dtype):
    """A compaction writes no more than it keeps."""
    made = data(
        ("Out(p.n)", f'Out(p.n, "{dtype}")'),
        ("return factor * x", "kept = np.ma.zeros(x.size)\n    kept[x.size // 2:] = np.ma.masked\n"
         "    return kept"),
    )  # fmt: skip
    executor, buffer, zeros = made.executor, made.buffers["out"], np.zeros(ROWS)

    def run(count):
        stored = executor.read(buffer, np.dtype(made.argument("out").dtype), (ROWS,))
        stored[:count] = zeros[:count]
        executor.write(buffer, stored)

    for which in (EXACT, RANDOM):
        (check,) = verify.verify(made, which, lambda: run(ROWS // 2))
        assert (check.is_correct, check.max_error) == (True, 0)
        with pytest.raises(WrongResult, match=rf"^out\[{ROWS // 2 - 1}\] is .*not written"):
            verify.verify(made, which, lambda: run(ROWS // 2 - 1))


def test_an_output_that_is_masked_everywhere_is_refused(data):
    with pytest.raises(
        SpecError, match="reference: out masks every element, so they are not compared"
    ):
        data(("return factor * x", "return np.ma.masked_all(x.shape)"))


#: The place of the largest of two numbers in each row: exact data tie.
PLACES = (
    ("rng.standard_normal(p.n, ", "rng.standard_normal((p.n, 2), "),
    ("Out(p.n)", 'Out(p.n, "int32")'),
    ("return factor * x", "return x.argmax(axis=1)"),
)
MATCHES = (
    "@scale.reference",
    """\
@scale.matches
def matches(found, expected):
    rows = np.arange(len(found["out"]))
    wrong = found["x"][rows, found["out"]] != found["x"][rows, expected["out"]]
    return f"out[{wrong.argmax()}] is no place of a maximum" if wrong.any() else True


@scale.reference""",
)


def last_place(host):
    def run():
        x = host.read("x")
        host.write("out", 1 - x[:, ::-1].argmax(axis=1))

    return run


def test_a_wrong_integer_names_ties_of_the_data(data):
    made = data(*PLACES)
    message = r"expected 0 on exact data; .* bound 0; elements of the exact data are equal \(ties\).*@matches$"
    with pytest.raises(WrongResult, match=message):
        verify.verify(made, EXACT, last_place(Host(made)))
    verify.verify(made, RANDOM, last_place(Host(made)))
    with pytest.raises(WrongResult, match=r"largest error 1, bound 0$"):
        verify.verify(made, RANDOM, lambda: Host(made).write("out", np.zeros(ROWS)))


def test_the_kernels_own_function_decides_in_place_of_bounds(data):
    made = data(*PLACES, MATCHES)
    for which in (EXACT, RANDOM):
        (check,) = verify.verify(made, which, last_place(Host(made)))
        assert check == CheckResult("out", which, 0.0, 0.0, 0.0, None)
        assert verify.outputs(made, which) == (check,)
    with pytest.raises(WrongResult) as caught:
        verify.verify(made, RANDOM, lambda: Host(made).write("out", np.zeros(ROWS)))
    assert re.fullmatch(
        r"out\[\d+\] is no place of a maximum \(@matches\) on random data", str(caught.value)
    )
    (wrong,) = caught.value.checks
    assert (wrong.is_correct, wrong.max_error) == (False, np.inf)


def test_an_error_of_the_kernels_own_function_is_a_wrong_result(data):
    """Outputs that are not written are indices outside of the array."""
    made = data(*PLACES, MATCHES)
    with pytest.raises(WrongResult, match=r"matches: IndexError: .* \(scale.py:\d+\) \(@matches\)"):
        verify.verify(made, EXACT, lambda: Host(made).write("out", np.full(ROWS, 7)))


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (
            "found['y'] == 0",
            "matches: refuses the outputs of the reference on exact data: .*KeyError",
        ),
        ("'too small'", "refuses the outputs of the reference on exact data: too small; found"),
        ("True", "matches: accepts outputs that no kernel wrote on exact data; return True only"),
        ("None", "matches: returned None, expected True or a message"),
    ],
)
def test_a_function_that_cannot_tell_right_from_wrong_is_refused(data, returned, message):
    edit = (MATCHES[0], MATCHES[1].replace("rows =", f"return {returned}\n    rows ="))
    with pytest.raises(SpecError, match=message):
        data(*PLACES, edit)


def test_a_wrong_result_reads_in_one_line(data):
    made = data()
    host = Host(made)

    def run():
        out = 3 * host.read("x")
        out[[20, 5]] += 0.5
        host.write("out", out)

    x = made.datasets[EXACT].array("x")
    with pytest.raises(WrongResult) as caught:
        verify.verify(made, EXACT, run)
    assert str(caught.value) == (
        f"out[5] is {3 * x[5] + 0.5:g}, expected {3 * x[5]:g} on exact data; largest error 0.5, bound 0"
    )
    assert caught.value.checks[0].rms_error == pytest.approx(0.5 * (2 / ROWS) ** 0.5)


@pytest.mark.parametrize("missing", [slice(None), slice(ROWS - 1, None)], ids=["all", "the last"])
def test_what_was_not_written_is_told_as_such(data, missing):
    """Outputs are poisoned, so neither a result left from before nor a lucky zero passes."""
    made = data()
    host = Host(made)

    def right():
        host.write("out", 3 * host.read("x"))

    def partial():
        out = 3 * host.read("x")
        out[missing] = host.read("out")[missing]
        host.write("out", out)

    verify.verify(made, EXACT, right)
    with pytest.raises(WrongResult, match=r"is nan \(not written\), expected"):
        verify.verify(made, EXACT, partial)


def typed(dtype, drawn, expected="x"):
    """Edits for an input and an output of some type."""
    return (
        ("x = rng.standard_normal(p.n, dtype=np.float32)", f"x = {drawn}"),
        ("Out(p.n)", f"Out(p.n, np.{dtype})"),
        ("return factor * x", f"return {expected}"),
    )


@pytest.mark.parametrize(
    ("dtype", "drawn", "off"),
    [
        ("int64", "rng.integers(0, 1000, p.n, np.int64) + 2**60", 1),
        ("uint64", "rng.integers(0, 1000, p.n, np.int64).astype(np.uint64) + np.uint64(2**63)", 1),
        ("float64", "1.0 * rng.integers(1, 3, p.n, np.int64)", 2.0**-40),
        ("complex128", "rng.standard_normal(p.n) * np.complex128(1 + 2j)", 2.0**-40),
    ],
)
def test_every_type_is_compared_in_its_own_precision(data, dtype, drawn, off):
    made = data(*typed(dtype, drawn))
    host = Host(made)
    for which in (EXACT, RANDOM):
        verify.verify(made, which, lambda: host.write("out", host.read("x")))

    def wrong():
        out = host.read("x")
        out[5] += np.asarray(off).astype(dtype)
        host.write("out", out)

    with pytest.raises(WrongResult, match=r"^out\[5\] is (\S+), expected ") as caught:
        verify.verify(made, EXACT, wrong)
    got, want = str(caught.value).removeprefix("out[5] is ").split(" on ")[0].split(", expected ")
    assert got != want, "the message tells them apart"
    assert caught.value.checks[0].max_error == pytest.approx(abs(off))


def test_bfloat16_is_compared_by_its_values(data):
    """Bits are stored, of which NumPy knows nothing."""
    made = data(
        ("import Kernel", "import BFloat16, Kernel"),
        ("x = rng", "x = BFloat16(rng"),
        ("dtype=np.float32)", "dtype=np.float32))"),
        ("Out(p.n)", 'Out(p.n, "bfloat16")'),
        ("return factor * x", "return x"),
    )
    host = Host(made)
    for which, off in ((EXACT, 1), (RANDOM, 64)):
        verify.verify(made, which, lambda: host.write("out", host.read("x")))
        with pytest.raises(WrongResult, match=r"^out\[\d+\] is \S+, expected "):
            verify.verify(made, which, lambda off=off: host.write("out", host.read("x") + off))


def test_a_true_that_is_no_bool_is_wrong(data):
    """Of the first poison every byte is true for NumPy."""
    made = data(*typed("bool_", "rng.standard_normal(p.n)", "x == x"))
    host = Host(made)
    verify.verify(made, EXACT, lambda: host.write("out", np.ones(ROWS)))
    with pytest.raises(WrongResult, match=r"out\[0\] is 255 \(not written\?\), expected 1"):
        verify.verify(made, EXACT, lambda: None)


@pytest.mark.parametrize(
    "expected", ["np.where(x > 0, x, np.nan)", "0 * x + np.frombuffer(b'{{{{', 'f4')"]
)
def test_what_equals_one_poison_must_be_written_all_the_same(data, expected):
    """One that writes nothing where NaN is expected, or what the other poison is as float."""
    made = data(("return factor * x", f"return {expected}"))
    host = Host(made)
    for which in (EXACT, RANDOM):
        want = made.datasets[which].expected("out")
        skipped = np.isnan(want) | (want == np.frombuffer(b"{{{{", "f4"))

        def run(kept, want=want):
            out = np.where(kept, host.read("out"), want)
            return host.write("out", out)

        verify.verify(made, which, lambda run=run: run(kept=False))
        with pytest.raises(WrongResult, match=r"\(not written\)"):
            verify.verify(made, which, lambda run=run, skipped=skipped: run(skipped))


def test_every_output_is_checked(data):
    two = (
        ('"out": Out(p.n)', '"out": Out(p.n), "twice": Out(p.n)'),
        ("return factor * x", 'return {"out": factor * x, "twice": 2 * factor * x}'),
    )
    made = data(*two)
    host = Host(made)

    def run(times):
        def go():
            host.write("out", 3 * host.read("x"))
            host.write("twice", times * host.read("x"))

        return go

    checks = verify.verify(made, EXACT, run(6))
    assert [(check.output, check.is_correct) for check in checks] == [
        ("out", True),
        ("twice", True),
    ]
    with pytest.raises(WrongResult, match=r"^twice\[0\]") as caught:
        verify.verify(made, EXACT, run(7))
    assert [check.is_correct for check in caught.value.checks] == [True, False]


def test_a_wrong_element_is_told_with_its_own_bound(data):
    made = data(("return factor * x", "return np.exp(x)"))
    host, bounds = Host(made), made.datasets[RANDOM].element_bounds("out")
    largest = int(bounds.argmax())

    def run():
        out = np.exp(host.read("x"))
        out[largest] += 1
        host.write("out", out)

    with pytest.raises(WrongResult, match=rf"^out\[{largest}\] .* here") as caught:
        verify.verify(made, RANDOM, run)
    assert caught.value.checks[0].bound == bounds[largest] > bounds.min()


# ---------------------------------------------------------------- what must not be touched


@pytest.mark.parametrize("which", [EXACT, RANDOM])
def test_a_changed_input_is_found_even_where_the_output_is_right(data, which):
    made = data()
    host = Host(made)

    def run():
        x = host.read("x")
        host.write("out", 3 * x)
        x[-1] = -x[-1]
        host.write("x", x)

    with pytest.raises(WrongResult, match="changed its input x") as caught:
        verify.verify(made, which, run, repeats=1)
    assert caught.value.checks[0].is_correct


@pytest.fixture(scope="module")
def poke(executor):
    """Write one float at an index of a buffer, inside or out."""
    text = "__kernel void poke(__global float* out, int index) { out[index] = 5.0f; }"
    module = executor.load(backend("opencl").compile(text, {}, (), executor.device), {})

    def poked(buffer, index):
        args = (buffer, np.int32(index))
        executor.run(module, [BoundLaunch("poke", (1, 1, 1), (1, 1, 1), 0, args)])

    return poked


@pytest.mark.parametrize("name", ["out", "x", "work"])
@pytest.mark.parametrize("index", [-1, ROWS], ids=["before", "after"])
def test_a_write_outside_any_buffer_is_found(data, poke, name, index):
    made = data()
    made.declare_scratch({"work": Out(ROWS)})
    host = Host(made)

    def run():
        host.write("out", 3 * host.read("x"))
        poke(made.all_buffers()[name], index)

    with pytest.raises(WrongResult, match=f"wrote outside the bounds of {name}"):
        verify.verify(made, EXACT, run)


def test_what_one_configuration_damaged_is_not_held_against_the_next(data, poke):
    """A result that is wrong as well as out of bounds is reported as wrong; the damage must go."""
    made = data()
    host = Host(made)

    def right():
        host.write("out", 3 * host.read("x"))

    def wild():
        host.write("x", 7 * host.read("x"))
        poke(made.buffers["out"], ROWS)
        poke(made.buffers["x"], -1)

    for _ in range(2):
        with pytest.raises(WrongResult, match="not written"):
            verify.verify(made, EXACT, wild)
        assert verify.verify(made, EXACT, right)[0].is_correct


# ---------------------------------------------------------------- repeated runs


def test_a_sequence_that_works_only_once_is_wrong(data):
    """Timing runs it again and again, so it may not count on a fresh workspace."""
    made = data()
    made.declare_scratch({"work": Out(1, "int32")})
    host, work = Host(made), made.scratch["work"][1]
    runs = []

    def run():
        fresh = made.executor.read(work, np.dtype("i4"), (1,))[0] == -1
        made.executor.write(work, np.zeros(1, np.int32))
        runs.append(fresh)
        host.write("out", 3 * host.read("x") if fresh else 0 * host.read("x"))

    with pytest.raises(WrongResult, match=r"\(second run only: it relies on a fresh workspace, or"):
        verify.verify(made, EXACT, run)
    assert runs == [True, False]


INOUT = (
    ("import Kernel, Launch, Out", "import InOut, Kernel, Launch, Out"),
    ('"x": x, "out": Out(p.n)', '"x": InOut(x)'),
)


def test_an_argument_that_is_read_and_written_is_restored_before_each_run(data):
    made = data(*INOUT)
    host = Host(made)
    checks = verify.verify(made, EXACT, lambda: host.write("x", 3 * host.read("x")), repeats=3)
    assert [(check.output, check.is_correct) for check in checks] == [("x", True)]
    with pytest.raises(WrongResult, match=r"^x\[0\] is"):
        verify.verify(made, EXACT, lambda: None)
    with pytest.raises(WrongResult, match=r"^x\[0\] is nan, expected"):  # it is never poisoned
        verify.verify(made, EXACT, lambda: host.write("x", np.full(ROWS, -1, "i4").view("f4")))


def test_bits_of_an_argument_that_is_read_and_written_are_compared_too(data):
    made = data(*INOUT)
    host, factors = Host(made), iter((3, 3, 4))
    with pytest.raises(NotDeterministic, match="run 3 on the same data gave other bits in x"):
        verify.identical_runs(
            made,
            EXACT,
            lambda: host.write("x", next(factors) * host.read("x")),
            lambda done: done < 3,
        )


@pytest.mark.parametrize("changing", ["out", "twice"])
def test_one_output_of_two_with_other_bits_is_not_deterministic(data, changing):
    made = data(
        ('"out": Out(p.n)', '"out": Out(p.n), "twice": Out(p.n)'),
        ("return factor * x", 'return {"out": factor * x, "twice": 2 * factor * x}'),
    )
    host, runs = Host(made), iter(range(2))

    def run():
        number = next(runs)
        for name in ("out", "twice"):
            host.write(name, np.full(ROWS, number if name == changing else 1))

    with pytest.raises(NotDeterministic, match=f"run 2 .* other bits in {changing}$"):
        verify.identical_runs(made, EXACT, run, lambda done: done < 2)


# ---------------------------------------------------------------- workspaces


def test_a_workspace_is_kept_for_an_equal_declaration_only(data):
    made, kept = data(), []
    for out in (Out(ROWS), Out(ROWS), Out(2 * ROWS)):
        made.declare_scratch({"work": out})
        kept.append(made.scratch["work"])
    assert kept[0] is kept[1]
    assert kept[2][0] == Out(2 * ROWS) and kept[2][1] is not kept[0][1]


def test_an_empty_workspace_is_a_mistake_and_one_too_large_a_memory_error(data):
    made = data()
    with pytest.raises(SpecError, match=r"scratch: shape \(3, 0\) is empty"):
        made.declare_scratch({"work": Out((3, 0))})
    with pytest.raises(MemoryError):
        made.declare_scratch({"work": Out(1 << 50)})
    assert made.scratch == {}
