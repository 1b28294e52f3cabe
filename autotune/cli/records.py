"""`autotune lookup`, `results` and `report`: print and report measurements and tuned records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autotune.cli import emit_json, shown, warn
from autotune.cli.completion import kernel_names
from autotune.cli.console import (
    JSON,
    KERNEL,
    PATH,
    SPACES,
    launch_text,
    out_option,
    print_measurements,
    print_table,
    words,
)
from autotune.errors import UsageError, needing, unknown

if TYPE_CHECKING:
    from autotune.kernel.spec import Kernel
    from autotune.project import Project
    from autotune.store import PastRun
    from autotune.tuned.answer import TunedConfig
    from autotune.tuned.comparison import ComparedProblem
    from autotune.tuned.record import TunedProblem, TunedRecord

_COUNT = click.IntRange(1, 10**9)
_OPTIONAL_KERNEL = click.argument("kernel", required=False, shell_complete=kernel_names)
_OUT = out_option("Folder to write to.")


@click.command("lookup")
@KERNEL
@click.argument("fields", nargs=-1, metavar="[FIELD=N]...")
@click.option("--arch", metavar="sm_NN", help="Architecture; default: this machine's.")
@click.option(
    "--device",
    metavar="NAME",
    help="Device: the driver's name for it, or cuda:0, opencl:cpu; default: any of the architecture.",
)
@click.option(
    "--deterministic",
    is_flag=True,
    help="Only configurations whose output has the same bits in every run.",
)
@SPACES
@JSON
def lookup(
    kernel: str,
    fields: tuple[str, ...],
    arch: str | None,
    device: str | None,
    deterministic: bool,
    spaces: Path | None,
    as_json: bool,
) -> None:
    """Print the tuned configuration of KERNEL for a problem.

    Also prints whether the kernel has changed since it was tuned. KERNEL may be a decorated function,
    FILE.py:FUNCTION; then FIELDs that are equal in all its tuned calls are optional.

    \b
    autotune lookup sgemm m=4096 n=4096 k=4096 --arch sm_90
    """
    from autotune.devices.choose import choose_device
    from autotune.devices.device import BACKENDS
    from autotune.kernel.names import LOOKUP_ARGUMENTS
    from autotune.kernel.parsing import sizes
    from autotune.tuned.lookup import lookup as answer
    from autotune.tuned.reading import read_layers
    from autotune.values import Configuration

    problem = sizes(",".join(fields))
    for name in problem:
        if name in LOOKUP_ARGUMENTS:
            raise UsageError(f"{name!r} is not a problem field; see: autotune lookup --help")
    name, owner, declared = _record_of(kernel, spaces)
    if _is_function(kernel):
        files = read_layers(name, owner)
        tuned = [set(entry.problem.items()) for file in files for entry in file.record.problems]
        if not tuned:
            raise UsageError(f"{name} is not tuned yet; run: autotune run {kernel}")
        problem = {**dict(set.intersection(*tuned)), **problem}
    is_selector = (device or "").partition(":")[0] in BACKENDS
    chosen = choose_device(device) if is_selector else device
    found = answer(
        name, arch=arch, device=chosen, deterministic=deterministic, project=owner, **problem
    )
    changes: tuple[str, ...] = ()
    with _comparing():
        changes = _changes(declared, owner, found, problem) if declared else ()
    facts: dict[str, Any] = {
        "kernel": name,
        "problem": problem,
        "config": dict(found),
        **{name: getattr(found, name) for name in _ANSWER},
        "launches": [asdict(launch) for launch in found.launches],
        "rival": asdict(found.rival) if found.rival else None,
        "stale_reasons": [*dict.fromkeys((*found.stale_reasons, *changes))],
    }
    if as_json:
        emit_json(facts)
        return
    click.echo(shown(str(Configuration(found))))
    click.echo(shown(f"  quality: {found.quality}"))
    for launch in found.launches:
        click.echo(shown(launch_text(launch)))
    click.echo(shown(f"  source: {found.source}"))
    notes = {
        f"rival: {found.rival}": found.rival is not None,
        found.other_device: found.other_device,
        found.expected: found.expected,
        f"objective: {found.objective}": found.objective != "time",
        "not verified: it ran at no such size, or at no larger and smaller one": not found.verified,
        "exclusive: launches of one loaded module must not overlap": found.exclusive,
        "deterministic: the output has the same bits in every run": found.deterministic,
        **{f"stale: {reason}": True for reason in facts["stale_reasons"]},
        f"noise: {found.noise}": found.noise,
    }
    for text in (text for text, applies in notes.items() if applies):
        click.echo(shown(f"  {text}"))


#: Attributes of an answer that `autotune lookup --json` prints.
_ANSWER = (
    *("quality", "block", "grid", "shared_bytes", "expected_fraction", "median_fraction"),
    *("exclusive", "deterministic", "verified", "noise", "objective", "source", "other_device"),
)


def _changes(
    kernel: Kernel, owner: Project, found: TunedConfig, problem: Mapping[str, int | str]
) -> tuple[str, ...]:
    """Return the changes of a kernel, or of a record by hand, since the plan of an answer was made."""
    from autotune.kernel.source import changed_since
    from autotune.tuned.lookup import table_of
    from autotune.tuned.merged import DEFAULT

    with needing("comparing an answer with its kernel"):
        from autotune.checking.launch_faults import answer_fault
        from autotune.kernel.definition import NOT_DECLARED
        from autotune.kernel.space import is_member
    table = table_of(kernel.name, owner)
    assert table is not None  # it has the answer
    made = found.origin or table.newest.provenance
    group = table.devices.get(found.source.partition(":")[2].rpartition("/")[0])
    if group is None or group.device is None:  # a device with first calls only
        return changed_since(kernel, made.source, made.arguments)
    device = group.device.planned_for()
    reasons = changed_since(kernel, made.source, made.arguments)
    # A default may be outside the space.
    if found.quality != DEFAULT and not is_member(kernel, found, device):
        reasons += (NOT_DECLARED,)
    if reasons or kernel.language is not None:  # its compiler decides the launches
        return reasons
    fault = answer_fault(found, problem, kernel, device)
    return (f"its launch was changed by hand: {fault}",) if fault else ()


def _is_function(kernel: str) -> bool:
    """Return whether a name is FILE.py:FUNCTION, which names a decorated function."""
    return ".py:" in kernel


def _is_file(kernel: str | None) -> bool:
    """Return whether a name is FILE.py (a space file) or FILE.py:FUNCTION."""
    return kernel is not None and (kernel.endswith(".py") or _is_function(kernel))


def _record_of(kernel: str, spaces: Path | None) -> tuple[str, Project, Kernel | None]:
    """Return name and project of a kernel's records, and the kernel if it is known."""
    from autotune.kernel.catalog import find_kernel, known_kernel
    from autotune.tuned.reading import owner_of

    if _is_function(kernel):
        from autotune.triton.calls import NotRecordedError

        try:
            found = find_kernel(kernel)
        except NotRecordedError as error:
            return error.name, error.project, None
        return found.name, found.project, found
    if _is_file(kernel):
        found = find_kernel(kernel)
        return found.name, found.project, found
    declared = None
    with _comparing():
        declared = known_kernel(kernel, spaces)
    return kernel, declared.project if declared else owner_of(kernel, spaces=spaces), declared


