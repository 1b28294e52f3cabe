"""Source languages: the text of a function, what is compiled in, and how a binary is launched."""

import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest
from sample_spaces import write_space

from autotune.cli import run
from autotune.compiling.binaries import compile_now, compiled_for
from autotune.compiling.job import compile_job
from autotune.devices.base import GUARD_BYTES, Binary, CompiledFunction, Convention
from autotune.devices.device import for_arch
from autotune.errors import AutotuneError, SpecError
from autotune.kernel.catalog import load_file
from autotune.kernel.launches import (
    bind_arguments,
    complete_launches,
    exceeded_limit,
    launch_sequence,
)
from autotune.kernel.source import source_fingerprint
from autotune.languages import slices, triton
from autotune.languages.base import PassedValue
from autotune.languages.interpreter import HostBuffer
from autotune.values import Problem

EXAMPLE = Path(__file__).parents[1] / "examples" / "softmax"
DEVICE = for_arch("sm_90")
#: A file with a function ``f``, and files beside it, in place of their lines.
FILES = {
    "f.py": """
        import math
        import triton.language as tl
        import helpers
        from helpers import twice as doubled
        SCALE = 3
        UNUSED = 4
        x = y = result = UNUSED

        def other(x):
            return x - UNUSED

        def inner(x):
            return doubled(x) * SCALE

        # A comment of nobody.
        @decorated
        @autotune(configs=[UNUSED])
        def f(x, y=1, *, N: tl.constexpr, M: "tl.constexpr" = 2):
            result = inner(x)
            return result + y
        """,
    "helpers.py": """
        from constants import *
        def twice(x):
            return TWO * x
        def thrice(x):
            return 3 * x
        """,
    "constants.py": "TWO = 2",
}


class PlainFiles:
    """Files of one folder; see `autotune.languages.base.Files`."""

    def read(self, file: Path) -> str:
        return file.read_text()

    def read_bytes(self, file: Path) -> bytes:
        return file.read_bytes()

    def module_files(self, name: str, folder: Path) -> list[Path]:
        found = []
        for part in name.split("."):
            places = (folder / part / "__init__.py", folder / f"{part}.py")
            found += [place for place in places if place.is_file()]
            folder = folder / part
        return found


def cut(folder: Path, *changes: tuple[str, str], function: str = "f") -> str:
    """The text of a function of `FILES`, each of which may be changed."""
    for name, text in FILES.items():
        lines = "\n".join(line.removeprefix("        ") for line in text.splitlines())
        for old, new in changes:
            lines = lines.replace(old, new)
        (folder / name).write_text(lines)
    return slices.cut(folder / "f.py", [function], PlainFiles())


def test_a_function_is_cut_out_with_all_that_it_uses(tmp_path):
    text = cut(tmp_path)
    for used in ("def inner", "SCALE = 3", "def twice", "TWO = 2", "import triton.language as tl"):
        assert used in text
    for unused in ("UNUSED", "other", "thrice", "import math", "comment", "autotune"):
        assert unused not in text


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ("return result + y", "return result - y", True),
        ("doubled(x) * SCALE", "doubled(x) + SCALE", True),
        ("SCALE = 3", "SCALE = 5", True),
        ("TWO = 2", "TWO = 4", True),
        ("y=1", "y=7", True),
        ("UNUSED = 4", "UNUSED = 5", False),
        ("result = UNUSED", "result = None", False),
        ("return 3 * x", "return 4 * x", False),
        ("A comment of nobody", "Another", False),
        ("import math", "import math\n\n\n", False),
    ],
)
def test_the_text_changes_with_what_is_used_alone(tmp_path, old, new, changes):
    assert (cut(tmp_path) != cut(tmp_path, (old, new))) == changes


def test_what_was_parsed_is_not_parsed_again(tmp_path, monkeypatch):
    text = cut(tmp_path)
    monkeypatch.delattr(slices.ast, "parse")
    assert cut(tmp_path) == text
    with pytest.raises(AttributeError):
        cut(tmp_path, ("TWO = 2", "TWO = 3"))


def test_the_text_runs_without_its_files(tmp_path):
    """With the form feeds that some put between the parts of a file, which end no line."""
    changes = (("import triton.language as tl", "tl = None\n\f"), (": tl.constexpr", ""))
    text = cut(tmp_path, *changes)
    text = text.replace("@decorated\n", "").replace(': "tl.constexpr"', "")
    for name in FILES:
        (tmp_path / name).unlink()
    before = dict(sys.modules)
    assert slices.run_slice(text, "f")(5, N=0) == 31
    assert dict(sys.modules) == before


