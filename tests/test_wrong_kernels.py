"""Kernels whose fastest configurations are wrong: no answer is one of them, not for a moment.

`tests/trust/test_more_wrong_kernels.py` has the other kernels, and runs that are killed.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from wrong_kernels import USUAL, Trial


@pytest.mark.parametrize("name", USUAL)
def test_a_wrong_configuration_is_no_answer(
    name: str, wrong_kernel: Callable[[str], Trial]
) -> None:
    assert wrong_kernel(name).run() == []
