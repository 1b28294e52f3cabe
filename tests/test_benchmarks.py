"""Every benchmark explains itself, and the list of them is complete."""

from __future__ import annotations

import runpy
import sys

import pytest
from harness import ROOT  # type: ignore[import-not-found]

FOLDER = ROOT / "benchmarks"
SCRIPTS = [file.name for file in sorted(FOLDER.glob("*.py")) if "finish(main)" in file.read_text()]


def test_every_script_is_on_the_list() -> None:
    listed = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert len(SCRIPTS) > 5
    assert [name for name in SCRIPTS if f"`python benchmarks/{name}`" not in listed] == []


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
    assert "--out" in shown or name == "lookup.py"
