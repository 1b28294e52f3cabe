"""Entries that re-tune by schedule: cron, systemd, Slurm, GitHub; one per GPU architecture.

Makes text only: what is stale is decided when the entry runs. Every text is quoted for the program
that reads it, so folders may have spaces and worse in their names. The longer texts are in
``github.yml`` and ``slurm.sbatch``; this module fills them in.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotune.devices.choose import backend
from autotune.devices.device import for_arch
from autotune.errors import UsageError, unknown
from autotune.extras import origin

#: Settings that a scheduled process needs to find the same files. No address of a store: it may
#: hold a password.
SETTINGS = (
    "AUTOTUNE_PATH",
    "AUTOTUNE_TRUST",
    "AUTOTUNE_TUNED",
    "AUTOTUNE_CACHE_DIR",
    "AUTOTUNE_CACHE_SIZE",
    "XDG_DATA_HOME",
    "XDG_CACHE_HOME",
)


@dataclass(frozen=True)
class Period:
    """How often, as cron and as systemd say it."""

    cron: str
    calendar: str
    #: Spread over this long, so that many machines do not begin at once.
    spread: str = "1h"


#: What a runner with a GPU installs of autotune.
_RUNNER_EXTRAS = ("tune", "cuda13")
#: Behind the package of a workflow that only this machine has.
_LOCAL_PACKAGE = "  # a place on one machine: runners elsewhere need one that they reach"
#: What ends a line for any of the readers, and bytes of a path that are no text.
_LINE_ENDS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
#: At night and off the full hour, when others begin.
PERIODS = {
    "1h": Period("17 * * * *", "*-*-* *:17:00", "10min"),
    "6h": Period("17 */6 * * *", "*-*-* 00/6:17:00"),
    "12h": Period("17 3,15 * * *", "*-*-* 03,15:17:00"),
    "1d": Period("17 3 * * *", "*-*-* 03:17:00"),
    "1w": Period("17 3 * * 0", "Sun *-*-* 03:17:00"),
    "2w": Period("17 3 1,15 * *", "*-*-01,15 03:17:00"),
    "1mo": Period("17 3 1 * *", "*-*-01 03:17:00"),
}


@dataclass(frozen=True)
class Schedule:
    """What is to run, how often, and from where."""

    period: Period
    #: Empty: whatever device is there.
    archs: tuple[str, ...]
    kernels: tuple[str, ...] = ()
    max_hours: float = 2.0
    #: The command line that writes this entry again.
    made_by: str = "autotune schedule"
    #: How `autotune` is started on this machine.
    program: tuple[str, ...] = ("autotune",)
    #: Where it runs: space files and ``reports/`` are looked for there.
    folder: Path = Path()
    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what no entry can hold.

        Raises
        ------
        UsageError
            If a text would end its line, or the hours are no number.
        """
        if not math.isfinite(self.max_hours):
            raise UsageError(f"--max-hours {self.max_hours}: a finite number of hours expected")
        if wrong := next((name for name in self.kernels if name.startswith("-")), ""):
            raise UsageError(f"{wrong!r} is an option and no kernel")
        words = (*self.kernels, *self.archs, *self.program, str(self.folder), self.made_by)
        for text in (*words, *self.settings.values()):
            if _LINE_ENDS.search(text):
                raise UsageError(f"{text!r}: a schedule cannot hold a name with a line break")

    def arguments(self, arch: str) -> list[str]:
        """The arguments of `autotune` for one architecture."""
        hours = f"{self.max_hours:g}"
        chosen = ["--arch", arch] if arch else []
        return ["retune", *self.kernels, "--stale", "--max-hours", hours, *chosen]


