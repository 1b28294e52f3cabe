"""Leaves cases of a test to `make test-full` or `make test-study`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def thinned(
    cases: Iterable[Any], kept: Collection[Any], mark: pytest.MarkDecorator = pytest.mark.full
) -> list[Any]:
    """Return the cases of a parametrised test; all but those kept have the mark, by default ``full``."""
    return [case if case in kept else _marked(case, mark) for case in cases]


def _marked(case: Any, mark: pytest.MarkDecorator) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=mark)
