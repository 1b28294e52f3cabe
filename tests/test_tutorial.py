"""The tutorial, followed literally: its files written and its commands run, in an empty folder."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
PARTS = dict(
    zip("AB", re.split(r"^## (?:Part|Next).*$", TUTORIAL, flags=re.MULTILINE)[1:3], strict=True)
)
#: First line of a block that is a file.
NAMED = re.compile(r"(?://|#) (\S+\.\w+)\n")
WITH_GPU = "# with a GPU\n"


def blocks(part: str) -> list[tuple[str, str]]:
    """Language and text of every fenced block."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", PARTS[part], re.DOTALL | re.MULTILINE)


def follow(part: str, folder: Path) -> dict[str, str]:
    """Do what a part says, in order.

    Returns
    -------
    dict
        Standard output by command.
    """
    environment = {**os.environ, "PATH": f"{_commands(folder)}:{os.environ['PATH']}"}
    here = folder / "empty"
    here.mkdir()
    printed = {}
    for language, text in blocks(part):
        if language == "sh" and not text.startswith(WITH_GPU):
            for line in text.strip().splitlines():
                done = subprocess.run(
                    ["bash", "-c", line], cwd=here, env=environment, capture_output=True, text=True
                )
                assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
                printed[line] = done.stdout
        elif language not in ("sh", "text"):
            named = NAMED.match(text)
            assert named, f"a file without its name: {text[:80]}"
            (here / named[1]).parent.mkdir(exist_ok=True)
            (here / named[1]).write_text(text)
    return printed


def _commands(folder: Path) -> Path:
    """A folder with `autotune` and `python` of the environment that runs this test."""
    commands = folder / "bin"
    commands.mkdir()
    python, root = shlex.quote(sys.executable), shlex.quote(str(ROOT))
    for name, begin in (("autotune", f"{python} -m autotune"), ("python", python)):
        command = commands / name
        command.write_text(f'#!/bin/sh\nPYTHONPATH={root} exec {begin} "$@"\n')
        command.chmod(0o755)
    return commands


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
def test_part_a_from_nothing(tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    printed = follow("A", tmp_path)
    assert "26 valid of 32" in printed["autotune check smooth --arch sm_90"]
    assert "cover" in printed["autotune show smooth"]
    winner = printed["autotune lookup smooth n=1000003"].splitlines()[0]
    table = printed["autotune run smooth --budget 20evals"]
    (line,) = (line for line in table.splitlines() if line.startswith("n=1000003"))
    told = set(re.findall(r"[A-Z]+=\d+", line))  # without ADJACENT where there is one item
    assert "BLOCK" in line and told <= set(winner.split(", "))
    assert "quality: nearest_problem" in printed["autotune lookup smooth n=500000"]
    assert printed["./main"].startswith(f"{winner}: ")


def test_part_b_from_an_existing_file(tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    printed = follow("B", tmp_path)
    log, ptx = (
        printed[f"autotune show rowsum --device sm_90 --config WARPS=8,UNROLL=4 --{view}"]
        for view in ("log", "ptx")
    )
    assert "app::rowsum<8, 4>" in log
    assert ".entry _ZN3app6rowsumILi8ELi4EE" in ptx


def test_part_b_shows_the_example() -> None:
    files = {NAMED.match(text)[1]: text for _, text in blocks("B") if NAMED.match(text)}  # type: ignore[index]
    folder = ROOT / "examples" / "rowsum"
    there = [str(file.relative_to(folder)) for file in folder.glob("*/*.*") if file.is_file()]
    assert sorted(files) == sorted(there)
    for name, text in files.items():
        assert text.partition("\n")[2].strip() == (folder / name).read_text().strip()


def test_what_needs_a_gpu_is_said_so() -> None:
    assert [text for _, text in blocks("A") if text.startswith(WITH_GPU)] == []
    assert len([text for _, text in blocks("B") if text.startswith(WITH_GPU)]) == 1
