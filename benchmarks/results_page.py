"""Write the races against the vendor's libraries into README.md, its picture and docs/results.md.

``results/vendor-<device>.json`` holds the tuned sizes of a device, ``results/unlisted-<device>.json`` sizes
that are not tuned; `answers_page` reads the other results. The script replaces the text between the marks.

python benchmarks/results_page.py [--check]
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import answers_page
import problem_sizes
import rows as torch_rows
import triton_page
from results_picture import picture

from autotune.kernel.catalog import find_kernel
from autotune.kernel.spec import Work
from autotune.measure.roofline import ARITHMETIC, Limits, share
from autotune.run.device_limits import known_limits
from autotune.tuned.reading import read_all
from autotune.values import Problem

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- results -->\n", "<!-- /results -->"
PICTURE = "docs/results.svg"
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

#: Of the tables on the pages of kernels.
_KERNEL_COLUMNS = ("time, µs", "cold", "clean", "hot", "of limit")
#: Pages of kernels with a table of all their sizes.
KERNEL_PAGES = {
    f"docs/kernels/{name}.md": name for name in ("conv1d", "hgemm", "reduce_op", "spmm")
}

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

#: What the README shows: large and small, ahead and behind.
EXAMPLES: Sizes = {
    "sgemm": [{"m": 4096, "n": 4096, "k": 4096}, {"m": 333, "n": 777, "k": 555}],
    "sgemm_tf32x3": [{"m": 4096, "n": 4096, "k": 4096}],
    "reduce": [{"n": 1 << 24}],
    "gemv": [{"m": 32768, "n": 256}],
}


def summary(documents: Sequence[Document]) -> str:
    """The part of the README: the picture, some rows, and where they come from."""
    if not documents:
        return _NOTHING
    shown = [(document, _chosen(document, EXAMPLES)) for document in documents]
    return "\n".join(
        [
            f"![Speed over the vendor's fastest call, by kernel and size]({PICTURE})",
            "",
            *_table(shown, EXAMPLES, ("time, µs", "cold (95 %)", "clean", "hot")),
            "",
            textwrap.fill(_provenance(*documents), 120, break_on_hyphens=False),
            "",
        ]
    )


def page(documents: Sequence[Document], unlisted: Sequence[Document]) -> str:
    """Return the part of docs/results.md: the summary, the losses, every size, then the answers of `lookup`."""
    empty = [{**document, "rows": [], "failures": []} for document in documents]
    answered = {document["device"]: document for document in (*empty, *unlisted)}
    untuned = {
        name: sizes for name in problem_sizes.SIZES if (sizes := problem_sizes.untuned(name))
    }
    return "\n".join(
        [
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


def kernel_table(documents: Sequence[Document], kernel: str) -> str:
    """Return the part of a kernel's page: all tuned sizes, devices in columns."""
    sizes = {**problem_sizes.TUNED, **problem_sizes.STUDY}
    measured = [
        (document, rows)
        for document in documents
        if (rows := [row for row in document["rows"] if row["kernel"] == kernel])
    ]
    return "\n".join([*_table(measured, sizes, _KERNEL_COLUMNS, names_kernel=False), ""])


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
            slower = [row[name] for name in problem_sizes.STATES.values() if _is_slower(row, name)]
            if slower:
                mark = "" if row["quality"] == "exact" else "\\*"
                text = f"{_size(row['problem'])}{mark} {min(slower):.3f}"
                by_device = found.setdefault(row["kernel"], {})
                by_device.setdefault(_short(document), []).append(text)
    devices = list(dict.fromkeys(_short(document) for document in documents))
    lines = ["Sizes with a bold ratio, each with its least ratio of the three states.", ""]
    lines += [f"|kernel|{'|'.join(devices)}|", f"|---|{'---|' * len(devices)}"]
    for kernel in filter(found.__contains__, problem_sizes.KERNELS):
        cells = ("; ".join(found[kernel].get(device, [])) for device in devices)
        lines.append(_line(kernel, *cells))
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
            f"- {row['kernel']}: failed at {_size(row['problem'])}: {row['error']}"
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
            lines += [*_table([(document, _known(document))], sizes, _COLUMNS), ""]
    return lines if any(document["rows"] for document in documents) else [*lines, _NOTHING]


def _kernels_table(rows: Sequence[Row]) -> list[str]:
    """Return the geometric mean and the worst ratio of each kernel in each state; new sizes apart."""
    lines = [
        f"|kernel|sizes|slower at|{'|'.join(problem_sizes.STATES)}|",
        "|---|--:|--:|---|---|---|",
    ]
    for suffix, is_listed in (("", True), (", new sizes", False)):
        chosen = [row for row in rows if row.get("listed", True) is is_listed]
        for kernel in problem_sizes.KERNELS:
            mine = [row for row in chosen if row["kernel"] == kernel and row["ratio"]]
            if not mine:
                continue
            slower = sum(
                any(_is_slower(row, name) for name in problem_sizes.STATES.values()) for row in mine
            )
            cells = [_spread(mine, column) for column in problem_sizes.STATES.values()]
            lines.append(_line(f"{kernel}{suffix}", str(len(mine)), str(slower), *cells))
    return lines


