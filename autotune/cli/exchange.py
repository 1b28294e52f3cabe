"""`autotune import`: what others know."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.cli import shown, warn
from autotune.cli.options import FOLDER, PATH, SPACES, TRUST
from autotune.cli.records import record_of
from autotune.cli.tables import words

if TYPE_CHECKING:
    from autotune.search.recorded import Names


@click.command("import")
@click.argument("file", type=PATH)
@click.option("--kernel", metavar="NAME", help="The kernel, where FILE calls it otherwise or not.")
@click.option("--device", metavar="NAME", help="The device, where FILE does not name it.")
@click.option(
    "--problem", metavar="FIELD=N,...", help="The problem, where FILE has no or other fields."
)
@click.option("--into", type=FOLDER, default=".", help="Folder that gets the spaces/ of a T1 file.")
@SPACES
@TRUST
def import_(
    file: Path,
    kernel: str | None,
    device: str | None,
    problem: str | None,
    into: Path,
    spaces: Path | None,
) -> None:
    """Take in what others tuned: a record, Kernel Tuner's cache, T4 results, a wisdom or T1 file.

    A tuned record is merged into yours, so that lookup finds it. What it holds must be values that a
    run could have written; where its kernel is known here, also configurations of that kernel's space.

    The rest was not verified by autotune, and lookup never answers with it: it is kept beside, runs of
    the kernel try the best of it first, and `results` and `export` show it with --imported.

    A T1 description becomes a space file, INTO/spaces/NAME.py, to complete.

    \b
    autotune import colleague/sgemm.json
    autotune import colleague/gemm-cache.json --kernel sgemm --problem m=4096,n=4096,k=4096
    """
    from autotune.cli.parsing import sizes
    from autotune.errors import UsageError
    from autotune.search.recorded import Names, content_of, is_description, is_theirs
    from autotune.values import Problem

    content = content_of(file)
    if is_description(content):
        from autotune.cli.described import write_space

        place = write_space(file, kernel or "", into)
        click.echo(f"wrote {place}")
        click.echo(
            f"next: its source into {into / 'kernels'}, what is right into its `reference`, then: "
            f"autotune check {place.stem}",
            err=True,
        )
        return
    if is_theirs(content):
        names = Names(kernel or "", device or "", Problem(sizes(problem or "")))
        _import_recorded(file, names, spaces)
        return
    if kernel or device or problem:
        raise UsageError(
            f"{file}: no file of other tools; --kernel, --device and --problem are for those"
        )
    _import_record(file, spaces)


def _import_record(file: Path, spaces: Path | None) -> None:
    from autotune.kernel.catalog import known_kernel
    from autotune.tuned.importing import check_values
    from autotune.tuned.reading import user_folder
    from autotune.tuned.writing import update

    record = record_of(file)
    check_values(record, known_kernel(record.kernel, spaces))
    merged = update(Path(user_folder()), record)
    for outcome in merged.outcomes:
        click.echo(f"{words(outcome.problem)}: {outcome.action}, {outcome.reason}")


def _import_recorded(file: Path, names: Names, spaces: Path | None) -> None:
    """Keep a file of another tool, and say what of it can be of use."""
    from autotune.kernel.catalog import known_kernel
    from autotune.search.imported import keep

    place, found = keep(file, names)
    for recording in found:
        best = recording.best(1)
        fastest = f", best {best[0].median_ms:.4g} ms" if best else ", all failed"
        where = f" ({words(recording.problem)})" if recording.problem else ""
        click.echo(
            shown(
                f"{recording.kernel} on {recording.device.name}{where}: "
                f"{len(recording.space)} configurations{fastest}; not verified here"
            )
        )
    declared = known_kernel(found[0].kernel, spaces)
    click.echo(f"kept as {place}", err=True)
    if declared is None:
        click.echo(
            f"no kernel {found[0].kernel!r} is known here: --kernel says which it is", err=True
        )
    elif set(declared.parameters) != set(found[0].space.parameters):
        names_ = ", ".join(sorted(set(declared.parameters) ^ set(found[0].space.parameters)))
        warn(
            f"{declared.name} has other parameters here ({names_}): no search begins with these "
            "configurations"
        )


COMMANDS = {"import": import_}
