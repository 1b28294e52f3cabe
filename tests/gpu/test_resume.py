"""A tuner killed again and again on a GPU; see contracts/resume.py."""

from pathlib import Path

import pytest
from contracts.resume import kill_and_finish


@pytest.mark.gpu
def test_a_tuner_killed_at_twenty_moments_loses_and_doubles_nothing(tmp_path: Path) -> None:
    kill_and_finish(tmp_path, "cuda:0")
