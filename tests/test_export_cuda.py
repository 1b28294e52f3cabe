"""Exported sources and their launcher: it loads, fills, allocates and launches what Python would.

There is no GPU here, so the launcher is linked with ``launcher/fake_driver.cpp``, which writes down what
the driver is asked for. ``examples/cpp`` runs it on a GPU.
"""

from __future__ import annotations

import random
import struct
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda.pathfinder import find_nvidia_header_directory, load_nvidia_dynamic_lib
from sample_records import entry, plan, record
from sample_spaces import SOURCE, changed, write_space
from thinned import thinned

from autotune import lookup
from autotune.cli import run
from autotune.data.arguments import declared_arguments
from autotune.errors import AutotuneError
from autotune.export import export_records
from autotune.files import bundled_path
from autotune.kernel import catalog
from autotune.kernel.launches import launch_sequence
from autotune.kernel.spec import Fill, Kernel
from autotune.tuned.reading import read
from autotune.values import Configuration, Problem

ROOT = Path(__file__).parents[1]
KERNELS = ("gemv", "reduce", "sgemm", "transpose")
#: Kernels whose launches are like those of `sgemm` and `transpose`.
OTHERS = ("ffma", "sgemm_tf32x3")
DEVICE = "NVIDIA H100 80GB HBM3"
QUESTIONS = 60
#: Of the k-th array; of scalars that are no field of the problem.
ADDRESS, SCALAR = 4096, 0.5

find_kernel = cache(catalog.find_kernel)

#: Reads "KERNEL STREAM CAPTURE SHIFT DETERMINISTIC fields launches (count sizes)" lines and launches.
PROGRAM = """
#include "fake_driver.cpp"
INCLUDES
#include <iostream>
#include <stdexcept>

std::size_t shift;
bool deterministic;

FUNCTIONS

int main(int, char** words) {
  std::setvbuf(stdout, nullptr, _IONBF, 0);
  std::string kernel;
  std::size_t stream;
  while (std::cin >> kernel >> stream >> fake::capture >> shift >> deterministic) {
    try {
      CALLS
    } catch (const std::exception& error) {
      std::printf("error %s\\n", error.what());
    }
    fake::sizes.clear();
    std::printf("done\\n");
  }
}
"""
FUNCTION = """
void ask_KERNEL(const char* folder, CUstream stream) {
  static autotune::KERNEL::launcher tuned(folder);
  autotune::KERNEL::problem asked;
  READ
  int launches, count;
  std::cin >> launches;
  for (int i = 0; i < launches; ++i) {
    std::cin >> count;
    fake::sizes.emplace_back(count);
    for (int& size : fake::sizes.back()) std::cin >> size;
  }
  const auto wanted = deterministic ? autotune::KERNEL::demand::deterministic : autotune::KERNEL::demand::none;
  std::printf("plan %s\\n", autotune::KERNEL::detail::sources[tuned.choose(asked, wanted).plan].name);
  tuned.launch(asked, {GIVEN}, stream, wanted);
}
"""


