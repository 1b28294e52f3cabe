"""Laws of enumeration, checked against brute force over random kernels."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import tracemalloc
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from autotune.devices.device import for_arch
from autotune.errors import NothingValidError, SpecError, UsageError
from autotune.kernel.catalog import find_kernel, space_files
from autotune.kernel.space import enumerate_space, is_member
from autotune.kernel.spec import Kernel
from autotune.search.lattice import Lattice
from autotune.values import Configuration, Problem

DEVICE = for_arch("sm_90")
POOL: tuple[tuple[Any, ...], ...] = (
    (8, 16, 32, 64),
    (False, True),
    ("row", "column", "tiled"),
    (3,),
)


def rule(names, allowed):
    """A function of these parameters that holds for the allowed values."""

    def function(*given, **named):
        """Holds for some values."""
        return (given or tuple(named[name] for name in names)) in allowed

    either = inspect.Parameter.POSITIONAL_OR_KEYWORD
    function.__signature__ = inspect.Signature([inspect.Parameter(name, either) for name in names])
    return function


@st.composite
def kernels(draw, conditional=True):
    """A kernel of two to five parameters with random tables for rules."""
    count = draw(st.integers(2, 5))
    parameters = {f"P{i}": draw(st.sampled_from(POOL)) for i in range(count)}
    kernel = Kernel("k.cu", problems=[Problem(n=1)], **parameters)

    def table(names):
        points = list(itertools.product(*(parameters[name] for name in names)))
        return rule(names, frozenset(draw(st.sets(st.sampled_from(points)))))

    subsets = st.lists(st.sampled_from(sorted(parameters)), min_size=1, max_size=3, unique=True)
    for names in draw(st.lists(subsets, max_size=3)):
        kernel.constraint(table(tuple(names)))
    if conditional and count > 2:
        # A parameter applies or not by earlier ones; rules are declared in any order.
        governed = st.lists(st.integers(1, count - 1), max_size=2, unique=True)
        for position in draw(governed):
            deciding = draw(
                st.lists(st.integers(0, position - 1), min_size=1, max_size=2, unique=True)
            )
            kernel.applies(f"P{position}")(table(tuple(f"P{i}" for i in deciding)))
    return kernel


def brute_force(kernel):
    """Every point of the product that no rule forbids, the slow and plain way."""
    for values in itertools.product(*kernel.parameters.values()):
        point = dict(zip(kernel.parameters, values, strict=True))
        if is_valid(kernel, point):
            yield Configuration(point)


def is_valid(kernel, point):
    def holds(rule):
        return bool(rule.function(**{name: point[name] for name in rule.parameters}))

    governing = {
        name: [rule for rule in kernel.applies_rules if name in rule.governs] for name in point
    }
    idle = {name for name, rules in governing.items() if not all(holds(rule) for rule in rules)}
    if any(point[name] != kernel.parameters[name][0] for name in idle):
        return False
    for rule in kernel.constraint_rules:
        named = [name for name in rule.parameters if governing[name]]
        if not holds(rule) and not (named and all(name in idle for name in named)):
            return False
    return True


def enumerated(kernel):
    """The space; empty ones are not examples."""
    try:
        return enumerate_space(kernel, DEVICE)
    except NothingValidError:
        assert not list(brute_force(kernel))
        assume(False)
        raise


@given(kernels())
def test_enumeration_equals_brute_force_in_order(kernel):
    assert list(enumerated(kernel)) == list(brute_force(kernel))


@given(kernels())
def test_numbers_rows_and_configurations_agree(kernel):
    space = enumerated(kernel)
    for index, configuration in enumerate(space):
        assert space.find(space.rows[index]) == index
        assert space.index(configuration) == index
        assert space.configuration(index) == configuration
        assert configuration in space
    valid = set(space)
    for values in itertools.product(*kernel.parameters.values()):
        point = Configuration(dict(zip(kernel.parameters, values, strict=True)))
        assert (point in space) == (point in valid)


@given(kernels())
def test_one_configuration_is_known_without_enumeration(kernel):
    valid = set(brute_force(kernel))
    for values in itertools.product(*kernel.parameters.values()):
        point = Configuration(dict(zip(kernel.parameters, values, strict=True)))
        assert is_member(kernel, point, DEVICE) == (point in valid)


def test_a_value_of_another_type_is_no_member():
    kernel = Kernel("k.cu", problems=[Problem(n=1)], A=(1, 2))
    assert is_member(kernel, {"A": 1}, DEVICE)
    assert not any(is_member(kernel, {"A": value}, DEVICE) for value in (1.0, True, "1"))


@given(kernels(), st.data())
def test_twins_have_the_same_relevant_part(kernel, data):
    space = enumerated(kernel)
    configuration = space.configuration(data.draw(st.integers(0, len(space) - 1)))
    relevant = space.relevant(configuration)
    irrelevant = sorted(set(configuration) - set(relevant))
    assert all(configuration[name] == kernel.parameters[name][0] for name in irrelevant)
    for name in irrelevant:
        twin = configuration.replace(**{name: data.draw(st.sampled_from(kernel.parameters[name]))})
        assert space.find(space.canonical(space.row(twin))) == space.index(configuration)


@given(kernels(), st.data())
def test_restricted_keeps_what_has_the_values(kernel, data):
    space = enumerated(kernel)
    name = data.draw(st.sampled_from(space.names))
    values = data.draw(st.sets(st.sampled_from(kernel.parameters[name]), min_size=1))
    expected = [configuration for configuration in space if configuration[name] in values]
    if expected:
        part = space.restricted({name: sorted(values)})
        assert list(part) == expected
        assert [part.relevant(each) for each in part] == [space.relevant(each) for each in part]
    else:
        with pytest.raises(NothingValidError, match=name):
            space.restricted({name: sorted(values)})


@given(kernels(), st.data())
def test_many_codes_are_found_as_each_alone_and_once(kernel, data):
    space = enumerated(kernel)
    code = st.integers(0, space.cartesian - 1)
    codes = np.array(data.draw(st.lists(code, min_size=1)) * 2, np.int64)
    rows = codes[:, None] // space.strides % space.sizes
    expected = {space.find(space.canonical(row)) for row in rows} - {None}
    assert space.find_all(codes).tolist() == sorted(expected)


@given(kernels(), st.integers(0, 2**32), st.integers(1, 50))
def test_samples_are_distinct_and_repeatable(kernel, seed, count):
    space = enumerated(kernel)
    sample = space.sample(np.random.default_rng(seed), count)
    assert len(set(sample)) == len(sample) == min(count, len(space))
    assert sample == space.sample(np.random.default_rng(seed), count)


def million():
    """A million points, six constraints."""
    ten = tuple(range(1, 11))
    kernel = Kernel("k.cu", problems=[Problem(n=1)], A=ten, B=ten, C=ten, D=ten, E=ten, F=ten)

    @kernel.constraint
    def even(A):
        """A is even."""
        return A % 2 == 0

    @kernel.constraint
    def ordered(A, B):
        """A is at most B."""
        return A <= B

    @kernel.constraint
    def divides(C, D):
        """D divides C."""
        return C % D == 0

    @kernel.constraint
    def bounded(B, C, E):
        """The product is at most 250."""
        return B * C * E <= 250

    @kernel.constraint
    def apart(E, F):
        """E and F differ."""
        return E != F

    @kernel.constraint
    def fits(A, F, device):
        """Both fit in shared memory."""
        needed = 4096 * (A + F)
        return needed <= device.shared_bytes_per_block

    return kernel


def test_a_rule_is_asked_by_name_whatever_the_order():
    """Its parameters in another order than the kernel's, with the device among them."""
    kernel = Kernel("k.cu", problems=[Problem(n=1)], A=(1, 2, 4), B=(2, 3), C=(0, 5))

    @kernel.constraint
    def a_rule(C, device, A):
        """The device in the middle."""
        return device is DEVICE and C > A

    @kernel.constraint
    def another(B, A):
        """The later one first."""
        return B == 2 * A or A == 4

    expected = [Configuration(A=1, B=2, C=5), *(Configuration(A=4, B=b, C=5) for b in (2, 3))]
    assert sorted(enumerate_space(kernel, DEVICE), key=str) == sorted(expected, key=str)