def _spread(rows: Sequence[Row], column: str) -> str:
    """Return the geometric mean of a column and its worst ratio with the size, "" where no row has it."""
    measured = [row for row in rows if row.get(column) is not None]
    if not measured:
        return ""
    worst = min(measured, key=lambda row: float(row[column]))
    mean = geometric_mean([row[column] for row in measured])
    return f"{mean:.3f}, {worst[column]:.3f} at {_size(worst['problem'])}"


def _is_slower(row: Row, column: str) -> bool:
    interval = row.get(f"{column}_ci")
    return bool(interval) and interval[1] < 1


def _size(problem: Mapping[str, int | str]) -> str:
    """Return a size as one word where it is a product: ``1111×901×703``."""
    return problem_sizes.describe(problem).replace(" x ", "×")


def _line(*cells: str) -> str:
    return f"|{'|'.join(cells)}|"


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


def _chosen(document: Document, sizes: Sizes) -> list[Row]:
    return [row for row in document["rows"] if row["problem"] in sizes.get(row["kernel"], [])]


def _key(row: Row) -> str:
    return f"{row['kernel']} {json.dumps(row['problem'], sort_keys=True)}"


def _table(
    devices: Sequence[tuple[Document, Sequence[Row]]],
    sizes: Sizes,
    columns: Sequence[str],
    names_kernel: bool = True,
) -> list[str]:
    """Return one line per kernel and size, devices side by side; of a device the columns that any row fills."""
    head, rule = ("|kernel|size|", "|---|---|") if names_kernel else ("|size|", "|---|")
    by_key = [
        {_key(row): _cells(with_limit(row, str(document["device"]))) for row in rows}
        for document, rows in devices
    ]
    filled = [
        [column for column in columns if any(column in cells for cells in by_size.values())]
        for by_size in by_key
    ]
    for (document, _), shown in zip(devices, filled, strict=True):
        short = f"{_short(document)}: " if len(devices) > 1 else ""
        head += "".join(f"{short}{column}|" for column in shown)
        rule += "--:|" * len(shown)
    any_row = {_key(row): row for _, rows in reversed(devices) for row in rows}
    lines = []
    for key, row in sorted(any_row.items(), key=lambda item: _place(item[1], sizes)):
        cells = [row["kernel"], _size(row["problem"])][not names_kernel :]
        for by_size, shown in zip(by_key, filled, strict=True):
            cells += [by_size.get(key, {}).get(column, "") for column in shown]
        lines.append(_line(*cells))
    return [head, rule, *lines]


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
    fraction, limit = share(work, row["ours_ms"], _limits(device))
    if limit not in ARITHMETIC:
        return row
    return {**row, "limit_fraction": fraction, "limit": limit, "limit_without_launch": True}


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
        ratio = f"{_ratio(row, 'ratio')} ({low:.3f}–{high:.3f})"
        loaded = f"{row['ratio_sustained']:.3f}†, " if row.get("ratio_sustained") else ""
        cells["cold (95 %)"] = f"{loaded}{ratio}"
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
    return f"**{row[column]:.3f}**" if _is_slower(row, column) else f"{row[column]:.3f}"


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
    """``H100`` of ``NVIDIA H100 80GB HBM3``."""
    name = str(document["device"])
    return next((word for word in name.split() if any(c.isdigit() for c in word)), name)


def _span(first: str, last: str) -> str:
    """Return two dates as ``2026-11-22 to 27``."""
    if first == last:
        return first
    return f"{first} to {last[8:] if first[:8] == last[:8] else last}"


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
        f"{document['device']}, driver {document['driver']}, {', '.join(versions)}, "
        f"{_span(dates[0], dates[-1])}"
    )


def _versions(library: str, rows: Iterable[Row], document: Document) -> list[str]:
    """Of a library, as the rows have it that it was raced in; as the document has it where they do not say."""
    raced = [row for row in rows if library != "cub" or row["kernel"] == "reduce"]
    said = {(row.get("libraries") or document["versions"]).get(library) for row in raced}
    return sorted(filter(None, said))


def main() -> None:
    """Replace what is between the marks, or say which files are out of date."""
    measured = _documents("vendor")
    texts = {
        "README.md": _between_marks("README.md", summary(measured)),
        "docs/results.md": _between_marks(
            "docs/results.md", page(measured, _documents("unlisted"))
        ),
    }
    for name, kernel in KERNEL_PAGES.items():
        texts[name] = _between_marks(name, kernel_table(measured, kernel))
    if any(problem_sizes.is_current(row) for document in measured for row in document["rows"]):
        texts[PICTURE] = picture(
            {
                _short(document): [*_known(document), *_against_torch(document["device"])]
                for document in measured
            }
        )
    if "--check" not in sys.argv:
        for name, text in texts.items():
            (ROOT / name).write_text(text, encoding="utf-8")
        return
    old = [name for name, text in texts.items() if not _holds(ROOT / name, text)]
    if old:
        sys.exit(f"{', '.join(old)}: results are out of date; run this without --check")


def _between_marks(name: str, text: str) -> str:
    before, _, rest = (ROOT / name).read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}{text}{END}{rest.partition(END)[2]}"


def _documents(kind: str) -> list[Document]:
    files = (ROOT / "benchmarks" / "results").glob(f"{kind}-*.json")
    return _sorted(json.loads(file.read_text(encoding="utf-8")) for file in files)


def _holds(file: Path, text: str) -> bool:
    return file.is_file() and file.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    main()
