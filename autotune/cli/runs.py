"""`autotune run`: tune kernels, measure one configuration, or replay a recorded space."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from autotune.cli import emit_json, warn
from autotune.cli.options import EFFORT_NAMES, FLEET, PATH, SPACES, kernel_names, out_option
from autotune.cli.tables import print_table, show_table, words
from autotune.errors import UsageError
from autotune.measure.measurement import clock_change_words, clock_changes

if TYPE_CHECKING:
    from autotune.devices.device import Device
    from autotune.interop.formats import Recording
    from autotune.kernel.space import Space
    from autotune.kernel.spec import Kernel
    from autotune.report.publish import Published
    from autotune.run.request import Request
    from autotune.run.result import RunResult
    from autotune.search.names import Search
    from autotune.search.session import Budget
    from autotune.tuned.record import TunedRecord

#: A reference whose time changed by this share in the course of a search is worth a warning.
_CLOCK_CHANGE = 0.03


@click.command("run")
@click.argument(
    "kernels", nargs=-1, required=True, metavar="KERNEL...", shell_complete=kernel_names
)
@click.option(
    "--effort",
    type=EFFORT_NAMES,
    default="quick",
    show_default=True,
    help="quick: 60 s on the quick problems; full: 10 minutes per problem, all problems.",
)
@click.option(
    "--budget",
    metavar="TIME|N",
    help="For the whole command: 90s, 10m, 2h or 200evals. A time covers search and finals, and begins "
    "when inputs and reference are there; each problem gets a least of each, whatever the time.",
)
@click.option(
    "--strategy",
    default="auto",
    show_default=True,
    help="auto, random, exhaustive, kt:NAME or optuna:NAME; see autotune list strategies.",
)
@click.option(
    "--problem",
    "problems",
    multiple=True,
    metavar="FIELD=N,...",
    help="Tune this problem instead (repeatable), for example m=512,n=512,k=512.",
)
@click.option(
    "--device",
    metavar="NAME",
    help="cuda:0, opencl:cpu or replay:FILE; cuda:0,cuda:1 or cuda:all: several GPUs of one model "
    "at once. Default: the first GPU, else the CPU. With --fleet: cuda, sm_90 or a part of a model's "
    "name; default: every model.",
)
@FLEET
@click.option(
    "--max-hours",
    type=click.FloatRange(min=0, min_open=True),
    metavar="H",
    help="With --fleet: for all kernels together; --budget is for each on each model.",
)
@click.option(
    "--objective",
    default="time",
    show_default=True,
    metavar="NAME",
    help="time, energy (of a call, by the GPU's counter), edp (energy times time), or a metric of the "
    "kernel that says which way is better. Another than time goes to reports-NAME by default.",
)
@click.option("--config", metavar="NAME=V,...", help="Verify and time one configuration.")
@click.option(
    "--fix",
    "fixed",
    multiple=True,
    metavar="NAME=V,V",
    help="Search only these values of a parameter (repeatable).",
)
@click.option("--inputs", type=PATH, metavar="FILE.npz", help="Use these arrays as inputs.")
@click.option(
    "--timing",
    type=click.Choice(["cold", "hot", "mixed"]),
    help="From a flushed L2 cache, from a hot one, or the geometric mean of both. Default: mixed where "
    "what a call reads and writes fits the L2 cache of a GPU, else cold.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Of the search and of the inputs.",
)
@click.option("--fresh", is_flag=True, help="Measure again what is remembered.")
@click.option(
    "--sanitize/--no-sanitize",
    default=None,
    help="Run finalists under each tool of compute-sanitizer too (memory, races, initialisation, "
    "barriers). Comes on top of the budget. Default: with --effort full on a GPU, where installed.",
)
@out_option("Record, header and report go to OUT/<device>/.")
@SPACES
@click.option("--json", "as_json", is_flag=True, help="Print the tuned record to stdout.")
def run(
    kernels: tuple[str, ...],
    effort: str,
    budget: str | None,
    strategy: str,
    problems: tuple[str, ...],
    device: str | None,
    fleet: str | None,
    max_hours: float | None,
    objective: str,
    config: str | None,
    fixed: tuple[str, ...],
    inputs: Path | None,
    timing: str | None,
    seed: int,
    fresh: bool,
    sanitize: bool | None,
    out: Path,
    spaces: Path | None,
    as_json: bool,
) -> None:
    """Find the fastest verified configuration of each KERNEL for each problem, one after the other.

    Every configuration is compiled, checked against numpy on two data sets and timed, each in an
    isolated process. Ctrl-C keeps what was measured and decided; the same command goes on from there.

    \b
    autotune run sgemm
    autotune run sgemm --problem m=1000,n=1000,k=1000 --budget 2m --strategy optuna:tpe
    autotune run transpose --config BLOCK=256
    autotune run sgemm --device replay:sgemm-NVIDIA_H100_80GB_HBM3.json.gz --budget 200evals
    autotune run sgemm transpose --fleet tls://host:8786 --max-hours 2
    """
    from autotune.cli import parsing

    kernel, *further = kernels
    if max_hours and not fleet:
        raise UsageError("run: --max-hours needs --fleet; use --budget, which each kernel gets")
    if device and device.startswith("replay:"):
        from autotune.search.names import find
        from autotune.search.session import Budget

        parsed_budget = Budget.parse(budget) if budget else None
        recording = _recording(Path(device.removeprefix("replay:")), kernel, problems)
        allowed = parsing.restriction(kernel, recording.space.parameters, fixed)
        space, chosen = recording.space.restricted(allowed), find(strategy)
        if config:
            _look_up(recording, space, config, as_json)
        else:
            _replay(recording, space, chosen, parsed_budget, seed, as_json)
        return

    from autotune.devices.choose import choose_devices
    from autotune.kernel.catalog import find_kernel
    from autotune.measure import compiler, worker
    from autotune.measure.process import begun_early

    declared = [find_kernel(name, spaces) for name in dict.fromkeys(kernels)]
    devices = [] if fleet else choose_devices(device, declared[0].backends)
    for first in devices[:1]:
        # They import what they need while this process does, which takes as long.
        begins = worker.begin_for(first), compiler.begin_for(first.backend)
        click.get_current_context().with_resource(begun_early(*begins))

    from autotune.interop.imported import first_to_try
    from autotune.measure.objective import find as find_objective
    from autotune.measure.timing import Caches
    from autotune.run.request import EFFORTS, Request
    from autotune.search.names import find
    from autotune.search.session import Budget

    parsed_budget = Budget.parse(budget) if budget else None
    find(strategy)
    imported = {kernel.name: first_to_try(kernel.name) for kernel in declared}

    def request(declared: Kernel, devices: Sequence[Device]) -> Request:
        return Request(
            kernel=declared,
            device=devices[0],
            others=tuple(devices[1:]),
            problems=tuple(parsing.problem(declared, text) for text in problems),
            effort=EFFORTS[effort],
            strategy=strategy,
            budget=parsed_budget,
            seed=seed,
            caches=Caches(timing) if timing else None,
            fresh=fresh,
            objective=find_objective(declared, objective),
            sanitize=sanitize,
            first=imported[declared.name],
            fixed=parsing.restriction(declared.name, declared.parameters, fixed),
            only=parsing.configuration(declared, config) if config else None,
            inputs=parsing.inputs(inputs) if inputs else {},
            command=shlex.join(["autotune", "run", *_without_paths(sys.argv[2:])]),
        )

    for name, theirs in imported.items():
        if theirs and not config:
            found = len({configuration for _, configuration in theirs})
            text = "configurations were imported; the best are tried first, and verified like any other"
            click.echo(f"{found} {text}" + (f" ({name})" if further else ""), err=True)
    folder = _folder_for(objective, out)
    if fleet:
        hours_s = None if max_hours is None else max_hours * 3600
        _run_on_fleet(fleet, declared, device, request, hours_s, folder, as_json)
        return
    for each in declared:
        on = devices if each is declared[0] else choose_devices(device, each.backends)
        _run(request(each, on).with_default_problems(), folder, as_json)


def _folder_for(objective: str, out: Path) -> Path:
    """Return where a run's files go: records of one folder have one objective."""
    source = click.get_current_context().get_parameter_source("out")
    is_named = source is ParameterSource.COMMANDLINE
    return out if is_named or objective == "time" else Path(f"{out}-{objective}")


