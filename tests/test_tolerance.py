"""The default tolerance: right implementations pass it, and wrong ones whose error is small do not."""

import functools

import numpy as np
import pytest
from sample_spaces import write_space

from autotune.data.dataset import EXACT, RANDOM
from autotune.data.prepare import prepare_dataset
from autotune.data.tolerance import common_bound
from autotune.devices.choose import backend, choose_device
from autotune.kernel.catalog import load_file
from autotune.measure import verify
from autotune.values import Problem

pytestmark = [pytest.mark.opencl, pytest.mark.usefixtures("opencl_device")]

#: Arguments besides the output, shape and type of the output, and the reference in float64.
FUNCTIONS = {
    "softmax": (
        '"x": rng.standard_normal((8, 8192))',
        '(8, 8192), "f4"',
        "np.exp(x) / np.exp(x).sum(1, keepdims=True)",
    ),
    "small": ('"x": rng.standard_normal(4096)', '4096, "f4"', "x * 1e-7"),
    "half": ('"x": rng.uniform(-2, 2, 4096)', '4096, "f2"', "np.exp(x) / 256"),
    "tanh": ('"x": rng.standard_normal(1 << 16)', '1 << 16, "f4"', "np.tanh(x)"),
    "log": ('"x": rng.uniform(0.5, 2, 4096)', '4096, "f4"', "np.log(x)"),
    "mean": ('"x": rng.random((16, 4000))', '16, "f4"', "x.mean(1)"),
    "bits": (
        '"x": (rng.standard_normal((16, 1000)).view(np.uint32) >> 16).astype(np.uint16)',
        '16, "f4"',
        "np.exp((x.astype(np.uint32) << 16).view(np.float32).astype(float)).mean(1)",
    ),
    "double": ('"x": rng.standard_normal(4096, "f8")', '4096, "f8"', "x * 1e-60"),
    "complex": (
        '"x": (rng.standard_normal(999) + 1j * rng.random(999)).astype("c8")',
        '999, "c8"',
        "x * x / 3",
    ),
    "scalar": (
        '"x": rng.standard_normal(512), "s": 0.3, "w": Constant(np.float32([0.1, 0.7]))',
        '512, "f4"',
        "s * x + w[1]",
    ),
    "cos": ('"x": rng.uniform(0, 0.1, 4096)', '4096, "f4"', "1 - np.cos(x)"),
    "map": (
        '"x": rng.uniform(0.1, 0.9, 999)',
        '999, "f4"',
        "functools.reduce(lambda x, _: 3.9 * x * (1 - x), range(12), x)",
    ),
    "scales": (
        '"x": rng.uniform(0, 1, 4096) - 25 * (np.arange(4096) % 4 == 3).astype("f4")',
        '4096, "f4"',
        "np.exp(x)",
    ),
    "levels": (
        '"x": rng.integers(-127, 128, 4096), "s": (10.0 ** -(np.arange(4096) % 8)).astype("f4")',
        '4096, "f4"',
        "np.tanh(x * s / 3)",
    ),
    "size": ('"x": rng.random(512), "s": 512.0', '512, "f4"', "x[:int(s)] / s / 3"),
    "moments": (
        '"x": rng.standard_normal((64, 1000)) + np.float32(10)',
        '64, "f4"',
        "(x * x).mean(1) - x.mean(1) ** 2",
    ),
    "root": (
        '"x": rng.uniform(0.9, 1.1, 4096)',
        '4096, "f4"',
        "((((x - 5) * x + 10) * x - 10) * x + 5) * x - 1",
    ),
    "double cos": ('"x": rng.uniform(0, 0.1, 4096, "f8")', '4096, "f8"', "1 - np.cos(x)"),
    # Exact data decide these: the bound is narrow, since sums of halves are float32's, and a map has no sum.
    "product": (
        '"x": rng.standard_normal((48, 300)).astype("f2")',
        '(48, 48), "f2"',
        "x.astype(float) @ x.astype(float).T",
    ),
    "twice": ('"x": np.exp(rng.standard_normal(4096))', '4096, "f4"', "2 * x"),
    "twice a half": ('"x": rng.standard_normal(4096).astype("f2")', '4096, "f2"', "2.0 * x"),
}


def sums(a, chunks=1):
    """Sum rows in float32: each chunk one by one, then the chunks."""
    parts = np.add.accumulate(a.reshape(len(a), chunks, -1), axis=-1, dtype=np.float32)[..., -1]
    return np.add.accumulate(parts, axis=-1, dtype=np.float32)[..., -1]


def softmax(x, chunks=32, left_out=None):
    e = np.exp(x)
    kept = e.copy()
    if left_out is not None:
        kept[:, left_out] = 0
    return e / sums(kept, chunks)[:, None]


def iterated(step, x, times=12):
    return functools.reduce(lambda x, _: step(x), range(times), x)


