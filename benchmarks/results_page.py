"""Write the results into README.md, its picture, docs/results.md, docs/winners.md and docs/kernels/.

``results/vendor-<device>.json`` holds the tuned sizes of a device, ``results/unlisted-<device>.json`` sizes
that are not tuned; `answers_page`, `triton_page` and `kernel_tables` read the other results. The script
replaces the text between the marks.

python benchmarks/results_page.py [--check]
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import answers_page
import kernel_tables
import problem_sizes
import rows as torch_rows
import triton_page
from results_cells import SPREAD_HEAD, is_slower, line, short, size_text, span, spread_cells
from results_picture import picture

from autotune.kernel.catalog import find_kernel
from autotune.kernel.spec import Work
from autotune.measure.roofline import Limits, device_limit
from autotune.measure.timing import Caches
from autotune.report.content import content_of
from autotune.report.results import winners
from autotune.run.device_limits import known_limits
from autotune.tuned.reading import read_all
from autotune.values import Problem

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- results -->\n", "<!-- /results -->"
RUN_BEGIN, RUN_END = "<!-- run -->\n", "<!-- /run -->"
#: All states of the L2 cache, for docs/results.md; cold alone, for the README's first screen.
PICTURE, COLD_PICTURE = "docs/results.svg", "docs/results-cold.svg"
_NOTHING = "Nothing is recorded yet.\n"
#: Of the tables of docs/results.md.
_COLUMNS = (
    *(
        "time, µs",
        "TFLOP/s",
        "GB/s",
        "fastest rival",
        "cold",
        "95 %",
        "clean",
        "hot",
        "of limit",
        "error",
        "bits",
    ),
)

Row = Mapping[str, Any]
Document = Mapping[str, Any]
#: By kernel, in the order in which they are shown.
Sizes = Mapping[str, Sequence[Mapping[str, Any]]]

#: The vendor's call that a space file names, by kernel.
_USUAL = {
    "sgemm": "cublasSgemm",
    "sgemm_tf32x3": "cublasSgemm",
    "gemv": "cublasSgemv",
    "gemv_columns": "cublasSgemv",
    "hgemm": "cublasGemmEx",
    "transpose": "cublasSgeam",
    "reduce": "CUB in CuPy",
    "prefetch": "plain loop",
    "copy": "cudaMemcpyAsync",
}


def first_screen() -> str:
    """Return a run's table for the README: some winners of a shipped record, as its report has them."""
    (record,) = (
        each for each in read_all(ROOT / "reports", "conv1d") if "H200" in each.device.name
    )
    content = content_of(record, [])
    chosen = [
        found
        for found in content.problems
        if found.problem["n"] == 1 << 26 and found.problem["mask_in"] == "array"
    ]
    table = winners(replace(content, problems=tuple(chosen)))
    kept = [i for i, name in enumerate(table.columns) if name not in ("Rate", "95 % interval")]
    lines = [
        line(*(row.split(" | ")[i].strip("| ") for i in kept))
        for row in table.markdown().splitlines()
    ]
    day = max(found.entry.origin.tuned_on for found in chosen if found.entry)[:10]
    return "\n".join(
        [f"`autotune run conv1d --budget 90s` on an {record.device.name}, {day}:", "", *lines, ""]
    )


def origin(documents: Sequence[Document]) -> str:
    """Return where the races of the README's picture come from."""
    return f"{textwrap.fill(_provenance(*documents), 120, break_on_hyphens=False)}\n"


def page(documents: Sequence[Document], unlisted: Sequence[Document]) -> str:
    """Return the part of docs/results.md: the summary, the losses, every size, then the answers of `lookup`."""
    empty = [{**document, "rows": [], "failures": []} for document in documents]
    answered = {document["device"]: document for document in (*empty, *unlisted)}
    untuned = {
        name: sizes for name in problem_sizes.SIZES if (sizes := problem_sizes.untuned(name))
    }
    return "\n".join(
        [
            f"![Speed over the vendor's fastest call, by kernel and size]({Path(PICTURE).name})",
            "",
            "## Summary",
            "",
            *_summary(documents),
            "## Slower than the vendor",
            "",
            *_losses([*documents, *unlisted]),
            *triton_page.torch_rows(),
            *triton_page.decorator(),
            *answers_page.random_sizes(),
            *answers_page.slowest_answers(),
            *answers_page.held_out_sizes(),
            *answers_page.left_out_problems(),
            *answers_page.other_devices(),
            "## Tuned sizes",
            "",
            *_section(documents, {**problem_sizes.TUNED, **problem_sizes.STUDY}, has_summary=True),
            "## Sizes that are not tuned",
            "",
            *_section(_sorted(answered.values()), untuned),
        ]
    )


