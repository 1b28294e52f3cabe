"""Thirteen kinds of change of a tuned kernel: no answer is of a plan of the old kernel, unless it says so."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from changing_kernel import CHANGES, changed, check_answers, edit, write_project

from autotune.cli import run
from autotune.devices.choose import choose_device
from autotune.kernel.catalog import load_file
from autotune.kernel.space import is_member
from autotune.tuned.lookup import clear_cache, lookup
from autotune.values import Configuration, Problem

__all__ = ["changed"]

PROGRAM = """
#include <cstdio>
#include "{header}"
int main() {{
  const long long sizes[] = {{{sizes}}};
  for (long long n : sizes) {{
    const auto c = autotune::k::lookup(autotune::k::device::{device}, n).value();
    std::printf("%d %u\\n", c.BLOCK, c.grid(n).x);
  }}
}}
"""


@pytest.mark.parametrize("again", [False, True], ids=["not tuned", "one size tuned"])
@pytest.mark.parametrize("what", CHANGES)
def test_an_answer_is_of_the_current_kernel_or_says_stale(
    changed: Any, what: str, again: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    check_answers(changed(CHANGES[what], again), what, again, capsys)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, opencl_device: str) -> Path:
    """A folder with a project whose five sizes were tuned on the CPU."""
    folder = tmp_path_factory.mktemp("tuned")
    write_project(folder / "project")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(folder / "data"))
        patch.chdir(folder / "project")
        assert run(["run", "k", "--device", opencl_device, "--budget", "20evals"]) == 0
    return folder


@pytest.mark.opencl
@pytest.mark.parametrize("what", CHANGES)
def test_after_a_run_of_one_size_every_answer_is_of_the_changed_kernel(
    base: Path, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opencl_device: str
) -> None:
    """The header that the run wrote is compiled, and gives the grids of the current launch function."""
    shutil.copytree(base, tmp_path / "copy")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "copy" / "data"))
    monkeypatch.chdir(tmp_path / "copy" / "project")
    clear_cache()
    device = choose_device(opencl_device)
    assert lookup("k", n=1000, device=device).stale_reasons == ()
    edit(Path.cwd(), *CHANGES[what])
    options = ("--device", opencl_device, "--budget", "3evals")
    assert run(["run", "k", "--problem", "n=16000", *options]) == 0
    kernel, expected = load_file(Path("spaces/k.py")), []
    sizes = (1000, 4000, 16000, 50_000, 256_000)
    for n in sizes:
        found = lookup("k", n=n, device=device)
        assert is_member(kernel, found, device) and found.stale_reasons == ()
        launch = kernel.call_hook("launch", Configuration(dict(found)), Problem(n=n))
        assert found.grid == (*launch.grid, 1, 1)
        expected.append(f"{found['BLOCK']} {launch.grid[0]}")
    (header,) = Path("reports").glob("*/k.hpp")
    (name,) = re.findall(r"enum class device \{\n  (\w+)", header.read_text())
    numbers = ", ".join(f"{n}LL" for n in sizes)
    Path("main.cpp").write_text(PROGRAM.format(header=header, sizes=numbers, device=name))
    subprocess.run(["g++", "-std=c++17", "main.cpp", "-o", "main"], check=True, timeout=120)
    printed = subprocess.run(["./main"], check=True, timeout=60, capture_output=True, text=True)
    assert printed.stdout.splitlines() == expected
