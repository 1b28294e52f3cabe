"""The default tolerance: right implementations pass it, and wrong ones whose error is small do not."""

import numpy as np
import pytest
from numpy_kernels import RIGHT, verdicts
from sample_spaces import write_space

from autotune.data.dataset import EXACT, RANDOM
from autotune.data.prepare import prepare_dataset
from autotune.kernel.catalog import load_file
from autotune.values import Problem


def test_correct_kernels_pass_and_wrong_ones_fail(tmp_path):
    """They are NumPy functions; tests/trust has the rules that they need."""
    failed = [case for case, is_accepted in verdicts(tmp_path) if is_accepted != (case in RIGHT)]
    assert failed == []


def test_exact_data_that_decide_leave_one_wide_bound_and_cost_one_evaluation(tmp_path):
    """The same scale as the exact data where the random sum is near 0 by accident.

    The evaluation is in float32, whose error counts if that is larger.
    """
    count = f"open({str(tmp_path / 'calls')!r}, 'a').write('.')"
    edits = (("return factor * x", f"{count}\n    return x.sum()"), ("Out(p.n)", "Out(1)"))
    kernel = load_file(write_space(tmp_path, *edits))
    deciding = abs(float(prepare_dataset(kernel, Problem(n=1 << 12), EXACT).expected("out")[0]))
    for seed in range(20):
        exact, random = (
            prepare_dataset(kernel, Problem(n=1 << 12), which, seed) for which in (EXACT, RANDOM)
        )
        assert exact.bounds == {"out": 0}
        assert random.by_element == ()
        scale = max(abs(float(random.expected("out")[0])), deciding)
        error = abs(random.array("x").sum() - random.expected("out")[0])
        assert random.bounds["out"] == pytest.approx(max(64 * 2.0**-23 * scale, 48 * error))
    # One for each exact, two for each random set, and two for the declared problem.
    assert len((tmp_path / "calls").read_text()) == 62


@pytest.mark.parametrize(
    ("draw", "reference", "by_element"),
    [
        ("300 + rng.normal(0, 1e-3, p.n)", "(np.roll(x, 1) + x + np.roll(x, 2)) / 8 - x * 3 / 8", True),
        ("rng.standard_normal(p.n)", "(x + 4096) - 4096", False),
    ],
    ids=["rounded sums whose difference the type holds", "exact sums of integers only"],
)  # fmt: skip
def test_what_cancels_is_allowed_the_errors_of_its_terms(draw, reference, by_element, tmp_path):
    edits = (
        ("rng.standard_normal(p.n, dtype=np.float32)", draw),
        ("return factor * x", f"return {reference}"),
    )
    kernel = load_file(write_space(tmp_path, *edits))
    exact, random = (prepare_dataset(kernel, Problem(n=1000), which) for which in (EXACT, RANDOM))
    assert exact.by_element == (("out",) if by_element else ())
    bounds = random.element_bounds("out") if by_element else random.bounds["out"]
    in_single = kernel.hook("reference")(random.array("x"), 3)
    error = np.abs(in_single - random.expected("out")).max()
    assert 4 * error < np.median(bounds) < 400 * error


SEVEN_TENTHS = "np.full(512, 0.7, np.float32)"


@pytest.mark.parametrize(
    ("inputs", "names", "reference", "bound"),
    [
        # 128 roundings of what one element contributes, where few do; 10 of the result itself.
        (f'"x": {SEVEN_TENTHS}, "s": 2.0', "x, s", "s * x / 3", 138 * 1.4 / 3),
        ('"x": rng.random(512), "s": 0.3, "t": 0.3', "x, s, t", "s - t + x / 1e9", 128 * 0.45),
        (f'"x": {SEVEN_TENTHS}, "y": {SEVEN_TENTHS}', "x, y", "(x - y) / 3 + x / 1e9", 128 * 0.33),
        # With integers 128 of the largest value besides.
        (f'"x": {SEVEN_TENTHS}, "k": np.ones(512, int)', "x, k", "x * k / 3", 266 * 0.7 / 3),
        ('"k": np.ones(512, int), "s": 0.3', "k, s", "s * k / 3", 266 * 0.1),
        (f'"x": {SEVEN_TENTHS}, "b": np.ones(512, bool)', "x, b", "x * b / 3", 138 * 0.7 / 3),
        (
            f'"x": {SEVEN_TENTHS}, "s": 0.5',
            "x, s",
            "x * [s / 3][round(s * 1e9 - 5e8)]",
            10 * 0.35 / 3 + 2,
        ),
    ],
    ids=[
        "a size is no input",
        "scalars",
        "two inputs",
        "integers",
        "a scalar alone",
        "bools",
        "no evaluation succeeds",
    ],
)
def test_a_bound_is_of_the_inputs_that_rounding_changes(inputs, names, reference, bound, tmp_path):
    """In half units of float32 at 1; the evaluations are random, so within a quarter."""
    edits = (
        ("    x = rng.standard_normal(p.n, dtype=np.float32)\n", ""),
        ('"x": x, "out": Out(p.n), "factor": np.float32(FACTOR), "n": p.n',
         f'{inputs}, "out": Out(512)'),
        ("def reference(x, factor)", f"def reference({names})"),
        ("return factor * x", f"return {reference}"),
    )  # fmt: skip
    random = prepare_dataset(load_file(write_space(tmp_path, *edits)), Problem(n=1000), RANDOM)
    assert random.by_element == ("out",)
    assert np.median(random.element_bounds("out")) / 2.0**-24 == pytest.approx(bound, rel=0.25)


def test_values_that_are_not_finite_are_expected_where_they_are(tmp_path):
    edits = ("return factor * x", "return np.log(x) / np.where(x > 2, 0, 7)")
    random = prepare_dataset(load_file(write_space(tmp_path, edits)), Problem(n=1000), RANDOM)
    bounds, expected = random.element_bounds("out"), random.expected("out")
    assert np.isnan(expected).any()
    assert np.isinf(expected).any()
    assert np.isfinite(bounds).all()
    assert bounds[np.isfinite(expected)].max() < 1e-3


@pytest.mark.parametrize(
    ("dtype", "reference", "least", "most"),
    [
        ("float64", "np.exp(x) / 3", 0, 1e-11),  # not what evaluations in float32 say
        ("float32", "np.exp(x) * 1e-41", 1e-38, 1e-37),  # devices may write 0
        ("float16", "np.exp(x) * 1e-6", 5e-8, 5e-7),  # and of half precision not
    ],
)
def test_bounds_are_of_the_type_of_the_output(dtype, reference, least, most, tmp_path):
    edits = (("return factor * x", f"return {reference}"), ("Out(p.n)", f"Out(p.n, '{dtype}')"))
    random = prepare_dataset(load_file(write_space(tmp_path, *edits)), Problem(n=1000), RANDOM)
    assert least <= np.median(random.element_bounds("out")) < most


def test_what_is_exact_at_one_size_by_chance_is_not_compared_bit_for_bit(tmp_path):
    """The variance of 64 integers is a short binary fraction, and that of the declared 1000 is not."""
    edits = (("return factor * x", "return x.var()"), ("Out(p.n)", "Out(1)"))
    kernel = load_file(write_space(tmp_path, *edits))
    for n, bound in {64: 7e-5, 1000: 7e-5}.items():
        exact, random = (prepare_dataset(kernel, Problem(n=n), which) for which in (EXACT, RANDOM))
        assert exact.by_element == random.by_element == ("out",)
        assert 7e-6 < exact.bounds["out"] < 20 * bound
