"""`autotune new --from FILE.cu` and `--from FILE.py:FUNCTION`: space files from signatures."""

import os
from pathlib import Path

import numpy as np
import pytest

from autotune.checking.kernel_check import check_kernel
from autotune.cli import run
from autotune.data.draw import Draw
from autotune.kernel.catalog import load_file
from autotune.kernel.spec import Kernel, Out

HEAT = """
#define RADIUS 2
#ifndef TX
#define TX 32
#define TY 8
#endif
// __global__ void commented(int n) {}
namespace app { namespace {
__global__ void heat(float* out, const float* in, int w, int h, float k, const unsigned char* mask);
__global__ void __launch_bounds__(TX * TY, 2)
heat(float* __restrict__ out, const float* __restrict__ in, int w, const int h, float k, const unsigned char mask[]) {
    const char* text = "} __global__ void quoted(int n) {";
    const int x = blockIdx.x * TX + threadIdx.x, y = blockIdx.y * TY + threadIdx.y;
    if (x < w && y < h && mask[y * w + x]) out[y * w + x] = k * in[y * w + x];
}
} }
template <typename T, int Threads = 4, bool Fast = true>
static __global__ void scale(T* x, unsigned long long n, double3 unknown) {}
"""
ADD = """
import triton
import triton.language as tl

@triton.jit
def add(x_ptr, y, out, n, BLOCK: tl.constexpr, UNROLL: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x_ptr + i, i < n) + tl.load(y + i, i < n), i < n)
"""


def written(folder: Path, name: str, text: str) -> Path:
    file = folder / "source" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return file


def new(folder: Path, source: object, *more: str) -> int:
    return run(["new", *more, "--from", str(source), "--into", str(folder)])


def loaded(folder: Path, name: str) -> Kernel:
    return load_file(folder / "spaces" / f"{name}.py")


def test_a_signature_becomes_parameters_problem_launch_and_arguments(tmp_path, capsys):
    assert new(tmp_path, written(tmp_path, "heat.cu", HEAT)) == 0
    heat = loaded(tmp_path, "heat")
    (problem,) = heat.problems["cuda"]
    assert dict(problem) == {"w": 1024, "h": 1024}
    configuration = heat.default()
    assert dict(configuration) == {"TX": 16, "TY": 4}
    launch = heat.hooks["launch"](configuration, problem)
    assert (launch.grid, launch.block) == ((64, 256), (16, 4))
    made = heat.hooks["arguments"](problem, Draw(exact=False, key=1))
    assert list(made) == ["out", "in_array", "w", "h", "k", "mask"]
    assert isinstance(made["out"], Out)
    assert (made["in_array"].dtype, made["mask"].dtype) == (np.float32, np.uint8)
    assert isinstance(made["k"], np.float32)
    told = capsys.readouterr().err
    assert "todo: heat: reference: compute out with numpy" in told
    assert "#define RADIUS of the source is fixed" in told
    assert "todo: scale: unknown: no array or number of type double3 is known" in told
    text = (tmp_path / "spaces/scale.py").read_text()
    assert "entry=f'scale<float, {c.THREADS}, {c.FAST}>'" in text or (
        'entry=f"scale<float, {c.THREADS}, {c.FAST}>"' in text
    )
    assert '"n": np.uint64(p.n)' in text
    assert {file.name for file in (tmp_path / "spaces").iterdir()} == {"heat.py", "scale.py"}


def test_sizes_of_any_case_become_fields_in_lower_case(tmp_path):
    text = (
        "__global__ void f(float* out, int B, int numberOfAtoms, unsigned int C3, float Scale) {}"
    )
    assert new(tmp_path, written(tmp_path, "f.cu", text)) == 0
    made = loaded(tmp_path, "f")
    (problem,) = made.problems["cuda"]
    assert list(problem) == ["b", "number_of_atoms", "c3"]
    arguments = made.hooks["arguments"](problem, Draw(exact=False, key=1))
    assert list(arguments) == ["out", "B", "numberOfAtoms", "C3", "Scale"]
    assert [arguments[name] for name in ("B", "numberOfAtoms", "C3")] == list(problem.values())


def test_types_of_cuda_headers_are_known(tmp_path, capsys):
    text = (
        "__global__ void f(const __nv_bfloat16* x, __nv_fp8_e4m3* q, __nv_fp4x2_e2m1* r, int n) {}"
    )
    assert new(tmp_path, written(tmp_path, "f.cu", text)) == 0
    space = (tmp_path / "spaces/f.py").read_text()
    assert 'rng.standard_normal(p.n, dtype="bfloat16")' in space
    assert 'Out(p.n, "float8_e4m3fn")' in space
    told = capsys.readouterr().err
    assert "todo: f: r: no array or number of type __nv_fp4x2_e2m1 is known" in told