def local_schedule(
    kind: str, every: str, archs: Iterable[str], kernels: tuple[str, ...], max_hours: float
) -> Schedule:
    """The schedule of this machine and folder: a kind of `KINDS`, every one of `PERIODS`.

    Without architectures it is for those of this machine's GPUs, without kernels for all.

    Raises
    ------
    UsageError
        If a name is not known, or an architecture is needed and there is no GPU here.
    """
    if kind not in KINDS:
        raise UsageError(unknown("schedule", kind, KINDS))
    if every not in PERIODS:
        raise UsageError(unknown("period", every, PERIODS))
    devices = [for_arch(arch) for arch in archs] or backend("cuda").devices()
    chosen = tuple(dict.fromkeys(device.arch for device in devices))
    if not chosen and kind in ("slurm", "github"):
        raise UsageError(
            f"no GPU here to schedule for; name them: autotune schedule {kind} --arch sm_90"
        )
    named = [word for arch in chosen for word in ("--arch", arch)]
    return Schedule(
        period=PERIODS[every],
        archs=chosen,
        kernels=kernels,
        max_hours=max_hours,
        made_by=shlex.join(["autotune", "schedule", kind, *kernels, "--every", every, *named]),
        program=program(),
        folder=Path.cwd(),
        settings={name: os.environ[name] for name in SETTINGS if os.environ.get(name)},
    )


# ---------------------------------------------------------------------- the four kinds


def cron(schedule: Schedule) -> dict[str, str]:
    """One crontab line per architecture."""
    lines = [f"# Tunes again what went stale. Made by: {schedule.made_by}"]
    for arch in schedule.archs or ("",):
        command = _shell_line(schedule, arch)
        # To cron % is the end of the line, unless escaped.
        lines.append(f"{schedule.period.cron} {command.replace('%', chr(92) + '%')}")
    return {"autotune-retune.cron": "\n".join(lines) + "\n"}


def systemd(schedule: Schedule) -> dict[str, str]:
    """A service and its timer per architecture."""
    files = {}
    for arch in schedule.archs or ("",):
        name = f"autotune-retune-{arch}" if arch else "autotune-retune"
        files[f"{name}.service"] = _service(schedule, arch)
        files[f"{name}.timer"] = _timer(schedule, arch)
    return files


def slurm(schedule: Schedule) -> dict[str, str]:
    """A script that submits one array task per architecture, and is that task."""
    text = _filled(
        "slurm.sbatch",
        MADE_BY=schedule.made_by,
        CRON=schedule.period.cron,
        HOURS=str(math.ceil(schedule.max_hours) + 1),  # what has begun is finished
        ARCHS=" ".join(schedule.archs),
        GRES=" ".join("gpu:1" for _ in schedule.archs),
        SETTINGS="".join(
            f"export {name}={shlex.quote(value)}\n" for name, value in schedule.settings.items()
        ),
        FOLDER=shlex.quote(str(schedule.folder)),
        COMMAND=shlex.join([*schedule.program, *schedule.arguments("")]),
    )
    return {"autotune-retune.sbatch": text}


def github(schedule: Schedule) -> dict[str, str]:
    """A workflow: one self-hosted runner per architecture, then one pull request."""
    root = _repository(schedule.folder)
    inside = schedule.folder.relative_to(root).as_posix()
    package, is_local = _package(root)
    arguments = shlex.join(schedule.arguments(""))
    for text in (inside, arguments, package):
        if "${{" in text:  # GitHub replaces it before a shell sees its quotes
            raise UsageError(f"{text!r}: a workflow cannot hold a name with ${{{{")
    text = _filled(
        "github.yml",
        MADE_BY=schedule.made_by,
        CRON=schedule.period.cron,
        ARCHS=", ".join(schedule.archs),
        MINUTES=str(math.ceil(schedule.max_hours * 60) + 60),
        PACKAGE=json.dumps(package) + (_LOCAL_PACKAGE if is_local else ""),
        FOLDER=json.dumps(inside),
        ARGUMENTS=arguments,
    )
    return {"autotune-retune.yml": text}