@contextmanager
def _comparing() -> Iterator[None]:
    """Warn if a space file fails; without a package that it needs, `lookup` alone compares the files."""
    from autotune.errors import MissingDependencyError, SpecError

    try:
        yield
    except MissingDependencyError:
        pass
    except SpecError as error:
        warn(f"cannot compare the record with its kernel: {error}")


@click.command("results")
@_OPTIONAL_KERNEL
@click.option("--device", metavar="NAME", help="Only this device, by name or uuid.")
@click.option("--best", type=_COUNT, metavar="N", help="Only the N fastest per problem.")
@click.option("--runs", is_flag=True, help="List runs and how they ended, not measurements.")
@click.option("--last", type=_COUNT, metavar="N", help="With --runs: the newest N; default: 20.")
@JSON
def results(
    kernel: str | None,
    device: str | None,
    best: int | None,
    runs: bool,
    last: int | None,
    as_json: bool,
) -> None:
    """List the measurements of KERNEL, or of all kernels, oldest first.

    \b
    autotune results sgemm --best 5
    autotune results sgemm --json
    autotune results --runs --last 50
    """
    from autotune.kernel.catalog import space_files
    from autotune.store import Store, default_url
    from autotune.store.flat import best_rows, last_rows, stored_row

    argument = kernel
    if _is_file(kernel):
        kernel, *_ = _record_of(str(kernel), None)
    with Store.open(default_url()) as store:
        if runs:
            past = store.runs(kernel, device, last or 20)
        elif best:
            found = best_rows(store, best, kernel, device)
        else:
            found = last_rows(store.rows(kernel, device))
    is_unknown = not (past if runs else found) and kernel == argument
    if is_unknown and kernel and kernel not in (known := space_files()):
        raise UsageError(unknown("kernel", kernel, sorted(known)))
    if runs:
        _show_runs(past, argument, as_json)
        return
    rows = [stored_row(row) for row in found]
    if as_json:
        emit_json(rows)
    elif rows:
        print_measurements(rows)
    else:
        click.echo(
            f"no results of {kernel or 'any kernel'} yet; run: autotune run {argument or 'sgemm'}",
            err=True,
        )
    if best and rows:
        click.echo(
            "these are times of the search, one measurement per configuration; the final race decides "
            f"winners: autotune lookup {argument or 'KERNEL'}, autotune report {argument or 'KERNEL'}",
            err=True,
        )


