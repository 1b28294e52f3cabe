"""Values that the data never hold: the drawn range, the changes beyond it, and the differences told."""

from types import SimpleNamespace

import numpy as np
import pytest
from sample_spaces import write_space

from autotune.data.consensus import save_result
from autotune.data.extremes import drawn_ranges, extreme_data
from autotune.data.prepare import prepare_dataset
from autotune.devices.device import for_arch
from autotune.kernel.catalog import load_file
from autotune.measure.measurement import Measurement, Status
from autotune.measure.worker_state import Job
from autotune.run import extreme_checks
from autotune.values import Configuration, Problem

DRAWN = "x = rng.standard_normal(p.n, dtype=np.float32)"
INTEGERS = "x = rng.integers(0, 100, p.n)"


@pytest.fixture
def differences(tmp_path):
    """Return the differences told for a kernel, a NumPy function in float32, against a reference of ``x``."""

    def of(reference, kernel, drawn=DRAWN, out="Out(p.n)", more="", matches=""):
        if matches:
            matches = f"@scale.matches\ndef matches(found, expected):\n    return {matches}\n\n\n"
        edits = [
            ("@scale.reference", f"{matches}@scale.reference"),
            (DRAWN, drawn),
            ('"out": Out(p.n)', f'"out": {out}{more}'),
        ]
        edits.append(("(x, factor):\n    return factor * x", f"(x):\n    {reference}"))
        loaded = load_file(write_space(tmp_path, *edits))
        (tmp_path / "data").mkdir()
        found = []
        for extreme in extreme_data(loaded, Problem(n=100), 0, tmp_path / "data"):
            (results := tmp_path / "results" / extreme.dataset.name).mkdir(parents=True)
            with np.errstate(all="ignore"):
                values = kernel(np.array(extreme.dataset.array("x")))
            output = next(a for a in extreme.dataset.arguments if a.kind == "out")
            save_result(results, "out", np.asarray(values, output.dtype))
            found.append((extreme.change, extreme.difference(loaded, results.parent)))
        return found

    return of


def told(found):
    return {change.split(",")[0] for change, text in found if text}


def by_row(reduced):
    """Return a kernel that writes one number of each row of ten to all ten."""
    return lambda x: np.repeat([reduced(row) for row in x.reshape(-1, 10)], 10)


def softmax(x, is_shifted):
    rows = x.reshape(-1, 10)
    e = np.exp(rows - is_shifted * rows.max(1, keepdims=True))
    return (e / e.sum(1, keepdims=True)).reshape(-1)


ROWS = "rows = x.reshape(-1, 10)\n    "
REFERENCES = {
    "softmax": f"{ROWS}e = np.exp(rows - rows.max(1, keepdims=True))\n"
    "    return (e / e.sum(1, keepdims=True)).reshape(-1)",
    "max": f"{ROWS}return np.repeat(rows.max(1), 10)",
    "relu": "return np.maximum(x, 0)",
    "sum": f"{ROWS}return np.repeat(rows.sum(1), 10)",
    "mean": f"{ROWS}return np.repeat(rows.mean(1), 10)",
    "mod": "return x % 7",
    "variance": f"{ROWS}return np.repeat(rows.var(1), 10)",
    "unit": "length = np.sqrt((x * x).sum())\n    return x / (length or 1.0)",
    "logaddexp": "return np.logaddexp(0, x)",
    "floor": "return np.floor(x).astype(np.int32)",
}


def test_the_kernels_own_function_compares_extreme_values_too(differences):
    """It refuses NaN of the reference itself, so such data show nothing."""
    found = differences(
        "return np.maximum(x, 0)",
        lambda x: np.where(x > 100, 0, np.maximum(x, 0)),
        matches="bool((found['out'] == expected['out']).all()) or 'other values'",
    )
    assert dict(found)["x times 8192"] == "x times 8192: other values"
    assert dict(found)["x all zero"] == ""
    assert not any("nan" in change for change, _ in found)


@pytest.mark.parametrize(
    ("name", "kernel", "changes"),
    [
        ("softmax", lambda x: softmax(x, 0), {"x times 8192", "x all negative"}),
        ("max", by_row(lambda row: max(0, np.nanmax(row))), {"x all negative", "x[53] = nan"}),
        ("relu", lambda x: np.where(x > 0, x, 0), {"x[53] = nan"}),
        ("sum", by_row(lambda row: np.float16(8 * row.sum()) / 8), {"x times 8192"}),
        ("variance", by_row(lambda row: (row * row).mean() - row.mean() ** 2), {"x plus 700"}),
        ("unit", lambda x: x / np.sqrt((x * x).sum()), {"x all zero"}),
        ("logaddexp", lambda x: np.log(1 + np.exp(x)), {"x times 8192"}),
        ("floor", lambda x: np.trunc(x), {"x all negative"}),
    ],
)
def test_a_kernel_that_is_right_on_the_drawn_values_alone_is_told(
    differences, name, kernel, changes
):
    assert changes <= told(differences(REFERENCES[name], kernel))


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("softmax", lambda x: softmax(x, 1)),
        ("max", by_row(np.max)),
        ("relu", lambda x: np.maximum(x, 0)),
        ("sum", by_row(lambda row: sum(row[i::3].sum() for i in range(3)))),
        ("mean", by_row(lambda row: np.float32(row.sum()) / np.float32(row.size))),
    ],
)
def test_a_kernel_that_passes_all_values_on_is_not_told(differences, name, kernel):
    found = differences(REFERENCES[name], kernel)
    assert len(found) == 7 and not told(found)


