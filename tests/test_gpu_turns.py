"""Tests on one GPU in several processes: those marked `alone` run while no other does."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).parent / "gpu" / "conftest.py"
#: Each test writes when it began and ended.
TESTS = """
import time
from pathlib import Path
import pytest

@pytest.fixture
def measured():
    begun_s = time.monotonic()
    time.sleep(0.1)
    yield
    with Path(__file__).with_name("spans").open("a") as file:
        file.write(f"{ALONE} {begun_s} {time.monotonic()}\\n")

@pytest.mark.parametrize("number", range(3))
def test_it(number, measured):
    pass
"""


def test_what_is_to_run_alone_does(tmp_path: Path) -> None:
    folder = tmp_path / "gpu"
    folder.mkdir()
    shutil.copy(CONFTEST, folder)
    (folder / "__init__.py").touch()
    for number, is_alone in enumerate([True, False, False, True]):
        mark = "\npytestmark = pytest.mark.alone" if is_alone else ""
        (folder / f"test_{number}.py").write_text(f"ALONE = {is_alone}{TESTS}{mark}\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = alone\n")
    inherited = {name: value for name, value in os.environ.items() if "XDIST" not in name}
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "3", "gpu"],
        cwd=tmp_path,
        env=inherited,
        check=True,
    )
    spans = []
    for line in (folder / "spans").read_text().splitlines():
        is_alone, begun_s, ended_s = line.split()
        spans.append((is_alone == "True", float(begun_s), float(ended_s)))
    assert len(spans) == 12
    meetings = [
        (first[0], second[0])
        for place, first in enumerate(spans)
        for second in spans[place + 1 :]
        if first[1] < second[2] and second[1] < first[2]
    ]
    assert (False, False) in meetings
    assert set(meetings) == {(False, False)}