def _run(request: Request, out: Path, as_json: bool) -> None:
    from autotune.cli.progress import RunProgress
    from autotune.front import tune

    with RunProgress(request.kernel.name, len(request.problems), request.objective) as progress:
        result, published = tune(request, out, progress)
    result.require_complete()
    if published is None:
        _show_single(_rows_of(result), as_json)
        return
    if as_json:
        from autotune.tuned.writing import encode

        click.echo(encode(published.record).decode(), nl=False)
    else:
        show_winners(result, published)
    say_where(result, published)


def _run_on_fleet(
    where: str,
    kernels: Sequence[Kernel],
    named: str | None,
    request: Callable[[Kernel, Sequence[Device]], Request],
    seconds: float | None,
    out: Path,
    as_json: bool,
) -> None:
    """Tune kernels on every model of a fleet; whatever is finished is published at once."""
    from autotune.cli.progress import FleetProgress
    from autotune.errors import AutotuneError, needing
    from autotune.report.publish import publish
    from autotune.store import default_url
    from autotune.tuned.writing import encode, require_mergeable

    with needing("a fleet"):
        from autotune.fleet import client
        from autotune.fleet.drive import checked, drive

    failed: list[AutotuneError] = []
    documents: list[str] = []
    with client.of(where) as fleet, FleetProgress() as progress:
        models = fleet.models(named.split(",") if named else ())
        requests = checked(
            request(kernel, [fleet.device_of(model)])
            for kernel in kernels
            for model in fleet.fitting(kernel, models)
        )
        for asked in requests:
            require_mergeable(out, asked.device, asked.kernel, asked.objective.name)
        for done in drive(fleet, requests, default_url(), progress.listener, seconds):
            progress.end(done.request)
            if done.error is not None:
                failed.append(done.error)
                warn(str(done.error))
            if done.result is None:
                continue
            published = publish(done.result, out)
            if done.request.only is not None:
                _show_single(_rows_of(done.result), as_json)
            elif published is not None:
                documents.append(encode(published.record).decode().strip())
                if not as_json:
                    show_winners(done.result, published)
                say_where(done.result, published)
    if as_json and documents:
        click.echo(documents[0] if len(requests) == 1 else f"[{','.join(documents)}]")
    if failed:
        raise (
            failed[0]
            if len(requests) == 1
            else AutotuneError(
                f"{len(failed)} of {len(requests)} were not tuned; the first: {failed[0]}"
            )
        )


