"""A project of two small kernels that were just tuned on the OpenCL device, for tests of upkeep."""

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sample_records import change

from autotune.cli import run
from autotune.files import data_path

SAXPY = Path(__file__).parents[1] / "examples" / "saxpy"
NAMES = ("saxpy", "twin")
#: Searches of a few configurations.
SHORT = ("--strategy", "random", "--budget", "5evals", "--device", "opencl:cpu")


def tuned_once(factory: pytest.TempPathFactory) -> Path:
    """A folder with ``my project`` and the ``home`` where it was tuned; made once per process."""
    base = factory.getbasetemp() / "tuned once"
    if not base.exists():
        _make_project(base / "my project")
        (base / "home").mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HOME", str(base / "home"))
            patch.chdir(base / "my project")
            assert run(["retune", *NAMES, "--stale", *SHORT]) == 0
    return base


def enter_copy(base: Path, folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """Make a copy of such a folder the current folder and home; returns the project."""
    shutil.copytree(base, folder / "copy")
    patch.setenv("HOME", str(folder / "copy" / "home"))
    patch.chdir(folder / "copy" / "my project")
    return Path.cwd()


def record_file(name: str) -> Path:
    """The user's record of a kernel."""
    (file,) = Path(data_path("tuned")).glob(f"*/*/{name}.json")
    return file


def launch_of(configuration: dict[str, int]) -> dict[str, Any]:
    """The plan of a configuration of these kernels, as their launch function computes it."""
    block, items = configuration["BLOCK"], configuration["ITEMS"]
    blocks = ["-", 0, ["//", ["-", 0, "n"], block * items]]
    return {"configuration": configuration, "block": [block, 1, 1], "grid": [blocks, 1, 1]}


def edit_record(name: str, **changes: Any) -> None:
    """Change the one tuned problem of a record by hand: its origin, or parts of its race by name."""
    file = record_file(name)
    document = json.loads(file.read_text())
    if "configuration" in changes:
        changes = {**changes, **launch_of(changes["configuration"]), "steps": []}
    change(document["problems"][0], **changes)
    file.write_text(json.dumps(document))


@contextmanager
def no_process(folder: Path) -> Iterator[None]:
    """Fail where a compiler or device process was started: it would run what leaves a trace."""
    trace, python = folder / "started", folder / "python"
    python.write_text(f"#!/bin/sh\ntouch '{trace}'; kill -INT $PPID\n")
    python.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(python))
        yield
    assert not trace.exists(), "a process was started"


def _make_project(folder: Path) -> None:
    """Write two kernels of one small problem each; `twin` is wrong where BLOCK is 1024."""
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text('[project]\nname = "mine"\n')
    for kind in ("spaces", "kernels"):
        (folder / kind).mkdir()
    space = (SAXPY / "spaces" / "saxpy.py").read_text()
    space = space.replace("Problem(n=1 << 20), Problem(n=1000003)", "Problem(n=5003)")
    source = (SAXPY / "kernels" / "saxpy.cu").read_text()
    wrong = source.replace("if (i < n) out", "if (i < n && BLOCK != 1024) out")
    assert "5003" in space and wrong != source
    (folder / "spaces" / "saxpy.py").write_text(space)
    (folder / "kernels" / "saxpy.cu").write_text(source)
    (folder / "spaces" / "twin.py").write_text(space.replace("saxpy", "twin"))
    (folder / "kernels" / "twin.cu").write_text(wrong.replace("saxpy", "twin"))
