"""`autotune lookup`, `results`, `report`, `export`: show what was measured and tuned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autotune.cli import emit_json, warn
from autotune.cli.options import JSON, PATH, SPACES, kernel_names, out_option
from autotune.cli.tables import print_table, words

if TYPE_CHECKING:
    from autotune.interop.formats import Results
    from autotune.kernel.spec import Kernel
    from autotune.report.page import Standing
    from autotune.store import Row, Store
    from autotune.tuned.comparison import ComparedProblem
    from autotune.tuned.record import TunedProblem, TunedRecord, TuningOrigin
    from autotune.values import Problem

_OUT = out_option("Folder to write to.")


@click.command("lookup")
@click.argument("kernel", shell_complete=kernel_names)
@click.argument("fields", nargs=-1, metavar="[FIELD=N]...")
@click.option("--arch", metavar="sm_NN", help="Architecture; default: this machine's.")
@click.option("--device", metavar="NAME", help="The driver's name of a device.")
@click.option("--deterministic", is_flag=True, help="Only what gives the same bits in every run.")
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
    """Answer with the tuned configuration of KERNEL for a problem.

    Says too where it was tuned for another source, reference or launch than the kernel has here.

    \b
    autotune lookup sgemm m=4096 n=4096 k=4096 --arch sm_90
    """
    from autotune.cli.parsing import sizes
    from autotune.errors import UsageError
    from autotune.kernel.names import LOOKUP_ARGUMENTS
    from autotune.tuned.lookup import lookup as answer

    problem = sizes(",".join(fields))
    for name in problem:
        if name in LOOKUP_ARGUMENTS:
            raise UsageError(f"{name!r} is no problem field; see: autotune lookup --help")
    _warn_of_other(kernel, spaces)
    found = answer(kernel, arch=arch, device=device, deterministic=deterministic, **problem)
    facts: dict[str, Any] = {
        "kernel": kernel,
        "problem": problem,
        "config": dict(found),
        "quality": found.quality,
        "block": found.block,
        "grid": found.grid,
        "shared_bytes": found.shared_bytes,
        "expected_fraction": found.expected_fraction,
        "exclusive": found.exclusive,
        "deterministic": found.deterministic,
        "requires_met": found.requires_met,
        "stale_reasons": [*found.stale_reasons, *_changes(kernel, found.origin, spaces)],
        "noise": found.noise,
        "objective": found.objective,
        "source": found.source,
    }
    if as_json:
        emit_json(facts)
        return
    click.echo(", ".join(f"{name}={value}" for name, value in found.items()))
    for name in ("quality", "block", "grid", "shared_bytes", "expected_fraction", "source"):
        if facts[name] is not None:
            click.echo(f"  {name}: {facts[name]}")
    if found.objective != "time":
        click.echo(f"  objective: {found.objective}")
    if not found.requires_met:
        click.echo("  not valid: nothing that was tuned may be used for this problem and device")
    if found.exclusive:
        click.echo("  exclusive: two launches of one loaded module must not overlap")
    if found.deterministic:
        click.echo("  deterministic: the same bits in every run")
    for reason in facts["stale_reasons"]:
        click.echo(f"  stale: {reason}")
    if found.noise:
        click.echo(f"  noise: {found.noise}")


def _warn_of_other(kernel: str, spaces: Path | None) -> None:
    """Say that what lookup answers with is of another kernel than the one that is declared here."""
    from autotune.tuned.lookup import recorded_for_other

    declared = _declared(kernel, spaces)
    if declared and (told := recorded_for_other(declared)):
        warn(told)


def _told_of_other(record: TunedRecord, spaces: Path | None = None) -> str:
    """Why a record is of another kernel than the one that is declared here; empty: it is not."""
    from autotune.tuned.record import other_kernel

    declared = _declared(record.kernel, spaces)
    where = f"the record of {record.device.name}"
    return other_kernel(declared, where, record.fields, record.parameters) if declared else ""


def _declared(kernel: str, spaces: Path | None) -> Kernel | None:
    """The kernel of a name, where there is one that can be read."""
    from autotune.errors import MissingDependencyError, SpecError
    from autotune.kernel.catalog import known_kernel

    with suppress(MissingDependencyError, SpecError):
        return known_kernel(kernel, spaces)
    return None


def _changes(kernel: str, origin: TuningOrigin | None, spaces: Path | None) -> tuple[str, ...]:
    """What changed since an entry was tuned; nothing where the kernel is not known here.

    Where it is and cannot be read, that is a warning: the answer stands.
    """
    from autotune.errors import MissingDependencyError, SpecError
    from autotune.kernel.catalog import known_kernel
    from autotune.kernel.source import changed_since

    if origin is None:
        return ()
    try:
        declared = known_kernel(kernel, spaces)
        if declared is None:
            return ()
        return changed_since(declared, origin.source, origin.arguments, origin.inputs)
    except (SpecError, MissingDependencyError) as error:
        warn(f"whether its source changed is not known: {error}")
        return ()


@click.command("results")
@click.argument("kernel", required=False, shell_complete=kernel_names)
@click.option("--device", metavar="NAME", help="Only this device: its name or uuid.")
@click.option("--best", type=click.IntRange(1), metavar="N", help="Only the best N per problem.")
@click.option(
    "--pareto",
    is_flag=True,
    help="Only the front of time and energy of each problem: nothing is both faster and more frugal.",
)
@click.option("--runs", is_flag=True, help="List runs and how they ended, instead.")
@click.option("--last", type=click.IntRange(1), metavar="N", help="With --runs: the newest N.")
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values.")
@JSON
def results(
    kernel: str | None,
    device: str | None,
    best: int | None,
    pareto: bool,
    runs: bool,
    last: int | None,
    as_csv: bool,
    as_json: bool,
) -> None:
    """List what was measured, of KERNEL or of all, oldest first.

    \b
    autotune results sgemm --best 5
    autotune results sgemm --pareto
    autotune results sgemm --json
    autotune results --runs --last 50
    """
    from autotune.errors import UsageError, unknown
    from autotune.kernel.catalog import listings
    from autotune.measure.timing import Timing
    from autotune.store import Store, default_url
    from autotune.store.flat import stored_row

    if runs:
        from autotune.cli.storage import list_runs

        list_runs(kernel, device, last or 20, as_json)
        return
    with Store.open(default_url()) as store:
        found = _best(store, best, kernel, device) if best else store.rows(kernel, device)
    rows = [stored_row(row) for row in (_pareto(found) if pareto else found)]
    if best and rows:
        click.echo(
            "times of the search, each measured once; the winners are decided by finals: autotune "
            f"lookup {kernel or 'KERNEL'}, autotune report {kernel or 'KERNEL'}",
            err=True,
        )
    if kernel and not rows:
        known = {listing.name for listing in listings()}
        if kernel not in known:
            raise UsageError(unknown("kernel", kernel, sorted(known)))
    _warn_of_two_kernels(rows)
    if as_json:
        emit_json(rows)
    elif as_csv:
        _print_csv(rows)
    elif rows:
        metrics = dict.fromkeys(name for row in rows for name in row["metrics"])
        print_table(
            {
                "kernel": row["kernel"],
                "problem": words(row["problem"]),
                "status": row["status"],
                "median ms": row["median_ms"],
                "timing": Timing(row.get("timing", "")).remark,
                "hot ms": row["hot_median_ms"],
                "energy mJ": row["energy_mj"],
                "power W": row["power_w"],
                **{name: row["metrics"].get(name) for name in metrics},
                "configuration": words(row["config"]),
                "device": row["device"],
                "message": row["message"],
            }
            for row in rows
        )
    elif pareto:
        click.echo(
            f"no energy of {kernel or 'anything'} was measured; run: autotune run "
            f"{kernel or 'sgemm'} --objective energy",
            err=True,
        )
    else:
        what = kernel or "anything"
        click.echo(f"no results of {what} yet; run: autotune run {kernel or 'sgemm'}", err=True)


def _warn_of_two_kernels(rows: Sequence[Mapping[str, Any]]) -> None:
    """Say where rows of one name cannot be of one kernel."""
    names: dict[str, set[tuple[str, ...]]] = {}
    for row in rows:
        names.setdefault(row["kernel"], set()).add(tuple(sorted(row["config"])))
    for kernel, parameters in names.items():
        if len(parameters) > 1:
            sets = " and ".join(sorted(", ".join(each) for each in parameters))
            warn(
                f"rows of {kernel} are of two kernels, or of one that changed: with the parameters "
                f"{sets}; if they are two, rename one"
            )


def _best(store: Store, count: int, kernel: str | None, device: str | None) -> list[Row]:
    """The fastest right rows of each problem, kernel, device and timing, in groups."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for last in store.newest_of_scopes(kernel, device):
        names = frozenset(last.measurement.configuration)  # of two kernels of one name
        key = last.kernel, names, last.device_name, last.timing, last.problem
        groups.setdefault(key, []).extend(store.fastest(last.scope, count))
    return [
        row
        for group in groups.values()
        for row in sorted(group, key=lambda row: row.measurement.median_ms or 0.0)[:count]
    ]


