"""Tables on stdout: aligned on a terminal, one line per row in a pipe."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from autotune.cli import shown


def print_table(values: Iterable[Mapping[str, object]], title: str = "") -> None:
    """Print rows with the same keys; columns that are empty everywhere are left out.

    Nothing is shown of None, and four digits of a float. In a pipe lines are as long as they need
    to be, so that nothing is cut or wrapped.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = [{name: _text(value) for name, value in row.items()} for row in values]
    console = Console(highlight=False)
    columns = [name for name in (rows[0] if rows else ()) if any(row[name] for row in rows)]
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for name in columns:
        is_number = all(row[name][:1].isdigit() or not row[name] for row in rows)
        table.add_column(name, justify="right" if is_number else "left")
    for row in rows:
        table.add_row(*(Text(row[name]) for name in columns))  # users' words are no markup
    if console.is_terminal:
        if Console(width=10_000).measure(table).maximum <= console.width:
            console.print(table)
        else:
            _print_blocks(rows, columns, title)
        return
    piped = Console(highlight=False, width=10_000, file=io.StringIO(), color_system=None)
    with piped.capture() as capture:
        piped.print(table)
    click.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))


def _print_blocks(rows: Sequence[Mapping[str, str]], columns: Sequence[str], title: str) -> None:
    """One line per value: what a terminal too narrow for the table can show uncut."""
    if title:
        click.secho(title, italic=True)
    width = max(map(len, columns), default=0)
    for number, row in enumerate(rows):
        if number:
            click.echo()
        for name in columns:
            if row[name]:
                click.echo(f"{name:<{width}}  {row[name]}")


def words(values: Mapping[str, Any]) -> str:
    """Names and values in one line; booleans as 0 and 1, as the command line takes them."""
    return ", ".join(
        f"{name}={int(value) if isinstance(value, bool) else value}"
        for name, value in values.items()
    )


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else shown(str(value))