def _summary(documents: Sequence[Document]) -> list[str]:
    """Return the table of kernels of each device, and where it was measured."""
    lines = []
    for document in documents:
        if document["rows"]:
            lines += [f"**{_short(document)}**: {_provenance(document)}", ""]
            lines += [*_kernels_table(document["rows"]), ""]
    return lines or [_NOTHING]


def _losses(documents: Sequence[Document]) -> list[str]:
    """Return a table of the sizes with a bold ratio, each with its least ratio; ``*`` marks untuned sizes."""
    found: dict[str, dict[str, list[str]]] = {}
    for document in documents:
        for row in document["rows"]:
            slower = [row[name] for name in problem_sizes.STATES.values() if is_slower(row, name)]
            if slower:
                mark = "" if row["quality"] == "exact" else "\\*"
                text = f"{size_text(row['problem'])}{mark} {min(slower):.3f}"
                by_device = found.setdefault(row["kernel"], {})
                by_device.setdefault(_short(document), []).append(text)
    devices = list(dict.fromkeys(_short(document) for document in documents))
    lines = ["Sizes with a bold ratio, each with its least ratio of the three states.", ""]
    lines += [f"|kernel|{'|'.join(devices)}|", f"|---|{'---|' * len(devices)}"]
    for kernel in filter(found.__contains__, problem_sizes.KERNELS):
        cells = ("; ".join(found[kernel].get(device, [])) for device in devices)
        lines.append(line(kernel, *cells))
    return [*lines, ""]


def _section(documents: Sequence[Document], sizes: Sizes, has_summary: bool = False) -> list[str]:
    """Return for each device its origin, a table of kernels, failures, missing sizes and the table of sizes.

    With `has_summary` the page has origin and table of kernels already.
    """
    lines = []
    for document in documents:
        rows, failures = document["rows"], document.get("failures", [])
        lines += [f"### {_short(document)}", ""]
        if rows and not has_summary:
            lines += [_provenance(document), "", *_kernels_table(rows), ""]
        notes = [
            f"- {row['kernel']}: failed at {size_text(row['problem'])}: {row['error']}"
            for row in failures
        ]
        known = {_key(row) for row in (*rows, *failures)}
        for kernel, listed in sizes.items():
            missing = [
                size for size in listed if _key({"kernel": kernel, "problem": size}) not in known
            ]
            if missing:
                notes.append(f"- {kernel}: not measured: {problem_sizes.listed(missing)}")
        lines += [*notes, ""] if notes else []
        if rows:
            lines += [*_table(document, sizes), ""]
    return lines if any(document["rows"] for document in documents) else [*lines, _NOTHING]


def _kernels_table(rows: Sequence[Row]) -> list[str]:
    """Return the geometric mean and the worst ratio of each kernel in each state; new sizes apart."""
    lines = [f"|kernel|{SPREAD_HEAD[0]}", f"|{SPREAD_HEAD[1]}"]
    for suffix, is_listed in (("", True), (", new sizes", False)):
        chosen = [row for row in rows if row.get("listed", True) is is_listed]
        for kernel in problem_sizes.KERNELS:
            mine = [row for row in chosen if row["kernel"] == kernel and row["ratio"]]
            if not mine:
                continue
            lines.append(line(f"{kernel}{suffix}", *spread_cells(mine)))
    return lines


def _sorted(documents: Iterable[Document]) -> list[Document]:
    return sorted(documents, key=lambda document: str(document["device"]))


def _known(document: Document) -> list[Row]:
    return [row for row in document["rows"] if row["kernel"] in problem_sizes.KERNELS]


