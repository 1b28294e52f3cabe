"""Sizes that are derived from a tuned one, and what to require of sizes where a kernel is wrong."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from autotune.data.arguments import Argument
from autotune.data.dataset import EXACT, RANDOM, Dataset
from autotune.devices.device import for_arch
from autotune.errors import AutotuneError, FleetError
from autotune.kernel.spec import Kernel, Launch
from autotune.measure.measurement import CheckResult, Measurement, Status
from autotune.measure.race import Contender
from autotune.measure.worker_state import Job
from autotune.run.sizes import (
    OtherSizes,
    can_show_faults,
    compact,
    proposed,
    size_fields,
    sizes_near,
)
from autotune.values import Configuration, Problem


def ns(*values):
    return [Problem(n=n) for n in values]


@pytest.mark.parametrize(
    ("problem", "units", "sizes"),
    [
        (Problem(n=4096), {128, 4}, ns(4095, 4097, 4093, 1, 127, 129, 128, 383)),
        (Problem(n=256), {128}, ns(255, 257, 251, 1, 127, 129, 128, 383)),
        (Problem(n=10), {128}, ns(9, 11, 7, 1)),
        (Problem(n=8), {128}, ns(7, 9, 1, 2)),
        (Problem(n=1), (), ns(2)),
        (Problem(n=0), (), ns(1)),
    ],
)
def test_sizes_lie_beside_the_problem_and_beside_multiples(problem, units, sizes):
    found = sizes_near(problem, ["n"], units)
    assert found[: len(sizes)] == sizes
    assert problem not in found and len(set(found)) == len(found)


def test_each_of_several_fields_is_changed_alone_and_all_together():
    found = sizes_near(Problem(m=64, n=1000, mode="a"), ["m", "n"], {16})
    assert found[:4] == [
        Problem(m=64, n=999, mode="a"),
        Problem(m=63, n=1000, mode="a"),
        Problem(m=65, n=1001, mode="a"),
        Problem(m=61, n=997, mode="a"),
    ]


def test_each_field_is_large_where_the_others_are_1():
    """As many elements as the problem has: an overflow or a carry may show in one direction only."""
    problem = Problem(rows=64, columns=1000)
    found = sizes_near(problem, ["rows", "columns"], {16})
    assert {Problem(rows=1, columns=64000), Problem(rows=64000, columns=1)} < set(found[:9])
    assert sizes_near(Problem(n=64), ["n"], {16}) == ns(63, 65, 61, 1, 15, 17, 16, 47)


def test_each_of_the_three_largest_fields_is_one_less_first():
    found = sizes_near(Problem(a=5, b=8, c=7, d=6), ["a", "b", "c", "d"], ())
    assert [[size[name] for name in "abcd"] for size in found[:4]] == [
        [5, 7, 7, 6],
        [5, 8, 6, 6],
        [5, 8, 7, 5],
        [6, 9, 8, 7],
    ]


def test_a_forbidden_size_is_replaced_by_the_next_that_is_allowed():
    found = sizes_near(Problem(n=4096), ["n"], {128}, lambda p: p.n % 8 == 0)
    assert found[:2] == ns(4088, 4104)
    assert all(p.n % 8 == 0 for p in found)


def test_modes_small_counts_and_what_is_compiled_in_are_no_sizes():
    problems = [Problem(n=64, batch=4, mode="a", taps=9)]
    kernel = Kernel("x { }", name="x", problems=problems, static=["taps"], A=(1,))
    assert size_fields(kernel, problems[0]) == ["n"]
    assert size_fields(kernel, problems[0].replace(n=3, batch=8)) == ["n", "batch"]


def test_a_compact_problem_keeps_the_remainders():
    assert compact(Problem(m=8190, n=100), ["m", "n"], {32}) == Problem(m=158, n=100)


@pytest.mark.parametrize(
    ("right", "wrong", "rule"),
    [
        (ns(4096, 128), ns(4095, 1, 127), "p.n % 128 == 0"),
        (ns(1000, 999, 64000), ns(128000), "p.n <= 64000"),
        (ns(1000, 999, 33), ns(1, 2), "p.n >= 33"),
        (ns(4096), ns(4095, 65536), "(p.n % 128 == 0) & (p.n <= 4096)"),
        (ns(1000, 1003), ns(1001), "p.n == 1000"),
        ([Problem(m=16, n=16)], [Problem(m=15, n=16), Problem(m=16, n=17)], "(p.m % 16 == 0) & (p.n % 16 == 0)"),
    ],
)  # fmt: skip
def test_the_proposed_rule_tells_right_sizes_from_wrong_ones(right, wrong, rule):
    assert proposed(right, wrong, list(right[0]), {2, 16, 128}) == rule


# ---------------------------------------------------------------------- verifying, by a clock of the test's own

GPU = replace(for_arch("sm_90"), memory_bytes=1 << 27)
OWN = Problem(n=4096)
#: Sizes beside the problem, as the first cases here have them.
BESIDE = [4095, 4097, 4093, 1, 63, 65, 64, 191]


def wrong_by(*shares):
    """A wrong result whose outputs are off by these multiples of their bounds."""
    checks = tuple(CheckResult("o", RANDOM, share, share, 1.0, 0) for share in shares)
    return Measurement(Configuration(), Status.WRONG_RESULT, checks=checks)


class Expecting(Dataset):
    """A data set whose expected values are its seed."""

    def expected(self, name):
        return np.array([self.seed])


class Case:
    """A kernel, whose finalists are verified at other sizes; ``found`` is of a block and a size."""

    def __init__(self, monkeypatch):
        self.kernel = Kernel("x { }", name="x", problems=[OWN], BLOCK=(32, 64), PAD=(0, 1))
        self.kernel.launch(lambda c, p: Launch(-(-p.n // c.BLOCK), c.BLOCK))
        self.device, self.known, self.search_s, self.warned = GPU, [OWN], 0.0, set()
        self.dtype = "<f4"
        self.zero, self.wrong, self.data_s, self.check_s, self.median_ms = (
            (),
            {},
            lambda p: 1e-9 * p.n,
            0.0,
            0.0,
        )
        self.now_s, self.checked, self.sizes = 0.0, [], None
        clock = SimpleNamespace(monotonic=lambda: self.now_s)
        monkeypatch.setattr("autotune.run.sizes.time", clock)
        monkeypatch.setattr("autotune.run.sizes._MIN_S", 1.0)

    def job(self, problem, seed=None, names=(EXACT, RANDOM)):
        argument = Argument("x", "input", self.dtype, (problem.n,))
        seconds = self.data_s(problem) / len(names)
        seed = int(problem.n not in self.zero)
        sets = [
            Expecting(name, Path(), (argument,), {"o": 1.0}, seed, seconds=seconds)
            for name in names
        ]
        return Job(b"", problem, self.device, tuple(sets))

    def make_data(self, wanted, seed=None):
        """Nothing is made beside: jobs are at once."""

    def check(self, finalist, job):
        self.now_s += self.check_s
        self.checked.append((finalist.configuration.BLOCK, job.problem.n))
        found = self.wrong.get(self.checked[-1], Measurement(Configuration(), Status.OK))
        if isinstance(found, Exception):
            raise found
        return replace(found, message=f"on {job.problem}")

    def verified(self, *blocks):
        """Return the blocks that are right, and the messages of the others."""
        bench = SimpleNamespace(kernel=self.kernel, job=self.job, make_data=self.make_data)
        self.sizes = self.sizes or OtherSizes(
            bench, self.job(OWN), self.known, self.check, self.search_s, self.warned
        )
        samples_ms = (self.median_ms,) * 3
        rows = [
            Measurement(Configuration(BLOCK=b, PAD=0), Status.OK, samples_ms=samples_ms)
            for b in blocks
        ]
        self.checked.clear()
        right, wrong = self.sizes.verified([Contender(r.configuration, row=r) for r in rows])
        return [each.configuration.BLOCK for each in right], [row.message for row in wrong]

    def tried(self, *blocks):
        """Return the sizes at which some finalist ran."""
        self.verified(*blocks)
        return list(dict.fromkeys(n for _, n in self.checked))


@pytest.fixture
def case(monkeypatch):
    return Case(monkeypatch)


def test_at_most_ten_sizes_are_tried_and_one_of_them_is_large(case):
    case.known = [Problem(n=4097), OWN]
    sizes = case.tried(32, 64)
    assert sizes[:-1] == [n for n in BESIDE if n != 4097]
    assert sizes[-1] == 1 << 20


def test_units_are_what_a_block_covers_too(case):
    case.kernel.launch(lambda c, p: Launch(-(-p.n // 96), 32))
    assert {95, 96, 97} < set(case.tried(32))


def test_a_finalist_that_is_wrong_is_out_and_told_what_to_require(case):
    case.wrong = {(32, n): wrong_by(9) for n in BESIDE if n % 64}
    right, (message,) = case.verified(32, 64)
    assert right == [64]
    assert message.startswith("on n=4095 (correct at 3 sizes, wrong at 7); exclude")
    assert message.endswith("@x.requires, for example: return p.n % 64 == 0")


def test_sizes_that_it_does_not_take_are_not_among_the_right_ones(case):
    case.known = [Problem(n=63), OWN]
    case.kernel.requires(lambda c, p: p.n % 2 == 0)
    case.wrong = {(64, 4094): wrong_by(9)}
    _, (message,) = case.verified(64)
    assert message.startswith(f"on n=4094 (correct at {len(case.checked)} sizes, wrong at 1)")
    assert not any(n % 2 for _, n in case.checked)


def test_a_size_that_some_finalist_takes_is_tried_for_it(case):
    case.kernel.requires(lambda c, p: p.n % 64 == 0 or c.BLOCK == 32)
    case.verified(32, 64)
    assert {(32, 4095), (32, 64), (64, 64)} < set(case.checked)
    assert (64, 4095) not in case.checked


@pytest.mark.parametrize("status", [Status.CRASHED, Status.TIMED_OUT])
def test_a_crash_is_one_too_many(case, status):
    case.wrong = {(32, 4095): Measurement(Configuration(), status)}
    assert case.verified(32)[0] == []
    assert case.checked == [(32, 4095)]


@pytest.mark.parametrize(
    ("found", "is_right"),
    [
        (wrong_by(100.0), True),
        (wrong_by(101.0), False),
        (wrong_by(1000.0, 2.0), False),
        (wrong_by(), False),
        (Measurement(Configuration(), Status.CRASHED), False),
        (Measurement(Configuration(), Status.TIMED_OUT), True),
    ],
    ids=["rounding", "more", "one output", "no number", "crash", "slow"],
)
def test_at_the_large_size_rounding_and_time_are_no_faults(case, found, is_right):
    large = case.tried(32)[-1]
    case.sizes, case.wrong = None, {(32, large): found}
    assert case.verified(32)[0] == ([32] if is_right else [])


def integers_off_by(error):
    checks = (CheckResult("o", RANDOM, error, error, 0.0, 0),)
    return Measurement(Configuration(), Status.WRONG_RESULT, checks=checks)


@pytest.mark.parametrize(
    ("dtype", "error", "is_right"), [("<f4", 1.0, True), ("<f4", 2.0, False), ("<i4", 1.0, False)]
)
def test_at_the_large_size_an_integer_may_be_its_neighbour_where_a_number_was_rounded(
    case, dtype, error, is_right
):
    case.dtype = dtype
    large = case.tried(32)[-1]
    case.sizes, case.wrong = None, {(32, large): integers_off_by(error)}
    assert case.verified(32)[0] == ([32] if is_right else [])
    case.sizes, case.wrong = None, {(32, 4095): integers_off_by(error)}
    assert case.verified(32)[0] == []


def test_later_finalists_run_where_earlier_ones_were_wrong_though_the_time_is_over(case):
    large = case.tried(32)[-1]
    faults = [4095, 4097, large]
    case.sizes, case.wrong = None, {(b, n): wrong_by(999) for b in (32, 64) for n in faults[:2]}
    case.wrong[32, large] = wrong_by(999)
    case.verified(32)
    case.now_s += 100
    assert case.verified(128)[0] == [128]
    assert case.checked[:3] == [(128, n) for n in faults]
    assert case.verified(64)[0] == []
    assert case.checked == [(64, 4095)]


@pytest.mark.parametrize(
    ("check_s", "tried"),
    [(10.0, [4095, 4097, 4093, 1]), (0.05, [4095, 4097, 4093, 1, 63])],
    ids=["always", "half"],
)
def test_four_sizes_near_are_always_verified_and_others_in_half_of_the_time(case, check_s, tried):
    case.check_s, case.data_s = check_s, lambda p: 0.05 * p.n / 4096
    assert case.tried(32, 64) == tried


@pytest.mark.parametrize(
    ("change", "large"),
    [
        ({}, 1 << 20),
        ({"median_ms": 2.0}, 1 << 15),
        ({"data_s": lambda p: 0.02 * max(1, p.n / 1e5)}, 1 << 18),
        ({"data_s": lambda p: 0.05 * p.n / 4096}, None),
        ({"data_s": lambda p: 0.2 * p.n / 4096}, None),
        ({"data_s": lambda p: 2.0 * p.n / 4096, "search_s": 1000.0}, None),
        ({"device": replace(GPU, memory_bytes=1 << 20)}, 1 << 13),
    ],
    ids=["data", "launches", "small data", "slow data", "compact", "long data", "memory"],
)
def test_the_large_size_is_what_time_and_memory_allow(case, change, large):
    vars(case).update(change)
    sizes = [n for n in case.tried(32, 64) if n > 4200]
    assert sizes == ([large] if large else [])


def test_beside_a_smaller_problem_where_data_take_long(case):
    case.data_s = lambda p: 0.2 * p.n / 4096
    assert case.tried(32, 64)[:2] == [255, 257]


def test_beside_two_units_where_data_of_four_would_take_long_too(case):
    case.data_s = lambda p: 2.0 * p.n / 4096
    assert case.tried(32, 64)[:2] == [127, 129]


def test_a_size_over_a_limit_of_the_device_is_not_launched(case):
    case.kernel.launch(lambda c, p: Launch(1, 32, shared_bytes=232448 if p.n <= 4096 else 232449))
    assert max(case.tried(32)) == 4095


def test_a_lost_fleet_ends_the_finals_and_another_error_is_told_once(case):
    case.wrong = {(32, 4095): FleetError("lost")}
    with pytest.raises(FleetError):
        case.verified(32)
    case.sizes = None
    case.wrong = {(32, n): AutotuneError("refused") for n in (4095, 4097)}
    with pytest.warns(UserWarning, match="not verified at n=4095 .*refused") as told:
        assert case.verified(32)[0] == [32]
    assert len(told) == 1


def test_a_requirement_that_cannot_be_asked_keeps_a_finalist_from_a_size(case):
    case.kernel.requires(lambda c, p: 1 // (p.n - 4095) is not None)
    with pytest.warns(UserWarning, match="not verified at n=4095"):
        assert 4095 not in case.tried(32)


def test_a_size_where_nothing_but_0_is_expected_is_left_out(case):
    case.zero = [1, 63]
    assert case.tried(64)[:6] == [n for n in BESIDE if n not in case.zero]


@pytest.mark.parametrize(("n", "is_longer"), [(4095, False), (8191, False), (8192, True)])
def test_a_field_of_twice_the_size_may_have_longer_sums(case, n, is_longer):
    """A sum of 65,536 numbers one by one is right where one of 1024 is."""
    case.tried(32)
    assert case.sizes._is_longer(OWN.replace(n=n)) == is_longer


@pytest.mark.parametrize(("value", "telling"), [(65504.0, True), (65536.0, False), (0.0, False)])
def test_a_size_whose_result_a_half_cannot_hold_tells_nothing(value, telling):
    class Half(Dataset):
        def expected(self, name):
            return np.array([value])

    output = Argument("o", "out", "<f2", (1,))
    job = Job(b"", OWN, GPU, (Half(RANDOM, Path(), (output,), {"o": 1.0}, 0),))
    assert can_show_faults(job) == telling


def test_nothing_is_derived_from_another_layout(case):
    case.kernel.layout = {"step": 1}
    case.sizes = OtherSizes(
        SimpleNamespace(kernel=case.kernel, job=case.job, make_data=case.make_data),
        case.job(OWN.replace(step=2)), case.known, case.check, 0.0, set(),
    )  # fmt: skip
    assert case.tried(32) == []
