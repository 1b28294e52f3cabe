"""Write the files of a run or of stored results: records, header, report."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from autotune.devices.choose import backend
from autotune.errors import AutotuneError, MissingDependencyError, StoreError
from autotune.export.header import render
from autotune.files import write_atomically
from autotune.kernel.catalog import find_kernel
from autotune.kernel.space import Space, enumerate_space
from autotune.report.content import ReportContent, from_rows, from_run, from_store
from autotune.report.page import write_html, write_markdown
from autotune.run.result import RunResult
from autotune.store import Store, default_url
from autotune.tuned.reading import path_of, user_folder
from autotune.tuned.record import TIME, TunedProblem, TunedRecord
from autotune.tuned.writing import (
    Choice,
    MergedProblem,
    MergeResult,
    accepted,
    by_rule,
    other_kernel,
    update,
)
from autotune.values import Configuration, Problem

#: Name of the folder of experiments in the output folder; lookup does not read it.
EXPERIMENTS = "experiments"


@dataclass(frozen=True)
class Published:
    """The written files and the merged record."""

    #: The record of this run, merged with the earlier record.
    record: TunedRecord
    #: The outcome of each newly tuned problem.
    outcomes: Sequence[MergedProblem]
    json_file: Path
    header_file: Path
    markdown_file: Path
    #: None if plotly is not installed.
    html_file: Path | None


def publish(run: RunResult, out: Path, others: Iterable[Path] = ()) -> Published | None:
    """Merge a run into the user's tuned records and into ``out/<device>/``; write header and report there.

    A run with another objective than time is merged only into ``out`` and ``others``. An experiment goes only
    into ``out/experiments``, and replaces the previous experiment. If an error ended the run early
    (`RunResult.ended`), its message is extended by the number and place of the decided problems.

    Parameters
    ----------
    run : RunResult
        The finished run.
    out : Path
        The output folder.
    others : iterable of Path
        Further folders of tuned records to merge the run into.

    Returns
    -------
    Published or None
        None for a run of one configuration, which has nothing to publish.

    Raises
    ------
    RecordError
        If a record in a folder cannot be replaced.
    AutotuneError
        If a file cannot be written.
    """
    if run.record is None:
        return None
    if run.ended is None:
        return _written(run, run.record, out, others)
    decided = f"{len(run.problems)} of {len(run.request.problems)} problems are decided"
    published = None
    try:
        published = _written(run, run.record, out, others)
        decided += f" and in {published.json_file}"
    except AutotuneError as error:
        decided += f", but in no record: {error}"
    run.ended.args = (f"{run.ended}; {decided}",)
    return published


def _written(run: RunResult, record: TunedRecord, out: Path, others: Iterable[Path]) -> Published:
    request, choose = run.request, _choice(run)
    if request.is_experiment:
        merged = update(out := out / EXPERIMENTS, record, alone=True)
    else:
        # The user's records are for lookup, which reads records tuned for time by default.
        mine = [Path(user_folder(request.kernel.project))] if record.objective == TIME else []
        for directory in (*mine, *others):
            amend(directory, record, choose)
        merged = update(out, record, choose)
    json_file = path_of(out, merged.record)
    folder, name = json_file.parent, merged.record.kernel
    try:
        header = _write_header(json_file, merged.record)
        content = _content_of(run, merged.record)
        markdown = write_markdown(content, folder)
        html = _html(content, folder / f"{name}.html")
    except OSError as error:
        raise AutotuneError(
            f"{folder}: cannot write the report ({error.strerror}); the results are in the store: "
            f"free space and run: autotune report {name}"
        ) from error
    return Published(
        record=merged.record,
        outcomes=merged.outcomes,
        json_file=json_file,
        header_file=header,
        markdown_file=markdown,
        html_file=html,
    )


def _choice(run: RunResult) -> Choice:
    """Return the rule for replacing recorded entries with those of a run."""
    request = run.request

    def choose(old: TunedProblem, new: TunedProblem) -> tuple[Literal["kept", "replaced"], str]:
        recorded = request.recorded.get(Problem(dict(new.problem)), ())
        return by_rule(old, new, is_settled=Configuration(old.configuration) in recorded)

    return accepted if request.accept else choose


def _content_of(run: RunResult, record: TunedRecord) -> ReportContent:
    """Return the content that `report_recorded` shows; for an experiment, only its own search."""
    request = run.request
    if request.is_experiment:
        return from_run(run, record)
    space = enumerate_space(request.kernel, request.device) if request.goal.fixed else run.space
    try:
        with Store.open(default_url()) as store:
            return from_store(store, record, space)
    except (
        StoreError
    ) as error:  # a shared store's server failed; the record is written nevertheless
        warnings.warn(f"the report shows the searches of this run only: {error}", stacklevel=2)
        return from_run(run, record)


def amend(directory: Path, record: TunedRecord, choose: Choice = by_rule) -> MergeResult:
    """Merge a record into a folder of tuned records; rewrite the folder's header if it exists."""
    merged = update(directory, record, choose)
    json_file = path_of(directory, merged.record)
    if json_file.with_suffix(".hpp").exists():
        _write_header(json_file, merged.record)
    return merged


def report_recorded(
    record: TunedRecord,
    store: Store | None,
    spaces: Path | None,
    out: Path,
    single: bool = False,
) -> list[Path]:
    """Write the report of a record to ``out/<device>/``; return its files.

    Without a store, or without rows of the kernel and device in it, the page shows only the record.
    ``single``: see `write_html`.
    """
    space = _space_of(record, spaces)
    content = from_store(store, record, space) if store else from_rows((), record, space)
    folder = out / record.device.folder
    page = write_html(content, folder / f"{record.kernel}.html", single)
    return [write_markdown(content, folder), page]


def _space_of(record: TunedRecord, spaces: Path | None) -> Space | None:
    """Return the currently declared space; None if the device or the kernel is not available.

    If the available kernel is another one of the same name, warn and return None.
    """
    try:
        kernel = find_kernel(record.kernel, spaces)
        where = f"the record of {record.device.name}"
        if other := other_kernel(kernel, where, record.fields, record.parameters):
            warnings.warn(f"{other}; the report omits its search space", stacklevel=2)
            return None
        device = record.device.planned_for()
        if device.is_cuda:
            return enumerate_space(kernel, device)
        return enumerate_space(kernel, backend(record.device.backend).devices()[0])
    except (AutotuneError, IndexError):
        return None


def _write_header(json_file: Path, record: TunedRecord) -> Path:
    header = json_file.with_suffix(".hpp")
    write_atomically(header, render([record]).encode())
    return header


def _html(content: ReportContent, file: Path) -> Path | None:
    try:
        write_html(content, file)
    except MissingDependencyError as error:
        warnings.warn(str(error), stacklevel=2)
        return None
    return file
