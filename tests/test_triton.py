"""Triton itself: compiled for three architectures and interpreted, without a GPU."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from sample_triton import write_two_functions

from autotune.calling.binding import bind
from autotune.calling.choice import LaunchPlan, choose
from autotune.cli import run
from autotune.compiling.binaries import compiled_for
from autotune.compiling.job import compile_job
from autotune.devices import cubin
from autotune.devices.base import CompileError
from autotune.devices.device import for_arch
from autotune.errors import SpecError
from autotune.kernel.catalog import load_file
from autotune.kernel.operand import Operand
from autotune.kernel.source import source_fingerprint
from autotune.languages import ptx
from autotune.values import Problem

pytest.importorskip("triton")
EXAMPLE = Path(__file__).parents[1] / "examples" / "softmax"
PROBLEM = Problem(rows=16, columns=1000)


@pytest.fixture(scope="module")
def kernel():
    return load_file(EXAMPLE / "spaces" / "softmax_rows.py")


def configuration(kernel, **chosen):
    return kernel.default().replace(**{"BLOCK": 1024, "num_warps": 4, **chosen})


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
def test_a_kernel_is_compiled_for_an_architecture(kernel, arch):
    binary = compiled_for(kernel, configuration(kernel), PROBLEM, for_arch(arch))
    (entry,) = binary.entries
    assert binary.code.startswith(b"\x7fELF") and b"softmax_rows" in binary.code
    assert (entry.name, entry.spill_bytes) == ("softmax_rows", 0)
    assert 8 <= entry.registers <= 64
    convention = entry.convention
    assert (convention.block, convention.passed) == (128, (0, 1, 2, None, None))
    assert 0 < convention.shared_bytes < 1024


def test_an_integer_that_is_1_is_compiled_in(kernel):
    chosen, problem = configuration(kernel), PROBLEM.replace(columns=1)
    (entry,) = compiled_for(kernel, chosen, problem, for_arch("sm_90")).entries
    assert entry.convention.passed == (0, 1, None, None)


@pytest.mark.filterwarnings("ignore:no tuned record")
@pytest.mark.parametrize(("columns", "passed"), [(1000, 3), (1024, 3), (1, 2)])
def test_load_plans_the_launch_of_what_was_compiled(kernel, columns, passed):
    rows = Operand((4, columns), (columns, 1), "float32", source=0)
    resolved = bind(kernel, (rows,), {}, lambda name: kernel)
    device = for_arch("sm_90")
    choice = choose(kernel, resolved.problem, device)
    plan = LaunchPlan.of(resolved, device, choice)
    main = plan.sequence.main
    assert (main.grid, main.block) == ((4, 1, 1), (512, 1, 1))
    assert main.args == (*("x", "y", "columns")[:passed], np.uint64(0), np.uint64(0))
    assert main.shared_bytes > 0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("tl.max(", "tl.maxi(", r"no attribute 'maxi'.*\(line 7 of the function: powers = "),
        ("tl.arange(0, BLOCK)", "tl.arange(0, columns)", "arange"),
        ("mask=inside)", "mask=unknown)", "unknown is not defined"),
        (
            "columns,",
            "columns: tl.int64,",
            "columns is annotated as i64, but its launch passes i32",
        ),
        ("@triton.jit", "", "softmax_rows is not a function with the decorator @triton.jit"),
    ],
)
def test_what_triton_rejects_is_one_line(kernel, capfd, old, new, message):
    device = for_arch("sm_90")
    job = compile_job(kernel, configuration(kernel), PROBLEM, device)
    with pytest.raises(CompileError, match=message) as caught:
        compile_text(kernel, job, job.source.replace(old, new))
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def compile_text(kernel, job, text, options=()):
    return kernel.language.compile(text, dict(job.defines), options, job.device, job.entries)


def test_the_code_has_lines_and_folders_only_where_asked_for(kernel):
    job = compile_job(kernel, configuration(kernel), PROBLEM, for_arch("sm_90"))
    plain, lines = (
        compile_text(kernel, job, job.source, options).code for options in ((), ("-lineinfo",))
    )
    assert b"softmax_rows.py" in lines
    assert b"site-packages" not in plain and b".py" not in plain


def test_options_are_tritons(kernel):
    job = compile_job(kernel, configuration(kernel), PROBLEM, for_arch("sm_90"))
    few = compile_text(kernel, job, job.source, ("maxnreg=24",)).entries[0]
    assert few.registers <= 24
    (launched,) = compile_text(kernel, job, job.source, ("launch_pdl=True",)).entries
    assert launched.convention.programmatic and not launched.convention.cooperative
    with pytest.raises(CompileError, match="option '-O3': expected an option of Triton"):
        compile_text(kernel, job, job.source, ("-O3",))


@pytest.mark.parametrize(
    ("old", "new", "code", "message"),
    [
        ("mask=inside)\n", "mask=inside)\n", 0, "verified"),
        ("mask=inside)\n", ")\n", 3, "wrote outside the bounds of y"),
    ],
)
def test_a_kernel_is_verified_by_the_interpreter(tmp_path, capsys, old, new, code, message):
    folder = tmp_path / "example"
    shutil.copytree(EXAMPLE, folder)
    file = folder / "kernels" / "softmax_rows.py"
    before, _, after = file.read_text().rpartition(old)
    file.write_text(before + new + after)
    arguments = ["--spaces", str(folder / "spaces"), "--arch", "sm_90", "--samples", "1"]
    assert run(["check", "softmax_rows", *arguments]) == code
    said = "".join(capsys.readouterr())
    assert message in said and "compiled" in said


# ---------------------------------------------------------------- several functions


@pytest.fixture
def two(tmp_path):
    """A kernel that launches ``part_sums`` and then ``scaled``."""
    return load_file(write_two_functions(tmp_path))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
@pytest.mark.parametrize("options", [(), ("-lineinfo",)])
def test_functions_of_a_configuration_are_in_one_cubin(two, arch, options):
    job = compile_job(two, two.default(), Problem(n=1000), for_arch(arch))
    assert job.entries == ("part_sums", "scaled")
    binary = compile_text(two, job, job.source, options)
    assert [entry.name for entry in binary.entries] == list(job.entries)
    for entry, passed in zip(binary.entries, ((0, 1, 2), (0, 1, 2, 3)), strict=True):
        assert len(cubin.parameter_bytes(binary.code, entry.symbol) or ()) == len(passed) + 2
        assert entry.convention.passed == (*passed, None, None)
        assert (entry.convention.block, entry.spill_bytes) == (64, 0)
        assert 8 <= entry.registers <= 64
    sums, scaled = (entry.convention.shared_bytes for entry in binary.entries)
    assert 0 < sums <= 64 and 0 < scaled <= 64
    assert (b"scaled.py" in binary.code) == (options != ())


def test_functions_share_no_names_but_their_own(two):
    """A symbol of one function that is an argument of the other stays an argument."""
    job = compile_job(two, two.default(), Problem(n=1000), for_arch("sm_90"))
    text = job.source.replace("def part_sums(x, sums, n,", "def part_sums(x, sums, PARTS,")
    text = text.replace(
        "mask=place < n, other=0.0)\n    tl.store(sums", "mask=place < PARTS)\n    tl.store(sums"
    )
    first, _ = compile_text(two, job, text).entries
    assert first.convention.passed == (0, 1, 2, None, None)


def test_names_of_one_text_stay_apart_in_joined_texts():
    """text and text_1 of one text, and text_1 of the other: none becomes another."""
    one, other = "text_1", "text"
    declared = (
        ".version 9.0\n.global .align 1 .b8 {}[2] = {{1, 0}};\n.global .align 1 .b8 text_1[2];"
    )
    first, second = (declared.format(name) for name in (one, other))
    joined = ptx.join([first, f"{second}\nmov.u64 %text, text;"])
    names = re.findall(r"b8 ([\w$]+)\[", joined)
    assert len(set(names)) == len(set(names[:2])) + 2 == 3
    assert joined.endswith(f"mov.u64 %text, {names[2]};") and joined.count(".version") == 1


def test_an_error_in_a_called_function_is_one_line(two):
    """The line of the call, and the text of the called function."""
    job = compile_job(two, two.default(), Problem(n=1000), for_arch("sm_90"))
    helper = "@triton.jit(noinline=True)\ndef same(x):\n    return x\n\n\n"
    text = job.source.replace("@triton.jit\ndef part_sums(", helper + "@triton.jit\ndef part_sums(")
    text = text.replace("tl.rsqrt(values * values + 1.0) * values", "same(values)")
    with pytest.raises(CompileError, match="noinline"):
        compile_text(two, job, text)


def test_a_function_that_the_source_does_not_name_is_refused(tmp_path):
    kernel = load_file(write_two_functions(tmp_path, (",part_sums", "")))
    with pytest.raises(
        SpecError, match="the source has no function part_sums; name all functions: 'FILE:"
    ):
        compile_job(kernel, kernel.default(), Problem(n=1000), for_arch("sm_90"))


def test_the_fingerprint_is_of_all_functions(tmp_path):
    first, second = (
        source_fingerprint(load_file(write_two_functions(tmp_path, *edits)))
        for edits in ((), (("values * values + 1.0", "values * values + 2.0"),))
    )
    assert first != second


@pytest.mark.filterwarnings("ignore:no tuned record")
def test_load_plans_the_launches_of_both(two):
    resolved = bind(two, (Operand((1000,), (1,), "float32", source=0),), {}, lambda name: two)
    device = for_arch("sm_90")
    plan = LaunchPlan.of(resolved, device, choose(two, resolved.problem, device))
    null = np.uint64(0)
    assert [(each.entry, each.grid, each.args) for each in plan.sequence.launches] == [
        ("part_sums", (16, 1, 1), ("x", "sums", "n", null, null)),
        ("scaled", (16, 1, 1), ("x", "sums", "y", "n", null, null)),
    ]
    assert plan.sequence.main.entry == "scaled"


@pytest.mark.parametrize(
    ("old", "new", "code", "message"),
    [
        ("", "", 0, "verified"),
        (
            "tl.program_id(0), tl.sum",
            "tl.program_id(0) + 1, tl.sum",
            3,
            "y[0] is nan (not written)",
        ),
        ("values * values + 1.0) * values", "values * values + 2.0) * values", 3, "y["),
    ],
)
def test_both_functions_are_verified_by_the_interpreter(tmp_path, capsys, old, new, code, message):
    spaces = str(write_two_functions(tmp_path, *([(old, new)] if old else [])).parent)
    arguments = ["--spaces", spaces, "--arch", "sm_90", "--samples", "1"]
    assert run(["check", "scaled", *arguments]) == code
    assert message in "".join(capsys.readouterr())


# ---------------------------------------------------------------- types that NumPy lacks

ROUND = """\
import triton
import triton.language as tl


