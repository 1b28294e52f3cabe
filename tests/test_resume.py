"""A tuner killed again and again on the CPU device; see contracts/resume.py."""

from pathlib import Path

import pytest
from contracts.resume import kill_ten_times_and_finish


@pytest.mark.opencl
def test_a_tuner_killed_at_ten_points_loses_and_doubles_nothing(
    tmp_path: Path, opencl_device: str
) -> None:
    kill_ten_times_and_finish(tmp_path, opencl_device)
