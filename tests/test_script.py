"""Scripts for Kernel Tuner run with a stand-in and become space files; what needs a hand is marked."""

import ast
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import run
from autotune.compiling.binaries import compile_now
from autotune.compiling.job import compile_job
from autotune.data.dataset import EXACT, RANDOM
from autotune.data.draw import Draw
from autotune.data.prepare import prepare_dataset
from autotune.devices.base import CompileError
from autotune.devices.choose import backend, choose_device
from autotune.devices.device import for_arch
from autotune.kernel.catalog import load_file
from autotune.kernel.launches import launch_sequence
from autotune.kernel.space import enumerate_space
from autotune.kernel.spec import Constant, InOut, Kernel, Out
from autotune.measure import tasks, worker_state
from autotune.measure.measurement import Status
from autotune.values import Configuration, Problem

GPU = for_arch("sm_90")
SCRIPT = '''
import numpy as np
import kernel_tuner
from kernel_tuner.observers.nvml import NVMLObserver

MOST = 512

def small(p):
    """Not too large."""
    return p["block_size_x"] * p["tile"] <= MOST

def tune(size=1000):
    source = """
        __constant__ float weights[9];
        // calls of blur(a, b) are in another file (see there)
        __global__ void blur(float* out, /* (read) */ const float* x, float* both, float alpha, int n) {
            if (threadIdx.x < n) out[0] = x[0] * alpha * block_size_x * block_size_y * weights[0];
        }
    """
    x = np.random.randn(size, 3).astype(np.float32)
    both = np.random.randn(size).astype(np.float32)
    filter = np.random.rand(9).astype("float64")
    args = [np.zeros(size).astype(np.float32), x, both, np.float32(0.5), np.int32(size)]
    params = dict()
    params["block_size_x"] = [32 * i for i in range(1, 33) if i != 3]
    params["tile"] = [2**i for i in range(3)]
    params["scale"] = [0.5, 1.0]
    params.update({"kind": ["float", "double"]})
    results, env = kernel_tuner.tune_kernel(
        "blur", source, (size, 64), args, params, ["block_size_x/32", lambda p: p["tile"]],
        grid_div_y=[], cmem_args={"weights": filter}, smem_args={"size": "4*tile"},
        restrictions=[small, "tile == 1 or block_size_x % 64 == 0", lambda p: p["tile"] < 4],
        answer=[np.sum(x, axis=1) * 0.5, None, both, None, None], atol=1e-3,
        compiler_options=["-std=c++17", "--use_fast_math"], verbose=True,
    )
    print(min(results, key=lambda row: row["time"])["tile"])

if __name__ == "__main__":
    tune()
'''


def written(folder: Path, text: str) -> Path:
    (folder / "tune.py").write_text(text)
    return folder / "tune.py"


def ported(folder: Path, text: str, *arguments: str) -> list[Kernel]:
    """The kernels of the space files that are made of a script, in the order of their names."""
    into = folder / "into"
    made = ["new", *arguments, "--from", str(written(folder, text)), "--into", str(into)]
    assert run(made) == 0
    return [load_file(file) for file in sorted(into.glob("spaces/*.py"))]


def test_a_call_becomes_a_space_file(tmp_path: Path) -> None:
    (kernel,) = ported(tmp_path, SCRIPT)
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
    assert kernel.macros(chosen, problem, GPU) == {
        **{"block_size_x": "192", "tile": "2", "scale": "0.5", "kind": "double"},
        **{"block_size_y": "1"},
    }
    assert kernel.compiler_options(chosen, GPU) == ("--use_fast_math",)
    arguments = kernel.call_hook("arguments", Problem({**problem, "n": 500}), Draw(False, key=0))
    assert list(arguments) == ["out", "x", "both", "alpha", "n", "weights"]
    assert arguments["out"] == Out(500, "float32")
    assert arguments["x"].shape == (500, 3)
    assert isinstance(arguments["both"], InOut)
    assert arguments["both"].array.shape == (500,)
    assert isinstance(arguments["weights"], Constant)
    assert arguments["weights"].array.dtype == "float64"
    assert (arguments["alpha"], arguments["n"]) == (0.5, 500)
    assert kernel.tolerance_of(problem) == 1e-3
    assert kernel.source_file(chosen).read_text().startswith("__constant__ float weights[9];\n")


def test_it_says_that_it_runs_the_script_and_what_is_left_to_do(
    tmp_path: Path, capsys: Any
) -> None:
    ported(tmp_path, SCRIPT)
    printed = capsys.readouterr()
    assert printed.err.startswith(f"running {tmp_path / 'tune.py'}")
    todos = [line for line in printed.err.splitlines() if line.startswith("todo: ")]
    assert len(todos) == 1
    assert "reference: compute out, both" in todos[0]
    assert printed.out.count("wrote ") == 2


def test_the_output_of_a_script_is_no_result(tmp_path: Path, capfd: Any) -> None:
    ported(tmp_path, SCRIPT.replace("tune()\n", "print('printed')\n    tune()\n"))
    out, err = capfd.readouterr()
    assert "printed" in err and "printed" not in out