def _pareto(rows: list[Row]) -> list[Row]:
    """The newest rows on the front of each kernel, device, timing and problem, fastest first."""
    from autotune.measure.objective import front

    groups: dict[tuple[Any, ...], dict[Any, Row]] = {}
    for row in rows:
        key = row.kernel, row.device_name, row.timing, row.problem
        groups.setdefault(key, {})[row.measurement.configuration] = row
    return [
        newest[measurement.configuration]
        for newest in groups.values()
        for measurement in front([row.measurement for row in newest.values()])
    ]


def _print_csv(rows: list[dict[str, Any]]) -> None:
    import csv
    import sys

    plain = [
        {name: words(value) if isinstance(value, Mapping) else value for name, value in row.items()}
        for row in rows
    ]
    names = [name for name in (plain[0] if plain else ["kernel"]) if name != "samples_ms"]
    writer = csv.DictWriter(sys.stdout, names, extrasaction="ignore")
    writer.writeheader()
    writer.writerows(plain)


@click.command("report")
@click.argument("kernel", required=False, metavar="[KERNEL|FILE]", shell_complete=kernel_names)
@click.option("--device", metavar="NAME", help="Only this device's folder or name.")
@click.option(
    "--from",
    "source",
    type=PATH,
    metavar="DIR",
    help="Folder of tuned records to report instead of yours and the store.",
)
@click.option("--single", is_flag=True, help="Put the scripts into each page: 2 MB more each.")
@click.option(
    "--against",
    type=PATH,
    metavar="FILE",
    help="Compare the tuned record FILE with this older one instead.",
)
@click.option(
    "--threshold",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    metavar="PERCENT",
    help="With --against: a regression is slower by more than this.",
)
@SPACES
@_OUT
@click.option("--json", "as_json", is_flag=True, help="With --against: print one JSON document.")
def report(
    kernel: str | None,
    device: str | None,
    source: Path | None,
    single: bool,
    against: Path | None,
    threshold: float,
    spaces: Path | None,
    out: Path,
    as_json: bool,
) -> None:
    """Write the report of KERNEL, or of all, from the store and your tuned records.

    OUT/index.html links to all reports and says what is stale.

    With --against, compare two tuned records of one kernel, problem by problem: time of the newer over
    the older, with 95 % intervals, and the parameters in which the winners differ. Exit code 5 if both
    are of one model of device and a problem is surely slower by more than the threshold.

    \b
    autotune report sgemm
    autotune report --from reports --out reports
    autotune report new/sgemm.json --against old/sgemm.json
    """
    from autotune.errors import UsageError

    if against is not None:
        if kernel is None:
            raise UsageError("report --against: name the newer tuned record too: FILE.json")
        _compare(against, Path(kernel), threshold, as_json)
        return
    if as_json:
        raise UsageError("report: --json needs --against; reports are files")
    from contextlib import nullcontext

    from autotune.report.page import write_index
    from autotune.report.publish import report_recorded
    from autotune.store import Store, default_url
    from autotune.tuned.reading import read_all, user_folder

    everything = read_all(Path(source or user_folder()))
    records = _chosen(everything, kernel or "*", device, source)
    with nullcontext() if source else Store.open(default_url()) as store:
        for record in records:
            if told := _told_of_other(record, spaces):
                warn(f"{told}; its report leaves out the space that is declared here")
            for file in report_recorded(record, store, spaces, out, single):
                click.echo(str(file))
    click.echo(str(write_index([_standing(record, spaces) for record in everything], out)))


