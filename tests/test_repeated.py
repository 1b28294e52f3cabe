"""`autotune run` twice: the second run of a command has its results already."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from sample_records import change
from tuned_project import no_process

from autotune.cli import run
from autotune.search.session import Budget

COMMAND = "run saxpy --strategy random --device opencl:cpu --budget 3evals"
pytestmark = pytest.mark.usefixtures("opencl_device")


def recorded_as(project: Path, **origin: Any) -> None:
    (file,) = project.glob("reports/opencl_*/saxpy.json")
    document = json.loads(file.read_text())
    change(document["problems"][0], **{"command": f"autotune {COMMAND}", **origin})
    file.write_text(json.dumps(document))


def again(command: str = COMMAND) -> int:
    return run(shlex.split(command))


@pytest.mark.parametrize("budget", ["3evals", "2evals"])
def test_a_second_run_measures_nothing(project, tmp_path, capsys, budget):
    recorded_as(project)
    with no_process(tmp_path):
        assert again(COMMAND.replace("3evals", budget)) == 0
    found = capsys.readouterr()
    assert "n=5003" in found.out and "BLOCK=" in found.out
    assert "nothing measured: this command ran on" in found.err


def test_a_second_run_measures_nothing_after_an_upgrade_with_the_same_code(
    project, tmp_path, capsys
):
    recorded_as(project, toolchain="older")
    with no_process(tmp_path):
        assert again() == 0
    assert "nothing measured: this command ran on" in capsys.readouterr().err


def test_a_second_run_prints_the_record_as_json(project, tmp_path, capsys):
    recorded_as(project)
    with no_process(tmp_path):
        assert again(f"{COMMAND} --json") == 0
    assert json.loads(capsys.readouterr().out)["kernel"] == "saxpy"


@pytest.mark.parametrize(
    ("origin", "edited", "command", "message"),
    [
        ({}, "", COMMAND.replace("3evals", "9evals"), "measured again: the budget is larger"),
        ({"driver": "older"}, "", COMMAND, "measured again: the driver changed: older -> "),
        (
            {"toolchain": "older", "code": "0" * 64},
            "",
            COMMAND,
            "measured again: the compiler changed: older -> ",
        ),
        ({}, "// edited", COMMAND, "measured again: its source changed"),
    ],
)
def test_what_is_measured_again_says_why(
    project, tmp_path, capsys, origin, edited, command, message
):
    recorded_as(project, **origin)
    source = project / "kernels/saxpy.cu"
    source.write_text(source.read_text() + edited)
    with pytest.raises(AssertionError, match="a process was started"), no_process(tmp_path):
        again(command)
    assert f"n=5003 is {message}" in capsys.readouterr().err


@pytest.mark.parametrize("more", ["--fresh", "--seed 1", "--problem n=77"])
def test_another_command_runs(project, tmp_path, capsys, more):
    recorded_as(project)
    with pytest.raises(AssertionError, match="a process was started"), no_process(tmp_path):
        again(f"{COMMAND} {more}")
    assert "measured again" not in capsys.readouterr().err


def test_a_budget_covers_a_smaller_one_of_its_kind():
    assert Budget.parse("60s").covers(Budget.parse("1m"))
    assert not Budget.parse("60s").covers(Budget.parse("2m"))
    assert not Budget.parse("60s").covers(Budget.parse("5evals"))
    assert not Budget.parse("500evals").covers(Budget.parse("5s"))
    for text in ("90s", "1.5m", "7evals"):
        assert Budget.parse(str(Budget.parse(text))) == Budget.parse(text)