MINIMAL = """
import numpy as np
from kernel_tuner import tune_kernel, run_kernel
tune_kernel({name}, {source}, {size}, [np.zeros(8, np.float32)], {{"B": [1, 2]}}{more})
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
        (
            minimal("restrictions=[lambda p: sum(p)]"),
            "restriction 1: 'sum(p)' uses sum, which is not",
        ),
        (minimal("texmem_args={'t': 1}"), "a texture reference: give Texture"),
        (minimal(source="lambda p: 'void k(float* o) {}'"), "kernel_source is a function"),
        (minimal("metrics={'m': 1}, strategy='pso'"), "strategy, metrics: docs/from-kernel"),
        (
            minimal("answer=run_kernel('k', '', 1, [np.ones(8)], {})"),
            "reference: compute o; see answer=",
        ),
        (
            minimal().replace("[np.zeros(8", "[print, np.zeros(8"),
            "argument argument_0 is neither an array nor a number",
        ),
        (minimal() + "1 / 0\n", "are missing; it ended with ZeroDivisionError"),
    ],
)
def test_what_needs_a_hand_is_said_and_marked(
    text: str, words: str, tmp_path: Path, capsys: Any
) -> None:
    assert (
        run(["new", "--from", str(written(tmp_path, text)), "--into", str(tmp_path / "into")]) == 0
    )
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("todo: ")]
    assert any(words in line for line in said), said
    made = (tmp_path / "into" / "spaces" / "k.py").read_text()
    ast.parse(made)
    assert made.count("# TODO: ") == len(said)


def test_a_script_that_others_may_write_is_not_run(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = written(tmp_path, "open('it_ran', 'w')\n" + minimal())
    script.chmod(0o666)
    made = ["new", "--from", str(script), "--into", str(tmp_path / "into")]
    assert run(made) == 2
    assert "all users may write it" in capsys.readouterr().err
    assert not (tmp_path / "it_ran").exists()
    monkeypatch.setenv("AUTOTUNE_TRUST", str(tmp_path))
    assert run(made) == 0


def test_made_up_results_are_not_written(tmp_path: Path) -> None:
    write = "import json\nwith open('found.json', 'w') as file:\n    json.dump('text', file)\n"
    before = write.replace("found", "before")
    (tmp_path / "found.json").write_text("real")
    ported(tmp_path, before + minimal() + write + "open('new.csv', 'x').write('1')\n")
    assert (tmp_path / "found.json").read_text() == "real"
    assert (tmp_path / "before.json").read_text() == '"text"'
    assert not (tmp_path / "new.csv").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("print(1)", "no call of tune_kernel"),
        ("import os; os._exit(0)", "the script crashed"),
        ("tune_kernel(", "no call of tune_kernel; it ended with SyntaxError"),
        (minimal("lang='C'"), "lang='C': only CUDA and OpenCL kernels"),
        (minimal(name="'k{exit()}'"), "does not name a function or template"),
        (minimal(source="'gone.cu'"), "kernel_source gone.cu: cannot be read"),
    ],
)
def test_what_is_no_script_for_a_gpu_is_refused(
    text: str, words: str, tmp_path: Path, capsys: Any
) -> None:
    into = tmp_path / "into"
    assert run(["new", "--from", str(written(tmp_path, text)), "--into", str(into)]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("error: ") == 1
    assert not into.exists()


def test_several_calls_have_files_of_their_own(tmp_path: Path, capsys: Any) -> None:
    text = minimal() + minimal().replace("[1, 2]", "[3, 4]") + minimal(name="'other'")
    kernels = ported(tmp_path, text)
    assert [kernel.name for kernel in kernels] == ["k", "k_2", "other"]
    assert kernels[1].parameters["B"] == (3, 4)
    assert kernels[1].files == {"": "k_2.cu"}  # which may be another
    script = ["--from", str(tmp_path / "tune.py")]
    assert run(["new", "mine", *script, "--into", str(tmp_path / "b")]) == 2
    assert "3 times: leave NAME out" in capsys.readouterr().err
    (tmp_path / "into" / "spaces" / "k.py").write_text("# mine\n")
    assert run(["new", *script, "--into", str(tmp_path / "into")]) == 2
    assert "k.py exists" in capsys.readouterr().err
    assert (tmp_path / "into" / "spaces" / "k.py").read_text() == "# mine\n"


def test_a_template_and_a_source_beside_the_script(tmp_path: Path) -> None:
    """A script runs in its own folder."""
    (tmp_path / "add.cu").write_text("template<int B> __global__ void app(float* o) {}\n")
    source = "open('add.cu').read()"
    (kernel,) = ported(tmp_path, minimal("defines={}", "'app<B>'", source), "mine")
    chosen = Configuration(B=2)
    assert kernel.name == "mine"
    assert kernel.macros(chosen, Problem(x=8), GPU) == {}
    assert launch_sequence(kernel, chosen, Problem(x=8), GPU).main.entry == "app<2>"
    assert kernel.source_file(chosen).read_text() == (tmp_path / "add.cu").read_text()


CONVOLUTION = """
import numpy as np
import kernel_tuner
size = (4096, 2048)
weights = np.random.randn(17 * 17).astype(np.float32)
image = np.random.randn((size[0] + 16) * (size[1] + 16)).astype(np.float32)
args = [np.zeros(size[0] * size[1], np.float32), image, weights, np.int32(1), np.int32(size[0])]
source = "__global__ void convolve(float *out, float *image, float *weights, int flag, int width) {}"
params = {"block_size_x": [16, 32], "block_size_y": [1, 2], "tile": [1, 2], "filter_width": [17]}
kernel_tuner.tune_kernel("convolve", source, size, args, params, ["block_size_x", "tile"],
                         ["block_size_y"], cmem_args={"d_filter": weights})
