"""Sizes that are derived from a tuned one, and what to require of sizes where a kernel is wrong."""

import pytest

from autotune.kernel.spec import Kernel
from autotune.run.sizes import compact, proposed, size_fields, sizes_beside
from autotune.values import Problem


def ns(*values):
    return [Problem(n=n) for n in values]


@pytest.mark.parametrize(
    ("problem", "units", "sizes"),
    [
        (Problem(n=4096), {128, 4}, ns(4095, 4097, 4093, 1, 127, 129, 128, 383)),
        (Problem(n=8), {128}, ns(7, 9, 1, 2)),
        (Problem(n=1), (), ns(2)),
        (Problem(n=0), (), ns(1)),
    ],
)
def test_sizes_lie_beside_the_problem_and_beside_multiples(problem, units, sizes):
    found = sizes_beside(problem, ["n"], units)
    assert found[: len(sizes)] == sizes
    assert problem not in found and len(set(found)) == len(found)


def test_each_of_several_fields_is_changed_alone_and_all_together():
    found = sizes_beside(Problem(m=64, n=1000, mode="a"), ["m", "n"], {16})
    assert found[:4] == [
        Problem(m=64, n=999, mode="a"),
        Problem(m=63, n=1000, mode="a"),
        Problem(m=65, n=1001, mode="a"),
        Problem(m=61, n=997, mode="a"),
    ]


def test_a_forbidden_size_is_replaced_by_the_next_that_is_allowed():
    found = sizes_beside(Problem(n=4096), ["n"], {128}, lambda p: p.n % 8 == 0)
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
