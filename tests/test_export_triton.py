"""A C++ program launches a kernel in Triton: `export cuda` writes cubins and a launcher."""

import subprocess
from pathlib import Path

import pytest
from cuda.pathfinder import find_nvidia_header_directory
from sample_records import entry, record
from sample_triton import write_two_functions

from autotune.devices.device import for_arch
from autotune.errors import UsageError
from autotune.export import export_records
from autotune.kernel.catalog import load_file
from autotune.run.plans import plan_of
from autotune.values import Problem

pytest.importorskip("triton")
SPACES = Path(__file__).parents[1] / "examples" / "softmax" / "spaces"
DEVICE = "NVIDIA H100 80GB HBM3"

PROGRAM = """
#include "fake_driver.cpp"
#include "softmax_rows_launch.hpp"

int main(int, char** words) {
  autotune::softmax_rows::launcher tuned(words[1]);
  for (int columns : {1024, 1000, 1}) {
    fake::sizes = {{8, 8, 4, 8, 8}};
    tuned.launch({7, columns}, {4096, 8192}, reinterpret_cast<CUstream>(1));
  }
}
"""


@pytest.fixture
def records(monkeypatch):
    monkeypatch.setenv("AUTOTUNE_PATH", str(SPACES))
    kernel = load_file(SPACES / "softmax_rows.py")
    problem = Problem(rows=4096, columns=1024)
    plan = plan_of(kernel, kernel.default(), problem, for_arch("sm_90"))
    return [
        record(
            [entry(dict(problem), plan)],
            kernel="softmax_rows",
            device=DEVICE,
            fields={"rows": "integer", "columns": "integer"},
            parameters=kernel.parameters,
            default=plan,
        )
    ]


def test_cubins_are_for_multiples_of_16_and_for_all_sizes(records):
    files = export_records("cuda", records)
    names = sorted(files)
    assert names == [
        "softmax_rows.hpp",
        "softmax_rows_00.cubin",
        "softmax_rows_01.cubin",
        "softmax_rows_launch.hpp",
    ]
    first, second = files["softmax_rows_00.cubin"], files["softmax_rows_01.cubin"]
    assert first[:4] == second[:4] == b"\x7fELF" and first != second
    assert files == export_records("cuda", records)


def lines_of(program, files, tmp_path):
    """Compile a program with exported files; return what it asks of the driver, line by line."""
    for name, content in files.items():
        data = content.encode() if isinstance(content, str) else Path(name).stem.encode() + b"\0"
        (tmp_path / name).write_bytes(data)
    (tmp_path / "main.cpp").write_text(program)
    folders = [
        "-isystem",
        find_nvidia_header_directory("cudart"),
        f"-I{Path(__file__).parent / 'launcher'}",
    ]
    warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    command = ["g++", "-std=c++17", *warnings, *folders, "main.cpp", "-o", "main", "-pthread"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=300)
    done = subprocess.run(
        ["./main", str(tmp_path)],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout.splitlines()


def test_a_program_launches_the_cubin_that_is_for_its_size(records, tmp_path):
    lines = lines_of(PROGRAM, export_records("cuda", records), tmp_path)
    loads = [line.split()[-1] for line in lines if line.startswith("load")]
    launches = [line for line in lines if line.startswith("launch")]
    assert loads == ["softmax_rows_00", "softmax_rows_01"]
    assert [line.partition(": ")[2] for line in launches] == [
        f"7 1 1 512 1 1 64 4096 8192 {columns} 0 0" for columns in (1024, 1000, 1)
    ]


TWO_FUNCTIONS = """
#include "fake_driver.cpp"
#include "scaled_launch.hpp"

int main(int, char** words) {
  autotune::scaled::launcher tuned(words[1]);
  fake::sizes = {{8, 8, 4, 8, 8}, {8, 8, 8, 4, 8, 8}};
  tuned.launch({1000}, {4096, 8192}, reinterpret_cast<CUstream>(1));
}
"""


def two_functions(space, **fields):
    """Records of the kernel ``scaled``; ``fields`` are further ones of its problem."""
    kernel, problem = load_file(space), Problem(n=1000, **fields)
    plan = plan_of(kernel, kernel.default(), problem, for_arch("sm_90"))
    return [
        record(
            [entry(dict(problem), plan)],
            kernel="scaled",
            device=DEVICE,
            fields={"n": "integer", **dict.fromkeys(fields, "categorical")},
            parameters=kernel.parameters,
            default=plan,
        )
    ]


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        (
            (
                ("    PARTS=(128,),\n", ""),
                (
                    "@scaled.scratch",
                    "@scaled.defines\ndef defines(c, p):\n    return {'PARTS': 8 + 8 * (p.n > 9)}\n\n\n"
                    "@scaled.scratch",
                ),
            ),
            "the value of PARTS depends on the problem",
        ),
        (
            (
                (
                    "@scaled.scratch",
                    "@scaled.defines\ndef defines(c, p):\n"
                    "    return {'UNIT': 8} if p.n == 1000 else {}\n\n\n@scaled.scratch",
                ),
                ("BLOCK: tl.constexpr):", "BLOCK: tl.constexpr, UNIT: tl.constexpr = 1):"),
            ),
            "the value of UNIT depends on the problem",
        ),
        (
            (
                (
                    "tl.load(x + place, mask=place < n, other=0.0)",
                    "tl.make_tensor_descriptor(x, [n], [1], [BLOCK]).load([tl.program_id(0) * BLOCK])",
                ),
            ),
            "needs global scratch memory, for example for a tensor descriptor",
        ),
    ],
)
def test_what_a_problem_has_compiled_in_is_refused(tmp_path, monkeypatch, edits, message):
    """Its cubin is wrong for other problems."""
    space = write_two_functions(tmp_path, *edits)
    monkeypatch.setenv("AUTOTUNE_PATH", str(space.parent))
    with pytest.raises(UsageError, match=message):
        export_records("cuda", two_functions(space))


