"""C++ programs find what ships, by CMake, by pkg-config or by hand, and its headers answer as Python does.

``examples/cpp`` is configured and compiled here; it runs on a GPU only.
"""

from __future__ import annotations

import math
import random
import shutil
import subprocess
import sys
from functools import cache
from operator import ge
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cuda.pathfinder import find_nvidia_header_directory
from thinned import thinned

from autotune import __version__, lookup
from autotune.cli import run
from autotune.devices.device import MAX_GRID, Device, for_arch
from autotune.export import export_records
from autotune.export.cpp import identifier
from autotune.kernel.catalog import find_kernel
from autotune.kernel.launches import launch_sequence
from autotune.kernel.space import is_member
from autotune.kernel.spec import Kernel
from autotune.tuned.answer import TunedConfig
from autotune.tuned.merged import QUALITIES
from autotune.tuned.reading import read
from autotune.tuned.record import TunedRecord
from autotune.values import SOURCE, Configuration, Problem

ROOT = Path(__file__).parents[1]
INCLUDE = ROOT / "cpp" / "include"
KERNELS = sorted(file.stem for file in (INCLUDE / "autotune").glob("*.hpp"))
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")
#: As CMake and the shell call it.
AUTOTUNE = (sys.executable, "-m", "autotune")


def tool(name: str) -> str:
    """A program; without it the test skips."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"no {name}; apt-get install cmake pkg-config clang g++")
    return path


def output_of(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def printed(option: str, capsys: pytest.CaptureFixture[str]) -> Path:
    """The folder that an option of `autotune` prints."""
    assert run([option]) == 0
    return Path(capsys.readouterr().out.removesuffix("\n"))


# ---------------------------------------------------------------------- finding it


def test_each_place_is_a_folder_that_holds_what_it_is_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (printed("--include-dir", capsys) / "autotune" / "sgemm.hpp").is_file()
    assert (printed("--cmake-dir", capsys) / "autotune-config.cmake").is_file()
    assert (printed("--pkg-config-dir", capsys) / "autotune.pc").is_file()


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_header_that_ships_is_of_all_records(kernel: str) -> None:
    """Mended with ``autotune export KERNEL header --from reports --out cpp/include/autotune``."""
    text = (INCLUDE / "autotune" / f"{kernel}.hpp").read_text()
    assert {f"{kernel}.hpp": text} == export_records("header", records_of(kernel))


def test_every_kernel_that_c_plus_plus_calls_has_a_header() -> None:
    """Kernels in Triton have none: `export cuda` writes binaries. Kernels that teach have none either."""
    names = {file.stem for file in (ROOT / "reports").glob("NVIDIA_*/*.json")}
    sources = {file.stem for file in (ROOT / "kernels").glob("*.cu")}
    assert sorted(names & sources) == KERNELS


def test_pkg_config_finds_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pkg_config = tool("pkg-config")
    (tmp_path / "main.cpp").write_text(
        "#include <autotune/sgemm.hpp>\n"
        "int main() { return autotune::sgemm::lookup(90, 512, 512, 512)->cuda.BM == 0; }\n"
    )
    place = f"--with-path={printed('--pkg-config-dir', capsys)}"
    flags = output_of(pkg_config, place, "--cflags", "autotune").split()
    output_of("g++", "-std=c++17", *STRICT, *flags, "main.cpp", "-o", "main", cwd=tmp_path)
    output_of(tmp_path / "main")
    assert output_of(pkg_config, place, "--modversion", "autotune").strip() == __version__


PROJECT = """
cmake_minimum_required(VERSION 3.20)
project(user LANGUAGES CXX)
find_package(autotune {version} CONFIG REQUIRED)
find_package(autotune {version} CONFIG REQUIRED) # twice, as by two parts of a project
add_executable(main main.cpp)
target_link_libraries(main PRIVATE autotune::autotune)
autotune_cubins(cubins exported 90 "{nvcc}")
get_target_property(folder cubins AUTOTUNE_FOLDER)
file(WRITE "${{CMAKE_BINARY_DIR}}/folder" "${{folder}}")
"""


@pytest.mark.nvcc
def test_cmake_finds_it_and_compiles_what_was_exported(
    nvcc: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sources stand alone, and one that is of one architecture alone is compiled for that."""
    cmake = tool("cmake")
    arguments = ["--from", str(ROOT / "reports"), "--out", str(tmp_path / "exported")]
    assert run(["export", "sgemm_tf32x3", "cuda", *arguments]) == 0
    capsys.readouterr()
    sources = sorted((tmp_path / "exported").glob("*.cu"))
    wgmma = next(file for file in sources if "code=sm_90a" in file.read_text())
    plain = next(file for file in sources if "code=sm_90a" not in file.read_text())
    for file in set(sources) - {wgmma, plain}:
        file.unlink()
    (tmp_path / "main.cpp").write_text(
        "#include <autotune/sgemm.hpp>\n"
        "static_assert(autotune::sgemm::lookup(90, 512, 512, 512)->cuda.BM > 0);\nint main() {}\n"
    )
    (tmp_path / "CMakeLists.txt").write_text(PROJECT.format(version=__version__, nvcc=nvcc))
    place = f"-Dautotune_DIR={printed('--cmake-dir', capsys)}"
    output_of(cmake, "-S", ".", "-B", "build", place, cwd=tmp_path)
    output_of(cmake, "--build", "build", cwd=tmp_path)
    folder = Path((tmp_path / "build" / "folder").read_text())
    for file in (wgmma, plain):
        assert (folder / f"{file.stem}.cubin").read_bytes()[:4] == b"\x7fELF"


