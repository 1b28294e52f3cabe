"""`autotune retune`, `check-tuned`, `schedule`: keep tuned records current."""

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
from autotune.errors import AutotuneError, RegressionError, UsageError

if TYPE_CHECKING:
    from autotune.devices.device import Device
    from autotune.retune.check import Checked
    from autotune.retune.retuning import GateReport, RetuneOptions, RetuneOutcome
    from autotune.tuned.record import Portfolio

_KERNELS = click.argument("kernels", nargs=-1, metavar="[KERNEL]...", shell_complete=kernel_names)
#: Options of `retune` and `check-tuned`, in the order of their help.
_OPTIONS = (
    click.option(
        "--max-hours",
        type=click.FloatRange(min=0),
        metavar="H",
        help="Start no search or measurement after this time.",
    ),
    click.option(
        "--device",
        "selectors",
        multiple=True,
        metavar="NAME",
        help="cuda:0 or opencl:cpu (repeatable); default: one GPU of each model, else the CPU.",
    ),
    click.option(
        "--arch", "archs", multiple=True, metavar="sm_NN", help="Only GPUs of this architecture."
    ),
    click.option(
        "--effort",
        type=EFFORT_NAMES,
        default="quick",
        show_default=True,
        help="Problems to tune, and time for each; an entry keeps its own effort if that is full.",
    ),
    click.option(
        "--budget",
        metavar="TIME|N",
        help="Search of each problem: 90s, 10m or 200evals; default: by effort.",
    ),
    click.option(
        "--strategy", default="auto", show_default=True, help="See autotune list strategies."
    ),
    click.option(
        "--seed", type=click.IntRange(min=0), default=0, help="Seed of search and inputs."
    ),
    FLEET,
    SPACES,
    out_option("Write record, header and report to OUT/<device>/ too."),
    JSON,
)


