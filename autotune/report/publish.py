"""Writes what a run found where others look for it: tuned records, header, report.

Knows places and formats, not how anything was found.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import AutotuneError, MissingDependencyError
from autotune.export.header import render
from autotune.files import write_atomically
from autotune.report import ReportContent, from_run, write_html, write_markdown
from autotune.run.recording import record_of
from autotune.run.run import RunResult
from autotune.tuned.files import path_of, user_folder
from autotune.tuned.record import TunedRecord
from autotune.tuned.writing import MergedProblem, update


@dataclass(frozen=True)
class Published:
    """What was written, and the record as it is now."""

    #: The record of this run merged with what ``folder`` held.
    record: TunedRecord
    #: What became of each newly tuned problem.
    outcomes: Sequence[MergedProblem]
    folder: Path
    json_file: Path
    header_file: Path
    markdown_file: Path
    #: None where plotly is not installed.
    html_file: Path | None


def tuned_folder() -> Path:
    """Where lookup finds what this user tuned."""
    return Path(user_folder())


def publish(run: RunResult, out: Path) -> Published:
    """Merge a run into the user's tuned records and into ``out``, and write header and report.

    Parameters
    ----------
    run : RunResult
        With a winner for at least one problem.
    out : Path
        Files go to ``out/<device>/``.

    Raises
    ------
    RecordError
        If a record there cannot be replaced.
    AutotuneError
        If a file cannot be written.
    """
    new = record_of(run)
    update(tuned_folder(), new)
    merged = update(out, new)
    json_file = path_of(out, merged.record)
    folder, name = json_file.parent, merged.record.kernel
    try:
        write_atomically(folder / f"{name}.hpp", render([merged.record]).encode())
        content = from_run(run, merged.record)
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
        folder=folder,
        json_file=json_file,
        header_file=folder / f"{name}.hpp",
        markdown_file=next(one for one in markdown if one.suffix == ".md"),
        html_file=html,
    )


def _html(content: ReportContent, file: Path) -> Path | None:
    """Write the page where its plotting library is installed: all else is in the Markdown too."""
    try:
        write_html(content, file)
    except MissingDependencyError as error:
        warnings.warn(str(error), stacklevel=2)
        return None
    return file
