"""Inputs and expected outputs: exact where they must be, made once, made again when damaged."""

import fcntl
import multiprocessing
import os
import re
import shutil
import sys
import threading
import time
from itertools import count
from subprocess import PIPE, Popen

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_spaces import write_space

from autotune import cache
from autotune.cli import run
from autotune.data.dataset import EXACT, RANDOM
from autotune.data.draw import Draw
from autotune.data.prepare import drawn_dataset, prepare_dataset
from autotune.data.wrapping import wrapping_outputs
from autotune.errors import AutotuneError, OutOfMemoryError, SpecError
from autotune.files import cache_folder
from autotune.kernel.catalog import load_file
from autotune.values import Problem

PROBLEM = Problem(n=1000)
ARGUMENTS = 'return {"x": x, "out": Out(p.n), "factor": np.float32(FACTOR), "n": p.n}'


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path_factory):
    """Each test makes its data anew."""
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def kernel(tmp_path):
    """Load ``scale`` with some pieces of its space file changed."""
    return lambda *edits: load_file(write_space(tmp_path, *edits))


def counted(folder):
    """An edit that makes the arguments function leave a mark each time it is called."""
    mark = f"open({str(folder / 'calls')!r}, 'a').write('.')"
    return ("    x = rng.standard", f"    {mark}\n    x = rng.standard")


def calls(folder):
    return len((folder / "calls").read_text())


# ---------------------------------------------------------------- drawing


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_exact_numbers_are_small_nonzero_integers_of_both_signs(dtype):
    """None is zero, so a dropped one shows; none is large, so every partial sum is an integer."""
    drawn = Draw(True, 1).standard_normal((50, 20), dtype)
    assert drawn.dtype == dtype
    assert set(np.unique(drawn)) == {-2, -1, 1, 2}


@pytest.mark.parametrize(
    ("low", "high", "values"),
    [
        (-1, 1, {-1, -0.5, 0.5}),
        (0, 10, {2, 4, 6, 8}),
        (1000, 1001, {1000, 1000.25, 1000.5, 1000.75}),
    ],
)
def test_exact_uniform_numbers_lie_within_the_bounds_and_have_few_bits(low, high, values):
    assert set(np.unique(Draw(True, 1).uniform(low, high, 1000))) == values


@given(st.floats(-1e4, 1e4), st.floats(0, 1e4), st.booleans(), st.sampled_from("efd"))
def test_uniform_numbers_honour_their_bounds(low, width, exact, code):
    """The lower one is rounded to the type; where it has no number within them, all are that one."""
    high, first = low + width, np.dtype(code).type(low)
    drawn = Draw(exact, 1).uniform(low, high, 64, code)
    assert ((first <= drawn) & (drawn.astype(float) < high)).all() or (drawn == first).all()


@pytest.mark.parametrize("exact", [False, True])
def test_it_is_a_generator_of_numpys_that_draws_in_single_precision(exact):
    draw, array = Draw(exact, 4), np.arange(6.0)
    assert isinstance(draw, np.random.Generator)
    for drawn in (draw.random((3, 2)), draw.uniform([0, 10], [1, 11]), draw.normal([0, 10], 1)):
        assert drawn.dtype == np.float32
    for drawn in (draw.integers(5, size=9), draw.integers([1, 5], [2, 6])):
        assert drawn.dtype == np.int32
    assert draw.exponential(size=3).dtype == np.float64
    assert draw.standard_normal(3, dtype=np.float64).dtype == np.float64
    assert [np.ndim(draw.standard_normal()), np.ndim(draw.random()), np.ndim(draw.integers(3))] == [
        0
    ] * 3
    assert set(draw.integers(2, 3, 50, endpoint=True)) == {2, 3}
    draw.shuffle(array)
    assert sorted(array) == list(range(6))


def test_what_cannot_be_drawn_is_refused():
    for wrong in (
        lambda draw: draw.uniform(1, 0, 5),
        lambda draw: draw.uniform(0, np.inf, 5),
        lambda draw: draw.integers(3, 3, 5),
        lambda draw: draw.integers(0, 2**40, 5),
    ):
        with pytest.raises(ValueError, match=r"no numbers|low >= high|out of bounds"):
            wrong(Draw(True, 1))


