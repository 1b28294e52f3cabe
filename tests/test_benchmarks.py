"""Every benchmark explains itself, and the list of them is complete."""

from __future__ import annotations

import ast
import json
import runpy
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TypeGuard

import pytest
from harness import ROOT  # type: ignore[import-not-found]

FOLDER = ROOT / "benchmarks"
SCRIPTS = [file.name for file in sorted(FOLDER.glob("*.py")) if "finish(main)" in file.read_text()]


def test_every_script_is_on_the_list() -> None:
    listed = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert len(SCRIPTS) > 5
    assert [name for name in SCRIPTS if f"`python benchmarks/{name}`" not in listed] == []


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.py")), ids=lambda file: file.stem)
def test_what_a_script_imports_of_ours_is_there(file: Path) -> None:
    """Inside functions too, which nothing but a device may ever run."""
    imports = [node for node in ast.walk(ast.parse(file.read_text())) if _is_of_ours(node)]
    missing = [
        f"{node.module}.{alias.name}"
        for node in imports
        for alias in node.names
        if not hasattr(import_module(node.module), alias.name)
        and find_spec(f"{node.module}.{alias.name}") is None
    ]
    assert missing == []


def _is_of_ours(node: ast.AST) -> TypeGuard[ast.ImportFrom]:
    """An import of the package or of another benchmark; torch is no part of the tests."""
    if not isinstance(node, ast.ImportFrom) or node.module == "autotune.torch_ops":
        return False
    first = (node.module or "").partition(".")[0]
    return first == "autotune" or (FOLDER / f"{first}.py").is_file()


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_says_what_is_measured_and_where_it_goes(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(FOLDER / name), run_name="__main__")
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert f"python benchmarks/{name}" in shown
    assert "--out" in shown


def test_expectations_are_compared_with_what_left_out_problems_get(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Of both cards: each problem alone, and with its neighbours."""
    given = ["--left-out", "--kernel", "transpose", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["lookup.py", *given])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(FOLDER / "lookup.py"), run_name="__main__")
    assert ended.value.code == 0
    rows = json.loads((tmp_path / "lookup.json").read_text())["rows"]
    assert len({row["device"] for row in rows}) == 2
    assert {row["left_out_within"] for row in rows} == {0, 32}
    assert all(row["nearest"] > row["left_out_within"] for row in rows if row["left_out_within"])
    told = [row for row in rows if row["held"] is not None]
    assert told
    assert all(row["held"] == (row["got"] >= row["expected"]) for row in told)
    assert (
        f"{sum(row['held'] for row in told)} of {len(told)} expectations held"
        in capsys.readouterr().out
    )