@pytest.mark.full
@pytest.mark.nvcc
def test_the_example_is_built(nvcc: str, tmp_path: Path) -> None:
    """Linked against nothing of a driver's, which is not here; of its kernels one is compiled."""
    cmake = tool("cmake")
    toolkit = find_nvidia_header_directory("cudart")
    assert toolkit is not None
    (tmp_path / "stub.c").write_text("")
    output_of("gcc", "-shared", "stub.c", "-o", "libcuda.so", cwd=tmp_path)
    settings = {
        "AUTOTUNE": ";".join(AUTOTUNE),
        "NVCC": nvcc,
        "CUDA_DRIVER": tmp_path / "libcuda.so",
        "CMAKE_PREFIX_PATH": Path(toolkit).parent,
        "CMAKE_EXE_LINKER_FLAGS": "-Wl,--unresolved-symbols=ignore-all",
        "CMAKE_CXX_FLAGS": " ".join(STRICT),
        "CMAKE_BUILD_TYPE": "Debug",
    }
    options = [f"-D{name}={value}" for name, value in settings.items()]
    output_of(cmake, "-S", ROOT / "examples" / "cpp", "-B", "build", *options, cwd=tmp_path)
    output_of(cmake, "--build", "build", "--target", "tuned", "winner", cwd=tmp_path)
    build = tmp_path / "build"
    assert (build / "winner.cubin").read_bytes()[:4] == b"\x7fELF"
    assert (build / "tuned").stat().st_size
    assert len(list((build / "exported").glob("sgemm_*.cu"))) > 6


@cache
def records_of(kernel: str) -> list[TunedRecord]:
    """Return the shipped records of a kernel, in the order of the devices of its header."""
    return [read(file) for file in sorted((ROOT / "reports").glob(f"NVIDIA_*/{kernel}.json"))]


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("compiler", "standard"),
    # test_export_header gives one header to nvcc
    thinned(
        [("g++", "c++20"), ("clang++", "c++17"), ("nvcc", "c++17")],
        [("g++", "c++20"), ("clang++", "c++17")],
    ),
)
def test_compilers_take_all_headers_that_ship(
    compiler: str, standard: str, nvcc: str, tmp_path: Path
) -> None:
    """Their own assertions hold too; what else they answer: test_export_header."""
    includes = "".join(f"#include <autotune/{kernel}.hpp>\n" for kernel in KERNELS)
    (tmp_path / "main.cpp").write_text(f"{includes}int main() {{}}\n")
    flags = (f"-std={standard}", f"-I{INCLUDE}", "-c", "main.cpp")
    if compiler == "nvcc":
        output_of(nvcc, "-x", "cu", "-Werror", "all-warnings", *flags, cwd=tmp_path)
    else:
        output_of(tool(compiler), *STRICT, *flags, cwd=tmp_path)


