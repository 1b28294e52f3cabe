"""Options that several commands share, so that they are spelt and explained alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

PATH = click.Path(path_type=Path)
FOLDER = click.Path(path_type=Path, file_okay=False)
SPACES = click.option("--spaces", type=PATH, help="Folder of space files.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
EFFORT_NAMES = click.Choice(["quick", "full"])


def out_option(help_: str) -> Callable[..., Any]:
    """``--out FOLDER`` with what it is for."""
    return click.option(
        "--out", type=FOLDER, default=Path("reports"), show_default=True, help=help_
    )
