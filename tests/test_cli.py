"""The command line as a user meets it: results on stdout, one message per error, exit codes."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import msgspec
import pytest
from sample_records import KERNEL, WRONG, entry, plan, problem, record, write
from sample_spaces import write_space
from thinned import thinned

from autotune.cli import autotune, run
from autotune.errors import UsageError
from autotune.kernel.catalog import find_kernel
from autotune.kernel.source import arguments_fingerprint, source_fingerprint
from autotune.measure.measurement import ENERGY, Measurement, Status
from autotune.project import bundled_project
from autotune.report import progress
from autotune.report.progress import RunStatus, TimeShares, run_progress
from autotune.search.session import Budget, Measured, Phase, SearchStarted
from autotune.tuned.comparison import compared
from autotune.tuned.reading import read, user_folder
from autotune.tuned.record import TunedProblem, TunedRecord
from autotune.values import Configuration, Problem

pytestmark = pytest.mark.usefixtures("kept_processes")

ROOT = Path(__file__).parents[1]
SAXPY = str(ROOT / "examples" / "saxpy" / "spaces")
FAULTY = str(ROOT / "tests" / "data" / "spaces")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that commands write by default go here."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")


def fails(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    """Run a command that must end with one clear message; return the message."""
    assert run(list(arguments)) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    assert "internal error" not in captured.err
    return captured.err


# ---------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "sgem"], "did you mean 'sgemm'"),
        (["run", "sgemm", "--strategy", "kt:genetic"], "kt:genetic_algorithm"),
        (["run", "sgemm", "--device", "cuda:77"], "cuda:77"),
        (["run", "sgemm", "--budget", "soon"], "expected for example 90s"),
        (["run", "sgemm", "--problem", "m=1,n=2,q=3"], "unknown problem field 'q'"),
        (
            ["lookup", "sgemm", "m=1", "n=2", "k=3", "arch=sm_80"],
            "'arch' is not a problem field; see",
        ),
        (["run", "sgemm", "--problem", "m=64"], "lacks n, k"),
        (["run", "sgemm", "--problem", "m=-1,n=2,k=3"], "an integer from 0 to"),
        (["run", "sgemm", "--config", "BMM=3"], "unknown parameter 'BMM'"),
        (["run", "sgemm", "--fix", "BM=3"], "unknown value of BM"),
        (["run", "sgemm", "--spaces", "nowhere"], "not a folder"),
        (["frobnicate"], "unknown command 'frobnicate' (known: run, list"),
        (["run", "sgemm", "--bugdet", "9s"], "unknown option '--bugdet'; did you mean '--budget'?"),
        (["run"], "missing argument 'KERNEL...'; see: autotune run --help"),
        (["results", "sgem"], "did you mean 'sgemm'"),
        (["export", "sgemm", "fortran"], "is not one of 'header'"),
        (["export", "rowsum"], "not tuned yet"),
        (["export", "sgemm", "--from", "."], "no tuned record */sgemm.json below it"),
        (["show", "sgemm", "--device", "sm_33"], "unknown architecture"),
        (["new", "Bad-Name"], "digits and single underscores"),
        (["new", "../x"], "a letter, then letters"),
        (["new", "if"], "is a keyword of C++ or Python"),
    ],
)
def test_unknown_names_and_bad_values_are_usage_errors(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    expected = 4 if arguments[-1] == "cuda:77" and not _has_gpu() else 2
    message = fails(capsys, expected, *arguments)
    assert words in message


def _has_gpu() -> bool:
    from autotune.devices.choose import backend

    return bool(backend("cuda").devices())


# ---------------------------------------------------------------------- space files

GOOD = (ROOT / "examples" / "saxpy" / "spaces" / "saxpy.py").read_text()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("ITEMS=(1, 2, 4, 8),", "ITEMS=(1, 'a'),", "all numbers"),
        (
            "@saxpy.launch",
            "@saxpy.constraint\ndef c(ITEMS):\n    'No.'\n    return False\n\n\n@saxpy.launch",
            "no valid configuration",
        ),
        ("return alpha * x + y", "return (alpha * x + y)[:-1]", "has shape"),
        (
            "def reference(x, y, alpha)",
            "def reference(x, y, beta)",
            "unknown argument 'beta'",
        ),
        ('"out": Out(p.n), ', "", "computes nothing"),
        ("c.BLOCK * c.ITEMS", "c.BLOK * c.ITEMS", "unknown parameter 'BLOK'"),
        ("block=(c.BLOCK,)", "block=(0,)", "positive integers"),
        ("return alpha * x + y", "raise SystemExit(0)", "reference: SystemExit"),
        ("return Launch(", "raise SystemExit(0)\n    return Launch(", "launch: SystemExit"),
        ('"out": Out(p.n)', '1: 2, "out": Out(p.n)', "argument 1: expected a letter"),
        ("return Work(", "return str(", "work: "),
        ("@saxpy.launch", "@saxpy.options\ndef o(c):\n    return '-w'\n\n\n@saxpy.launch", "'-w'"),
    ],
)
def test_a_wrong_space_file_is_one_message_with_its_place(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, old: str, new: str, words: str
) -> None:
    assert old in GOOD
    (tmp_path / "spaces").mkdir()
    (tmp_path / "kernels").mkdir()
    (tmp_path / "spaces" / "saxpy.py").write_bytes(
        GOOD.replace(old, new).encode(errors="surrogateescape")
    )
    source = (ROOT / "examples" / "saxpy" / "kernels" / "saxpy.cu").read_text()
    (tmp_path / "kernels" / "saxpy.cu").write_text(source)
    arguments = ["run", "saxpy", "--spaces", str(tmp_path / "spaces"), "--device", "opencl:cpu"]
    arguments += ["--strategy", "random", "--budget", "1evals"]
    code = 3 if words == "no valid configuration" else 2
    message = fails(capsys, code, *arguments)
    assert "saxpy" in message
    assert words in message


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
def test_what_a_space_file_prints_stays_out_of_the_results(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "spaces").mkdir()
    text = GOOD.replace('"saxpy.cu"', f'"{ROOT / "examples" / "saxpy" / "kernels" / "saxpy.cu"}"')
    text = text.replace("    return", "    print('noise')\n    return")
    (tmp_path / "spaces" / "saxpy.py").write_text("print('noise')\n" + text)
    arguments = ["run", "saxpy", "--spaces", str(tmp_path / "spaces"), "--device", "opencl:cpu"]
    arguments += ["--config", "BLOCK=64", "--problem", "n=5003", "--json"]
    assert run(arguments) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)[0]["status"] == "ok"
    assert "noise" in captured.err


# ---------------------------------------------------------------------- stores, records, recordings


def test_a_damaged_store_is_left_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store.sqlite"
    store.write_bytes(b"not a database at all" * 100)
    monkeypatch.setenv("AUTOTUNE_STORE", str(store))
    message = fails(capsys, 1, "results")
    assert "store.sqlite" in message
    assert store.read_bytes() == b"not a database at all" * 100


@pytest.mark.filterwarnings("always:tuned record left out")
@pytest.mark.parametrize("kind", ["absurd time", "fifo"])
def test_a_damaged_record_stops_no_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str
) -> None:
    """What reads several names the damaged one and goes on; what was given it alone says so."""
    good = record([entry(problem(64, 64))])
    file = write(tmp_path, good)
    bad = tmp_path / "Other" / file.name
    bad.parent.mkdir()
    if kind == "fifo":
        os.mkfifo(bad)
    else:
        bad.write_bytes(WRONG[kind][0])
    source = ["--from", str(tmp_path), "--out", str(tmp_path / "out")]
    for command in (["export", KERNEL], ["report", KERNEL]):
        assert run([*command, *source]) == 0
        captured = capsys.readouterr()
        assert captured.err.count("warning") == captured.err.count(str(bad)) == 1
        assert "internal error" not in captured.err
    assert str(bad) in fails(capsys, 1, "report", str(bad), "--against", str(file))
    if kind != "fifo":  # an import waits for the writer of a pipe
        assert str(bad) in fails(capsys, 1, "import", str(bad))


def test_lookup_says_what_changed_since(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Source, then reference; a broken space file is one warning, and a kernel that is not here none."""

    def reasons(*options: str) -> list[str]:
        assert run(["lookup", "scale", "n=1000", "--arch", "90", "--json", *options]) == 0
        found: list[str] = json.loads(capsys.readouterr().out)["stale_reasons"]
        return found

    space = write_space(tmp_path)
    source = tmp_path / "kernels" / "scale.cu"
    kernel = find_kernel("scale", tmp_path / "spaces")
    values = {"configuration": {"BLOCK": 32}, "block": (32, 1, 1), "grid": None, "shared_bytes": 0}
    made = entry(
        {"n": 1000},
        plan(**values),
        steps=(),
        source=source_fingerprint(kernel),
        arguments=arguments_fingerprint(kernel, Problem(n=1000)),
    )
    shape = {"kernel": "scale", "fields": {"n": "integer"}, "parameters": {"BLOCK": (32, 64)}}
    write(tmp_path / "tuned", record([made], default=plan(**values), **shape))
    monkeypatch.setenv("AUTOTUNE_TUNED", str(tmp_path / "tuned"))
    assert reasons() == []  # no such kernel in this folder
    monkeypatch.chdir(tmp_path)
    assert reasons() == []
    source.write_text(source.read_text() + "// more")
    assert reasons() == ["its source changed"]
    space.write_text(space.read_text().replace("FACTOR = 3", "FACTOR = 4"))
    changed = "its arguments, reference, launch or options changed"
    assert reasons() == ["its source changed", changed]
    assert run(["lookup", "scale", "n=1000", "--arch", "90"]) == 0
    assert f"  stale: {changed}\n" in capsys.readouterr().out
    space.write_text("scale =")
    assert run(["lookup", "scale", "n=1000", "--arch", "90"]) == 0
    printed = capsys.readouterr()
    assert "BLOCK=32" in printed.out
    assert "scale.py" in printed.err and printed.err.startswith("warning: ")
    nowhere = ["--spaces", str(tmp_path / "nix")]
    assert run(["lookup", "scale", "n=1000", "--arch", "90", *nowhere]) == 2


