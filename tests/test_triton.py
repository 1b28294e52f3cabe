"""Triton itself: compiled for three architectures and interpreted, without a GPU."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from autotune.calling.binding import bind
from autotune.calling.choice import LaunchPlan, choose
from autotune.cli import run
from autotune.devices.base import CompileError
from autotune.devices.device import for_arch
from autotune.kernel.catalog import load_file
from autotune.kernel.operand import Operand
from autotune.measure.compiler import compile_job, compiled_for
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
            "columns is annotated as i64, and its launch passes i32",
        ),
        ("@triton.jit", "", "softmax_rows is no function with the decorator @triton.jit"),
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
    with pytest.raises(CompileError, match="launch_pdl, which no launch here provides"):
        compile_text(kernel, job, job.source, ("launch_pdl=True",))
    with pytest.raises(CompileError, match="option '-O3': expected one of Triton's"):
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