def test_parameters_are_read_without_running_the_text(tmp_path):
    found = slices.function_parameters(cut(tmp_path), "f")
    assert [(each.name, each.annotation, each.has_default) for each in found] == [
        ("x", "", False),
        ("y", "", True),
        ("N", "constexpr", False),
        ("M", "constexpr", True),
    ]


@pytest.mark.parametrize(
    ("changes", "function", "message"),
    [
        ((), "g", r"f.py has no function 'g'"),
        ((("def other(x)", "def other(x"),), "f", r"f.py:\d+: syntax error: '\(' was never closed"),
        ((("TWO = 2", "from f import f"),), "f", "import each other"),
    ],
)
def test_what_cannot_be_cut_is_named(tmp_path, changes, function, message):
    with pytest.raises(SpecError, match=message):
        cut(tmp_path, *changes, function=function)


def test_a_package_is_followed_by_relative_imports(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    for name, text in {
        "__init__": "ONE = 1",
        "f": "from .util import g\nfrom . import ONE\ndef f():\n    return g() + ONE",
        "util": "def g():\n    return 2\ndef h():\n    return 3",
    }.items():
        (package / f"{name}.py").write_text(text)
    text = slices.cut(package / "f.py", ["f"], PlainFiles())
    assert "def h" not in text
    assert slices.run_slice(text, "f")() == 3


# ---------------------------------------------------------------- Triton's symbols

SOURCE = (
    "#: module k\ndef k(x, y, n, alpha, BLOCK: tl.constexpr, EXTRA: tl.constexpr = 1):\n    pass\n"
)


def passed(n: int = 5, offset_bytes: int = 0) -> list[PassedValue]:
    arrays = [PassedValue("x", "float16", offset_bytes=offset_bytes), PassedValue("y", "int32")]
    return [*arrays, PassedValue("n", "int64", n), PassedValue("alpha", "float32", 16.0)]


@pytest.mark.parametrize(
    ("launches", "types"),
    [
        ([passed(5)], "*fp16%16 *i32%16 i64 fp32"),
        ([passed(32)], "*fp16%16 *i32%16 i64%16 fp32"),
        ([passed(0)], "*fp16%16 *i32%16 i64%16 fp32"),
        ([passed(1)], "*fp16%16 *i32%16 i64=1 fp32"),
        ([passed(32, 2)], "*fp16 *i32%16 i64%16 fp32"),
        ([passed(32), passed(48)], "*fp16%16 *i32%16 i64%16 fp32"),
        ([passed(32), passed(1)], "*fp16%16 *i32%16 i64 fp32"),
    ],
)
def test_arguments_are_specialised_as_triton_does(launches, types):
    symbols = triton.TritonLanguage().symbols(
        SOURCE, "k", launches, {"BLOCK": 64, "num_warps": 8, "TILE": 3}
    )
    assert symbols == {"BLOCK": "64", "num_warps": "8", "(k)": types}


@pytest.mark.parametrize(
    ("given", "values", "message"),
    [
        (
            passed()[:3],
            {"BLOCK": 1},
            r"k takes \(x, y, n, alpha\), and its launch passes \(x, y, n\)",
        ),
        (passed()[::-1], {"BLOCK": 1}, "must agree in number and order"),
        (
            passed(),
            {},
            r"the constexpr BLOCK of k is neither .*: give Kernel\(\.\.\., BLOCK=\(\.\.\.\)\)",
        ),
        (
            [PassedValue("x", "complex64"), *passed()[1:]],
            {"BLOCK": 1},
            "Triton has no type for complex64",
        ),
    ],
)
def test_what_triton_cannot_be_given_is_refused(given, values, message):
    with pytest.raises(SpecError, match=message):
        triton.TritonLanguage().symbols(SOURCE, "k", [given], values)


# ---------------------------------------------------------------- kernels


def space(folder: Path, *changes: tuple[str, str]):
    """The kernel of the example, with its files changed."""
    for name in ("kernels", "spaces"):
        (folder / name).mkdir(exist_ok=True, parents=True)
        text = (EXAMPLE / name / "softmax_rows.py").read_text()
        for old, new in changes:
            text = text.replace(old, new)
        (folder / name / "softmax_rows.py").write_text(text)
    return load_file(folder / "spaces" / "softmax_rows.py")


@pytest.fixture
def installed(monkeypatch):
    """Triton as if it was installed: nothing is compiled."""
    monkeypatch.setattr(triton, "version", lambda _: "3.9.0")


def key(kernel, columns: int = 1000, rows: int = 10, **chosen: object) -> str:
    configuration = kernel.default().replace(**chosen)
    problem = Problem(rows=rows, columns=columns)
    return compile_job(kernel, configuration, problem, DEVICE).key


def test_a_binary_is_of_a_configuration_and_what_is_specialised(tmp_path, installed):
    kernel = space(tmp_path)
    first = key(kernel)
    assert key(kernel, columns=1001) == first == key(kernel, rows=16)
    others = [key(kernel, columns=1024), key(kernel, columns=1), key(kernel, num_warps=4)]
    assert len({first, *others}) == 4
    assert key(space(tmp_path, ("tl.exp(", "tl.exp2("))) != first


@pytest.mark.parametrize("named", ['["columns"]', "(2,)"])
def test_what_triton_shall_not_specialise_is_not(tmp_path, installed, named):
    decorator = f"@triton.jit(do_not_specialize={named})"
    kernel = space(tmp_path / "any", ("@triton.jit", decorator))
    assert key(kernel, columns=1) == key(kernel, columns=1001) == key(kernel, columns=1024)
    only = decorator.replace("specialize", "specialize_on_alignment")
    kernel = space(tmp_path / "aligned", ("@triton.jit", only))
    assert key(kernel, columns=1) != key(kernel, columns=1001) == key(kernel, columns=1024)


def test_problems_do_not_share_a_binary_unasked(tmp_path):
    """Finalists are verified at other sizes by binaries of those sizes."""
    kernel, small, large = space(tmp_path), Problem(rows=1, columns=16), Problem(rows=1, columns=17)
    assert kernel.shares_binary(small, small) and not kernel.shares_binary(small, large)


def test_of_a_drawn_integer_nothing_is_compiled_in(tmp_path, installed):
    kernel = space(tmp_path, ('"columns": p.columns}', '"columns": rng.integers(0, 16)}'))
    job = compile_job(kernel, kernel.default(), Problem(rows=1, columns=16), DEVICE)
    assert dict(job.defines)["(softmax_rows)"] == "*fp32%16 *fp32%16 i32"


def test_the_scalars_of_a_call_are_those_compiled_in(tmp_path, installed):
    kernel = space(tmp_path)
    problem = Problem(rows=1, columns=16)
    job = compile_job(kernel, kernel.default(), problem, DEVICE, {"columns": 17})
    assert dict(job.defines)["(softmax_rows)"] == "*fp32%16 *fp32%16 i32"


def test_another_version_of_the_compiler_is_refused(tmp_path, installed):
    """On another machine, say: the binary would be kept under the wrong key."""
    kernel = space(tmp_path)
    job = compile_job(kernel, kernel.default(), Problem(rows=1, columns=16), DEVICE)
    with pytest.raises(
        AutotuneError, match=r"triton 3\.9\.0 is installed here, but the run uses triton 3\.8\.0"
    ):
        compile_now(replace(job, toolchain="triton 3.8.0"))


def test_the_fingerprint_is_of_the_function(tmp_path):
    kernel = space(tmp_path)
    before = source_fingerprint(kernel)
    file = tmp_path / "kernels" / "softmax_rows.py"
    file.write_text(f"LATER = 1\n\n{file.read_text()}\n\ndef unused():\n    pass\n")
    assert source_fingerprint(kernel) == before


def test_a_function_can_be_passed_itself(tmp_path):
    by_name = space(tmp_path)
    (tmp_path / "spaces" / "kernel_of_rows.py").write_text(
        """def jit(function):
    return type("Jit", (), {"fn": staticmethod(function)})()

@jit
def softmax_rows(x, y, columns, BLOCK: "constexpr"):
    pass
"""
    )
    kernel = space(
        tmp_path,
        ('"softmax_rows.py:softmax_rows"', "softmax_rows"),
        ("import numpy as np", "import numpy as np\nfrom kernel_of_rows import softmax_rows"),
    )
    assert kernel.name == by_name.name == "softmax_rows"
    assert kernel.files == {"": "kernel_of_rows.py:softmax_rows"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("softmax_rows.py:softmax_rows", "softmax_rows.py", "expected 'FILE:FUNCTION'"),
        ('"triton"', '"tritn"', "unknown language 'tritn'; did you mean 'triton'"),
        (
            "(p.rows,)",
            "(p.rows,), block=(32,)",
            "the language of the source decides the block; leave block out",
        ),
        ("def softmax_rows(x", "def softmax(x", "softmax_rows.py has no function 'softmax_rows'"),
        ("BLOCK: tl.", "WIDTH: tl.", "the constexpr WIDTH of softmax_rows is neither"),
        (
            'language="triton",',
            'language="triton", backends=["opencl"],',
            "unknown backend 'opencl'",
        ),
    ],
)
def test_a_wrong_declaration_is_one_clear_line(tmp_path, installed, old, new, message):
    with pytest.raises(SpecError, match=message):
        key(space(tmp_path, (old, new)))


