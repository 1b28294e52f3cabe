"""`autotune import`: what others know."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from autotune.cli import shown, warn
from autotune.cli.options import FOLDER, PATH, SPACES, TRUST
from autotune.cli.records import record_of
from autotune.cli.tables import words

if TYPE_CHECKING:
    from autotune.kernel.spec import Kernel
    from autotune.retune.settle import Settled
    from autotune.search.recorded import Names
    from autotune.tuned.record import Entry, TunedRecord


@click.command("import")
@click.argument("file", type=PATH)
@click.option("--kernel", metavar="NAME", help="The kernel, where FILE calls it otherwise or not.")
@click.option("--device", metavar="NAME", help="The device, where FILE does not name it.")
@click.option(
    "--problem", metavar="FIELD=N,...", help="The problem, where FILE has no or other fields."
)
@click.option(
    "--from-device", metavar="NAME|UUID", help="Of a record only what was measured on this device."
)
@click.option(
    "--trusted-key",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="KEYS",
    help="Take a record only where FILE.sig is of one of these SSH public keys.",
)
@click.option(
    "--race",
    is_flag=True,
    help="Where a record's winner is another than yours, verify and measure both here.",
)
@click.option("--into", type=FOLDER, default=".", help="Folder that gets the spaces/ of a T1 file.")
@SPACES
@TRUST
def import_(
    file: Path,
    kernel: str | None,
    device: str | None,
    problem: str | None,
    from_device: str | None,
    trusted_key: Path | None,
    race: bool,
    into: Path,
    spaces: Path | None,
) -> None:
    """Take in what others tuned: a record, Kernel Tuner's cache, T4 results, a wisdom or T1 file.

    A tuned record is merged into yours, so that lookup finds it. What it holds must be values that a
    run could have written; where its kernel is known here, also configurations of that kernel's space.
    Of a problem that both have the entry of more effort stays, then the later one.

    The rest was not verified by autotune, and lookup never answers with it: it is kept beside, runs of
    the kernel try the best of it first, and `results` and `export` show it with --imported.

    A T1 description becomes a space file, INTO/spaces/NAME.py, to complete.

    \b
    autotune import colleague/sgemm.json
    autotune import colleague/sgemm.json --from-device "NVIDIA H100 80GB HBM3"
    autotune import colleague/gemm-cache.json --kernel sgemm --problem m=4096,n=4096,k=4096
    """
    from autotune.cli.parsing import sizes
    from autotune.errors import UsageError
    from autotune.search.recorded import Names, content_of, is_description, is_theirs
    from autotune.values import Problem

    content = content_of(file)
    is_record = not (is_description(content) or is_theirs(content))
    if not is_record and (from_device or trusted_key or race):
        raise UsageError(
            f"{file}: no tuned record; --from-device, --trusted-key and --race are for those"
        )
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
    _import_record(file, spaces, from_device, trusted_key, race)


def _import_record(
    file: Path,
    spaces: Path | None,
    from_device: str | None,
    trusted_key: Path | None,
    is_race: bool,
) -> None:
    from autotune.kernel.catalog import known_kernel
    from autotune.tuned import importing
    from autotune.tuned.reading import decode, path_of, read, user_folder
    from autotune.tuned.record import key_of
    from autotune.tuned.writing import update

    record = record_of(file)
    if trusted_key:
        data = file.read_bytes()
        importing.require_signature(file, data, trusted_key)
        record = decode(data, str(file))  # what was signed, whatever is there meanwhile
    if from_device:
        record = importing.of_device(record, from_device)
    kernel = known_kernel(record.kernel, spaces)
    importing.check_values(record, kernel)
    mine = path_of(Path(user_folder()), record)
    ours = read(mine) if mine.exists() else None
    differing = importing.conflicts(ours, record)
    settled = _raced(record, kernel, differing) if is_race and differing else {}

    def choose(ours: Entry, theirs: Entry) -> tuple[Literal["kept", "replaced"], str]:
        found = settled.get(key_of(theirs.problem))
        return found or importing.by_effort_and_date(ours, theirs)

    merged = update(Path(user_folder()), record, choose)
    for outcome in merged.outcomes:
        click.echo(f"{words(outcome.problem)}: {outcome.action}, {outcome.reason}")
    for entries in () if is_race else differing:
        sides = zip(("yours", "theirs"), entries, strict=True)
        click.echo(shown(f"conflict: {'; '.join(_winner(whose, each) for whose, each in sides)}"))
    if differing and not is_race:
        click.echo("settle conflicts on a card of this model: the same with --race", err=True)


def _winner(whose: str, entry: Entry) -> str:
    """One side of a conflict: what won, and who found it when."""
    by = f" by {entry.who}" if entry.who else ""
    return (
        f"{whose} {words(entry.configuration)} {entry.median_ms:.4g} ms "
        f"({entry.effort}, {entry.tuned_on[:10]}{by})"
    )


def _raced(
    record: TunedRecord, kernel: Kernel | None, differing: Sequence[tuple[Entry, Entry]]
) -> Settled:
    from autotune.errors import DeviceError, UsageError
    from autotune.retune.mend import Orders
    from autotune.retune.settle import settle
    from autotune.retune.stale import find_devices

    if kernel is None:
        raise UsageError(f"--race: {record.kernel} is no kernel that is known here")
    here = find_devices()
    device = next((each for each in here if each.folder == record.device.folder), None)
    if device is None:
        raise DeviceError(
            f"--race: no {record.device.name} here (there is {here[0].name}); import without it"
        )
    say = Orders(say=lambda text: click.echo(text, err=True))
    return settle(kernel, device, record, differing, say)


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