def test_a_million_points_are_neither_held_nor_asked_about_one_by_one():
    """A constraint is asked once for all values of the parameters it names."""
    kernel, calls = million(), Counter[str]()

    def counted(constraint):
        @functools.wraps(constraint.function)
        def function(*values):
            calls[constraint.name] += 1
            return constraint.function(*values)

        return replace(constraint, function=function)

    kernel.sources[""].constraint_rules[:] = map(counted, kernel.constraint_rules)
    tracemalloc.start()
    try:
        space = enumerate_space(kernel, DEVICE)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert space.cartesian == 10**6
    assert most_bytes < 10**6 * space.rows.itemsize * 6
    points = {
        constraint.name: 10 ** len(constraint.parameters) for constraint in kernel.constraint_rules
    }
    assert calls == points
    ten = np.arange(1, 11)
    a, b, c, d, e, f = np.meshgrid(*[ten] * 6, indexing="ij", sparse=True)
    masks = {
        "even": a % 2 == 0,
        "ordered": a <= b,
        "divides": c % d == 0,
        "bounded": b * c * e <= 250,
        "apart": e != f,
        "fits": 4096 * (a + f) <= DEVICE.shared_bytes_per_block,
    }
    everything = np.ones((10,) * 6, bool)
    for mask, share in zip(masks.values(), space.removed, strict=True):
        assert share == pytest.approx(1 - mask.mean(), abs=1e-12)
        everything &= mask
    assert space.rows.tolist() == np.argwhere(everything).tolist()


