"""Words that shells complete, by click's functions and as bash splits a line."""

from __future__ import annotations

import pytest
from click.shell_completion import FishComplete, ShellComplete, ZshComplete

from autotune.cli import autotune
from autotune.cli.completion import ColonComplete


def completed(
    monkeypatch: pytest.MonkeyPatch, shell: type[ShellComplete], words: str, cursor: int
) -> list[str]:
    """Return what click answers the function of a shell for words and the number of the one at the cursor."""
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", words.split()[-1] if shell is FishComplete else str(cursor))
    return shell(autotune, {}, "autotune", "_AUTOTUNE_COMPLETE").complete().splitlines()


@pytest.mark.parametrize("command", ["run", "retune"])
def test_a_strategy_is_completed(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    words = f"autotune {command} --strategy "
    assert completed(monkeypatch, ColonComplete, words + "exh", 3) == ["plain,exhaustive"]
    assert completed(monkeypatch, ZshComplete, words + "rand", 3)[:2] == ["plain", "random"]
    (line,) = completed(monkeypatch, FishComplete, words + "rand", 3)
    assert line.startswith("plain,random\t")


@pytest.mark.parametrize(
    ("words", "cursor", "expected"),
    [
        ("--strategy kt : ps", 5, ["plain,pso"]),
        ("--strategy = kt : ps", 6, ["plain,pso"]),
        ("--strategy kt : nsga", 5, ["plain,nsga2", "plain,nsga3"]),
        ("--strategy kt : pso soft", 6, ["plain,softmax"]),
        ("--device cuda : 0 transp", 6, ["plain,transpose"]),
    ],
)
def test_bash_gets_the_part_after_its_last_break(
    monkeypatch: pytest.MonkeyPatch, words: str, cursor: int, expected: list[str]
) -> None:
    pytest.importorskip("kernel_tuner")
    assert completed(monkeypatch, ColonComplete, f"autotune run {words}", cursor) == expected


def test_an_empty_word_after_a_space_has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    found = completed(monkeypatch, ColonComplete, "autotune run --strategy ", 3)
    assert {"plain,random", "plain,exhaustive"} <= set(found)


def test_strategies_that_cannot_run_here_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.search.strategies._missing", lambda package: "missing")
    found = completed(monkeypatch, ColonComplete, "autotune run --strategy k", 3)
    assert found == []
