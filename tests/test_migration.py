"""Scripts for Kernel Tuner become space files; nothing of them is run, and what is left out is said."""

import ast
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import run
from autotune.cli.script import Array, Code, FileText, calls_of
from autotune.devices.device import for_arch
from autotune.kernel.catalog import load_file
from autotune.kernel.launches import launch_sequence
from autotune.kernel.space import enumerate_space
from autotune.kernel.spec import Constant, InOut, Kernel, Out
from autotune.measure.draw import Draw
from autotune.values import Configuration, Problem

GPU = for_arch("sm_90")
RUNS = "from pathlib import Path\nPath('it_ran').touch()\nraise SystemExit(9)\n"
SCRIPT = f'''
import numpy as np
import kernel_tuner
{RUNS}
def small(p):
    """Not too large."""
    return p["block_size_x"] * p["tile"] <= 512

def tune(size=1000):
    source = """
        __constant__ float weights[9];
        __global__ void blur(float* out, const float* x, float* both, float alpha, int n) {{
            if (threadIdx.x < n) out[0] = x[0] * alpha * block_size_x * block_size_y * weights[0];
        }}
    """
    x = np.random.randn(size, 3).astype(np.float32)
    both = np.copy(x)
    filter = np.random.rand(9).astype("float64")
    args = [np.zeros(size).astype(np.float32), x, both, np.float32(0.5), np.int32(size)]
    params = dict()
    params["block_size_x"] = [32 * i for i in range(1, 33) if i != 3]
    params["tile"] = [2**i for i in range(3)]
    params["scale"] = [0.5, 1.0]
    params.update({{"kind": ["float", "double"]}})
    kernel_tuner.tune_kernel(
        "blur", source, (size, 64), args, params, ["block_size_x/32", lambda p: p["tile"]],
        grid_div_y=[], cmem_args={{"weights": filter}}, smem_args={{"size": "4*tile"}},
        restrictions=[small, "tile == 1 or block_size_x % 64 == 0", lambda p: p["tile"] < 4],
        answer=[np.sum(x, axis=1) * 0.5, None, both, None, None], atol=1e-3,
        compiler_options=["-std=c++17", "--use_fast_math"], verbose=True,
    )
'''


def migrated(folder: Path, text: str, *arguments: str) -> list[Kernel]:
    """The kernels of the space files that are made of a script, in the order of their names."""
    (folder / "tune.py").write_text(text)
    into = folder / "into"
    made = ["new", *arguments, "--from-kernel-tuner", str(folder / "tune.py"), "--into", str(into)]
    assert run(made) == 0
    return [load_file(file) for file in sorted(into.glob("spaces/*.py"))]


