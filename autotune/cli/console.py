"""Options that commands share, and tables on the console."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from autotune.cli import shown
from autotune.cli.completion import kernel_names, strategy_names
from autotune.errors import UsageError
from autotune.report.text_table import Table

# ---------------------------------------------------------------------- options

PATH = click.Path(path_type=Path)
FOLDER = click.Path(path_type=Path, file_okay=False)
KERNEL = click.argument("kernel", shell_complete=kernel_names)
SPACES = click.option("--spaces", type=PATH, help="Folder of space files.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
EFFORT_NAMES = click.Choice(["quick", "full"])
STRATEGY = click.option(
    "--strategy",
    metavar="NAME",
    default="auto",
    show_default=True,
    shell_complete=strategy_names,
    help="Search strategy: auto, random, exhaustive, kt:NAME or optuna:NAME; see autotune list "
    "strategies.",
)
STRATEGY_OPTIONS = click.option(
    "--strategy-option",
    "strategy_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Option of a strategy of Kernel Tuner or Optuna, for example popsize=10 (repeatable).",
)
FLEET = click.option(
    "--fleet",
    metavar="WHERE",
    help="Measure on the workers of a fleet. WHERE is tls://host:8786, tcp://localhost:8786 or a "
    "scheduler file; see autotune fleet.",
)


def out_option(text: str) -> Callable[..., Any]:
    """Return the option ``--out FOLDER`` with a help text."""
    return click.option("--out", type=FOLDER, default=Path("reports"), show_default=True, help=text)


def is_given(name: str) -> bool:
    """Return whether an option's value comes from the command line, not from the default."""
    source = click.get_current_context().get_parameter_source(name)
    return source is ParameterSource.COMMANDLINE


def lists(texts: Sequence[str]) -> dict[str, list[str]]:
    """Parse texts of the form ``NAME=V1,V2``; return the values by name."""
    found: dict[str, list[str]] = {}
    for text in texts:
        name, sign, words = text.partition("=")
        if not sign or not words:
            raise UsageError(f"--fix {text}: expected NAME=VALUE,VALUE")
        found[name] = words.split(",")
    return found


# ---------------------------------------------------------------------- tables on stdout


def print_table(values: Iterable[Mapping[str, object]], title: str = "") -> None:
    """Print rows with the same keys as a table, without empty columns.

    None is an empty cell. Floats have four digits.
    """
    rows = [{shown(name): _text(value) for name, value in row.items()} for row in values]
    columns = [name for name in (rows[0] if rows else ()) if any(row[name] for row in rows)]
    numeric = [all(row[name][:1].isdigit() or not row[name] for row in rows) for name in columns]
    cells = tuple(tuple(row[name] for name in columns) for row in rows)
    show_table(
        Table(tuple(columns), cells, frozenset(i for i, n in enumerate(numeric) if n)), title
    )


def show_table(table: Table, title: str = "") -> None:
    """Print a table; in a pipe or a narrow terminal, its lines stay unwrapped."""
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    made = RichTable(title=title or None, title_justify="left", box=None, pad_edge=False)
    for column, name in enumerate(table.columns):
        made.add_column(name, justify="right" if column in table.numeric else "left")
    for row in table.rows:
        made.add_row(*map(Text, row))  # as Text, so that rich parses no markup in names
    terminal = Console(highlight=False)
    plain = Console(highlight=False, width=10_000, file=io.StringIO(), color_system=None)
    if terminal.is_terminal and plain.measure(made).maximum <= terminal.width:
        terminal.print(made)
        return
    with plain.capture() as capture:
        plain.print(made)
    click.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))


def print_measurements(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print measurements in the form of `autotune.store.flat`."""
    from autotune.measure.timing import Timing

    metrics = dict.fromkeys(name for row in rows for name in row["metrics"])
    print_table(
        {
            "kernel": row["kernel"],
            "problem": words(row["problem"]),
            "status": row["status"],
            "median ms": row["median_ms"],
            "timing": Timing(row.get("timing", "")).remark,
            "energy mJ": row["energy_mj"],
            "power W": row["power_w"],
            **{name: row["metrics"].get(name) for name in metrics},
            "largest error": row["max_error"],
            "registers": row["registers"] or "",
            "spill bytes": row["spill_bytes"] or "",
            "configuration": words(row["config"]),
            "device": row["device"],
            "message": row["message"],
        }
        for row in rows
    )


def launch_text(launch: Any) -> str:
    """Return a launch as an indented line; a grid that is not known is left out."""
    grid = "" if launch.grid is None else f"grid {launch.grid}, "
    attributes = [f"cluster {launch.cluster}"] if launch.cluster else []
    attributes += [name for name in ("cooperative", "programmatic") if getattr(launch, name)]
    return ", ".join(
        [
            f"  launch {launch.entry}: {grid}block {launch.block}",
            f"{launch.shared_bytes} bytes of dynamic shared memory",
            *attributes,
        ]
    )


def words(values: Mapping[str, Any]) -> str:
    """Return names and values as one line in the command line's form: booleans are 0 and 1."""
    return ", ".join(
        f"{name}={int(value) if isinstance(value, bool) else value}"
        for name, value in values.items()
    )


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else shown(str(value))