"""


def test_sizes_are_problem_fields_and_other_numbers_are_left_to_do(
    tmp_path: Path, capsys: Any
) -> None:
    (kernel,) = ported(tmp_path, CONVOLUTION)
    assert kernel.first_problem("cuda") == Problem(width=4096, y=2048)
    arguments = kernel.call_hook("arguments", Problem(width=100, y=80), Draw(exact=False, key=0))
    assert arguments["out"] == Out(8000, "float32")
    assert arguments["image"].shape == (4112 * 2064,)
    assert arguments["d_filter"].array.shape == arguments["weights"].shape == (289,)
    assert (arguments["flag"], arguments["width"]) == (1, 100)
    assert f"argument image: write its size {4112 * 2064} in terms of p" in capsys.readouterr().err


def test_sizes_of_any_case_are_fields_in_lower_case(tmp_path: Path) -> None:
    text = CONVOLUTION.replace("width", "imageWidth")
    (kernel,) = ported(tmp_path, text)
    assert kernel.first_problem("cuda") == Problem(image_width=4096, y=2048)
    problem = Problem(image_width=100, y=80)
    arguments = kernel.call_hook("arguments", problem, Draw(exact=False, key=0))
    assert arguments["imageWidth"] == 100


def test_the_script_of_the_documents_becomes_the_example_beside_it(tmp_path: Path) -> None:
    folder = Path(__file__).parents[1] / "examples" / "kernel_tuner"
    (made,) = ported(tmp_path, (folder / "tune_vector_add.py").read_text())
    ours = load_file(folder / "spaces" / "vector_add.py")
    assert (made.parameters, made.fields) == (ours.parameters, ours.fields)
    assert made.problems["cuda"] == ours.problems["cuda"]
    assert Path(str(made.file)).read_text().count("TODO") == 1


# ---------------------------------------------------------------------- Kernel Tuner's six examples


FOLDER = Path(__file__).parents[1] / "examples" / "kernel_tuner"
#: A small problem, what Kernel Tuner's parameters and restrictions leave, and what one configuration has.
EXAMPLES: dict[str, tuple[Problem, int, dict[str, int]]] = {
    "vector_add": (Problem(n=5001), 15, {"block_size_x": 192}),
    "convolution": (
        Problem(width=70, height=33, filter=5),
        432,
        {"block_size_y": 4, "tile_size_x": 2, "tile_size_y": 4},
    ),
    "pnpoly": (
        Problem(n=1001, vertices=600),
        5456,
        {"tile_size": 4, "between_method": 3, "use_precomputed_slopes": 1, "use_method": 1},
    ),
    "matmul": (
        Problem(width=128),
        44,
        {"block_size_y": 2, "tile_size_x": 2, "tile_size_y": 8},
    ),
    "stencil": (Problem(width=130, height=67), 48, {"block_size_x": 64, "block_size_y": 4}),
    "reduction": (Problem(n=100_003), 216, {"vector": 4, "num_blocks": 64}),
}


def test_there_are_no_others() -> None:
    assert sorted(EXAMPLES) == sorted(file.stem for file in FOLDER.glob("spaces/*.py"))


@pytest.mark.opencl
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_right(name: str, opencl_device: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(worker_state, "_state", worker_state._State())
    problem, _, chosen = EXAMPLES[name]
    kernel, device = load_file(FOLDER / "spaces" / f"{name}.py"), choose_device(opencl_device)
    assert kernel.file is not None
    data = tuple(prepare_dataset(kernel, problem, which) for which in (EXACT, RANDOM))
    asked = worker_state.Job(kernel.file, problem, device, data)
    worker_state.prepare_job(asked)
    configuration = kernel.completed(chosen)
    compiled = compile_now(compile_job(kernel, configuration, problem, device))
    assert compiled.binary is not None, compiled.message
    found = tasks.verify_configuration(asked, configuration, compiled.binary)
    assert found.status is Status.OK, found.message


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_has_the_space_of_theirs_and_compiles_for_a_gpu(name: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    problem, valid, chosen = EXAMPLES[name]
    kernel, device = load_file(FOLDER / "spaces" / f"{name}.py"), for_arch("sm_90")
    assert len(enumerate_space(kernel, device)) == valid
    job = compile_job(kernel, kernel.completed(chosen), problem, device)
    try:
        backend("cuda").compile(job.source, dict(job.defines), job.options, device, job.entries)
    except CompileError as error:
        pytest.fail(str(error))
