"""What tests on a GPU share."""

from typing import Any

import pytest


@pytest.fixture(scope="session")
def cupy() -> Any:
    """CuPy, on its device."""
    return pytest.importorskip("cupy")
