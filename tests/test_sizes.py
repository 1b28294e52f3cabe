"""Sizes that are derived from a tuned one, what to require where a kernel is wrong, ranges of verified sizes."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from autotune.answers.table import covers
from autotune.data.arguments import Argument
from autotune.data.dataset import EXACT, RANDOM, Dataset
from autotune.devices.device import for_arch
from autotune.errors import AutotuneError, FleetError
from autotune.kernel.sizes import (
    compact,
    extreme_sizes,
    known_like,
    proposed,
    ranges_of,
    size_fields,
    sizes_near,
    twin_of,
)
from autotune.kernel.spec import Kernel, Launch, Work
from autotune.measure.measurement import CheckResult, Measurement, Status
from autotune.measure.race import Contender
from autotune.measure.worker_state import Job
from autotune.run.other_sizes import OtherSizes, overflows
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


# ---------------------------------------------------------------------- sizes far from every problem

GPU = replace(for_arch("sm_90"), memory_bytes=1 << 36)


def declared(*problems, work=None, static=(), **hooks):
    kernel = Kernel("x { }", name="x", problems=list(problems), static=list(static), A=(1,))
    if work:
        kernel.work(work)
    for name, hook in hooks.items():
        getattr(kernel, name)(hook)
    return kernel


def extremes(kernel, problem, device=GPU):
    known = known_like(kernel, problem, device)
    return extreme_sizes(
        kernel, known, device, lambda size: kernel.allows(Configuration(A=1), size)
    )


def product(p):
    """Work of a product of matrices."""
    return Work(2 * p.m * p.n * p.k, 4 * (p.m * p.k + p.k * p.n), 4 * p.m * p.n)


def test_each_field_is_1_and_far_above_all_problems_and_above_limits():
    kernel = declared(Problem(m=512, n=1000, k=64), Problem(m=4096, n=4096, k=4096), work=product)
    found = extremes(kernel, Problem(m=512, n=1000, k=64))
    one, far = {"n": 64, "k": 64, "m": 1}, {"m": 65537, "n": 64, "k": 64}
    assert found[:2] == [Problem(one), Problem(far)]
    assert Problem(m=64, n=64, k=65537) in found
    assert found == extremes(kernel, Problem(m=4096, n=4096, k=4096))


def test_a_size_costs_at_most_as_much_as_the_largest_problem_or_is_cheap():
    def vector(p):
        return Work(bytes_read=4 * p.n, bytes_written=4 * p.n)

    most = [max(p.n for p in extremes(declared(Problem(n=1 << e), work=vector), Problem(n=1 << e)))
            for e in (10, 20, 24, 28)]  # fmt: skip
    assert most == [(1 << 20) + 1, (1 << 21) + 1, 1, 1]
    assert extremes(declared(Problem(n=1 << 20)), Problem(n=1 << 20)) == ns(1)


def test_without_work_one_field_is_long_while_the_others_are_1():
    problem = Problem(rows=64, columns=4096)
    found = extremes(declared(problem), problem)
    assert {Problem(rows=65537, columns=1), Problem(rows=1, columns=65537)} < set(found)
    assert all(p.rows * p.columns <= 64 * 4096 for p in found)
    assert extremes(declared(Problem(n=100)), Problem(n=100)) == ns(1, 1601)


def test_an_exponent_without_work_stays_small():
    """16 times 12 bits would be 2^193 blocks, and arrays of as many elements."""
    own = Problem(bits=12)
    kernel = declared(own, launch=lambda c, p: Launch(grid=(2**p.bits // 64,), block=(64,)))
    assert extremes(kernel, own) == [Problem(bits=1)]


def test_a_float_index_and_a_grid_of_65535_blocks_are_passed():
    def copied(p):
        return Work(bytes_read=p.rows * p.n, bytes_written=p.rows * p.n)

    kernel = declared(Problem(rows=8192, n=16384), work=copied)
    found = extremes(kernel, Problem(rows=8192, n=16384))
    assert Problem(rows=(1 << 24) + 1, n=1) in found and Problem(rows=131073, n=64) in found


def test_small_fields_vary_but_what_is_compiled_in_and_text_does_not():
    problem = Problem(n=1000, batch=4, taps=9, mode="a")
    other = problem.replace(taps=3)
    kernel = declared(problem, other, static=["taps"])
    found = extremes(kernel, problem)
    assert {p.batch for p in found} == {1, 4, 65}
    assert {(p.taps, p.mode) for p in found} == {(9, "a")}


def test_a_size_that_is_not_allowed_moves():
    kernel = declared(Problem(n=4096), requires=lambda c, p: p.n % 8 == 0)
    kernel.work(lambda p: Work(bytes_read=p.n))
    assert extremes(kernel, Problem(n=4096)) == ns(8, 16 * 4096 + 8, (1 << 24) + 8)


def test_a_work_function_that_fails_has_no_extreme_size_beyond():
    def work(p):
        return Work(bytes_read=1 << (10 // (p.n == 64)))

    assert extremes(declared(Problem(n=64), work=work), Problem(n=64)) == []


def test_a_twin_keeps_unusual_fields_and_is_small_in_the_others():
    problems = [Problem(m=512, n=7, taps=3, mode="a"), Problem(m=4096, n=4096, taps=9, mode="b")]
    kernel = declared(*problems, static=["taps"])
    own = problems[1]
    changes = [
        {"n": 10_000},
        {"m": 1000, "n": 1},
        {"taps": 5},
        {"taps": 5, "mode": "c"},
        {"m": 1000, "n": 1000},
    ]
    twins = [twin_of(kernel, own.replace(**change), GPU, lambda size: True) for change in changes]
    small, fields = {"m": 64, "n": 64}, dict(own)
    assert twins == [
        Problem({**fields, **small, "n": 10_000}),
        Problem({**fields, **small, "m": 104, "n": 1}),
        Problem({**fields, **small, "taps": 5}),
        Problem({**fields, **small, "taps": 5, "mode": "c"}),
        Problem({**fields, "m": 1000, "n": 1000}),
    ]
    assert twin_of(kernel, own.replace(n=1 << 40), GPU, lambda size: True) is None
    even = twin_of(kernel, own.replace(n=9_999), GPU, lambda size: size.m % 256 == 0)
    assert even.m == 256


# ---------------------------------------------------------------------- ranges


def test_a_range_ends_at_each_greatest_size_and_begins_at_the_least_of_each_field():
    kernel = declared(Problem(m=8, n=8))
    sizes = [Problem(m=1, n=50), Problem(m=100, n=100), Problem(m=7, n=900), Problem(m=99, n=99)]
    ranges = ranges_of(kernel, sizes, sizes)
    assert ranges == ({"m": (1, 100), "n": (50, 100)}, {"m": (1, 7), "n": (50, 900)})
    inside = [Problem(m=50, n=60), Problem(m=7, n=900), Problem(m=1, n=50)]
    outside = [Problem(m=8, n=101), Problem(m=101, n=60), Problem(m=50, n=49), Problem(m=0, n=60)]
    assert all(covers(ranges, p) for p in inside) and not any(covers(ranges, p) for p in outside)


def test_a_range_is_of_one_text_and_one_compile_time_value():
    kernel = declared(Problem(n=8, taps=3, mode="a"), static=["taps"])
    kernel.layout = {"step": 1}
    sizes = [Problem(n=n, taps=t, mode=m) for n, t, m in ((9, 3, "a"), (7, 5, "a"), (8, 5, "b"))]
    ranges = ranges_of(kernel, [*sizes, sizes[0].replace(n=99, step=2)], sizes[:2])
    assert ranges == (
        {"n": (9, 9), "taps": (3, 3), "mode": "a"},
        {"n": (7, 7), "taps": (5, 5), "mode": "a"},
    )
    assert not covers(ranges, {"n": 8, "taps": 4, "mode": "a"})


# ---------------------------------------------------------------------- verifying

OWN = Problem(n=4096)
#: Sizes near the problem, as the first cases here have them.
NEAR = [4095, 4097, 4093, 1, 63, 65, 64, 191]
#: Sizes far from it.
FAR = [65537, 1048577]


def wrong_by(*shares):
    """A wrong result whose outputs are off by these multiples of their bounds."""
    checks = tuple(CheckResult("o", RANDOM, share, share, 1.0, 0) for share in shares)
    return Measurement(Configuration(), Status.WRONG_RESULT, checks=checks)


class Expecting(Dataset):
    """A data set whose expected values are its seed, and whose inputs are 1."""

    def expected(self, name):
        return np.array([self.seed])

    def values(self, name):
        return np.ones(1)


class Case:
    """A kernel, whose finalists are verified at other sizes; ``wrong`` is of a block and a size."""

    def __init__(self):
        self.kernel = Kernel("x { }", name="x", problems=[OWN], BLOCK=(32, 64), PAD=(0, 1))
        self.kernel.launch(lambda c, p: Launch(-(-p.n // c.BLOCK), c.BLOCK))
        self.kernel.work(lambda p: Work(bytes_read=8 * p.n))
        self.own, self.known, self.warned = OWN, [OWN], set()
        self.dtype, self.zero, self.wrong = "<f4", (), {}
        self.checked, self.names, self.sizes = [], {}, None

    def job(self, problem, seed=None, names=(EXACT, RANDOM)):
        self.names[problem.n] = names
        argument = Argument("x", "input", self.dtype, (problem.n,))
        seed = int(problem.n not in self.zero)
        sets = [Expecting(name, Path(), (argument,), {"o": 1.0}, seed) for name in names]
        return Job(b"", problem, GPU, tuple(sets))

    def make_data(self, wanted):
        """Nothing is made beside: jobs are at once."""

    def check(self, finalist, job):
        self.checked.append((finalist.configuration.BLOCK, job.problem.n))
        found = self.wrong.get(self.checked[-1], Measurement(Configuration(), Status.OK))
        if isinstance(found, Exception):
            raise found
        return replace(found, message=f"on {job.problem}")

    def finals(self, *blocks):
        """Return the finalists that are right, and the messages of the others."""
        request = SimpleNamespace(problems=(self.own,), seed=0)
        bench = SimpleNamespace(
            kernel=self.kernel, device=GPU, request=request, job=self.job, make_data=self.make_data
        )
        self.sizes = self.sizes or OtherSizes(bench, self.own, self.known, self.check, self.warned)
        self.checked.clear()
        finalists = [Contender(Configuration(BLOCK=b, PAD=0)) for b in blocks]
        right, wrong = self.sizes.verified(finalists)
        return right, [row.message for row in wrong]

    def verified(self, *blocks):
        """Return the blocks that are right, and the messages of the others."""
        right, wrong = self.finals(*blocks)
        return [finalist.configuration.BLOCK for finalist in right], wrong

    def tried(self, *blocks):
        """Return the sizes at which some finalist ran."""
        self.verified(*blocks)
        return list(dict.fromkeys(n for _, n in self.checked))


@pytest.fixture
def case(request):
    return Case()


pytestmark = pytest.mark.many_sizes


def test_sizes_near_the_problem_and_far_from_it_are_tried(case):
    case.known = [Problem(n=4097), OWN]
    (right, _), _ = case.finals(32, 64)
    tried = [n for _, n in case.checked[::2]]
    assert tried == [n for n in [*NEAR, *FAR] if n != 4097]
    assert {p.n for p in right.verified} == {4096, 4097, *tried}


@pytest.mark.parametrize("median_ms", [0.001, 1e6])
def test_no_measured_time_changes_the_sizes(case, median_ms):
    """The verdict would depend on other programs."""
    row = Measurement(Configuration(), Status.OK, samples_ms=(median_ms,) * 3)
    finalists = [Contender(Configuration(BLOCK=32, PAD=0), row=row)]
    case.verified(32)
    expected = list(case.checked)
    case.checked.clear()
    slow = OtherSizes(case.sizes.bench, OWN, [OWN], case.check, set())
    slow.verified(finalists)
    assert case.checked == expected


def test_units_are_what_a_block_covers_too(case):
    case.kernel.launch(lambda c, p: Launch(-(-p.n // 96), 32))
    assert {95, 96, 97} < set(case.tried(32))


def test_a_finalist_that_is_wrong_is_out_and_told_what_to_require(case):
    case.wrong = {(32, n): wrong_by(999) for n in [*NEAR, *FAR] if n % 64}
    right, (message,) = case.verified(32, 64)
    assert right == [64]
    assert message.startswith("on n=4095 (correct at 2 sizes, wrong at 9); exclude")
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
    assert {(32, 4095), (32, 64), (64, 64), (64, 65600)} < set(case.checked)
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
def test_at_a_far_size_rounding_and_time_are_no_faults(case, found, is_right):
    case.wrong = {(32, FAR[0]): found}
    right, _ = case.finals(32)
    assert len(right) == is_right
    assert not any(Problem(n=FAR[0]) in finalist.verified for finalist in right)
    assert (case.names[FAR[0]], case.names[4095]) == ((EXACT,), (EXACT, RANDOM))


def off_by(error):
    checks = (CheckResult("o", RANDOM, error, error, 0.0, 0),)
    return Measurement(Configuration(), Status.WRONG_RESULT, checks=checks)


@pytest.mark.parametrize(
    ("dtype", "error", "is_right"), [("<f4", 1.0, True), ("<f4", 2.0, False), ("<i4", 1.0, False)]
)
def test_at_a_far_size_an_integer_may_be_its_neighbour_where_a_number_was_rounded(
    case, dtype, error, is_right
):
    case.dtype, case.wrong = dtype, {(32, FAR[0]): off_by(error)}
    assert case.verified(32)[0] == ([32] if is_right else [])
    case.sizes, case.wrong = None, {(32, 4095): off_by(error)}
    assert case.verified(32)[0] == []


@pytest.mark.parametrize(
    ("dtype", "error", "is_right"),
    [("<f4", 1e-6, True), ("<f4", 0.5, False), ("<f4", np.inf, False), ("<i4", 1.0, False)],
)
def test_where_only_0_is_expected_small_errors_are_rounding(case, dtype, error, is_right):
    """The variance of one number, computed in one pass, is a rounding error; a NaN is none."""
    case.dtype, case.zero, case.wrong = dtype, [1], {(32, 1): off_by(error)}
    assert case.verified(32)[0] == ([32] if is_right else [])


def test_later_finalists_run_first_where_earlier_ones_were_wrong(case):
    faults = [4097, FAR[0]]
    case.wrong = {(b, n): wrong_by(999) for b in (32, 64) for n in faults}
    case.verified(32)
    assert case.verified(128)[0] == [128]
    assert case.checked[:2] == [(128, n) for n in faults]
    assert len(case.checked) == len(NEAR) + len(FAR)


def test_near_a_smaller_problem_where_the_problem_costs_much(case):
    case.own = Problem(n=(1 << 22) + 1)
    case.known = [case.own]
    assert case.tried(32, 64)[:2] == [256, 258]


def test_a_size_over_a_limit_of_the_device_is_not_launched(case):
    case.kernel.launch(lambda c, p: Launch(1, 32, shared_bytes=232448 if p.n <= 4096 else 232449))
    right, _ = case.finals(32)
    assert max(n for _, n in case.checked) == 4095
    assert ranges_of(case.kernel, right[0].verified, [OWN]) == ({"n": (1, 4096)},)


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


class Batched(Case):
    """A kernel with a field that is always 4: a number of things, or a mode."""

    def __init__(self):
        super().__init__()
        self.own = Problem(n=4096, batch=4)
        self.kernel = Kernel("x { }", name="x", problems=[self.own], BLOCK=(32, 64), PAD=(0, 1))
        self.kernel.launch(lambda c, p: Launch(-(-p.n // c.BLOCK), c.BLOCK))
        self.known = [self.own]

    def check(self, finalist, job):
        found = super().check(finalist, job)
        wrong = self.wrong.get((finalist.configuration.BLOCK, "batch", job.problem.batch))
        return replace(wrong, message=found.message) if wrong else found


def test_a_small_field_is_1_and_larger_where_one_finalist_is_right():
    case = Batched()
    case.wrong = {(32, "batch", 65): wrong_by(999)}
    right, (message,) = case.finals(32, 64)
    assert [finalist.configuration.BLOCK for finalist in right] == [64]
    assert "batch=65" in message
    assert {p.batch for p in right[0].verified} == {1, 4, 65}


def test_a_kernel_of_small_fields_alone_gets_a_rule_on_them():
    case = Batched()
    case.own = Problem(n=6, batch=4)
    case.kernel.problems = {"cuda": (case.own,)}
    case.known = [case.own]
    case.wrong = {(32, "batch", 65): wrong_by(999)}
    right, (message,) = case.finals(32, 64)
    assert [finalist.configuration.BLOCK for finalist in right] == [64]
    assert message.endswith("return p.batch <= 4")


def test_where_all_are_wrong_a_small_field_may_be_a_mode_and_is_not_verified():
    case = Batched()
    case.wrong = {(b, "batch", 65): wrong_by(999) for b in (32, 64)}
    with pytest.warns(UserWarning, match="not verified at n=64, batch=65"):
        right, _ = case.finals(32, 64)
    assert [finalist.configuration.BLOCK for finalist in right] == [32, 64]
    assert max(p.batch for p in right[0].verified) == 4


@pytest.mark.parametrize(("n", "is_longer"), [(4095, False), (8191, False), (8192, True)])
def test_a_field_of_twice_the_size_may_have_longer_sums(case, n, is_longer):
    """A sum of 65,536 numbers one by one is right where one of 1024 is."""
    case.tried(32)
    assert case.sizes._is_longer(OWN.replace(n=n)) == is_longer


@pytest.mark.parametrize(("value", "is_over"), [(65504.0, False), (65536.0, True), (0.0, False)])
def test_a_size_whose_result_a_half_cannot_hold_tells_nothing(value, is_over):
    class Half(Dataset):
        def expected(self, name):
            return np.array([value])

    output = Argument("o", "out", "<f2", (1,))
    job = Job(b"", OWN, GPU, (Half(RANDOM, Path(), (output,), {"o": 1.0}, 0),))
    assert overflows(job) == is_over


def test_nothing_is_derived_from_another_layout(case):
    case.kernel.layout = {"step": 1}
    case.own = OWN.replace(step=2)
    assert case.tried(32) == []