def test_the_compiler_decides_parts_of_a_launch(tmp_path):
    kernel = space(tmp_path)
    plan = launch_sequence(kernel, kernel.default(), Problem(rows=7, columns=16), DEVICE)
    assert plan.main.block == (512, 1, 1)
    convention = Convention(block=64, shared_bytes=70000, passed=(0, 1, None), blocks=2)
    entry = CompiledFunction("softmax_rows", shared_bytes=0, convention=convention)
    binary = Binary(b"", (entry,), "", "")
    main = complete_launches(plan, binary).main
    assert (main.grid, main.block, main.shared_bytes) == ((14, 1, 1), (64, 1, 1), 70000)
    (launch,) = bind_arguments(
        plan, ["x", "y", "columns"], {"x": "X", "y": "Y"}, {"columns": 16}, {}, binary
    )
    assert launch.args == ("X", "Y", np.uint64(0))
    assert "70000 bytes of shared memory" in exceeded_limit(plan, binary, for_arch("sm_75"))


def test_without_triton_check_says_what_to_install(tmp_path, monkeypatch, capsys):
    def missing(_):
        raise PackageNotFoundError("triton")

    monkeypatch.setattr(triton, "version", missing)
    space(tmp_path)
    folder = str(tmp_path / "spaces")
    assert run(["check", "softmax_rows", "--spaces", folder, "--arch", "sm_90"]) == 0
    said = capsys.readouterr()
    assert "not compiled: compiling Triton needs the package 'triton'" in said.out + said.err
    assert "pip install 'kernel-autotune[triton]'" in said.out + said.err
    assert "not verified" in said.out + said.err