def _standing(record: TunedRecord, spaces: Path | None) -> Standing:
    """What the kernel's files say about a record of it."""
    from collections import Counter

    from autotune.errors import AutotuneError
    from autotune.kernel.catalog import known_kernel
    from autotune.report.page import Standing
    from autotune.retune.stale import recorded_reasons

    try:
        kernel = known_kernel(record.kernel, spaces)
        if kernel is None:
            return Standing(record, unknown="its space file is not here")
        found = [recorded_reasons(kernel, record, entry) for entry in record.problems]
    except AutotuneError as error:
        return Standing(record, unknown=str(error))
    declared = kernel.problems.get(record.device.backend, ())
    return Standing(
        record,
        stale=dict(Counter(reason for reasons in found for reason in reasons)),
        stale_entries=sum(map(bool, found)),
        missing=sum(record.tuned(problem) is None for problem in declared),
    )


def _records(kernel: str, device: str | None, folder: Path | None = None) -> list[TunedRecord]:
    """What is tuned of a kernel, or ``*``: one record per device; by default what this user tuned."""
    from autotune.tuned.reading import read_all, user_folder

    return _chosen(read_all(Path(folder or user_folder()), kernel), kernel, device, folder)


def _chosen(
    found: Sequence[TunedRecord], kernel: str, device: str | None, folder: Path | None
) -> list[TunedRecord]:
    """Those of a kernel, or ``*``, and of a device; there must be one."""
    from autotune.errors import UsageError

    chosen = [
        record
        for record in found
        if kernel in ("*", record.kernel)
        and device in (None, record.device.name, record.device.folder)
    ]
    if not chosen:
        where = f" on {device}" if device else ""
        if folder is not None:
            raise UsageError(f"{folder}: no tuned record */{kernel}.json{where} below it")
        subject, name = ("nothing is", "KERNEL") if kernel == "*" else (f"{kernel} is not", kernel)
        raise UsageError(f"{subject} tuned{where} yet; run: autotune run {name}")
    return chosen


