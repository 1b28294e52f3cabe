"""Writes what a run found where others look for it: tuned records, header, report.

Knows places and formats, not how anything was found.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import AutotuneError, MissingDependencyError
from autotune.export.header import render
from autotune.files import write_atomically
from autotune.report import ReportContent, from_run, write_html, write_markdown
from autotune.run.recording import record_of
from autotune.run.result import RunResult
from autotune.tuned.lookup import user_folder
from autotune.tuned.record import MergedProblem, TunedRecord, path_of, update


@dataclass(frozen=True)
class Published:
    """What was written, and the record as it is now."""

    #: The record of this run merged with what ``folder`` held.
    record: TunedRecord
    #: What became of each newly tuned problem.
    outcomes: Sequence[MergedProblem]
    json_file: Path
    header_file: Path
    markdown_file: Path
    #: None where plotly is not installed.
    html_file: Path | None


def publish(run: RunResult, out: Path, others: Iterable[Path] = ()) -> Published:
    """Merge a run into the user's tuned records and into ``out``, and write header and report.

    Parameters
    ----------
    run : RunResult
        With a winner for at least one problem.
    out : Path
        Files go to ``out/<device>/``.
    others : iterable of Path
        Further folders of tuned records to merge it into.

    Raises
    ------
    RecordError
        If a record there cannot be replaced.
    AutotuneError
        If a file cannot be written.
    """
    record = record_of(run)
    for directory in (Path(user_folder()), *others):
        amend(directory, record)
    merged = update(out, record)
    json_file = path_of(out, merged.record)
    folder, name = json_file.parent, merged.record.kernel
    try:
        header = _write_header(json_file, merged.record)
        content = from_run(run, merged.record, run.limits)
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
        markdown_file=next(file for file in markdown if file.suffix == ".md"),
        html_file=html,
    )


def amend(directory: Path, record: TunedRecord) -> None:
    """Merge a record into a folder of tuned records; a header beside it is made anew.

    Raises
    ------
    RecordError
        If a record there cannot be replaced.
    """
    merged = update(directory, record).record
    json_file = path_of(directory, merged)
    if json_file.with_suffix(".hpp").exists():
        _write_header(json_file, merged)


def _write_header(json_file: Path, record: TunedRecord) -> Path:
    header = json_file.with_suffix(".hpp")
    write_atomically(header, render([record]).encode())
    return header


def _html(content: ReportContent, file: Path) -> Path | None:
    """Write the page where its plotting library is installed: all else is in the Markdown too."""
    try:
        write_html(content, file)
    except MissingDependencyError as error:
        warnings.warn(str(error), stacklevel=2)
        return None
    return file
