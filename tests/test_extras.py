"""Which command adds an extra, from wherever a copy of autotune came; and what says so in its place."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PathDistribution, packages_distributions
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import AutotuneError, MissingDependencyError, needing
from autotune.extras import Origin, extra_of, install, origin, origin_of, pip

ROOT = Path(__file__).parents[1]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def installed(folder: Path, direct_url: dict[str, Any] | None) -> PathDistribution:
    """A distribution as pip leaves it, with PEP 610's file or, from an index, without."""
    information = folder / "kernel_autotune-1.2.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: kernel-autotune\nVersion: 1.2\n"
    )
    if direct_url is not None:
        (information / "direct_url.json").write_text(json.dumps(direct_url))
    return PathDistribution(information)


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


@pytest.mark.parametrize(
    ("direct_url", "asked"),
    [
        (None, "kernel-autotune[tune,cpu]==1.2"),
        (
            {"url": "https://host/k.whl", "archive_info": {}},
            "kernel-autotune[tune,cpu] @ https://host/k.whl",
        ),
        (
            {
                "url": "https://host/k.git",
                "subdirectory": "python",
                "vcs_info": {"vcs": "git", "commit_id": COMMIT, "requested_revision": "main"},
            },
            f"kernel-autotune[tune,cpu] @ git+https://host/k.git@{COMMIT}#subdirectory=python",
        ),
        ({"url": "file:///nowhere/k.whl", "archive_info": {}}, "kernel-autotune[tune,cpu]==1.2"),
    ],
    ids=["index", "address", "repository", "gone"],
)
def test_what_pip_is_asked_for(
    direct_url: dict[str, Any] | None, asked: str, tmp_path: Path
) -> None:
    assert origin_of(installed(tmp_path, direct_url)).requirement("tune", "cpu") == asked


@pytest.mark.parametrize("is_editable", [True, False])
def test_what_lies_on_the_disk_is_asked_for_by_its_path(is_editable: bool, tmp_path: Path) -> None:
    """As pip wrote it, with what a URL escapes; only this machine has it."""
    place = tmp_path / "my kernels"
    place.mkdir()
    direct_url = {"url": place.as_uri(), "dir_info": {"editable": is_editable}}
    found = origin_of(installed(tmp_path, direct_url))
    assert found == Origin(str(place), is_editable=is_editable, is_local=True)
    assert found.requirement("tune") == f"{place}[tune]"


@pytest.mark.parametrize(
    ("folder", "asked"), [(".", ".[tune,cpu]"), ("..", f"./{ROOT.name}[tune,cpu]"), ("tests", None)]
)
def test_a_checkout_is_installed_as_the_person_sees_it(
    folder: str, asked: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below the current folder by what is between, elsewhere by the whole path."""
    monkeypatch.chdir(ROOT / folder)
    assert origin() == Origin(str(ROOT), is_editable=True, is_local=True)
    asked = asked or f"{ROOT}[tune,cpu]"
    assert install("tune", "cpu").endswith(f" install -e '{asked}'")
    assert install().endswith(f" install -e {asked.partition('[')[0]}")


def test_the_pip_is_the_one_of_this_interpreter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One that is first on the PATH may belong to another; where there is none, uv does it."""
    ours, theirs = tmp_path / "my env" / "bin", tmp_path / "bin"
    for folder in (ours, theirs):
        folder.mkdir(parents=True)
        (folder / "pip").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(ours / "python"))
    monkeypatch.setenv("PATH", str(ours))
    assert pip("install", "x[y]") == "pip install 'x[y]'"
    monkeypatch.setenv("PATH", str(theirs))
    assert pip("install", "x") == f"'{ours}/python' -m pip install x"
    monkeypatch.chdir(tmp_path)
    assert pip("install", "x") == "'my env/bin/python' -m pip install x"
    monkeypatch.setitem(sys.modules, "pip", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert pip("install", "x") == "uv pip install --python 'my env/bin/python' x"


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


def test_an_import_of_something_else_fails_as_it_is() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module") as caught, needing("this"):
        import no_such_module  # type: ignore[import-not-found]  # noqa: F401
    assert not isinstance(caught.value, AutotuneError)


def test_commands_without_numpy() -> None:
    """What needs none works; the rest ends in one line that says what to install."""
    code = """
import json, sys
sys.modules.update(dict.fromkeys(("numpy", "sqlalchemy"), None))
from autotune.cli import run
codes = [run(words.split()) for words in json.loads(sys.argv[1])]
print(json.dumps(codes))
"""
    commands = ["cache --json", "schedule cron --arch sm_90", "results", "show sgemm"]
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(commands)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [0, 0, 1, 1], done.stderr
    assert done.stderr.splitlines() == [
        f"error: {name} needs the package {package!r}, which is not installed; "
        f"run: {install('tune')}"
        for name, package in (("the results store", "sqlalchemy"), ("autotune show", "numpy"))
    ]