# ---------------------------------------------------------------- ready cubins: a language of 70 lines


@pytest.fixture
def ready(tmp_path):
    """The sample kernel from a folder of cubins for two configurations of sm_90."""
    kernel = load_file(write_space(tmp_path))
    folder = tmp_path / "kernels" / "ready"
    folder.mkdir()
    for block in (32, 64):
        chosen = kernel.completed({"BLOCK": block})
        code = compiled_for(kernel, chosen, kernel.first_problem("cuda"), DEVICE).code
        (folder / f"scale-sm_90-BLOCK={block}.cubin").write_bytes(code)
    return load_file(write_space(tmp_path, ('"scale.cu"', '"ready:scale", language="cubin"')))


def test_a_cubin_is_picked_by_its_name(ready):
    problem = ready.first_problem("cuda")
    codes = []
    for block in (32, 64):
        chosen = ready.completed({"BLOCK": block})
        assert launch_sequence(ready, chosen, problem, DEVICE).main.block == (block, 1, 1)
        codes.append(compiled_for(ready, chosen, problem, DEVICE).code)
        file = ready.file.parents[1] / "kernels" / "ready" / f"scale-sm_90-BLOCK={block}.cubin"
        assert codes[-1] == file.read_bytes()
    assert codes[0] != codes[1]


def test_check_names_a_cubin_that_is_missing(ready, capsys):
    spaces = str(ready.file.parent)
    assert run(["check", "scale", "--spaces", spaces, "--arch", "sm_90"]) == 0
    assert run(["check", "scale", "--spaces", spaces, "--arch", "sm_80"]) == 3
    assert (
        "no cubins match BLOCK=32 sm_80, expected 1; the folder has scale-sm_90-BLOCK=32"
        in capsys.readouterr().err
    )


def test_the_fingerprint_is_of_the_cubins(ready):
    before = source_fingerprint(ready)
    file = ready.file.parents[1] / "kernels" / "ready" / "scale-sm_90-BLOCK=64.cubin"
    file.write_bytes(file.read_bytes() + b"\0")
    assert source_fingerprint(ready) != before


@pytest.mark.parametrize("offset_bytes", [0, 4, 12])
def test_memory_of_the_interpreter_lies_as_far_from_a_boundary_as_asked(offset_bytes):
    """As a GPU's allocations do: a kernel that wants aligned arrays must not be lucky, nor unlucky."""
    for nbytes in (0, 1, 100, 4096):
        buffer = HostBuffer(nbytes, offset_bytes)
        before, after = buffer.guards
        assert buffer.inner.nbytes == nbytes
        assert (buffer.whole.ctypes.data % 256, before.nbytes) == (0, GUARD_BYTES + offset_bytes)
        assert buffer.inner.ctypes.data == before.ctypes.data + before.nbytes
        assert after.ctypes.data == buffer.whole.ctypes.data + before.nbytes + nbytes
