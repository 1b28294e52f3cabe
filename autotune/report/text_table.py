"""A table of text with Markdown and HTML output; `autotune.cli.console` prints it on a console."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from autotune.report.wording import NONE, markdown, one_line

#: Hyphenated words up to this length do not wrap: ``--fresh``, a device's uuid.
_LONGEST_WORD = 40
#: Tables with more columns than this have vertical column titles.
_SIDE_BY_SIDE = 16


@dataclass(frozen=True)
class Table:
    """Columns and rows of text.

    ``numeric`` columns align to the right, ``wide`` columns may wrap, and ``strong`` rows are highlighted.
    """

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    numeric: frozenset[int] = frozenset()
    wide: frozenset[int] = frozenset()
    strong: frozenset[int] = frozenset()

    @classmethod
    def of(
        cls,
        rows: Sequence[Mapping[str, str | None]],
        words: Sequence[str] = (),
        wide: str = "",
        strong: Iterable[int] = (),
    ) -> Table:
        """Return a table of rows, with dashes for missing values and without empty columns.

        The first column and the columns in ``words`` are text; all others are numbers.
        """
        keys = dict.fromkeys(name for row in sorted(rows, key=len, reverse=True) for name in row)
        columns = tuple(n for n in keys if any((row.get(n) or NONE) != NONE for row in rows))
        return cls(
            columns,
            tuple(tuple(row.get(name) or NONE for name in columns) for row in rows),
            numeric=frozenset(i for i, name in enumerate(columns) if i and name not in words),
            wide=frozenset(i for i, name in enumerate(columns) if name == wide),
            strong=frozenset(strong),
        )

    def markdown(self) -> str:
        """Return the table as Markdown; empty without rows."""
        if not self.rows:
            return ""
        marks = ["--:" if i in self.numeric else ":--" for i in range(len(self.columns))]
        cells = [map(markdown, self.columns), marks, *(map(markdown, row) for row in self.rows)]
        return "".join(f"| {' | '.join(line)} |\n" for line in cells)

    def html(self) -> str:
        """Return the table as HTML that is readable without a style sheet; empty without rows."""
        if not self.rows:
            return ""
        names = map(unbroken, self.columns)
        head = "".join(self._cell("th", i, name) for i, name in enumerate(names))
        body = "".join(self._row(i, row) for i, row in enumerate(self.rows))
        upright = ' class="upright"' if len(self.columns) > _SIDE_BY_SIDE else ""
        return f"<table{upright}><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"

    def _row(self, number: int, cells: Sequence[str]) -> str:
        start = '<tr class="strong">' if number in self.strong else "<tr>"
        row = (self._cell("td", i, unbroken(cell)) for i, cell in enumerate(cells))
        return f"{start}{''.join(row)}</tr>\n"

    def _cell(self, tag: str, column: int, inner: str) -> str:
        number = ' class="n" style="text-align:right"' if column in self.numeric else ""
        style = ' class="w"' if column in self.wide else number
        scope = ' scope="col"' if tag == "th" else ""
        return f"<{tag}{scope}{style}>{inner}</{tag}>"


def unbroken(text: str) -> str:
    """Return escaped HTML in which hyphenated names do not wrap."""
    return " ".join(
        f'<span class="whole">{escape(word)}</span>'
        if "-" in word and len(word) <= _LONGEST_WORD
        else escape(word)
        for word in one_line(text, 4000).split(" ")
    )
