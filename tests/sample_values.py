"""Values of any kind, to put at any place of a document that others wrote."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a document."""
    if path:
        yield path
    if isinstance(document, dict | list):
        keys = list(document) if isinstance(document, dict) else range(len(document))
        for key in keys:
            yield from places(document[key], (*path, key))


VALUES_OF_ANY_KIND = [
    *(None, True, 3, -1, 10**30, 0.5, float("inf"), [], [3], ["x"], {}, {"x": 1}),
    *(
        "",
        "x",
        "[1]",
        "1 // 0",
        f"range({10**30})",
        "ProblemSize[7]",
        "(" * 3000,
        "max(tile)",
        "'a'",
    ),
]