def _rows_of(result: RunResult) -> list[dict[str, Any]]:
    """Return what was measured, as plain rows."""
    from autotune.store.flat import row_of

    request = result.request
    return [
        {
            **row_of(request.kernel.name, tried.problem, measurement, request.device.name),
            "timing": request.timing_of(tried.problem).value,
        }
        for tried in result.problems
        for measurement in tried.measured
    ]


def show_winners(result: RunResult, published: Published) -> None:
    from autotune.report.answer import winners
    from autotune.report.content import of_run

    table = winners(of_run(result, published.record), with_configurations=True)
    wanted, request = result.request.objective, result.request
    tuned_for = "" if wanted.is_time else f", tuned for {wanted.name}"
    show_table(table, title=f"{request.kernel.name} on {request.device.name}{tuned_for}")


def say_where(result: RunResult, published: Published) -> None:
    """Tell on stderr what was tried, what was kept, and where the files are."""
    for found in result.problems:
        counts = Counter(measurement.status for measurement in found.measured)
        how_many = f"{len(found.measured)} of {len(result.space)} tried, {found.ended_by}"
        if found.ended_by == "all":
            how_many = f"all of {len(result.space)} tried"
        results = ", ".join(f"{count} {status}" for status, count in counts.most_common())
        changes = clock_change_words(clock_changes(found.measured))
        changed = f"; clock change {changes}" if changes else ""
        click.echo(
            f"{words(found.problem)}: {how_many}: {results}; {found.seconds:.0f} s{changed}",
            err=True,
        )
        if found.sanitized is not None:
            text = f"  compute-sanitizer: nothing found in {found.sanitized} finalists"
            click.echo(text, err=True)
        for wrong in found.disqualified:
            click.echo(f"  disqualified {wrong.configuration}: {wrong.message}", err=True)
        if found.race is None:
            click.echo("  no winner: nothing was right in time", err=True)
        elif not found.race.timing.by_graph and result.request.device.has_graphs:
            click.echo("  finals launch by launch: a call in them cannot be captured", err=True)
    _say_who_measured(result)
    _warn_of_throttling(result)
    _warn_of_clock_change(result, published.record)
    _warn_of_noise(result, published.record)
    for outcome in published.outcomes:
        if outcome.action == "kept":
            click.echo(f"{words(outcome.problem)}: record kept, {outcome.reason}", err=True)
    click.echo(f"header:  {published.header_file}", err=True)
    click.echo(f"record:  {published.json_file}", err=True)
    page = f" and {published.html_file.name}" if published.html_file else ""
    click.echo(f"report:  {published.markdown_file}{page}", err=True)
    index = published.markdown_file.parent.parent / "index.html"
    click.echo(f"index:   autotune report writes {index}, over all that is tuned", err=True)


