"""`autotune retune`, `check-tuned`, `schedule`: tune again, check for regressions, on a schedule."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from autotune.cli import emit_json
from autotune.cli.parsing import (
    EFFORT_NAMES,
    FLEET,
    FOLDER,
    JSON,
    SPACES,
    kernel_names,
    out_option,
)
from autotune.cli.tables import print_table, words

if TYPE_CHECKING:
    from autotune.devices.device import Device
    from autotune.retune.check import Checked
    from autotune.retune.retuning import GateReport, RetuneOptions, RetuneOutcome
    from autotune.retune.stale import StaleQuery
    from autotune.tuned.record import Portfolio

_KERNELS = click.argument("kernels", nargs=-1, metavar="[KERNEL]...", shell_complete=kernel_names)
_DEVICE = click.option(
    "--device",
    "selectors",
    multiple=True,
    metavar="NAME",
    help="cuda:0 or opencl:cpu (repeatable); default: one of each GPU model, else the CPU.",
)
_ARCH = click.option(
    "--arch", "archs", multiple=True, metavar="sm_NN", help="Only GPUs of this architecture."
)
_OUT = out_option("Record, header and report go to OUT/<device>/, too.")
_HOURS = click.option(
    "--max-hours",
    type=click.FloatRange(min=0),
    metavar="H",
    help="Begin nothing further after this time.",
)


def _how_to_search(function: Callable[..., None]) -> Callable[..., None]:
    """The options that say how a search is done; with those of its limits they are ``options``."""

    @click.option(
        "--effort",
        type=EFFORT_NAMES,
        default="quick",
        show_default=True,
        help="Which problems must be tuned, and how; an entry keeps its own, if more.",
    )
    @click.option(
        "--budget",
        metavar="TIME|N",
        help="Of the search of each problem: 90s, 10m or 200evals; default: by effort.",
    )
    @click.option(
        "--strategy", default="auto", show_default=True, help="See autotune list strategies."
    )
    @click.option("--seed", type=click.IntRange(min=0), default=0, help="Of search and inputs.")
    @FLEET
    @wraps(function)
    def ordered(
        kernels: tuple[str, ...],
        effort: str,
        budget: str | None,
        strategy: str,
        seed: int,
        max_hours: float | None,
        out: Path,
        fleet: str | None,
        **others: Any,
    ) -> None:
        from autotune.cli.progress import RunProgress
        from autotune.errors import needing
        from autotune.retune.retuning import RetuneOptions
        from autotune.run.request import EFFORTS
        from autotune.search.names import find
        from autotune.search.session import Budget

        find(strategy)
        command = click.get_current_context().info_name or ""
        options = RetuneOptions(
            effort=EFFORTS[effort],
            strategy=strategy,
            budget=Budget.parse(budget) if budget else None,
            seconds=None if max_hours is None else max_hours * 3600,
            out=out,
            seed=seed,
            command=shlex.join(["autotune", command, *(Path(kernel).name for kernel in kernels)]),
            progress=RunProgress,
            say=lambda text: click.echo(text, err=True),
        )
        if fleet is None:
            function(kernels=kernels, options=options, **others)
            return
        with needing("a fleet"):
            from autotune.fleet import client
        with client.of(fleet) as found:
            function(kernels=kernels, options=replace(options, fleet=found), **others)

    return ordered


@click.command("retune")
@_KERNELS
@click.option("--stale", is_flag=True, help="Only what is stale; without KERNELs, of all kernels.")
@click.option(
    "--all",
    "missing",
    is_flag=True,
    help="All sizes without a current entry in OUT, with full effort; of all bundled kernels if none "
    "is named. --max-hours (default 1) is shared by the sizes.",
)
@click.option(
    "--portfolio",
    is_flag=True,
    help="Measure the winners of all problems on every problem, for lookups of other sizes. Searches "
    "nothing. --budget (default 60s) begins when all are compiled. The record is yours, or that of --out.",
)
@_HOURS
@click.option(
    "--max-age",
    default="90d",
    show_default=True,
    metavar="AGE",
    help="With --stale: measure again what is older: 90d, 12w, 36h or never.",
)
@click.option("--dry-run", is_flag=True, help="Only print what is stale, and why.")
@_DEVICE
@_ARCH
@_how_to_search
@SPACES
@_OUT
@JSON
def retune(
    kernels: tuple[str, ...],
    stale: bool,
    missing: bool,
    portfolio: bool,
    max_age: str,
    dry_run: bool,
    selectors: tuple[str, ...],
    archs: tuple[str, ...],
    options: RetuneOptions,
    spaces: Path | None,
    as_json: bool,
) -> None:
    """Tune KERNELs again: all their problems, or only what is stale, missing, or the portfolio.

    Stale means: source, arguments or options changed, or never tuned here: search. Driver or compiler
    changed, or older than --max-age: verify and measure the winner and its runners-up, and search only
    if the winner is wrong, slower by more than 2 % or no longer among the best. Several commands at
    once are safe. A command that was interrupted continues if it is given again.

    \b
    autotune retune --stale --dry-run
    autotune retune --stale --max-hours 2
    autotune retune sgemm --effort full
    autotune retune --all --max-hours 8
    autotune retune sgemm --portfolio --budget 2m
    """
    from autotune.errors import UsageError
    from autotune.retune.retuning import retune as retune_kernels
    from autotune.retune.stale import StaleQuery, age_in_days, find_devices

    if stale + missing + portfolio > 1:
        raise UsageError("retune: --stale, --all and --portfolio exclude one another")
    if portfolio and not kernels:
        raise UsageError("retune --portfolio: name kernels, for example sgemm")
    if not (stale or missing or kernels):
        raise UsageError("retune: name kernels, or retune what is stale: autotune retune --stale")
    devices = find_devices(selectors, archs, options.fleet)
    if portfolio:
        for kernel in kernels:
            _measure_portfolio(kernel, devices[0], options, spaces)
        return
    query = StaleQuery(
        devices=devices,
        kernels=kernels,
        spaces=spaces,
        effort=options.effort.name,
        max_age_days=age_in_days(max_age),
        only_stale=stale,
    )
    if missing:
        query, options = _all_sizes(query, options)
    outcomes = retune_kernels(query, replace(options, dry_run=dry_run))
    if as_json:
        emit_json([_outcome_row(outcome) for outcome in outcomes])
    elif outcomes:
        _show_outcomes(outcomes)
    else:
        names = ", ".join(device.name for device in query.devices)
        click.echo(f"nothing is {'left to tune' if missing else 'stale'} on {names}", err=True)
    if missing:
        _say_what_to_commit(outcomes, options.out / query.devices[0].folder)
    _require_no_failure(outcomes)


def _all_sizes(query: StaleQuery, options: RetuneOptions) -> tuple[StaleQuery, RetuneOptions]:
    """Return query and options for all sizes that have no current entry in the output folder."""
    from autotune.kernel.catalog import bundled_folder, find_kernel, listings
    from autotune.run.request import EFFORTS

    device, bundled = query.devices[0], bundled_folder("spaces")
    names = query.kernels or tuple(
        listing.name
        for listing in listings(query.spaces)
        if listing.file.is_relative_to(bundled)
        and device.backend in find_kernel(listing.name, query.spaces).backends
    )
    seconds = 3600.0 if options.seconds is None else options.seconds
    return (
        replace(
            query,
            devices=(device,),
            kernels=names,
            effort="full",
            max_age_days=None,
            only_stale=True,
            records=options.out,
        ),
        replace(options, effort=EFFORTS["full"], seconds=seconds, share_seconds=True),
    )


def _say_what_to_commit(outcomes: Sequence[RetuneOutcome], folder: Path) -> None:
    from autotune.retune.retuning import RetuneStatus

    skipped = sum(outcome.result is RetuneStatus.SKIPPED for outcome in outcomes)
    if skipped:
        click.echo(f"{skipped} of {len(outcomes)} are left; run the same command again", err=True)
    if folder.is_dir():
        click.echo(f"commit {folder}; how: docs/contribute-a-gpu.md", err=True)


def _require_no_failure(outcomes: Sequence[RetuneOutcome]) -> None:
    from autotune.errors import AutotuneError
    from autotune.retune.retuning import RetuneStatus

    failed = [outcome for outcome in outcomes if outcome.result is RetuneStatus.FAILED]
    if failed:
        first = failed[0]
        raise AutotuneError(f"{len(failed)} not tuned; first {first.kernel}: {first.message}")


def _outcome_row(outcome: RetuneOutcome) -> dict[str, Any]:
    return {**vars(outcome), "problem": dict(outcome.problem), "result": str(outcome.result)}


def _show_outcomes(outcomes: Iterable[RetuneOutcome]) -> None:
    print_table(
        {
            "kernel": outcome.kernel,
            "device": outcome.device,
            "problem": words(outcome.problem),
            "why": outcome.why,
            "what": outcome.action,
            "result": outcome.result,
            "ms before": outcome.before_ms,
            "ms now": outcome.after_ms,
            "note": outcome.message,
        }
        for outcome in outcomes
    )


@click.command("check-tuned")
@_KERNELS
@click.option(
    "--threshold",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    metavar="PERCENT",
    help="A regression: surely slower than recorded by more than this.",
)
@click.option("--retune", is_flag=True, help="Search again for what is slower or wrong.")
@_HOURS
@_DEVICE
@_ARCH
@_how_to_search
@SPACES
@_OUT
@JSON
def check_tuned(
    kernels: tuple[str, ...],
    threshold: float,
    retune: bool,
    selectors: tuple[str, ...],
    archs: tuple[str, ...],
    options: RetuneOptions,
    spaces: Path | None,
    as_json: bool,
) -> None:
    """Verify and measure what is tuned of KERNELs, or of all, against its record.

    Every entry that lookup would answer with on this device, shipped or yours. Its winner is
    verified again and measured interleaved with its runners-up. Exit code 5 where one is wrong,
    or where even the lower end of the 95 % interval of its time over the recorded one is above
    the threshold. With --retune just those are searched for again: exit code 0 if all could be.

    \b
    autotune check-tuned
    autotune check-tuned sgemm --threshold 3 --retune
    """
    from autotune.retune.retuning import check_tuned as check
    from autotune.retune.stale import find_devices

    checks = check(
        kernels,
        find_devices(selectors, archs, options.fleet),
        options,
        spaces=spaces,
        threshold=threshold / 100,
        retune=retune,
    )
    checked = [_checked_row(found) for found in checks.checked]
    if as_json:
        retuned = [_outcome_row(outcome) for outcome in checks.retuned]
        emit_json({"checked": checked, "retuned": retuned})
    else:
        _show_checked(checked)
        if checks.retuned:
            click.echo()
            _show_outcomes(checks.retuned)
    _judge(checks)


def _judge(checks: GateReport) -> None:
    """Raise where something is slower or wrong, and stays so, or could not be measured."""
    from autotune.errors import AutotuneError, RegressionError
    from autotune.retune.check import Verdict
    from autotune.retune.retuning import RetuneStatus

    regressions = [found for found in checks.checked if found.verdict.is_regression]
    retuned = [outcome for outcome in checks.retuned if outcome.result is RetuneStatus.SEARCHED]
    if len(retuned) < len(regressions):
        first = regressions[0]
        where = f"{first.kernel} ({words(first.known.entry.problem)})"
        names = " ".join(dict.fromkeys(found.kernel for found in regressions))
        raise RegressionError(
            f"{len(regressions) - len(retuned)} of {len(checks.checked)} tuned entries regressed, "
            f"first {where}: {first.message}; tune them again: autotune check-tuned {names} --retune"
        )
    failed = [found for found in checks.checked if found.verdict is Verdict.FAILED]
    if failed:
        raise AutotuneError(f"{len(failed)} not measured; {failed[0].kernel}: {failed[0].message}")


def _checked_row(checked: Checked) -> dict[str, Any]:
    entry, now = checked.known.entry, checked.now
    ratio, again = (now.ratio, now.now) if now else (None, None)
    recorded_on = entry.origin.device_uuid or checked.known.record.device.uuid
    here = checked.device.uuid
    return {
        "kernel": checked.kernel,
        "device": checked.device.name,
        "problem": dict(entry.problem),
        "layer": checked.known.layer,
        "config": dict(entry.configuration),
        "verdict": str(checked.verdict),
        "message": checked.message,
        "recorded_ms": entry.median_ms,
        "recorded_interval_ms": entry.winner.time_ms.interval,
        "now_ms": again.time_ms.value if again else None,
        "now_interval_ms": again.time_ms.interval if again else None,
        "ratio": ratio.value if ratio else None,
        "ratio_interval": ratio.interval if ratio else None,
        "tied": now.is_tied if now else None,
        "fastest": now.fastest.configuration if now and now.fastest else None,
        "other_gpu": bool(recorded_on and here and recorded_on != here),
    }


def _show_checked(documents: Sequence[Mapping[str, Any]]) -> None:
    rows = []
    for found in documents:
        notes = [found["message"]] if found["message"] else []
        if found["other_gpu"]:
            notes.append("recorded on another GPU of this model")
        interval = found["ratio_interval"]
        rows.append(
            {
                "kernel": found["kernel"],
                "problem": words(found["problem"]),
                "recorded ms": found["recorded_ms"],
                "ms now": found["now_ms"],
                "now / recorded": f"{found['ratio']:.3f}" if interval else "",
                "95 % interval": f"{interval[0]:.3f} … {interval[1]:.3f}" if interval else "",
                "verdict": found["verdict"],
                "from": found["layer"],
                "note": "; ".join(notes),
            }
        )
    if rows:
        print_table(rows)
    else:
        click.echo("nothing is tuned for this device yet; run: autotune run sgemm", err=True)


@click.command("schedule")
@click.argument("kind", metavar="cron|systemd|slurm|github")
@_KERNELS
@click.option("--every", default="1w", show_default=True, help="1h, 6h, 12h, 1d, 1w, 2w or 1mo.")
@click.option(
    "--arch",
    "archs",
    multiple=True,
    metavar="sm_NN",
    help="One entry for each (repeatable); default: those of this machine's GPUs.",
)
@click.option(
    "--max-hours",
    type=click.FloatRange(min=0, min_open=True),
    default=2.0,
    show_default=True,
    help="Of every run.",
)
@click.option("--out", type=FOLDER, help="Folder to write the files to; default: print them.")
def schedule(
    kind: str,
    kernels: tuple[str, ...],
    every: str,
    archs: tuple[str, ...],
    max_hours: float,
    out: Path | None,
) -> None:
    """Write an entry per GPU architecture that runs `autotune retune --stale` in this folder.

    \b
    autotune schedule cron
    autotune schedule systemd --every 1d --arch sm_90 --out units
    autotune schedule slurm --arch sm_80 --arch sm_90 --out .
    autotune schedule github --arch sm_90 --out .github/workflows
    """
    from autotune.files import write_atomically
    from autotune.retune.schedule import INSTALL, local_schedule

    files = local_schedule(kind, every, archs, kernels, max_hours).files(kind)
    if out is None:
        for name, text in files.items():
            heading = f"# ---- {name}\n" if len(files) > 1 else ""
            click.echo(heading + text, nl=False)
        return
    out.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_atomically(out / name, text.encode())
        click.echo(str(out / name))
    click.echo(f"install: {INSTALL[kind]}", err=True)


def _measure_portfolio(
    name: str, device: Device, options: RetuneOptions, spaces: Path | None
) -> None:
    """Measure the portfolio of a kernel's record in the output folder again."""
    from autotune.cli.progress import RunProgress
    from autotune.errors import UsageError
    from autotune.kernel.catalog import find_kernel
    from autotune.report.publish import amend
    from autotune.run.portfolio import renewed
    from autotune.tuned.reading import read, user_folder

    budget_s = options.budget.seconds if options.budget else 60.0
    if budget_s is None:
        raise UsageError("retune --portfolio: --budget is a time, for example 90s")
    kernel = find_kernel(name, spaces)
    source = click.get_current_context().get_parameter_source("out")
    folder = options.out if source is ParameterSource.COMMANDLINE else Path(user_folder())
    path = folder / device.folder / f"{kernel.name}.json"
    if not path.exists():
        raise UsageError(f"{path}: nothing is tuned there; run: autotune run {kernel.name}")
    record = read(path)
    with RunProgress(kernel.name, len(record.problems)) as progress:
        record = renewed(record, kernel, device, budget_s, progress)
    measured, kept = record.portfolio, amend(folder, record).portfolio
    if kept.median_ms != measured.median_ms:
        click.echo(
            f"portfolio: {_width(measured)} were measured; the {_width(kept)} of before are kept; "
            f"raise --budget above {budget_s:g}s",
            err=True,
        )
    click.echo(f"portfolio: {_width(kept)}; record: {path}", err=True)


def _width(matrix: Portfolio) -> str:
    return f"{len(matrix.configurations)} configurations on {len(matrix.problems)} problems"


COMMANDS = {
    "retune": retune,
    "check-tuned": check_tuned,
    "schedule": schedule,
}
