"""Expected outputs without a reference: the results of a configuration, and the bounds that others get."""

from pathlib import Path

import numpy as np
import pytest
from sample_spaces import write_space

from autotune.data.consensus import keep_expected, save_result, with_results
from autotune.data.dataset import EXACT, RANDOM, Dataset
from autotune.data.prepare import prepare_dataset
from autotune.kernel.catalog import load_file
from autotune.values import Problem

PROBLEM = Problem(n=1000)
REFERENCE = "\n\n@scale.reference\ndef reference(x, factor):\n    return factor * x\n"
TOLERANCE = (
    "@scale.launch",
    "@scale.tolerance\ndef tolerance(p):\n    return 0.5\n\n\n@scale.launch",
)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "cache"))


def claimed(
    folder: Path, *edits: tuple[str, str], exact: float = 1.0
) -> tuple[list[Dataset], tuple[Dataset, ...]]:
    """Data sets without expected outputs, and the same with results: ``exact`` and random numbers."""
    kernel = load_file(write_space(folder, (REFERENCE, ""), *edits))
    made = [prepare_dataset(kernel, PROBLEM, which) for which in (EXACT, RANDOM)]
    results = folder / "results"
    random = np.random.default_rng(0).standard_normal(PROBLEM.n, dtype=np.float32)
    for name, values in ((EXACT, np.full(PROBLEM.n, exact, np.float32)), (RANDOM, random)):
        (results / name).mkdir(parents=True)
        save_result(results / name, "out", values)
    return made, with_results(kernel, PROBLEM, made, results)


def test_whole_exact_results_are_compared_bit_for_bit_and_random_ones_by_their_scale(
    tmp_path: Path,
) -> None:
    _, (exact, random) = claimed(tmp_path)
    assert exact.bounds == {"out": 0.0}
    assert 1e-6 < random.bounds["out"] < 1e-3


def test_a_declared_tolerance_holds_for_results_that_are_rounded(tmp_path: Path) -> None:
    _, (exact, random) = claimed(tmp_path, TOLERANCE)
    assert (exact.bounds, random.bounds) == ({"out": 0.0}, {"out": 0.5})


def test_a_declared_tolerance_holds_for_exact_results_that_are_not_whole(tmp_path: Path) -> None:
    _, (exact, _) = claimed(tmp_path, TOLERANCE, exact=0.3)
    assert exact.bounds == {"out": 0.5}


def test_what_configurations_agree_on_is_read_back_with_their_number(tmp_path: Path) -> None:
    made, found = claimed(tmp_path)
    kept = keep_expected(made, found, agreed=3)
    kernel = load_file(tmp_path / "spaces" / "scale.py")
    for dataset, expected in zip(kept, found, strict=True):
        again = prepare_dataset(kernel, PROBLEM, dataset.name)
        assert (again.bounds, again.agreed) == (expected.bounds, 3)
        assert np.array_equal(again.expected("out"), dataset.expected("out"))
