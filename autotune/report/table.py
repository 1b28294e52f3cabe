"""A table as plain text, and how things are called in it. No markup, no statistics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from autotune.measure.measurement import Status
from autotune.report import wording
from autotune.report.content import ProblemContent, ReportContent
from autotune.values import Value

NONE = "–"

_LIMIT_WORDS = {
    "read": "read bandwidth",
    "copy": "copy bandwidth",
    "ffma": "FP32 rate (FFMA)",
}


@dataclass(frozen=True)
class Table:
    """Columns and rows of text.

    ``numeric`` columns are aligned right, ``wide`` ones may wrap; rows in ``strong`` stand out.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()
    wide: frozenset[int] = frozenset()
    strong: frozenset[int] = frozenset()

    @classmethod
    def of(
        cls,
        rows: Sequence[Mapping[str, str]],
        words: str = "",
        wide: str = "",
        strong: Iterable[int] = (),
    ) -> Table:
        """A table of rows with equal keys, which are the columns.

        Beside the first column only ``words`` is no column of numbers.
        """
        columns = tuple(rows[0]) if rows else ()
        return cls(
            columns,
            tuple(tuple(row.values()) for row in rows),
            numeric=frozenset(i for i, name in enumerate(columns) if i and name != words),
            wide=frozenset(i for i, name in enumerate(columns) if name == wide),
            strong=frozenset(strong),
        )

    def cells(self) -> Iterator[dict[str, str]]:
        """Yield each row by its columns."""
        return (dict(zip(self.columns, row, strict=True)) for row in self.rows)


def problem_name(problem: ProblemContent) -> str:
    """Return the name of a problem in titles and tables."""
    return wording.one_line(str(problem.problem)) or "the problem"


def configuration_text(content: ReportContent, configuration: Mapping[str, Value]) -> str:
    """Return a configuration on one line, without what is no choice."""
    return wording.one_line(str(content.chosen(configuration)))


def value_text(value: object) -> str:
    """Return a parameter's value as text."""
    return wording.one_line(str(int(value)) if isinstance(value, bool) else str(value))


def limit_words(name: str) -> str:
    """Return the name of a measured limit."""
    return _LIMIT_WORDS.get(name, wording.one_line(name))


def plural(number: int, noun: str) -> str:
    return f"{wording.count(number)} {noun}" + ("" if number == 1 else "s")


def listed(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words))


def status_counts(problem: ProblemContent) -> dict[Status, int]:
    """Return how often trials ended in each way, in the order of the statuses."""
    met = [trial.status for trial in problem.trials]
    return {status: met.count(status) for status in Status if status in met}
