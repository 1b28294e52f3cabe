"""`autotune run`: tune kernels, or measure one configuration."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.cli import json_text, warn
from autotune.cli.completion import kernel_names
from autotune.cli.console import (
    EFFORT_NAMES,
    FLEET,
    SPACES,
    STRATEGY,
    STRATEGY_OPTIONS,
    is_given,
    lists,
    out_option,
    print_measurements,
    show_table,
    words,
)
from autotune.errors import UsageError

if TYPE_CHECKING:
    from autotune.kernel.spec import Kernel
    from autotune.report.content import ReportContent
    from autotune.report.publish import Published
    from autotune.run.bench import Site
    from autotune.run.request import Request, RunOptions
    from autotune.run.result import RunResult
    from autotune.tuned.record import TunedRecord


@click.command("run")
@click.argument(
    "kernels", nargs=-1, required=True, metavar="KERNEL...", shell_complete=kernel_names
)
@click.option(
    "--effort",
    type=EFFORT_NAMES,
    default="quick",
    show_default=True,
    help="quick: 60 s for the quick problems; full: 10 minutes for each problem.",
)
@click.option(
    "--budget",
    metavar="TIME|N",
    help="Budget for all problems together: a time (90s, 10m, 2h) or a number of configurations "
    "(200evals). The time covers search and final race, not the preparation of inputs; each problem gets "
    "a minimum.",
)
@STRATEGY
@STRATEGY_OPTIONS
@click.option(
    "--problem",
    "problems",
    multiple=True,
    metavar="FIELD=N,...",
    help="Problem size to tune (repeatable), for example m=512,n=512,k=512; default: the problems of "
    "the space file.",
)
@click.option(
    "--device",
    metavar="NAME",
    help="Device cuda:0 or opencl:cpu, or several GPUs of one model: cuda:0,cuda:1 or cuda:all. Default: "
    "the first GPU, else the CPU. With --fleet: cuda, sm_90 or part of a model's name; default: all models.",
)
@FLEET
@click.option(
    "--max-hours",
    type=click.FloatRange(min=0, min_open=True),
    metavar="H",
    help="With --fleet: hours for all kernels together; --budget applies to each kernel on each model.",
)
@click.option(
    "--objective",
    default="time",
    show_default=True,
    type=click.Choice(["time", "energy", "edp"]),
    help="What to minimise: time, energy (per call, from the GPU's counter) or edp (energy times time). "
    "Results for energy and edp go to reports-energy and reports-edp by default.",
)
@click.option(
    "--config",
    metavar="NAME=V,...",
    help="Verify and time only this configuration. Without --accept, no record is written.",
)
@click.option(
    "--fix",
    "fixed",
    multiple=True,
    metavar="NAME=V,V",
    help="Search only these values of a parameter (repeatable). The run is an experiment: lookup ignores "
    "it, and its files go to OUT/experiments/<device>/.",
)
@click.option(
    "--timing",
    type=click.Choice(["cold", "hot", "mixed"]),
    help="Time calls with a flushed L2 cache (cold), with a warm L2 cache (hot), or take the geometric "
    "mean of both (mixed). Default: mixed if the data of a call fit into the GPU's L2 cache, else cold.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of the search and the inputs.",
)
@click.option("--fresh", is_flag=True, help="Measure again; ignore results in the store.")
@click.option(
    "--sanitize/--no-sanitize",
    default=None,
    help="Also run finalists under compute-sanitizer (memory, races, initialisation, barriers). Its time "
    "is not part of the budget. Default: on with --effort full on a GPU, if it is installed.",
)
@click.option(
    "--accept",
    is_flag=True,
    help="Let lookup use the result of an experiment (--fix, --config), or a result that is slower than "
    "the record or has less effort.",
)
@out_option("Write record, header and report to OUT/<device>/.")
@SPACES
@click.option(
    "--json", "as_json", is_flag=True, help="Print the tuned record, or a list of several."
)
def run(
    kernels: tuple[str, ...],
    effort: str,
    budget: str | None,
    strategy: str,
    strategy_options: tuple[str, ...],
    problems: tuple[str, ...],
    device: str | None,
    fleet: str | None,
    max_hours: float | None,
    objective: str,
    config: str | None,
    fixed: tuple[str, ...],
    timing: str | None,
    seed: int,
    fresh: bool,
    sanitize: bool | None,
    accept: bool,
    out: Path,
    spaces: Path | None,
    as_json: bool,
) -> None:
    """Find the fastest verified configuration of each KERNEL for each problem size.

    Each configuration is compiled, verified against the reference on two data sets, and timed in a separate
    process. Ctrl-C keeps all results; repeat the command to continue.

    \b
    autotune run sgemm
    autotune run sgemm --problem m=1000,n=1000,k=1000 --budget 2m --strategy optuna:tpe
    autotune run sgemm --strategy kt:pso --strategy-option popsize=10
    autotune run transpose --config BLOCK=256
    autotune run sgemm transpose --fleet tls://host:8786 --max-hours 2
    """
    if max_hours and not fleet:
        raise UsageError(
            "run: --max-hours works only with --fleet; use --budget, a limit per kernel"
        )
    from autotune.kernel.catalog import find_kernel
    from autotune.kernel.parsing import pairs
    from autotune.run.request import RunOptions

    options = RunOptions(
        problems=problems,
        effort=effort,
        budget=budget,
        strategy=strategy,
        strategy_options=pairs(",".join(strategy_options)),
        objective=objective,
        fixed=lists(fixed),
        config=config,
        timing=timing,
        seed=seed,
        fresh=fresh,
        sanitize=sanitize,
        accept=accept,
        command=shlex.join(["autotune", *_without_paths(click.get_current_context().obj)]),
    )
    declared = [find_kernel(name, spaces) for name in dict.fromkeys(kernels)]
    out = _folder(out, objective)
    if fleet:
        hours_s = None if max_hours is None else max_hours * 3600
        _run_on_fleet(fleet, declared, device, options, hours_s, out, as_json)
    else:
        _run_here(declared, device, options, out, as_json)


def _folder(out: Path, objective: str) -> Path:
    """Return the folder of ``--out``, by default the folder of the objective."""
    from autotune.measure.measurement import find_objective

    return out if is_given("out") else find_objective(objective).folder(out)


def _run_here(
    kernels: Sequence[Kernel], named: str | None, options: RunOptions, out: Path, as_json: bool
) -> None:
    """Tune kernels on devices of this machine, one after the other."""
    from autotune.devices.choose import choose_devices

    devices = [choose_devices(named, kernel.backends) for kernel in kernels]
    requests = [
        options.request(kernel, its_devices).with_default_problems()
        for kernel, its_devices in zip(kernels, devices, strict=True)
    ]
    _say_imported(requests)
    with _documents(len(kernels) > 1) as documents:
        for request in requests:
            _run(request, out, documents if as_json else None)


def _say_imported(requests: Iterable[Request]) -> None:
    for name, goal in {request.kernel.name: request.goal for request in requests}.items():
        if count := len({configuration for _, configuration in goal.imported}):
            text = (
                f"{name}: {count} imported configurations; the run measures the best of them first"
            )
            click.echo(text, err=True)


def _run(request: Request, out: Path, documents: list[str] | None) -> None:
    from autotune.front import tune
    from autotune.report.progress import TimeShares, run_progress
    from autotune.retune.repeated import repetition_of
    from autotune.search.session import Event

    shares = TimeShares()
    earlier = repetition_of(request, out)
    if earlier.record is not None:
        _show_again(request, earlier.record, documents)
        return
    for problem, why in earlier.changes:
        click.echo(f"{words(problem)} is measured again: {why}", err=True)
    with run_progress(request.kernel.name, len(request.problems), request.objective) as progress:

        def listener(event: Event) -> None:
            shares(event)
            progress(event)

        result, published = tune(request, out, listener)
    result.require_complete()
    if documents is None and published and not request.others:
        shares.begin("report")
        click.echo(f"time:    {shares}", err=True)
    _show(result, published, documents)


def _show_again(request: Request, record: TunedRecord, documents: list[str] | None) -> None:
    """Show the results of an earlier run of the same command."""
    from autotune.report.content import ReportContent, content_of
    from autotune.tuned.writing import encode

    if documents is not None:
        documents.append(encode(record).decode().rstrip())
    else:
        content = content_of(record, [])
        place = {problem: number for number, problem in enumerate(request.problems)}
        known = (found for found in content.problems if found.problem in place)
        asked = tuple(sorted(known, key=lambda found: place[found.problem]))
        _show_table(request, ReportContent(record, asked))
    last = max(entry.origin.tuned_on for entry in record.problems)
    click.echo(
        f"nothing measured: this command ran on {last}, and its results are current; to search "
        "further, raise --budget; to measure again, add --fresh",
        err=True,
    )


@contextmanager
def _documents(is_list: bool) -> Iterator[list[str]]:
    """Collect JSON documents; print the document or a list of them, also after an error."""
    found: list[str] = []
    try:
        yield found
    finally:
        if found:
            click.echo(f"[{','.join(found)}]" if is_list else found[0])


def _run_on_fleet(
    where: str,
    kernels: Sequence[Kernel],
    named: str | None,
    options: RunOptions,
    seconds: float | None,
    out: Path,
    as_json: bool,
) -> None:
    """Tune kernels on every GPU model of a fleet; print each result as soon as it is published."""
    from autotune.errors import AutotuneError, needing
    from autotune.front import tune
    from autotune.report.progress import RunsProgress

    with needing("a fleet"):
        from autotune.fleet import client
        from autotune.fleet.site import drive

    failed: list[AutotuneError] = []
    with client.of(where) as fleet, RunsProgress() as progress:

        def publish(request: Request, site: Site) -> tuple[RunResult, Published | None]:
            return tune(request, out, progress.listener_of(request), site)

        models = fleet.models(named.split(",") if named else ())
        requests = [
            options.request(kernel, [fleet.device_of(model)]).with_default_problems()
            for kernel in kernels
            for model in fleet.fitting(kernel, models)
        ]
        _say_imported(requests)
        with _documents(len(requests) > 1) as documents:
            for done in drive(fleet, requests, publish, seconds):
                if done.error is not None:
                    failed.append(done.error)
                    warn(str(done.error))
                if done.result is not None:
                    _show(done.result, done.published, documents if as_json else None)
    if failed and len(requests) > 1:
        raise AutotuneError(f"{len(failed)} of {len(requests)} runs failed; the first: {failed[0]}")
    if failed:
        raise failed[0]


def _show(result: RunResult, published: Published | None, documents: list[str] | None) -> None:
    from autotune.tuned.writing import encode

    if published is None:
        rows = result.rows()
        if documents is None:
            weak = ", weak check" if result.unseen else ""
            weak += ", no reference" if result.problems[0].agreed else ""
            print_measurements([{**row, "status": row["status"] + weak} for row in rows])
        else:
            documents.append(json_text(rows))
        say_answers(result)
        return
    if documents is None:
        show_winners(result, published)
    else:
        documents.append(encode(published.record).decode().rstrip())
    say_where(result, published)


def show_winners(result: RunResult, published: Published) -> None:
    from autotune.report.content import of_run

    _show_table(result.request, of_run(result, published.record))


def _show_table(request: Request, content: ReportContent) -> None:
    from autotune.report.results import winners

    table = winners(content, with_configurations=True)
    wanted = request.objective
    tuned_for = f", tuned for {wanted.label}" if wanted.label else ""
    show_table(table, title=f"{request.kernel.name} on {request.device.name}{tuned_for}")


def say_where(result: RunResult, published: Published) -> None:
    """Print trials, kept entries and file paths to stderr."""
    for found in result.problems:
        counts = Counter(measurement.status for measurement in found.trials)
        how_many = f"{len(found.measured)} of {len(result.space)} tried, {found.ended_by}"
        if found.ended_by == "all":
            how_many = f"all {len(result.space)} tried"
        results = ", ".join(f"{count} {status}" for status, count in counts.most_common())
        click.echo(
            f"{words(found.problem)}: {how_many}: {results}; {found.seconds:.0f} s", err=True
        )
        if found.sanitized is not None:
            text = f"  compute-sanitizer: no errors in {found.sanitized} finalists"
            click.echo(text, err=True)
        for wrong in found.disqualified:
            click.echo(f"  disqualified {wrong.configuration}: {wrong.message}", err=True)
        if found.race is None:
            why = (
                "all finalists were disqualified"
                if found.disqualified
                else "no configuration was verified within the budget"
            )
            click.echo(f"  no winner: {why}", err=True)
        elif not found.race.timing.by_graph and result.request.device.is_cuda:
            click.echo(
                "  the final race timed single launches: a CUDA graph cannot contain one of the calls",
                err=True,
            )
    for text in _warnings(result, published.record):
        warn(text)
    for outcome in published.outcomes:
        if outcome.action == "kept":
            why = f"{outcome.reason}; to replace it, add --accept"
            click.echo(f"{words(outcome.problem)}: the recorded entry stays: {why}", err=True)
    problems = published.record.problems
    if older := [entry for entry in problems if published.record.stale_reasons(entry)]:
        click.echo(
            f"{len(older)} of {len(problems)} recorded problems were tuned before the kernel changed, so they "
            f"answer nothing; run: autotune retune {published.record.kernel} --stale",
            err=True,
        )
    click.echo(f"header:  {published.header_file}", err=True)
    click.echo(f"record:  {published.json_file}", err=True)
    click.echo(f"report:  {published.html_file or published.markdown_file}", err=True)
    say_answers(result)


def say_answers(result: RunResult) -> None:
    """Print to stderr whether lookup now returns the run's winners."""
    from autotune.run.searching import recorded
    from autotune.tuned.lookup import clear_cache

    clear_cache()  # this run changed the records
    request, others = result.request, []
    for solved in result.solved:
        answers = recorded(request.kernel, request.device, solved.problem)
        if solved.winner not in answers:
            others.append(f"{words(solved.problem)}: {answers[0] if answers else 'nothing tuned'}")
    text = "lookup:  returns this run's winners"
    if others:
        more = f"; and {len(others) - 1} more" if len(others) > 1 else ""
        text = f"lookup:  answers as before ({others[0]}{more})"
        if request.is_experiment:
            text += "; to use this run's winners, add --accept"
        elif request.objective.needs_energy:
            text += (
                f"; to use records tuned for {request.objective.name}, put their folder into "
                "AUTOTUNE_TUNED"
            )
    click.echo(text, err=True)


