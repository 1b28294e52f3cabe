"""Entries that re-tune by schedule: cron, GitHub; one per GPU architecture.

Fills in the ``.j2`` templates of this folder. Every text is quoted for the program that reads it.
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

import jinja2

from autotune.devices.choose import backend
from autotune.devices.device import for_arch
from autotune.errors import DISTRIBUTION, UsageError

#: Settings that a scheduled process needs to find the same files. No address of a store: it may
#: hold a password.
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
#: The file of each kind; its template has the same name and ``.j2``.
KINDS = {
    "cron": "autotune-retune.cron",
    "github": "autotune-retune.yml",
}
#: How to install the file of each kind, once it is in the current folder.
INSTALL = {
    "cron": "crontab -e, and add the lines of autotune-retune.cron",
    "github": "mkdir -p .github/workflows && cp autotune-retune.yml .github/workflows/",
}
#: What ends a line for any of the readers, and bytes of a path that are no text.
_LINE_ENDS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


#: Periods as cron writes them: at night and off the full hour, when others begin.
PERIODS = {
    "1h": "17 * * * *",
    "6h": "17 */6 * * *",
    "12h": "17 3,15 * * *",
    "1d": "17 3 * * *",
    "1w": "17 3 * * 0",
    "2w": "17 3 1,15 * *",
    "1mo": "17 3 1 * *",
}


@dataclass(frozen=True)
class Schedule:
    """The command of an entry, its period and its folder."""

    #: One of `PERIODS`, as cron writes it.
    period: str
    #: Empty: any device of the machine.
    archs: tuple[str, ...]
    kernels: tuple[str, ...] = ()
    max_hours: float = 2.0
    #: The command that starts `autotune` on this machine.
    program: tuple[str, ...] = ("autotune",)
    #: Where it runs: space files and ``reports/`` are looked for there.
    folder: Path = Path()
    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        words = (*self.kernels, *self.archs, *self.program, str(self.folder))
        for text in (*words, *self.settings.values()):
            if _LINE_ENDS.search(text):
                raise UsageError(f"{text!r}: a schedule cannot hold a name with a line break")

    def arguments(self, arch: str) -> list[str]:
        """Return the arguments of `autotune` for one architecture, or for any where it is empty."""
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
                if "${{" in text:  # GitHub replaces it before a shell sees its quotes
                    raise UsageError(f"{text!r}: a workflow cannot hold a name with ${{{{")
        return _TEMPLATES.get_template(f"{KINDS[kind]}.j2").render(
            schedule=self,
            inside=inside,
            package=f"{DISTRIBUTION}[tune,cuda13]",
            minutes=math.ceil(self.max_hours * 60) + 60,  # a search that has begun is finished
        )


def local_schedule(
    kind: str, every: str, archs: Iterable[str], kernels: tuple[str, ...], max_hours: float
) -> Schedule:
    """Return the schedule of this machine and folder: a kind of `KINDS`, a period of `PERIODS`.

    Without architectures it is for those of this machine's GPUs, without kernels for all.
    """
    devices = [for_arch(arch) for arch in archs] or backend("cuda").devices()
    chosen = tuple(dict.fromkeys(device.arch for device in devices))
    if not chosen and kind == "github":
        raise UsageError(
            "no GPU here to schedule for; name them: autotune retune --schedule github --arch sm_90"
        )
    return Schedule(
        period=PERIODS[every],
        archs=chosen,
        kernels=kernels,
        max_hours=max_hours,
        program=program(),
        folder=Path.cwd(),
        settings={name: os.environ[name] for name in SETTINGS if os.environ.get(name)},
    )


def program() -> tuple[str, ...]:
    """Return the command that starts this autotune without anything of the environment."""
    script = Path(sys.executable).parent / "autotune"
    return (str(script),) if script.is_file() else (sys.executable, "-m", "autotune")


def _repository(folder: Path) -> Path:
    """Return the nearest folder above with ``.git``; the folder itself where there is none."""
    return next((place for place in (folder, *folder.parents) if (place / ".git").exists()), folder)


_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    undefined=jinja2.StrictUndefined,
    keep_trailing_newline=True,
    trim_blocks=True,
    block_start_string="<%",  # the default ones mean something to GitHub and to bash
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
)