@click.command("export")
@click.argument("kernel", shell_complete=kernel_names)
@click.argument("format", default="header")
@click.option("--device", metavar="NAME", help="Only this device's name.")
@click.option(
    "--from",
    "source",
    type=PATH,
    metavar="DIR",
    help="Folder of tuned records; default: yours, else what ships.",
)
@_OUT
def export(
    kernel: str,
    format: str,
    device: str | None,
    source: Path | None,
    out: Path,
) -> None:
    """Write what is tuned of KERNEL as header, cuda or json, or all that was measured as t4 or cache.

    \b
    autotune export sgemm header --out include/autotune
    autotune export sgemm cuda --out tuned
    autotune export sgemm cache --out kernel_tuner
    """
    from autotune.errors import UsageError, unknown
    from autotune.export import FORMATS, export_measurements, export_records
    from autotune.files import write_atomically

    if format not in FORMATS:
        raise UsageError(unknown("format", format, FORMATS))
    if FORMATS[format].source == "records":
        files = export_records(format, _yours_or_shipped(kernel, device, source, format == "cuda"))
    else:
        files = {}
        for folder, measured in _measured(kernel, device).items():
            exported = export_measurements(format, measured)
            files.update({f"{folder}/{name}": text for name, text in exported.items()})
    for name, text in files.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out / name, text.encode())
        click.echo(str(out / name))


def _yours_or_shipped(
    kernel: str, device: str | None, folder: Path | None, is_cuda: bool
) -> list[TunedRecord]:
    """Return the records below a folder; by default the user's own, or the shipped ones if there are none."""
    from autotune.errors import UsageError
    from autotune.tuned.reading import shipped_folder

    try:
        yours = _records(kernel, device, folder)
    except UsageError:
        if folder is not None:
            raise
        yours = []
        with suppress(UsageError):
            yours = _records(kernel, device, Path(shipped_folder()))
        if not yours:
            raise
    for record in yours if folder is None else ():
        if told := _told_of_other(record):
            raise UsageError(f"{told}; or name the folder of records that you mean: --from DIR")
        standing = _standing(record, None)
        if standing.stale_entries:
            warn(
                f"{kernel} on {record.device.name}: {standing.stale_entries} of "
                f"{len(record.problems)} entries are stale ({', '.join(standing.stale)}): tune it "
                f"again, autotune run {kernel}, or rename it if another kernel of that name was tuned"
            )
    if folder is None and is_cuda and all(record.device.backend != "cuda" for record in yours):
        with suppress(UsageError):
            return _records(kernel, device, Path(shipped_folder()))
    return yours