#: Answers every question of one kernel: a device (below 0) or architecture, and the fields.
ASK = """
#include <autotune/KERNEL.hpp>
static void ask_KERNEL() {
  using namespace autotune::KERNEL;
  CATEGORIES
  static const long long asked[][WIDTH] = {QUESTIONS};
  for (const auto& q : asked) {
    const auto c = q[0] < 0 ? lookup(static_cast<device>(-1 - q[0]), FIELDS)
                            : lookup(static_cast<int>(q[0]), FIELDS);
    if (!c) {
      std::puts("none");
      continue;
    }
    std::printf("%d", static_cast<int>(c->hit));
    PRINTED
    for (const launch& step : c->launches(FIELDS))
      std::printf(" %s %u %u %u %u %u %u %u", step.entry, step.grid.x, step.grid.y, step.grid.z, step.block.x,
                  step.block.y, step.block.z, step.shared_bytes);
    std::printf("\\n");
  }
}
"""
#: Architectures with different limits and instructions.
ARCHS = (75, 80, 86, 89, 90, 100)


class Asked(NamedTuple):
    """The part of the program that answers the questions of a kernel, and Python's answers."""

    program: str
    answers: list[str]


@cache
def kernel_of(name: str) -> Kernel:
    return find_kernel(name)


def problems_of(kernel: str, count: int) -> list[dict[str, int | str]]:
    """Random problems of a kernel, a quarter of them tuned ones."""
    rng, records = random.Random(kernel), records_of(kernel)
    fields, tuned = records[0].fields, [entry for made in records for entry in made.problems]
    found = []
    for _ in range(count):
        known = rng.choice(tuned).problem
        if rng.random() < 0.25:
            found.append(dict(known))
            continue
        found.append(
            {
                name: rng.choice(
                    (2 ** rng.randrange(32), rng.randint(1, 2 ** rng.randrange(1, 32)))
                )
                if kind == "integer"
                else known[name]
                for name, kind in fields.items()
            }
        )
    return found


def answer_of(kernel: str, where: int, problem: dict[str, int | str]) -> str:
    """Check an answer of `lookup` against the kernel; return the line that the C++ program should print."""
    first, declared = records_of(kernel)[0], kernel_of(kernel)
    place = {"arch": where} if where > 0 else {"device": records_of(kernel)[-1 - where].device.name}
    try:
        found = lookup(kernel, **place, **problem)
    except LookupError:
        return "none"
    assert_valid(declared, found, for_arch(f"sm_{where if where > 0 else 90}"), problem)
    values = [
        first.parameters[path[-1]].index(value) if isinstance(value, str) else value
        for path in paths_of(first)
        for value in [found[path[-1]] if path[0] in (SOURCE, found.get(SOURCE, path[0])) else 0]
    ]
    launches = (
        f" {launch.entry} {' '.join(map(str, (*launch.grid, *launch.block, launch.shared_bytes)))}"
        for launch in found.launches
        if launch.grid
    )
    facts = " ".join(str(int(fact)) for fact in (QUALITIES.index(found.quality), *values))
    return facts + "".join(launches)


def assert_valid(kernel: Kernel, found: TunedConfig, gpu: Device, fields: Any) -> None:
    """The space has it on that GPU, the kernel takes the problem, and the GPU takes all its launches."""
    configuration, problem = Configuration(dict(found)), Problem(fields)
    assert is_member(kernel, configuration, gpu), (gpu.arch, problem, found)
    assert kernel.allows(configuration, problem), (problem, found)
    for launch in found.launches:
        assert math.prod(launch.block) <= gpu.max_threads_per_block, (problem, found)
        assert launch.shared_bytes <= gpu.shared_bytes_per_block, (gpu.arch, problem, found)
        assert launch.grid is not None
        assert all(map(ge, MAX_GRID, launch.grid)), (problem, launch)
    if kernel.language is None:  # else a compiler decides the block
        assert [(launch.entry, launch.block) for launch in found.launches] == [
            (launch.entry, launch.block)
            for launch in launch_sequence(kernel, configuration, problem, gpu).launches
        ]


