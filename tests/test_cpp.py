"""C++ programs find what ships, by CMake, by pkg-config or by hand, and its headers answer as Python does.

``examples/cpp`` is configured and compiled here; it runs on a GPU only.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from cuda.pathfinder import find_nvidia_header_directory

from autotune import __version__, lookup
from autotune.cli import run
from autotune.export import export_records
from autotune.export.cpp import identifier
from autotune.tuned.merged import QUALITIES
from autotune.tuned.reading import read
from autotune.tuned.record import TunedRecord

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
        "int main() { return autotune::sgemm::lookup(90, 512, 512, 512).cuda.BM == 0; }\n"
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
        "static_assert(autotune::sgemm::lookup(90, 512, 512, 512).cuda.BM > 0);\nint main() {}\n"
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
    ("compiler", "standard"), [("g++", "c++20"), ("clang++", "c++17"), ("nvcc", "c++17")]
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
    const config c = q[0] < 0 ? lookup(static_cast<device>(-1 - q[0]), FIELDS)
                              : lookup(static_cast<int>(q[0]), FIELDS);
    const extent grid = c.grid(FIELDS);
    std::printf("%u %u %u %u %u %u %u %d %d", c.block.x, c.block.y, c.block.z, c.shared_bytes,
                grid.x, grid.y, grid.z, static_cast<int>(c.hit), c.requires_met);
    PRINTED
    std::printf("\\n");
  }
}
"""
QUESTIONS = 300


def asked_of(kernel: str) -> tuple[str, list[str]]:
    """The program's part that answers random questions of a kernel, and Python's answers."""
    rng, records = random.Random(kernel), records_of(kernel)
    first = records[0]
    paths: list[tuple[str, ...]] = [(name,) for name in first.parameters]
    if first.sources:  # the members of a source are in a member of its name
        own = ((source, name) for source, names in first.sources.items() for name in names)
        paths = [("SOURCE",), *own]
    categories = {
        name: sorted({str(tuned.problem[name]) for made in records for tuned in made.problems})
        for name, kind in first.fields.items()
        if kind != "integer"
    }
    places = [-1 - number for number in range(len(records))] + [90, 80, 86, 100, 120, 75, 900]
    questions, answers = [], []
    for _ in range(QUESTIONS):
        where = rng.choice(places)
        drawn = {
            name: rng.randrange(len(categories[name]))
            if name in categories
            else rng.choice((2 ** rng.randrange(32), rng.randint(1, 2 ** rng.randrange(1, 32))))
            for name in first.fields
        }
        if rng.random() < 0.25:
            known = rng.choice(rng.choice(records).problems).problem
            drawn = {n: categories[n].index(v) if n in categories else v for n, v in known.items()}
        questions.append(
            "{" + ", ".join(f"{number}LL" for number in (where, *drawn.values())) + "}"
        )
        problem = {n: categories[n][v] if n in categories else v for n, v in drawn.items()}
        place = {"arch": where} if where > 0 else {"device": records[-1 - where].device.name}
        c = lookup(kernel, **place, **problem)
        values = [
            first.parameters[path[-1]].index(value) if isinstance(value, str) else value
            for path in paths
            for value in [c[path[-1]] if path[0] in ("SOURCE", c.get("SOURCE", path[0])) else 0]
        ]
        grid, hit = c.grid or (0, 0, 0), QUALITIES.index(c.quality)
        facts = (*c.block, c.shared_bytes, *grid, hit, c.requires_met, *values)
        answers.append(" ".join(str(int(fact)) for fact in facts))
    arrays = [
        f"const {n}_value {n}s[] = {{{', '.join(f'{n}_value::{identifier(v)}' for v in values)}}};"
        for n, values in categories.items()
    ]
    fields = [f"{n}s[q[{i}]]" if n in categories else f"q[{i}]" for i, n in enumerate(drawn, 1)]
    members = [".".join(path) for path in paths]
    printed = [f'std::printf(" %d", static_cast<int>(c.{member}));' for member in members]
    text = ASK.replace("QUESTIONS", ",\n".join(questions)).replace("FIELDS", ", ".join(fields))
    text = text.replace("CATEGORIES", " ".join(arrays)).replace("WIDTH", str(len(fields) + 1))
    return text.replace("PRINTED", "\n    ".join(printed)).replace("KERNEL", kernel), answers


def test_headers_that_ship_answer_as_python_does(tmp_path: Path) -> None:
    """Configuration, grid and shared memory, of sizes from 1 to 2^31."""
    parts = {kernel: asked_of(kernel) for kernel in KERNELS}
    calls = " ".join(f"ask_{kernel}();" for kernel in KERNELS)
    text = "".join(part for part, _ in parts.values())
    (tmp_path / "main.cpp").write_text(f"#include <cstdio>\n{text}int main() {{ {calls} }}\n")
    flags = ("-std=c++17", "-O0", f"-I{INCLUDE}", "main.cpp", "-o", "main")
    output_of(tool("g++"), *STRICT, *flags, cwd=tmp_path)
    printed = output_of(tmp_path / "main").splitlines()
    assert len(printed) == QUESTIONS * len(KERNELS)
    for number, (kernel, (_, answers)) in enumerate(parts.items()):
        assert printed[number * QUESTIONS : (number + 1) * QUESTIONS] == answers, kernel