def test_fingerprint_is_of_the_space_and_nothing_else():
    assert (
        enumerate_space(million(), DEVICE).fingerprint
        == enumerate_space(million(), DEVICE).fingerprint
    )
    smaller = enumerate_space(million(), for_arch("sm_75"))
    assert smaller.fingerprint != enumerate_space(million(), DEVICE).fingerprint


def test_spaces_of_equal_rows_and_other_values_differ_in_their_fingerprints():
    small = Kernel("x { }", name="x", problems=[Problem(n=1)], A=(1, 2))
    large = Kernel("x { }", name="x", problems=[Problem(n=1)], A=(1, 4))
    first, second = enumerate_space(small, DEVICE), enumerate_space(large, DEVICE)
    assert first.rows.tolist() == second.rows.tolist()
    assert first.fingerprint != second.fingerprint


def test_errors_name_what_is_wrong():
    space = enumerate_space(million(), DEVICE)
    good = dict(space.configuration(0))
    with pytest.raises(UsageError, match=r"unknown parameter 'Q'"):
        space.row({**good, "Q": 1})
    with pytest.raises(UsageError, match=r"value of A.*11.*known: 1, 2"):
        space.row({**good, "A": 11})
    with pytest.raises(UsageError, match=r"lacks a value for A"):
        space.row({name: value for name, value in good.items() if name != "A"})
    with pytest.raises(UsageError, match=r"value of A.*'x'"):
        space.restricted({"A": ["x"]})
    assert space.index({**good, "Q": 1}) is None
    assert "text" not in space


def test_nothing_valid_says_how_many_each_constraint_excludes():
    kernel = Kernel("k.cu", problems=[Problem(n=1)], A=(1, 2), B=(1, 2))

    @kernel.constraint
    def small(B):
        """B is small."""
        return B < 2

    @kernel.constraint
    def impossible(A):
        """A is three."""
        return A == 3

    words = (
        r"among 4 combinations: impossible \(A is three\.\) excludes 4; small .* excludes 2; relax"
    )
    with pytest.raises(NothingValidError, match=words):
        enumerate_space(kernel, DEVICE)


def binary(count):
    """So many parameters of two values, of which constraints leave one configuration."""
    kernel = Kernel("k.cu", problems=[Problem(n=1)], **{f"P{i}": (0, 1) for i in range(count)})
    for name in kernel.parameters:
        kernel.constraint(rule((name,), frozenset({(1,)})))
    return kernel


