"""Thirteen kinds of change of a tuned kernel: no answer is of a plan of the old kernel, unless it says so."""

from typing import Any

import pytest
from changing_kernel import CHANGES, changed, check_answers

__all__ = ["changed"]


@pytest.mark.parametrize("again", [False, True], ids=["not tuned", "one size tuned"])
@pytest.mark.parametrize("what", CHANGES)
def test_an_answer_is_of_the_current_kernel_or_says_stale(
    changed: Any, what: str, again: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    check_answers(changed(CHANGES[what], again), what, again, capsys)
