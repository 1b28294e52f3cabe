"""The command line as a user meets it: results on stdout, one message per error, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sample_records import KERNEL, WRONG, entry, plan, problem, record, write
from sample_spaces import write_space

from autotune.cli import run
from autotune.kernel.catalog import find_kernel
from autotune.kernel.source import arguments_fingerprint, source_fingerprint

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
        (["lookup", "sgemm", "m=1", "n=2", "k=3", "arch=sm_80"], "'arch' is no problem field; see"),
        (["run", "sgemm", "--problem", "m=64"], "lacks n, k"),
        (["run", "sgemm", "--problem", "m=-1,n=2,k=3"], "an integer of at least 0"),
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
        (["new", "if"], "means something else in its files"),
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
            "missing 1 required positional argument: 'beta'",
        ),
        ('"out": Out(p.n), ', "", "computes nothing"),
        ("c.BLOCK * c.ITEMS", "c.BLOK * c.ITEMS", "unknown parameter 'BLOK'"),
        ("block=(c.BLOCK,)", "block=(0,)", "positive integers"),
        ("return alpha * x + y", "raise SystemExit(0)", "reference: SystemExit"),
        ("return Launch(", "raise SystemExit(0)\n    return Launch(", "launch: SystemExit"),
        ('"out": Out(p.n)', '1: 2, "out": Out(p.n)', "argument 1: a letter"),
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
    values = {"configuration": {"BLOCK": 32}, "block": (32, 1, 1), "grid": None}
    made = entry(
        {"n": 1000},
        plan(**values),
        source=source_fingerprint(kernel),
        arguments=arguments_fingerprint(kernel),
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
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["run", "saxpy", "--spaces", SAXPY, "--problem", "n=5003", "--seed", "3"]
    arguments += ["--device", "opencl:cpu", "--strategy", "random", "--budget", "5evals"]
    assert run([*arguments, "--json", "--out", str(tmp_path / "out")]) == 0
    captured = capsys.readouterr()
    assert "n=5003: 5 of 24 tried, budget of 5 evaluations: 5 ok; " in captured.err
    record = json.loads(captured.out)
    assert record["kernel"] == "saxpy"
    assert [entry["problem"] for entry in record["problems"]] == [{"n": 5003}]
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
    assert run(["results", "--runs"]) == 0 and " budget " in capsys.readouterr().out

    assert run(["lookup", "saxpy", "n=5003", "--device", record["device"]["name"], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["quality"] == "exact"
    assert found["config"] == record["problems"][0]["plans"][0]["configuration"]

    assert run(["export", "saxpy", "--out", str(tmp_path / "inc")]) == 0
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
    message = fails(capsys, 3, *arguments, "--config", "VARIANT=portable,MIN_BLOCKS=2")
    assert "occupancy_is_cuda (OpenCL has no word" in message
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


@pytest.mark.parametrize("size", ["lots", "-1G", "9" * 400])
def test_a_bad_size_of_the_cache_is_one_clear_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    monkeypatch.setenv("AUTOTUNE_CACHE_SIZE", size)
    assert "expected a size in bytes, for example 16G or 500M" in fails(
        capsys, 2, "doctor", "cache"
    )
    message = fails(capsys, 2, "run", "saxpy", "--spaces", SAXPY, "--budget", "1evals")
    assert "AUTOTUNE_CACHE_SIZE" in message