@pytest.mark.parametrize(
    ("head", "index", "block", "grid"),
    [
        ("", "blockIdx.{a} * B{A} + threadIdx.{a}", (16, 4), (64, 256)),
        ("", "B{A} / 2 + blockIdx.{a} * (B{A} * N) + threadIdx.{a}", (16, 4), (64, 256)),
        ("", "blockIdx.{a} * blockDim.{a} + threadIdx.{a}", (16, 4), (64, 256)),
        ("template <int B, int C> ", "blockIdx.{a} * {t} + threadIdx.{a}", (8, 8), (128, 128)),
    ],
)
def test_the_indices_of_a_source_tell_its_block_and_grid(tmp_path, head, index, block, grid):
    x = index.format(a="x", A="X", t="B")
    y = index.format(a="y", A="Y", t="C")
    macros = "#ifndef BX\n#define BX 32\n#define BY 8\n#define N 1\n#endif\n"
    text = f"{head}__global__ void f(float* out, int w, int h) {{ int x = {x}, y = {y}; }}"
    assert new(tmp_path, written(tmp_path, "f.cu", ("" if head else macros) + text)) == 0
    kernel = loaded(tmp_path, "f")
    launch = kernel.hooks["launch"](kernel.default(), kernel.problems["cuda"][0])
    assert (launch.block, launch.grid) == (block, grid)


def completed(space: Path, reference: str) -> None:
    text = space.read_text()
    begin = text.index("    raise NotImplementedError")
    space.write_text(f"{text[:begin]}    return {reference}\n" + text[begin:].partition("\n")[2])


def test_a_completed_cuda_file_compiles_where_it_is(tmp_path):
    source = written(tmp_path, "heat.cu", HEAT.split("template <")[0])
    assert new(tmp_path, source, "warm") == 0
    completed(tmp_path / "spaces/warm.py", "np.where(mask, k * in_array, 0)")
    report = check_kernel(loaded(tmp_path, "warm"), ("sm_80",), samples=1, seed=0)
    assert [(sample["result"], sample["problem"]) for sample in report.samples] == [
        ("compiled", "")
    ]


def test_a_triton_function_becomes_a_space_file(tmp_path):
    assert new(tmp_path, f"{written(tmp_path, 'add.py', ADD)}:add") == 0
    text = (tmp_path / "spaces/add.py").read_text()
    assert 'language="triton"' in text and "source/add.py:add" in text
    pytest.importorskip("triton")
    add = loaded(tmp_path, "add")
    assert list(add.parameters) == ["BLOCK", "UNROLL", "num_warps", "num_stages"]
    (problem,) = add.problems["cuda"]
    made = add.hooks["arguments"](problem, Draw(exact=False, key=1))
    assert [name for name, value in made.items() if isinstance(value, Out)] == ["out"]
    assert isinstance(made["y"], np.ndarray) and made["n"] == problem.n


@pytest.mark.parametrize(
    ("name", "text", "source", "message"),
    [
        ("none.cu", "void f() {}", "{}", "no __global__ function"),
        ("none.cu", "", "{}.missing", "no such file"),
        ("add.py", ADD, "{}:sub", "no function sub"),
        ("bad.py", "def (", "{}:add", "is not Python"),
        ("open.cu", "__global__ void f(int n", "{}", "no __global__ function"),
        ("two.cu", HEAT, "{}", "has 2 kernels: leave NAME out"),
    ],
)
def test_a_source_that_cannot_be_read_is_one_error(tmp_path, capsys, name, text, source, message):
    more = ["warm"] if name == "two.cu" else []
    assert new(tmp_path, source.format(written(tmp_path, name, text)), *more) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "spaces").exists()


def test_an_edited_space_file_is_not_overwritten(tmp_path, capsys):
    source = written(tmp_path, "heat.cu", HEAT)
    assert new(tmp_path, source) == new(tmp_path, source) == 0
    space = tmp_path / "spaces/heat.py"
    space.write_text(space.read_text() + "# mine\n")
    assert new(tmp_path, source) == 2
    assert f"{os.fspath(space)} exists" in capsys.readouterr().err
    assert space.read_text().endswith("# mine\n")


def test_check_interprets_a_smaller_size_than_declared(tmp_path):
    pytest.importorskip("triton")
    assert new(tmp_path, f"{written(tmp_path, 'add.py', ADD)}:add") == 0
    completed(tmp_path / "spaces/add.py", "x_ptr + y")
    report = check_kernel(loaded(tmp_path, "add"), ("sm_80",), samples=1, seed=0)
    assert any("verified on (n=8192), smaller than any declared" in note for note in report.notes)
    assert [sample["result"] for sample in report.samples] == ["compiled", "verified"]
