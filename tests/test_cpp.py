"""C++ programs find what ships, by CMake, by pkg-config or by hand, and its headers answer as Python does.

``examples/cpp`` is configured and compiled here; it runs on a GPU only.
"""

from __future__ import annotations

import hashlib
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


def test_every_kernel_that_ships_has_a_header() -> None:
    assert sorted({file.stem for file in (ROOT / "reports").glob("NVIDIA_*/*.json")}) == KERNELS


def test_pkg_config_finds_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pkg_config = tool("pkg-config")
    (tmp_path / "main.cpp").write_text(
        "#include <autotune/sgemm.hpp>\n"
        "int main() { return autotune::sgemm::lookup(90, 512, 512, 512).BM == 0; }\n"
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
        "static_assert(autotune::sgemm::lookup(90, 512, 512, 512).BM > 0);\nint main() {}\n"
    )
    (tmp_path / "CMakeLists.txt").write_text(PROJECT.format(version=__version__, nvcc=nvcc))
    place = f"-Dautotune_DIR={printed('--cmake-dir', capsys)}"
    output_of(cmake, "-S", ".", "-B", "build", place, cwd=tmp_path)
    output_of(cmake, "--build", "build", cwd=tmp_path)
    folder = Path((tmp_path / "build" / "folder").read_text())
    for file in (wgmma, plain):
        assert (folder / f"{file.stem}.cubin").read_bytes()[:4] == b"\x7fELF"


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


# ---------------------------------------------------------------------- headers answer as Python

#: Draws questions as `drawn` does, and prints what each is answered with.
DRAW = """
#include <cstdio>

static unsigned long long state = 1;
static unsigned long long draw() {
  state = state * 6364136223846793005ULL + 1442695040888963407ULL;
  return state >> 33;
}
// From 1 to 2^31, as often below 2^10 as above 2^20.
static long long size() {
  const unsigned long long bits = draw() % 32, rest = draw();
  return static_cast<long long>((1ULL << bits) + rest % (1ULL << bits) * (bits < 31));
}
"""
ASK = """
#include <autotune/KERNEL.hpp>
static void ask_KERNEL() {
  using namespace autotune::KERNEL;
  state = 1;
  const int archs[] = {90, 80, 86, 100, 120, 75, 900};
  for (int i = 0; i < QUESTIONS; ++i) {
    const int where = static_cast<int>(draw() % 9);
    DRAWN
    const config c = where < DEVICES ? lookup(static_cast<device>(where), FIELDS)
                                     : lookup(archs[where - DEVICES], FIELDS);
    const extent grid = c.grid(FIELDS);
    std::printf("%d %u %u %u %u %u %u %u %d %d", i, c.block.x, c.block.y, c.block.z, c.shared_bytes, grid.x, grid.y,
                grid.z, static_cast<int>(c.hit), c.requires_met);
    PRINTED
    std::printf("\\n");
  }
}
"""
QUESTIONS = 2_000


@cache
def records_of(kernel: str) -> list[TunedRecord]:
    """What ships of a kernel, in the order of a header's devices."""
    return [read(file) for file in sorted((ROOT / "reports").glob(f"NVIDIA_*/{kernel}.json"))]


@cache
def program(kernel: str) -> str:
    """The C++ side of the questions of one kernel."""
    first = records_of(kernel)[0]
    categories = categories_of(kernel)
    drawn = []
    for name, kind in first.fields.items():
        if kind == "integer":
            drawn.append(f"const long long {name} = size();")
            continue
        values = ", ".join(f"{name}_value::{value}" for value in categories[name])
        drawn.append(f"const {name}_value {name}s[] = {{{values}}};")
        drawn.append(f"const {name}_value {name} = {name}s[draw() % {len(categories[name])}];")
    printed = "".join(
        f'std::printf(" %d", static_cast<int>(c.{name}));' for name in first.parameters
    )
    text = ASK.replace("KERNEL", kernel).replace("QUESTIONS", str(QUESTIONS))
    text = text.replace("DRAWN", "\n    ".join(drawn)).replace("PRINTED", printed)
    return text.replace("FIELDS", ", ".join(first.fields)).replace("DEVICES", str(len(DEVICES)))


DEVICES = sorted(file.name for file in (ROOT / "reports").glob("NVIDIA_*"))
ARCHS = (90, 80, 86, 100, 120, 75, 900)
QUALITIES = ("exact", "nearest_problem", "same_arch", "nearest_arch", "default")


@cache
def categories_of(kernel: str) -> dict[str, list[str]]:
    """Values of fields that are no sizes."""
    found: dict[str, set[str]] = {}
    for record in records_of(kernel):
        for entry in record.problems:
            for name, value in entry.problem.items():
                if isinstance(value, str):
                    found.setdefault(name, set()).add(value)
    return {name: sorted(values) for name, values in found.items()}


@cache
def answers(kernel: str) -> str:
    """Python's side of the questions: a fingerprint of the same lines."""
    first, state = records_of(kernel)[0], 1

    def draw() -> int:
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        return state >> 33

    def size() -> int:
        bits, rest = draw() % 32, draw()
        return (1 << bits) + (rest % (1 << bits) if bits < 31 else 0)

    lines = []
    words = {
        name: {value: place for place, value in enumerate(values)}
        if isinstance(values[0], str)
        else {}
        for name, values in first.parameters.items()
    }
    for number in range(QUESTIONS):
        where = draw() % 9
        problem = {
            name: size()
            if kind == "integer"
            else (known := categories_of(kernel)[name])[draw() % len(known)]
            for name, kind in first.fields.items()
        }
        place = (
            {"device": DEVICES[where]}
            if where < len(DEVICES)
            else {"arch": ARCHS[where - len(DEVICES)]}
        )
        c = lookup(kernel, **place, **problem)
        values = [words[name].get(value, value) for name, value in c.items()]
        grid = c.grid or (0, 0, 0)
        facts = [
            number,
            *c.block,
            c.shared_bytes,
            *grid,
            QUALITIES.index(c.quality),
            c.requires_met,
        ]
        lines.append(" ".join(str(int(fact)) for fact in (*facts, *values)) + "\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest()


@pytest.mark.xdist_group("questions")  # which Python answers once
@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("compiler", "standard"), [("g++", "c++17"), ("clang++", "c++20"), ("nvcc", "c++17")]
)
def test_headers_answer_thousands_of_questions_each_as_python_does(
    compiler: str, standard: str, nvcc: str, tmp_path: Path
) -> None:
    """Configuration, grid and shared memory, on devices and architectures, of sizes from 1 to 2^31."""
    calls = "".join(f"ask_{kernel}();\n" for kernel in KERNELS)
    text = DRAW + "".join(map(program, KERNELS)) + f"int main() {{\n{calls}}}\n"
    (tmp_path / "main.cpp").write_text(text)
    flags = (f"-std={standard}", "-O0", f"-I{INCLUDE}", "main.cpp", "-o", "main")
    if compiler == "nvcc":
        libraries = f"-L{Path(nvcc).parents[1] / 'lib'}"
        output_of(nvcc, "-x", "cu", "-Werror", "all-warnings", libraries, *flags, cwd=tmp_path)
    else:
        output_of(tool(compiler), *STRICT, *flags, cwd=tmp_path)
    said = output_of(tmp_path / "main").splitlines(keepends=True)
    assert len(said) == QUESTIONS * len(KERNELS)
    for place, kernel in enumerate(KERNELS):
        lines = said[place * QUESTIONS : (place + 1) * QUESTIONS]
        assert hashlib.sha256("".join(lines).encode()).hexdigest() == answers(kernel), kernel
