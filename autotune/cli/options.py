"""Options that several commands share, so that they are spelt and explained alike."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click


def kernel_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Names of kernels for a shell that completes one; of space files that nobody reads or runs."""
    from autotune.kernel.catalog import space_files

    with suppress(Exception):  # whatever is wrong is told when the command runs
        return sorted(name for name in space_files() if name.startswith(incomplete))
    return []


PATH = click.Path(path_type=Path)
FOLDER = click.Path(path_type=Path, file_okay=False)
SPACES = click.option("--spaces", type=PATH, help="Folder of space files.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


FLEET = click.option(
    "--fleet",
    metavar="WHERE",
    help="Measure on the workers of a fleet: tls://host:8786, tcp://localhost:8786 or its scheduler "
    "file; see autotune fleet start.",
)
EFFORT_NAMES = click.Choice(["quick", "full"])


def out_option(help_: str) -> Callable[..., Any]:
    """``--out FOLDER`` with what it is for."""
    return click.option(
        "--out", type=FOLDER, default=Path("reports"), show_default=True, help=help_
    )