def _warnings(result: RunResult, record: TunedRecord) -> Iterator[str]:
    """Yield warnings about a throttled device and noisy results."""
    measurements = [row for problem in result.problems for row in problem.measured]
    throttled = [row for row in measurements if row.clocks.is_throttled]
    if throttled:
        reasons = sorted({reason for row in throttled for reason in row.clocks.throttle_reasons})
        yield (
            f"{len(throttled)} of {len(measurements)} measurements are too slow, because the device was "
            f"throttled ({', '.join(reasons)}) even after pauses; see nvidia-smi -q -d PERFORMANCE, and run "
            "again with --fresh on a cool device"
        )
    entries = {tried.problem: record.tuned(tried.problem) for tried in result.problems}
    noise = {problem: entry.race.noise for problem, entry in entries.items() if entry}
    for solved in result.solved:
        if reasons_of_noise := noise.get(solved.problem):
            yield f"{words(solved.problem)} is noisy: {'; '.join(reasons_of_noise)}"
    if any(noise.get(solved.problem) for solved in result.solved):
        from autotune.report.wording import hint
        from autotune.run.verdict import LESS_NOISE

        yield f"for less noise, {hint(LESS_NOISE)}"


def _without_paths(arguments: list[str]) -> list[str]:
    """Return arguments with paths shortened to their last part, for the record."""
    return [Path(argument).name if "/" in argument else argument for argument in arguments]


COMMANDS = {"run": run}
