"""Fixtures of the tests on a GPU."""

from typing import Any

import pytest


@pytest.fixture(scope="session")
def cupy() -> Any:
    """CuPy, on its device."""
    return pytest.importorskip("cupy")
