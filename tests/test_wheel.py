"""The wheel, installed alone: lookup answers from what ships, with nothing heavy imported."""

from __future__ import annotations

import inspect
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import msgspec
import pytest

from autotune.errors import AutotuneError, MissingDependencyError, extra_of, install, needing
from autotune.kernel.catalog import load_file
from autotune.kernel.source import own_fingerprint, source_fingerprint

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


def test_what_ships_is_inside(built: Path) -> None:
    """All files of the checkout's folders, whatever their suffix, and no others."""
    (wheel,) = built.parents[2].glob("*.whl")
    folders = ("kernels", "spaces", "cpp/cmake", "cpp/pkgconfig", "cpp/include/autotune", "reports")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    wanted = {name for name in listed.splitlines() if not name.endswith(".md")}
    inside = "autotune/_bundled/"
    names = zipfile.ZipFile(wheel).namelist()
    found = {name.removeprefix(inside) for name in names if name.startswith(inside)}
    assert found == wanted
    assert {"kernels/rows.py", "spaces/study/chase.py", "cpp/pkgconfig/autotune.pc"} <= found


def _installed(built: Path, code: str, folder: Path, *words: str) -> str:
    """Run code in an empty folder with the wheel and all packages; return its standard output."""
    (site,) = built.parents[2].glob("venv/lib/*/site-packages")
    alone = {**os.environ, "PYTHONPATH": str(site)}
    code = f"import autotune; assert autotune.__file__.startswith({str(site)!r})\n{code}"
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, env=alone, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _kernels(spaces: Path) -> dict[str, list[str]]:
    """Return the fingerprints of all kernels in a folder, by name."""
    kernels = [load_file(file) for file in sorted(spaces.rglob("[!_]*.py"))]
    return {
        kernel.name: [source_fingerprint(kernel), own_fingerprint(kernel)] for kernel in kernels
    }


def test_python_begins_with_its_startup_file(built: Path, tmp_path: Path) -> None:
    """``AUTOTUNE_TRITON`` is read by the file that the wheel puts next to the package."""
    code = "import sys; print([type(finder).__name__ for finder in sys.meta_path][0])"
    for value, first in (("1", "_AfterImport"), ("", "type"), ("0", "type")):
        environ = {**os.environ, "AUTOTUNE_TRITON": value}
        command = [built, "-I", "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environ)
        assert (done.returncode, done.stderr) == (0, "") and done.stdout.strip() == first


def test_its_kernels_are_those_of_the_checkout(built: Path, tmp_path: Path) -> None:
    """Sources with includes and modules, space files with theirs: no shipped record is stale."""
    code = "import json\nfrom pathlib import Path\n"
    code += "from autotune.kernel.catalog import bundled_folder, load_file\n"
    code += "from autotune.kernel.source import own_fingerprint, source_fingerprint\n"
    code += inspect.getsource(_kernels)
    code += "print(json.dumps(_kernels(Path(bundled_folder('spaces')))))"
    found = json.loads(_installed(built, code, tmp_path))
    assert found == _kernels(ROOT / "spaces")
    assert {"softmax", "sgemm", "chase"} <= found.keys()


#: Commands with each kernel: the problem is the first that a record has.
COMMANDS = """
import json, os, sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from autotune import load
from autotune.cli import run
from autotune.kernel.catalog import bundled_folder, find_kernel
name, reports = sys.argv[1], Path(bundled_folder("reports"))
record = json.loads(next(reports.glob(f"NVIDIA_H*/{name}.json")).read_text())
problem = ",".join(f"{field}={value}" for field, value in record["problems"][0]["problem"].items())
out = StringIO()
with redirect_stdout(out):
    assert run(["lookup", name, problem, "--device", record["device"]["name"], "--json"]) == 0
answer = json.loads(out.getvalue())
assert not answer["stale_reasons"], answer
assert run(["export", name, "header", "--out", "out"]) == 0 and Path(f"out/{name}.hpp").exists()
if "call" in find_kernel(name).hooks:
    assert load(name).kernel.name == name
assert run(["check", name, "--samples", "1", "--arch", "sm_90"]) == 0
"""


@pytest.mark.full
@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
@pytest.mark.parametrize("name", sorted(file.stem for file in (ROOT / "spaces").rglob("[!_]*.py")))
def test_every_kernel_works_from_an_empty_folder(built: Path, tmp_path: Path, name: str) -> None:
    _installed(built, COMMANDS, tmp_path, name)


@pytest.mark.full
@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
def test_a_kernel_is_called_from_an_empty_folder(built: Path, tmp_path: Path) -> None:
    code = "import numpy as np\nfrom autotune import load\n"
    code += "x = np.arange(6, dtype=np.float32).reshape(2, 3)\n"
    code += "print((load('transpose')(x) == x.T).all())"
    assert _installed(built, code, tmp_path).split() == ["True"]


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