class Launchers:
    """A program with the launchers of all kernels, and the folder that they take code from."""

    def __init__(self, folder: Path, kernels: Sequence[str]) -> None:
        self.folder = folder
        self.given = {name: _given(find_kernel(name)) for name in kernels}
        for name in kernels:
            arguments = ["--from", str(ROOT / "reports"), "--out", str(folder)]
            assert run(["export", name, "cuda", *arguments]) == 0
        self.sources = sorted(folder.glob("*.cu"))
        for source in self.sources:
            source.with_suffix(".cubin").write_text(source.stem + "\0")
        includes = "\n".join(f'#include "{name}_launch.hpp"' for name in kernels)
        functions = "".join(self._function(name) for name in kernels)
        calls = "\n".join(
            f'if (kernel == "{name}") ask_{name}(words[1], reinterpret_cast<CUstream>(stream));'
            for name in kernels
        )
        text = PROGRAM.replace("INCLUDES", includes).replace("FUNCTIONS", functions)
        (folder / "main.cpp").write_text(text.replace("CALLS", calls))
        nvrtc = load_nvidia_dynamic_lib("nvrtc").abs_path
        assert nvrtc is not None
        include = find_nvidia_header_directory("cudart")
        command = [
            "g++",
            "-std=c++17",
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Werror",
            "-DAUTOTUNE_NVRTC",
        ]
        command += ["-isystem", str(include), f"-I{Path(__file__).parent / 'launcher'}", "main.cpp"]
        command += [nvrtc, f"-Wl,-rpath,{Path(nvrtc).parent}", "-o", "main", "-pthread"]
        subprocess.run(command, cwd=folder, check=True, timeout=300)

    def _function(self, name: str) -> str:
        fields = find_kernel(name).fields
        read = "".join(f"std::cin >> asked.{field}; " for field in fields)
        given = ", ".join(
            str(ADDRESS * (place + 1)) + (" + shift" if place == 0 else "")
            if is_array
            else "SCALAR"
            for place, is_array in enumerate(self.given[name].values())
        ).replace("SCALAR", f"{SCALAR}f")
        text = FUNCTION.replace("KERNEL", name).replace("READ", read)
        return text.replace("GIVEN", given)

    def ask(self, *lines: str) -> list[list[str]]:
        """What each line leads to, and at the end what the launchers leave."""
        done = subprocess.run(
            [self.folder / "main", str(self.folder)],
            input="\n".join(lines),
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        return [part.splitlines() for part in done.stdout.split("done\n")]


def _given(kernel: Kernel) -> dict[str, bool]:
    """The arguments that a caller gives, by name: whether each is an array."""
    arguments = declared_arguments(kernel, kernel.edge_problems[0])
    return {
        name: argument.kind != "scalar"
        for name, argument in arguments.items()
        if argument.kind != "scalar" or name not in kernel.fields
    }


@pytest.fixture(scope="module")
def launchers(tmp_path_factory: pytest.TempPathFactory) -> Launchers:
    return Launchers(tmp_path_factory.mktemp("launchers"), KERNELS)


class Expected:
    """What Python's `load` would do for a problem."""

    def __init__(self, name: str, problem: Problem, deterministic: bool = False) -> None:
        self.kernel = find_kernel(name)
        self.problem = problem
        self.deterministic = deterministic
        self.chosen = lookup(name, device=DEVICE, deterministic=deterministic, **problem)
        device = read(
            Path(bundled_path("reports"), DEVICE.replace(" ", "_"), f"{name}.json")
        ).device
        configuration = Configuration(dict(self.chosen))
        planned = device.planned_for()
        self.steps = launch_sequence(self.kernel, configuration, problem, planned).steps
        self.scratch = self.kernel.workspaces(configuration, problem, planned)
        # Types are those of any problem; arrays of this one may have gigabytes.
        self.arguments = declared_arguments(self.kernel, self.kernel.edge_problems[0])

    def line(self, stream: int = 1, capture: int = 0, shift: int = 0) -> str:
        """What the program is asked."""
        sizes = [
            [self._bytes(value) for value in self._values(step)]
            for step in self.steps
            if not isinstance(step, Fill)
        ]
        lists = " ".join(f"{len(each)} {' '.join(map(str, each))}" for each in sizes)
        fields = " ".join(map(str, self.problem.values()))
        place = f"{stream} {capture} {shift} {int(self.deterministic)}"
        return f"{self.kernel.name} {place} {fields} {len(sizes)} {lists}"

    def _values(self, step: Any) -> list[Any]:
        return list(step.args) if step.args is not None else [*self.arguments, *self.scratch]

    def _bytes(self, value: Any) -> int:
        argument = self.arguments.get(value)
        if argument is not None and argument.kind == "scalar":
            return int(np.dtype(argument.dtype).itemsize)
        return 8 if isinstance(value, str) else 4

    def check(self, said: list[str], workspaces: dict[int, int]) -> None:
        """Compare with what the driver was asked for; ``workspaces`` are bytes by address."""
        for line in said:
            if line.startswith("alloc"):
                address, size = map(int, line.split()[1:])
                workspaces[address] = size
        done = [line for line in said if line.startswith(("fill", "launch"))]
        assert len(done) == len(self.steps), said
        for step, line in zip(self.steps, done, strict=True):
            if isinstance(step, Fill):
                self._check_fill(step, line, workspaces)
            else:
                self._check_launch(step, line, workspaces)

    def _check_fill(self, step: Fill, line: str, workspaces: dict[int, int]) -> None:
        address, bits, width, count = map(int, line.split()[1:])
        out = self.scratch.get(step.name)
        out = out or declared_arguments(self.kernel, self.problem)[step.name]
        assert (width, count) == (np.dtype(out.dtype).itemsize, int(np.prod(out.shape)))
        assert bits == int.from_bytes(np.dtype(out.dtype).type(step.value).tobytes(), "little")
        if step.name in self.scratch:
            assert workspaces[address] >= width * count
        else:
            assert address == self._address(step.name)

    def _check_launch(self, step: Any, line: str, workspaces: dict[int, int]) -> None:
        head, tail = line.split(":")
        assert head.split()[2] == step.entry
        numbers = list(map(int, tail.split()))
        assert numbers[:7] == [*step.grid, *step.block, step.shared_bytes]
        values = self._values(step)
        assert len(numbers) == 7 + len(values)
        seen = []
        for value, bits in zip(values, numbers[7:], strict=True):
            if value in self.scratch:
                out = self.scratch[value]
                assert workspaces[bits] >= int(np.prod(out.shape)) * np.dtype(out.dtype).itemsize
                seen.append(bits)
            elif isinstance(value, str) and self.arguments[value].kind != "scalar":
                assert bits == self._address(value)
            elif value in self.problem:
                assert bits == self.problem[value]
            elif isinstance(value, str):
                assert struct.pack("<I", bits) == struct.pack("<f", SCALAR)
            else:
                assert bits == value
        assert len(set(seen)) == len(seen)

    def _address(self, name: str) -> int:
        given = [known for known in self.arguments if known in _given(self.kernel)]
        return ADDRESS * (given.index(name) + 1)


@pytest.mark.parametrize("name", thinned([*KERNELS, *OTHERS], KERNELS))
def test_a_launcher_does_what_python_would(name: str, launchers: Launchers, tmp_path: Path) -> None:
    launchers = launchers if name in KERNELS else Launchers(tmp_path, [name])
    rng = random.Random(name)
    known = find_kernel(name).problems["cuda"]
    asked = [*known, *(_drawn(rng, known) for _ in range(QUESTIONS))]
    expected = [Expected(name, problem) for problem in asked]
    answers = launchers.ask(*(each.line() for each in expected))
    workspaces: dict[int, int] = {}
    assert len(answers) == len(asked) + 1
    for each, said in zip(expected, answers, strict=False):
        assert not [line for line in said if line.startswith("error")], said
        each.check(said, workspaces)
        text = (launchers.folder / f"{said[0].split()[1]}.cu").read_text()
        assert f"//   {Configuration(dict(each.chosen))}\n" in text


def test_the_same_bits_are_had_for_the_asking(launchers: Launchers) -> None:
    """Of one problem both configurations stay ready; it is launched as before afterwards."""
    problem = Problem(m=3, n=1000001)
    usual, repeating = (Expected("gemv", problem, demand) for demand in (False, True))
    assert (usual.chosen.deterministic, repeating.chosen.deterministic) == (False, True)
    answers = launchers.ask(*(each.line() for each in (usual, repeating, usual, repeating)))
    workspaces: dict[int, int] = {}
    for each, said in zip((usual, repeating, usual, repeating), answers, strict=False):
        each.check(said, workspaces)
    assert [loads(said) for said in answers[:-1]] == [1, 1, 0, 0]


def _drawn(rng: random.Random, known: Sequence[Problem]) -> Problem:
    """Sizes within those that were tuned."""
    return Problem(
        {
            name: int(2 ** rng.uniform(0, np.log2(max(1, *(problem[name] for problem in known)))))
            for name in known[0]
        }
    )


CHIPS = """
#include "fake_driver.cpp"
#include "reduce_launch.hpp"

void ask(const char* name, int multiprocessors, double gigabytes, int mhz, int major) {
  fake::device = name;
  fake::multiprocessors = multiprocessors;
  fake::memory = static_cast<std::size_t>(gigabytes * 1e9);
  fake::khz = 1000 * mhz;
  fake::major = major;
  const autotune::reduce::config found = autotune::reduce::launcher(".").choose({1 << 24});
  std::printf("%d %d\\n", static_cast<int>(found.hit), found.expected_fraction >= 0);
}

int main() {
  ask("NVIDIA H100 80GB HBM3", 132, 85.0, 1980, 9);
  ask("H100 of a manufacturer", 132, 85.0, 1980, 9);
  ask("NVIDIA H100 80GB HBM3", 100, 85.0, 1980, 9);
  ask("NVIDIA H100 80GB HBM3", 132, 60.0, 1980, 9);
  ask("NVIDIA H100 NVL", 132, 100.0, 1785, 9);
  ask("Some GPU", 148, 191.0, 1965, 10);
}
"""


def test_a_launcher_knows_the_chip_of_its_device(tmp_path: Path) -> None:
    """A label of a tuned chip, cut-down chips with its name, and chips that were not tuned."""
    from_reports = ["--from", str(ROOT / "reports"), "--out", str(tmp_path)]
    assert run(["export", "reduce", "cuda", *from_reports]) == 0
    (tmp_path / "main.cpp").write_text(CHIPS)
    command = ["g++", "-std=c++17", "-O0", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    command += ["-isystem", str(find_nvidia_header_directory("cudart"))]
    command += [f"-I{Path(__file__).parent / 'launcher'}", "main.cpp", "-o", "main", "-pthread"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=300)
    said = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True).stdout
    exact, same_arch, nearest_arch = "0 1", "2 0", "3 0"
    expected = [exact, exact, same_arch, same_arch, same_arch, nearest_arch]
    assert said.splitlines() == expected


SPLIT = Problem(m=64, n=64, k=65536)
WHOLE = Problem(m=1024, n=1024, k=1024)


def loads(said: list[str]) -> int:
    return sum(line.startswith("load") for line in said)


def test_state_is_of_a_stream_and_of_a_capture(launchers: Launchers) -> None:
    """A module and workspaces of its own where launches must not overlap; else one module for all."""
    split, whole = Expected("sgemm", SPLIT), Expected("sgemm", WHOLE)
    assert split.chosen.exclusive and split.scratch and not whole.chosen.exclusive
    places = [(1 << 20, 0), (1 << 21, 0), (1 << 20, 0), (1 << 20, 7), (1 << 20, 8), (1 << 20, 7)]
    answers = launchers.ask(*(split.line(*place) for place in places))
    assert [loads(said) for said in answers[:-1]] == [1, 1, 0, 1, 1, 0]
    workspaces: dict[int, int] = {}
    pointers = []
    for said in answers[:-1]:
        split.check(said, workspaces)
        pointers.append(said[-1].split()[-1])
    assert pointers[0] == pointers[2] and pointers[3] == pointers[5]
    assert len(set(pointers)) == 4
    assert sum(line.startswith("unload") for line in answers[-1]) == 4
    assert sum(line.startswith("free") for line in answers[-1]) == len(workspaces)
    answers = launchers.ask(*(whole.line(*place) for place in places))
    assert [loads(said) for said in answers[:-1]] == [1, 0, 0, 0, 0, 0]


def test_a_workspace_that_grew_is_kept_for_what_was_captured(launchers: Launchers) -> None:
    sizes = [Expected("sgemm", Problem(m=m, n=64, k=65536)) for m in (64, 128, 64)]
    assert all(each.scratch for each in sizes)
    answers = launchers.ask(*(each.line() for each in sizes))
    assert not [line for said in answers[:-1] for line in said if line.startswith("free")]
    kept: dict[int, int] = {}
    for each, said in zip(sizes, answers, strict=False):
        each.check(said, kept)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("sgemm 1 0 4 0 64 64 64 0", "a must begin at a multiple of 16 bytes"),
        ("sgemm 1 0 0 0 0 64 64 0", "sgemm m=0 n=64 k=64: nothing to launch"),
        ("reduce 1 0 0 0 -5 0", "reduce n=-5: nothing to launch"),
        ("sgemm 1 0 0 0 5000000000 1 1 0", "m=5000000000"),
    ],
)
def test_what_cannot_be_launched_is_refused(line: str, message: str, launchers: Launchers) -> None:
    said, _ = launchers.ask(line)
    errors = [each for each in said if each.startswith("error")]
    assert errors and (message in errors[0] or "larger than the kernel's type" in errors[0])
    assert not [each for each in said if each.startswith(("launch", "fill"))]


