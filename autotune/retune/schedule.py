"""Schedules for re-tuning, with a part for each GPU architecture: cron, systemd, Slurm, GitHub.

The text comes from the ``.j2`` templates of this folder. Every value is quoted for the program that
reads it.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import jinja2

from autotune.devices.choose import backend
from autotune.devices.device import for_arch
from autotune.errors import DISTRIBUTION, UsageError
from autotune.kernel.catalog import project_kernels

#: Settings that a scheduled process needs to find the same files. The address of the store is left out:
#: it may contain a password.
SETTINGS = (
    "AUTOTUNE_PATH",
    "AUTOTUNE_PROJECT",
    "AUTOTUNE_TRUST",
    "AUTOTUNE_TUNED",
    "AUTOTUNE_CACHE_DIR",
    "AUTOTUNE_CACHE_SIZE",
    "XDG_DATA_HOME",
    "XDG_CACHE_HOME",
)
#: The file of each kind. Its template has the same name with ``.j2`` added.
KINDS = {
    "cron": "autotune-retune.cron",
    "systemd": "autotune-retune.sh",
    "slurm": "autotune-retune.sbatch",
    "github": "autotune-retune.yml",
}
#: The command that installs the file of each kind from the current folder.
INSTALL = {
    "cron": "crontab -e, and add the lines of autotune-retune.cron",
    "systemd": "sh autotune-retune.sh, as the user that tunes; its head says how to remove it",
    "slurm": "bash autotune-retune.sbatch; its head says how to repeat it",
    "github": "mkdir -p .github/workflows && cp autotune-retune.yml .github/workflows/",
}
#: Characters that end a line for one of the readers, and bytes of a path that are not text.
_LINE_ENDS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class Period(NamedTuple):
    """A period in the formats of cron and of systemd."""

    cron: str
    calendar: str


#: Periods, at night and not at the full hour, when other jobs begin.
PERIODS = {
    "1h": Period("17 * * * *", "*-*-* *:17:00"),
    "6h": Period("17 */6 * * *", "*-*-* 00/6:17:00"),
    "12h": Period("17 3,15 * * *", "*-*-* 03,15:17:00"),
    "1d": Period("17 3 * * *", "*-*-* 03:17:00"),
    "1w": Period("17 3 * * 0", "Sun *-*-* 03:17:00"),
    "2w": Period("17 3 1,15 * *", "*-*-01,15 03:17:00"),
    "1mo": Period("17 3 1 * *", "*-*-01 03:17:00"),
}


@dataclass(frozen=True)
class Schedule:
    """The command of a schedule, its period and its folder."""

    #: One of the values of `PERIODS`.
    period: Period
    #: GPU architectures; an empty name is any device of the machine.
    archs: tuple[str, ...]
    kernels: tuple[str, ...] = ()
    max_hours: float = 2.0
    #: The command that starts `autotune` on this machine.
    program: tuple[str, ...] = ("autotune",)
    #: The working folder, with space files and ``reports/``.
    folder: Path = Path()
    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        words = (*self.kernels, *self.archs, *self.program, str(self.folder))
        for text in (*words, *self.settings.values()):
            if _LINE_ENDS.search(text):
                raise UsageError(f"{text!r}: a schedule cannot hold a name with a line break")

    def arguments(self, arch: str) -> list[str]:
        """Return the arguments of `autotune` for one architecture; an empty name is any."""
        hours = f"{self.max_hours:g}"
        chosen = ["--arch", arch] if arch else []
        return ["retune", *self.kernels, "--stale", "--max-hours", hours, *chosen]

    def shell_line(self, arch: str) -> str:
        """Return the command line for one architecture, with its folder and settings."""
        settings = [f"{name}={value}" for name, value in self.settings.items()]
        words = (*(["env", *settings] if settings else []), *self.program, *self.arguments(arch))
        return f"cd {shlex.quote(str(self.folder))} && {shlex.join(words)}"

    def text(self, kind: str) -> str:
        """Return the file of a kind of `KINDS`."""
        inside = "."
        if kind == "github":
            inside = self.folder.relative_to(_repository(self.folder)).as_posix()
            for text in (inside, *self.kernels):
                if "${{" in text:  # GitHub replaces it before a shell reads the quotes
                    raise UsageError(f"{text!r}: a workflow cannot hold a name with ${{{{")
        return _TEMPLATES.get_template(f"{KINDS[kind]}.j2").render(
            schedule=self,
            inside=inside,
            package=f"{DISTRIBUTION}[tune,cuda13]",
            minutes=math.ceil(self.max_hours * 60) + 60,  # the last search may end later
        )


def local_schedule(
    kind: str, every: str, archs: Iterable[str], kernels: tuple[str, ...], max_hours: float
) -> Schedule:
    """Return the schedule for this machine and folder, of a kind of `KINDS` and a period of `PERIODS`.

    By default it covers the architectures of this machine's GPUs and the project's kernels, which it names.
    """
    devices = [for_arch(arch) for arch in archs] or backend("cuda").devices()
    chosen = tuple(dict.fromkeys(device.arch for device in devices))
    if not chosen and kind in ("slurm", "github"):
        raise UsageError(
            f"no GPU on this machine; name architectures: autotune retune --schedule {kind} --arch sm_90"
        )
    return Schedule(
        period=PERIODS[every],
        archs=chosen,
        kernels=kernels or tuple(project_kernels(Path("reports"))),
        max_hours=max_hours,
        program=program(),
        folder=Path.cwd(),
        settings={name: os.environ[name] for name in SETTINGS if os.environ.get(name)},
    )


def program() -> tuple[str, ...]:
    """Return the command that starts this autotune, whatever the environment."""
    script = Path(sys.executable).parent / "autotune"
    return (str(script),) if script.is_file() else (sys.executable, "-m", "autotune")


def _repository(folder: Path) -> Path:
    """Return the nearest parent folder with ``.git``, or the folder itself if there is no such parent."""
    return next((place for place in (folder, *folder.parents) if (place / ".git").exists()), folder)


def _systemd_word(text: str, dollar: str = "$$") -> str:
    """Quote a word of a unit file; see systemd.syntax(7), and systemd.unit(5) on specifiers."""
    for old, new in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("$", dollar)):
        text = text.replace(old, new)
    return text if re.fullmatch(r"[\w./:=@+-]+", text) else f'"{text}"'


_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    undefined=jinja2.StrictUndefined,
    keep_trailing_newline=True,
    trim_blocks=True,
    block_start_string="<%",  # the default delimiters have a meaning in GitHub and bash
    block_end_string="%>",
    variable_start_string="<<",
    variable_end_string=">>",
    comment_start_string="<!",
    comment_end_string="!>",
)
_TEMPLATES.filters.update(
    quoted=lambda value: shlex.quote(str(value)),
    joined=shlex.join,
    quoted_json=json.dumps,
    systemd_word=_systemd_word,
)
