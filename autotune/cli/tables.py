"""Tables on stdout: aligned on a terminal, one line per row in a pipe."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from autotune.cli import shown
from autotune.report.table import Table


def print_table(values: Iterable[Mapping[str, object]], title: str = "") -> None:
    """Print rows with the same keys; columns that are empty everywhere are left out.

    Nothing is shown of None, and four digits of a float.
    """
    rows = [{name: _text(value) for name, value in row.items()} for row in values]
    columns = [name for name in (rows[0] if rows else ()) if any(row[name] for row in rows)]
    numeric = [all(row[name][:1].isdigit() or not row[name] for row in rows) for name in columns]
    cells = tuple(tuple(row[name] for name in columns) for row in rows)
    show_table(
        Table(tuple(columns), cells, frozenset(i for i, n in enumerate(numeric) if n)), title
    )


def show_table(table: Table, title: str = "") -> None:
    """Print a table; where it is too wide for a terminal, and in a pipe, lines are long."""
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    made = RichTable(title=title or None, title_justify="left", box=None, pad_edge=False)
    for column, name in enumerate(table.columns):
        made.add_column(name, justify="right" if column in table.numeric else "left")
    for row in table.rows:
        made.add_row(*map(Text, row))  # users' words are no markup
    console = Console(highlight=False)
    plain = Console(highlight=False, width=10_000, file=io.StringIO(), color_system=None)
    if console.is_terminal and plain.measure(made).maximum <= console.width:
        console.print(made)
        return
    with plain.capture() as capture:
        plain.print(made)
    click.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))


def print_measurements(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print measurements as `autotune.store.flat` makes them."""
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


def words(values: Mapping[str, Any]) -> str:
    """Return names and values in one line; booleans as 0 and 1, as the command line takes them."""
    return ", ".join(
        f"{name}={int(value) if isinstance(value, bool) else value}"
        for name, value in values.items()
    )


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else shown(str(value))