@pytest.fixture
def first_file(launchers: Launchers) -> Iterator[Path]:
    """The code of `WHOLE`; as it was afterwards."""
    (said, _) = launchers.ask(Expected("sgemm", WHOLE).line())
    file = launchers.folder / f"{said[0].split()[1]}.cubin"
    source = file.with_suffix(".cu").read_bytes()
    yield file
    file.write_text(file.stem + "\0")
    file.with_suffix(".cu").write_bytes(source)


def test_what_nobody_compiled_is_compiled_by_nvrtc(launchers: Launchers, first_file: Path) -> None:
    first_file.unlink()
    (said, _) = launchers.ask(Expected("sgemm", WHOLE).line())
    assert "load 1 ELF" in said


def test_files_that_are_missing_or_damaged_are_named(
    launchers: Launchers, first_file: Path
) -> None:
    asked = Expected("sgemm", WHOLE).line()
    first_file.write_text("broken\0")
    said, again, _ = launchers.ask(asked, asked)
    assert f"error sgemm: {first_file.stem} cannot be loaded: CUDA_ERROR_FAKE" in said
    assert said == again
    first_file.unlink()
    source = first_file.with_suffix(".cu")
    source.write_text("nonsense\n")
    said, _ = launchers.ask(asked)
    assert any(f"error {source.name}: NVRTC_ERROR_COMPILATION" in line for line in said), said
    source.unlink()
    said, _ = launchers.ask(asked)
    assert any("neither .cubin nor .cu can be read" in line for line in said)