def _show_runs(found: Sequence[PastRun], kernel: str | None, as_json: bool) -> None:
    from dataclasses import asdict
    from datetime import datetime, timedelta

    if as_json:
        emit_json([{**asdict(run), "seconds": run.seconds} for run in found])
    elif found:
        print_table(
            {
                "run": run.id,
                "kernel": run.kernel,
                "started": f"{datetime.fromisoformat(run.started).astimezone():%Y-%m-%d %H:%M}",
                "took": "" if run.seconds is None else str(timedelta(seconds=round(run.seconds))),
                "rows": str(run.rows),
                "ended": run.ended,
                "device": run.device_name,
                "command": run.command,
            }
            for run in found
        )
    else:
        click.echo(f"no runs yet; run: autotune run {kernel or 'KERNEL'}", err=True)


@click.command("report")
@click.argument("kernels", nargs=-1, metavar="[KERNEL|FILE]...", shell_complete=kernel_names)
@click.option("--device", metavar="NAME", help="Only this device, by name, folder or architecture.")
@click.option(
    "--from",
    "source",
    type=PATH,
    metavar="DIR",
    help="Report the tuned records in this folder, instead of your records and the store.",
)
@click.option(
    "--single", is_flag=True, help="Include the scripts in each page: one file, 2 MB larger."
)
@click.option(
    "--against",
    type=PATH,
    metavar="FILE",
    help="Compare the tuned record FILE with this older one.",
)
@click.option(
    "--threshold",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    metavar="PERCENT",
    help="With --against: the slowdown that counts as a regression.",
)
@SPACES
@_OUT
@click.option("--json", "as_json", is_flag=True, help="With --against: print one JSON document.")
def report(
    kernels: tuple[str, ...],
    device: str | None,
    source: Path | None,
    single: bool,
    against: Path | None,
    threshold: float,
    spaces: Path | None,
    out: Path,
    as_json: bool,
) -> None:
    """Write the report of each KERNEL, or of all kernels, from the store and your tuned records.

    Of a named KERNEL without records of yours, reports those next to it, or the shipped ones.

    With --against, compares two tuned records of a kernel: for each problem the ratio of the times with its
    95 % interval, and the parameters that differ. Exit code 5 if both records are of one device model and
    the whole interval of a ratio is above the threshold.

    \b
    autotune report sgemm
    autotune report sgemm transpose --device sm_90
    autotune report --from reports --out reports
    autotune report new/sgemm.json --against old/sgemm.json
    """
    if against is not None:
        if len(kernels) != 1:
            raise UsageError(
                "report --against: name one newer record: autotune report NEW.json --against OLD.json"
            )
        _compare(against, Path(kernels[0]), threshold, as_json)
        return
    if as_json:
        raise UsageError("report: --json works only with --against; a report is written to files")
    from autotune.kernel.catalog import space_folders
    from autotune.report.publish import report_recorded
    from autotune.store import Store, default_url

    space_folders(spaces)  # raises if --spaces is not a folder
    chosen = [
        record
        for name in dict.fromkeys(kernels or [None])
        for record in _records_to_report(name, device, source, spaces)
    ]
    with nullcontext() if source else Store.open(default_url()) as store:
        for record in chosen:
            for file in report_recorded(record, store, spaces, out, single):
                click.echo(str(file))