def test_a_call_becomes_a_space_file(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (kernel,) = migrated(tmp_path, SCRIPT)
    assert not (tmp_path / "it_ran").exists()
    assert (kernel.name, kernel.backends) == ("blur", ("cuda",))
    assert kernel.parameters["block_size_x"] == tuple(32 * i for i in range(1, 33) if i != 3)
    assert kernel.parameters["scale"] == (0.5, 1.0)
    space = enumerate_space(kernel, GPU)
    chosen = Configuration(block_size_x=192, tile=2, scale=0.5, kind="double")
    assert chosen in space
    assert chosen.replace(tile=4) not in space  # the lambda
    assert chosen.replace(block_size_x=288) not in space  # the function
    assert chosen.replace(block_size_x=160) not in space  # the text
    problem = Problem(n=1000, y=64)
    assert kernel.first_problem("cuda") == problem
    main = launch_sequence(kernel, chosen, problem, GPU).main
    assert (main.grid, main.block, main.shared_bytes) == ((84, 64, 1), (192, 1, 1), 8)
    assert kernel.macros(chosen, problem) == {
        **{"block_size_x": "192", "tile": "2", "scale": "0.5", "kind": "double"},
        "block_size_y": "1",
    }
    assert kernel.compiler_options(chosen, GPU) == ("--use_fast_math",)
    arguments = kernel.call_hook("arguments", problem, Draw(exact=False, key=0))
    assert list(arguments) == ["out", "x", "both", "alpha", "n", "weights"]
    assert arguments["out"] == Out(1000, "float32")
    assert arguments["x"].shape == (1000, 3)
    assert isinstance(arguments["both"], InOut)
    assert isinstance(arguments["weights"], Constant)
    assert arguments["weights"].array.dtype == "float64"
    assert (arguments["alpha"], arguments["n"]) == (0.5, 1000)
    assert kernel.tolerance_of(problem) == 1e-3
    assert kernel.source_file(chosen).read_text().startswith("__constant__ float weights[9];\n")
    printed = capsys.readouterr()
    todos = [line for line in printed.err.splitlines() if line.startswith("todo: ")]
    assert todos == [
        "todo: tune.py:28: reference: compute out, both there: there it is np.sum(x, axis=1) * 0.5; "
        "np.copy(x)"
    ]
    assert "wrote " in printed.out


def test_an_answer_of_plain_numpy_is_the_reference(tmp_path: Path) -> None:
    text = SCRIPT.replace("both, None, None]", "None, None, None]").replace("[small, ", "[")
    (kernel,) = migrated(tmp_path, text)
    made = Path(str(kernel.file)).read_text()
    assert "def reference(x):" in made
    assert "return np.sum(x, axis=1) * 0.5" in made
    assert "TODO" not in made


MINIMAL = """
tune_kernel({name}, {source}, {size}, [np.zeros(8).astype(np.float32)], {{"B": [1, 2]}}{more})
"""


def minimal(
    more: str = "",
    name: str = "'k'",
    source: str = "'__global__ void k(float* o) {}'",
    size: Any = 8,
) -> str:
    return MINIMAL.format(name=name, source=source, size=size, more=more and f", {more}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (minimal("restrictions=[lambda p: f(p)]"), "restriction 1: 'f(p)' holds 'f(p)'"),
        (minimal("restrictions=make()"), "make() is no expression; write a @k.constraint"),
        (minimal("texmem_args={'t': x}"), "textures are not supported: pass the array as an arg"),
        (minimal(source="'texture<float, 2> t; __global__ void k(float* o) {}'"), "textures are"),
        (
            minimal(size="len(rows)"),
            "problem_size in x is len(rows): what a launch depends on must",
        ),
        (minimal(source="make_source"), "kernel_source is made by code (make_source): write"),
        (minimal(source="'gone.cu'"), "gone.cu cannot be read"),
        (minimal("grid_div_x=lambda p: f(p)"), "grid_div_x: 'f(p)' holds 'f(p)'"),
        (minimal("smem_args={'size': lambda p: f(p)}"), "write shared_bytes in launch"),
        (minimal("metrics={'m': lambda p: 1}"), "come from a function @k.work"),
        (minimal("observers=[Observer()]"), "observers=[Observer()]: "),
        (minimal("strategy='pso'"), "autotune run k --strategy kt:pso"),
        (minimal("strategy_options={'max_fevals': 9}"), "--budget 100evals"),
        (
            minimal("answer=[compute()]"),
            "reference: compute o there: there it is compute()",
        ),
        (minimal("answer=[np.load('x')]"), "there it is np.load('x')"),
        (minimal("defines=make()"), "defines: make(); write them into a @k.defines"),
        (minimal("cmem_args={'s': f()}"), "cmem_args: s is made by code: f()"),
        (minimal("compiler_options=f()"), "compiler_options: f(); return them from"),
        (minimal().replace("[1, 2]", "f()"), "values of B are made by code: f()"),
        (minimal().replace("[1, 2]", "[1e999]"), "values of B are made by code: [inf]"),
        (minimal().replace("np.zeros(8)", "f(8)"), "argument o is made by code: f(8)"),
        (minimal().replace('"B": [1', '"loop_unroll_factor_0": [0'), "takes the pragma out"),
    ],
)
def test_what_is_not_translated_is_said_and_marked(
    text: str, words: str, tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "tune.py").write_text(text)
    arguments = ["new", "--from-kernel-tuner", str(tmp_path / "tune.py"), "--into", str(tmp_path)]
    assert run(arguments) == 0
    said = [
        line
        for line in capsys.readouterr().err.splitlines()
        if line.startswith("todo: tune.py:2: ")
    ]
    assert any(words in line for line in said), said
    made = (tmp_path / "spaces" / "k.py").read_text()
    ast.parse(made)
    assert made.count("# TODO: ") == len(said)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("print(1)", "no call of tune_kernel"),
        ("tune_kernel(", "no Python that can be read"),
        (minimal("lang='C'"), "lang='C': what is tuned here are kernels in CUDA or OpenCL"),
        (minimal(name="f()"), "kernel_name must be a text"),
        (minimal(name="'k{exit()}'"), "is no name of a function or template"),
        (minimal(name="'k'").replace('{"B"', '{"B b"'), "parameter 'B b'"),
        (minimal().replace('{"B": [1, 2]}', "f()"), "tune_params must be a dict"),
        (minimal().replace('"B"', '"layout"'), "'layout' is, or is too like, an option of Kernel"),
        (minimal(source="'a b.cu'"), "is no plain name of a file"),
        (minimal() + "\nexit(" + "(" * 1000, "no Python that can be read"),
    ],
)
def test_what_is_no_script_for_a_gpu_is_refused(
    text: str, words: str, tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "tune.py").write_text(text)
    into = tmp_path / "into"
    assert run(["new", "--from-kernel-tuner", str(tmp_path / "tune.py"), "--into", str(into)]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not into.exists()


def test_several_calls_have_files_of_their_own(tmp_path: Path, capsys: Any) -> None:
    text = minimal() + minimal().replace("[1, 2]", "[3]") + minimal(name="'other'")
    kernels = migrated(tmp_path, text)
    assert [kernel.name for kernel in kernels] == ["k", "k_2", "other"]
    assert kernels[1].parameters["B"] == (3,)
    assert kernels[1].sources == {"": "k_2.cu"}  # which may be another
    script = ["--from-kernel-tuner", str(tmp_path / "tune.py")]
    assert run(["new", "mine", *script, "--into", str(tmp_path / "b")]) == 2
    assert "3 times: leave NAME out" in capsys.readouterr().err
    (tmp_path / "into" / "spaces" / "k.py").write_text("# mine\n")
    assert run(["new", *script, "--into", str(tmp_path / "into")]) == 2
    assert "k.py is there already" in capsys.readouterr().err
    assert (tmp_path / "into" / "spaces" / "k.py").read_text() == "# mine\n"


def test_a_template_and_a_source_beside_the_script(tmp_path: Path) -> None:
    (tmp_path / "add.cu").write_text("template<int B> __global__ void app(float* o) {}\n")
    source = "open('add.cu').read()"
    (kernel,) = migrated(tmp_path, minimal("defines={}", "'app<B>'", source), "mine")
    chosen = Configuration(B=2)
    assert kernel.name == "mine"
    assert kernel.macros(chosen, Problem(x=8)) == {}
    assert launch_sequence(kernel, chosen, Problem(x=8), GPU).main.entry == "app<2>"
    assert kernel.source_file(chosen).read_text() == (tmp_path / "add.cu").read_text()


def test_the_script_of_the_documents_becomes_the_example_beside_it(tmp_path: Path) -> None:
    """Nothing of it is left to do."""
    folder = Path(__file__).parents[1] / "examples" / "kernel_tuner"
    (made,) = migrated(tmp_path, (folder / "tune_vector_add.py").read_text())
    ours = load_file(folder / "spaces" / "vector_add.py")
    assert (made.parameters, made.fields) == (ours.parameters, ours.fields)
    assert made.problems["cuda"] == ours.problems["cuda"]
    assert "TODO" not in Path(str(made.file)).read_text()


def test_without_a_name_or_a_script_it_says_what_to_give(capsys: Any) -> None:
    assert run(["new"]) == 2
    assert "a NAME, or --from-kernel-tuner" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("[2**i for i in range(3)]", [1, 2, 4]),
        ("[1] + [2 * i for i in range(1, 4)]", [1, 2, 4, 6]),
        ("[a * b for a in (1, 2) for b in (3, 4) if a * b != 4]", [3, 6, 8]),
        ("np.prod((3, 4)) + int(7 / 2)", 15),
        ("np.arange(32, 129, 32)", [32, 64, 96, 128]),
        ("f'{1 + 1}.cu'", "2.cu"),
        ("max({'a': 3}['a'], 2)", 3),
        ("np.random.randn(2 * 3).astype(np.float32)", Array("float32", (6,), "normal", "")),
        ("np.zeros((2, 3), dtype='int32').ravel()", Array("int32", (6,), "zeros", "")),
        ("np.random.default_rng(0).standard_normal(4)", Array("float64", (4,), "normal", "")),
        ("np.random.randint(0, 9, size=5)", Array("int64", (5,), "integers", "")),
        ("2 * np.ones(3)", Array("float64", (3,), "computed", "")),
        ("open('k.cu', 'r').read()", FileText("k.cu")),
        ("Path('k.cu').read_text()", FileText("k.cu")),
    ],
)
def test_expressions_are_worked_out(expression: str, value: Any) -> None:
    (call,) = calls_of(f"f({expression})", "f", ["x"])
    found = call.arguments["x"]
    if isinstance(value, Array):
        found = Array(found.dtype, found.shape, found.filled, "")
    assert found == value


@pytest.mark.parametrize(
    "expression",
    [
        "9**9**9",
        "1 << 10**9",
        "[0] * 10**9",
        "'%1000000000d' % 1",
        "range(10**12)",
        "[a for a in range(10**6) for b in range(10**6)]",
        "unknown",
        "1 / 0",
        "__import__('os').system('true')",
        "(lambda: 1)()",
    ],
)
def test_what_is_too_much_or_code_stays_code(expression: str) -> None:
    (call,) = calls_of(f"f({expression})", "f", ["x"])
    assert isinstance(call.arguments["x"], Code)
    assert str(call.arguments["x"]) == ast.unparse(ast.parse(expression, mode="eval"))
