"""Completion in shells: commands, options, values and kernels, at once and without heavy imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete, FishComplete, ZshComplete

from autotune.cli import autotune, run

ROOT = Path(__file__).parents[1]
#: What takes long to import, or runs code of others.
HEAVY = ("numpy", "pandas", "scipy", "sqlalchemy", "rich", "cupy", "pyopencl", "optuna")


def completed(*words: str) -> list[str]:
    """What the last word may become."""
    *arguments, incomplete = words
    made = BashComplete(autotune, {}, "autotune", "_AUTOTUNE_COMPLETE")
    return [item.value for item in made.get_completions(arguments, incomplete)]


def test_commands_options_values_and_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spaces").mkdir()
    (tmp_path / "spaces" / "sgemm_mine.py").write_text("raise SystemExit('never run')")
    monkeypatch.chdir(tmp_path)
    assert completed("ru") == ["run", "runs"]
    assert completed("run", "--bud") == ["--budget"]
    assert completed("run", "sgemm", "--effort", "") == ["quick", "full"]
    for command in ("run", "runs", "check", "show", "lookup", "results", "report", "export"):
        assert completed(command, "sgemm") == ["sgemm", "sgemm_mine", "sgemm_tf32x3"]
    assert completed("retune", "copy", "gem") == ["gemv"]
    assert completed("run", "no-such") == []


@pytest.mark.parametrize(
    ("shell", "made"), [("bash", BashComplete), ("zsh", ZshComplete), ("fish", FishComplete)]
)
def test_the_script_of_each_shell(
    shell: str, made: type[BashComplete], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert script.strip() == made(autotune, {}, "autotune", "_AUTOTUNE_COMPLETE").source().strip()
    assert f"_AUTOTUNE_COMPLETE={shell}_complete" in script


def test_bash_completes_with_it_and_nothing_heavy_is_imported(tmp_path: Path) -> None:
    """As a shell does: the script is read, its function called, and it calls the command."""
    command = tmp_path / "autotune"
    command.write_text(
        f"#!{sys.executable}\nimport atexit, sys\nsys.path[:0] = [{str(ROOT)!r}]\n"
        f"heavy = {HEAVY!r}\n"
        "atexit.register(lambda: print(*(f'plain,{n}' for n in heavy if n in sys.modules)))\n"
        "from autotune.__main__ import main\nmain()\n"
    )
    command.chmod(0o755)
    lines = (
        'eval "$(autotune completion bash)"',
        "COMP_WORDS=(autotune run sgemm_) COMP_CWORD=2",
        "_autotune_completion autotune",
        'echo "${COMPREPLY[@]}"',
    )
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout.strip(), done.stderr) == ("sgemm_tf32x3", "")
