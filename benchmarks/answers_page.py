"""Tables of docs/results.md about the answers of `lookup`: random sizes, and expectations of left-out problems."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean, mean, quantiles
from typing import Any

from results_cells import line, short

RESULTS = Path(__file__).parent / "results"

Row = Mapping[str, Any]
#: Times that are compared with a time, by the sentence of a cell.
_COMPARED = (
    ("best of the portfolio", "best_ms", "answer_ms"),
    ("vendor", "vendor_ms", "answer_ms"),
    ("search of 10 s", "tuned_ms", "answer_ms"),
    ("vendor over first call", "vendor_ms", "first_call_ms"),
)


def random_sizes() -> Iterator[str]:
    """Yield the section of `any_size.py`: one line for each kernel and device."""
    documents = [_read(file) for file in sorted(RESULTS.glob("any-size-*.json"))]
    if not documents:
        return
    yield from (
        "## Random sizes",
        "",
        "Time of the named configuration over the time of the answer, on random sizes that no fit saw: geometric mean, "
        "lower tenth, worst. Below 1 the answer is slower. *Held*: share of sizes that reach the expected lower tenth. "
        f"Command: `python benchmarks/any_size.py`; {'; '.join(map(_origin, documents))}.",
        "",
        f"|kernel|device|sizes|{'|'.join(title for title, _, _ in _COMPARED)}|held|",
        f"|---|---|--:|{'--:|' * len(_COMPARED)}--:|",
    )
    for document in documents:
        for kernel in dict.fromkeys(row["kernel"] for row in document["rows"]):
            rows = [row for row in document["rows"] if row["kernel"] == kernel]
            cells = [_spread(rows, time, of) for _, time, of in _COMPARED]
            yield line(kernel, short(document["device"]), str(len(rows)), *cells, _held_tenth(rows))
    yield ""


def slowest_answers(count: int = 5) -> Iterator[str]:
    """Yield a table of the random sizes whose answers lose most against the vendor."""
    rows = [
        (row["vendor_ms"] / row["answer_ms"], document["device"], row)
        for document in (_read(file) for file in sorted(RESULTS.glob("any-size-*.json")))
        for row in document["rows"]
        if row["vendor_ms"] and row["vendor_ms"] < row["answer_ms"]
    ]
    if not rows:
        return
    yield from (
        f"The {count} answers of each device that lose most against the vendor, µs:",
        "",
        "|device|kernel|size|answer|vendor|ratio|",
        "|---|---|---|--:|--:|--:|",
    )
    for device in sorted({device for _, device, _ in rows}):
        mine = sorted((row for row in rows if row[1] == device), key=lambda row: row[0])
        for ratio, _, row in mine[:count]:
            size = "×".join(map(str, row["problem"].values()))
            times = (f"{1000 * row[name]:.1f}" for name in ("answer_ms", "vendor_ms"))
            yield line(short(device), row["kernel"], size, *times, f"**{ratio:.2f}**")
    yield ""


def held_out_sizes() -> Iterator[str]:
    """Yield the section of `size_data.py --held-out`: one line for each kernel and device."""
    document = _read(RESULTS / "held-out.json")
    yield from (
        "## Sizes that are held out of the fit",
        "",
        "Speed of the answer over the best measured configuration, on sizes that the fit has not seen. "
        f"Command: `{document['command']}`.",
        "",
        "|kernel|device|date|configurations|sizes|geometric mean|lower tenth|worst|",
        "|---|---|---|--:|--:|--:|--:|--:|",
    )
    for row in document["rows"]:
        counts = str(row["configurations"]), str(row["sizes"])
        shares = (f"{row[name]:.3f}" for name in ("mean", "tenth", "worst"))
        yield line(row["kernel"], short(row["device"]), row["date"], *counts, *shares)
    yield ""


def left_out_problems() -> Iterator[str]:
    """Yield the section of `lookup.py --left-out`: how many expectations held."""
    document = _read(RESULTS / "lookup.json")
    yield from (
        "## Expected speed of problems that are left out",
        "",
        "Each tuned problem is removed from its record and asked for, alone or with its neighbours. *Held*: answers "
        "that reach at least the expected share of the best speed. "
        f"Command: `python benchmarks/lookup.py --left-out`, {document['date'][:10]}.",
        "",
        "|kernel|device|expected, mean|reached, mean|worst|held|held without neighbours|",
        "|---|---|--:|--:|--:|--:|--:|",
    )
    rows = [row for row in document["rows"] if row["held"] is not None]
    for kernel, device in sorted({(row["kernel"], row["device"]) for row in rows}):
        mine = [row for row in rows if (row["kernel"], row["device"]) == (kernel, device)]
        alone = [row for row in mine if not row["left_out_within"]]
        if not alone:
            continue
        others = [row for row in mine if row["left_out_within"]]
        yield line(
            *(kernel, short(device)),
            *(f"{mean(row[name] for row in alone):.3f}" for name in ("expected", "got")),
            f"{min(row['got'] for row in alone):.3f}",
            *(_held(alone), _held(others)),
        )
    yield ""


def other_devices() -> Iterator[str]:
    """Yield the section of `lookup.py --elsewhere`: answers of another device's records."""
    document = _read(RESULTS / "lookup-elsewhere.json")
    yield from (
        "## Answers of another device's records",
        "",
        "Speed of the answer over the best measured speed, if the device has only the records of the other one. "
        f"Command: `python benchmarks/lookup.py --elsewhere`, {document['date'][:10]}.",
        "",
        "|kernel|device|records of|problems|geometric mean|worst|",
        "|---|---|---|--:|--:|--:|",
    )
    rows = [row for row in document["rows"] if row["got"]]
    for kernel, device, tuned in sorted(
        {(row["kernel"], row["device"], row["tuned"]) for row in rows}
    ):
        shares = [
            row["got"]
            for row in rows
            if (row["kernel"], row["device"], row["tuned"]) == (kernel, device, tuned)
        ]
        means = f"{geometric_mean(shares):.3f}", f"{min(shares):.3f}"
        yield line(kernel, short(device), short(tuned), str(len(shares)), *means)
    yield ""


def _spread(rows: Sequence[Row], time: str, of: str) -> str:
    shares = [row[time] / row[of] for row in rows if row.get(time) and row.get(of)]
    if len(shares) < 2:
        return ""
    tenth = quantiles(shares, n=10, method="inclusive")[0]
    return f"{geometric_mean(shares):.3f}, {tenth:.3f}, {min(shares):.3f}"


def _held_tenth(rows: Sequence[Row]) -> str:
    expected = [row for row in rows if row["expected"] and row["expected"][1] is not None]
    if not expected:
        return ""
    held = mean(row["best_ms"] / row["answer_ms"] >= row["expected"][1] for row in expected)
    return f"{held:.0%}"


def _held(rows: Sequence[Row]) -> str:
    return f"{sum(row['held'] for row in rows)} of {len(rows)}" if rows else ""


def _read(file: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return document


def _origin(document: Mapping[str, Any]) -> str:
    return f"{document['device']}, driver {document['driver']}, {document['date'][:10]}"