def _records_to_report(
    kernel: str | None, device: str | None, source: Path | None, spaces: Path | None
) -> list[TunedRecord]:
    """Return records of a kernel or of all: of a folder, else the user's, else those next to the kernels."""
    from autotune.project import bundled_project
    from autotune.retune.stale import not_tuned
    from autotune.tuned.reading import read_all, user_folder, user_folders

    name, owner = kernel, bundled_project()
    if kernel:
        name, owner, _ = _record_of(kernel, spaces)
    own = [user_folder(owner)] if kernel else user_folders()
    # Without names the pages of all shipped records would be written.
    kept = [owner.reports] if kernel else []
    for folders in [[source]] if source else [own, kept]:
        found = [
            record
            for folder in folders
            for record in (read_all(Path(folder), name or "*") if folder else ())
            if device in (None, record.device.name, record.device.folder, record.device.arch)
        ]
        if found and folders is kept:
            where = (
                "that ship with autotune" if owner == bundled_project() else f"in {owner.reports}"
            )
            text = f"{kernel} is not tuned here; the report is of the records {where}"
            click.echo(text, err=True)
        if found:
            return found
    raise not_tuned(kernel, device, source)


def _compare(first: Path, second: Path, threshold: float, as_json: bool) -> None:
    from autotune.errors import RegressionError
    from autotune.tuned.comparison import compared
    from autotune.tuned.reading import read

    before, after = read(first), read(second)
    found = compared(before, after, threshold / 100)
    rows = [_compared_row(pair, before, after) for pair in found]
    if as_json:
        emit_json(rows)
    else:
        _show_compared(rows, before, after)
    slower = [pair for pair in found if pair.change == "slower"]
    if slower:
        worst = max(slower, key=lambda pair: pair.ratio or 0.0)
        raise RegressionError(
            f"{before.kernel}: {len(slower)} of {len(found)} problems are slower by more than "
            f"{threshold:g} %; the slowest, {words(worst.problem)}, takes {worst.ratio:.3f} times as long"
        )


def _compared_row(pair: ComparedProblem, first: TunedRecord, second: TunedRecord) -> dict[str, Any]:
    def side(record: TunedRecord, entry: TunedProblem | None) -> dict[str, Any] | None:
        if entry is None:
            return None
        return {
            "device": record.device.name,
            "config": dict(entry.configuration),
            "median_ms": entry.median_ms,
            "interval_ms": entry.winner.time_ms.interval,
            "timing": entry.race.timing,
            "tuned_on": entry.origin.tuned_on,
        }

    return {
        "kernel": first.kernel,
        "problem": dict(pair.problem),
        "verdict": pair.change,
        "first": side(first, pair.first),
        "second": side(second, pair.second),
        "differing": pair.differing,
        "ratio": pair.ratio,
        "ratio_interval": pair.ratio_interval,
    }


def _show_compared(
    rows: Sequence[Mapping[str, Any]], first: TunedRecord, second: TunedRecord
) -> None:
    print_table(
        (
            {
                "problem": words(row["problem"]),
                f"1: {first.device.name}, ms": row["first"] and row["first"]["median_ms"],
                f"2: {second.device.name}, ms": row["second"] and row["second"]["median_ms"],
                "2 / 1": "{:.3f} ({:.3f} … {:.3f})".format(row["ratio"], *row["ratio_interval"])
                if row["ratio"]
                else "",
                "": row["verdict"].replace("_", " "),
                "winners differ in": ", ".join(
                    f"{name} {a} → {b}" for name, (a, b) in row["differing"].items()
                ),
            }
            for row in rows
        ),
        title=first.kernel,
    )


COMMANDS = {
    "lookup": lookup,
    "results": results,
    "report": report,
}