def test_equal_records_give_equal_bytes() -> None:
    records = [read(file) for file in sorted((ROOT / "reports").glob("NVIDIA_*/gemv.json"))]
    files = export_records("cuda", records)
    assert files == export_records("cuda", records[::-1])
    assert not [
        name
        for name, text in files.items()
        if str(ROOT) in text or ('#include "' in text and not name.endswith("_launch.hpp"))
    ]
    assert files["gemv.hpp"] == export_records("header", records)["gemv.hpp"]


# ---------------------------------------------------------------------- what is refused


def scale_record(**changes: Any) -> Any:
    """A record of the sample kernel on a GPU."""
    chosen = plan(configuration={"BLOCK": 32}, block=(32, 1, 1), grid=(1, 1, 1), shared_bytes=0)
    return record(
        [entry({"n": 1000}, chosen)],
        kernel="scale",
        fields={"n": "integer"},
        parameters={"BLOCK": (32, 64)},
        default=chosen,
        **changes,
    )


def test_the_same_bits_are_refused_where_nothing_gives_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a kernel that declares nothing deterministic; without the demand it is chosen."""
    write_space(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name, text in export_records("cuda", [scale_record()]).items():
        (tmp_path / name).write_text(text)
    (tmp_path / "main.cpp").write_text(
        """