# ---------------------------------------------------------------- data sets


def test_a_data_set_holds_inputs_and_float64_expectations(kernel):
    dataset = prepare_dataset(kernel(), PROBLEM, RANDOM)
    x, expected = dataset.array("x"), dataset.expected("out")
    assert (x.dtype, x.shape, expected.dtype, expected.shape) == (
        np.float32,
        (1000,),
        float,
        (1000,),
    )
    assert np.array_equal(expected, 3 * x.astype(np.float64))
    assert not x.flags.writeable
    assert [(argument.name, argument.kind) for argument in dataset.arguments] == [
        ("x", "input"),
        ("out", "out"),
        ("factor", "scalar"),
        ("n", "scalar"),
    ]


def test_exact_data_are_held_bit_for_bit_and_random_within_the_tolerance(kernel):
    tolerance = "@scale.tolerance\ndef tolerance(p):\n    return p.n * 1e-7\n\n\n@scale.launch"
    given = kernel(("@scale.launch", tolerance))
    assert prepare_dataset(given, PROBLEM, EXACT).bounds == {"out": 0.0}
    assert prepare_dataset(given, PROBLEM, RANDOM).bounds == {"out": pytest.approx(1e-4)}


def test_what_the_output_cannot_hold_exactly_is_held_within_the_tolerance(kernel):
    """A third of an integer is no float: bit for bit would fail every right kernel."""
    given = kernel(("return factor * x", "return factor * x / 7"))
    assert prepare_dataset(given, PROBLEM, EXACT).bounds["out"] > 0


def expecting(dtype, expected):
    """Edits for an output of some type and what the reference returns for it."""
    return (("Out(p.n)", f"Out(p.n, np.{dtype})"), ("return factor * x", f"return {expected}"))


@pytest.mark.parametrize(
    ("dtype", "expected", "stored"),
    [
        ("int64", "np.arange(len(x)) + 2**60", "int64"),
        ("uint64", "[2**63 + i for i in range(len(x))]", "uint64"),
        ("bool_", "(x > 0) * 1.0", "bool"),
        ("float64", "x / 3", "float64"),
        ("float16", "np.round(x)", "float64"),
        ("float32", "np.arange(len(x))", "float32"),
        ("complex64", "x / 3 + 1j", "complex128"),
    ],
)
def test_expectations_are_stored_in_a_type_that_holds_each_of_them(kernel, dtype, expected, stored):
    dataset = prepare_dataset(kernel(*expecting(dtype, expected)), PROBLEM, EXACT)
    values, x = dataset.expected("out"), dataset.array("x").astype(np.float64)
    assert values.dtype == stored
    assert values.tolist() == np.asarray(eval(expected, {"x": x, "np": np})).tolist()
    assert dataset == prepare_dataset(kernel(*expecting(dtype, expected)), PROBLEM, EXACT)


@pytest.mark.parametrize(
    ("dtype", "expected", "message"),
    [
        ("int8", "np.full(len(x), 300)", "out holds 300, which int8 cannot hold"),
        ("int32", "np.where(x > 0, 1.5, 1)", r"out holds 1\.5, which int32 cannot hold"),
        ("uint64", "[2**64] * len(x)", "out is object, arguments declare uint64; return numbers"),
        (
            "float32",
            "x + 0j",
            "out is complex128, arguments declare float32.*or out.real for a real output",
        ),
        ("float32", "x * np.nan", "no value of out is finite"),
        ("longdouble", "x", "the output out is float128, which cannot be compared"),
    ],
)
def test_an_expectation_that_the_output_cannot_hold_is_refused(kernel, dtype, expected, message):
    """Rounded, wrapped or without its imaginary part it would be held against right kernels."""
    with pytest.raises(SpecError, match=message) as caught:
        prepare_dataset(kernel(*expecting(dtype, expected)), PROBLEM, RANDOM)
    assert str(caught.value).startswith("scale (scale.py): ")