def paths_of(made: TunedRecord) -> list[tuple[str, ...]]:
    """The members of `config` that are parameters; those of a source are in a member of its name."""
    if not made.sources:
        return [(name,) for name in made.parameters]
    own = ((source, name) for source, names in made.sources.items() for name in names)
    return [(SOURCE,), *own]


def asked_of(kernel: str, count: int) -> Asked:
    """Ask for random sizes on each of `ARCHS`, on 9.0 by its macro's value, and on tuned devices."""
    records = records_of(kernel)
    first = records[0]
    categories = {
        name: sorted({str(tuned.problem[name]) for made in records for tuned in made.problems})
        for name, kind in first.fields.items()
        if kind != "integer"
    }
    places = (*ARCHS, *(-1 - number for number in range(len(records))))
    questions, answers = [], []
    for problem in problems_of(kernel, count):
        drawn = [categories[n].index(v) if n in categories else v for n, v in problem.items()]
        for where in places:
            questions.append(f"{{{', '.join(f'{number}LL' for number in (where, *drawn))}}}")
            answers.append(answer_of(kernel, where, problem))
    arrays = [
        f"const {n}_value {n}s[] = {{{', '.join(f'{n}_value::{identifier(v)}' for v in values)}}};"
        for n, values in categories.items()
    ]
    fields = [
        f"{n}s[q[{i}]]" if n in categories else f"q[{i}]" for i, n in enumerate(first.fields, 1)
    ]
    members = [".".join(path) for path in paths_of(first)]
    printed = [f'std::printf(" %d", static_cast<int>(c->{member}));' for member in members]
    text = ASK.replace("QUESTIONS", ",\n".join(questions)).replace("FIELDS", ", ".join(fields))
    text = text.replace("CATEGORIES", " ".join(arrays)).replace("WIDTH", str(len(fields) + 1))
    return Asked(text.replace("PRINTED", "\n    ".join(printed)).replace("KERNEL", kernel), answers)


@pytest.mark.parametrize("count", [6, pytest.param(500, marks=pytest.mark.full)])
def test_what_ships_answers_with_what_is_valid_or_not_at_all(count: int, tmp_path: Path) -> None:
    """Headers as Python: configuration and launches, of random sizes from 1 to 2^31, on six architectures."""
    parts = {kernel: asked_of(kernel, count) for kernel in KERNELS}
    calls = " ".join(f"ask_{kernel}();" for kernel in KERNELS)
    text = "".join(part.program for part in parts.values())
    (tmp_path / "main.cpp").write_text(f"#include <cstdio>\n{text}int main() {{ {calls} }}\n")
    flags = ("-std=c++17", "-O0", f"-I{INCLUDE}", "main.cpp", "-o", "main")
    output_of(tool("g++"), *STRICT, *flags, cwd=tmp_path)
    printed = iter(output_of(tmp_path / "main").splitlines())
    for kernel, part in parts.items():
        for number, answer in enumerate(part.answers):
            assert next(printed) == answer, (kernel, number)
    assert next(printed, None) is None
    answers = [answer for part in parts.values() for answer in part.answers]
    assert 0 < answers.count("none") < len(answers) / 4


@pytest.mark.parametrize("count", [4, pytest.param(500, marks=pytest.mark.full)])
def test_kernels_without_a_header_answer_with_what_is_valid_or_not_at_all(count: int) -> None:
    names = {file.stem for file in (ROOT / "reports").glob("NVIDIA_*/*.json")}
    names = {name for name in names if "." not in name} - {*KERNELS}
    found = [
        answer_of(kernel, where, problem)
        for kernel in sorted(names)
        for problem in problems_of(kernel, count)
        for where in ARCHS
    ]
    assert len(names) > 10
    assert found.count("none") < len(found) / 4