def _say_who_measured(result: RunResult) -> None:
    """Say how many configurations each of several devices had."""
    if not result.request.others:
        return
    counts = Counter(row.device_uuid for problem in result.problems for row in problem.measured)
    devices = result.request.devices
    # Of a fleet's every machine has a cuda:0.
    is_of_one = len({device.selector for device in devices}) == len(devices)
    names = [device.selector if is_of_one else device.uuid for device in devices]
    shares = [f"{counts[d.uuid]} on {name}" for d, name in zip(devices, names, strict=True)]
    first = names[0]
    click.echo(f"measured: {', '.join(shares)}; finals on {first}", err=True)


def _warn_of_throttling(result: RunResult) -> None:
    """Say when the device was too hot to be measured fairly."""
    everything = [row for problem in result.problems for row in problem.measured]
    throttled = [row for row in everything if row.clocks.is_throttled]
    if throttled:
        reasons = sorted({reason for row in throttled for reason in row.clocks.throttle_reasons})
        warn(
            f"{len(throttled)} of {len(everything)} measurements were taken while the device was "
            f"throttled ({', '.join(reasons)}), even after rests: they are too slow; "
            "see nvidia-smi -q -d PERFORMANCE, and run again with --fresh on a cool device"
        )


def _warn_of_clock_change(result: RunResult, record: TunedRecord) -> None:
    """Warn where a steady device did not stay as fast as it was."""
    entries = {tried.problem: record.tuned(tried.problem) for tried in result.problems}
    noisy = {problem for problem, entry in entries.items() if entry and entry.race.noise}
    found = [
        clock_changes(tried.measured) for tried in result.problems if tried.problem not in noisy
    ]
    worst = max((abs(change - 1) for changes in found for change in changes), default=0.0)
    if worst > _CLOCK_CHANGE and result.request.device.times_steadily:
        warn(
            f"a reference configuration changed its time by {worst:.1%} in the course of the "
            "search: who entered the finals depends on when it was measured; the finals do not, "
            "their rounds are interleaved. See nvidia-smi for other processes and clocks"
        )


def _warn_of_noise(result: RunResult, record: TunedRecord) -> None:
    """Warn of noisy results with the reasons, and say how to get less noise."""
    from autotune.run.verdict import LESS_NOISE

    entries = [record.tuned(solved.problem) for solved in result.solved]
    noisy = [entry for entry in entries if entry and entry.race.noise]
    for entry in noisy:
        warn(f"{words(entry.problem)} is noisy: {'; '.join(entry.race.noise)}")
    if noisy:
        click.echo(f"for less noise, {LESS_NOISE}", err=True)