def test_a_product_that_64_bits_cannot_number_is_refused_however_few_are_valid():
    """Numbers of the full product: beyond, two configurations would have one and the same."""
    space = enumerate_space(binary(61), DEVICE)
    assert space.cartesian == 2**61
    assert space.rows.tolist() == [[1] * 61]
    assert [space.find(row) for row in ([1] * 61, [0] + [1] * 60)] == [0, None]
    for count in (62, 64, 65):  # by 64 a number of 64 bits has wrapped to 0
        with pytest.raises(SpecError, match="combinations exceed 64-bit codes; drop some"):
            enumerate_space(binary(count), DEVICE)


def test_a_parameter_may_have_more_values_than_16_bits_count():
    """Indices of 16 bits wrapped: A=40000 was A=-25536 from the end."""
    kernel = Kernel("k.cu", problems=[Problem(n=1)], A=tuple(range(40000)), B=(False, True))
    kernel.constraint(rule(("A",), frozenset((a,) for a in (0, 32767, 32768, 39999))))
    space = enumerate_space(kernel, DEVICE)
    assert [c["A"] for c in space] == [0, 0, 32767, 32767, 32768, 32768, 39999, 39999]
    assert [space.index(configuration) for configuration in space] == list(range(8))
    assert space.canonical(space.row(space.configuration(7))).tolist() == [39999, 1]
    assert len(space.restricted({"A": [32768]})) == 2
    lattice = Lattice(space)
    assert [lattice.find(lattice.point(index)) for index in range(8)] == list(range(8))
    assert enumerated(million()).rows.dtype == np.int16  # whose bytes are in fingerprints


def digits(count):
    """So many parameters of ten values."""
    ten = tuple(range(10))
    return Kernel("k.cu", problems=[Problem(n=1)], **{f"P{i}": ten for i in range(count)})


def test_of_10_to_the_12_combinations_few_valid_ones_are_enumerated():
    kernel = digits(12)
    for i in range(11):
        kernel.constraint(rule((f"P{i}", f"P{i + 1}"), frozenset((n, n) for n in range(10))))
    space = enumerate_space(kernel, DEVICE)
    assert (space.cartesian, space.rows.tolist()) == (10**12, [[n] * 12 for n in range(10)])


def test_more_configurations_than_memory_holds_are_refused_before_they_are_made():
    tracemalloc.start()
    try:
        with pytest.raises(
            SpecError, match=r"about 1\.0e\+12 valid ones are too many: 2\.2e\+07 fit"
        ):
            enumerate_space(digits(12), DEVICE)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 2**26


def test_a_rule_of_too_many_parameters_is_refused_before_it_is_asked():
    """sgemm's space once took 48 s instead of one, by a rule of fourteen parameters."""
    kernel, asked = digits(9), []

    @kernel.constraint
    def many(P0, P1, P2, P3, P4, P5, P6, P7, P8):
        asked.append(P0)
        return True

    with pytest.raises(
        SpecError, match=r"rule 'many' depends on 9 parameters with 1\.0e\+09 combinations"
    ):
        enumerate_space(kernel, DEVICE)
    assert not asked


@pytest.mark.parametrize("name", sorted(space_files()))
def test_bundled_rules_have_at_most_three_million_combinations(name):
    kernel = find_kernel(name)
    for rule in (*kernel.constraint_rules, *kernel.applies_rules):
        counts = [len(kernel.parameters[parameter]) for parameter in rule.parameters]
        assert math.prod(counts) <= 3_000_000, rule.name


def test_a_rule_that_raises_names_its_line():
    kernel = Kernel("k.cu", problems=[Problem(n=1)], A=(0, 1))

    @kernel.constraint
    def divides(A):
        """One over A."""
        return 1 // A > 0

    with pytest.raises(SpecError, match=r"rule 'divides': ZeroDivisionError.*test_space\.py:\d+"):
        enumerate_space(kernel, DEVICE)
