"""The report as Markdown with one picture, for a repository: what the record holds. Equal content, equal bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from autotune.files import write_atomically
from autotune.report import answer, setting
from autotune.report.content import ReportContent
from autotune.report.overview import overview
from autotune.report.table import Table
from autotune.report.wording import markdown


def write_markdown(content: ReportContent, folder: Path | str) -> tuple[Path, ...]:
    """Write ``<kernel>.md`` and, where a vendor or a limit is known, its picture ``<kernel>.svg``.

    The page is the first of the files that are returned.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"[^A-Za-z0-9_]", "_", content.kernel) or "kernel"
    page, picture = folder / f"{stem}.md", folder / f"{stem}.svg"
    drawn = overview(content)
    lines = _lines(content, picture.name if drawn else None)
    write_atomically(page, ("\n".join(lines).rstrip() + "\n").encode())
    if drawn is None:
        picture.unlink(missing_ok=True)
        return (page,)
    write_atomically(picture, drawn.encode())
    return (page, picture)


def _lines(content: ReportContent, picture: str | None) -> Iterator[str]:
    device = content.device
    yield f"# {markdown(content.kernel)} on {markdown(device.name)}\n"
    yield markdown(answer.headline(content)) + "\n"
    for warning in answer.warnings(content):
        yield f"> **Note:** {markdown(warning)}\n"
    if picture:
        yield f"![Each problem's speed, as in the table below]({picture})\n"
    yield from _section("Answer", answer.answers(content))
    if any(problem.entry for problem in content.problems):
        yield from _section("Winning configurations", answer.configurations(content), 3)
    yield from _section("Resources of the winners", answer.winner_resources(content), 3)
    yield from _section("One configuration for all problems", answer.portfolio(content), 3)
    yield from _section("Problems that were not measured", answer.fallback(content), 3)
    if content.space is not None:
        yield "## Space\n"
        yield markdown(setting.space_sentence(content)) + "\n"
        yield from _table(setting.removals(content))
    yield from _section("Verification of the winners", setting.verification(content))
    yield from _section("Limits of the device", setting.device_limits(content))
    yield from _section("Provenance", setting.provenance(content))
    yield "How to read this: `docs/reports.md` of kernel-autotune."


def _section(title: str, table: Table, level: int = 2) -> Iterator[str]:
    if table.rows:
        yield f"{'#' * level} {title}\n"
        yield from _table(table)


def _table(table: Table) -> Iterator[str]:
    if not table.rows:
        return
    marks = ["--:" if i in table.numeric else ":--" for i in range(len(table.columns))]
    yield _row(table.columns)
    yield "| " + " | ".join(marks) + " |"
    for row in table.rows:
        yield _row(row)
    yield ""


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(markdown(cell) for cell in cells) + " |"