def _against_torch(device: str) -> list[Row]:
    """Return what benchmarks/rows.py measured on a device as rows of the picture."""
    documents = [
        each for each in triton_page.documents("rows") if each["about"]["device"] == device
    ]
    return [_drawn(row) for document in documents for row in document["rows"]]


def _drawn(row: Row) -> Row:
    found: dict[str, Any] = {
        "kernel": "rows",
        "name": f"{row['kernel']} {row['rows']} x {row['columns']}",
    }
    for state in ("cold", "hot"):
        column, ratio = problem_sizes.STATES[state], torch_rows.ratio(row, state)
        found |= {column: ratio, f"{column}_ci": (ratio, ratio)}
    return found


def _key(row: Row) -> str:
    return f"{row['kernel']} {json.dumps(row['problem'], sort_keys=True)}"


def _table(document: Document, sizes: Sizes) -> list[str]:
    """Return one line per kernel and size of a device, with the columns that any row fills."""
    rows = sorted(_known(document), key=lambda row: _place(row, sizes))
    filled = [_cells(with_limit(row, str(document["device"]))) for row in rows]
    columns = [column for column in _COLUMNS if any(column in cells for cells in filled)]
    lines = [
        line(
            row["kernel"], size_text(row["problem"]), *(cells.get(column, "") for column in columns)
        )
        for row, cells in zip(rows, filled, strict=True)
    ]
    return [line("kernel", "size", *columns), f"|---|---|{'--:|' * len(columns)}", *lines]


def _place(row: Row, sizes: Sizes) -> tuple[int, int, str]:
    listed = sizes.get(row["kernel"], [])
    place = listed.index(row["problem"]) if row["problem"] in listed else len(listed)
    return problem_sizes.KERNELS.index(row["kernel"]), place, _key(row)


def with_limit(row: Row, device: str) -> Row:
    """Return a row with its share of a limit of arithmetic that was recorded after the race.

    The launch is left out, so the share is a lower bound: ``limit_without_launch``.
    """
    if row["limit_fraction"]:
        return row
    work = _kernel(row["kernel"]).call_hook("work", Problem(row["problem"]))
    limit = device_limit(work, _limits(device), Caches.MIXED)
    if limit is None:
        return row
    share = limit.share(row["ours_ms"])
    return {**row, "limit_fraction": share, "limit": limit.name, "limit_without_launch": True}


@cache
def _limits(device: str) -> Limits:
    """Return the limits that reports/ has of a device; none without its record of `hmma`."""
    devices = [record.device for record in read_all(ROOT / "reports", "hmma")]
    named = (each.planned_for() for each in devices if each.name == device)
    return next((known_limits(each, shipped=True) for each in named), {})


def _cells(row: Row) -> dict[str, str]:
    """Return the cells of a row by column; of an older row fewer. Under load: times and ratio of a second.

    A ratio is bold where its whole interval lies below 1.
    """
    load = row.get("ours_sustained_ms")
    time_ms = load or row["ours_ms"]
    mark = ("" if row["quality"] == "exact" else "\\*") + ("†" if load else "")
    cells = {"time, µs": f"{_rounded(1000 * time_ms)}{mark}", **_rate(row, time_ms)}
    if row["ratio"]:
        low, high = row["ratio_ci"]
        loaded = f"{row['ratio_sustained']:.3f}†, " if row.get("ratio_sustained") else ""
        cells["cold"] = f"{loaded}{_ratio(row, 'ratio')}"
        cells["95 %"] = f"{low:.3f}–{high:.3f}"
        cells["fastest rival"] = _name(row.get("rival") or "", row["kernel"])
        for state in ("clean", "hot"):
            if row.get(f"ratio_{state}"):
                cells[state] = _ratio(row, f"ratio_{state}")
    is_limit = not row["ratio"] and row["kernel"] in problem_sizes.SIZES  # of others, itself
    if row["limit_fraction"] and not is_limit:
        by_l2 = " (L2)" if row.get("limit_by_l2") else ""
        least = "≥ " if row.get("limit_without_launch") else ""
        cells["of limit"] = f"{least}{row['limit_fraction']:.1%} {row['limit']}{by_l2}"
    if row.get("error_ratio") is not None:
        cells["error"] = f"{row['error_ratio']:.2g}"
    if "deterministic" in row:
        cells["bits"] = "same" if row["deterministic"] else "vary"
    return cells