def _with_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the shared options, and pass them on as ``devices`` and ``options``."""

    @wraps(function)
    def command(
        kernels: tuple[str, ...],
        selectors: tuple[str, ...],
        archs: tuple[str, ...],
        effort: str,
        budget: str | None,
        strategy: str,
        seed: int,
        max_hours: float | None,
        out: Path,
        fleet: str | None,
        **others: Any,
    ) -> None:
        from autotune.cli.progress import run_progress
        from autotune.errors import needing
        from autotune.retune.retuning import RetuneOptions
        from autotune.retune.stale import find_devices
        from autotune.run.request import EFFORTS
        from autotune.search.names import find
        from autotune.search.session import Budget

        find(strategy)
        name = click.get_current_context().info_name or ""
        options = RetuneOptions(
            effort=EFFORTS[effort],
            strategy=strategy,
            budget=Budget.parse(budget) if budget else None,
            seconds=None if max_hours is None else max_hours * 3600,
            out=out,
            seed=seed,
            command=shlex.join(["autotune", name, *(Path(kernel).name for kernel in kernels)]),
            progress=run_progress,
            say=lambda text: click.echo(text, err=True),
        )
        if fleet is not None:
            with needing("a fleet"):
                from autotune.fleet import client
            opened = click.get_current_context().with_resource(client.of(fleet))
            options = replace(options, fleet=opened)

        def devices() -> tuple[Device, ...]:
            return find_devices(selectors, archs, options.fleet)

        function(kernels=kernels, devices=devices, options=options, **others)

    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command("retune")
@_KERNELS
@click.option("--stale", is_flag=True, help="Tune what is stale; without KERNEL, of all kernels.")
@click.option(
    "--all",
    "missing",
    is_flag=True,
    help="Tune all sizes without a current entry in OUT, with full effort; without KERNEL, of all "
    "bundled kernels. The sizes share --max-hours (default 1).",
)
@click.option(
    "--portfolio",
    is_flag=True,
    help="Measure the winners of all problems on every problem, for lookups of other sizes, without a "
    "search. --budget (default 60s) does not include compiling. Changes your record, or that of --out.",
)
@click.option(
    "--max-age",
    default="90d",
    show_default=True,
    metavar="AGE",
    help="With --stale: measure entries again that are older: 90d, 12w, 36h or never.",
)
@click.option("--dry-run", is_flag=True, help="Print stale entries with the reasons, and end.")
@_with_options
def retune(
    kernels: tuple[str, ...],
    stale: bool,
    missing: bool,
    portfolio: bool,
    max_age: str,
    dry_run: bool,
    devices: Callable[[], tuple[Device, ...]],
    options: RetuneOptions,
    spaces: Path | None,
    as_json: bool,
) -> None:
    """Tune KERNEL again: all its problems, or those that are stale or missing, or the portfolio.

    An entry whose source, arguments or options changed, or that was never tuned on this device, is
    searched. If only the driver or compiler changed, or the entry is older than --max-age, winner and
    runners-up are verified and measured; a search follows if the winner is wrong, slower by more than
    2 % or no longer among the best. An interrupted command continues if you run it again.

    \b
    autotune retune --stale --dry-run
    autotune retune --stale --max-hours 2
    autotune retune sgemm --effort full
    autotune retune --all --max-hours 8
    autotune retune sgemm --portfolio --budget 2m
    """
    from autotune.retune import retuning
    from autotune.retune.stale import StaleQuery, age_in_days

    if stale + missing + portfolio > 1:
        raise UsageError("retune: --stale, --all and --portfolio exclude one another")
    if portfolio and not kernels:
        raise UsageError("retune --portfolio: name kernels, for example sgemm")
    if not (stale or missing or kernels):
        raise UsageError("retune: name kernels, or retune what is stale: autotune retune --stale")
    if portfolio:
        _measure_portfolios(kernels, devices()[0], options, spaces)
        return
    query = StaleQuery(
        devices=devices(),
        kernels=kernels,
        spaces=spaces,
        effort=options.effort.name,
        max_age_days=age_in_days(max_age),
        only_stale=stale,
    )
    if missing:
        query, options = retuning.all_sizes(query, options)
    outcomes = retuning.retune(query, replace(options, dry_run=dry_run))
    if as_json:
        emit_json([_outcome_row(outcome) for outcome in outcomes])
    elif outcomes:
        _show_outcomes(outcomes)
    else:
        names = ", ".join(device.name for device in query.devices)
        click.echo(f"nothing is {'left to tune' if missing else 'stale'} on {names}", err=True)
    if missing:
        _say_what_to_commit(outcomes, options.out / query.devices[0].folder)
    failed = [each for each in outcomes if each.result is retuning.RetuneStatus.FAILED]
    if failed:
        raise AutotuneError(
            f"{len(failed)} not tuned; first {failed[0].kernel}: {failed[0].message}"
        )


def _say_what_to_commit(outcomes: Sequence[RetuneOutcome], folder: Path) -> None:
    from autotune.retune.retuning import RetuneStatus

    skipped = sum(outcome.result is RetuneStatus.SKIPPED for outcome in outcomes)
    if skipped:
        click.echo(f"{skipped} of {len(outcomes)} are left; run the same command again", err=True)
    if folder.is_dir():
        click.echo(f"commit {folder}; how: docs/contribute-a-gpu.md", err=True)


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
    help="How much slower than recorded counts as a regression.",
)
@click.option("--retune", is_flag=True, help="Search again for entries that are slower or wrong.")
@_with_options
def check_tuned(
    kernels: tuple[str, ...],
    threshold: float,
    retune: bool,
    devices: Callable[[], tuple[Device, ...]],
    options: RetuneOptions,
    spaces: Path | None,
    as_json: bool,
) -> None:
    """Verify and time the tuned entries of KERNEL, or of all kernels, against their records.

    Covers every entry that lookup answers with on this device. Each winner is verified again and timed
    in turn with its runners-up. Exit code 5 if a winner is wrong, or if the whole 95 % interval of its
    slowdown is above the threshold. With --retune those entries are searched again: exit code 0 if all
    searches succeed.

    \b
    autotune check-tuned
    autotune check-tuned sgemm --threshold 3 --retune
    """
    from autotune.retune.retuning import check_tuned as check

    checks = check(
        kernels, devices(), options, spaces=spaces, threshold=threshold / 100, retune=retune
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
    _require_no_regression(checks)


def _require_no_regression(checks: GateReport) -> None:
    """Raise an error if an entry is still slower or wrong, or could not be measured."""
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
@click.option(
    "--every", default="1w", show_default=True, help="Interval: 1h, 6h, 12h, 1d, 1w, 2w or 1mo."
)
@click.option(
    "--arch",
    "archs",
    multiple=True,
    metavar="sm_NN",
    help="Architecture (repeatable), an entry each; default: those of this machine's GPUs.",
)
@click.option(
    "--max-hours",
    type=click.FloatRange(min=0, min_open=True),
    default=2.0,
    show_default=True,
    help="Longest time of each run.",
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
    """Print or write scheduler entries that run `autotune retune --stale` in this folder.

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


def _measure_portfolios(
    kernels: Sequence[str], device: Device, options: RetuneOptions, spaces: Path | None
) -> None:
    from autotune.retune.retuning import measure_portfolio
    from autotune.tuned.reading import user_folder

    source = click.get_current_context().get_parameter_source("out")
    folder = options.out if source is ParameterSource.COMMANDLINE else Path(user_folder())
    for kernel in kernels:
        path, measured, kept = measure_portfolio(kernel, device, options, folder, spaces)
        if kept.median_ms != measured.median_ms:
            click.echo(
                f"portfolio: {_width(measured)} were measured; the {_width(kept)} of before are kept; "
                "raise --budget",
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
