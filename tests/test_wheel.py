"""The wheel, installed alone: lookup answers from what ships, with nothing heavy imported."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bare interpreter that has the wheel, and of its dependencies what reads records."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = folder.glob("kernel_autotune-*.whl")
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    site = subprocess.run(
        [python, "-c", "import site; print(site.getsitepackages()[0])"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True)
    shutil.copytree(Path(msgspec.__file__).parent, Path(site) / "msgspec")
    return python


def _run(python: Path, code: str, folder: Path) -> str:
    alone = [python, "-I", "-c", code]  # whatever PYTHONPATH says
    done = subprocess.run(alone, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_lookup_answers_from_what_ships(built: Path, tmp_path: Path) -> None:
    code = "from autotune import lookup; import json; "
    code += "c = lookup('sgemm', arch='sm_90', m=4096, n=4096, k=4096); "
    code += "print(json.dumps([c.quality, dict(c), c.block, c.source]))"
    quality, configuration, block, source = json.loads(_run(built, code, tmp_path))
    assert quality == "exact"
    assert configuration["BM"] >= 32
    assert len(block) == 3
    assert str(tmp_path) not in source


def test_kernels_spaces_and_headers_are_inside(built: Path, tmp_path: Path) -> None:
    code = "from autotune.kernel.catalog import bundled_folder as f; import json; "
    code += "print(json.dumps([sorted(p.name for p in f(k).rglob('*.*')) "
    code += "for k in ('kernels', 'spaces', 'reports', 'cpp')]))"
    kernels, spaces, reports, cpp = json.loads(_run(built, code, tmp_path))
    assert {"sgemm.cu", "sgemm_cuda.cu", "reduce.cu", "dialect.h"} <= set(kernels)
    assert {"sgemm.py", "reduce.py"} <= set(spaces)
    assert {"sgemm.json", "reduce.json"} <= set(reports)
    assert not [name for name in reports if name.endswith(".hpp")]
    assert {"sgemm.hpp", "autotune-config.cmake", "autotune.pc"} <= set(cpp)


def test_public_names_without_numpy(built: Path, tmp_path: Path) -> None:
    code = """
import autotune.linalg
from autotune import lookup
linalg = autotune.linalg
for call in (lambda: autotune.load, lambda: autotune.tune, lambda: linalg.total([1.0])):
    try:
        call()
    except ImportError as error:
        print(error)
"""
    for line in (lines := _run(built, code, tmp_path).splitlines()):
        assert line.startswith("autotune.") and "needs the package 'numpy'" in line
        assert line.endswith("'kernel-autotune[tune]'")
    assert len(lines) == 3
