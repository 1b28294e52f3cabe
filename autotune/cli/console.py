"""Text in, tables out: options that commands share; problems and configurations from text; tables."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autotune.cli import shown
from autotune.errors import UsageError, unknown
from autotune.report.table import Table

if TYPE_CHECKING:
    from autotune.kernel.spec import Kernel
    from autotune.values import Configuration, Problem, Value

# ---------------------------------------------------------------------- options


def kernel_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Return names of kernels for a shell to complete; reads and runs no space file."""
    from autotune.kernel.catalog import space_files

    with suppress(Exception):  # the command itself reports what is wrong
        return sorted(name for name in space_files() if name.startswith(incomplete))
    return []


PATH = click.Path(path_type=Path)
FOLDER = click.Path(path_type=Path, file_okay=False)
KERNEL = click.argument("kernel", shell_complete=kernel_names)
SPACES = click.option("--spaces", type=PATH, help="Folder of space files.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
EFFORT_NAMES = click.Choice(["quick", "full"])
FLEET = click.option(
    "--fleet",
    metavar="WHERE",
    help="Measure on the workers of a fleet: tls://host:8786, tcp://localhost:8786 or its scheduler "
    "file; see autotune fleet.",
)


def out_option(text: str) -> Callable[..., Any]:
    """Return the option ``--out FOLDER`` with its help."""
    return click.option("--out", type=FOLDER, default=Path("reports"), show_default=True, help=text)


# ---------------------------------------------------------------------- text


def pairs(text: str) -> dict[str, str]:
    """Read ``a=1,b=2``; no name may occur twice."""
    found: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, sign, value = part.partition("=")
        if not sign or not name or not value:
            raise UsageError(f"{part!r}: expected NAME=VALUE")
        if name in found:
            raise UsageError(f"{name} is given twice")
        found[name] = value
    return found


def lists(texts: Sequence[str]) -> dict[str, list[str]]:
    """Read ``NAME=V1,V2`` of each text."""
    found: dict[str, list[str]] = {}
    for text in texts:
        name, sign, words = text.partition("=")
        if not sign or not words:
            raise UsageError(f"--fix {text}: expected NAME=VALUE,VALUE")
        found[name] = words.split(",")
    return found


def sizes(text: str) -> dict[str, int | str]:
    """Read ``m=64,mode=copy``, problem fields of an unknown kernel: integers where they are."""
    found: dict[str, int | str] = {}
    for name, value in pairs(text).items():
        number = integer(value)
        found[name] = value if number is None else number
    return found


def integer(text: str) -> int | None:
    """Read an integer, also as ``2^20`` or ``2**20``; None for anything else."""
    base, sign, exponent = text.replace("**", "^").partition("^")
    try:
        return int(base) ** int(exponent) if sign and int(exponent) <= 62 else int(text)
    except ValueError:
        return None


# ---------------------------------------------------------------------- values of a kernel


def problem(kernel: Kernel, given: str | Mapping[str, Any]) -> Problem:
    """Return a problem from its text or fields; layout fields may be left out."""
    from autotune.values import Problem

    fields = _mapping("problem", given, kernel.fields)
    example = next(problem for group in kernel.problems.values() for problem in group)
    known = kernel.filled(example)
    for name in fields:
        if name not in known:
            raise UsageError(f"{kernel.name}: {unknown('problem field', name, known)}")
    missing = [name for name in example if name not in fields]
    if missing:
        raise UsageError(
            f"{kernel.name}: problem {given!r} lacks {', '.join(missing)}; "
            f"give for example {str(example).replace(', ', ',')}"
        )
    # In the kernel's order, which records and headers keep.
    values = {name: _field(name, fields[name], known[name]) for name in known if name in fields}
    return kernel.normal(Problem(values))


def _field(name: str, given: Any, example: Any) -> int | str:
    value = given.item() if hasattr(given, "item") else given
    if not isinstance(example, int):
        return str(value)
    number = integer(value) if isinstance(value, str) else value
    if not isinstance(number, int) or number < 0:
        raise UsageError(f"problem field {name}={given}: an integer of at least 0 expected")
    return number


def configuration(kernel: Kernel, given: str | Mapping[str, Any]) -> Configuration:
    """Return a configuration; parameters left out keep the kernel's default."""
    return kernel.default().replace(**values(kernel.name, kernel.parameters, given))


def values(
    kernel: str, parameters: Mapping[str, Sequence[Value]], given: str | Mapping[str, Any]
) -> dict[str, Value]:
    """Return values of some of a kernel's parameters, as they are declared."""
    found = _mapping("config", given, parameters)
    return {name: _value(kernel, parameters, name, value) for name, value in found.items()}


def restriction(
    kernel: str, parameters: Mapping[str, Sequence[Value]], given: Mapping[str, Any]
) -> dict[str, tuple[Value, ...]]:
    """Return the values that are left of some of a kernel's parameters; one value may stand alone."""
    found: dict[str, tuple[Value, ...]] = {}
    for name, chosen in _mapping("fixed", given, parameters).items():
        several = (
            chosen if hasattr(chosen, "__iter__") and not isinstance(chosen, str) else [chosen]
        )
        found[name] = tuple(_value(kernel, parameters, name, value) for value in several)
    return found


def _mapping(what: str, given: Any, known: Iterable[str]) -> Mapping[str, Any]:
    if isinstance(given, str):
        return pairs(given)
    if isinstance(given, Mapping):
        return given
    example = ", ".join(f"{name!r}: ..." for name in known)
    raise UsageError(f"{what}: {given!r}; a mapping expected: {{{example}}}")


def _value(kernel: str, parameters: Mapping[str, Sequence[Value]], name: str, given: Any) -> Value:
    if name not in parameters:
        raise UsageError(f"{kernel}: {unknown('parameter', name, parameters)}")
    for declared in parameters[name]:
        texts = {str(declared)}
        if isinstance(declared, bool):
            texts |= {str(int(declared)), str(declared).lower()}
        if str(given) in texts or (isinstance(declared, float) and _decimal(given) == declared):
            return declared
    raise UsageError(f"{kernel}: {unknown(f'value of {name}:', given, parameters[name])}")


def _decimal(given: Any) -> float | None:
    try:
        return float(given)
    except (TypeError, ValueError):
        return None


# ---------------------------------------------------------------------- tables on stdout


def print_table(values: Iterable[Mapping[str, object]], title: str = "") -> None:
    """Print rows with the same keys; columns that are empty everywhere are left out.

    Nothing is shown of None, and four digits of a float.
    """
    rows = [{shown(name): _text(value) for name, value in row.items()} for row in values]
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
    terminal = Console(highlight=False)
    plain = Console(highlight=False, width=10_000, file=io.StringIO(), color_system=None)
    if terminal.is_terminal and plain.measure(made).maximum <= terminal.width:
        terminal.print(made)
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
