"""The wheel, installed alone: lookup answers from what ships, with nothing heavy imported."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from importlib.metadata import packages_distributions
from pathlib import Path

import msgspec
import pytest

from autotune.errors import AutotuneError, MissingDependencyError, extra_of, install, needing

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
    code += "print(json.dumps([sorted(str(p.relative_to(f(k))) for p in f(k).rglob('*.*')) "
    code += "for k in ('kernels', 'spaces', 'reports', 'cpp')]))"
    kernels, spaces, reports, cpp = json.loads(_run(built, code, tmp_path))
    assert {"sgemm.cu", "sgemm_cuda.cu", "reduce.cu", "dialect.h", "study/chase.cu"} <= set(kernels)
    assert {"sgemm.py", "reduce.py", "study/chase.py"} <= set(spaces)
    assert {"sgemm.json", "reduce.json"} <= {Path(name).name for name in reports}
    assert not [name for name in reports if name.endswith(".hpp")]
    names = {Path(name).name for name in cpp}
    assert {"sgemm.hpp", "autotune-config.cmake", "autotune.pc"} <= names


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


# ---------------------------------------------------------------------- The command that installs


def test_extras_are_those_of_the_project() -> None:
    """Every package that a user's extra installs here is known by the name it is imported by."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    imports: dict[str, set[str]] = {}
    for module, distributions in packages_distributions().items():
        for distribution in distributions:
            imports.setdefault(distribution.lower().replace("_", "-"), set()).add(module)
    checked = 0
    for extra in ("tune", "cpu", "nvrtc", "postgres", "fleet"):
        for requirement in declared[extra]:
            name = re.split(r"[^\w.-]", requirement)[0]
            modules = {m for m in imports.get(name, set()) if m.isidentifier()}
            if modules and name not in ("cuda-toolkit", "intel-opencl-rt", "intel-cmplr-lib-rt"):
                checked += 1
                assert extra in {extra_of(f"{module}.inside") for module in modules}, requirement
    assert checked > 8
    assert {extra_of(name) for name in ("cupy", "torch", "cuda.bindings")} <= set(declared)
    assert extra_of("json") is extra_of("") is extra_of(None) is None


def test_an_import_that_fails_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for loaded in [name for name in sys.modules if name.partition(".")[0] == "scipy"]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(MissingDependencyError) as caught, needing("fitting"):
        import scipy.optimize  # noqa: F401
    assert str(caught.value) == (
        f"fitting needs the package 'scipy', which is not installed; run: {install('tune')}"
    )
    assert isinstance(caught.value, ImportError) and isinstance(caught.value, AutotuneError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.lack) == (str(caught.value), caught.value.lack)


def test_commands_without_numpy(tmp_path: Path) -> None:
    code = """
import json, sys
sys.modules.update(dict.fromkeys(("numpy", "sqlalchemy"), None))
from autotune.cli import run
codes = [run(words.split()) for words in json.loads(sys.argv[1])]
print(json.dumps(codes))
"""
    commands = [
        "doctor cache --json",
        "retune --schedule cron --every 1w --arch sm_90",
        "results",
        "show sgemm",
    ]
    commands += [f"export sgemm header --out {tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(commands)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [0, 0, 1, 1, 0], done.stderr
    assert (tmp_path / "sgemm.hpp").exists()
    assert done.stderr.splitlines() == [
        f"error: {name} needs the package {package!r}, which is not installed; "
        f"run: {install('tune')}"
        for name, package in (("the results store", "sqlalchemy"), ("autotune show", "numpy"))
    ]
