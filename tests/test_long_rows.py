"""long_rows: compiled without spills, the widths of its accesses, the lengths it accepts, and its calls."""

import re

import pytest
from thinned import thinned

from autotune.calling.binding import bind
from autotune.compiling.binaries import compiled_for
from autotune.compiling.job import compile_job
from autotune.devices.device import for_arch
from autotune.devices.sass import code_of
from autotune.errors import UsageError
from autotune.kernel.catalog import find_kernel
from autotune.kernel.operand import NothingToDo, Operand
from autotune.kernel.space import enumerate_space, is_member
from autotune.measure.disassembly import disassembled
from autotune.tuned.merged import build_table, pick
from autotune.tuned.reading import RecordFile, read
from autotune.values import Problem

KERNEL = find_kernel("long_rows")
FUNCTIONS = (
    *("softmax", "rms_norm", "rms_norm_residual"),
    *("layer_norm", "cross_entropy", "cross_entropy_gradient"),
)
NAMES = ("CLUSTER", "THREADS", "PIECES", "MIN_BLOCKS")


def chosen(*values):
    return KERNEL.completed(dict(zip(NAMES, values, strict=True)))


def problem(columns, dtype="float32", function="softmax", rows=9):
    return Problem(rows=rows, columns=columns, dtype=dtype, function=function)


@pytest.mark.parametrize(
    ("arch", "values"),
    [
        ("sm_80", (1, 512, 8, 1)),
        ("sm_90", (4, 256, 4, 2)),
        ("sm_90", (1, 256, 4, 2)),
        ("sm_120", (8, 256, 2, 1)),
    ],
)
@pytest.mark.parametrize(
    ("place", "function"), thinned(enumerate(FUNCTIONS), [(0, FUNCTIONS[0]), (1, FUNCTIONS[1])])
)
def test_it_is_compiled_without_spills(arch, values, place, function):
    pytest.importorskip("cuda.bindings.nvrtc", reason="pip install '.[nvrtc]'")
    device = for_arch(arch)
    assert is_member(KERNEL, chosen(*values), device)
    dtype = ("float32", "float16", "bfloat16")[(place + values[0]) % 3]
    binary = compiled_for(KERNEL, chosen(*values), problem(8192, dtype, function), device)
    assert binary.entry("long_rows").spill_bytes == 0