@triton.jit
def round_to(x, y, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + place, mask=place < n, other=0.0).to(tl.float32)
    tl.store(y + place, (FACTOR * values).to(y.dtype.element_ty), mask=place < n)
"""
ROUND_SPACE = """\
from autotune import Kernel, Launch, Out, Problem, ceil_div

round_to = Kernel("round_to.py:round_to", language="triton", problems=[Problem(n=1000)],
                  edge_problems=[Problem(n=7)], BLOCK=(128,), num_warps=(1,))

@round_to.arguments
def arguments(p, rng):
    return {"x": rng.standard_normal(p.n, dtype="FROM"), "y": Out(p.n, "TO"), "n": p.n}

@round_to.launch
def launch(c, p):
    return Launch((ceil_div(p.n, c.BLOCK),))

@round_to.reference
def reference(x):
    return 0.75 * x
"""


@pytest.mark.parametrize(
    ("given", "wanted", "factor", "code"),
    [
        ("bfloat16", "float8_e4m3fn", "0.75", 0),
        pytest.param("float8_e4m3fn", "float8_e5m2", "0.75", 0, marks=pytest.mark.full),
        ("float8_e5m2", "bfloat16", "0.7", 3),
    ],
)
def test_types_of_eight_bits_are_verified_by_the_interpreter(
    tmp_path, capsys, given, wanted, factor, code
):
    for kind in ("kernels", "spaces"):
        (tmp_path / kind).mkdir()
    (tmp_path / "kernels/round_to.py").write_text(ROUND.replace("FACTOR", factor))
    space = ROUND_SPACE.replace("FROM", given).replace("TO", wanted)
    (tmp_path / "spaces/round_to.py").write_text(space)
    arguments = ["--spaces", str(tmp_path / "spaces"), "--arch", "sm_90", "--samples", "1"]
    assert run(["check", "round_to", *arguments]) == code
    said = "".join(capsys.readouterr())
    assert ("verified" if not code else "expected") in said and "compiled" in said
