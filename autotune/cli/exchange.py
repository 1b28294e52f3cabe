"""`autotune import`: merge a record of others, or keep measurements of another tool."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.cli import shown, warn
from autotune.cli.options import PATH, SPACES
from autotune.cli.records import record_of
from autotune.cli.tables import words

if TYPE_CHECKING:
    from autotune.interop.formats import Labels


@click.command("import")
@click.argument("file", type=PATH)
@click.option("--kernel", metavar="NAME", help="The kernel, where FILE calls it otherwise or not.")
@click.option("--device", metavar="NAME", help="The device, where FILE does not name it.")
@click.option(
    "--problem", metavar="FIELD=N,...", help="The problem, where FILE has no or other fields."
)
@SPACES
def import_(
    file: Path, kernel: str | None, device: str | None, problem: str | None, spaces: Path | None
) -> None:
    """Take in what others tuned: a tuned record, Kernel Tuner's cache or T4 results.

    A tuned record is merged into yours, so that lookup finds it. It must hold values that a run could
    have written. Where its kernel is known here, its configurations must be in that kernel's space.
    Of a problem that both have the entry of more effort stays, then the later one.

    Measurements of other tools are kept apart, since autotune did not verify them: lookup never
    answers with them. A run of the kernel tries the best of them first.

    \b
    autotune import colleague/sgemm.json
    autotune import colleague/gemm-cache.json --kernel sgemm --problem m=4096,n=4096,k=4096
    """
    from autotune.cli.parsing import sizes
    from autotune.errors import UsageError
    from autotune.interop.formats import Labels, content_of
    from autotune.tuned.record import FORMAT
    from autotune.values import Problem

    if f'"{FORMAT}"'.encode() not in content_of(file):
        _import_measurements(
            file, Labels(kernel or "", device or "", Problem(sizes(problem or ""))), spaces
        )
    elif kernel or device or problem:
        raise UsageError(
            f"{file}: a tuned record; --kernel, --device and --problem are for files of other tools"
        )
    else:
        _import_record(file, spaces)


def _import_record(file: Path, spaces: Path | None) -> None:
    from autotune.kernel.catalog import known_kernel
    from autotune.tuned.importing import by_effort_and_date, check_values
    from autotune.tuned.reading import user_folder
    from autotune.tuned.writing import update

    record = record_of(file)
    check_values(record, known_kernel(record.kernel, spaces))
    for outcome in update(Path(user_folder()), record, by_effort_and_date).outcomes:
        click.echo(f"{words(outcome.problem)}: {outcome.action}, {outcome.reason}")


def _import_measurements(file: Path, labels: Labels, spaces: Path | None) -> None:
    from autotune.interop.imported import keep
    from autotune.kernel.catalog import known_kernel

    place, found = keep(file, labels)
    best = found.best(1)
    fastest = f", best {best[0].median_ms:.4g} ms" if best else ", all failed"
    where = f" ({words(found.problem)})" if found.problem else ""
    click.echo(
        shown(
            f"{found.kernel} on {found.device.name}{where}: "
            f"{len(found.space)} configurations{fastest}; not verified here"
        )
    )
    click.echo(f"kept as {place}", err=True)
    declared = known_kernel(found.kernel, spaces)
    if declared is None:
        click.echo(f"no kernel {found.kernel!r} is known here: give its name by --kernel", err=True)
    elif differing := set(declared.parameters) ^ set(found.space.parameters):
        warn(
            f"{declared.name} has other parameters here ({', '.join(sorted(differing))}): no search "
            "begins with these configurations"
        )


COMMANDS = {"import": import_}