# ---------------------------------------------------------------------- what works


def test_a_broken_space_file_hurts_no_other(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "spaces").mkdir()
    (tmp_path / "spaces" / "broken.py").write_text("def")
    (tmp_path / "spaces" / "rude.py").write_text('"""\x1b]0;title\x07 \u202e"""')
    assert run(["list", "--spaces", str(tmp_path / "spaces"), "--json"]) == 0
    listed = {row["kernel"]: row["about"] for row in json.loads(capsys.readouterr().out)}
    assert "BROKEN line 1" in listed["broken"]
    assert "sgemm" in listed
    assert run(["list", "--spaces", str(tmp_path / "spaces")]) == 0
    assert r"\x1b]0;title\x07 \u202e" in capsys.readouterr().out
    assert run(["check", "\x1b[2J\u202e.py"]) == 2
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
def test_run_writes_everything_and_prints_the_record(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["run", "saxpy", "--spaces", SAXPY, "--problem", "n=5003", "--seed", "3"]
    arguments += ["--device", "opencl:cpu", "--budget", "5evals"]
    arguments += ["--strategy", "kt:pso", "--strategy-option", "popsize=3"]
    assert run([*arguments, "--json", "--out", str(tmp_path / "out")]) == 0
    captured = capsys.readouterr()
    assert "n=5003: 5 of 24 tried, budget of 5 evaluations: 5 ok; " in captured.err
    record = json.loads(captured.out)
    assert record["kernel"] == "saxpy"
    (entry,) = record["problems"]
    assert entry["problem"] == {"n": 5003}
    assert entry["origin"]["strategy"] == "kt:pso (popsize=3)"
    (folder,) = (tmp_path / "out").iterdir()
    names = {file.name for file in folder.iterdir()}
    assert {"saxpy.json", "saxpy.hpp", "saxpy.md", "saxpy.html"} <= names

    assert run(["results", "saxpy", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 5
    for key in ("kernel", "problem", "config", "status", "median_ms", "device"):
        assert key in rows[0]
    assert run(["results", "saxpy", "--runs", "--json"]) == 0
    (ran,) = json.loads(capsys.readouterr().out)
    assert (ran["ended"], ran["rows"], ran["id"]) == ("budget", 5, rows[0]["run"])
    assert "--strategy-option popsize=3" in ran["command"]
    assert run(["results", "--runs"]) == 0 and " budget " in capsys.readouterr().out

    asked = ["lookup", "saxpy", "n=5003", "--spaces", SAXPY, "--device", record["device"]["name"]]
    assert run([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["quality"] == "exact"
    assert found["config"] == record["problems"][0]["plans"][0]["configuration"]
    assert run([*asked[:-1], "opencl:cpu", "--json"]) == 0  # as it was named to `run`
    assert json.loads(capsys.readouterr().out) == found

    file = f"{SAXPY}/saxpy.py"
    assert run(["lookup", file, *asked[2:3], *asked[5:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["config"] == found["config"]
    assert run(["results", file, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == rows

    asked = ["export", "saxpy", "--out", str(tmp_path / "inc")]
    fails(capsys, 2, *asked)
    monkeypatch.setenv("AUTOTUNE_PATH", SAXPY)
    assert run(asked) == 0
    assert (tmp_path / "inc" / "saxpy.hpp").exists()


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
def test_a_kernel_that_is_only_wrong_ends_with_3_and_writes_no_header(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["run", "faulty", "--spaces", FAULTY, "--fix", "FAULT=k_step_dropped"]
    arguments += ["--fix", "BLOCK=32,64", "--device", "opencl:cpu", "--strategy", "exhaustive"]
    message = fails(capsys, 3, *arguments, "--out", str(tmp_path / "out"))
    assert "wrong_result" in message
    assert not list(tmp_path.rglob("*.hpp"))


@pytest.mark.opencl
def test_several_kernels_print_one_json_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], opencl_device: str
) -> None:
    options = ["--spaces", SAXPY, "--device", opencl_device, "--problem", "n=100", "--json"]
    options += ["--config", "BLOCK=64", "--out", str(tmp_path)]
    scale = str(write_space(tmp_path))
    for kernels, names in ((["saxpy", scale], ["saxpy", "scale"]), ([scale], ["scale"])):
        assert run(["run", *kernels, *options]) == 0
        printed = json.loads(capsys.readouterr().out)
        documents = printed if len(kernels) > 1 else [printed]
        assert [[row["kernel"] for row in rows] for rows in documents] == [[n] for n in names]


def test_a_pipe_closed_early_is_no_error() -> None:
    command = f"{sys.executable} -m autotune list strategies | head -n 1"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(
        command, shell=True, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""


def test_an_unwritable_output_folder_is_one_message(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    message = fails(capsys, 2, "new", "fresh", "--into", str(tmp_path / "file"))
    assert "file" in message


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
def test_a_configuration_that_is_not_valid_is_told_why(capsys: pytest.CaptureFixture[str]) -> None:
    """The constraint by name and words, and only parameters that have an effect."""
    arguments = ["run", "sgemm", "--device", "opencl:cpu", "--problem", "m=8,n=8,k=8"]
    message = fails(capsys, 3, *arguments, "--config", "SOURCE=portable,MIN_BLOCKS=2")
    assert "min_blocks_needs_cuda (OpenCL cannot set the blocks per multiprocessor" in message
    assert "STAGES" not in message


# ---------------------------------------------------------------------- the cache


def test_the_cache_is_shown_and_cleared(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("AUTOTUNE_CACHE_SIZE", "1.5M")
    made = tmp_path / "data" / ("5e" * 20)
    made.mkdir(parents=True)
    (made / "x.npy").write_bytes(bytes(20480))
    (tmp_path / "binaries" / "ab").mkdir(parents=True)
    (tmp_path / "binaries" / "ab" / f"{'ab' * 32}.msgpack").write_bytes(b"code")
    assert run(["doctor", "cache"]) == 0
    shown = capsys.readouterr().out
    assert "20 KiB" in shown
    assert "1.5 MiB" in shown
    assert run(["doctor", "cache", "--clear", "binaries", "--json"]) == 0
    captured = capsys.readouterr()
    rows = {row["kind"]: (row["kept"], row["size_bytes"]) for row in json.loads(captured.out)}
    assert rows == {"data": (1, 20480), "binaries": (0, 0)}
    assert "binaries: 4 B removed" in captured.err
    assert run(["doctor", "cache", "--clear"]) == 0
    assert not list((tmp_path / "data").iterdir())


def test_a_cache_that_cannot_be_made_is_an_error_with_the_remedy(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "file" / "cache"))
    message = fails(capsys, 1, "check", "copy", "--arch", "sm_90", "--samples", "1")
    assert message.endswith("name another folder for the cache by AUTOTUNE_CACHE_DIR\n")


@pytest.mark.parametrize("size", ["lots", "-1G", "9" * 400])
def test_a_bad_size_of_the_cache_is_one_clear_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    monkeypatch.setenv("AUTOTUNE_CACHE_SIZE", size)
    assert "is not a size in bytes; write for example 16G or 500M" in fails(
        capsys, 2, "doctor", "cache"
    )
    message = fails(capsys, 2, "run", "saxpy", "--spaces", SAXPY, "--budget", "1evals")
    assert "AUTOTUNE_CACHE_SIZE" in message


# ---------------------------------------------------------------------- The examples in every


VERBS = autotune.list_commands(click.Context(autotune))

#: What an empty folder has to have for an example, by its verb: files of a colleague's.
FILES = {
    "import": ("colleague/sgemm.json",),
    "new": ("tune_vector_add.py", "src/stencil.cu"),
    "report": (
        "old/sgemm.json",
        "new/sgemm.json",
        "reports/NVIDIA_H100_80GB_HBM3/sgemm.json",
    ),
}
#: What is in them, where it is no tuned record of sgemm.
CONTENTS = {
    "src/stencil.cu": "examples/rowsum/kernels/rowsum.cu",
    "tune_vector_add.py": "examples/kernel_tuner/tune_vector_add.py",
}
RECORD = "reports/NVIDIA_H100_80GB_HBM3/sgemm.json"
#: What has to be run before an example.
EXPORT = "autotune export sgemm header --out include/autotune"
BEFORE = {
    "autotune check smooth": ("autotune new smooth",),
    f"{EXPORT} --check": (EXPORT,),
}
#: Caches of Kernel Tuner, by the kernel whose default they have measured.
CACHES = {"colleague/gemm-cache.json": "sgemm", "colleague/flip-cache.json": "transpose"}
#: Verbs whose examples find sgemm in the user's records.
NEED_RECORD = ("export", "report")
#: Examples that are parsed only, and why.
NOT_RUN = {
    "autotune explain sgemm --problem m=4096,n=4096,k=4096 --arch sm_90 --variants naive,best": (
        "compiles for half a minute; tests/test_explain.py explains every kernel"
    ),
    "autotune explain transpose --variants best --ablate VEC": "the same",
    "autotune report sgemm transpose --device sm_90": (
        "writes pages for half a minute; tests/test_report.py reports two small kernels"
    ),
    "autotune check sgemm": "takes a minute; the example with --samples 2 runs",
    "autotune doctor cache --clear": "would clear what the tests share; tests/test_cli.py has a cache of its own",
    "autotune doctor --limits": "takes a minute; tests/test_limits.py runs it",
    "autotune run sgemm": "searches for a minute",
    "autotune run sgemm transpose --fleet tls://host:8786 --max-hours 2": (
        "needs a fleet; tests/test_fleet.py tunes on one"
    ),
    "autotune run smooth": "searches for a minute; tests/test_snippets.py runs it with a budget",
    "autotune run sgemm --problem m=1000,n=1000,k=1000 --budget 2m --strategy optuna:tpe": (
        "searches for two minutes"
    ),
    "autotune run sgemm --strategy kt:pso --strategy-option popsize=10": "searches for a minute",
    "autotune retune --stale --max-hours 2": "tunes every bundled kernel; tests/test_retune.py runs it on two",
    "autotune retune --all --max-hours 8": "tunes for hours; tests/test_retune.py runs it on two kernels",
    "autotune check-tuned sgemm --threshold 3": (
        "needs a kernel that was tuned on this device; tests/test_check_tuned.py tunes one"
    ),
    "autotune sizes sgemm --budget 9m": "needs a record of this device; tests/test_answering.py makes one",
    "autotune export sgemm cache --out kernel_tuner": (
        "needs measurements in the store; tests/test_exchange.py writes one"
    ),
    "autotune fleet": "starts processes that stay; tests/test_cluster.py does it",
    "autotune retune sgemm --effort full": "searches for ten minutes per problem",
}


def missing_tests(excuses: Mapping[str, str]) -> list[str]:
    """Return the files that reasons name as the tests of a command, and that do not exist."""
    named = [
        name for why in excuses.values() for name in re.findall(r"tests/[\w/.]+|\.ci/\w+", why)
    ]
    assert not [why for why in excuses.values() if re.search(r"(?<!/)\btest_\w", why)], "no path"
    return [name for name in named if not (ROOT / name).exists()]


def examples(verb: str) -> list[str]:
    """The lines of a verb's help that are commands; two spaces in. After three more is what it does."""
    command = autotune.get_command(click.Context(autotune), verb) if verb else autotune
    assert command is not None
    shown = command.get_help(click.Context(command, info_name="autotune"))
    lines = re.findall(r"^  (autotune [a-z].*)$", shown, re.MULTILINE)
    return [re.split(r" {3,}", line)[0].strip() for line in lines]


EXAMPLES = list(dict.fromkeys(line for verb in ["", *VERBS] for line in examples(verb)))


RUNNABLE = [example for example in EXAMPLES if example not in NOT_RUN]
FIRST_OF_VERB = list({example.split()[1]: example for example in reversed(RUNNABLE)}.values())


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
    assert missing_tests(NOT_RUN) == []


def cache_of_default(name: str) -> str:
    """Return a cache of Kernel Tuner with a time of a kernel's default."""
    default = dict(find_kernel(name).default())
    row = {**default, "time": 1.0, "times": [1.0], "compile_time": 0.0}
    parts = {
        "device_name": "Test GPU",
        "kernel_name": "theirs",
        "problem_size": [64, 32],
        "tune_params_keys": list(default),
        "tune_params": {key: [value] for key, value in default.items()},
        "cache": {",".join(map(str, default.values())): row},
    }
    return json.dumps(parts)


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
@pytest.mark.parametrize("example", thinned(RUNNABLE, FIRST_OF_VERB))
def test_examples_run(
    example: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    monkeypatch.chdir(tmp_path)
    verb = example.split()[1]
    for file in FILES.get(verb, ()):
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / CONTENTS.get(file, RECORD), file)
    for file, kernel in CACHES.items() if verb == "import" else ():
        Path(file).write_text(cache_of_default(kernel))
    if verb in NEED_RECORD:  # as if imported, which takes seconds and is an example of its own
        write(Path(user_folder(bundled_project())), read(ROOT / RECORD))
    for line in (*BEFORE.get(example, ()), example):
        assert run(shlex.split(line, comments=True)[1:]) == 0, capsys.readouterr().err


# ---------------------------------------------------------------------- The progress that a run


SMALL, LARGE = Problem(n=100), Problem(n=10_000)


def measured(problem: Problem, block: int, ms: float | None) -> Measured:
    """The event of one configuration; of a wrong one where it has no time."""
    row = Measurement(
        Configuration(BLOCK=block, UNROLL=True),
        Status.WRONG_RESULT if ms is None else Status.OK,
        samples_ms=() if ms is None else (ms,) * 3,
    )
    return Measured(problem, row, is_remembered=block == 32, seconds_left=20.0)


def test_what_needs_more_than_the_device_has_has_not_failed() -> None:
    status = RunStatus("scale", 1)
    status(SearchStarted(SMALL, Budget(evaluations=4)))
    status(Measured(SMALL, Measurement(Configuration(BLOCK=32), Status.PRUNED), False, 20.0))
    assert status.line == "scale n=100: 1 of 4 tried, 20 s left"


def test_a_line_has_counts_the_best_and_the_time_left() -> None:
    """Two problems of which the first is done and the second has begun."""
    status = RunStatus("scale", 2)
    status(Phase(SMALL, "inputs"))
    status(SearchStarted(SMALL, Budget(evaluations=4)))
    assert status.line == "[1/2] scale n=100: 0 of 4 tried"
    for block, ms in ((32, 3.0), (64, None), (128, 2.0), (256, 2.5)):
        status(measured(SMALL, block, ms))
    assert status.line == "[1/2] scale n=100: 4 of 4 tried, best 2 ms, 1 failed, 20 s left"
    status(SearchStarted(LARGE, Budget(seconds=24)))
    status(measured(LARGE, 32, 70.0))
    assert status.line == "[2/2] scale n=10000: 1 tried, best 70 ms, 20 s left"
    status(Phase(LARGE, "finals"))
    assert status.line == "scale n=10000: finals: the best, interleaved"


def test_the_best_is_that_of_the_objective() -> None:
    status = RunStatus("scale", 1, ENERGY)
    status(SearchStarted(SMALL, Budget(evaluations=4)))
    for block, ms, mj in ((32, 3.0, 80.0), (64, 4.0, 50.0), (128, 2.0, 60.0)):
        event = measured(SMALL, block, ms)
        status(replace(event, measurement=replace(event.measurement, score=mj)))
    assert ": 3 of 4 tried, best energy 50 mJ, " in status.line


def test_the_shares_of_a_runs_time_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_s = iter((0.0, 1.0, 2.0, 4.0, 4.5, 7.0, 9.5, 9.9, 10.0, 10.0))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(clock_s)))
    shares, row = TimeShares(), measured(SMALL, 32, 3.0)
    known = replace(row, measurement=replace(row.measurement, compile_s=1.5))
    search = SearchStarted(SMALL, Budget()), known, replace(known, is_remembered=False)
    phases = (Phase(SMALL, name) for name in ("other inputs", "finals", "a later one"))
    for event in (Phase(SMALL, "inputs"), *search, *phases):
        shares(event)
    shares.begin("report")
    shares.begin("report")
    assert str(shares) == (
        "10.0 s: inputs 20%, reference 25%, search 50%, finals 5%; compilers worked 1.5 s"
    )


def test_a_short_run_off_a_terminal_writes_nothing() -> None:
    with redirect_stderr(io.StringIO()) as log, run_progress("scale", 1) as listener:
        listener(SearchStarted(SMALL, Budget(evaluations=4)))
        listener(measured(SMALL, 32, 3.0))
    assert log.getvalue() == ""


# ---------------------------------------------------------------------- `autotune report


AT = problem(64, 64)


def timed(median_ms: float, about: float = 0.01, **changes: Any) -> TunedProblem:
    """An entry of one problem with a time and an interval of so much around it."""
    interval_ms = (median_ms * (1 - about), median_ms * (1 + about))
    return entry(AT, **{"median_ms": median_ms, "interval_ms": interval_ms, **changes})


def change(first: TunedRecord, second: TunedRecord, threshold: float = 0.05) -> str:
    (found,) = compared(first, second, threshold)
    return found.change


@pytest.mark.parametrize(
    ("median_ms", "about", "expected"),
    [
        (1.06, 0.01, "held"),  # 1.06 · 0.99 / 1.01 is below 1.05
        (1.08, 0.01, "slower"),
        (1.15, 0.1, "held"),
        (0.9, 0.01, "faster"),
    ],
)
def test_slower_is_what_neither_interval_explains(
    median_ms: float, about: float, expected: str
) -> None:
    made = [record([timed(1.0)]), record([timed(median_ms, about)])]
    assert change(*made) == expected
    (found,) = compared(*made, 0.05)
    assert found.ratio == pytest.approx(median_ms)
    assert found.ratio_interval == pytest.approx(
        (median_ms * (1 - about) / 1.01, median_ms * (1 + about) / 0.99)
    )


def test_two_devices_have_a_ratio_and_no_regression() -> None:
    (found,) = compared(record([timed(1.0)]), record([timed(3.0)], "Test GPU B", "sm_80"), 0.05)
    assert (found.change, found.ratio) == ("other_device", 3.0)


def test_winners_of_two_objectives_are_not_compared() -> None:
    frugal = msgspec.structs.replace(record([timed(2.0)]), objective="energy")
    with pytest.raises(UsageError, match="records have two objectives, time and energy"):
        compared(record([timed(1.0)]), frugal, 0.05)


def test_times_that_were_taken_in_two_ways_have_no_ratio() -> None:
    (found,) = compared(record([timed(1.0)]), record([timed(3.0, timing="hot")]), 0.05)
    assert (found.change, found.ratio, found.ratio_interval) == ("other_timing", None, None)


def test_parameters_in_which_the_winners_differ() -> None:
    """True is not 1, and a parameter that one space lacks is one that differs."""
    more = plan(configuration={"BM": 64, "SWIZZLE": True, "VARIANT": "simt", "DEPTH": 4})
    first = record([timed(1.0)])
    second = record([timed(1.0, **{"configuration": more.configuration})])
    (found,) = compared(first, second, 0.05)
    assert found.differing == {"SWIZZLE": (False, True), "DEPTH": (None, 4)}


def test_problems_of_one_record_only_are_listed() -> None:
    first = record([timed(1.0), entry(problem(8, 8))])
    second = record([entry(problem(9, 9)), timed(1.0)])
    found = [(dict(one.problem), one.change) for one in compared(first, second, 0.05)]
    assert found == [
        (AT, "held"),
        (problem(8, 8), "only_first"),
        (problem(9, 9), "only_second"),
    ]


def test_two_kernels_are_refused() -> None:
    with pytest.raises(UsageError, match="two kernels, demo_gemm and other"):
        compared(record([timed(1.0)]), record([timed(1.0)], kernel="other"), 0.05)


# ---------------------------------------------------------------------- the command


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A record, and a later one of the same device that is slower by 10 %."""
    before, after = record([timed(1.0)]), record([timed(1.1, **vars_of(plan(128)))])
    return write(tmp_path / "old", before), write(tmp_path / "new", after)


def vars_of(chosen: Any) -> dict[str, Any]:
    return {"configuration": chosen.configuration}


def test_a_regression_ends_with_5(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = map(str, files)
    assert run(["report", new, "--against", old]) == 5
    printed = capsys.readouterr()
    assert "BM 64 → 128" in printed.out
    assert "1.100 (1.078 … 1.122)" in printed.out
    assert "1 of 1 problems are slower by more than 5 %" in printed.err
    assert run(["report", new, "--against", old, "--json"]) == 5
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["kernel"], row["problem"], row["verdict"]) == (KERNEL, AT, "slower")
    assert row["differing"] == {"BM": [64, 128]} and row["second"]["median_ms"] == 1.1
    assert run(["report", new, "--against", old, "--threshold", "10"]) == 0
    assert run(["report", old, "--against", new]) == 0


def test_mistakes_are_one_line(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = str(files[0])
    header = tmp_path / "sgemm.hpp"
    header.write_text("#pragma once\n")
    other = str(write(tmp_path / "other", record([timed(1.0)], kernel="other")))
    for code, wrong, message in (
        (1, str(tmp_path), "not a regular file, so not a tuned record"),
        (1, str(header), "not a tuned record"),
        (1, str(tmp_path / "nix.json"), "No such file"),
        (2, other, "two kernels"),
    ):
        assert run(["report", wrong, "--against", old]) == code
        printed = capsys.readouterr()
        assert not printed.out
        assert printed.err.startswith("error: ")
        assert message in printed.err
        assert printed.err.count("\n") == 1
    assert run(["report", "--against", old]) == 2
