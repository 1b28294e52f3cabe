"""Launches at once on the CPU device; see contracts/overlap.py."""

from contextlib import closing

import pytest
from contracts.faults import SPACES
from contracts.overlap import OverlapContract

from autotune.devices.choose import choose_device
from autotune.kernel.catalog import find_kernel
from autotune.measure import tasks
from autotune.measure.compiler import compile_job, compile_now
from autotune.measure.measurement import Status
from autotune.run.bench import Bench
from autotune.run.request import Request
from autotune.values import Configuration


@pytest.mark.opencl
@pytest.mark.usefixtures("opencl_device")
class TestLaunchesAtOnceOnOpencl(OverlapContract):
    selector = "opencl:cpu"


def test_a_device_without_room_for_the_second_says_so(
    opencl_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is nobody's fault. The device that is full is this one, with its memory called so."""
    kernel, device = find_kernel("ticket", SPACES), choose_device(opencl_device)
    (problem,) = kernel.problems["opencl"]
    configuration = Configuration(PIECE=1 << 8, TICKET="caller")
    with closing(Bench(Request(kernel, device, (problem,)))) as bench:
        job = bench.job(problem)
    compiled = compile_now(compile_job(kernel, configuration, problem, device))
    assert compiled.binary is not None
    assert tasks.check(job, configuration, compiled.binary).status is Status.OK

    def full(nbytes: int, offset_bytes: int) -> None:
        raise MemoryError(f"no room for {nbytes} bytes")

    executor, _ = tasks.current()
    monkeypatch.setattr(executor, "allocate", full)
    found = tasks.check_at_once(job, configuration, compiled.binary)
    assert (found.status, found.message) == (Status.OK, f"no room for {4 * (1 << 19)} bytes")
