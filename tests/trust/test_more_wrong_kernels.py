"""Kernels whose fastest configurations are wrong, also if a run is killed: no answer is one of them.

`tests/test_wrong_kernels.py` has two of the kernels.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from wrong_kernels import KERNELS, USUAL, Trial

MOMENTS = random.Random(0)


@pytest.mark.parametrize("name", [name for name in KERNELS if name not in USUAL])
def test_a_wrong_configuration_is_no_answer(
    name: str, wrong_kernel: Callable[[str], Trial]
) -> None:
    assert wrong_kernel(name).run() == []


@pytest.mark.parametrize(
    ("name", "rows", "delay_s"),
    [(name, MOMENTS.randrange(1, 12), MOMENTS.uniform(0, 3)) for name in KERNELS],
)
def test_a_run_killed_at_any_moment_leaves_no_wrong_answer(
    name: str, rows: int, delay_s: float, wrong_kernel: Callable[[str], Trial]
) -> None:
    """Nor does the next run, which finds its rows."""
    trial = wrong_kernel(name)
    ending = trial.kill(rows, delay_s)
    assert "processes left" not in ending
    assert trial.faults(None) == []
    assert trial.run() == []