#include "fake_driver.cpp"
#include "scale_launch.hpp"
int main() {
  autotune::scale::launcher tuned(".");
  tuned.choose({1000});
  try {
    tuned.choose({1000}, autotune::scale::demand::deterministic);
  } catch (const std::invalid_argument& error) {
    std::puts(error.what());
  }
}
"""
    )
    include = find_nvidia_header_directory("cudart")
    command = ["g++", "-std=c++17", "-isystem", str(include)]
    command += [f"-I{Path(__file__).parent / 'launcher'}", "main.cpp", "-o", "main", "-pthread"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=300)
    said = subprocess.run(["./main"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "scale n=1000: no configuration gives the same bits in every run" in said.stdout


def test_a_launcher_names_types_that_numpy_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And fills an output with the bits of a number."""
    write_space(
        tmp_path,
        ("import Kernel", "import Fill, Kernel"),
        ("dtype=np.float32", 'dtype="bfloat16"'),
        ("Out(p.n)", 'Out(p.n, "float8_e4m3fn")'),
        ("return Launch(", 'return Fill("out", 2), Launch('),
    )
    monkeypatch.chdir(tmp_path)
    text = export_records("cuda", [scale_record()])["scale_launch.hpp"]
    assert "CUdeviceptr x;  ///< bfloat16 (__nv_bfloat16 of cuda_bf16.h), read" in text
    assert "CUdeviceptr out;  ///< float8_e4m3fn (__nv_fp8_e4m3 of cuda_fp8.h), written" in text
    assert "64u, 1)" in text, "2 is 0x40"