def test_a_nan_that_the_reference_alone_spreads_is_not_told(differences):
    """The product with a one-hot matrix has NaN everywhere, and a kernel that copies an element has not."""
    found = differences("return np.eye(x.size) @ x", lambda x: x)
    assert len(found) == 5 and not told(found)


def test_what_float32_cannot_give_is_not_expected(differences):
    """The squares of the largest numbers overflow in float32, in the reference too."""
    found = differences(
        "return np.sqrt((x * x).sum()) + 0 * x", lambda x: np.sqrt((x * x).sum()) + 0 * x
    )
    assert not told(found)  # fmt: skip


@pytest.mark.parametrize(
    ("reference", "kernel", "out", "changes"),
    [
        (REFERENCES["mod"], lambda x: np.fmod(x, 7), "Out(p.n, 'int32')", {"x all negative"}),
        (REFERENCES["mod"], lambda x: x % 7, "Out(p.n, 'int32')", set()),
        (
            "return np.full(x.shape, x.sum(dtype=np.int64))",
            lambda x: np.full(x.shape, x.sum(dtype=np.int32)),
            "Out(p.n, 'int64')",
            {"x plus 2147483549"},
        ),
        ("return x.astype(np.float64) ** 2", lambda x: x * x, "Out(p.n)", {"x times 8192"}),
        (
            "return (x.astype(np.int64) + 7) // 2",
            lambda x: (x + np.int32(7)) // np.int32(2),
            "Out(p.n, 'int32')",
            {"x plus 2147483548"},
        ),
    ],
    ids=["remainder", "modulo", "sum", "square", "midpoint"],
)
def test_integers_that_the_reference_computes_with_are_changed(
    differences, reference, kernel, out, changes
):
    found = differences(reference, kernel, INTEGERS, out)
    assert found and changes <= told(found) and bool(changes) == bool(told(found))


@pytest.mark.parametrize(
    "reference",
    [
        "return np.arange(200.0)[x]",
        "return np.arange(200.0)[x.astype(np.int64)]",
        "return np.take(np.arange(200.0), x)",
        "return np.array([np.ones(200)[: int(n)].sum() for n in x])",
        "return np.bincount(x, minlength=200)[: len(x)]",
        "return (np.arange(200) < x[:, None]).sum(1)",
        "return (x[:, None] == np.arange(200)) @ np.arange(200.0)",
    ],
    ids=["index", "converted", "take", "slice", "count", "compared length", "one-hot"],
)
def test_indices_and_lengths_stay_as_they_were_drawn(differences, reference):
    assert differences(reference, None, INTEGERS) == []


def test_a_float_that_becomes_an_index_stays_too(differences):
    drawn = "x = rng.uniform(0, 100, p.n)"
    assert differences("return np.arange(200.0)[x.astype(int)]", None, drawn) == []


def test_the_range_of_each_array_is_that_of_its_finite_numbers(tmp_path):
    values = "x = np.linspace(-2, 1.5, p.n, dtype=np.float32)\n    x[7], x[8] = np.nan, -np.inf"
    others = '"x": x, "ids": np.arange(3, 90), "no": np.full(3, np.inf), "none": np.ones(0),'
    kernel = load_file(write_space(tmp_path, (DRAWN, values), ('"x": x,', others)))
    dataset = prepare_dataset(kernel, kernel.all_problems()[0], "random")
    assert drawn_ranges(dataset) == {"x": (-2.0, 1.5), "ids": (3.0, 89.0)}


@pytest.mark.parametrize("failing", [Status.CRASHED, Status.TIMED_OUT])
def test_a_launch_that_does_not_end_is_told_with_the_change(failing, tmp_path):
    data = [SimpleNamespace(change=f"change {number}", dataset=number) for number in range(3)]
    job = Job(b"", Problem(n=1), for_arch("sm_90"), ())
    ran = []

    def verify(job, configuration, *_):
        ran.append(job.datasets)
        return Measurement(configuration, failing if 1 in job.datasets else Status.OK)

    bench = SimpleNamespace(verify=verify)
    found = extreme_checks._differences(bench, job, Configuration(), data, tmp_path)
    ending = {Status.CRASHED: "it crashes", Status.TIMED_OUT: "it hangs"}[failing]
    assert found == (f"change 1: {ending}",)
    assert ran == [(0, 1, 2), (0,), (1,)]
