"""The report as Markdown with SVG files, for a repository: equal content, equal bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from autotune.files import write_atomically
from autotune.report import answer, evidence, figures, setting
from autotune.report.content import ProblemContent, ReportContent
from autotune.report.effects import effects
from autotune.report.table import Table, problem_name
from autotune.report.wording import markdown

#: With more problems than this the details of each are folded away.
_OPEN_PROBLEMS = 4
#: Kinds of figures, in the order they are shown.
_HEADINGS = {"finals": "Finals", "search": "Search", "parameters": "Parameters"}


def write_markdown(content: ReportContent, folder: Path | str) -> tuple[Path, ...]:
    """Write ``<kernel>.md`` and its figures ``<kernel>-<problem number>-<figure>.svg``.

    Figures of an earlier report of the same kernel that are no longer shown are removed.

    Returns
    -------
    tuple of Path
        The files, the page first.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    stem = file_stem(content)
    drawn = {
        f"{stem}-{i}-{kind}.svg": text
        for i, problem in enumerate(content.problems, 1)
        for kind, text in _figures(content, problem).items()
    }
    ours = re.compile(rf"{stem}-\d+-({'|'.join(_HEADINGS)})\.svg")
    for old in folder.glob(f"{stem}-*.svg"):
        if ours.fullmatch(old.name) and old.name not in drawn:
            old.unlink()
    files = {f"{stem}.md": page(content), **drawn}
    for name, text in files.items():
        write_atomically(folder / name, text.encode())
    return tuple(folder / name for name in files)


def file_stem(content: ReportContent) -> str:
    """The kernel's name as the beginning of file names."""
    return re.sub(r"[^A-Za-z0-9_]", "_", content.kernel) or "kernel"


def page(content: ReportContent) -> str:
    """The Markdown text."""
    return "\n".join(_lines(content)).rstrip() + "\n"


def _lines(content: ReportContent) -> Iterator[str]:
    device = content.device
    yield f"# {markdown(content.kernel)} on {markdown(device.name)}\n"
    yield markdown(answer.headline(content)) + "\n"
    for warning in answer.warnings(content):
        yield f"> **Note:** {markdown(warning)}\n"
    yield from _section("Answer", answer.answers(content))
    if any(one.entry for one in content.problems):
        yield from _section("Winning configurations", answer.configurations(content), 3)
    yield from _section("Resources of the winners", answer.winner_resources(content), 3)
    yield from _section("One configuration for all problems", answer.portfolio(content), 3)
    yield from _section("Problems that were not measured", answer.fallback(content), 3)
    folded = len(content.problems) > _OPEN_PROBLEMS
    for i, problem in enumerate(content.problems, 1):
        if problem.trials or problem.finalists:
            yield from _problem(content, problem, i, folded)
    yield from _space(content)
    yield from _section("Verification of the winners", setting.verification(content))
    yield from _section("Limits of the device", setting.device_limits(content))
    yield from _section("Provenance", setting.provenance(content))
    yield "How to read this: `docs/reports.md` of kernel-autotune."


def _problem(
    content: ReportContent, problem: ProblemContent, number: int, folded: bool
) -> Iterator[str]:
    """The evidence of one problem."""
    name, stem = markdown(problem_name(problem)), file_stem(content)
    yield f"## {name}\n"
    if folded:
        yield "<details><summary>Finals, search and parameters</summary>\n"
    drawn = _figures(content, problem)
    details = {
        "finals": evidence.finals(content, problem),
        "search": evidence.outcomes(problem),
        "parameters": evidence.importance(content, problem, effects(problem, content.space)),
    }
    for kind in drawn:
        yield f"### {_HEADINGS[kind]}\n"
        yield f"![{_HEADINGS[kind]}, {name}]({stem}-{number}-{kind}.svg)\n"
        yield from _table(details[kind])
        if kind == "search":
            yield from _examples(content, problem)
    if evidence.resources(problem):
        yield markdown(evidence.resources(problem)) + "\n"
    if folded:
        yield "</details>\n"


def _examples(content: ReportContent, problem: ProblemContent) -> Iterator[str]:
    found = evidence.failure_examples(content, problem)
    for status, message, configuration in found:
        example = f"for example {markdown(configuration)}: {markdown(message)}"
        yield f"- **{markdown(status)}**, {example}"
    if found:
        yield ""


def _figures(content: ReportContent, problem: ProblemContent) -> dict[str, str]:
    """The figures that have something to show, by kind."""
    drawn = {}
    if problem.finalists:
        drawn["finals"] = figures.finals_figure(content, problem)
    if problem.trials:
        drawn["search"] = figures.search_figure(problem)
        found = effects(problem, content.space)
        if found:
            drawn["parameters"] = figures.parameters_figure(problem, found)
    return drawn


def _space(content: ReportContent) -> Iterator[str]:
    if content.space is not None:
        yield "## Space\n"
        yield markdown(setting.space_sentence(content)) + "\n"
        yield from _table(setting.removals(content))


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
    for i, row in enumerate(table.rows):
        yield _row(row, strong=i in table.strong)
    yield ""


def _row(cells: tuple[str, ...], strong: bool = False) -> str:
    texts = (markdown(cell) for cell in cells)
    return "| " + " | ".join(f"**{text}**" if strong else text for text in texts) + " |"
