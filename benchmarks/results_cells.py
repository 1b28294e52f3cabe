"""Cells of tables of results: devices, sizes, dates, ratios and the spread of ratios."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import geometric_mean
from typing import Any

import problem_sizes

Row = Mapping[str, Any]
#: Head of a table of ratios of several sizes, and its line below; the first column has another name.
SPREAD_HEAD = (f"sizes|slower at|{'|'.join(problem_sizes.STATES)}|", "---|--:|--:|---|---|---|")


def line(*cells: str) -> str:
    return f"|{'|'.join(cells)}|"


def short(device: str) -> str:
    """Return ``H100`` of ``NVIDIA H100 80GB HBM3``."""
    return next((word for word in device.split() if any(c.isdigit() for c in word)), device)


def size_text(problem: Mapping[str, int | str]) -> str:
    """Return a size as one word if it is a product: ``1111×901×703``."""
    return problem_sizes.describe(problem).replace(" x ", "×")


def span(dates: Sequence[str]) -> str:
    """Return the first and the last of sorted dates: ``2026-11-22 to 27``."""
    first, last = dates[0], dates[-1]
    if first == last:
        return first
    return f"{first} to {last[8:] if first[:8] == last[:8] else last}"


def is_slower(row: Row, column: str) -> bool:
    """Return whether the whole interval of a ratio lies below 1."""
    interval = row.get(f"{column}_ci")
    return interval is not None and bool(interval[1] < 1)


def is_slower_anywhere(row: Row) -> bool:
    """Return whether a row is slower in a state of the L2 cache."""
    return any(is_slower(row, column) for column in problem_sizes.STATES.values())


def spread_cells(rows: Sequence[Row]) -> list[str]:
    """Return the number of sizes, the number of slower ones, and the spread of the ratios in each state."""
    slower = sum(map(is_slower_anywhere, rows))
    return [
        str(len(rows)),
        str(slower),
        *(_spread(rows, each) for each in problem_sizes.STATES.values()),
    ]


def _spread(rows: Sequence[Row], column: str) -> str:
    """Return the geometric mean of a column and its least ratio with the size; "" if no row has the column."""
    measured = [row for row in rows if row.get(column) is not None]
    if not measured:
        return ""
    worst = min(measured, key=lambda row: float(row[column]))
    mean = geometric_mean([row[column] for row in measured])
    return f"{mean:.3f}, {worst[column]:.3f} at {size_text(worst['problem'])}"