@pytest.mark.parametrize("count", ["1 << 40", "1 << 50"], ids=["zeros", "more than addresses"])
def test_a_problem_beyond_the_memory_ends_with_what_is_needed_and_free(kernel, count):
    """Before its reference runs; numbers that are drawn are in memory first."""
    given = kernel(
        ("rng.standard_normal(p.n, dtype=np.float32)", "np.zeros(8, np.float32)"),
        ("Out(p.n)", f"Out({count})"),
        ("return factor * x", "raise KeyError"),
    )
    with pytest.raises(
        OutOfMemoryError, match=r"its reference need \d+\.\d GB of memory, and [\d.]+ GB are"
    ):
        prepare_dataset(given, PROBLEM, EXACT)


def test_a_reference_without_memory_ends_in_one_error(kernel):
    given = kernel(("return factor * x", "return np.ones(1 << 55)"))
    with pytest.raises(OutOfMemoryError, match=r"need more memory than is free \([\d.]+ GB\)"):
        prepare_dataset(given, PROBLEM, EXACT)


SCALARS = {
    "7": ("<i4", 7),
    "-(2**31)": ("<i4", -(2**31)),
    "0.5": ("<f4", 0.5),
    "np.int64(2**40)": ("<i8", 2**40),
    "np.array(3, np.uint8)": ("|u1", 3),
}


@pytest.mark.parametrize(("written", "stored"), SCALARS.items())
def test_scalars_are_passed_in_the_type_that_was_declared(kernel, written, stored):
    argument = prepare_dataset(kernel(('"n": p.n', f'"n": {written}')), PROBLEM, EXACT).arguments[
        -1
    ]
    assert (argument.kind, argument.dtype, argument.value) == ("scalar", *stored)
    assert argument.scalar == np.dtype(stored[0]).type(stored[1])
    assert argument.scalar.dtype.str == stored[0]


def test_every_kind_of_argument_is_stored_in_its_place(kernel):
    given = kernel(
        ("import Kernel, Launch, Out", "import Constant, InOut, Kernel, Launch, Out"),
        (ARGUMENTS, 'return {"io": InOut(x.reshape(10, -1).T), "taps": Constant(x[:3]), '
         '"x": x[::2], "out": Out((p.n // 2, 1), "float16")}'),
        ("def reference(x, factor):", "def reference(io, taps, x):"),
        ("return factor * x", 'return {"io": io * taps[0], "out": x[:, None]}'),
    )  # fmt: skip
    dataset = prepare_dataset(given, PROBLEM, EXACT)
    kinds = [
        (argument.name, argument.kind, argument.dtype, argument.shape)
        for argument in dataset.arguments
    ]
    assert kinds == [
        ("io", "inout", "<f4", (100, 10)),
        ("taps", "constant", "<f4", (3,)),
        ("x", "input", "<f4", (500,)),
        ("out", "out", "<f2", (500, 1)),
    ]
    assert set(dataset.bounds) == {"io", "out"}
    assert np.array_equal(dataset.expected("io"), dataset.array("io") * dataset.array("taps")[0])
    assert dataset.array("io").flags.c_contiguous
    assert [argument.nbytes for argument in dataset.arguments] == [4000, 12, 2000, 1000]


@pytest.mark.parametrize(
    ("reference", "out", "message"),
    [
        (
            "x + x",
            "int8",
            r"the reference wraps around in int8: out has the element (-?\d+), in 64",
        ),
        ("(x * x).astype(np.int32)", "int32", r"for example x\.astype\(np\.int32\)"),
        ("x.astype(np.int32) * 2", "int32", ""),
        ("np.clip(x.astype(np.int32) * 2, -128, 127).astype(np.int8)", "int8", ""),
        ("x // 2", "int8", ""),
        ("x.view(np.uint8) // 2", "uint8", ""),
        ("x / 3.0", "float32", ""),
    ],
)
def test_a_reference_that_wraps_around_is_told_of(kernel, reference, out, message):
    made = kernel(
        (
            "x = rng.standard_normal(p.n, dtype=np.float32)",
            "x = rng.integers(-128, 128, p.n, np.int8)",
        ),
        ("Out(p.n)", f"Out(p.n, '{out}')"),
        ("return factor * x", f"return {reference}"),
    )
    found = " ".join(wrapping_outputs(made))
    assert re.search(message, found) if message else not found


