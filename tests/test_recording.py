"""What a record says of a run: rates, checks, the card of the finals."""

from dataclasses import replace

import pytest
from sample_records import entered, race
from sample_spaces import write_space

from autotune.devices.device import for_arch
from autotune.kernel.catalog import load_file
from autotune.kernel.definition import Definition
from autotune.kernel.space import enumerate_space
from autotune.measure.measurement import CheckResult, Measurement, Status
from autotune.measure.timing import Timing
from autotune.run.recording import record_of
from autotune.run.request import Request
from autotune.run.result import ProblemResult, RunResult, without_wrong, wrong_somewhere
from autotune.run.verdict import judge
from autotune.values import Configuration, Problem

P = Problem(n=1000)
WORK = "@scale.work\ndef work(p):\n    return Work(p.n, 4 * p.n, 4 * p.n)\n\n\n@scale.launch"


@pytest.fixture
def recorded(tmp_path):
    """The one entry of a run's record, whose winner took 1 ms for 8000 bytes and 1000 operations."""
    kernel, device = load_file(write_space(tmp_path, ("@scale.launch", WORK))), for_arch("sm_90")
    space = enumerate_space(kernel, device)

    def of(limits=(), checks=(), **changes):
        row = Measurement(Configuration(BLOCK=32), Status.OK, samples_ms=(1.0,) * 3, checks=checks)
        held = replace(race([entered(row, [1.0] * 9)]), **changes)
        result = ProblemResult(P, (row,), race=held, result=judge(held))
        request = Request(kernel, replace(device, uuid="GPU-first"), (P,))
        made = record_of(
            RunResult(request, (result,), space, 1, Definition("", ""), "", limits=dict(limits))
        )
        (found,) = made.problems
        assert found.origin.device_uuid == made.device.uuid
        return found

    return of


@pytest.mark.parametrize(
    ("timing", "limit", "expected"),
    [
        (Timing.COLD_GRAPH, "copy", (0.5, "copy")),
        (Timing.HOT_GRAPH, "copy", (None, None)),
        (Timing.COLD_GRAPH, "ffma", (0.5, "ffma")),
        (Timing.HOT_GRAPH, "ffma", (0.5, "ffma")),
    ],
)
def test_the_rate_of_memory_is_no_limit_of_what_a_cache_holds(recorded, timing, limit, expected):
    limits = {"copy": 1.0, "ffma": 1.0, limit: {"copy": 0.016, "ffma": 0.002}[limit]}
    found = recorded(limits, timing=timing)
    assert (found.limit_fraction, found.limit_name) == expected


def test_the_largest_error_on_random_data_is_recorded(recorded):
    checks = [
        CheckResult("out", dataset, error, error / 2, bound)
        for dataset, error, bound in (
            ("exact", 9.0, 0.0),
            ("random", 1.0, 2.0),
            ("random", 3.0, 4.0),
            ("random", 2.0, 8.0),
        )
    ]
    found = recorded(checks=tuple(checks)).checks
    assert (found.max_error, found.rms_error, found.bound) == (3.0, 1.5, 4.0)
    assert recorded(checks=tuple(checks[:1])).checks is None


@pytest.mark.parametrize(("raced", "expected"), [("", "GPU-first"), ("GPU-second", "GPU-second")])
def test_finals_on_another_card_are_recorded_as_that_cards(recorded, raced, expected):
    assert recorded(device_uuid=raced).origin.device_uuid == expected


def test_what_failed_in_finals_or_was_wrong_answers_for_no_other_problem():
    """A launch that fails in a search alone may need a smaller size."""
    rows = [
        Measurement(Configuration(BLOCK=block), status)
        for block, status in enumerate((Status.LAUNCH_FAILED, Status.WRONG_RESULT, Status.OK))
    ]
    lost = Measurement(Configuration(BLOCK=9), Status.LAUNCH_FAILED)
    results = ProblemResult(P, tuple(rows)), ProblemResult(P, (), disqualified=(lost,))
    assert {configuration.BLOCK for configuration in wrong_somewhere(results)} == {1, 9}


@pytest.mark.parametrize(
    ("problem", "status", "winner"),
    [
        (Problem(n=10), Status.WRONG_RESULT, 64),
        (Problem(n=10), Status.CRASHED, 64),
        (Problem(n=10), Status.TIMED_OUT, 32),
        (Problem(n=10, kind="b"), Status.WRONG_RESULT, 32),
    ],
    ids=["wrong", "crashed", "slow", "another category"],
)
def test_what_is_wrong_beside_another_problem_wins_nothing(tmp_path, problem, status, winner):
    """`lookup` answers sizes near that problem with it."""
    request = Request(load_file(write_space(tmp_path)), for_arch("sm_90"), (P,))
    rows = [Measurement(Configuration(BLOCK=block), Status.OK) for block in (32, 64)]
    held = race([entered(row, [ms] * 9) for row, ms in zip(rows, (1.0, 2.0), strict=True)])
    found = ProblemResult(P, tuple(rows), race=held, result=judge(held))
    fault = Measurement(Configuration(BLOCK=32), status, "on n=11: off")
    other = ProblemResult(problem, (), disqualified=(fault,))
    left, same = without_wrong([found, other], request)
    assert same is other
    assert left.winner == Configuration(BLOCK=winner)
    assert [row.message for row in left.disqualified] == (
        [] if winner == 32 else [f"on another problem, {problem}: on n=11: off"]
    )
    alone = replace(held, contenders=held.contenders[:1], samples=held.samples[:1])
    lonely = replace(found, race=alone, result=judge(alone))
    nothing, _ = without_wrong([lonely, other], request)
    assert (nothing.result is None) == (nothing.race is None) == (winner == 64)
