"""The command that installs an extra, and the errors that name it."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from autotune.errors import AutotuneError, MissingDependencyError, extra_of, install, needing

ROOT = Path(__file__).parents[1]


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


def test_commands_without_numpy() -> None:
    code = """
import json, sys
sys.modules.update(dict.fromkeys(("numpy", "sqlalchemy"), None))
from autotune.cli import run
codes = [run(words.split()) for words in json.loads(sys.argv[1])]
print(json.dumps(codes))
"""
    commands = ["doctor cache --json", "schedule cron --arch sm_90", "results", "show sgemm"]
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