def test_the_reference_gets_float64_and_scalars_in_their_own_type(kernel):
    given = kernel(
        ("def reference(x, factor):", "def reference(x, factor, n):"),
        (
            "return factor * x",
            "assert x.dtype == float and type(factor) is float and type(n) is int\n    return x",
        ),
    )
    prepare_dataset(given, PROBLEM, RANDOM)


# ---------------------------------------------------------------- mistakes in hooks

MISTAKES = {
    "wrong shape": ("return factor * x", "return x[:-1]", r"out has shape \(999,\).*\(1000,\)"),
    "one number in a row": (
        "return factor * x",
        "return x[:1]",
        r"out has shape \(1,\).*\(1000,\)",
    ),
    "forgotten return": ("return factor * x", "factor * x", "reference: returned nothing"),
    "raising": ("return factor * x", "return x @ x[1:]", r"reference: ValueError.*scale\.py:41\)"),
    "unknown input": (
        "def reference(x, factor)",
        "def reference(y, factor)",
        "unknown argument 'y'",
    ),
    "a path": (
        ARGUMENTS,
        'return {"../x": x, "out": Out(p.n)}',
        "argument '../x': expected a letter",
    ),
    "no dict": (ARGUMENTS, "return x, Out(p.n)", "arguments: returned tuple, expected a dict"),
    "no output": ('"out": Out(p.n), ', "", "no Out or InOut, so the kernel computes nothing"),
    "a list": ('"x": x', '"x": list(x)', "x is list; expected an array"),
    "too wide": ('"n": p.n', '"n": 2**31', r"n=2147483648 needs 64 bits; pass np\.int64\(n\)"),
    "empty output": ("Out(p.n)", "Out((p.n, 0))", r"out \(1000, 0\) is empty"),
    "bits of no type": (
        '"x": x',
        '"x": x.view("V4")',
        r"x is \|V4, which data sets cannot store.* x\.view\(np.uint32",
    ),
    "output of no number": (
        "Out(p.n)",
        "Out(p.n, 'V2')",
        r"output out is \|V2, which cannot be comp",
    ),
    "raising tolerance": (
        "@scale.launch",
        "@scale.tolerance\ndef tolerance(p):\n    return p.m\n\n\n@scale.launch",
        "tolerance: AttributeError: unknown problem field 'm'",
    ),
}


