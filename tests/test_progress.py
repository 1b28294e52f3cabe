"""The progress that a run shows."""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from dataclasses import replace

from autotune.cli.progress import RunStatus, run_progress
from autotune.measure.measurement import ENERGY, Measurement, Status
from autotune.search.session import Budget, Measured, Phase, SearchStarted
from autotune.values import Configuration, Problem

SMALL, LARGE = Problem(n=100), Problem(n=10_000)


def measured(problem: Problem, block: int, ms: float | None) -> Measured:
    """The event of one configuration; of a wrong one where it has no time."""
    row = Measurement(
        Configuration(BLOCK=block, UNROLL=True),
        Status.WRONG_RESULT if ms is None else Status.OK,
        samples_ms=() if ms is None else (ms,) * 3,
    )
    return Measured(problem, row, remembered=block == 32, seconds_left=20.0)


def test_a_line_has_counts_the_best_and_the_time_left() -> None:
    """Two problems of which the first is done and the second has begun."""
    status = RunStatus("scale", 2)
    status(Phase(SMALL, "inputs"))
    status(SearchStarted(SMALL, Budget(evaluations=4)))
    assert status.line == "[1/2] scale n=100: 0 of 4 tried"
    for block, ms in ((32, 3.0), (64, None), (128, 2.0), (256, 2.5)):
        status(measured(SMALL, block, ms))
    assert status.line == "[1/2] scale n=100: 4 of 4 tried, best 2 ms, 1 failed, 20 s left"
    status(SearchStarted(LARGE, Budget(seconds=24)))
    status(measured(LARGE, 32, 70.0))
    assert status.line == "[2/2] scale n=10000: 1 tried, best 70 ms, 20 s left"
    status(Phase(LARGE, "finals"))
    assert status.line == "scale n=10000: finals: the best, interleaved"


def test_the_best_is_that_of_the_objective() -> None:
    status = RunStatus("scale", 1, ENERGY)
    status(SearchStarted(SMALL, Budget(evaluations=4)))
    for block, ms, mj in ((32, 3.0, 80.0), (64, 4.0, 50.0), (128, 2.0, 60.0)):
        event = measured(SMALL, block, ms)
        status(replace(event, measurement=replace(event.measurement, score=mj)))
    assert ": 3 of 4 tried, best energy 50 mJ, " in status.line


def test_a_short_run_off_a_terminal_writes_nothing() -> None:
    with redirect_stderr(io.StringIO()) as log, run_progress("scale", 1) as listener:
        listener(SearchStarted(SMALL, Budget(evaluations=4)))
        listener(measured(SMALL, 32, 3.0))
    assert log.getvalue() == ""
