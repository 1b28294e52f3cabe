"""A GPU whose memory another process holds: a clear message, and nothing lost."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from autotune.devices.choose import choose_device
from autotune.errors import AutotuneError
from autotune.kernel.catalog import find_kernel
from autotune.run.request import Request, Search
from autotune.run.result import RunResult
from autotune.run.run import Run
from autotune.search.session import Budget
from autotune.store import Store
from autotune.values import Problem

#: Takes all memory but so many MiB, says so, and keeps it until its input ends.
HOLDER = """
import sys, cupy
held, step = [], 1 << 30
while step >= 1 << 20:
    free, _ = cupy.cuda.runtime.memGetInfo()
    if free - (int(sys.argv[1]) << 20) < step:
        step //= 2
        continue
    try:
        held.append(cupy.cuda.runtime.malloc(step))
    except cupy.cuda.runtime.CUDARuntimeError:
        step //= 2
print("held", flush=True)
sys.stdin.read()
"""


def _tuned(file: Path) -> RunResult:
    kernel = find_kernel("transpose")
    request = Request(
        kernel,
        choose_device("cuda:0"),
        (Problem(m=4096, n=4096),),
        goal=Search("exhaustive"),
        budget=Budget(evaluations=8),
    )
    with Store.open(file) as store:
        tuning = Run(request, store)
        try:
            return tuning.run()
        finally:
            tuning.close()


def _rows(file: Path) -> Counter[object]:
    with Store.open(file) as store:
        return Counter(row.measurement.configuration for row in store.rows())


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("left_mib", [8, 700], ids=["no context", "no buffers"])
def test_memory_held_by_another_process(tmp_path: Path, left_mib: int) -> None:
    """Neither a row of an innocent configuration, nor of one that was there before."""
    file = tmp_path / "s.sqlite"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(left_mib)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout and holder.stdout.readline() == "held\n"
        with pytest.raises(AutotuneError, match="not enough device memory") as refused:
            _tuned(file)
        print(refused.value)
        assert _rows(file) == Counter()
    finally:
        holder.kill()
        holder.wait()
    result = _tuned(file)
    assert result.problems[0].result is not None
    assert set(_rows(file).values()) == {1}
