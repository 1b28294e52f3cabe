"""The examples in every verb's --help: all are parsed, and run as they stand where that takes seconds."""

import re
import shlex
import shutil
from pathlib import Path

import click
import pytest

from autotune.cli import autotune, run

ROOT = Path(__file__).parents[1]
VERBS = autotune.list_commands(click.Context(autotune))

#: What an empty folder has to have for an example, by its verb: files of a colleague's.
FILES = {
    "import": ("colleague/sgemm.json", "colleague/gemm-cache.json"),
    "export": ("colleague/sgemm.json",),
    "new": ("tune_vector_add.py",),
    "report": (
        "colleague/sgemm.json",
        "old/sgemm.json",
        "new/sgemm.json",
        "reports/NVIDIA_H100_80GB_HBM3/sgemm.json",
    ),
}
#: What is in them, where it is no tuned record of sgemm.
CONTENTS = {
    "colleague/gemm-cache.json": "tests/data/sgemm-NVIDIA_H100_80GB_HBM3.json.gz",
    "tune_vector_add.py": "examples/kernel_tuner/tune_vector_add.py",
}
RECORD = "reports/NVIDIA_H100_80GB_HBM3/sgemm.json"
#: What has to be run before, by verb or example.
BEFORE = {
    "export": ("autotune import colleague/sgemm.json",),
    "report": ("autotune import colleague/sgemm.json",),
    "autotune check softmax": ("autotune new softmax",),
}
#: Examples that are parsed only, and why.
NOT_RUN = {
    "autotune check sgemm": "takes a minute; the example with --samples 2 runs",
    "autotune doctor cache --clear": "would clear what the tests share; test_cli has a cache of its own",
    "autotune doctor --limits": "takes a minute; test_limits runs it",
    "autotune run sgemm": "searches for a minute",
    "autotune run sgemm transpose --fleet tls://host:8786 --max-hours 2": (
        "needs a fleet; test_fleet tunes on one"
    ),
    "autotune run softmax": "searches for a minute; test_readme runs it with a budget",
    "autotune run sgemm --problem m=1000,n=1000,k=1000 --budget 2m --strategy optuna:tpe": (
        "searches for two minutes"
    ),
    "autotune retune --stale --max-hours 2": "tunes every bundled kernel; test_retune runs it on two",
    "autotune retune --all --max-hours 8": "tunes for hours; test_retune runs it on two kernels",
    "autotune check-tuned sgemm --threshold 3": (
        "needs a kernel that was tuned on this device; test_check_tuned tunes one"
    ),
    "autotune retune sgemm --portfolio --budget 2m": (
        "needs a record of this device; test_portfolio makes one"
    ),
    "autotune export sgemm cache --out kernel_tuner": (
        "needs measurements in the store; test_export writes one"
    ),
    "autotune fleet": "starts processes that stay; test_cluster does it",
    "autotune retune sgemm --effort full": "searches for ten minutes per problem",
}


def examples(verb: str) -> list[str]:
    """The lines of a verb's help that are commands; two spaces in. After three more is what it does."""
    command = autotune.get_command(click.Context(autotune), verb) if verb else autotune
    assert command is not None
    shown = command.get_help(click.Context(command, info_name="autotune"))
    lines = re.findall(r"^  (autotune [a-z].*)$", shown, re.MULTILINE)
    return [re.split(r" {3,}", line)[0].strip() for line in lines]


EXAMPLES = list(dict.fromkeys(line for verb in ["", *VERBS] for line in examples(verb)))


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_an_example_of_itself(verb: str) -> None:
    assert [example for example in examples(verb) if example.split()[1] == verb]


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_are_parsed(example: str) -> None:
    _, verb, *arguments = shlex.split(example, comments=True)
    command = autotune.get_command(click.Context(autotune), verb)
    assert command is not None, f"no verb {verb}"
    if isinstance(command, click.Group) and arguments[:1] and arguments[0] in command.commands:
        verb, *arguments = arguments
        command = command.commands[verb]
    command.make_context(verb, arguments)


def test_what_is_not_run_is_an_example() -> None:
    assert set(NOT_RUN) <= set(EXAMPLES)


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
@pytest.mark.parametrize("example", [example for example in EXAMPLES if example not in NOT_RUN])
def test_examples_run(
    example: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", shlex.split(example))
    verb = example.split()[1]
    for file in FILES.get(verb, ()):
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / CONTENTS.get(file, RECORD), file)
    for line in (*BEFORE.get(verb, ()), *BEFORE.get(example, ()), example):
        assert run(shlex.split(line, comments=True)[1:]) == 0, capsys.readouterr().err