def _measured(kernel: str, device: str | None) -> dict[str, Results]:
    """Return the measurements of one source by folder: device, problem, and timing if not cold.

    Times of several timings or sources must not stand in one table. The source is the declared one
    where that was measured, else the latest of a kernel with its parameters.
    """
    from autotune.errors import UsageError
    from autotune.interop.formats import Results
    from autotune.kernel.catalog import find_kernel
    from autotune.kernel.source import source_fingerprint
    from autotune.measure.timing import Timing
    from autotune.store import Store, default_url

    declared = find_kernel(kernel)
    names, source = set(declared.parameters), source_fingerprint(declared)
    groups: dict[tuple[str, Problem, str], list[Row]] = {}
    found: dict[str, Results] = {}
    with Store.open(default_url()) as store:
        for row in store.newest_of_scopes(declared.name, device):
            if set(row.measurement.configuration) != names:
                continue
            timing = Timing(row.timing).remark
            groups.setdefault((row.device_name, row.problem, timing), []).append(row)
        if not groups:
            raise UsageError(
                f"{kernel}: nothing with the parameters of {declared.file} measured yet; run: "
                f"autotune run {kernel}"
            )
        for (name, problem, timing), group in groups.items():
            folder = _results_folder(name, problem, timing)
            while folder in found:  # x=1-y2 and y=3, x=1 and y=2-y3
                folder += "_"
            last = next((row for row in group if row.source == source), group[-1])
            scopes = [row.scope for row in group if row.source == last.source]
            chosen = [row for scope in scopes for row in store.rows(scope=scope)]
            chosen.sort(key=lambda row: row.id)
            found[folder] = Results(
                kernel=last.kernel,
                device_name=last.device_name,
                problem=last.problem,
                parameters=declared.parameters,
                measurements=[row.measurement for row in chosen],
                timestamps=[row.created for row in chosen],
            )
    return found


def _results_folder(device_name: str, problem: Problem, timing: str = "") -> str:
    """Return a folder below --out, also for values such as ``../``."""
    from urllib.parse import quote

    from autotune.devices.device import Device

    sizes = [
        f"{field}{quote(str(value), '', errors='replace')}" for field, value in problem.items()
    ]
    place = "-".join([*sizes, timing] if timing else sizes)
    return f"{Device('cuda', device_name, '').folder}/{place}"


def _compare(first: Path, second: Path, threshold: float, as_json: bool) -> None:
    """Show the times of the second record over those of the first; raise if it is slower."""
    from autotune.errors import RegressionError
    from autotune.tuned.comparison import Change, compared

    before, after = record_of(first), record_of(second)
    found = compared(before, after, threshold / 100)
    if as_json:
        emit_json([_compared_row(pair, before, after) for pair in found])
    else:
        _show_compared(found, before, after)
    slower = [pair for pair in found if pair.change is Change.SLOWER]
    if slower:
        worst = max(slower, key=lambda pair: pair.ratio or 0.0)
        raise RegressionError(
            f"{before.kernel}: {len(slower)} of {len(found)} problems are slower by more than "
            f"{threshold:g} %, most ({words(worst.problem)}): {worst.ratio:.3f} of its time"
        )


def record_of(file: Path) -> TunedRecord:
    """Read the tuned record that a person named."""
    from autotune.errors import UsageError
    from autotune.tuned.reading import read

    if file.is_dir():
        inside = sorted(found.name for found in file.glob("*.json"))[:5]
        names = f", for example {file / inside[0]}" if inside else ""
        raise UsageError(f"{file}: a folder; name the record of a kernel{names}")
    return read(file)


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
        "verdict": str(pair.change),
        "first": side(first, pair.first),
        "second": side(second, pair.second),
        "differing": pair.differing,
        "ratio": pair.ratio,
        "ratio_interval": pair.ratio_interval,
    }


def _show_compared(
    found: Sequence[ComparedProblem], first: TunedRecord, second: TunedRecord
) -> None:
    rows = []
    for pair in found:
        entries = {
            f"1: {first.device.name}": pair.first,
            f"2: {second.device.name}": pair.second,
        }
        ratio = ""
        if pair.ratio is not None and pair.ratio_interval is not None:
            least, most = pair.ratio_interval
            ratio = f"{pair.ratio:.3f} ({least:.3f} … {most:.3f})"
        rows.append(
            {
                "problem": words(pair.problem),
                **{n: f"{entry.median_ms:.4g} ms" if entry else "" for n, entry in entries.items()},
                "2 / 1": ratio,
                "": pair.change.replace("_", " "),
                "winners differ in": ", ".join(
                    f"{name} {_shown(a)} → {_shown(b)}" for name, (a, b) in pair.differing.items()
                ),
            }
        )
    print_table(rows, title=first.kernel)
    if not any(pair.first and pair.second for pair in found):
        click.echo(f"{first.kernel}: no problem is in both records", err=True)


def _shown(value: object) -> str:
    """A parameter's value; a record of an older space may have none."""
    return "none" if value is None else str(value)


COMMANDS = {
    "lookup": lookup,
    "results": results,
    "report": report,
    "export": export,
}
