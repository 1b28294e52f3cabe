"""Generated tables of docs/winners.md and docs/kernels/: races in short, rows of matrices, accuracy, early stops."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import rows as torch_rows
import triton_page
from results_cells import SPREAD_HEAD, line, short, size_text, span, spread_cells

RESULTS = Path(__file__).parent / "results"

Row = Mapping[str, Any]
Document = Mapping[str, Any]

#: Kernels whose races are on a page of docs/kernels/, by page.
RACED = {
    name: (name,)
    for name in [
        "conv1d",
        "copy",
        "hgemm",
        "prefetch",
        "reduce",
        "reduce_op",
        "sgemm",
        "sgemm_tf32x3",
        "spmm",
        "transpose",
    ]
} | {"gemv": ("gemv", "gemv_columns")}
#: Kernels whose accuracy is on their page.
ACCURATE = ("reduce", "sgemm_tf32x3")
#: Largest error over the vendor's that `tests/gpu` accept.
_ERROR_LIMIT = 2


def pages(vendor: Sequence[Document]) -> dict[str, list[str]]:
    """Return the generated part of each page, by its path; `vendor` has the races of each device."""
    found = {f"docs/kernels/{page}.md": list(races(vendor, names)) for page, names in RACED.items()}
    for name in ACCURATE:
        found[f"docs/kernels/{name}.md"] += ["", *accuracy(name)]
    found["docs/kernels/rows.md"] = list(torch_races())
    found["docs/winners.md"] = list(early_stops())
    return found


def races(documents: Sequence[Document], kernels: Sequence[str]) -> Iterator[str]:
    """Yield the spread of the ratios of kernels: one line for each device."""
    yield (
        "Time of the fastest rival over ours on all [tuned sizes](../results.md#tuned-sizes): geometric mean, then the"
    )
    yield "least and its size (`python benchmarks/vendor.py`)."
    yield ""
    yield f"||{SPREAD_HEAD[0]}"
    yield f"|{SPREAD_HEAD[1]}"
    for kernel in kernels:
        for document in documents:
            found = [row for row in document["rows"] if row["kernel"] == kernel and row["ratio"]]
            if found:
                dates = sorted(row["date"][:10] for row in found)
                name = f"{kernel}, " if len(kernels) > 1 else ""
                yield line(
                    f"{name}{short(document['device'])}, {span(dates)}", *spread_cells(found)
                )


def torch_races() -> Iterator[str]:
    """Yield the spread of the ratios of the rows of matrices: one line for each kernel and device."""
    yield "Fastest of torch eager, `torch.compile` and Liger over ours, in CUDA graphs"
    yield "([all sizes](../results.md#rows-against-torch-and-liger)): geometric mean, then the least and its size."
    yield ""
    yield "||sizes|slower at|cold|hot|"
    yield "|---|--:|--:|---|---|"
    for document in triton_page.documents("rows"):
        about = document["about"]
        for kernel in dict.fromkeys(row["kernel"] for row in document["rows"]):
            found = [row for row in document["rows"] if row["kernel"] == kernel]
            states = [
                [(torch_rows.ratio(row, state), row) for row in found] for state in ("cold", "hot")
            ]
            slower = sum(min(cold[0], hot[0]) < 1 for cold, hot in zip(*states, strict=True))
            cells = (_least(pairs) for pairs in states)
            name = f"{kernel}, {short(about['device'])}, {about['date'][:10]}"
            yield line(name, str(len(found)), str(slower), *cells)


def _least(pairs: Sequence[tuple[float, Row]]) -> str:
    ratio, row = min(pairs, key=lambda pair: pair[0])
    mean = geometric_mean([each for each, _ in pairs])
    least = f"**{ratio:.2f}**" if ratio < 1 else f"{ratio:.2f}"
    return f"{mean:.2f}, {least} at {_rows_size(row)}"


def _rows_size(row: Row) -> str:
    kind = "".join(f"{each} " for each in ("residual", "gradient") if row.get(each))
    return f"{kind}{row['rows']}×{row['columns']} {row['dtype']}"


def accuracy(kernel: str) -> Iterator[str]:
    """Yield our errors over the vendor's: a line for each kind of data, a column for each size."""
    (document,) = (_read(file) for file in RESULTS.glob("accuracy-*.json"))
    found = [row for row in document["rows"] if row["kernel"] == kernel and row["vendor_rms"]]
    sizes = list(dict.fromkeys(row["size"] for row in found))
    yield "Largest and RMS error over the vendor's; **bold**: above 2"
    yield f"({short(document['device'])}, {document['date'][:10]}, `{document['command']}`):"
    yield ""
    yield line("data", *map(_size, sizes))
    yield f"|---|{'--:|' * len(sizes)}"
    for data in dict.fromkeys(row["data"] for row in found):
        by_size = {row["size"]: row for row in found if row["data"] == data}
        yield line(data, *(_errors(by_size[size]) if size in by_size else "" for size in sizes))


def _size(text: str) -> str:
    sides = text.split("×")
    return size_text(dict(zip("mnk" if len(sides) > 1 else "n", map(int, sides), strict=True)))


def _errors(row: Row) -> str:
    ratios = [row[f"ours_{kind}"] / row[f"vendor_{kind}"] for kind in ("max", "rms")]
    cells = (
        f"**{each:.2f}**" if round(each, 2) > _ERROR_LIMIT else f"{each:.2f}" for each in ratios
    )
    others = f", {row['ours_others']} NaN" if row["ours_others"] else ""
    return f"{', '.join(cells)}{others}"


def early_stops() -> Iterator[str]:
    """Yield the table of the rule of early stops, replayed on recorded spaces."""
    found = _read(RESULTS / "retired.json")["early_stop"]["rows"]
    yield "|recorded space|samples|kernel time spent, whole space|of 300 at random|regret, largest|"
    yield "|---|--:|--:|--:|--:|"
    for space in dict.fromkeys(row["space"] for row in found):
        some, whole = sorted(
            (r for r in found if r["space"] == space), key=lambda r: r["configurations"]
        )
        shares = (f"{row['time_share_mean']:.1%}" for row in (whole, some))
        regret = max(some["regret_max"], whole["regret_max"])
        yield line(space, str(whole["samples"]), *shares, f"{regret:.1%}")


def _read(file: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return document