def _ratio(row: Row, column: str) -> str:
    return f"**{row[column]:.3f}**" if is_slower(row, column) else f"{row[column]:.3f}"


def _name(rival: str, kernel: str) -> str:
    """Return a rival's name for a table, without the number of the heuristic or of the loop's block."""
    if rival in ("", "cublas", "cub"):
        return _USUAL.get(kernel, rival)
    return re.sub(r" \d+$", "", rival.partition(",")[0])


def _rounded(value: float) -> str:
    """Return four significant digits, more where there are more before the point."""
    return f"{value:.4g}" if value < 10_000 else f"{value:.0f}"


def _rate(row: Row, time_ms: float) -> dict[str, str]:
    """Return the rate of arithmetic, or of traffic for a kernel that mostly moves data, by unit."""
    work: Work = _kernel(row["kernel"]).call_hook("work", Problem(row["problem"]))
    moved = work.bytes_read + work.bytes_written
    if work.flops > 4 * moved:
        return {"TFLOP/s": f"{work.flops / time_ms / 1e9:.3g}"}
    return {"GB/s": _rounded(moved / time_ms / 1e6)}


_kernel = cache(find_kernel)


def _short(document: Document) -> str:
    return short(str(document["device"]))


def _provenance(*documents: Document) -> str:
    """Return devices, versions and dates, and the commands."""
    every = (command for document in documents for command in document["command"].split("; "))
    commands = dict.fromkeys(f"`{command}`" for command in every)
    return f"{'; '.join(map(_origin, documents))}: {', '.join(commands)}."


def _origin(document: Document) -> str:
    rows = list(filter(problem_sizes.is_current, document["rows"])) or document["rows"]
    dates = sorted({row["date"][:10] for row in rows} or {document["date"]})
    versions = [
        f"{library} {version}"
        for library in ("cublas", "cub")
        for version in _versions(library, rows, document)
    ]
    return (
        f"{document['device']}, driver {document['driver']}, {', '.join(versions)}, {span(dates)}"
    )


def _versions(library: str, rows: Iterable[Row], document: Document) -> list[str]:
    """Of a library, as the rows have it that it was raced in; as the document has it where they do not say."""
    raced = [row for row in rows if library != "cub" or row["kernel"] == "reduce"]
    said = {(row.get("libraries") or document["versions"]).get(library) for row in raced}
    return sorted(filter(None, said))


def main() -> None:
    """Replace what is between the marks, or say which files are out of date."""
    measured = _documents("vendor")
    readme = _between_marks(_text("README.md"), first_screen(), RUN_BEGIN, RUN_END)
    texts = {
        "README.md": _between_marks(readme, origin(measured)),
        "docs/results.md": _between_marks(
            _text("docs/results.md"), page(measured, _documents("unlisted"))
        ),
    }
    for name, lines in kernel_tables.pages(measured).items():
        texts[name] = _between_marks(_text(name), "".join(f"{each}\n" for each in lines))
    if any(problem_sizes.is_current(row) for document in measured for row in document["rows"]):
        drawn = {
            _short(document): [*_known(document), *_against_torch(document["device"])]
            for document in measured
        }
        texts[PICTURE], texts[COLD_PICTURE] = picture(drawn), picture(drawn, ("cold",))
    if "--check" not in sys.argv:
        for name, text in texts.items():
            (ROOT / name).write_text(text, encoding="utf-8")
        return
    old = [name for name, text in texts.items() if not _holds(ROOT / name, text)]
    if old:
        sys.exit(f"{', '.join(old)}: results are out of date; run this without --check")


def _between_marks(page_text: str, text: str, begin: str = BEGIN, end: str = END) -> str:
    before, mark, rest = page_text.partition(begin)
    if not mark:
        raise ValueError(f"a page has no {begin.strip()}")
    return f"{before}{begin}{text}{end}{rest.partition(end)[2]}"


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _documents(kind: str) -> list[Document]:
    files = (ROOT / "benchmarks" / "results").glob(f"{kind}-*.json")
    return _sorted(json.loads(file.read_text(encoding="utf-8")) for file in files)


def _holds(file: Path, text: str) -> bool:
    return file.is_file() and file.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    main()