@pytest.mark.parametrize("dtype", thinned(("float32", "bfloat16"), ["bfloat16"]))
@pytest.mark.parametrize("function", FUNCTIONS)
def test_rows_of_any_length_are_read_and_written_16_bytes_at_a_time(function, dtype):
    """Single elements are those of the ends of a row; each piece of weight and bias is made of two."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="pip install '.[nvrtc]'")
    binary = compiled_for(
        KERNEL, chosen(4, 256, 4, 1), problem(8191, dtype, function), for_arch("sm_90")
    )
    accesses = code_of(disassembled(binary.code), binary.entries[0].symbol).mix.accesses
    vectors = {"layer_norm": 2, "rms_norm": 1, "rms_norm_residual": 1}.get(function, 0)
    arrays = 1 + (function == "rms_norm_residual")
    assert accesses["global loads"][16] == 4 * (arrays + 2 * vectors)
    if function == "cross_entropy":
        assert set(accesses["global stores"]) == {4}
    else:
        assert accesses["global stores"][16] == 4 * arrays
        single = 4 if dtype == "float32" else 2
        assert accesses["global stores"][single] >= arrays


def test_one_block_has_no_use_for_clusters():
    pytest.importorskip("cuda.bindings.nvrtc", reason="pip install '.[nvrtc]'")
    texts = [
        disassembled(compiled_for(KERNEL, chosen(*values), problem(4096), for_arch("sm_90")).code)
        for values in ((1, 512, 4, 1), (4, 512, 4, 1))
    ]
    assert [bool(re.search("UCGABAR", text)) for text in texts] == [False, True]


@pytest.mark.parametrize(("dtype", "each"), [("float32", 4), ("float16", 8)])
def test_rows_fit_the_registers_of_their_blocks(dtype, each):
    """A row fills a quarter of its blocks, and has 512 columns; what is no whole piece needs no room."""
    allowed = [
        columns
        for columns in range(1, 3 * 128 * 4 * each)
        if KERNEL.allows(chosen(2, 128, 4, 4), problem(columns, dtype))
    ]
    room = 2 * 128 * 4 * each
    assert allowed == [*range(room // 4, room + each)]
    shortest = [
        columns
        for columns in range(1, 2000)
        if KERNEL.allows(chosen(1, 128, 1, 4), problem(columns, dtype))
    ]
    assert shortest[0] == 512


def test_sums_with_a_residual_need_more_registers():
    fits = {
        (dtype, function): KERNEL.allows(chosen(1, 512, 8, 2), problem(16384, dtype, function))
        for dtype in ("float32", "bfloat16")
        for function in ("rms_norm", "rms_norm_residual")
    }
    assert not fits.pop(("bfloat16", "rms_norm_residual"))
    assert all(fits.values())


def test_every_seed_can_be_tried():
    device = for_arch("sm_90")
    seeds = [KERNEL.default(), *map(KERNEL.completed, KERNEL.seeds)]
    assert [seed for seed in seeds if not is_member(KERNEL, seed, device)] == []
    assert len(set(map(str, seeds[1:]))) == len(seeds) - 1
    assert 200 < len(enumerate_space(KERNEL, device)) < 500
    assert all(
        c["CLUSTER"] == 1
        for space in [enumerate_space(KERNEL, for_arch("sm_80"))]
        for c in map(space.configuration, range(len(space)))
    )


def test_seeds_answer_every_declared_problem():
    seeds = [KERNEL.default(), *map(KERNEL.completed, KERNEL.seeds)]
    declared = [*KERNEL.all_problems(), *KERNEL.edge_problems]
    assert [each for each in declared if not any(KERNEL.allows(c, each) for c in seeds)] == []


def test_another_length_needs_no_other_binary():
    device, values = for_arch("sm_90"), chosen(4, 256, 4, 2)
    sizes = [problem(columns, rows=rows) for rows in (1, 4000) for columns in (8192, 9001)]
    assert len({compile_job(KERNEL, values, size, device).key for size in sizes}) == 1


def operand(*shape, dtype="float16"):
    return Operand.new(shape, dtype)


def call(*args, **named):
    return bind(KERNEL, args, named, find_kernel)


def test_calls_say_what_is_launched():
    x, vector, target = operand(3, 5, 1024), operand(1024), operand(15, dtype="int32")
    found = call(x, "softmax")
    assert found.problem == problem(1024, "float16", rows=15)
    assert found.results[0].shape == (15, 1024)
    both = call(x, "rms_norm_residual", weight=vector, residual=operand(3, 5, 1024), eps=1e-3)
    assert both.outputs == ["y", "residual"] and both.scalars["eps"] == 1e-3
    rows = call(x, function="layer_norm", weight=vector, bias=vector, out=operand(3, 5, 1024))
    assert rows.problem.function == "layer_norm" and list(rows.scalars) == ["eps"]
    loss = call(x, "cross_entropy_gradient", target=target)
    assert [(each.dtype, each.shape) for each in loss.results] == [
        ("float32", (15,)),
        ("float16", (15, 1024)),
    ]
    assert call(x, "cross_entropy", target=target).outputs == ["loss"]
    assert isinstance(call(operand(0, 1024), "softmax"), NothingToDo)


@pytest.mark.parametrize(
    ("name", "named", "function"),
    [
        ("softmax", {}, "softmax"),
        ("rms_norm", {"weight": operand(1024)}, "rms_norm"),
        ("rms_norm", {"weight": operand(1024), "residual": operand(3, 1024)}, "rms_norm_residual"),
        ("layer_norm", {"weight": operand(1024), "bias": operand(1024)}, "layer_norm"),
        ("cross_entropy", {"target": operand(3, dtype="int32")}, "cross_entropy"),
        (
            "cross_entropy",
            {"target": operand(3, dtype="int32"), "with_gradient": True},
            "cross_entropy_gradient",
        ),
    ],
)
def test_others_pass_long_rows_on_where_less_time_is_expected(name, named, function):
    def bound(own_ms, other_ms, columns=1024):
        times_ms = {name: own_ms, "long_rows": other_ms}
        given = {"x": operand(3, columns), **named}
        return bind(
            *(find_kernel(name), (), given, find_kernel, True),
            lambda asked: times_ms[asked.kernel.name],
        )

    own, other = bound(1.0, 2.0), bound(2.0, 1.0)
    assert (own.kernel.name, other.kernel.name) == (name, "long_rows")
    assert other.problem.function == function
    assert [each.shape for each in other.results] == [each.shape for each in own.results]
    assert other.scalars.get("eps") == own.scalars.get("eps")
    assert bound(2.0, None).kernel.name == bound(None, 1.0).kernel.name == name


def test_short_rows_are_not_passed_on():
    for columns, name in ((511, "softmax"), (512, "long_rows"), (131073, "softmax")):
        found = bind(
            *(find_kernel("softmax"), (operand(3, columns),), {}, find_kernel, True),
            lambda asked: 1.0 + (asked.kernel.name == "softmax"),
        )
        assert found.kernel.name == name


def test_the_record_of_an_h200_answers_many_lengths():
    """Of most functions and types no problem was tuned that such rows fit; the fit to random sizes answers."""
    record = read(KERNEL.file.parents[1] / "reports" / "NVIDIA_H200" / "long_rows.json")
    table = build_table([RecordFile("given", record.device.folder, record)])
    for function in FUNCTIONS:
        for dtype in ("float32", "float16", "bfloat16"):
            for columns in (3501, 10359, 16385, 32001):
                hit = pick(table, (7, columns, dtype, function), record.device.folder)
                assert hit.quality == "nearest_problem" and hit.expected_ms
                assert KERNEL.allows(
                    KERNEL.completed(hit.plan.configuration), problem(columns, dtype, function)
                )


def test_launches_pass_what_a_function_needs():
    for function in FUNCTIONS:
        size = problem(8192, "float32", function)
        (step,) = KERNEL.steps(chosen(4, 256, 4, 2), size, for_arch("sm_90"))
        assert (step.grid[0], step.block[0]) == (36, 256)
        assert step.args[0] == "x" and "columns" in step.args
        assert (
            ("weight" in step.args)
            == ("eps" in step.args)
            == function.endswith(("norm", "residual"))
        )


@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        ([operand(3, 4, dtype="float64"), "softmax"], {}, "one of float32, float16, bfloat16"),
        ([operand(3, 4).T, "softmax"], {}, "rows must be contiguous"),
        ([operand(3, 4), "mean"], {}, "one of softmax, rms_norm"),
        ([operand(3, 4), "rms_norm"], {}, "rms_norm needs weight"),
        ([operand(3, 4), "softmax", operand(4)], {}, "softmax does not take weight"),
        ([operand(3, 4), "rms_norm", operand(3)], {}, r"must be float16\[4\]"),
        (
            [operand(3, 4), "cross_entropy"],
            {"target": operand(3, dtype="int64")},
            r"must be int32\[3\]",
        ),
    ],
)
def test_what_does_not_fit_is_refused(args, named, message):
    with pytest.raises(UsageError, match=message):
        call(*args, **named)
