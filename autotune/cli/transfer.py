"""`autotune export` and `import`: exchange tuned records and measurements with programs and people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.cli import shown
from autotune.cli.console import KERNEL, PATH, SPACES, out_option, words
from autotune.errors import RecordError, RegressionError, UsageError

if TYPE_CHECKING:
    from autotune.interop.formats import Labels
    from autotune.tuned.record import TunedRecord


@click.command("export")
@KERNEL
@click.argument(
    "format", type=click.Choice(["header", "cuda", "binaries", "t4", "cache"]), default="header"
)
@click.option("--device", metavar="NAME", help="Only the device of this name.")
@click.option(
    "--from",
    "source",
    type=PATH,
    metavar="DIR",
    help="Folder of tuned records; default: your records, else the shipped records.",
)
@out_option("Folder to write to.")
@click.option(
    "--check",
    is_flag=True,
    help="Write nothing; exit code 5 if the headers there are not of the current kernel and records.",
)
def export(
    kernel: str, format: str, device: str | None, source: Path | None, out: Path, check: bool
) -> None:
    """Write the tuned records or measurements of KERNEL in another format.

    \b
    header    a C++ header with the tuned configurations (default)
    cuda      CUDA sources of the winners, with C++ code that launches them
    binaries  the tuned configurations compiled, for load with AUTOTUNE_CACHE_DIR=DIR
    t4        all measurements, as T4 results
    cache     all measurements, as a cache file of Kernel Tuner

    \b
    autotune export sgemm header --out include/autotune
    autotune export sgemm header --out include/autotune --check
    autotune export sgemm cuda --out tuned
    autotune export copy binaries --out image
    autotune export sgemm cache --out kernel_tuner
    """
    from autotune.export import export_measurements, export_records
    from autotune.files import write_atomically

    if check and format not in ("header", "cuda"):
        raise UsageError(f"--check is for header and cuda, not for {format}")
    if format in ("header", "cuda", "binaries"):
        from autotune.retune.stale import records_of

        records, reasons = records_of(kernel, device, source, needs_cuda=format == "cuda")
        if check:
            _require_current(format, out, records, reasons)
            return
        files: Mapping[str, str | bytes] = export_records(format, records, reasons)
    else:
        from autotune.interop.exchange import measurements_by_folder
        from autotune.kernel.catalog import find_kernel
        from autotune.store import Store, default_url

        with Store.open(default_url()) as store:
            found = measurements_by_folder(store, find_kernel(kernel), device)
        files = {
            f"{folder}/{name}": text
            for folder, results in found.items()
            for name, text in export_measurements(format, results).items()
        }
    for name, text in files.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out / name, text.encode() if isinstance(text, str) else text)
        click.echo(str(out / name))


def _require_current(
    format: str, out: Path, records: Sequence[TunedRecord], reasons: Sequence[str]
) -> None:
    """Raise `RegressionError` if a header in a folder is not of these records, or if they are stale."""
    from autotune.export.writer import Writer

    kernel, made_of = records[0].kernel, Writer(records).made_of
    write = f"autotune export {kernel} {format} --out {out}"
    names = [f"{kernel}.hpp", *([f"{kernel}_launch.hpp"] if format == "cuda" else [])]
    for file in (out / name for name in names):
        if reasons:
            raise RegressionError(
                f"{file}: the kernel changed since it was tuned ({', '.join(reasons)}); run: "
                f"autotune run {kernel}, then: {write}"
            )
        if not file.is_file() or made_of not in file.read_text(errors="replace"):
            raise RegressionError(
                f"{file}: not the header of the current kernel and its records; run: {write}"
            )
        click.echo(f"{file} is of the current kernel and its records")


@click.command("import")
@click.argument("file", type=PATH)
@click.option(
    "--kernel", metavar="NAME", help="Kernel, if FILE does not name it or uses another name."
)
@click.option("--device", metavar="NAME", help="Device, if FILE does not name it.")
@click.option("--problem", metavar="FIELD=N,...", help="Problem, if FILE does not name its fields.")
@click.option(
    "--map",
    "fields",
    metavar="THEIRS=OURS,...",
    help="Problem fields of FILE and of the kernel, for example x=width,y=height.",
)
@SPACES
def import_(
    file: Path,
    kernel: str | None,
    device: str | None,
    problem: str | None,
    fields: str | None,
    spaces: Path | None,
) -> None:
    """Import a tuned record, or measurements of Kernel Tuner: a cache file or T4 results.

    A tuned record is checked against the kernel and merged into your records, where lookup finds it. If both
    have an entry for a problem, the entry with more effort stays. With equal effort, the later entry stays
    unless it is clearly slower.

    Measurements are kept separately and are not verified. lookup never uses them. A run of the kernel
    measures the best of them first.

    \b
    autotune import colleague/sgemm.json
    autotune import colleague/gemm-cache.json --kernel sgemm --problem m=4096,n=4096,k=4096
    autotune import colleague/flip-cache.json --kernel transpose --map x=m,y=n
    """
    from autotune.interop.formats import Labels, content_of
    from autotune.kernel.parsing import pairs, sizes
    from autotune.tuned.reading import decode
    from autotune.tuned.record import FORMAT
    from autotune.values import Problem

    content = content_of(file)
    if f'"{FORMAT}"'.encode() not in content:
        labels = Labels(kernel or "", device or "", Problem(sizes(problem or "")))
        _import_measurements(file, labels, pairs(fields or ""), spaces)
    elif kernel or device or problem or fields:
        raise UsageError(
            f"{file} is a tuned record; omit --kernel, --device, --problem and --map, which are for files "
            "of other tools"
        )
    else:
        _import_record(file, decode(content, str(file)), spaces)


def _import_record(file: Path, record: TunedRecord, spaces: Path | None) -> None:
    from autotune.checking.importing import checked
    from autotune.kernel.catalog import known_kernel
    from autotune.report.publish import amend
    from autotune.tuned.comparison import by_effort_and_date
    from autotune.tuned.reading import user_folder

    kernel = known_kernel(record.kernel, spaces)
    if kernel is None:
        raise UsageError(
            f"{record.kernel}: not imported, because the kernel to check the record against is not known; "
            "name the folder of its space file: --spaces FOLDER"
        )
    mine = Path(user_folder(kernel.project))
    try:
        foreign = checked(record, kernel)
    except RecordError as error:
        raise RecordError(f"{file}: {error}") from error
    found = amend(mine, foreign, by_effort_and_date)
    for outcome in found.outcomes:
        click.echo(shown(f"{words(outcome.problem)}: {outcome.action}, {outcome.reason}"))


def _import_measurements(
    file: Path, labels: Labels, fields: Mapping[str, str], spaces: Path | None
) -> None:
    from dataclasses import replace

    from autotune.errors import unknown
    from autotune.interop.exchange import import_results, matched
    from autotune.interop.formats import read_results
    from autotune.kernel.catalog import known_kernel, space_files

    found = read_results(file, labels)
    declared = known_kernel(found.kernel, spaces)
    if declared is None:
        known = unknown("kernel", found.kernel, sorted(space_files(spaces)))
        raise UsageError(f"{file}: {known}; if yours has another name, add --kernel NAME")
    problem = matched(found, declared, fields)
    place, found = import_results(file, replace(labels, problem=problem))
    best = found.best(1)
    fastest = f", best {best[0].median_ms:.4g} ms" if best else ", all failed"
    where = f" ({words(found.problem)})" if found.problem else ""
    click.echo(
        shown(
            f"{found.kernel} on {found.device_name}{where}: "
            f"{len(found.measurements)} configurations{fastest}; not verified here"
        )
    )
    click.echo(f"wrote {place}", err=True)


COMMANDS = {"export": export, "import": import_}
