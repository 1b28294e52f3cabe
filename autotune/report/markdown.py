"""The report as Markdown with one picture, for a repository. Equal records give equal bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.files import write_atomically
from autotune.report import answer, setting, wording
from autotune.report.content import ReportContent
from autotune.report.svg import Figure, Scale
from autotune.report.table import Table
from autotune.report.wording import markdown

#: Fits GitHub's column unscaled.
_WIDTH = 760
_ROW = 22
_TOP = 44
_LONGEST_NAME = 44


def write_markdown(content: ReportContent, folder: Path | str) -> tuple[Path, ...]:
    """Write ``<kernel>.md`` and, where a vendor or a limit is known, its picture ``<kernel>.svg``.

    Return the files that were written, the page first.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"[^A-Za-z0-9_]", "_", content.kernel) or "kernel"
    page, file = folder / f"{stem}.md", folder / f"{stem}.svg"
    drawn = _picture(content)
    lines = _lines(content, file.name if drawn else None)
    write_atomically(page, ("\n".join(lines).rstrip() + "\n").encode())
    if drawn is None:
        file.unlink(missing_ok=True)
        return (page,)
    write_atomically(file, drawn.encode())
    return (page, file)


def _lines(content: ReportContent, picture: str | None) -> Iterator[str]:
    yield f"# {markdown(content.kernel)} on {markdown(content.device.name)}\n"
    yield markdown(answer.headline(content)) + "\n"
    for warning in answer.warnings(content):
        yield f"> **Note:** {markdown(warning)}\n"
    if picture:
        yield f"![The speed of each problem's winner, as in the table below]({picture})\n"
    yield from _section("Winners", answer.winners(content))
    yield from _section("Winning configurations", answer.configurations(content), 3)
    yield from _section("Resources of the winners", answer.winner_resources(content), 3)
    yield from _section("One configuration for all problems", answer.portfolio(content), 3)
    yield from _section("Problems that were not measured", answer.fallback(content), 3)
    if content.space is not None:
        yield f"## Search space\n\n{markdown(setting.space_sentence(content))}\n"
        yield setting.removals(content).markdown()
    yield from _section("Verification of the winners", setting.verification(content))
    yield from _section("Limits of the device", setting.device_limits(content))
    yield from _section("Provenance", setting.provenance(content))
    yield "How to read this: `docs/reports.md` of kernel-autotune."


def _section(title: str, table: Table, level: int = 2) -> Iterator[str]:
    if table.rows:
        yield f"{'#' * level} {title}\n"
        yield table.markdown()


# ---------------------------------------------------------------------- picture


@dataclass(frozen=True)
class _Mark:
    """A line of the picture: a value with its interval, and the time at the right."""

    name: str
    value: float
    low: float
    high: float
    time: str


def _picture(content: ReportContent) -> str | None:
    """Draw each winner's speed over the vendor's, else its share of the limit; None without both."""
    solved = [(problem.name, problem.entry) for problem in content.problems if problem.entry]
    marks = [
        _Mark(name, speedup.value, *speedup.interval, wording.time(entry.median_ms))
        for name, entry in solved
        if (speedup := entry.race.speedup)
    ]
    if marks:
        vendors = dict.fromkeys(entry.race.vendor_name for _, entry in solved if entry.race.speedup)
        title = f"Speed over {wording.one_line(' or '.join(vendors))}, 95 % intervals"
        low, high = min(mark.low for mark in marks), max(mark.high for mark in marks)
        return _drawn(content, marks, title, (min(low, 0.99) / 1.02, max(high, 1.01) * 1.02), "×")
    for name, entry in solved:
        if entry.limit_fraction is not None:
            percent = 100 * entry.limit_fraction
            marks.append(_Mark(name, percent, percent, percent, wording.time(entry.median_ms)))
    if not marks:
        return None
    limits = dict.fromkeys(wording.limit_words(entry.limit_name or "") for _, entry in solved)
    title = f"Share of the measured {' or '.join(limits)} (%)"
    return _drawn(content, marks, title, (0, max(100.0, *(mark.high for mark in marks))), "")


def _drawn(
    content: ReportContent,
    marks: Sequence[_Mark],
    title: str,
    bounds: tuple[float, float],
    suffix: str,
) -> str:
    is_ratio, bottom = bool(suffix), _TOP + _ROW * len(marks)
    figure = Figure(_WIDTH, bottom + 34, f"{content.kernel} on {content.device.name}: {title}")
    names = [wording.one_line(mark.name, _LONGEST_NAME) for mark in marks]
    scale = Scale(*bounds, 36 + 7.5 * max(map(len, names)), _WIDTH - 90, is_log=is_ratio)
    figure.text(16, 24, title, "ink bold")
    figure.text(_WIDTH - 16, 24, "time", "dim", "end")
    figure.x_axis(scale, bottom, top=_TOP - 10, suffix=suffix)
    if is_ratio:
        figure.line(scale(1), _TOP - 10, scale(1), bottom, "thin ink-line")
    for row, (mark, name) in enumerate(zip(marks, names, strict=True)):
        y = _TOP + _ROW * row + _ROW / 2
        colour = "blue"
        if is_ratio:  # of the side of 1 that the whole interval is on
            colour = "green" if mark.low > 1 else "red" if mark.high < 1 else "grey"
        figure.line(scale(mark.low), y, scale(mark.high), y, f"line {colour}")
        figure.dots([(scale(mark.value), y)], colour)
        figure.text(16, y + 4, name, "ink")
        figure.text(_WIDTH - 16, y + 4, mark.time, "dim", "end")
    return figure.render()
