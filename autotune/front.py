"""Runs a request and publishes the result as files; commands and notebooks call it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from autotune import cache
from autotune.devices.device import Device
from autotune.kernel.snapshot import kernel_for_run
from autotune.kernel.source import arguments_fingerprint, source_fingerprint
from autotune.kernel.space import is_member
from autotune.kernel.spec import Kernel
from autotune.run.bench import LOCAL, BegunSite, Site
from autotune.run.continuing import Continuation, ContinuedRun, continued
from autotune.run.request import Request
from autotune.run.result import RunResult
from autotune.run.run import execute
from autotune.search.session import Budget, Listener, ignore
from autotune.store import default_url, open_for_runs
from autotune.tuned.first_calls import CalledProblem, FirstCalls
from autotune.tuned.lookup import clear_cache
from autotune.tuned.reading import user_folder
from autotune.tuned.record import TunedProblem, TunedRecord
from autotune.tuned.writing import mergeable, update
from autotune.values import Configuration, Problem

if TYPE_CHECKING:
    from autotune.report.publish import Published


def tune(
    request: Request,
    out: Path,
    listener: Listener = ignore,
    site: Site = LOCAL,
    others: Iterable[Path] = (),
) -> tuple[RunResult, Published | None]:
    """Run a request and publish the result; see `execute` and `publish`.

    The result of a run that ended early is published, too; `RunResult.require_complete` raises the error
    that ended it.
    """
    others = tuple(others)
    request = with_recorded(request, out, others)
    with open_for_runs(default_url()) as store:
        result = execute(request, store, listener, site)
    from autotune.report.publish import publish  # a slow import, after the measurements

    return result, publish(result, out, others)


def tune_call(
    kernel: Kernel,
    device: Device,
    problem: Problem,
    with_data: Callable[[Path], Kernel],
    *,
    budget: Budget,
    timeout_s: float,
    command: str,
) -> RunResult:
    """Tune one problem on the arrays of a caller, and merge the result into the user's records.

    If another process was first, its entry is merged. ``with_data`` copies the arrays into files of a folder
    and returns the kernel that reads them. It runs while the processes of the run start.
    """
    request = Request(
        kernel,
        device,
        (problem,),
        budget=budget,
        timeout_s=timeout_s,
        command=command,
        has_callers_data=True,
    )
    with cache.scratch() as scratch, closing(BegunSite(request)) as site:
        request = replace(request, kernel=kernel_for_run(with_data(Path(scratch))))
        with open_for_runs(default_url()) as store:
            result = execute(request, store, site=site)
    if result.record is not None:
        agreed = _agreed(result.record, kernel, device, problem)
        update(Path(user_folder(kernel.project)), agreed)
        clear_cache()
    return result


def _agreed(record: TunedRecord, kernel: Kernel, device: Device, problem: Problem) -> TunedRecord:
    """Return a record with the entry of the process that first tuned a problem."""
    own = record.tuned(problem)
    if own is None:
        return record
    source = own.origin.source

    def is_valid(known: TunedProblem) -> bool:
        configuration = Configuration(dict(known.configuration))
        is_able = is_member(kernel, configuration, device) and kernel.allows(configuration, problem)
        return is_able and known.origin.source == source

    store, called = FirstCalls(kernel.name, kernel.project), CalledProblem(dict(own.problem), False)
    first, _ = store.agree(device, called, own, is_valid)
    entries = tuple(first if entry is own else entry for entry in record.problems)
    return msgspec.structs.replace(record, problems=entries)


def improve_answers(
    asked: Continuation,
    out: Path,
    listener: Listener = ignore,
    others: Iterable[Path] = (),
) -> tuple[ContinuedRun, Published]:
    """Time recorded configurations on further sizes and publish the new answers; see `continued` and `publish`."""
    with open_for_runs(default_url()) as store:
        found = continued(asked, store, listener)
    from autotune.report.publish import publish

    published = publish(found.result, out, others)
    assert published is not None  # the result has a record
    return found, published


def with_recorded(request: Request, out: Path, others: Iterable[Path] = ()) -> Request:
    """Add the recorded winners that the result may replace to a request; an experiment replaces none.

    The winners have the same source, arguments and device model. Raise `UsageError` if the result could
    not be merged.
    """
    if request.is_experiment:
        return request
    kernel, found = request.kernel, dict[Problem, dict[Configuration, None]]()
    source = source_fingerprint(kernel)
    for record in mergeable(out, request.device, kernel, request.objective.name, others):
        for problem in request.problems:
            entry = record.tuned(problem)
            current = source, arguments_fingerprint(kernel, problem)
            if entry and (entry.origin.source, entry.origin.arguments) == current:
                found.setdefault(problem, {})[Configuration(entry.configuration)] = None
    recorded = {problem: tuple(configurations) for problem, configurations in found.items()}
    return replace(request, recorded=recorded)
