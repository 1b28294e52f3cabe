"""Values that the data never hold: what is drawn, what is tried beyond it, and what is then told."""

from sample_spaces import write_space

from autotune.data.extremes import drawn_ranges
from autotune.data.prepare import prepare_dataset
from autotune.kernel.catalog import load_file

ARGUMENTS = (
    "x = rng.standard_normal(p.n, dtype=np.float32)",
    "x = np.linspace(-2, 1.5, p.n, dtype=np.float32)\n    x[7] = np.nan\n    x[8] = -np.inf",
)
OTHERS = (
    '"x": x,',
    '"x": x, "ids": np.arange(3, 90), "no": np.full(3, np.inf), "none": np.ones(0),',
)


def test_the_range_of_each_array_is_that_of_its_finite_numbers(tmp_path):
    kernel = load_file(write_space(tmp_path, ARGUMENTS, OTHERS))
    dataset = prepare_dataset(kernel, kernel.all_problems()[0], "random")
    assert drawn_ranges(dataset) == {"x": (-2.0, 1.5), "ids": (3.0, 89.0)}