@pytest.mark.parametrize(("old", "new", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_told_with_kernel_and_hook_and_leaves_no_expected_outputs(
    kernel, old, new, message
):
    given = kernel((old, new))
    with pytest.raises(SpecError, match=message) as caught:
        prepare_dataset(given, PROBLEM, RANDOM)
    assert str(caught.value).startswith("scale (scale.py): ")
    assert not [*cache_folder("data").glob(".*"), *cache_folder("data").glob("*/*.expected.npy")]


# ---------------------------------------------------------------- the cache


PLACED = ("    BLOCK=(32", '    layout={"offset_x": 0, "offset_out": 0, "rows": 1},\n    BLOCK=(32')


def test_an_array_has_the_offset_that_the_problem_gives_it(kernel):
    made = prepare_dataset(kernel(PLACED), Problem(n=1000, offset_x=3), RANDOM)
    offsets = {argument.name: argument.offset for argument in made.arguments}
    assert offsets == {"x": 3, "out": 0, "factor": 0, "n": 0}
    (x,) = (argument for argument in made.arguments if argument.name == "x")
    assert (x.offset_bytes, x.nbytes) == (12, 4000)


def test_a_problem_that_names_the_layout_has_the_data_of_one_that_does_not(kernel):
    placed = kernel(PLACED)
    plain = prepare_dataset(placed, PROBLEM, EXACT)
    assert prepare_dataset(placed, Problem(rows=1, n=1000, offset_x=0), EXACT) == plain
    assert prepare_dataset(placed, Problem(n=1000, offset_x=1), EXACT).folder != plain.folder


@pytest.mark.parametrize("name", ["z", "factor"])
def test_only_an_array_can_have_an_offset(kernel, name):
    edit = (PLACED[0], PLACED[1].replace("offset_x", f"offset_{name}"))
    message = f"layout field offset_{name}: unknown array argument '{name}'.*known: x, out"
    with pytest.raises(SpecError, match=message):
        prepare_dataset(kernel(edit), PROBLEM, EXACT)


def test_an_input_may_be_empty(kernel):
    nothing = ARGUMENTS.replace("return {", 'return {"none": rng.standard_normal((0, 3)), ')
    made = prepare_dataset(kernel((ARGUMENTS, nothing)), PROBLEM, RANDOM)
    assert made.array("none").shape == (0, 3)
    assert prepare_dataset(kernel((ARGUMENTS, nothing)), PROBLEM, RANDOM) == made  # read back


def test_a_data_set_is_made_once(kernel, tmp_path):
    given = kernel(counted(tmp_path))
    first, second = (prepare_dataset(given, PROBLEM, EXACT) for _ in range(2))
    assert first == second
    assert calls(tmp_path) == 1


def _truncate(file):
    file.write_bytes(file.read_bytes()[:-100])


DAMAGE = {
    "no manifest": lambda folder: (folder / "manifest.msgpack").unlink(),
    "a foreign manifest": lambda folder: (folder / "manifest.msgpack").write_bytes(b"\x90"),
    "an absent input": lambda folder: (folder / "x.npy").unlink(),
    "half an input": lambda folder: _truncate(folder / "x.npy"),
    "half an expectation": lambda folder: _truncate(folder / "out.expected.npy"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_data_set_is_made_again(kernel, tmp_path, damage):
    given = kernel(counted(tmp_path))
    dataset = prepare_dataset(given, PROBLEM, EXACT)
    before = dataset.array("x").copy()
    damage(dataset.folder)
    again = prepare_dataset(given, PROBLEM, EXACT)
    assert calls(tmp_path) == 2
    assert np.array_equal(again.array("x"), before)
    assert np.array_equal(again.expected("out"), 3.0 * before)
    assert prepare_dataset(given, PROBLEM, EXACT) == again
    assert [folder.name for folder in cache_folder("data").iterdir()] == [again.folder.name]


def test_damaged_bounds_of_elements_are_made_again(kernel):
    given = kernel(("return factor * x", "return np.exp(x)"))
    made = prepare_dataset(given, PROBLEM, RANDOM)
    bounds = made.element_bounds("out").copy()
    _truncate(made.folder / "out.bounds.npy")
    assert np.array_equal(prepare_dataset(given, PROBLEM, RANDOM).element_bounds("out"), bounds)


def test_a_declared_tolerance_holds_for_random_data_that_need_no_rounding(kernel):
    declared = "@scale.tolerance\ndef tolerance(p):\n    return 0.5\n\n\n@scale.launch"
    given = kernel(("return factor * x", "return x"), ("@scale.launch", declared))
    assert prepare_dataset(given, PROBLEM, EXACT).bounds == {"out": 0}
    assert prepare_dataset(given, PROBLEM, RANDOM).bounds == {"out": 0.5}


DAY_S = 86400.0


def age(path, days):
    then = time.time() - days * DAY_S
    os.utime(path, (then, then))


def test_what_a_killed_process_left_half_made_is_removed_a_day_later(kernel):
    old, young = (cache_folder("data") / f".making.{name}" for name in ("old", "young"))
    for folder in (old, young):
        folder.mkdir()
        (folder / "x.npy").write_bytes(b"half")
    age(old, 2)
    prepare_dataset(kernel(), PROBLEM, EXACT)
    assert not old.exists()
    assert young.exists()  # a process may be at it


def _prepare_at_once(file, barrier, results):
    kernel = load_file(file)
    barrier.wait(60)
    dataset = prepare_dataset(kernel, Problem(n=300_000), EXACT)
    results.put((str(dataset.folder), float(np.asarray(dataset.array("x"), float).sum())))


def test_processes_that_make_the_same_data_at_once_all_get_them(kernel):
    given = kernel()
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(3), context.Queue()
    running = [
        context.Process(target=_prepare_at_once, args=(given.file, barrier, results))
        for _ in range(3)
    ]
    for process in running:
        process.start()
    found = [results.get(timeout=120) for _ in running]
    for process in running:
        process.join(60)
    assert len(set(found)) == 1
    assert [process.exitcode for process in running] == [0, 0, 0]
    # The data, and those of the smaller problem that is declared.
    assert len(list(cache_folder("data").iterdir())) == 2


def test_the_least_recently_used_go_first_when_room_is_short(kernel, monkeypatch):
    given = kernel()
    sets = [prepare_dataset(given, PROBLEM, EXACT, seed=seed) for seed in range(3)]
    cache.tidy()
    for days, dataset in zip((4, 3, 2), sets, strict=True):
        age(dataset.folder, days)
    prepare_dataset(given, PROBLEM, EXACT, seed=0)  # used again
    size = sum(file.stat().st_size for file in sets[0].folder.iterdir())
    monkeypatch.setenv("AUTOTUNE_CACHE_SIZE", str(2 * size + size // 2))
    newest = prepare_dataset(given, PROBLEM, EXACT, seed=3)
    kept = {folder.name for folder in cache_folder("data").iterdir()}
    assert kept == {sets[0].folder.name, sets[2].folder.name, newest.folder.name}


def kept():
    return {entry.path for entry in cache.entries("data")}


def test_what_a_run_works_with_is_kept_beyond_the_limit_until_it_ends(kernel, monkeypatch):
    """Problems that together exceed the limit are each made once, however often they take turns."""
    given = kernel()
    monkeypatch.setenv("AUTOTUNE_CACHE_SIZE", "12K")  # for one of them
    old = prepare_dataset(given, PROBLEM, EXACT, 9).folder
    cache.tidy()
    ours = {prepare_dataset(given, PROBLEM, EXACT, seed).folder for seed in range(3)}
    assert kept() == ours and old not in ours
    cache.tidy()
    assert len(kept()) == 1


#: A process that uses a data set until its input ends.
USER = """
import sys
from pathlib import Path
from autotune import cache
cache.use(Path(sys.argv[1]))
print("in use", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other_user():
    """A function that has another process use a data set, and returns the process."""
    users = []

    def use(folder):
        command = [sys.executable, "-c", USER, str(folder)]
        users.append(Popen(command, stdin=PIPE, stdout=PIPE, text=True))
        assert users[-1].stdout.readline() == "in use\n"
        return users[-1]

    yield use
    for user in users:
        user.communicate(timeout=60)


def test_what_another_process_uses_is_not_removed(kernel, monkeypatch, other_user):
    monkeypatch.setenv("AUTOTUNE_CACHE_SIZE", "0")
    folder = prepare_dataset(kernel(), PROBLEM, EXACT).folder
    user = other_user(folder)
    cache.tidy()  # this process ends its use, that one does not
    assert kept() == {folder} and cache.clear("data") == []
    user.kill()
    user.wait(60)
    cache.tidy()
    assert kept() == set()


def test_what_another_process_begins_to_use_is_not_removed(kernel, monkeypatch, other_user):
    """The moment is after the entries were listed, and before the first is removed."""
    folder = prepare_dataset(kernel(), PROBLEM, EXACT).folder
    cache.release(folder)
    usage = shutil.disk_usage
    monkeypatch.setenv("AUTOTUNE_CACHE_SIZE", "0")
    monkeypatch.setattr(
        cache.shutil, "disk_usage", lambda place: other_user(folder) and usage(place)
    )
    cache.make_room("data")
    assert kept() == {folder}


def test_another_run_may_end_while_a_data_set_is_made_from_another(kernel, monkeypatch):
    """It ends while the reference runs: the exact data set, which it used as well, bounds the errors."""
    ending = (
        "    code = 'import sys, pathlib; from autotune import cache; '\n"
        "    code += 'cache.use(pathlib.Path(sys.argv[1])); cache.tidy()'\n"
        "    for folder in pathlib.Path(os.environ['AUTOTUNE_CACHE_DIR'], 'data').glob('?' * 40):\n"
        "        subprocess.run([sys.executable, '-c', code, folder], check=True)\n"
    )
    given = kernel(
        ("import numpy as np", "import os, pathlib, subprocess, sys\nimport numpy as np"),
        ("def reference(x, factor):\n", f"def reference(x, factor):\n{ending}"),
        ("return factor * x", "return np.cumsum(factor * x)"),
    )
    monkeypatch.setenv("AUTOTUNE_CACHE_SIZE", "0")
    made = prepare_dataset(given, Problem(n=5000), RANDOM)
    assert made.bounds["out"] > 0
    assert kept() >= {made.folder}


def test_a_data_set_that_another_process_is_removing_is_not_used(kernel):
    """The lock is of a folder, which has no name when this process gets the lock."""
    folder = prepare_dataset(kernel(), PROBLEM, EXACT).folder
    cache.release(folder)
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    user = threading.Thread(target=cache.use, args=(folder,))
    user.start()
    time.sleep(0.05)  # until the thread waits for the lock; the test holds before, too
    folder.rename(folder.with_name(".making.removed"))
    os.close(descriptor)
    user.join(60)
    assert folder not in cache.used()


def test_locks_take_few_descriptors(monkeypatch):
    monkeypatch.setattr(cache, "_MAX_LOCKS", 4)
    folders = [cache_folder("data") / f"{number:040x}" for number in range(8)]
    before = len(os.listdir("/proc/self/fd"))
    for folder in folders:
        folder.mkdir()
        cache.use(folder)
    assert cache.used() == frozenset(folders[4:])
    cache.use(cache_folder("data") / "absent")
    assert len(os.listdir("/proc/self/fd")) <= before + 4
    cache.tidy()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_clearing_removes_everything(kernel):
    folder = prepare_dataset(kernel(), PROBLEM, EXACT).folder
    assert [entry.path for entry in cache.clear("data")] == [folder]
    assert kept() == set()


def test_what_is_not_of_the_cache_stays_there(tmp_path, monkeypatch):
    """A project's folder named as the cache, with data of its own, and links that lead elsewhere."""
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("AUTOTUNE_CACHE_SIZE", "0")
    name = "ab" * 32 + ".msgpack"
    own = [tmp_path / "data" / "images" / "1.png", tmp_path / "elsewhere" / name]
    own += [tmp_path / "binaries" / "ab" / "firmware", tmp_path / "set" / "x.npy"]
    for file in own:
        file.parent.mkdir(parents=True)
        file.touch()
    (tmp_path / "binaries" / "cd").symlink_to("../elsewhere")
    (tmp_path / "data" / ("ab" * 20)).symlink_to("../set")
    (tmp_path / "binaries" / "ab" / name).write_bytes(b"code")
    for kind in ("data", "binaries"):
        cache.make_room(kind)
        assert cache.clear(kind) == []
    assert all(file.exists() for file in own)
    assert not (tmp_path / "binaries" / "ab" / name).exists()


def test_data_that_were_removed_to_make_room_are_made_again(kernel):
    given = kernel()
    dataset = prepare_dataset(given, PROBLEM, RANDOM, seed=4)
    before = dataset.array("x").tobytes(), dataset.expected("out").tobytes()
    shutil.rmtree(dataset.folder)
    assert prepare_dataset(given, PROBLEM, RANDOM, seed=4) == dataset
    assert before == (dataset.array("x").tobytes(), dataset.expected("out").tobytes())


def test_the_disk_is_never_filled(kernel, monkeypatch):
    """Of a nearly full disk data sets take what is left of their share, however little."""
    given = kernel()
    old = [prepare_dataset(given, PROBLEM, EXACT, seed=seed) for seed in range(2)]
    full = shutil.disk_usage("/")._replace(free=0)
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: full)
    newest = prepare_dataset(given, PROBLEM, EXACT, seed=2)
    kept = {folder.name for folder in cache_folder("data").iterdir()}
    assert newest.folder.name in kept and len(kept & {dataset.folder.name for dataset in old}) == 1


def test_a_cache_that_is_less_than_half_full_is_looked_through_once(kernel, monkeypatch):
    """By a process, until it has added more, another limit is set or the disk is full."""
    first = prepare_dataset(kernel(), PROBLEM, EXACT).folder
    size = sum(file.stat().st_size for file in first.iterdir())
    looks, entries, seeds = [], cache.entries, count(1)
    monkeypatch.setattr(cache, "_LOOKED_S", float("inf"))
    monkeypatch.setattr(cache, "entries", lambda kind: looks.append(kind) or entries(kind))

    def looked():
        """Return whether this process looks through the cache for one more data set."""
        before = len(looks)
        prepare_dataset(kernel(), PROBLEM, EXACT, seed=next(seeds))
        return len(looks) > before

    monkeypatch.setenv("AUTOTUNE_CACHE_SIZE", str(10 * size))
    assert [looked() for _ in range(6)] == [True, False, False, False, False, True]
    monkeypatch.setenv("AUTOTUNE_CACHE_SIZE", "1G")
    assert [looked() for _ in range(2)] == [True, False]
    full = shutil.disk_usage("/")._replace(free=0)
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: full)
    assert looked()


def test_a_reference_that_changes_its_arguments_changes_no_input(kernel):
    """Arrays of float64 and integers reach it as they are, and are on the disk by then."""
    given = kernel(
        ("dtype=np.float32)", "dtype=np.float64)"),
        ("def reference(x, factor):\n", "def reference(x, factor):\n    x += 1\n"),
    )
    dataset = prepare_dataset(given, PROBLEM, EXACT)
    assert set(np.unique(dataset.array("x"))) == {-2, -1, 1, 2}
    np.testing.assert_array_equal(dataset.expected("out"), 3 * (dataset.array("x") + 1))


def test_a_cache_that_cannot_be_written_says_what_to_do(kernel, monkeypatch):
    def fail(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "save", fail)
    with pytest.raises(AutotuneError, match=r"cannot be written .*No space.* AUTOTUNE_CACHE_DIR"):
        prepare_dataset(kernel(), PROBLEM, RANDOM)
    assert list(cache_folder("data").iterdir()) == []


def test_other_methods_of_the_generator_draw_other_numbers_than_arrays_do():
    draw = Draw(False, 1)
    arrays = [draw.standard_normal(64, np.float64) for _ in range(2)]
    other = np.random.Generator.standard_normal(draw, 64)
    assert not np.isin(other, arrays).any()


def test_a_shape_that_depends_on_the_draw_is_one_error(tmp_path, opencl_device, capsys):
    drawn = "x = rng.standard_normal(p.n + int(rng.integers(1, 900)))"
    edit = "x = rng.standard_normal(p.n, dtype=np.float32)", drawn
    write_space(tmp_path, edit, ("factor * x", "factor * x[:1000]"))
    assert run(["check", "scale", "--spaces", str(tmp_path / "spaces")]) == 2
    assert (
        "on random data; names, shapes and types must not depend on rng" in capsys.readouterr().err
    )


def test_expected_outputs_are_added_to_drawn_inputs(kernel):
    given = kernel()
    drawn = drawn_dataset(given, PROBLEM, EXACT)
    inputs = drawn.array("x")
    assert not drawn.bounds and drawn_dataset(given, PROBLEM, EXACT) == drawn
    made = prepare_dataset(given, PROBLEM, EXACT)
    assert (
        made.folder == drawn.folder and made.bounds and drawn_dataset(given, PROBLEM, EXACT) == made
    )
    np.testing.assert_array_equal(made.array("x"), inputs)
    assert made.expected("out").shape == inputs.shape