@pytest.mark.parametrize(
    ("edits", "fields"),
    [
        (
            (
                ("edge_problems=[", "layout={'offset_x': 0},\n    edge_problems=["),
                ("Problem(n=999)", "Problem(n=999, offset_x=1)"),
            ),
            {},
        ),
        (
            (
                ("Problem(n=1000)", "Problem(n=1000, dtype='float32')"),
                ("Problem(n=1)", "Problem(n=1, dtype='float32')"),
                ("Problem(n=999)", "Problem(n=999, dtype='float16')"),
                ("p.n, np.float32", "p.n, p.dtype"),
            ),
            {"dtype": "float32"},
        ),
    ],
)
def test_what_no_program_can_ask_for_is_not_refused(tmp_path, monkeypatch, edits, fields):
    """An array that is not aligned, which the launcher refuses; a type that was not tuned."""
    space = write_two_functions(tmp_path, *edits)
    monkeypatch.setenv("AUTOTUNE_PATH", str(space.parent))
    assert "scaled_00.cubin" in export_records("cuda", two_functions(space, **fields))


def test_of_numbers_that_a_launch_computes_nothing_is_compiled_in(tmp_path, monkeypatch):
    """Of all declared problems they are multiples of 16, or never, or 1; a program asks for another size."""
    cubins = []
    for number, computed in enumerate(("p.n - 984", "p.n - 985", "ceil_div(p.n, 4096)")):
        space = write_two_functions(
            tmp_path / f"project{number}",
            ("n, BLOCK: tl.constexpr):", "n, more, BLOCK: tl.constexpr):\n    x += more"),
            ('"sums", "n")', f'"sums", "n", {computed})'),
            ("Problem(n=1), Problem(n=999)", "Problem(n=1016), Problem(n=1032)"),
        )
        monkeypatch.setenv("AUTOTUNE_PATH", str(space.parent))
        files = export_records("cuda", two_functions(space))
        cubins.append([files[name] for name in ("scaled_00.cubin", "scaled_01.cubin")])
    assert cubins[0] == cubins[1] == cubins[2]
    program = TWO_FUNCTIONS.replace("{{8, 8, 4, 8, 8}", "{{8, 8, 4, 4, 8, 8}").replace(
        "1000", "5001"
    )
    lines = lines_of(program, files, tmp_path)
    (first, _) = (line for line in lines if line.startswith("launch"))
    assert first.endswith(" 4096 1048576 5001 2 0 0")


def test_a_program_launches_both_functions_of_a_cubin(tmp_path, monkeypatch):
    space = write_two_functions(tmp_path / "project")
    monkeypatch.setenv("AUTOTUNE_PATH", str(space.parent))
    files = export_records("cuda", two_functions(space))
    assert [name for name in sorted(files) if name.endswith("cubin")] == [
        "scaled_00.cubin",
        "scaled_01.cubin",
    ]
    lines = lines_of(TWO_FUNCTIONS, files, tmp_path)
    assert [line for line in lines if line.startswith(("load", "alloc", "launch"))] == [
        "load 1 scaled_01",
        "alloc 1048576 64",
        "launch 1 part_sums on 1: 16 1 1 64 1 1 8 4096 1048576 1000 0 0",
        "launch 1 scaled on 1: 16 1 1 64 1 1 8 4096 1048576 8192 1000 0 0",
    ]