#: By name: what makes the files of an entry from a schedule.
KINDS: dict[str, Callable[[Schedule], dict[str, str]]] = {
    "cron": cron,
    "systemd": systemd,
    "slurm": slurm,
    "github": github,
}

#: How to install the files of an entry, once they are in the current folder.
INSTALL = {
    "cron": "crontab -e, and add the lines of autotune-retune.cron",
    "systemd": "systemctl --user enable --now ./autotune-retune*.timer after "
    "systemctl --user link ./autotune-retune*; loginctl enable-linger lets it run while you are away",
    "slurm": "bash autotune-retune.sbatch; its head says how to repeat that",
    "github": "mkdir -p .github/workflows && cp autotune-retune.yml .github/workflows/",
}


# ---------------------------------------------------------------------- inside


def _filled(template: str, **values: str) -> str:
    """A file beside this one with its ``@NAMES@`` replaced, once."""
    text = Path(__file__).with_name(template).read_text(encoding="utf-8")
    return re.sub(r"@([A-Z_]+)@", lambda match: values[match[1]], text)


def program() -> tuple[str, ...]:
    """How this autotune is started by a process that has nothing of our environment."""
    script = Path(sys.executable).parent / "autotune"
    return (str(script),) if script.is_file() else (sys.executable, "-m", "autotune")


def _package(root: Path) -> tuple[str, bool]:
    """What a runner's pip is asked for, in a repository's root; and whether one machine alone has it."""
    here = origin()
    place = Path(here.place)
    if not (place.is_dir() and place.is_relative_to(root)):
        return here.requirement(*_RUNNER_EXTRAS), here.is_local
    inside = place.relative_to(root).as_posix()
    in_root = replace(here, place="." if inside == "." else f"./{inside}")
    return in_root.requirement(*_RUNNER_EXTRAS), False


def _repository(folder: Path) -> Path:
    """The nearest folder above with ``.git``; the folder itself where there is none."""
    return next((place for place in (folder, *folder.parents) if (place / ".git").exists()), folder)


def _shell_line(schedule: Schedule, arch: str) -> str:
    settings = [f"{name}={value}" for name, value in schedule.settings.items()]
    words = [
        *(["env", *settings] if settings else []),
        *schedule.program,
        *schedule.arguments(arch),
    ]
    return f"cd {shlex.quote(str(schedule.folder))} && {shlex.join(words)}"


def _service(schedule: Schedule, arch: str) -> str:
    command = " ".join(
        _systemd_word(word) for word in (*schedule.program, *schedule.arguments(arch))
    )
    # /usr/bin/env, because $ and quotes mean something else in the path of the program itself.
    lines = [
        f"# Made by: {schedule.made_by}",
        "[Unit]",
        f"Description=Tune GPU kernels again that went stale{f' on {arch}' if arch else ''}",
        "",
        "[Service]",
        "Type=oneshot",
        f"WorkingDirectory={str(schedule.folder).replace('%', '%%')}",
        *(
            f"Environment={_systemd_word(f'{name}={value}', dollar='$')}"
            for name, value in schedule.settings.items()
        ),
        f"ExecStart=/usr/bin/env {command}",
        "Nice=5",
        "",
    ]
    return "\n".join(lines)


def _timer(schedule: Schedule, arch: str) -> str:
    return f"""\
# Made by: {schedule.made_by}
[Unit]
Description=When GPU kernels are tuned again{f" on {arch}" if arch else ""}

[Timer]
OnCalendar={schedule.period.calendar}
RandomizedDelaySec={schedule.period.spread}
Persistent=true

[Install]
WantedBy=timers.target
"""


def _systemd_word(text: str, dollar: str = "$$") -> str:
    """One word of a unit file: systemd.syntax(7), systemd.unit(5) on specifiers."""
    for old, new in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("$", dollar)):
        text = text.replace(old, new)
    return text if re.fullmatch(r"[\w./:=@+-]+", text) else f'"{text}"'