def _show_single(rows: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Show one configuration's measurement on each problem."""
    from autotune.measure.timing import Timing

    if as_json:
        emit_json(rows)
        return
    metrics = dict.fromkeys(name for row in rows for name in row["metrics"])
    print_table(
        {
            "problem": words(row["problem"]),
            "status": row["status"],
            "median ms": row["median_ms"],
            "timing": Timing(row.get("timing", "")).remark,
            "energy mJ": row["energy_mj"],
            **{name: row["metrics"].get(name) for name in metrics},
            "largest error": "" if row["max_error"] is None else f"{row['max_error']:.3g}",
            "registers": row["registers"] or "",
            "spill bytes": row["spill_bytes"],
            "message": row["message"],
        }
        for row in rows
    )


#: Options that say how a device is to measure, or where its files go.
_BESIDE_REPLAY = {
    "effort": "a replay has one problem and holds no finals; --budget says how long it searches",
    "inputs": "nothing is computed",
    "objective": "a recording has times",
    "timing": "times are the recorded ones",
    "fresh": "nothing is remembered, and nothing is measured",
    "fleet": "nothing is measured",
    "sanitize": "nothing is launched",
    "out": "a replay writes no record, header or report",
    "spaces": "a recording has its own space",
}


def _recording(file: Path, kernel: str, problems: Sequence[str]) -> Recording:
    """Read a recorded space; refuse whatever on the command line does not go with it."""
    from autotune.cli import parsing
    from autotune.interop.formats import read

    for name, why in _BESIDE_REPLAY.items():
        source = click.get_current_context().get_parameter_source(name)
        if source is ParameterSource.COMMANDLINE:
            raise UsageError(f"--{name} does not go with --device replay:FILE: {why}")
    recording = read(file)
    if kernel != recording.kernel:
        raise UsageError(
            f"{file.name} is a recording of the kernel {recording.kernel!r}, not of {kernel!r}; "
            f"run: autotune run {shlex.quote(recording.kernel)} --device replay:{file}"
        )
    recorded = {name: str(value) for name, value in recording.problem.items()}
    for text in problems:
        given = parsing.pairs(text).items()
        if {name: str(parsing.integer(value) or value) for name, value in given} != recorded:
            which = words(recorded) or "whose fields it does not say"
            raise UsageError(
                f"--problem {text}: {file.name} is a recording of one problem, {which}; leave "
                "--problem out"
            )
    return recording


def _look_up(recording: Recording, space: Space, config: str, as_json: bool) -> None:
    """Show what one configuration was recorded to take."""
    from autotune.cli import parsing
    from autotune.search import replay
    from autotune.search.session import Budget
    from autotune.store.flat import row_of
    from autotune.values import Configuration

    kernel = recording.kernel
    only = Configuration(parsing.values(kernel, space.parameters, config))
    index = space.find(space.row(only))
    if index is None:
        among = "" if len(space) == len(recording.space) else " among those that --fix leaves"
        raise UsageError(f"{recording.path.name} has no configuration {only}{among}")
    measured = replay.session(recording, Budget(), space).measure([index])
    device = recording.device.name
    rows = [row_of(kernel, recording.problem, measurement, device) for measurement in measured]
    _show_single(rows, as_json)


def _replay(
    recording: Recording,
    space: Space,
    strategy: Search,
    budget: Budget | None,
    seed: int,
    as_json: bool,
) -> None:
    """Search a recorded space; nothing is compiled or measured."""
    from autotune.search import replay
    from autotune.search.session import Budget, search

    session = replay.session(recording, budget or Budget(evaluations=200), space)
    measured = search(session, strategy, seed)
    rows, documents = [], []
    for rank, index in enumerate(session.best(5), 1):
        found = measured[index]
        row = {
            "rank": str(rank),
            "median ms": f"{found.median_ms:.4g}",
            "of best recorded": f"{(recording.best_ms or 0) / (found.median_ms or 1):.1%}",
            "configuration": str(found.configuration),
        }
        rows.append(row)
        plain = {"configuration": dict(found.configuration), "median_ms": found.median_ms}
        documents.append({**row, **plain})
    if as_json:
        emit_json(documents)
    else:
        print_table(rows, title=f"{recording.kernel} replayed from {recording.path.name}")
    click.echo(f"{len(measured)} of {len(space)} recorded configurations asked", err=True)


def _without_paths(arguments: list[str]) -> list[str]:
    """Return a command line fit for a record: paths shortened to their last part."""
    return [Path(argument).name if "/" in argument else argument for argument in arguments]


COMMANDS = {"run": run}
