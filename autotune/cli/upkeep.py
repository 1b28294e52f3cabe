"""`autotune retune`, `sizes`: keep tuned records current."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autotune.cli import emit_json
from autotune.cli.completion import kernel_names
from autotune.cli.console import (
    EFFORT_NAMES,
    FLEET,
    JSON,
    KERNEL,
    SPACES,
    STRATEGY,
    STRATEGY_OPTIONS,
    is_given,
    out_option,
    print_table,
    words,
)
from autotune.errors import AutotuneError, UsageError, needing

if TYPE_CHECKING:
    from autotune.fleet.client import Fleet
    from autotune.retune.outcomes import RetuneOptions, RetuneOutcome

KERNELS = click.argument("kernels", nargs=-1, metavar="[KERNEL]...", shell_complete=kernel_names)
MAX_HOURS = click.option(
    "--max-hours",
    type=click.FloatRange(min=0),
    default=float("inf"),
    metavar="H",
    help="Start no search or measurement after this number of hours.",
)
DEVICES = click.option(
    "--device",
    "selectors",
    multiple=True,
    metavar="NAME",
    help="Device cuda:0 or opencl:cpu (repeatable); default: one GPU of each model, else the CPU.",
)
ARCHS = click.option(
    "--arch", "archs", multiple=True, metavar="sm_NN", help="Only GPUs of this architecture."
)


def _opened(fleet: str | None) -> Fleet | None:
    if fleet is None:
        return None
    with needing("a fleet"):
        from autotune.fleet import client
    return click.get_current_context().with_resource(client.of(fleet))


def retune_options(
    fleet: str | None, max_hours: float, kernels: Sequence[str], **others: Any
) -> RetuneOptions:
    """Return the options of `retune` and `check-tuned`; ``others`` are options of `retune` only."""
    from autotune.report.progress import run_progress
    from autotune.retune.outcomes import RetuneOptions

    name = click.get_current_context().info_name or ""
    return RetuneOptions(
        seconds=max_hours * 3600,
        command=shlex.join(["autotune", name, *(Path(kernel).name for kernel in kernels)]),
        progress=run_progress,
        fleet=_opened(fleet),
        say=lambda text: click.echo(text, err=True),
        **others,
    )


@click.command("retune")
@KERNELS
@click.option(
    "--stale",
    is_flag=True,
    help="Tune only stale entries; without KERNEL, of the project's kernels and of bundled ones with a record here.",
)
@click.option(
    "--all",
    "missing",
    is_flag=True,
    help="With full effort, tune every problem size that has no current entry in OUT; without KERNEL, of all "
    "bundled kernels. The sizes share --max-hours (default 1).",
)
@click.option(
    "--max-age",
    "max_days",
    type=click.IntRange(0, 36500),
    default=90,
    show_default=True,
    metavar="DAYS",
    help="With --stale: also measure entries that are older than this.",
)
@click.option("--dry-run", is_flag=True, help="Print the entries and reasons; tune nothing.")
@click.option(
    "--schedule",
    "scheduler",
    type=click.Choice(["cron", "systemd", "slurm", "github"]),
    help="Tune nothing; print a scheduler entry for each --arch (default: this machine's GPUs). The "
    "entry runs retune --stale in this folder for at most --max-hours (default 2). With --out, write it "
    "to a file.",
)
@click.option(
    "--every",
    type=click.Choice(["1h", "6h", "12h", "1d", "1w", "2w", "1mo"]),
    default="1w",
    show_default=True,
    help="With --schedule: the interval.",
)
@MAX_HOURS
@DEVICES
@ARCHS
@click.option(
    "--effort",
    type=EFFORT_NAMES,
    default="quick",
    show_default=True,
    help="Problems to tune, and time per problem; entries recorded with full effort are always retuned with "
    "full effort.",
)
@click.option(
    "--budget",
    metavar="TIME|N",
    help="Search budget per problem: 90s, 10m or 200evals; default: by effort.",
)
@STRATEGY
@STRATEGY_OPTIONS
@FLEET
@SPACES
@out_option("Also write record, header and report to OUT/<device>/.")
@JSON
def retune(
    kernels: tuple[str, ...],
    stale: bool,
    missing: bool,
    max_days: float,
    dry_run: bool,
    scheduler: str | None,
    every: str,
    max_hours: float,
    selectors: tuple[str, ...],
    archs: tuple[str, ...],
    effort: str,
    budget: str | None,
    strategy: str,
    strategy_options: tuple[str, ...],
    fleet: str | None,
    spaces: Path | None,
    out: Path,
    as_json: bool,
) -> None:
    """Tune KERNEL again: all its problems, stale entries or missing entries.

    Retune searches again if the source, arguments or compiler options changed, or if there is no entry for
    this device. If only the driver changed, or if the entry is older than --max-age, it verifies and measures
    the winner and its runners-up; also if another compiler makes other machine code of the winner. A search
    follows only if the winner computes a wrong result, is more than 2 % slower or is no longer among the
    best. Repeat an interrupted command to continue.

    \b
    autotune retune --stale --dry-run
    autotune retune --stale --max-hours 2
    autotune retune sgemm --effort full
    autotune retune --all --max-hours 8
    autotune retune --schedule cron --every 1d
    autotune retune --schedule slurm --arch sm_80 --arch sm_90 --out .
    autotune retune --schedule github --arch sm_90 --out .github/workflows
    """
    folder = out if is_given("out") else None
    if scheduler:
        _write_schedule(scheduler, every, archs, kernels, max_hours, folder)
        return
    from autotune.kernel.parsing import pairs
    from autotune.retune import retuning
    from autotune.retune.stale import StaleQuery, find_devices
    from autotune.run.request import EFFORTS
    from autotune.search.session import Budget
    from autotune.search.strategies import checked_options

    _require_selection(kernels, stale, missing)
    options = retune_options(
        fleet,
        max_hours,
        kernels,
        effort=EFFORTS[effort],
        strategy=strategy,
        strategy_options=checked_options(strategy, pairs(",".join(strategy_options))),
        budget=Budget.parse(budget) if budget else None,
        dry_run=dry_run,
        out=out,
    )
    devices = find_devices(selectors, archs, options.fleet)
    query = StaleQuery(
        devices=devices,
        kernels=kernels,
        spaces=spaces,
        effort=effort,
        max_age_days=max_days,
        only_stale=stale,
    )
    if missing:
        query, options = retuning.all_sizes(query, options)
    outcomes = retuning.retune(query, options)
    names = ", ".join(device.name for device in query.devices)
    nothing = f"nothing is {'left to tune' if missing else 'stale'} on {names}"
    _show_outcomes(outcomes, nothing, as_json)
    if missing:
        click.echo(f"commit {out / devices[0].folder}; how: docs/contribute-a-gpu.md", err=True)
    _require_all_tuned(outcomes)


def _require_selection(kernels: tuple[str, ...], stale: bool, missing: bool) -> None:
    if stale and missing:
        raise UsageError("retune: give --stale or --all, not both")
    if not (stale or missing or kernels):
        raise UsageError(
            "retune: name a kernel, or tune all stale entries: autotune retune --stale"
        )


def _show_outcomes(outcomes: Sequence[RetuneOutcome], nothing: str, as_json: bool) -> None:
    rows = [{**vars(outcome), "problem": dict(outcome.problem)} for outcome in outcomes]
    if as_json:
        emit_json(rows)
    elif rows:
        print_table({**row, "problem": words(row["problem"])} for row in rows)
    else:
        click.echo(nothing, err=True)


def _require_all_tuned(outcomes: Sequence[RetuneOutcome]) -> None:
    from autotune.retune.outcomes import RetuneStatus

    failed = [outcome for outcome in outcomes if outcome.result is RetuneStatus.FAILED]
    if failed:
        raise AutotuneError(
            f"{len(failed)} of {len(outcomes)} entries were not tuned, first {failed[0].kernel}: "
            f"{failed[0].message}"
        )


def _write_schedule(
    kind: str,
    every: str,
    archs: tuple[str, ...],
    kernels: tuple[str, ...],
    max_hours: float,
    out: Path | None,
) -> None:
    """Print scheduler entries, or write them to a folder."""
    from autotune.files import write_atomically
    from autotune.retune.schedule import INSTALL, KINDS, local_schedule

    hours = 2.0 if max_hours == float("inf") else max_hours
    if not 0 < hours <= 1000:
        raise UsageError("retune --schedule: --max-hours must be above 0 and at most 1000")
    text = local_schedule(kind, every, archs, kernels, hours).text(kind)
    if out is None:
        click.echo(text, nl=False)
        return
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / KINDS[kind], text.encode())
    click.echo(str(out / KINDS[kind]))
    click.echo(f"install: {INSTALL[kind]}", err=True)


@click.command("sizes")
@KERNEL
@click.option(
    "--budget",
    default="9m",
    show_default=True,
    metavar="TIME",
    help="Time for measurements, without startup and compilation.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="Seed of the random sizes; with the same seed, the command continues with the same sizes.",
)
@click.option("--fresh", is_flag=True, help="Time the tuned problems again.")
@click.option(
    "--device", metavar="NAME", help="Device cuda:0 or opencl:cpu; default: the first GPU."
)
@SPACES
@out_option("Also write record, header and report to OUT/<device>/.")
def sizes(
    kernel: str,
    budget: str,
    seed: int,
    fresh: bool,
    device: str | None,
    spaces: Path | None,
    out: Path,
) -> None:
    """Improve the answers of KERNEL for sizes that were not tuned.

    Continues the last step of a run. On random sizes, it times the configurations of the record, verified
    winners of other devices and the seed configurations of the space file. Then it fits the answers again.
    If the portfolio was not yet timed on all tuned problems, that happens first. The store keeps all times;
    repeat the command to continue.

    \b
    autotune sizes sgemm --budget 9m
    """
    from autotune.devices.choose import choose_device
    from autotune.front import improve_answers
    from autotune.kernel.catalog import find_kernel
    from autotune.report.progress import run_progress
    from autotune.run.continuing import Continuation
    from autotune.search.session import Budget
    from autotune.tuned.reading import read, read_layers

    seconds = Budget.parse(budget).seconds
    if seconds is None:
        raise UsageError("sizes: --budget must be a time, for example 9m")
    declared = find_kernel(kernel, spaces)
    chosen = choose_device(device, declared.backends)
    files = read_layers(declared.name, declared.project)
    own = [file.record for file in files if file.record.device.is_of(chosen)]
    place = out / chosen.folder / f"{declared.name}.json"
    if is_given("out") and place.exists():
        own = [read(place), *own]
    if not own:
        raise UsageError(
            f"{declared.name}: nothing is tuned for {chosen.name}; run: autotune run {declared.name}"
        )
    continuation = Continuation(
        kernel=declared,
        device=chosen,
        record=own[0],
        seconds=seconds,
        own=own[1:],
        others=[file.record for file in files if not file.record.device.is_of(chosen)],
        seed=seed,
        fresh=fresh,
        command=shlex.join(["autotune", "sizes", declared.name, "--budget", budget]),
    )
    with run_progress(declared.name, len(own[0].problems)) as listener:
        found, published = improve_answers(continuation, out, listener)
    matrix = published.record.portfolio
    click.echo(
        f"timed {len(matrix.configurations)} configurations on {len(matrix.problems)} tuned problems and "
        f"{found.sizes} random sizes"
    )
    if found.held_out.measured:
        click.echo(f"speed of the answers on held-out sizes: {found.held_out}")
    for file in (published.json_file, published.header_file, published.markdown_file):
        click.echo(str(file))


COMMANDS = {
    "retune": retune,
    "sizes": sizes,
}
