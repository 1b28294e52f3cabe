"""The progress that a run shows."""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from dataclasses import replace

import pytest

from autotune.cli.progress import RunProgress, RunStatus
from autotune.measure.measurement import Measurement, Status
from autotune.measure.objective import Objective
from autotune.search.session import Budget, Measured, Phase, SearchStarted
from autotune.values import Configuration, Problem

SMALL, LARGE = Problem(n=100), Problem(n=10_000)


class Clock:
    """Seconds that pass when a test says so."""

    now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


def measured(problem: Problem, block: int, ms: float | None) -> Measured:
    """The event of one configuration; of a wrong one where it has no time."""
    row = Measurement(
        Configuration(BLOCK=block, UNROLL=True),
        Status.WRONG_RESULT if ms is None else Status.OK,
        samples_ms=() if ms is None else (ms,) * 3,
    )
    return Measured(problem, row, ms, remembered=block == 32, seconds_left=20.0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def status(clock: Clock) -> RunStatus:
    """Two problems of which the first is done and the second has begun."""
    status = RunStatus("scale", 2, clock_s=clock)
    status(Phase(SMALL, "inputs"))
    status(SearchStarted(SMALL, 8, 1, Budget(evaluations=4)))
    for block, ms in ((32, 3.0), (64, None), (128, 2.0), (256, 2.5)):
        clock.now_s += 1
        status(measured(SMALL, block, ms))
    status(SearchStarted(LARGE, 8, 0, Budget(seconds=24)))
    clock.now_s += 4
    status(measured(LARGE, 32, 70.0))
    clock.now_s += 5
    return status


def test_a_line_has_counts_the_best_and_the_time_left(status: RunStatus, clock: Clock) -> None:
    assert status.line() == "[2/2] scale n=10000: 1 tried, best 70 ms, 15 s left"
    assert status.share() == pytest.approx(9 / 24)
    clock.now_s += 60
    assert status.line().endswith("0 s left")
    status(Phase(LARGE, "finals"))
    assert status.line() == "scale n=10000: finals: the best, interleaved"
    assert RunStatus("scale", 1).line() == "scale: starting"
    counted = RunStatus("scale", 1)
    counted(SearchStarted(SMALL, 8, 0, Budget(evaluations=4)))
    assert counted.line() == "scale n=100: 0 of 4 tried" and counted.share() == 0


def test_the_best_is_that_of_the_objective() -> None:
    """Of a metric of which more is better, where a search minimises its reciprocal."""
    status = RunStatus("scale", 1, Objective("gflops", higher_is_better=True))
    status(SearchStarted(SMALL, 8, 0, Budget(evaluations=4)))
    for block, ms, gflops in ((32, 3.0, 50.0), (64, 4.0, 80.0), (128, 2.0, 60.0)):
        event = measured(SMALL, block, ms)
        status(replace(event, measurement=replace(event.measurement, score=1 / gflops)))
    assert ": 3 of 4 tried, best gflops 80, " in status.line()


def test_a_short_run_off_a_terminal_writes_nothing() -> None:
    with redirect_stderr(io.StringIO()) as log, RunProgress("scale", 1) as progress:
        progress(SearchStarted(SMALL, 8, 1, Budget(evaluations=4)))
        progress(measured(SMALL, 32, 3.0))
    assert log.getvalue() == ""
    assert progress.status.line() == "scale n=100: 1 of 4 tried, best 3 ms, 20 s left"