def number(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def product(x, kind="f4"):
    """Multiply a matrix by itself, with the sums one by one in a type."""
    total = np.zeros((len(x), len(x)), kind)
    for column in x.T.astype(kind):
        total = (total + column[:, None] * column).astype(kind)
    return total


F4 = np.float32
RIGHT = {
    "softmax: 32 chunks": ("softmax", softmax),
    "softmax: one by one": ("softmax", lambda x: softmax(x, 1)),
    "small: float32": ("small", lambda x: x * F4(1e-7)),
    "half: float32 inside": ("half", lambda x: np.exp(x) / F4(256)),
    "tanh: 1 - 2 / (exp(2x) + 1)": ("tanh", lambda x: F4(1) - F4(2) / (np.exp(2 * x) + F4(1))),
    "log: 2^-21.4 off, as __logf": ("log", lambda x: np.log(x) + F4(2**-21.4)),
    "mean: one by one": ("mean", lambda x: sums(x) / F4(4000)),
    "bits: one by one": ("bits", lambda x: sums(np.exp(number(x))) / F4(1000)),
    "double: float64": ("double", lambda x: x * 1e-60),
    "complex: float32": ("complex", lambda x: x * x / F4(3)),
    "scalar: float32": ("scalar", lambda x, s, w: s * x + w[1]),
    "cos: as written": ("cos", lambda x: F4(1) - np.cos(x)),
    "map: as written": ("map", lambda x: iterated(lambda x: F4(3.9) * x * (F4(1) - x), x)),
    "map: expanded": ("map", lambda x: iterated(lambda x: F4(3.9) * x - F4(3.9) * x * x, x)),
    "scales: float32": ("scales", lambda x: np.exp(x)),
    "levels: float32": ("levels", lambda x, s: np.tanh(x * s / F4(3))),
    "moments: one by one": (
        "moments",
        lambda x: sums(x * x) / F4(1000) - (sums(x) / F4(1000)) ** 2,
    ),
    "root: by powers": ("root", lambda x: np.polyval(F4([1, -5, 10, -10, 5, -1]), x)),
    "root: factored": ("root", lambda x: (x - 1) ** 5),
    "double cos: by sines": ("double cos", lambda x: 2 * np.sin(x / 2) ** 2),
    "size: float32": ("size", lambda x, s: x / F4(512) / F4(3)),
    "product: float32 inside": ("product", product),
    "twice: float32": ("twice", lambda x: x + x),
    "twice a half: float32": ("twice a half", lambda x: F4(2) * x),
}
WRONG = {
    "softmax: a column left out": ("softmax", lambda x: softmax(x, left_out=500)),
    "softmax: the least column left out": (
        "softmax",
        lambda x: softmax(x, left_out=x.mean(0).argmin()),
    ),
    "softmax: zero": ("softmax", lambda x: 0 * x),
    "small: zero": ("small", lambda x: 0 * x),
    "small: smallest elements left out": (
        "small",
        lambda x: np.where(abs(x) < 1e-2, 0, x * F4(1e-7)),
    ),
    "half: a constant": ("half", lambda x: np.full(x.shape, 0.01)),
    "half: some left out": ("half", lambda x: np.where(x < -1.9, 0, np.exp(x) / 256)),
    "tanh: float16": ("tanh", lambda x: np.tanh(x).astype("f2")),
    "log: float16": ("log", lambda x: np.log(x.astype("f2"))),
    "mean: an element left out": ("mean", lambda x: sums(x[:, 1:]) / F4(4000)),
    "bits: an element left out": ("bits", lambda x: sums(np.exp(number(x[:, 1:]))) / F4(1000)),
    "double: zero": ("double", lambda x: 0 * x),
    "double: float32": ("double", lambda x: x.astype("f4") * 1e-60),
    "complex: imaginary part off": ("complex", lambda x: x * x / F4(3) + 1e-4j),
    "scalar: 0.1 % off": ("scalar", lambda x, s, w: F4(0.3003) * x + w[1]),
    "cos: float16 of x": ("cos", lambda x: 1 - np.cos(x.astype("f2").astype("f8"))),
    "log: float16 of x": ("log", lambda x: np.log(x.astype("f2").astype("f4"))),
    "map: one step less": ("map", lambda x: iterated(lambda x: F4(3.9) * x * (1 - x), x, 11)),
    "scales: small left out": ("scales", lambda x: np.where(x < -15, 0, np.exp(x))),
    "levels: small left out": (
        "levels",
        lambda x, s: np.where(s < 1e-6, 0, np.tanh(x * s / 3)),
    ),
    "levels: float16 of levels": ("levels", lambda x, s: np.tanh(x * s.astype("f2") / 3)),
    "moments: an element left out": (
        "moments",
        lambda x: (x[:, 1:] ** 2).sum(1) / 1000 - x.mean(1) ** 2,
    ),
    "root: a term left out": ("root", lambda x: (x - 1) ** 5 + 1e-4 * x),
    "double cos: float32 of x": ("double cos", lambda x: 1 - np.cos(x.astype("f4"))),
    "size: one more": ("size", lambda x, s: x / F4(513) / F4(3)),
    "product: sums of halves": ("product", lambda x: product(x, "f2")),
    "product: steps of an eighth": ("product", lambda x: np.rint(product(x) * 8) / 8),
    "product: small is zero": ("product", lambda x: np.where(abs(product(x)) < 0.2, 0, product(x))),
    "twice: small is zero": ("twice", lambda x: np.where(x < 0.05, 0, 2 * x)),
    "twice: steps": ("twice", lambda x: np.rint(x * 2**13) / 2**12),
    "twice a half: small is zero": ("twice a half", lambda x: np.where(abs(x) < 0.01, 0, 2 * x)),
}


@pytest.fixture(scope="module")
def data(opencl_device, tmp_path_factory):
    """Make the device data of a function, its random set, with the inputs by name."""
    executor = backend("opencl").open(choose_device(opencl_device))

    def made(name):
        inputs, output, reference = FUNCTIONS[name]
        names = "x, s, w" if '"w"' in inputs else "x, s" if '"s"' in inputs else "x"
        edits = (
            ("    x = rng.standard_normal(p.n, dtype=np.float32)\n", ""),
            ('"x": x, "out": Out(p.n), "factor": np.float32(FACTOR), "n": p.n',
             f'{inputs}, "out": Out({output})'),
            ("def reference(x, factor)", f"def reference({names})"),
            ("return factor * x", f"return {reference}"),
            ("from autotune import Kernel, Launch",
             "import functools\n\nfrom autotune import Constant, Kernel, Launch"),
        )  # fmt: skip
        kernel = load_file(write_space(tmp_path_factory.mktemp(name), *edits))
        random = prepare_dataset(kernel, Problem(n=1000), RANDOM)
        assert random.by_element == ("out",)
        given = {
            o.name: o.scalar if o.kind == "scalar" else np.array(random.array(o.name))
            for o in random.arguments
            if o.kind != "out"
        }
        return verify.DeviceData(executor, {RANDOM: random}), given

    return made


def verified(data, name, implementation):
    made, given = data(name)
    out = made.argument("out")
    with np.errstate(all="ignore"):
        result = np.asarray(implementation(**given)).astype(out.dtype)
    run = lambda: made.executor.write(made.buffers["out"], result)  # noqa: E731
    (check,) = verify.verify(made, RANDOM, run, repeats=1)
    return check


@pytest.mark.parametrize("case", RIGHT)
def test_a_right_implementation_passes(data, case):
    check = verified(data, *RIGHT[case])
    assert 0 <= check.rms_error <= check.max_error <= check.bound


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_implementation_of_small_error_is_refused(data, case):
    with pytest.raises(verify.WrongResult, match=r"on random data; .* bound [-.e\d]+ here$"):
        verified(data, *WRONG[case])


def test_exact_data_that_decide_leave_one_wide_bound_and_cost_two_evaluations(tmp_path):
    """The same scale as the exact data where the random sum is near 0 by accident.

    One is in float32, whose error counts if that is larger; one shows how many inputs reach an element.
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
        result = abs(float(random.expected("out")[0]))
        scale = max(result, min(16 * result, deciding))
        error = abs(random.array("x").sum() - random.expected("out")[0])
        assert random.bounds["out"] == pytest.approx(max(64 * 2.0**-23 * scale, 48 * error))
    # One for each exact, three for each random set, and two for the declared problem.
    assert len((tmp_path / "calls").read_text()) == 82


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
    assert random.by_element == ("out",)  # few inputs reach an element
    bounds = random.element_bounds("out")
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
        # With integers 128 of the largest value besides; 8192 where nothing shows how few contribute.
        (f'"x": {SEVEN_TENTHS}, "k": np.ones(512, int)', "x, k", "x * k / 3", 266 * 0.7 / 3),
        ('"k": np.ones(512, int), "s": 0.3', "k, s", "s * k / 3", 266 * 0.1),
        (f'"x": {SEVEN_TENTHS}, "b": np.ones(512, bool)', "x, b", "x * b / 3", 8330 * 0.7 / 3),
        (
            f'"x": {SEVEN_TENTHS}, "s": 0.5',
            "x, s",
            "x * [s / 3][round(s * 1e9 - 5e8)]",
            138 * 0.35 / 3,
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


def test_values_that_are_not_finite_are_expected_where_they_are(data, tmp_path):
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


def test_exact_data_widen_a_bound_by_at_most_sixteen_times_the_random_scale():
    """A random sum may be near 0 by accident, but not all values of an output are."""
    info = np.finfo(np.float32)
    bounds = [common_bound(info, 1.0, exact, terms=1.0) for exact in (0.5, 8.0, 16.0, 1e6)]
    assert bounds == pytest.approx([bounds[0], 8 * bounds[0], 16 * bounds[0], 16 * bounds[0]])