BRANCH = ("return Launch(", "return Launch((1,), (32,)) if p.n < 9 else Launch(")


@pytest.mark.parametrize(
    ("edits", "source", "message"),
    [
        ((BRANCH,), (), "scale: the launch of BLOCK=32 cannot be written as a formula"),
        ((("    BLOCK=", "    static=('n',),\n    BLOCK="),), (), "n is compiled in"),
        (
            (
                ('"factor": np', '"extra": Constant(x), "factor": np'),
                ("import Kernel", "import Constant, Kernel"),
            ),
            (),
            "extra is a module constant",
        ),
        (
            (),
            (
                ("KERNEL(BLOCK, 1, 0)", "__global__ void"),
                ('#include "dialect.h"', "#define GLOBAL"),
            ),
            "no C linkage",
        ),
        ((("BLOCK=(32, 64)", "BLOCK=(32, 64), NEW=(1, 2)"),), (), "autotune run scale"),
    ],
    ids=["branch", "static", "constant", "linkage", "parameters"],
)
def test_what_cannot_be_exported_is_refused_with_what_to_do(
    edits: Any, source: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_space(tmp_path, *edits)
    (tmp_path / "kernels" / "scale.cu").write_text(changed(SOURCE, *source))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AutotuneError, match=message) as caught:
        export_records("cuda", [scale_record()])
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------------- what it is made of


def test_both_headers_name_what_they_are_made_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["export", "ffma", "cuda", "--from", str(ROOT / "reports"), "--out", str(tmp_path)]
    assert run(asked) == 0
    assert run([*asked, "--check"]) == 0
    for name in ("ffma.hpp", "ffma_launch.hpp"):
        file = tmp_path / name
        text = file.read_text()
        file.write_text(text.replace("Made of kernel ", "Made of kernel 0"))
        assert run([*asked, "--check"]) == 5
        assert f"{name}: not the header of the current kernel" in capsys.readouterr().err
        file.write_text(text)


def test_both_headers_name_the_changes_of_a_stale_kernel() -> None:
    found = export_records("cuda", [read(next(ROOT.glob("reports/*/ffma.json")))], ("source",))
    for name in ("ffma.hpp", "ffma_launch.hpp"):
        assert "// Stale: source. Tune again: autotune run ffma\n" in str(found[name])
