"""Scheduled entries, checked by the programs that read them where those are installed."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from autotune.cli import run
from autotune.errors import UsageError
from autotune.retune.schedule import KINDS, PERIODS, Schedule

#: What shells, cron and systemd each treat in their own way.
AWKWARD = 'it\'s 50% of $HOME "quoted" dir'
ROOT = Path(__file__).parents[1]
ARCHS = ("sm_80", "sm_90")


#: The part of GitHub's workflow schema that these files use; nothing else may occur.
STEP = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "uses": {"type": "string", "pattern": r"^actions/[a-z-]+@v\d+$"},
        "run": {"type": "string"},
        "if": {"type": "string"},
        "with": {"type": "object"},
        "env": {"type": "object", "additionalProperties": {"type": "string"}},
        "working-directory": {"type": "string"},
    },
    "additionalProperties": False,
    "oneOf": [{"required": ["uses"]}, {"required": ["run"]}],
}
JOB = {
    "type": "object",
    "properties": {
        "needs": {"type": "string"},
        "if": {"type": "string"},
        "runs-on": {"type": ["string", "array"]},
        "strategy": {
            "type": "object",
            "properties": {
                "fail-fast": {"type": "boolean"},
                "matrix": {"type": "object", "additionalProperties": {"type": "array"}},
            },
            "additionalProperties": False,
        },
        "timeout-minutes": {"type": "integer", "minimum": 1},
        "permissions": {"enum": [{"contents": "write", "pull-requests": "write"}]},
        "steps": {"type": "array", "items": STEP, "minItems": 1},
    },
    "required": ["runs-on", "steps"],
    "additionalProperties": False,
}
WORKFLOW = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "on": {
            "type": "object",
            "properties": {
                "schedule": {
                    "type": "array",
                    "items": {"type": "object", "required": ["cron"]},
                    "minItems": 1,
                },
                "workflow_dispatch": {"type": "null"},
            },
            "required": ["schedule"],
            "additionalProperties": False,
        },
        "concurrency": {"type": "object", "required": ["group"]},
        "permissions": {"enum": [{"contents": "read"}]},
        "env": {"type": "object"},
        "jobs": {"type": "object", "additionalProperties": JOB, "minProperties": 1},
    },
    "required": ["name", "on", "jobs"],
    "additionalProperties": False,
}


@pytest.fixture
def schedule(tmp_path: Path) -> Schedule:
    """Of a folder and a program whose names need quoting; the program notes how it was run."""
    folder = tmp_path / AWKWARD
    folder.mkdir()
    program = folder / "auto tune"
    program.write_text(
        "#!/usr/bin/env python3\nimport json, os, sys\n"
        "print(json.dumps([sys.argv[1:], os.getcwd(), os.environ.get('AUTOTUNE_PATH')]))\n"
    )
    program.chmod(0o755)
    return Schedule(
        period=PERIODS["1w"],
        archs=ARCHS,
        kernels=("sgemm", "my spaces/a b.py"),
        max_hours=1.5,
        program=(str(program),),
        folder=folder,
        settings={"AUTOTUNE_PATH": f"/a b/{AWKWARD}"},
    )


def expected(schedule: Schedule, arch: str) -> list[Any]:
    """How the program must have been run."""
    arguments = ["retune", *schedule.kernels, "--stale", "--max-hours", "1.5", "--arch", arch]
    return [arguments, str(schedule.folder), schedule.settings["AUTOTUNE_PATH"]]


def shell(command: str, **environment: str) -> str:
    """Output of a shell command."""
    return subprocess.run(
        ["sh", "-c", command],
        env={"PATH": os.environ["PATH"], "HOME": "/wrong", **environment},
        check=True,
        capture_output=True,
        text=True,
    ).stdout


# ---------------------------------------------------------------------- cron


def test_every_crontab_line_runs_one_architecture(schedule: Schedule) -> None:
    text = schedule.text("cron")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for arch, line in zip(ARCHS, lines, strict=True):
        *fields, command = line.split(" ", 5)
        assert fields == ["17", "3", "*", "*", "0"]
        assert not re.search(r"(?<!\\)%", command)
        assert json.loads(shell(command.replace(r"\%", "%"))) == expected(schedule, arch)


@pytest.mark.parametrize("every", PERIODS)
def test_every_period_is_one_that_cron_knows(every: str) -> None:
    """Each field is a star, a step or a list within its range."""
    ranges = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
    for field, (low, high) in zip(PERIODS[every].cron.split(), ranges, strict=True):
        base, _, step = field.partition("/")
        assert base == "*" or all(low <= int(number) <= high for number in base.split(","))
        assert not step or (base, (high - low + 1) % int(step)) == ("*", 0)


# ---------------------------------------------------------------------- systemd


@pytest.fixture
def units(schedule: Schedule, tmp_path: Path) -> Path:
    """The folder of the units that the script installs, with a systemctl that notes its arguments."""
    (tmp_path / "tools").mkdir()
    for name in ("systemctl", "loginctl"):
        tool = tmp_path / "tools" / name
        tool.write_text(f'#!/bin/sh\necho {name} "$@" >> "$HOME/asked"\n')
        tool.chmod(0o755)
    path = f"{tmp_path / 'tools'}:{os.environ['PATH']}"
    shell(schedule.text("systemd"), PATH=path, HOME=str(tmp_path))
    return tmp_path / ".config" / "systemd" / "user"


def test_the_script_installs_a_timer_per_architecture(units: Path, tmp_path: Path) -> None:
    names = {f"autotune-retune-{arch}.{kind}" for arch in ARCHS for kind in ("service", "timer")}
    assert {file.name for file in units.iterdir()} == names
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked[0] == "systemctl --user daemon-reload"
    timers = [f"systemctl --user enable --now autotune-retune-{arch}.timer" for arch in ARCHS]
    assert asked[1:-1] == timers
    assert asked[-1] == "loginctl enable-linger"


def test_systemd_accepts_the_units(units: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze; apt-get install systemd")
    files = sorted(map(str, units.iterdir()))
    done = subprocess.run([program, "verify", *files], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    calendars = [period.calendar for period in PERIODS.values()]
    subprocess.run([program, "calendar", *calendars], check=True, capture_output=True)


def test_a_service_runs_the_command_as_systemd_reads_it(schedule: Schedule, units: Path) -> None:
    text = (units / "autotune-retune-sm_90.service").read_text()
    settings = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
    assert settings["WorkingDirectory"].replace("%%", "%") == str(schedule.folder)
    words = [word.replace("%%", "%") for word in shlex.split(settings["ExecStart"])]
    arguments = expected(schedule, "sm_90")[0]
    program = ["/usr/bin/env", *schedule.program]
    assert [word.replace("$$", "$") for word in words] == [*program, *arguments]
    (variable,) = shlex.split(settings["Environment"])
    assert variable.replace("%%", "%") == f"AUTOTUNE_PATH={schedule.settings['AUTOTUNE_PATH']}"


# ---------------------------------------------------------------------- Slurm


def test_the_slurm_script_submits_a_job_per_architecture_and_is_each(
    schedule: Schedule, tmp_path: Path
) -> None:
    text = schedule.text("slurm")
    script = tmp_path / "a b.sbatch"
    script.write_text(text)
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert "#SBATCH" not in text.partition("\nset -euo pipefail\n")[2]  # sbatch reads no further
    (tmp_path / "sbatch").write_text('#!/bin/sh\nprintf "%s|" "$@"; echo\n')
    (tmp_path / "sbatch").chmod(0o755)
    run_it = f"bash {shlex.quote(str(script))}"
    submitted = shell(run_it, PATH=f"{tmp_path}:{os.environ['PATH']}").splitlines()
    assert submitted == [
        f"--array={task}|--constraint={arch}|--gres=gpu:1|{script}|"
        for task, arch in enumerate(ARCHS)
    ]
    for task, arch in enumerate(ARCHS):
        ran = json.loads(shell(run_it, SLURM_ARRAY_TASK_ID=str(task)))
        assert ran == expected(schedule, arch)


# ---------------------------------------------------------------------- GitHub


def workflow(schedule: Schedule) -> dict[str, Any]:
    """The workflow as GitHub reads it."""
    text = schedule.text("github")
    document = yaml.load(text, Loader=yaml.BaseLoader)  # all strings: `on` is a word, not True
    typed = yaml.safe_load(text)
    assert isinstance(document["on"], dict)
    typed["on"] = typed.pop(True)
    jsonschema.validate(typed, WORKFLOW)
    assert typed["permissions"] == {"contents": "read"}
    return dict(typed)


def scripts(job: dict[str, Any]) -> dict[str, str]:
    """The shell scripts of a job by step."""
    return {step["name"]: step["run"] for step in job["steps"] if "run" in step}


def test_the_workflow_is_one(schedule: Schedule) -> None:
    found = workflow(schedule)
    retune, propose = found["jobs"]["retune"], found["jobs"]["propose"]
    assert retune["strategy"]["matrix"]["arch"] == list(ARCHS)
    assert retune["runs-on"] == ["self-hosted", "gpu", "${{ matrix.arch }}"]
    assert propose["needs"] == "retune"
    assert found["env"]["PACKAGE"] == "kernel-autotune[tune,cuda13]"
    assert found["on"]["schedule"] == [{"cron": "17 3 * * 0"}]
    for script in (*scripts(retune).values(), *scripts(propose).values()):
        plain = re.sub(r"\$\{\{.*?\}\}", "word", script)
        subprocess.run(["bash", "-n"], input=plain, text=True, check=True)


def test_the_workflow_proposes_what_was_tuned(schedule: Schedule, tmp_path: Path) -> None:
    found = workflow(schedule)
    origin, runner, temp = tmp_path / "origin", tmp_path / "clone", tmp_path / "temp"
    patches, tools = temp / "patches", tmp_path / "tools"
    for folder in (patches, tools):
        folder.mkdir(parents=True)
    git = "git -c user.name=a -c user.email=a@b"
    shell(f"git init -q --bare -b main '{origin}' && git clone -q '{origin}' '{runner}' 2>&1")
    shell(f"cd '{runner}' && {git} commit -q --allow-empty -m first && git push -q origin HEAD")
    (runner / "reports" / "GPU").mkdir(parents=True)
    (runner / "reports" / "GPU" / "sgemm.json").write_text("{}\n")
    (tools / "gh").write_text('#!/bin/sh\n[ "$2" = list ] || echo "$@" >> "$RUNNER_TEMP/asked"\n')
    (tools / "gh").chmod(0o755)
    environment = {
        **dict.fromkeys(("GITHUB_RUN_ID", "GITHUB_SERVER_URL", "GITHUB_REPOSITORY"), "x"),
        "RUNNER_TEMP": str(temp),
        "HOME": str(tmp_path),
        "PATH": f"{tools}:{os.environ['PATH']}",
    }

    def step(job: str, name: str) -> None:
        script = scripts(found["jobs"][job])[name].replace("${{ matrix.arch }}", "sm_90")
        command = ["bash", "-e", "-c", script]
        subprocess.run(command, cwd=runner, env=environment, check=True, capture_output=True)

    step("retune", "Keep what changed")
    shell(f"mv '{temp}/sm_90.patch' '{patches}' && cd '{runner}' && git reset -q --hard")
    step("propose", "Open a pull request with the new records")
    assert shell(f"git -C '{origin}' show autotune-retune:reports/GPU/sgemm.json") == "{}\n"
    assert "pr create --head autotune-retune" in (temp / "asked").read_text()


def test_a_project_inside_a_repository_is_tuned_in_its_folder(tmp_path: Path) -> None:
    inside = tmp_path / "a b" / "tuning"
    inside.mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    schedule = Schedule(PERIODS["1d"], ("sm_90",), folder=inside, program=("/here/autotune",))
    steps = workflow(schedule)["jobs"]["retune"]["steps"]
    assert "a b/tuning" in [step.get("working-directory") for step in steps]
    assert str(tmp_path) not in (text := schedule.text("github"))
    assert "/here" not in text


# ---------------------------------------------------------------------- the command


def test_schedule_prints_or_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for kind in KINDS:
        assert run(["retune", "--schedule", kind, "--arch", "sm_90", "--arch", "sm_80"]) == 0
        printed = capsys.readouterr().out
        assert (
            run(
                [
                    "retune",
                    "--schedule",
                    kind,
                    "--arch",
                    "sm_90",
                    "--arch",
                    "sm_80",
                    "--out",
                    "here",
                ]
            )
            == 0
        )
        captured = capsys.readouterr()
        files = [Path(line) for line in captured.out.splitlines()]
        assert files and all(file.read_text().rstrip() in printed for file in files)
        assert "sm_90" in printed and "sm_80" in printed
        assert "install: " in captured.err


def test_without_a_gpu_the_machine_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("autotune.devices.cuda_backend.CudaBackend.devices", lambda self: [])
    for kind in ("cron", "systemd"):
        assert run(["retune", "--schedule", kind]) == 0
        assert "--arch" not in capsys.readouterr().out
    for kind in ("slurm", "github"):
        assert run(["retune", "--schedule", kind]) == 2
        assert f"autotune retune --schedule {kind} --arch sm_90" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["chron"], "not one of 'cron'"),
        (["cron", "--every", "3y"], "1w"),
        (["cron", "--arch", "sm_33"], "unknown architecture"),
        (["cron", "--max-hours", "0"], "max-hours"),
    ],
)
def test_what_is_asked_wrongly_is_an_error_of_usage(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert run(["retune", "--schedule", *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"folder": Path("/a\nb")}, "line break"),
        ({"kernels": ("a\necho injected #",)}, "line break"),
        ({"settings": {"AUTOTUNE_PATH": "a\udc80"}}, "line break"),
    ],
)
def test_what_no_entry_can_hold_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Schedule(PERIODS["1d"], (), **changes)


@pytest.mark.parametrize("where", ["kernels", "folder"])
def test_a_workflow_holds_no_name_that_github_would_replace(where: str, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    name = "${{ secrets.X }}"
    named: dict[str, Any] = {"kernels": {"kernels": (name,)}, "folder": {"folder": tmp_path / name}}
    schedule = Schedule(PERIODS["1d"], ("sm_90",), **{"folder": tmp_path, **named[where]})
    with pytest.raises(UsageError, match=r"a workflow cannot hold a name with \$\{\{"):
        schedule.text("github")
    assert all(schedule.text(kind) for kind in KINDS if kind != "github")


def test_a_password_in_the_store_address_goes_nowhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AUTOTUNE_STORE", "postgresql://me:secret@host/db")
    monkeypatch.setenv("AUTOTUNE_TUNED", "/shared/tuned")
    for kind in KINDS:
        assert run(["retune", "--schedule", kind, "--arch", "sm_90"]) == 0
        printed = capsys.readouterr().out
        assert "secret" not in printed
        assert kind == "github" or "AUTOTUNE_TUNED=" in printed
